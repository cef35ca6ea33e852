"""Building a datastore: every entry once, whatever interrupts it; the command line."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from memjax.cli import main
from memjax.config import Config, Data, Memformer, Memorizing, Model, Spalm, WikiText, Words
from memjax.datastore import Store
from memjax.datastore.opening import open_index
from memjax.datastore.writer import ShardWriter, create_store, finish_store, read_cursor
from memjax.durable_files import checksum
from memjax.retrieval.building import (
    build_datastore,
    build_shard,
    count_entries,
    make_header,
    plan_datastore,
    sample_queries,
)
from memjax.retrieval.keys import SPALM_TAP, KeyExtractor, KeyReader, make_key_extractor
from memjax.retrieval.precomputation import CrossFittingHalf, cross_fitted_neighbors, exclude_nearby, neighbors_of_split
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import LoadedCheckpoint, LoadedRun, load_run
from memjax.training.run_start import train
from memjax.training.runs import load_config, model_for_fingerprint
from tests.datastore.beam_test import needs_beam
from tests.programs import ROOT, printed
from tests.retrieval.keys_test import joined, make_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("runs"), "contiguous")
    return train(config, on_event=lambda event: None).path


@pytest.fixture(scope="module")
def source(run):
    return make_key_extractor(load_run(run))


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


@pytest.mark.parametrize("after", [2, *(pytest.param(after, marks=pytest.mark.laws) for after in (1, 5))])
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
    other = make_key_extractor(load_run(run), "layer_-1/attention_input")
    with pytest.raises(ValueError, match="is a store of .*protocol"):
        build_datastore(other, tmp_path / "store")


KILLED = """
import json, os, random, signal, sys, time
from memjax.datastore.writer import ShardWriter, read_cursor
from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import make_key_extractor
from memjax.training.loaded_runs import load_run

run, path, rounds, rng = sys.argv[1], sys.argv[2], int(sys.argv[3]), random.Random(0)
append, seen = ShardWriter.append, []

def build(begun):
    def slow(self, *arguments):
        os.write(begun, b"!")
        append(self, *arguments)
        time.sleep(0.01)

    ShardWriter.append = slow
    build_datastore(make_key_extractor(load_run(run)), path, num_shards=3, commit_seconds=0.0)

