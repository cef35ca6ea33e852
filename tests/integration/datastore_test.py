"""Two processes as on the hosts of a pod: each builds its own shard of a datastore, and searches its own part."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memjax.datastore import Store, StreamedIndex, build_scann_parts, create_store, read_cursor
from memjax.datastore.writer import ShardWriter
from memjax.retrieval.building import build_datastore, build_shard, make_header
from memjax.retrieval.keys import make_key_extractor
from memjax.training.loaded_runs import load_run
from memjax.training.run_start import train
from tests.datastore.stores import clusters, make_store
from tests.retrieval.keys_test import make_config

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """Nothing in the library may catch this."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("runs"), "contiguous")
    config.evaluation.batch_size = 4
    run = train(config, on_event=lambda event: None).path
    return make_key_extractor(load_run(run)), run


def two(line) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of two processes; their arguments are the line, an address and their number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    both = [subprocess.Popen([sys.executable, *line(address, str(i))], **pipes) for i in range(2)]
    try:
        texts = [process.communicate(timeout=300) for process in both]
    finally:
        for process in both:
            process.kill()
    own = lambda text: "".join(line for line in text.splitlines(keepends=True) if not line.startswith("[Gloo]"))
    return [(process.returncode, *map(own, text)) for process, text in zip(both, texts, strict=True)]


def build_by_two(run, path) -> list[tuple[int, str, str]]:
    build = ["-m", "memjax.cli", "datastore", "build", "--run", str(run), "--path", str(path), "--json"]
    return two(lambda address, i: [*build, "--coordinator", address, "--num-processes", "2", "--process-id", i])


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
    with pytest.raises(ValueError, match="evaluation.batch_size: given 4, allowed: a multiple of the 3 shards"):
        build_datastore(source, tmp_path / "three", num_shards=3)


SEARCH = """
import json, sys
import jax, numpy as np
from memjax.datastore import ExactIndex, HostsIndex, Store, open_index, rescore
from memjax.training import processes
from tests.datastore.stores import clusters

processes.connect(sys.argv[2], 2, int(sys.argv[3]), timeout=60)
store, part = Store(sys.argv[1]), jax.process_index()
index = HostsIndex(open_index(store, "scann", part=part))
found = rescore(index, store).search(clusters(9, 8, seed=1), 20)
more = index.search(clusters(3, 8, seed=1), 310)
try:
    HostsIndex(ExactIndex(np.zeros((3, 4 + part), np.float32)))
    told = ""
except ValueError as error:
    told = str(error)
facts = [found.ids.tolist(), found.scores.tolist(), index.entries, more.valid.sum(axis=1).tolist(), told]
print(json.dumps(facts))
"""


def test_a_part_of_an_index_on_each_process(tmp_path):
    """Each host has half of the keys in memory; together they find what exact search of the whole finds."""
    store = make_store(tmp_path / "s", clusters(301, 8), shards=[100, 201])
    assert build_scann_parts(store, range(2), 2)
    expected = StreamedIndex(store).search(clusters(9, 8, seed=1), 20)
    both = two(lambda address, i: ["-c", SEARCH, str(store.path), address, i])
    for code, output, errors in both:
        assert code == 0, errors
        ids, scores, entries, valid, told = json.loads(output.splitlines()[-1])
        assert ids == expected.ids.tolist() and entries == 301 and valid == [301] * 3
        np.testing.assert_allclose(scores, expected.scores, rtol=1e-5, atol=1e-5)
        assert told.startswith("index: given one of another metric or width")
