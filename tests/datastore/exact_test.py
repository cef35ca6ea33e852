"""Exact search: the neighbours of faiss and of sorting, in any blocks, within bounded memory."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from memjax.datastore import ExactIndex, StreamedIndex, exact, half_squared_norms, nearest_entries
from tests.datastore.stores import make_store
from tests.reference.nearest import nearest

GOLDEN = Path(__file__).parent.parent / "golden" / "faiss_exact.npz"
METRICS = {"squared_l2": "l2", "inner_product": "ip"}
RNG = np.random.default_rng(0)
STATIC = ("num_neighbors", "metric", "block_entries")
search = jax.jit(nearest_entries, static_argnames=STATIC)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def compare(found, expected, num_neighbors: int, metric: str, entries: int, tolerance: float = 1e-6) -> None:
    """Neighbours against those of the reference; what is missing is padded."""
    nothing = np.inf if metric == "squared_l2" else -np.inf
    for scores, ids, valid, pairs in zip(*map(np.asarray, found), expected, strict=True):
        real = min(num_neighbors, entries)
        assert len(ids) == num_neighbors and valid.tolist() == [True] * real + [False] * (num_neighbors - real)
        assert ids.tolist() == [j for _, j in pairs] + [-1] * (num_neighbors - real)
        assert np.all(scores[real:] == nothing)
        np.testing.assert_allclose(scores[:real], [s for s, _ in pairs], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "block_entries", [77, *(pytest.param(entries, marks=pytest.mark.laws) for entries in (1000, 256))]
)
@pytest.mark.parametrize("kind", ["exact", "streamed"])
def test_neighbors_are_those_of_faiss(golden, tmp_path, metric, block_entries, kind):
    if kind == "exact":
        index = ExactIndex(golden["base"], metric=metric, block_entries=block_entries)
    else:
        store = make_store(tmp_path / "s", golden["base"], shards=[300, 700], block_entries=64)
        index = StreamedIndex(store, metric=metric, block_entries=block_entries, query_batch=16)
    found = index.search(golden["query"], 32)
    assert np.array_equal(found.ids, golden[f"{METRICS[metric]}_ids"]) and found.ids.dtype == np.int64
    np.testing.assert_allclose(found.scores, golden[f"{METRICS[metric]}_scores"], rtol=1e-5, atol=1e-5)
    assert found.valid.all() and found.scores.dtype == np.float32
    assert (index.metric, index.entries, index.dim) == (metric, 1000, 32)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "entries, num_neighbors, block_entries",
    [
        (1, 5, 8),
        (7, 7, 3),
        (300, 2, 256),
        (300, 40, 64),
        *(
            pytest.param(*sizes, marks=pytest.mark.laws)
            for sizes in ((1, 1, 8), (7, 3, 2), (7, 12, 3), (300, 3, 128), (300, 290, 64))
        ),
    ],
)
def test_neighbors_are_those_of_sorting(metric, entries, num_neighbors, block_entries):
    """More neighbours than a block has, or the store; few ones, by groups."""
    keys, queries = RNG.normal(size=(entries, 5)).astype(np.float32), RNG.normal(size=(6, 5)).astype(np.float32)
    expected = nearest(queries, keys, num_neighbors, metric)
    found = search(queries, keys, num_neighbors, metric=metric, block_entries=block_entries)
    assert found.ids.dtype == np.int32
    compare(found, expected, num_neighbors, metric, entries)


@pytest.mark.parametrize("metric, num_neighbors", [("inner_product", 1), ("inner_product", 9), ("squared_l2", 2)])
def test_of_equal_scores_the_first_entry_wins(metric, num_neighbors):
    """Small whole numbers: scores are exact, and the last places are ties within groups, over groups and blocks."""
    block = 1280  # 40 groups: searched by groups for up to 10 candidates
    for seed in range(12):
        rng = np.random.default_rng(seed)
        keys, queries = rng.integers(-9, 10, (2600, 3)), rng.integers(-1, 2, (4, 3))
        arrays = queries.astype(np.float32), keys.astype(np.float32)
        found = search(*arrays, num_neighbors, metric=metric, block_entries=block)
        compare(found, nearest(queries, keys, num_neighbors, metric), num_neighbors, metric, 2600)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [0, 1, 30, 100])
def test_only_the_first_entries_count(metric, count):
    keys, queries = RNG.normal(size=(100, 5)).astype(np.float32), RNG.normal(size=(3, 5)).astype(np.float32)
    keys[count:] = np.nan  # whatever stands there
    found = search(queries, keys, 4, metric=metric, count=count, block_entries=32)
    compare(found, nearest(queries, keys[:count], 4, metric), 4, metric, count)
    empty = search(queries, keys[:0], 4, metric=metric)
    assert not empty.valid.any() and np.all(empty.ids == -1)


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.laws), "bfloat16"])
@pytest.mark.parametrize("metric", METRICS)
def test_sums_of_short_keys_are_float32(dtype, metric, tmp_path):
    keys = RNG.normal(size=(200, 300)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    queries = RNG.normal(size=(4, 300)).astype(np.float32)
    expected = nearest(queries, keys, 9, metric)
    compare(ExactIndex(keys, metric=metric, block_entries=64).search(queries, 9), expected, 9, metric, 200, 1e-5)
    store = make_store(tmp_path / "s", keys, key_dtype=dtype, shards=[150, 50])
    compare(StreamedIndex(store, metric=metric).search(queries, 9), expected, 9, metric, 200, 1e-5)
    compare(ExactIndex.from_store(store, metric=metric).search(queries, 9), expected, 9, metric, 200, 1e-5)
    norms = half_squared_norms(jnp.asarray(keys))
    assert norms.dtype == jnp.float32
    np.testing.assert_allclose(norms, 0.5 * np.sum(keys.astype(np.float64) ** 2, axis=1), rtol=1e-6)


def test_distances_of_long_keys_that_are_near():
    """`|q|^2 - 2 q k + |k|^2` would give 0, or less, for all of these."""
    keys = (1000 + np.arange(64, dtype=np.float32)[:, None] * 2**-6 * np.ones((64, 16))).astype(np.float32)
    found = ExactIndex(keys).search(keys[[5]], 3)
    assert found.ids[0].tolist() == [5, 4, 6]
    assert found.scores[0].tolist() == [0, 16 * 2**-12, 16 * 2**-12]


@pytest.mark.parametrize("metric", METRICS)
def test_float64_is_float64(metric):
    with jax.enable_x64(True):
        keys, queries = RNG.normal(size=(50, 5)), RNG.normal(size=(3, 5))
        found = nearest_entries(jnp.asarray(queries), jnp.asarray(keys), 4, metric=metric)
        assert found.scores.dtype == jnp.float64
        compare(found, nearest(queries, keys, 4, metric), 4, metric, 50, 1e-14)


def test_queries_in_batches_of_any_size():
    keys = RNG.normal(size=(64, 4)).astype(np.float32)
    index = ExactIndex(keys, query_batch=8)
    queries = RNG.normal(size=(21, 4)).astype(np.float32)
    whole = index.search(queries, 3)
    for n in (0, 1, 3, 8, 9, 21):
        found = index.search(queries[:n], 3)
        assert found.ids.shape == (n, 3) and np.array_equal(found.ids, whole.ids[:n])
        np.testing.assert_allclose(found.scores, whole.scores[:n], rtol=1e-6)
    sizes = [len(batch) for batch, _ in exact.pad_query_batches(queries, 8)]
    assert sizes == [8, 8, 8] and [len(b) for b, _ in exact.pad_query_batches(queries[:11], 8)] == [8, 4]


def temporaries(entries: int, *, block_entries=512, num_queries=64, num_neighbors=16, dtype=jnp.float16, norms=True):
    """Bytes that the compiled search needs besides its arguments and results."""
    shape = jax.ShapeDtypeStruct
    search = jax.jit(functools.partial(nearest_entries, num_neighbors=num_neighbors, block_entries=block_entries))
    arguments = shape((num_queries, 32), jnp.float32), shape((entries, 32), dtype)
    half = {"half_norms": shape((entries,), jnp.float32)} if norms else {}
    return search.lower(*arguments, **half).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norms": False},
        *(pytest.param(o, marks=pytest.mark.laws) for o in ({"dtype": jnp.float32}, {"num_neighbors": 300})),
    ],
)
def test_memory_does_not_grow_with_the_store(options):
    """And is that of a few blocks, not of queries x entries."""
    sizes = [temporaries(entries, **options) for entries in (1 << 13, 1 << 17, 1 << 21)]
    assert sizes[0] == sizes[1] == sizes[2]
    scores_of_a_block, keys_of_a_block = 64 * 512 * 4, 512 * 32 * 4
    assert sizes[0] < 8 * (scores_of_a_block + keys_of_a_block)
    assert sizes[0] < 64 * (1 << 21) * 4 / 100


def test_memory_follows_the_block():
    assert temporaries(1 << 17, block_entries=4096) > 4 * temporaries(1 << 17, block_entries=512)


def test_few_neighbors_take_small_blocks_on_a_cpu():
    few, many = temporaries(1 << 17, block_entries=0), temporaries(1 << 17, block_entries=0, num_neighbors=1000)
    assert few < temporaries(1 << 17, block_entries=1 << 16) / 3
    assert many >= temporaries(1 << 17, block_entries=1 << 16)


def test_norms_need_no_copy_of_the_keys():
    keys = jax.ShapeDtypeStruct((1 << 16, 64), jnp.float16)
    found = jax.jit(half_squared_norms).lower(keys).compile().memory_analysis()
    assert found.temp_size_in_bytes < (1 << 16) * 64


def test_no_gradient_flows():
    def loss(queries, keys):
        return nearest_entries(queries, keys, 2).scores.sum()

    gradients = jax.grad(loss, (0, 1))(jnp.ones((2, 3)), jnp.eye(3))
    assert not any(np.any(g) for g in gradients)


def test_errors_name_the_argument(tmp_path):
    index = ExactIndex(np.eye(3, dtype=np.float32))
    with pytest.raises(ValueError, match=r"queries: given shape \(2, 4\), allowed: \(queries, 3\)"):
        index.search(np.zeros((2, 4)), 1)
    with pytest.raises(ValueError, match="queries: given row 1 that is NaN or infinite"):
        index.search(np.array([[0.0, 0, 0], [0, np.nan, 0]]), 1)
    with pytest.raises(ValueError, match="num_neighbors: given 0, allowed: 1 or more"):
        index.search(np.zeros((1, 3)), 0)
    with pytest.raises(ValueError, match="entries: given 2147483647, allowed: below 2147483647 on a device"):
        jax.eval_shape(
            functools.partial(nearest_entries, num_neighbors=1),
            jax.ShapeDtypeStruct((1, 1), jnp.float32),
            jax.ShapeDtypeStruct((2**31 - 1, 1), jnp.float32),
        )
