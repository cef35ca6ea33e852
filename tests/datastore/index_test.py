"""The protocol of all indices: merging, exact re-scoring, one factory."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.datastore import (
    ExactIndex,
    Index,
    MergedIndex,
    Neighbors,
    Store,
    StreamedIndex,
    build_faiss,
    build_scann,
    exact_scores,
    merge_neighbors,
    open_index,
    rescore,
)
from memjax.datastore.index import check_metric
from tests.datastore.stores import clusters, make_store
from tests.reference.nearest import scores as reference_scores

METRICS = ("squared_l2", "inner_product")
RNG = np.random.default_rng(0)


@st.composite
def searches(draw):
    """Results of several searches of disjoint entries, best first, with ties and with fewer than asked for."""
    sign = 1 if (metric := draw(st.sampled_from(METRICS))) == "squared_l2" else -1
    queries, fresh = draw(st.integers(0, 3)), itertools.count()
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        width, rows = draw(st.integers(0, 5)), []
        for _ in range(queries):
            scores = sorted(draw(st.lists(st.integers(-4, 4), max_size=width)), key=lambda s: sign * s)
            missing = width - len(scores)
            nothing = [sign * np.inf] * missing
            rows.append((scores + nothing, [next(fresh) for _ in scores] + [-1] * missing))
        shape = (queries, width)
        scores = np.array([r[0] for r in rows], np.float32).reshape(shape)
        ids = np.array([r[1] for r in rows], np.int64).reshape(shape)
        parts.append(Neighbors(scores, ids, ids >= 0))
    return parts, metric, draw(st.integers(1, 8))


def pairs(found: Neighbors, row: int) -> list[tuple[float, int]]:
    return [(float(s), int(i)) for s, i, v in zip(*(np.asarray(x)[row] for x in found), strict=True) if v]


@settings(deadline=None, max_examples=200)
@given(searches())
def test_merging_is_the_best_of_all(case):
    parts, metric, num_neighbors = case
    sign = 1 if metric == "squared_l2" else -1
    merged = merge_neighbors(parts, num_neighbors, metric)
    assert merged.ids.shape == (len(parts[0].ids), num_neighbors)
    for row in range(len(merged.ids)):
        everything = [pair for part in parts for pair in pairs(part, row)]
        expected = sorted(everything, key=lambda pair: sign * pair[0])[:num_neighbors]
        assert pairs(merged, row) == expected
        missing = num_neighbors - len(expected)
        assert np.all(merged.ids[row, len(expected) :] == -1) and not merged.valid[row, len(expected) :].any()
        assert merged.scores[row, len(expected) :].tolist() == [sign * np.inf] * missing


@settings(deadline=None, max_examples=100)
@given(searches(), st.data())
def test_merging_in_steps_is_merging_at_once(case, data):
    """In any grouping, and with one part it changes nothing but the padding."""
    parts, metric, num_neighbors = case
    cut = data.draw(st.integers(0, len(parts)))
    groups = [g for g in (parts[:cut], parts[cut:]) if g]
    steps = merge_neighbors([merge_neighbors(g, num_neighbors, metric) for g in groups], num_neighbors, metric)
    once = merge_neighbors(parts, num_neighbors, metric)
    again = merge_neighbors([once], num_neighbors, metric)
    for a, b, c in zip(steps, once, again, strict=True):
        assert np.array_equal(a, b) and np.array_equal(b, c)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sizes", [(20,), (1, 4, 0, 15), (7, 7, 6)])
def test_parts_of_a_store_are_the_store(sizes, metric):
    """Per-part search and a merge equal one search of everything, ties too."""
    rng = np.random.default_rng(0)
    keys = rng.integers(-1, 2, (20, 3)).astype(np.float32)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    parts = [ExactIndex(keys[a:b], metric=metric) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    merged = MergedIndex(parts, bounds[:-1].tolist())
    queries = rng.integers(-1, 2, (4, 3)).astype(np.float32)
    assert (merged.entries, merged.dim, merged.metric) == (len(keys), 3, metric)
    for a, b in zip(merged.search(queries, 6), ExactIndex(keys, metric=metric).search(queries, 6), strict=True):
        assert np.array_equal(a, b)


def test_merged_indices_fit_each_other():
    eye = np.eye(3, dtype=np.float32)
    with pytest.raises(ValueError, match="indices: given 2 of .*, allowed: one metric and width"):
        MergedIndex([ExactIndex(eye), ExactIndex(eye, metric="inner_product")])
    with pytest.raises(ValueError, match="indices: given 0"):
        MergedIndex([])


class Rough:
    """Finds the right entries and says wrong things about them, in a wrong order."""

    def __init__(self, index: ExactIndex, missing: int = 0):
        self.metric, self.entries, self.dim = index.metric, index.entries, index.dim
        self._index, self._missing = index, missing
        self.asked = []

    def search(self, queries, num_neighbors):
        self.asked.append(num_neighbors)
        found = self._index.search(queries, num_neighbors)
        ids = RNG.permuted(found.ids, axis=1)
        ids[:, : self._missing] = -1
        return Neighbors(RNG.normal(size=ids.shape).astype(np.float32), ids, ids >= 0)


@pytest.mark.parametrize("metric", METRICS)
def test_rescoring_does_not_depend_on_rough_scores(tmp_path, metric):
    """N5: the same neighbour set gives the same result, whatever the index says of it."""
    keys = RNG.normal(size=(60, 4)).astype(np.float16)
    store = make_store(tmp_path / "s", keys, key_dtype="float16", shards=[10, 50])
    exact, queries = ExactIndex(keys, metric=metric), RNG.normal(size=(5, 4)).astype(np.float32)
    rough = Rough(exact)
    found, expected = rescore(rough, store).search(queries, 7), exact.search(queries, 7)
    assert np.array_equal(found.ids, expected.ids) and found.valid.all() and rough.asked == [7]
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6, atol=1e-6)
    # Of more candidates the best are taken, also where some are missing.
    found = rescore(Rough(exact, missing=3), store, num_candidates=60).search(queries, 57)
    assert found.valid.all() and found.ids.shape == (5, 57)
    assert rescore(rough, store, 20).search(queries, 7).ids.shape == (5, 7) and rough.asked == [7, 20]
    none = rescore(Rough(exact, missing=2), store).search(queries, 2)
    assert not none.valid.any() and np.all(none.ids == -1) and np.all(np.isinf(none.scores))


@pytest.mark.parametrize("metric", METRICS)
def test_exact_scores_in_pieces(tmp_path, metric, monkeypatch):
    keys, queries = RNG.normal(size=(30, 4)).astype(np.float32), RNG.normal(size=(9, 4))
    store, ids = make_store(tmp_path / "s", keys), RNG.integers(-1, 30, (9, 5))
    whole = exact_scores(queries, store, ids, metric)
    assert whole.dtype == np.float64
    expected = np.take_along_axis(reference_scores(queries, keys, metric), np.maximum(ids, 0), axis=1)
    np.testing.assert_allclose(whole[ids >= 0], expected[ids >= 0], rtol=1e-12)
    assert np.all(np.isinf(whole[ids < 0]))
    monkeypatch.setattr("memjax.datastore.index.CHUNK_BYTES", 400)
    assert np.array_equal(exact_scores(queries, store, ids, metric), whole)


def test_rescoring_wants_the_keys_of_the_index(tmp_path):
    store = make_store(tmp_path / "s", np.ones((5, 4)))
    for keys in (np.ones((5, 3), np.float32), np.ones((6, 4), np.float32)):
        with pytest.raises(
            ValueError, match=f"index: given {len(keys)} entries of width {keys.shape[1]}, the store has 5"
        ):
            rescore(ExactIndex(keys), store)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Store:
    """A store with every index that is saved."""
    store = make_store(tmp_path_factory.mktemp("built") / "s", clusters(400, 8), shards=[150, 250])
    for metric in METRICS:
        build_scann(store, metric=metric)
        build_faiss(store, metric=metric)
    return store


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("backend", ["exact", "streamed", "sharded", "scann", "faiss"])
def test_one_protocol_for_all(built, backend, metric):
    """All of them are exact for so small a store: they give the same, padded in the same way."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    options = {"mesh": mesh} if backend == "sharded" else {}
    index = open_index(built, backend, metric=metric, **options)
    assert isinstance(index, Index) and (index.metric, index.entries, index.dim) == (metric, 400, 8)
    queries = clusters(6, 8, seed=1)
    expected = StreamedIndex(built, metric=metric).search(queries, 410)
    for found in (index.search(queries, 410), index.search(queries.astype(np.float64), 410)):
        assert found.ids.dtype == np.int64 and found.valid.sum() == 6 * 400 and np.all(found.ids[:, 400:] == -1)
        assert np.array_equal(found.ids[:, :20], expected.ids[:, :20])
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
    assert index.search(queries[:0], 3).ids.shape == (0, 3)
    rescored = open_index(built, backend, metric=metric, exact_scores=True, num_candidates=9, **options)
    found = rescored.search(queries, 3)
    assert np.array_equal(found.ids, expected.ids[:, :3])
    np.testing.assert_allclose(found.scores, expected.scores[:, :3], rtol=1e-5, atol=1e-5)
    for call in (lambda: index.search(np.full((1, 8), np.nan), 1), lambda: index.search(np.zeros((1, 7)), 1)):
        with pytest.raises(ValueError, match="^queries: given"):
            call()