for _ in range(rounds):
    read, begun = os.pipe()
    child = os.fork()
    if not child:
        build(begun)
        os._exit(0)
    os.close(begun)
    os.read(read, 1)
    time.sleep(rng.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(read)
    seen.append([status, sum(read_cursor(path, shard)["entries"] for shard in range(3))])
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_kill_9_at_random_moments_of_a_build(source, run, tmp_path):
    """SIGKILL of the process that builds, four times; then the store is the same, to the last bit."""
    whole = build_datastore(source, tmp_path / "whole", num_shards=3)
    seen = json.loads(printed("-W", "ignore", "-c", KILLED, run, tmp_path / "store", 4)[-1])
    entries = [done for _, done in seen]
    assert [status for status, _ in seen].count(-signal.SIGKILL) >= 2, seen
    assert entries == sorted(entries) and 0 < entries[-1], seen
    again = build_datastore(source, tmp_path / "store", num_shards=3)
    assert again.fingerprint == whole.fingerprint and list(again.find_problems()) == []
    ids = np.arange(whole.entries)
    assert np.array_equal(again.keys(ids), whole.keys(ids)) and np.array_equal(again.values(ids), whole.values(ids))


def test_shards_hold_the_rows_of_the_split(source, tmp_path):
    """One entry for each scored token, in as many shards as are asked for."""
    one = build_datastore(source, tmp_path / "one")
    told = []
    three = build_datastore(source, tmp_path / "three", num_shards=3, progress=lambda *event: told.append(event))
    assert three.entries == one.entries and three.header.num_shards == 3 and three.header.rows == 3
    assert told[-1][1] == three.entries and [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    ids = np.arange(one.entries)
    assert sorted(three.values(ids).tolist()) == sorted(one.values(ids).tolist())
    parts = [joined(source.reader("train", host_rows=(row, row + 1))) for row in range(3)]
    for first, (keys, targets, _) in zip(three.offsets, parts, strict=False):
        place = np.arange(first, first + len(targets))
        assert np.array_equal(three.values(place), targets)
        assert np.array_equal(three.keys(place), keys.astype(np.float16))
    with pytest.raises(ValueError, match="evaluation.batch_size: given 3, allowed: a multiple of the 2 shards"):
        build_datastore(source, tmp_path / "two", num_shards=2)


def test_other_rows_are_refused(source, run, tmp_path):
    """They would put other entries into the shards that are still to be made."""
    config = make_config(run.parent, run.name)
    config.evaluation.batch_size = 6
    other = make_key_extractor(load_run(run, config))
    create_store(tmp_path / "store", make_header(source, "train", num_shards=3))
    build_shard(source, tmp_path / "store", 0, split="train")
    with pytest.raises(ValueError, match="is a store of rows 3, given 6"):
        build_datastore(other, tmp_path / "store", num_shards=3)


PIPELINE = """
import os, signal, sys
from memjax.datastore.writer import ShardWriter
from memjax.retrieval.building import build_with_beam

run, path, mode, left = *sys.argv[1:4], int(sys.argv[4])
commit = ShardWriter.commit

def counted(self, *arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    commit(self, *arguments)

ShardWriter.commit = counted
options = ["direct_num_workers=2", f"direct_running_mode={mode}"]
build_with_beam(run, path, runner="DirectRunner", num_shards=3, commit_seconds=0.0, runner_options=options)
"""


@needs_beam
@pytest.mark.beam
@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
def test_a_pipeline_makes_the_same_store(source, run, tmp_path, mode):
    """Also when it was killed twice: no entry is lost or doubled, to the last bit."""
    whole = build_datastore(source, tmp_path / "whole", num_shards=3)
    arguments = [str(run), str(tmp_path / "store"), mode]
    if mode == "multi_threading":  # the workers are threads of the process that is killed
        for commits in (2, 4):
            command = [sys.executable, "-c", PIPELINE, *arguments, str(commits)]
            assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == -signal.SIGKILL
        done = sum(read_cursor(tmp_path / "store", shard)["entries"] for shard in range(3))
        assert 0 < done < whole.entries
    command = ["-m", "memjax.cli", "datastore", "build", *("--run", str(run)), "--json"]
    command += ["--path", str(tmp_path / "store"), "--shards", "3", "--runner", "DirectRunner"]
    command += ["--runner-option", "direct_num_workers=2", "--runner-option", f"direct_running_mode={mode}"]
    for _ in range(2):  # the second finds it finished
        assert json.loads(printed(*command)[-1])["fingerprint"] == whole.fingerprint
    assert list(Store(tmp_path / "store").find_problems()) == []
    command = [sys.executable, *command, "--split", "validation"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "is a store of" in refused.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def store(source, tmp_path_factory):
    return build_datastore(source, tmp_path_factory.mktemp("stores") / "store")


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"model": "another"}, "model 'another', given '"),
        ({"segment_length": 4}, "protocol.segment_length 4, given 8"),
        pytest.param({"tokenizer": "another"}, "tokenizer 'another', given '", marks=pytest.mark.laws),
        pytest.param(
            {"documents": "separate"}, "protocol.documents 'separate', given 'contiguous'", marks=pytest.mark.laws
        ),
    ],
)
def test_a_store_of_another_model_is_refused_by_the_command_line(source, run, tmp_path, capsys, changes, told):
    """Before anything is searched or written: exit code 2, and one line that names what differs."""
    header = make_header(source, "train")
    protocol = {**header.protocol, **{name: value for name, value in changes.items() if name in header.protocol}}
    changed = {name: value for name, value in changes.items() if name not in protocol}
    create_store(tmp_path / "store", dataclasses.replace(header, protocol=protocol, **changed))
    with ShardWriter(tmp_path / "store") as writer:
        writer.append(np.zeros((5, header.dim)), np.arange(5))
        writer.finish()
    finish_store(tmp_path / "store")
    for action, start in (("verify", "was made with"), ("build", "is a store of")):
        assert main(["datastore", action, "--run", str(run), "--path", str(tmp_path / "store")]) == 2
        *before, error = capsys.readouterr().err.splitlines()
        assert not any(line.startswith("memjax") for line in before) and start in error
        assert told in error or (action == "build" and "protocol {" in error)


