"""Reading stores: what was written comes back, damage is named, another model is refused."""

import dataclasses
import json
import re

import ml_dtypes
import numpy as np
import pytest

from memjax.datastore import Header, Store
from memjax.datastore.files import write_checked_json
from tests.datastore.stores import HEADER, make_header, make_store

RNG = np.random.default_rng(0)
KEYS = RNG.normal(size=(23, 4)).astype(np.float32)
VALUES = RNG.integers(-(2**31), 2**31, 23)


@pytest.mark.parametrize("key_dtype", ["float32", "float16", "bfloat16"])
def test_entries_come_back(tmp_path, key_dtype):
    store = make_store(tmp_path / "s", KEYS, VALUES, shards=[7, 0, 15, 1], key_dtype=key_dtype)
    stored = KEYS.astype(ml_dtypes.bfloat16 if key_dtype == "bfloat16" else key_dtype)
    assert len(store) == 23 and store.dim == 4 and store.offsets.tolist() == [0, 7, 7, 22, 23]
    ids = RNG.integers(0, 23, (6, 5))
    assert store.keys(ids).dtype == stored.dtype and store.values(ids).dtype == np.int32
    assert np.array_equal(store.keys(ids), stored[ids]) and np.array_equal(store.values(ids), VALUES[ids])
    assert store.keys(np.zeros((0, 3), int)).shape == (0, 3, 4)
    for bad in (-1, 23):
        with pytest.raises(ValueError, match=rf"ids: given {bad} to {bad}, allowed: 0 to 22"):
            store.values(np.array([bad]))


@pytest.mark.parametrize("entries, first, last", [(4, 0, None), (100, 0, None), (3, 5, 23), (5, 8, 9), (1, 3, 3)])
def test_blocks_are_in_order_and_lie_in_one_shard(tmp_path, entries, first, last):
    store = make_store(tmp_path / "s", KEYS, VALUES, shards=[7, 0, 15, 1])
    blocks = list(store.blocks(entries, first, last))
    stop = 23 if last is None else last
    assert [i for b in blocks for i in range(b.first, b.first + len(b.keys))] == list(range(first, stop))
    for block in blocks:
        rows = slice(block.first, block.first + len(block.keys))
        assert np.array_equal(block.keys, KEYS[rows]) and np.array_equal(block.values, VALUES[rows])
        assert 1 <= len(block.keys) <= entries
        shards = np.searchsorted(store.offsets, [rows.start, rows.stop - 1], side="right")
        assert shards[0] == shards[1]
    with pytest.raises(ValueError, match=r"blocks: given 4 entries of \[0, 24\), the store has 23"):
        next(store.blocks(4, 0, 24))


def test_what_it_says_of_itself(tmp_path):
    store = make_store(tmp_path / "s", KEYS, VALUES, shards=[20, 3])
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    for name in ("entries", "dim", "key_dtype", "value_dtype", "model", "tokenizer", "data", "protocol"):
        assert name in meta
    assert [shard["entries"] for shard in meta["shards"]] == [20, 3]
    assert store.header == make_header(key_dtype="float32", num_shards=2)
    described = store.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["bytes"] == 23 * (4 * 4 + 4) and described["entries"] == 23
    again = make_store(tmp_path / "t", KEYS, VALUES, shards=[20, 3])
    other = make_store(tmp_path / "u", KEYS, VALUES + (VALUES < 0), shards=[20, 3])
    assert store.fingerprint == again.fingerprint != other.fingerprint


def test_a_sample_is_reproducible_and_without_repetitions(tmp_path):
    store = make_store(tmp_path / "s", KEYS)
    drawn = store.sample(10, seed=1)
    assert len(set(drawn.tolist())) == 10 and np.array_equal(drawn, store.sample(10, seed=1))
    assert not np.array_equal(drawn, store.sample(10, seed=2))
    assert store.sample(99).tolist() == list(range(23))


@pytest.mark.parametrize(
    "given, line",
    [
        ({"model": "x"}, "model 'm', given 'x'"),
        ({"tokenizer": "x", "data": "y"}, "tokenizer 't', given 'x'; data 'd', given 'y'"),
        ({"protocol": {"segment_length": 9}}, "protocol.segment_length 8, given 9"),
        ({"protocol": {"segment_length": 8, "rows": 2}}, "protocol.rows None, given 2"),
        ({"protocol": {}}, "protocol.segment_length 8, given None"),
    ],
)
def test_another_model_is_refused_in_one_line(tmp_path, given, line):
    store = make_store(tmp_path / "s", KEYS)
    store.check()
    store.check(model="m", tokenizer="t", data="d", protocol={"segment_length": 8})
    with pytest.raises(ValueError, match=re.escape(f"was made with {line}; give what it was made with")) as error:
        store.check(**given)
    assert "\n" not in str(error.value)


