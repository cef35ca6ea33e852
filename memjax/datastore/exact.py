"""Exact nearest-neighbour search on a device, block by block, without all queries times all entries in memory at once.

Entries are ranked by `q k` for products, and for distances by

    (q - c) k - |k - c|^2 / 2

in at least float32, with a running list of the best. For every `c` this gives the order of the distances. With `c` = 0
it loses the digits that count where keys have a large part in common, as hidden states of language models do. The mean
of the keys as `c` removes that part. A few more candidates than asked for are taken. They are then scored and ordered
by the sum of squared differences.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from memjax.datastore.index import (
    BaseIndex,
    Metric,
    Neighbors,
    check_metric,
    check_num_neighbors,
    exact_scores,
    merge_neighbors,
    missing_score,
    pad_neighbors,
)
from memjax.datastore.store import Store
from memjax.functional.best_entries import best_entries, best_groups
from memjax.functional.named_operations import operation

__all__ = ["ExactIndex", "StreamedIndex", "half_squared_norms", "nearest_entries"]

BLOCK_ENTRIES = 65536
CACHED_ENTRIES = 16384
"""Number of entries whose scores for a batch of queries stay in a CPU's cache."""
QUERY_BATCH = 256
SPARE = 8
"""Number of candidates beyond those asked for, since ranks may be wrong in their last digits."""
GROUP = 32
"""Number of entries in a group. Where few neighbours are wanted, only the best of a group is compared first."""
NORMS_AT_ONCE = 8192
"""Number of entries whose norms are computed at once, and largest size of the sample whose mean is the centre."""
LARGEST_ID = np.iinfo(np.int32).max


