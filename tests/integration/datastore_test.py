"""Two processes build one datastore by the command line, each its own shard, as on the hosts of a pod."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memjax.datastore import Store, create_store, read_cursor
from memjax.datastore.writer import ShardWriter
from memjax.training.datastores import build_datastore, build_shard, make_header
from memjax.training.experiment import load_run
from memjax.training.keys import make_key_source
from memjax.training.loop import train
from tests.training.keys_test import make_config

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """Nothing in the library may catch this."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("runs"), "contiguous")
    config.evaluation.rows = 4
    run = train(config, on_event=lambda event: None).path
    return make_key_source(load_run(run), run), run


def build_by_two(run, path) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = [sys.executable, "-m", "memjax.cli", "datastore", "build", "--run", str(run), "--path", str(path), "--json"]
    line += ["--coordinator", address, "--num-processes", "2", "--process-id"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    both = [subprocess.Popen([*line, str(i)], **pipes) for i in range(2)]
    try:
        texts = [process.communicate(timeout=300) for process in both]
    finally:
        for process in both:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(both, texts, strict=True)]


def test_two_processes_build_and_go_on(source, tmp_path, monkeypatch):
    source, run = source
    whole = build_datastore(source, tmp_path / "whole", num_shards=2)
    path, appended = tmp_path / "store", ShardWriter.append
    create_store(path, make_header(source, "train", num_shards=2))
    build_shard(source, path, 0, split="train")

    def append(self, keys, values):  # process 1 was killed when it had committed one segment
        if self.entries:
            raise Killed
        appended(self, keys, values)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "append", append)
        with pytest.raises(Killed):
            build_shard(source, path, 1, split="train", commit_seconds=0.0)
    assert (
        read_cursor(path, 0)["complete"] and 0 < read_cursor(path, 1)["entries"] < whole.offsets[2] - whole.offsets[1]
    )
    for _ in range(2):  # the second finds it finished
        (first, told, errors), (second, silence, more) = build_by_two(run, path)
        assert (first, second) == (0, 0), errors + more
        assert json.loads(told)["fingerprint"] == whole.fingerprint and silence == ""
    ids = np.arange(whole.entries)
    assert np.array_equal(Store(path).keys(ids), whole.keys(ids))


def test_processes_that_do_not_share_the_rows(source, tmp_path):
    source, run = source
    with pytest.raises(ValueError, match="evaluation.rows: given 4, allowed: a multiple of the 3 shards"):
        build_datastore(source, tmp_path / "three", num_shards=3)
