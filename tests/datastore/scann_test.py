"""ScaNN: recall, the shield of its import, what it gets wrong in silence."""

import numpy as np
import pytest

from memjax.datastore import (
    ExactIndex,
    MergedIndex,
    ScannSettings,
    Store,
    artefacts,
    build_scann,
    measure_recall,
    merge_neighbors,
    open_scann,
    rescore,
)
from memjax.datastore.files import DiskFull
from tests.datastore.stores import clusters, make_store
from tests.programs import printed

METRICS = ("squared_l2", "inner_product")
TREE = ScannSettings(num_leaves=20, brute_force_entries=0)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Store:
    return make_store(tmp_path_factory.mktemp("large") / "s", clusters(20_000, 32, centres=200), shards=[12_000, 8_000])


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Store:
    return make_store(tmp_path_factory.mktemp("small") / "s", clusters(600, 8), shards=[350, 250], key_dtype="float16")


@pytest.mark.parametrize("metric", METRICS)
def test_recall_of_a_tree(large, metric):
    """With the default search, and after exact scoring; with too few leaves it is measurably less."""
    index = build_scann(large, metric=metric, settings=ScannSettings(brute_force_entries=0))
    queries = clusters(128, 32, centres=200, seed=1)
    assert measure_recall(rescore(index, large, 64), large, queries, 32) >= 0.95
    found, exact = index.search(queries, 10), ExactIndex.from_store(large, metric=metric).search(queries, 10)
    same = found.ids == exact.ids
    assert same.mean() > 0.9
    np.testing.assert_allclose(found.scores[same], exact.scores[same], rtol=1e-3, atol=1e-3)
    index.leaves_to_search, index.reorder = 1, 32
    assert measure_recall(index, large, queries, 32) < 0.95


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("settings", [None, TREE])
def test_a_saved_index_finds_the_same(small, metric, settings):
    queries = clusters(9, 8, seed=1)
    built = build_scann(small, metric=metric, settings=settings).search(queries, 20)
    for _ in range(2):
        opened = open_scann(small, metric=metric)
        assert all(np.array_equal(a, b) for a, b in zip(built, opened.search(queries, 20), strict=True))
    assert (opened.entries, opened.dim, opened.metric) == (600, 8, metric)


def test_small_stores_are_searched_in_full(small):
    exact = ExactIndex.from_store(small)
    queries = clusters(9, 8, seed=1)
    found = build_scann(small, save=False).search(queries, 600)
    assert np.array_equal(found.ids, exact.search(queries, 600).ids)


@pytest.mark.parametrize("metric", METRICS)
def test_fewer_than_asked_for_are_padded(small, metric):
    """ScaNN gives entry 0 for what its leaves do not have."""
    index = build_scann(small, metric=metric, settings=TREE, save=False)
    index.leaves_to_search = 1
    found = index.search(clusters(9, 8, seed=1), 610)
    counts = found.valid.sum(axis=1)
    assert found.ids.shape == (9, 610) and np.all((counts > 0) & (counts < 600))
    nothing = np.inf if metric == "squared_l2" else -np.inf
    assert np.all(found.ids[~found.valid] == -1) and np.all(found.scores[~found.valid] == nothing)
    for ids, valid in zip(found.ids, found.valid, strict=True):
        assert len(set(ids[valid])) == valid.sum() and ids[valid].min() >= 0
    assert np.array_equal(np.sort(~found.valid, axis=1), ~found.valid), "what is missing stands at the end"