def test_another_way_of_reading_is_refused_by_the_command_line(store, run, capsys):
    line = ["datastore", "verify", "--run", str(run), "--path", str(store.path)]
    assert main([*line, "--evaluation.segment-length", "4"]) == 2
    assert "protocol.segment_length 8, given 4; give what it was made with" in capsys.readouterr().err
    assert main([*line, "--model.attention.memory-length", "16"]) == 2
    assert "protocol.attention {" in capsys.readouterr().err


def test_recall_at_what_the_model_asks(source, store, run, capsys):
    """Not stored keys, but those of a split that is not in the store."""
    keys, _, _ = joined(source.reader("train"))
    queries = sample_queries(source, "train", 30, seed=1)
    assert queries.shape == (30, 16) and len(np.unique(queries, axis=0)) > 1
    assert all((query == keys).all(axis=1).any() for query in queries)
    assert np.array_equal(sample_queries(source, "train", 10**6), keys)
    line = ["datastore", "verify", "--path", str(store.path), "--sample", "30", "--json"]
    assert main(["datastore", "index", "--path", str(store.path)]) == 0
    capsys.readouterr()
    assert main([*line, "--run", str(run)]) == 0
    found = json.loads(capsys.readouterr().out)
    held_out = len(joined(source.reader("validation"))[0])
    assert found["queries"] == "validation split" and found["sample"] == held_out < 30 and found["recall@32"] == 1