def test_a_protocol_is_compared_as_json(tmp_path):
    store = make_store(tmp_path / "s", KEYS, protocol={"layers": (1, 2)})
    store.check(protocol={"layers": [1, 2]})
    store.check(protocol={"layers": (1, 2)})
    with pytest.raises(ValueError, match="protocol"):
        store.check(protocol={"layers": [1, 3]})


FILES = ["keys.bin", "values.bin", "blocks.bin"]


@pytest.mark.parametrize("file, byte", [("keys.bin", 5 * 16 + 3), ("values.bin", 7 * 4), ("blocks.bin", 70)])
def test_a_flipped_bit_is_named(tmp_path, file, byte):
    make_store(tmp_path / "s", KEYS, VALUES, shards=[8, 15])
    path = tmp_path / "s" / "shard_00001" / file
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << 4
    path.write_bytes(data)
    store = Store(tmp_path / "s")
    where = "the checksums are not those" if file == "blocks.bin" else "entries 5 to 9 are not what was written"
    expected = f"{re.escape(str(path))} is damaged: {where}"
    (problem,) = store.find_problems()
    assert re.search(expected, problem)
    with pytest.raises(ValueError, match=expected):
        list(Store(tmp_path / "s").blocks())
    if file != "blocks.bin":  # a block that is intact vouches for itself only
        assert np.array_equal(store.keys(np.array([8])), KEYS[[8]]) and store.values(np.array([8])) == VALUES[8]
    damaged = {"keys.bin": store.keys, "values.bin": store.values, "blocks.bin": store.keys}[file]
    with pytest.raises(ValueError, match=expected):
        damaged(np.array([1, 8 + 6]))
    # What lies elsewhere can still be read.
    assert np.array_equal(store.keys(np.array([1])), KEYS[[1]])
    if file != "blocks.bin":
        assert np.array_equal(store.values(np.array([8, 22])), VALUES[[8, 22]])
    unchecked = Store(tmp_path / "s", verify=False)
    assert len(list(unchecked.blocks())) == 2 and len(list(unchecked.find_problems())) == 1


@pytest.mark.parametrize("position", range(0, 700, 37))
def test_a_flipped_bit_in_meta_is_named(tmp_path, position):
    make_store(tmp_path / "s", KEYS)
    path = tmp_path / "s" / "meta.json"
    data = bytearray(path.read_bytes())
    position %= len(data)
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"meta\.json is damaged: it is not what was written"):
        Store(tmp_path / "s")


def test_a_file_of_something_else_is_no_header(tmp_path):
    make_store(tmp_path / "s", KEYS)
    write_checked_json(tmp_path / "s" / "meta.json", {"shard": 1})
    with pytest.raises(ValueError, match=r"meta\.json has format None, allowed: "):
        Store(tmp_path / "s")


def test_no_problem_is_reported_where_there_is_none(tmp_path):
    store = make_store(tmp_path / "s", KEYS, shards=[8, 0, 15])
    steps = []
    assert list(store.find_problems(lambda *step: steps.append(step))) == []
    assert steps[-1] == ("verify", 23, 23)


@pytest.mark.parametrize("file", FILES[:2])
def test_a_file_of_another_size_is_named(tmp_path, file):
    make_store(tmp_path / "s", KEYS)
    path = tmp_path / "s" / "shard_00000" / file
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{file} is damaged: it has {size - 1} bytes and should have {size}"):
        Store(tmp_path / "s")
    path.unlink()
    with pytest.raises(ValueError, match=f"{file} is damaged: it is missing and should have {size}"):
        Store(tmp_path / "s")


def test_folders_that_are_no_stores(tmp_path):
    with pytest.raises(ValueError, match="is not a datastore, allowed: a folder that `memjax datastore build`"):
        Store(tmp_path)


@pytest.mark.parametrize(
    "change, line",
    [
        ({"key_dtype": "int8"}, "key_dtype: given 'int8', allowed: float16, bfloat16, float32"),
        ({"dim": 0}, "dim: given 0, allowed: 1 or more"),
        ({"num_shards": -1}, "num_shards: given -1"),
        ({"protocol": {"a": object()}}, "protocol: given .* allowed: a JSON object"),
    ],
)
def test_headers_are_checked(change, line):
    with pytest.raises(ValueError, match=line):
        Header(**{**dataclasses.asdict(HEADER), **change})
