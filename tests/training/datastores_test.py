"""Building a datastore: every entry once, whatever interrupts it; the command line."""

import json

import numpy as np
import pytest

from memjax.cli import main
from memjax.datastore.writer import ShardWriter
from memjax.training.datastores import build_datastore, count_entries, plan_datastore
from memjax.training.experiment import load_run
from memjax.training.keys import KeyReader, make_key_source
from memjax.training.loop import train
from tests.training.keys_test import joined, make_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("runs"), "contiguous")
    return train(config, on_event=lambda event: None).path


@pytest.fixture(scope="module")
def source(run):
    return make_key_source(load_run(run), run)


def test_a_store_holds_what_the_reader_gives(source, tmp_path):
    told = []
    store = build_datastore(source, tmp_path / "store", progress=lambda *event: told.append(event))
    keys, targets, _ = joined(source.reader("train"))
    everything = np.arange(store.entries)
    np.testing.assert_array_equal(store.values(everything), targets)
    np.testing.assert_array_equal(store.keys(everything), keys.astype(np.float16))
    assert told[-1][:2] == ("entries", store.entries) and store.entries <= count_entries(source, "train")
    assert store.header.protocol == source.protocol() and store.header.dim == keys.shape[1]
    again = build_datastore(source, tmp_path / "store")  # finished: nothing is read
    assert again.fingerprint == store.fingerprint


class Killed(Exception):
    """Stands for kill -9: nothing after it runs."""


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_build_goes_on_after_a_kill(source, tmp_path, monkeypatch, after):
    whole = build_datastore(source, tmp_path / "whole")
    appended = ShardWriter.append
    calls = []

    def append(self, keys, targets):
        calls.append(len(targets))
        if len(calls) > after:
            raise Killed
        appended(self, keys, targets)

    monkeypatch.setattr(ShardWriter, "append", append)
    with pytest.raises(Killed):
        build_datastore(source, tmp_path / "store", commit_seconds=0.0)
    monkeypatch.setattr(ShardWriter, "append", appended)
    read = []
    state = KeyReader.state
    monkeypatch.setattr(KeyReader, "state", lambda self: read.append(0) or state(self))
    resumed = build_datastore(source, tmp_path / "store", commit_seconds=0.0)
    assert resumed.fingerprint == whole.fingerprint
    assert len(read) == len(list(source.reader("train"))) - after  # nothing is read twice


def test_a_store_of_another_model_split_or_key_is_refused(source, run, tmp_path):
    build_datastore(source, tmp_path / "store")
    with pytest.raises(ValueError, match="is a store of .*data"):
        build_datastore(source, tmp_path / "store", split="validation")
    other = make_key_source(load_run(run), run, "layer_-1/attention_input")
    with pytest.raises(ValueError, match="is a store of .*protocol"):
        build_datastore(other, tmp_path / "store")


def test_a_plan_measures_and_leaves_nothing(source, tmp_path):
    plan = plan_datastore(source, tmp_path / "not" / "there", segments=2)
    assert plan.entries == count_entries(source, "train") and plan.forward_seconds > 0 and plan.fits
    assert list(tmp_path.iterdir()) == []


def test_the_command_line(run, tmp_path, capsys):
    path = str(tmp_path / "store")
    assert main(["datastore", "plan", "--run", str(run), "--path", path, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["datastore", "build", "--run", str(run), "--path", path, "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert built["entries"] <= planned["entries"]
    assert main(["datastore", "stats", "--path", path]) == 0
    assert f"{built['entries']:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build", "--path", "x"], "--run: needed by build"),
        (["stats", "--path", "x", "--run", "y"], "--run: not used by stats"),
        (["sell", "--path", "x"], "invalid choice"),
        (["stats", "--path", "/nowhere"], "/nowhere"),
    ],
)
def test_mistakes_are_one_line(arguments, told, capsys):
    assert main(["datastore", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