@pytest.mark.laws
def test_a_full_disk_by_the_command_line(source, store, run, tmp_path, capsys, monkeypatch):
    """One line that says what is there and what to do, exit code 1; the same command goes on."""
    line = ["datastore", "build", "--run", str(run), "--path", str(tmp_path / "store"), "--json"]
    write, space = os.write, [2000]

    def limited(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
            data = memoryview(data)[: space[0]]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            space[0] -= len(data)
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", limited)
        assert main(line) == 1
    *before, error = capsys.readouterr().err.splitlines()
    assert "no space is left on the disk; shard 0 has 0 entries; free some and run the same command again" in error
    assert not any(line.startswith("memjax") for line in before)
    with pytest.raises(ValueError, match="is not finished"):
        Store(tmp_path / "store")
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == store.fingerprint


FULL = """
import json, subprocess, sys
from memjax.cli import main
from memjax.datastore import DiskFull, read_cursor
from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import make_key_extractor
from memjax.training.loaded_runs import load_run

run, folder = sys.argv[1:]
source, path, seen = make_key_extractor(load_run(run)), f"{folder}/store", []

def mount(options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)

mount("size=8k")
for pages in range(2, 40, 3):
    mount(f"remount,size={4 * pages}k")
    try:
        build_datastore(source, path, num_shards=3, commit_seconds=0.0)
        break
    except DiskFull as error:
        try:
            done = sum(read_cursor(path, shard)["entries"] for shard in range(3))
        except ValueError:
            done = 0
        seen.append([error.strerror, done])
mount("remount,size=1m")
code = main(["datastore", "build", "--run", run, "--path", path, "--shards", "3", "--json"])
print(json.dumps([code, seen]))
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(source, run, tmp_path):
    """A file system of a few pages that grows: every failure is named, no entry that was committed is lost."""
    space = [shutil.which("unshare") or "unshare", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system: unshare --map-root-user --mount")
    whole = build_datastore(source, tmp_path / "whole", num_shards=3)
    (tmp_path / "small").mkdir()
    command = [*space, sys.executable, "-W", "ignore", "-c", FULL, str(run), str(tmp_path / "small")]
    full = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert full.returncode == 0, full.stderr
    *_, built, outcome = full.stdout.splitlines()
    code, seen = json.loads(outcome)
    assert code == 0 and json.loads(built)["fingerprint"] == whole.fingerprint
    lines, entries = zip(*seen, strict=True)
    assert all("no space is left on the disk" in line and "run the same command again" in line for line in lines)
    assert list(entries) == sorted(entries) and len(entries) >= 3 and entries[0] < entries[-1]


def test_a_plan_measures_and_leaves_nothing(source, tmp_path):
    plan = plan_datastore(source, tmp_path / "not" / "there", segments=2)
    assert plan.entries == count_entries(source, "train") and plan.forward_seconds > 0 and plan.fits
    assert list(tmp_path.iterdir()) == []


@pytest.mark.laws
def test_the_command_line(run, tmp_path, capsys):
    path = str(tmp_path / "store")
    assert main(["datastore", "plan", "--run", str(run), "--path", path, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    build = ["datastore", "build", "--run", str(run), "--path", path, "--key", "output_normed"]
    assert main([*build, "--json"]) == 0
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
        assert 0 < facts[f"target among, {split}"] < 1
    assert "target among, train" in facts
    config = load_config(run)
    config.data.neighbors_dir = str(tmp_path / "near")
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
        articles = np.searchsorted(source.articles(split), numbers, side="right")
        for exclude in (None, exclude_nearby(0), exclude_nearby(3)) if own is not None else (None,):
            found = neighbors_of_split(source, split, store, index, 2, exclude=exclude)
            assert found.shape == (len(tokens[split]), 2)
            assert (np.delete(found, numbers, axis=0) == -1).all()
            distances = ((queries[:, None] - stored[None]) ** 2).sum(axis=-1)
            if own is not None:
                same = articles[:, None] == articles[None]  # no token of the own article, unless less is asked for
                left_out = same if exclude is None else exclude(numbers[:, None], numbers[None])
                distances = np.where(left_out, np.inf, distances)
            # Equal contexts tie: what counts is that the values are those of entries as near as the nearest.
            nearest = np.sort(distances, axis=1)[:, :2]
            for row, number in enumerate(numbers[:40]):
                close = distances[row][:, None] <= nearest[row] * (1 + 1e-3) + 1e-4
                for k in range(2):
                    assert found[number, k] in store.values(everything)[close[:, k]]
    with pytest.raises(ValueError, match="exclude: given without own"):
        neighbors_of_split(source, "validation", store, index, 2, exclude=exclude_nearby(1))


@pytest.mark.laws
def test_neighbors_are_of_the_rows_that_the_store_was_read_in(run, source, tmp_path):
    """A run that is opened with other rows, or shards, numbers the entries as the store has them."""
    store = build_datastore(source, tmp_path / "store")
    config = load_config(run)
    config.evaluation.batch_size = 1
    other = make_key_extractor(load_run(run, config))
    layout = {"rows": store.header.rows, "num_shards": store.header.num_shards}
    assert not np.array_equal(other.numbers("train"), other.numbers("train", **layout))
    tokens = np.concatenate([other.run.experiment.documents("train")[i] for i in range(10)])
    np.testing.assert_array_equal(tokens[other.numbers("train", **layout)], store.values(np.arange(store.entries)))
    index = open_index(store, "exact")
    found = [neighbors_of_split(one, "train", store, index, 2) for one in (source, other)]
    np.testing.assert_array_equal(*found)


@pytest.mark.laws
def test_neighbors_by_halves_are_of_the_other_half(run, tmp_path):
    """The model of each half reads the other one, and finds its own."""
    halves = []
    for name in ("first", "second"):
        config = load_config(run)
        config.data.train_half = name
        source = make_key_extractor(load_run(run, config), SPALM_TAP)
        store = build_datastore(source, tmp_path / name)
        halves.append(CrossFittingHalf(source, store, open_index(store, "exact")))
    values, documents = cross_fitted_neighbors(*halves, 2)
    whole = make_key_extractor(load_run(run)).run.experiment.documents("train")
    assert documents.fingerprint == whole.fingerprint and len(values) == sum(whole.num_tokens(i) for i in range(10))
    parts = []
    for reader, read in ((halves[1], halves[0]), (halves[0], halves[1])):
        texts = read.source.run.experiment.documents("train")
        keys, _, _ = joined(reader.source.with_documents({"train": texts}).reader("train"))
        numbers = reader.source.with_documents({"train": texts}).numbers("train")
        found = np.full((sum(texts.num_tokens(i) for i in range(len(texts))), 2), -1)
        found[numbers] = reader.store.values(reader.index.search(keys, 2).ids)
        parts.append(found)
    np.testing.assert_array_equal(values, np.concatenate(parts))
    for given, line in [
        (halves[::-1], "data.train_half: given 'second', allowed: 'first' in the run of the first half"),
        ([halves[0]._replace(store=halves[1].store), halves[1]], "is not of what its run was trained on"),
    ]:
        with pytest.raises(ValueError, match=line):
            cross_fitted_neighbors(*given, 2)


def test_articles_of_a_text_in_one_piece_are_known(tmp_path):
    """As contiguous WikiText is; what is one article cannot be left out."""
    (tmp_path / "wikitext").mkdir()
    for split in ("train", "valid", "test"):
        articles = [f" \n = {split} {number} = \n \n {'a ' * number}text \n" for number in range(4)]
        text = "".join(articles[: 4 if split == "train" else 1])
        (tmp_path / "wikitext" / f"{split}.txt").write_text(text)
    config = Config(model=Model(dim=8, num_layers=1, num_heads=2))
    config.data = Data(source=WikiText(path=str(tmp_path / "wikitext")), tokenizer=Words(), cache_dir=str(tmp_path))
    config.data.protocol = "contiguous"
    run = LoadedRun(make_experiment(config), {}, LoadedCheckpoint(1, 1))
    source = KeyExtractor(run, run.experiment.model, {}, SPALM_TAP)
    assert len(run.experiment.documents("train")) == 1
    assert source.articles("train").tolist() == [0, 10, 20, 31, 42]
    assert len(source.articles("test")) == 2


def test_a_store_of_another_key_or_of_a_scored_split_gives_no_neighbors(source, run, tmp_path):
    store = build_datastore(source, tmp_path / "store")
    other = make_key_extractor(load_run(run), "layer_-1/attention_input")
    with pytest.raises(ValueError, match="was made with protocol.key"):
        neighbors_of_split(other, "train", store, open_index(store, "exact"), 2)
    scored = build_datastore(source, tmp_path / "scored", split="validation")
    with pytest.raises(ValueError, match="scored holds the validation split, allowed: a store of text that is not"):
        neighbors_of_split(source, "validation", scored, open_index(scored, "exact"), 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["neighbors", "--path", "x", "--run", "y"], "--to: not given"),
        (["neighbors", "--path", "x", "--to", "y"], "--run: not given"),
        (["index", "--path", "x", "--backend", "exact"], "--backend: given 'exact', allowed: 'scann', 'faiss'"),
        (["verify", "--path", "x", "--backend", "faiss", "--leaves", "3"], "--leaves: given with --backend faiss"),
        (["build", "--path", "x"], "--run: not given"),
        (["stats", "--path", "x", "--run", "y"], "--run: no such option of memjax datastore stats"),
        (["sell", "--path", "x"], "action: given 'sell', allowed: "),
        (["stats", "--path", "/nowhere"], "/nowhere"),
        (["index", "--path", "x", "--run", "y"], "--run: no such option of memjax datastore index"),
        (["index", "--path", "x", "--backend", "faiss", "--parts", "2"], "--backend: given 'faiss'"),
        (["build", "--path", "x", "--run", "y", "--runner", "DirectRunner"], "--shards: needed with --runner"),
    ],
)
def test_mistakes_are_one_line(arguments, told, capsys):
    assert main(["datastore", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "digest"),
    [
        (Model(), "194664f365e6f8248788764a1b8d43f5"),
        (Model(attention=Memorizing()), "cdfc0de2e9eadd64e70942be4d610068"),
        (Memformer(), "e578156eea0179da9771391800759d3e"),
    ],
)
def test_settings_that_are_added_leave_stores_to_their_models(model, digest):
    """The digests are those of version 0.1.0, whose stores name their model by them."""
    assert checksum(model_for_fingerprint(model))[:32] == digest