@operation
def nearest_entries(
    queries: Float[Array, "queries dim"],
    keys: Float[Array, "entries dim"],
    num_neighbors: int,
    *,
    metric: Metric = "squared_l2",
    count: int | Int[Array, ""] | None = None,
    centre: Float[Array, " dim"] | None = None,
    half_norms: Float[Array, " entries"] | None = None,
    block_entries: int = 0,
    precision: Any = "highest",
) -> Neighbors:
    """Finds the nearest keys `[entries, dim]` of each query `[queries, dim]` by exact search, and returns `Neighbors`
    of `[queries, num_neighbors]`. May be called inside `jax.jit`. Has no gradient.

    Args:
      queries: `[queries, dim]`. All of them are searched at once, with `queries x block_entries` scores in memory.
      keys: `[entries, dim]`, any float dtype, finite.
      num_neighbors: Number of neighbours of each query. May exceed the number of entries.
      metric: "squared_l2" or "inner_product".
      count: Number of keys to search, from the first. None = all keys.
      centre: `[dim]`, point in the middle of the keys, for distances. See the docstring of the module. None = 0.
      half_norms: `[entries]`, result of `half_squared_norms` with the same centre, for distances. None = computed in
        every search.
      block_entries: Number of entries compared at once. 0 = 65,536, and fewer on a CPU where few neighbours are wanted.
      precision: Precision of the products, as in `jax.numpy.matmul`.

    Returns:
      `Neighbors` of `[queries, num_neighbors]`, best first, with scores in at least float32 and int32 ids. Of equal
      scores the lower id comes first. Missing neighbours have id -1, are not valid, and score infinity for distances,
      minus infinity for products.

    Raises:
      ValueError: The metric is unknown, no neighbour is asked for, or int32 cannot count the entries.

    Example:
      >>> keys = jnp.array([[0.0, 0.0], [3.0, 0.0], [1.0, 1.0]])
      >>> found = nearest_entries(jnp.array([[2.0, 0.0]]), keys, 2)
      >>> print(found.scores, found.ids)
      [[1. 2.]] [[1 2]]
    """
    check_metric(metric)
    check_num_neighbors(num_neighbors)
    entries = keys.shape[0]
    _check_entries(entries)
    queries, keys = lax.stop_gradient(queries), lax.stop_gradient(keys)
    queries = queries.astype(jnp.promote_types(jnp.promote_types(queries.dtype, keys.dtype), jnp.float32))
    if not entries:
        return sorted_neighbors(*_no_candidates(queries, 0), num_neighbors, metric)
    centre = jnp.zeros((keys.shape[1],), queries.dtype) if centre is None else centre.astype(queries.dtype)
    centred = queries - centre[None] if metric == "squared_l2" else queries
    candidates = _num_candidates(num_neighbors, entries, metric)
    block = min(block_entries or _default_block(candidates), entries)
    count = entries if count is None else count
    places = jnp.arange(block, dtype=jnp.int32)

    def step(i: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        # The last block begins early and skips entries of the block before it. No keys are copied or padded.
        first = jnp.minimum(i * block, entries - block)
        part = lax.dynamic_slice_in_dim(keys, first, block)
        if metric == "inner_product":
            norms = None
        elif half_norms is None:
            norms = half_squared_norms(part, centre)
        else:
            norms = lax.dynamic_slice_in_dim(half_norms, first, block)
        ids = first + places
        real = (ids >= i * block) & (ids < count)
        return _add_block(best, centred, part, norms, first, real, precision)

    best = _no_candidates(queries, candidates)
    ranks, ids = lax.fori_loop(0, -(-entries // block), step, best)
    if metric == "squared_l2":
        ranks = _distances(queries, keys, ids, block)
    return sorted_neighbors(ranks, ids, num_neighbors, metric)


@operation
def half_squared_norms(
    keys: Float[Array, "entries dim"], centre: Float[Array, " dim"] | None = None
) -> Float[Array, " entries"]:
    """Computes half the squared distances `[entries]` of the keys from the point `centre`, in at least float32, as
    `nearest_entries` takes them. None stands for the point 0.

    Example:
      >>> keys = jnp.array([[2.0, 0.0], [1.0, 1.0]])
      >>> print(half_squared_norms(keys), half_squared_norms(keys, jnp.array([1.0, 0.0])))
      [2. 1.] [0.5 0.5]
    """
    dtype = jnp.promote_types(keys.dtype, jnp.float32)
    centre = jnp.zeros((keys.shape[1],), dtype) if centre is None else centre.astype(dtype)
    norms = lambda keys: 0.5 * jnp.sum(jnp.square(keys.astype(dtype) - centre[None]), axis=1)
    entries, block = keys.shape[0], NORMS_AT_ONCE
    if entries <= block:
        return norms(keys)

    def step(i: Array, norms_so_far: Array) -> Array:  # avoids a second copy of all keys in another dtype
        first = jnp.minimum(i * block, entries - block)
        return lax.dynamic_update_slice(norms_so_far, norms(lax.dynamic_slice_in_dim(keys, first, block)), (first,))

    return lax.fori_loop(0, -(-entries // block), step, jnp.zeros((entries,), dtype))


class DeviceIndex(BaseIndex):
    """Base class of indices that keep all keys in the memory of devices and search there, one batch of queries at a
    time.
    """

    def __init__(self, metric: Metric, entries: int, dim: int, query_batch: int):
        super().__init__(metric, entries, dim)
        _check_entries(entries)
        self._query_batch = query_batch

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        batches = pad_query_batches(queries, self._query_batch)
        results = [
            (self._search_batch(batch, num_neighbors), n) for batch, n in batches
        ]  # all batches are dispatched before the first result is read
        scores, ids, valid = (
            np.concatenate([np.asarray(part[i])[:n] for part, n in results], axis=0) for i in range(3)
        )
        return pad_neighbors(scores, ids, valid, num_neighbors, self.metric)

    def _search_batch(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        """Finds the neighbours of one batch of queries on the devices."""
        raise NotImplementedError


class ExactIndex(DeviceIndex):
    """An index with exact search that keeps all keys in the memory of one device.

    Example:
      >>> index = ExactIndex(np.eye(3, dtype=np.float32), metric="inner_product")
      >>> index.search(np.array([[1.0, 5.0, 2.0]]), 2).ids.tolist()
      [[1, 2]]
    """

    def __init__(
        self,
        keys: Shaped[Any, "entries dim"],
        *,
        metric: Metric = "squared_l2",
        block_entries: int = 0,
        query_batch: int = QUERY_BATCH,
    ):
        """Copies the keys to the default device, and prepares their norms.

        Args:
          keys: `[entries, dim]`, in the dtype in which they are stored on the device.
          metric: "squared_l2" or "inner_product".
          block_entries: Number of entries compared at once. 0 = the default of `nearest_entries`.
          query_batch: Number of queries searched at once.
        """
        super().__init__(metric, len(keys), keys.shape[1], query_batch)
        self._keys, self._block_entries = jnp.asarray(keys), block_entries
        self._centre = self._norms = None
        if metric == "squared_l2" and self.entries:
            self._centre = _centre(self._keys, self.entries)
            self._norms = jax.jit(half_squared_norms)(self._keys, self._centre)

    @classmethod
    def from_store(cls, store: Store, *, metric: Metric = "squared_l2", **options: int) -> ExactIndex:
        """Makes an exact index of a store. All its keys are read, compared with their checksums, and put on the default
        device. `options` are arguments of `ExactIndex`.
        """
        return cls(load_keys(store, 0, store.entries), metric=metric, **options)

    def _search_batch(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        options = {"num_neighbors": num_neighbors, "metric": self.metric, "block_entries": self._block_entries}
        return _search(queries, self._keys, self._centre, self._norms, **options)


class StreamedIndex(BaseIndex):
    """An index with exact search that leaves the keys of a store on disk, and reads all of them through the device in
    every search.

    It serves stores that fit nowhere, and checks of other indices.
    """

    def __init__(
        self,
        store: Store,
        *,
        metric: Metric = "squared_l2",
        block_entries: int = BLOCK_ENTRIES,
        query_batch: int = QUERY_BATCH,
    ):
        """Prepares the index. Keys are only read in a search.

        Args:
          store: Store with the keys.
          metric: "squared_l2" or "inner_product".
          block_entries: Number of entries read and compared at once.
          query_batch: Number of queries compared with a block at once. The store is read once for all queries of a
            search.
        """
        super().__init__(metric, store.entries, store.dim)
        _check_entries(store.entries)
        self._store, self._query_batch = store, query_batch
        self._block_entries = max(1, min(block_entries, store.entries))

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        candidates = _num_candidates(num_neighbors, self.entries, self.metric)
        batches = [(jnp.asarray(batch), n) for batch, n in pad_query_batches(queries, self._query_batch)]
        best = [_no_candidates(batch, candidates) for batch, _ in batches]
        centre = None
        for block in self._store.blocks(self._block_entries):
            missing = self._block_entries - len(block.keys)
            keys = jnp.asarray(
                np.pad(block.keys, [(0, missing), (0, 0)])
            )  # one compiled program for blocks of every size
            if self.metric == "squared_l2" and centre is None:
                centre = _centre(keys, len(block.keys))
            for i, (batch, _) in enumerate(batches):
                best[i] = _add_streamed_block(best[i], batch, keys, centre, block.first, len(block.keys))
        scores, ids = (
            np.concatenate([np.asarray(part)[:n] for part, (_, n) in zip(parts, batches, strict=True)], axis=0)
            for parts in zip(*best, strict=True)
        )
        if self.metric == "squared_l2":
            scores = exact_scores(queries, self._store, ids, self.metric)
        return merge_neighbors([Neighbors(scores, ids, ids >= 0)], num_neighbors, self.metric)


def mean_of_first_keys(keys: Float[Array, "entries dim"], count: int | Int[Array, ""]) -> tuple[Array, Array]:
    """Returns the float32 sum `[dim]` and the size of an evenly spaced sample of the first `count` keys. The caller
    divides them to get a point in the middle of the keys, which need not be precise.
    """
    stride = -(-keys.shape[0] // NORMS_AT_ONCE)
    sample = keys[::stride].astype(jnp.float32)
    real = jnp.arange(sample.shape[0]) * stride < count
    return jnp.sum(jnp.where(real[:, None], sample, 0), axis=0), jnp.sum(real)


@jax.jit
def _centre(keys: Array, count: int | Array) -> Array:
    """Returns the mean of a sample of the first `count` keys."""
    total, number = mean_of_first_keys(keys, count)
    return total / number


def load_keys(store: Store, first: int, last: int, rows: int | None = None) -> np.ndarray:
    """Reads the keys of the entries from number `first` to before `last`, compared with their checksums, as `[rows,
    dim]` in the store's dtype. Rows after the keys are zero. None adds no such rows.
    """
    keys = np.zeros((last - first if rows is None else rows, store.dim), store.key_dtype)
    for block in store.blocks(first=first, last=last):
        keys[block.first - first : block.first - first + len(block.keys)] = block.keys
    return keys


def pad_query_batches(queries: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields (batch, number of real queries) for each group of `size` queries. The last batch may have fewer rows: it
    is padded with zeros to a power of 2, at most `size`.
    """
    for first in range(0, len(queries), size):
        part = queries[first : first + size]
        # Batches have few different sizes, so that few programs are compiled.
        padded = min(size, 1 << (len(part) - 1).bit_length())
        yield np.pad(part, [(0, padded - len(part)), (0, 0)]), len(part)


@functools.partial(jax.jit, static_argnames=("num_neighbors", "metric", "block_entries"))
def _search(queries: Array, keys: Array, centre: Array | None, half_norms: Array | None, **options: Any) -> Neighbors:
    """Compiled `nearest_entries`."""
    return nearest_entries(queries, keys, centre=centre, half_norms=half_norms, **options)


@functools.partial(jax.jit, donate_argnums=0)
def _add_streamed_block(
    best: tuple[Array, Array], queries: Array, keys: Array, centre: Array | None, first: int | Array, count: int | Array
) -> tuple[Array, Array]:
    """Adds one block to the best candidates so far. With `centre` for distances, with None for products."""
    real = jnp.arange(keys.shape[0]) < count
    if centre is None:
        return _add_block(best, queries, keys, None, first, real, "highest")
    return _add_block(best, queries - centre[None], keys, half_squared_norms(keys, centre), first, real, "highest")


def _num_candidates(num_neighbors: int, entries: int, metric: Metric) -> int:
    """Returns the number of candidates to take for this number of neighbours."""
    return min(num_neighbors + (SPARE if metric == "squared_l2" else 0), entries)


def _default_block(candidates: int) -> int:
    """Returns the number of entries in a block."""
    # A CPU is faster where scores stay in its cache. `_add_block` needs 4 groups for each candidate.
    if jax.default_backend() != "cpu":
        return BLOCK_ENTRIES
    return min(BLOCK_ENTRIES, max(CACHED_ENTRIES, 4 * GROUP * candidates))


def _no_candidates(queries: Array, candidates: int) -> tuple[Array, Array]:
    """Returns empty candidates: ranks of minus infinity, and ids of -1."""
    shape = (queries.shape[0], candidates)
    return jnp.full(shape, -jnp.inf, queries.dtype), jnp.full(shape, -1, jnp.int32)


def _add_block(
    best: tuple[Array, Array],
    queries: Array,
    keys: Array,
    half_norms: Array | None,
    first: int | Array,
    real: Array,
    precision: Any,
) -> tuple[Array, Array]:
    """Adds a block, whose first entry has the number `first`, to the best (rank, id) so far. Largest rank first."""
    ranks = jnp.matmul(queries, keys.astype(queries.dtype).T, precision=precision)  # [queries, block]
    if half_norms is not None:
        ranks = ranks - half_norms[None].astype(ranks.dtype)
    ranks = jnp.where(real[None], ranks, -jnp.inf)
    old_ranks, old_ids = best
    wanted = old_ranks.shape[1]
    groups = ranks.shape[1] // GROUP
    if ranks.shape[1] % GROUP == 0 and wanted * 4 <= groups:
        ranks, places = best_groups(ranks, wanted, GROUP)
        ids = jnp.where(ranks > -jnp.inf, first + places, -1)
    else:
        ids = jnp.broadcast_to(first + lax.iota(jnp.int32, ranks.shape[1])[None], ranks.shape)
    # Old candidates come first, so that they win ties.
    top, order = best_entries(jnp.concatenate([old_ranks, ranks], axis=1), wanted)
    ids = jnp.where(
        order < wanted,
        jnp.take_along_axis(old_ids, jnp.minimum(order, wanted - 1), axis=1),
        jnp.take_along_axis(ids, jnp.maximum(order - wanted, 0), axis=1),
    )
    return top, jnp.where(top > -jnp.inf, ids, -1)


def _distances(queries: Array, keys: Array, ids: Array, block: int) -> Array:
    """Computes the squared distances of candidates, without more keys in memory at once than a block has."""
    rows, candidates = ids.shape
    width = max(1, min(candidates, block // max(1, rows)))
    steps = -(-candidates // width)
    padded = jnp.pad(ids, [(0, 0), (0, steps * width - candidates)]).reshape(rows, steps, width)

    def score(ids: Array) -> Array:  # [queries, width]
        near = jnp.take(keys, ids, axis=0, mode="clip").astype(queries.dtype)
        return jnp.sum(jnp.square(near - queries[:, None]), axis=-1)

    scores = lax.map(score, jnp.swapaxes(padded, 0, 1))  # [steps, queries, width]
    return jnp.swapaxes(scores, 0, 1).reshape(rows, steps * width)[:, :candidates]


def sorted_neighbors(scores: Array, ids: Array, num_neighbors: int, metric: Metric) -> Neighbors:
    """Sorts candidates `[queries, candidates]` of each query, best first, equal scores by id, and returns `Neighbors`
    with exactly `num_neighbors` columns. Candidates with id -1 do not count.
    """
    sign = 1 if metric == "squared_l2" else -1
    missing = max(0, num_neighbors - ids.shape[1])
    last = jnp.where(ids >= 0, ids, LARGEST_ID)
    order = jnp.where(ids >= 0, sign * scores, jnp.inf)
    order, last = lax.sort((order, last), num_keys=2)
    order, last = order[:, :num_neighbors], last[:, :num_neighbors]
    order = jnp.pad(order, [(0, 0), (0, missing)], constant_values=jnp.inf)
    last = jnp.pad(last, [(0, 0), (0, missing)], constant_values=LARGEST_ID)
    valid = last < LARGEST_ID
    return Neighbors(jnp.where(valid, sign * order, missing_score(metric)), jnp.where(valid, last, -1), valid)


def _check_entries(entries: int) -> None:
    """Raises an error for more entries than int32 can count."""
    if entries >= LARGEST_ID:
        raise ValueError(
            f"entries: given {entries}, allowed: below {LARGEST_ID} on a device; split the store and merge the results"
        )