def test_a_stored_key_finds_itself(built):
    """N3, through every backend."""
    ids = built.sample(20)
    for backend in ("exact", "streamed", "scann", "faiss"):
        found = open_index(built, backend).search(built.keys(ids), 1)
        assert np.array_equal(found.ids[:, 0], ids) and np.all(np.abs(found.scores) < 1e-4)


def test_the_order_of_entries_means_nothing(tmp_path):
    """N9: a permuted store gives permuted ids and the same scores."""
    keys, queries = clusters(100, 4), clusters(5, 4, seed=1)
    order = RNG.permutation(100)
    a = ExactIndex(keys).search(queries, 10)
    b = StreamedIndex(make_store(tmp_path / "s", keys[order])).search(queries, 10)
    assert np.array_equal(order[b.ids], a.ids)
    np.testing.assert_allclose(a.scores, b.scores, rtol=1e-5)


def test_an_empty_store(tmp_path):
    store = make_store(tmp_path / "s", np.zeros((0, 4)), shards=[0, 0])
    for backend in ("exact", "streamed"):
        found = open_index(store, backend, exact_scores=True).search(np.ones((2, 4)), 3)
        assert not found.valid.any() and np.all(found.ids == -1) and np.all(np.isinf(found.scores))
    assert list(store.blocks()) == [] and list(store.find_problems()) == []


def test_the_factory_names_what_it_knows(built):
    with pytest.raises(ValueError, match="backend: given 'annoy', allowed: exact, streamed, sharded, scann, faiss"):
        open_index(built, "annoy")
    with pytest.raises(ValueError, match="metric: given 'cosine', allowed: squared_l2, inner_product"):
        check_metric("cosine")
