"""Building a datastore: every entry once, whatever interrupts it; the command line."""

import json

import numpy as np
import pytest

from memjax.cli import main
from memjax.config import Spalm
from memjax.datastore.index import open_index
from memjax.datastore.writer import ShardWriter
from memjax.training.datastores import build_datastore, count_entries, plan_datastore
from memjax.training.experiment import load_run, make_experiment
from memjax.training.keys import KeyReader, make_key_source
from memjax.training.loop import train
from memjax.training.precomputation import near, neighbors_of_split
from memjax.training.runs import load_config
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
    neighbors = ["datastore", "neighbors", "--run", str(run), "--path", path, "--backend", "exact"]
    for split in ("train", "validation"):
        assert (
            main([*neighbors, "--split", split, "--to", str(tmp_path / "near"), "--num-neighbors", "3", "--json"]) == 0
        )
        facts = json.loads(capsys.readouterr().out)
        assert (facts["split"], facts["neighbors"]) == (split, 3) and facts["found"] > 0
    config = load_config(run)
    config.data.neighbors = str(tmp_path / "near")
    config.model.output = Spalm(num_neighbors=3)
    batch = next(make_experiment(config).stream())
    assert batch.extras["neighbor_values"].shape == (1, 2, 8, 3) and (batch.extras["neighbor_values"] >= 0).any()


def test_neighbors_of_the_stores_own_split_and_of_another(source, tmp_path):
    """Every token's neighbours stand where the token does; in its own split a token is not its own neighbour."""
    store = build_datastore(source, tmp_path / "store")
    index = open_index(store, "exact")
    everything = np.arange(store.entries)
    stored = store.keys(everything).astype(np.float32)
    tokens = {
        split: np.concatenate([source.run.experiment.documents(split)[i] for i in range(size)])
        for split, size in (("train", 10), ("validation", 1))
    }
    for split in tokens:
        keys, targets, _ = joined(source.reader(split))
        numbers = source.numbers(split)
        np.testing.assert_array_equal(tokens[split][numbers], targets)  # entry, token and key belong together
        assert len(set(numbers.tolist())) == len(numbers)
        queries, own = (stored, everything) if split == "train" else (keys, None)
        for exclude in (None, near(3)) if own is not None else (None,):
            found = neighbors_of_split(source, split, store, index, 2, exclude=exclude)
            assert found.shape == (len(tokens[split]), 2)
            assert (np.delete(found, numbers, axis=0) == -1).all()
            distances = ((queries[:, None] - stored[None]) ** 2).sum(axis=-1)
            if own is not None:
                apart = np.abs(numbers[:, None] - numbers[None]) <= (0 if exclude is None else 3)
                distances = np.where(apart, np.inf, distances)
            # Equal contexts tie: what counts is that the values are those of entries as near as the nearest.
            nearest = np.sort(distances, axis=1)[:, :2]
            for row, number in enumerate(numbers[:40]):
                close = distances[row][:, None] <= nearest[row] * (1 + 1e-3) + 1e-4
                for k in range(2):
                    assert found[number, k] in store.values(everything)[close[:, k]]
    with pytest.raises(ValueError, match="exclude: given without own"):
        neighbors_of_split(source, "validation", store, index, 2, exclude=near(1))


def test_a_store_of_another_key_gives_no_neighbors(source, run, tmp_path):
    store = build_datastore(source, tmp_path / "store")
    other = make_key_source(load_run(run), run, "layer_-1/attention_input")
    with pytest.raises(ValueError, match="was made with protocol.key"):
        neighbors_of_split(other, "train", store, open_index(store, "exact"), 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["neighbors", "--path", "x", "--run", "y"], "--to: needed by neighbors"),
        (["neighbors", "--path", "x", "--to", "y"], "--run: needed by neighbors"),
        (["index", "--path", "x", "--backend", "exact"], "--backend: given 'exact'"),
        (["verify", "--path", "x", "--backend", "faiss", "--leaves", "3"], "--leaves: given with --backend faiss"),
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