@pytest.mark.parametrize("settings", [None, TREE])
def test_parts_of_a_store_merge(small, settings, tmp_path):
    """Built one by one, as by several hosts; ids are those of the store."""
    for part in range(3):
        build_scann(small, metric="inner_product", settings=settings, part=part, num_parts=3)
    everything = ExactIndex.from_store(small, metric="inner_product")
    queries = clusters(9, 8, seed=1)
    whole_name = "scann_inner_product_00000_of_00001.json"
    (small.path / "indices" / whole_name).unlink(missing_ok=True)
    merged = open_scann(small, metric="inner_product", leaves_to_search=20)
    assert isinstance(merged, MergedIndex) and merged.entries == 600
    expected = everything.search(queries, 30)
    found = rescore(merged, small, 200).search(queries, 30)
    assert np.array_equal(found.ids, expected.ids)
    # The same by hand, each part on a host of its own.
    alone = [open_scann(small, metric="inner_product", part=p, leaves_to_search=20) for p in range(3)]
    assert [index.entries for index in alone] == [200, 200, 200]
    by_hand = merge_neighbors([index.search(queries, 30) for index in alone], 30, "inner_product")
    assert np.array_equal(by_hand.ids, merged.search(queries, 30).ids)
    assert all(np.all(index.search(queries, 5).ids // 200 == p) for p, index in enumerate(alone))
    build_scann(small, metric="inner_product")
    with pytest.raises(ValueError, match=r"has scann indices of inner_product in \[1, 3\] parts; delete all but one"):
        open_scann(small, metric="inner_product")
    for name in artefacts.artefact_names(small):
        if name.startswith("scann_inner_product"):
            (small.path / "indices" / f"{name}.json").unlink()


def test_keys_that_are_not_finite_are_refused(tmp_path, monkeypatch):
    keys = clusters(100, 4)
    keys[77, 2] = np.nan
    monkeypatch.setattr("memjax.datastore.writer.ShardWriter._convert_keys", lambda self, keys: keys)
    store = make_store(tmp_path / "s", keys, shards=[50, 50])
    with pytest.raises(ValueError, match="keys: entry 77 of .* is NaN or infinite; build the store anew"):
        build_scann(store)
    assert artefacts.artefact_names(store) == []


def test_a_damaged_store_is_not_indexed(tmp_path):
    store = make_store(tmp_path / "s", clusters(100, 4))
    path = store.path / "shard_00000" / "keys.bin"
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"keys.bin is damaged: entries 40 to 44 are not what was written"):
        build_scann(store)
    assert not (store.path / "indices").exists()


def test_a_damaged_index_is_not_opened(tmp_path):
    store = make_store(tmp_path / "s", clusters(300, 4))
    build_scann(store, settings=TREE)
    (path,) = store.path.glob("indices/scann*/hashed_dataset.npy")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"hashed_dataset.npy is damaged: .*; build the index again"):
        open_scann(store)


def test_a_full_disk_is_named(small, monkeypatch):
    monkeypatch.setattr(artefacts, "free_bytes", lambda _: 1000)
    with pytest.raises(DiskFull, match="no space is left on the disk; free some and build the index"):
        build_scann(small, part=1, num_parts=2)


def test_errors_name_the_argument(small):
    with pytest.raises(ValueError, match="part: given 2 of 2, allowed: 0 to 1"):
        build_scann(small, part=2, num_parts=2)
    with pytest.raises(ValueError, match="has no scann_squared_l2_00003_of_"):
        open_scann(small, part=3)


SHIELD = """
import sys, types
from memjax.datastore.scann import import_scann

assert "tensorflow" not in sys.modules and "scann" not in sys.modules
real = sys.modules["tensorflow"] = types.ModuleType("tensorflow")
sys.modules["scann"] = None
try:
    import_scann()
except ImportError:
    pass
else:
    raise AssertionError("the import must have failed")
assert sys.modules["tensorflow"] is real, "restored after a failure"
del sys.modules["scann"], sys.modules["tensorflow"]

scann = import_scann()
assert "tensorflow" not in sys.modules, "nothing is left behind"
assert not [name for name in sys.modules if name.startswith(("tensorflow", "keras"))]
assert import_scann() is scann and hasattr(scann.scann_ops_pybind, "builder")
print("done")
"""


def test_tensorflow_is_not_imported():
    assert printed("-c", SHIELD) == ["done"]
