"""What goes wrong on real machines, by the command line: damage is named, a killed index is whole or not there."""

import json
from pathlib import Path

import numpy as np
import pytest

from memjax.cli import main
from memjax.datastore import Store, build_faiss, build_scann, open_index, open_scann
from tests.datastore.stores import clusters, make_store
from tests.programs import printed


def flip(path: Path, byte: int, bit: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture
def store(tmp_path) -> Store:
    store = make_store(tmp_path / "s", clusters(300, 8), shards=[100, 200], block_entries=50)
    build_scann(store)
    build_faiss(store)
    return store


def verify(store, capsys, *more) -> tuple[int, dict]:
    code = main(["datastore", "verify", "--path", str(store.path), "--sample", "20", "--json", *more])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "pattern, told",
    [
        ("shard_00001/keys.bin", "shard_00001/keys.bin is damaged: entries 50 to 99 are not what was written"),
        ("shard_00001/values.bin", "shard_00001/values.bin is damaged: entries 50 to 99 are not what was written"),
        ("shard_00000/blocks.bin", "shard_00000/blocks.bin is damaged: the checksums are not those of meta.json"),
        ("indices/scann*/*.npy", "is damaged: it is not what was written; build the index again"),
        ("indices/faiss*/index.faiss", "index.faiss is damaged: it is not what was written; build the index again"),
        ("indices/scann*.json", ".json is damaged: it is not what was written"),
    ],
)
def test_verify_names_a_flipped_bit(store, capsys, pattern, told):
    """Exit code 1, and a line for each file; one bit of one byte."""
    code, facts = verify(store, capsys)
    assert code == 0 and facts["problems"] == [] and facts["recall@32"] == 1
    path = next(iter(sorted(store.path.glob(pattern))))
    sizes = {"keys.bin": 70 * 8 * 4, "values.bin": 70 * 4}
    flip(path, sizes.get(path.name, path.stat().st_size // 2))
    code, facts = verify(store, capsys)
    assert code == 1 and len(facts["problems"]) == 1 and told in facts["problems"][0]
    assert not [name for name in facts if name.startswith("recall")]


def test_a_flipped_bit_is_never_searched(store):
    """Each way to the keys and values compares what it touches, when it touches it first."""
    flip(store.path / "shard_00001" / "keys.bin", 70 * 8 * 4)
    line = "shard_00001/keys.bin is damaged: entries 50 to 99"
    with pytest.raises(ValueError, match=line):
        open_index(Store(store.path), "exact")
    with pytest.raises(ValueError, match=line):
        open_index(Store(store.path), "streamed").search(clusters(2, 8), 3)
    for build in (build_scann, build_faiss):
        with pytest.raises(ValueError, match=line):
            build(Store(store.path))
    # The saved index has keys of its own; exact scores and the values of what was found are read from the store.
    flip(store.path / "shard_00000" / "values.bin", 70 * 4)
    damaged = Store(store.path)
    found = open_scann(damaged).search(damaged.keys(np.arange(3)), 300)
    with pytest.raises(ValueError, match=r"shard_00000/values.bin is damaged: entries 50 to 99"):
        damaged.values(found.ids)
    with pytest.raises(ValueError, match=line):
        open_index(damaged, "scann", exact_scores=True).search(damaged.keys(np.arange(3)), 300)


def test_a_flipped_bit_in_meta_is_one_line(store, capsys):
    flip(store.path / "meta.json", 40, bit=0)
    assert main(["datastore", "verify", "--path", str(store.path)]) == 2
    error = capsys.readouterr().err
    assert "meta.json is damaged: it is not what was written" in error and len(error.splitlines()) == 1


def test_a_damaged_index_is_built_again(store, capsys):
    for pattern in ("indices/scann*.json", "indices/scann*/*.npy"):
        flip(next(store.path.glob(pattern)), 100)
        assert main(["datastore", "index", "--path", str(store.path)]) == 0
        capsys.readouterr()
        assert verify(store, capsys)[0] == 0


KILLED = """
import json, os, random, signal, sys, time
import numpy as np
from memjax.datastore import ScannSettings, Store, StreamedIndex, build_scann, open_scann
from memjax.datastore.artefacts import open_artefact
from memjax.datastore.scann import import_scann

import_scann()
store, rng, name = Store(sys.argv[1]), random.Random(0), "scann_squared_l2_00000_of_00001"
queries = store.keys(store.sample(10))
expected = StreamedIndex(store).search(queries, 20).ids

def child(function):
    pid = os.fork()
    if not pid:
        code = 99
        try:
            code = function() or 0
        finally:
            os._exit(code)
    return pid

def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def build(stop=0):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if any("/indices" in str(argument) for argument in arguments):
            seen += 1
            if seen == stop:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    build_scann(store, settings=ScannSettings(num_leaves=20, brute_force_entries=0))

def look():
    try:
        index = open_scann(store, leaves_to_search=20, reorder=300)
    except ValueError as error:
        return 1 if "has no scann" in str(error) and "memjax datastore index" in str(error) else 3
    if not np.array_equal(np.sort(index.search(queries, 20).ids), np.sort(expected)):
        return 4
    return 0 if open_artefact(store, name)[1]["leaves"] == 20 else 2

WORDS = {0: "new", 1: "none", 2: "old"}
found = {"exact": [], "random": []}
for stop in range(1, 200):
    code = status(child(lambda: build(stop)))
    found["exact"].append([code, WORDS.get(status(child(look)), "WRONG")])
    if code == 0:
        break
    if sys.argv[2] == "none":
        if os.path.exists(f"{store.path}/indices/{name}.json"):
            os.remove(f"{store.path}/indices/{name}.json")
    else:
        status(child(lambda: build_scann(store) and 0))
started = time.perf_counter()
assert status(child(build)) == 0
took = time.perf_counter() - started
for _ in range(12):
    pid = child(build)
    time.sleep(rng.uniform(0, took))
    os.kill(pid, signal.SIGKILL)
    found["random"].append([status(pid), WORDS.get(status(child(look)), "WRONG")])
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["none", "old"])
def test_kill_9_of_a_build_of_an_index(tmp_path, capsys, before):
    """SIGKILL before each thing that Python does in its folder, and at random moments: the old or the new one."""
    store = make_store(tmp_path / "s", clusters(300, 8))
    if before == "old":
        build_scann(store)
    found = json.loads(printed("-W", "ignore", "-c", KILLED, store.path, before)[-1])
    codes, states = zip(*found["exact"], strict=True)
    assert len(codes) > 10 and set(codes[:-1]) == {-9} and codes[-1] == 0
    assert set(states) == {before, "new"} and states[-1] == "new"
    change = states.index("new")
    assert set(states[:change]) == {before} and set(states[change:]) == {"new"}
    assert {state for _, state in found["random"]} == {"new"}, "an index that is there stays"
    assert -9 in {code for code, _ in found["random"]}
    folders = [path for path in (store.path / "indices").iterdir() if path.is_dir()]
    assert main(["datastore", "index", "--path", str(store.path)]) == 0
    capsys.readouterr()
    assert verify(store, capsys)[0] == 0
    assert sum(path.is_dir() for path in (store.path / "indices").iterdir()) == 1 <= len(folders)


MEASURED = """
import json, sys
import numpy as np
from memjax.datastore import Store, open_index
from tests.datastore.stores import clusters

def peak():  # ru_maxrss would be that of the process that has started this one, where that was larger
    with open("/proc/self/status") as file:
        return 1024 * int(dict(line.split(":") for line in file)["VmHWM"].split()[0])

path, backend, num_queries = sys.argv[1], sys.argv[2], int(sys.argv[3])
sizes = {"exact": {"block_entries": 8192, "query_batch": num_queries}}
sizes["streamed"] = sizes["exact"]
index = open_index(Store(path), backend, **sizes.get(backend, {}))
opened = peak()
found = index.search(clusters(num_queries, 8, seed=1), 32)
assert found.valid.all()
print(json.dumps({"opened": opened, "searched": peak()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["exact", "streamed", "scann", "faiss"])
def test_the_memory_of_a_search_is_that_of_the_keys(tmp_path, backend):
    """Between two sizes of the store the peak grows by a few copies of the keys; queries x entries are 64."""
    sizes, num_queries, peaks = (50_000, 350_000), 512, []
    for entries in sizes:
        store = make_store(tmp_path / str(entries), clusters(entries, 8), key_dtype="float16", block_entries=8192)
        if backend in ("scann", "faiss"):
            {"scann": build_scann, "faiss": build_faiss}[backend](store)
        peaks.append(json.loads(printed("-c", MEASURED, store.path, backend, num_queries)[-1]))
    more = sizes[1] - sizes[0]
    growth = peaks[1]["searched"] - peaks[0]["searched"]
    keys, everything = more * 8 * 4, more * num_queries * 4
    print(f"{backend}: {peaks}, growth {growth / 2**20:.1f} MiB, float32 keys {keys / 2**20:.1f} MiB")
    assert everything > 600e6
    assert growth < 4 * keys + (32 << 20) < everything / 8, peaks
