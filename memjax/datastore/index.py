"""The index interface: one protocol for every way to find the nearest entries of a store.

    neighbors = index.search(queries, num_neighbors)

`queries` are `[queries, dim]` on the host, in any float dtype. The result is `Neighbors(scores, ids, valid)`, best
first:

* For metric "squared_l2", `scores` are squared distances, ascending. For "inner_product" they are products, descending.
  They are at least float32. Those of an approximate index may be approximate; `rescore` makes them exact.
* `ids` are numbers of entries of the store. Where there are fewer entries than were asked for, ids are -1, `valid` is
  False, and scores are infinity for distances, minus infinity for products.

Backends: `exact` and `sharded` on devices, `streamed` for stores that fit nowhere, `scann` and `faiss` on the host.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Shaped

from memjax.datastore.store import Store

__all__ = ["Backend", "Index", "MergedIndex", "Metric", "Neighbors", "exact_scores", "merge_neighbors", "rescore"]

Metric = Literal["squared_l2", "inner_product"]
Backend = Literal["exact", "streamed", "sharded", "scann", "faiss"]

CHUNK_BYTES = 128 << 20
"""Bytes of main memory that exact re-scoring takes."""


class Neighbors(NamedTuple):
    """The nearest entries of each query, best first: their scores, their numbers in the store (`ids`), and whether
    there is a neighbour (`valid`), each `[queries, neighbors]`.

    Attributes:
      scores: `[queries, neighbors]`, squared distances or inner products.
      ids: `[queries, neighbors]`, numbers of entries (int64 from `Index.search`, int32 on devices). -1 = no neighbour.
      valid: bool `[queries, neighbors]`, whether there is a neighbour.
    """

    scores: Any
    ids: Any
    valid: Any


@runtime_checkable
class Index(Protocol):
    """The protocol of all indices: `search(queries, num_neighbors)`, with the attributes `metric`, `entries` (their
    number) and `dim`, the width of keys.

    Attributes:
      metric: Metric of the scores, "squared_l2" or "inner_product".
      entries: Number of entries that can be found.
      dim: Width of keys and queries.
    """

    metric: Metric
    entries: int
    dim: int

    def search(self, queries: Shaped[Any, "queries dim"], num_neighbors: int) -> Neighbors:
        """Finds the nearest entries of each query `[queries, dim]`, and returns `Neighbors` on the host with
        `num_neighbors` columns, best first.

        Args:
          queries: `[queries, dim]`, any float dtype.
          num_neighbors: Number of neighbours of each query. May exceed the number of entries.
        """
        ...


class BaseIndex(Index):
    """Base class of all indices. It checks queries, answers an empty batch of them, and leaves the search itself to
    subclasses.
    """

    def __init__(self, metric: Metric, entries: int, dim: int):
        check_metric(metric)
        self.metric, self.entries, self.dim = metric, entries, dim

    def search(self, queries: Shaped[Any, "queries dim"], num_neighbors: int) -> Neighbors:
        """Checks the queries `[queries, dim]`, finds the nearest entries of each, and returns `Neighbors` with
        `num_neighbors` columns, best first.
        """
        queries = check_queries(queries, self.dim, num_neighbors)
        if not len(queries):
            empty = np.zeros((0, num_neighbors), bool)
            return pad_neighbors(empty.astype(np.float32), empty, empty, num_neighbors, self.metric)
        return self._search(queries, num_neighbors)

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        """Finds the nearest entries of queries that are already checked, at least one."""
        raise NotImplementedError


def merge_neighbors(parts: Sequence[Neighbors], num_neighbors: int, metric: Metric) -> Neighbors:
    """Merges the results of several searches for the same queries among disjoint entries (`parts`, a list of
    `Neighbors`) into the best `num_neighbors` of each query.

    Args:
      parts: Results of each search for the same queries. Their ids are numbers of entries in the whole store.
      num_neighbors: Number of neighbours in the result. Missing ones are padded.
      metric: Metric of the scores.

    Returns:
      Neighbours on the host. Of equal scores the one of the earlier part comes first, and in a part the earlier one.

    Example:
      >>> first = Neighbors(np.array([[1.0, 4.0]]), np.array([[7, 3]]), np.array([[True, True]]))
      >>> second = Neighbors(np.array([[2.0, np.inf]]), np.array([[12, -1]]), np.array([[True, False]]))
      >>> merge_neighbors([first, second], 4, "squared_l2").ids.tolist()
      [[7, 12, 3, -1]]
    """
    check_metric(metric)
    check_num_neighbors(num_neighbors)
    scores, ids, valid = (
        np.concatenate([np.asarray(getattr(part, name)) for part in parts], axis=1) for name in FIELDS
    )
    order = np.argsort(_ascending(scores, valid, metric), axis=1, kind="stable")[:, :num_neighbors]
    scores, ids, valid = (np.take_along_axis(array, order, axis=1) for array in (scores, ids, valid))
    return pad_neighbors(scores, ids, valid, num_neighbors, metric)


FIELDS = Neighbors._fields


class MergedIndex(BaseIndex):
    """An index made of several indices over disjoint ranges of entries, such as the parts of a large store. A search
    asks all of them and merges the results.
    """

    def __init__(self, indices: Sequence[Index], offsets: Sequence[int] | None = None):
        """Joins several indices, whose results are merged in every search.

        Args:
          indices: Indices with the same metric and width.
          offsets: Number added to the ids of each index. None = their ids are numbers in the whole store already.

        Raises:
          ValueError: There are no indices, or they differ in metric or width.
        """
        kinds = {(index.metric, index.dim) for index in indices}
        if len(kinds) != 1:
            raise ValueError(f"indices: given {len(indices)} of {sorted(kinds)}, allowed: one metric and width")
        super().__init__(indices[0].metric, sum(index.entries for index in indices), indices[0].dim)
        self._parts = list(zip(indices, offsets or [0] * len(indices), strict=True))

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        results = [(index.search(queries, num_neighbors), offset) for index, offset in self._parts]
        parts = [n._replace(ids=np.where(n.valid, n.ids + offset, -1)) for n, offset in results]
        return merge_neighbors(parts, num_neighbors, self.metric)


def rescore(index: Index, store: Store, num_candidates: int = 0) -> Index:
    """Makes an index that finds neighbours, at least `num_candidates`, with `index` and computes their scores again,
    exactly, from the keys of the store. Neighbours that `index` misses stay missing.

    Two indices that find the same neighbours then give the same result, however approximate their own scores are.

    Args:
      index: Index of the store, of any backend.
      store: Store with the keys of the index.
      num_candidates: Number of neighbours to take from the index for every query, the best of which are returned. 0 =
        as many as asked for.

    Raises:
      ValueError: The index has another width, or more entries, than the store.
    """
    if index.dim != store.dim or index.entries > store.entries:
        raise ValueError(
            f"index: given {index.entries} entries of width {index.dim}, the store has {store.entries} of {store.dim}"
        )
    return _Rescored(index, store, num_candidates)


class _Rescored(BaseIndex):
    """An index that scores the neighbours of another index again with the keys of the store."""

    def __init__(self, index: Index, store: Store, num_candidates: int):
        super().__init__(index.metric, index.entries, index.dim)
        self._index, self._store, self._num_candidates = index, store, num_candidates

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        candidates = self._index.search(queries, max(num_neighbors, self._num_candidates))
        scores = exact_scores(queries, self._store, candidates.ids, self.metric)
        return merge_neighbors([candidates._replace(scores=scores)], num_neighbors, self.metric)


def exact_scores(
    queries: Float[np.ndarray, "queries dim"], store: Store, ids: Int[np.ndarray, "queries neighbors"], metric: Metric
) -> Float[np.ndarray, "queries neighbors"]:
    """Computes the distances or products of each query and the entries with numbers `ids`, `[queries, neighbors]`, from
    the keys of the store. An id of -1 gets the score of a missing neighbour. Distances are squared.

    Args:
      queries: `[queries, dim]`.
      store: Store with the keys.
      ids: `[queries, neighbors]`, numbers of entries. -1 = no neighbour.
      metric: Metric of the scores.

    Returns:
      `[queries, neighbors]`, infinity for missing neighbours with distances, minus infinity with products.
    """
    queries = queries.astype(np.promote_types(queries.dtype, np.float32))
    is_neighbor = ids >= 0
    scores = np.full(ids.shape, missing_score(metric), queries.dtype)
    step = max(1, CHUNK_BYTES // max(1, ids.shape[1] * store.dim * queries.itemsize))
    for first in range(0, len(queries) if is_neighbor.any() else 0, step):
        rows = slice(first, first + step)
        keys = store.keys(np.where(is_neighbor[rows], ids[rows], 0)).astype(queries.dtype)
        if metric == "squared_l2":
            # The sum of squared differences, since |q|^2 - 2 q k + |k|^2 loses digits where keys are long and near.
            keys -= queries[rows, None]
            scores_of_rows = np.einsum("qkd,qkd->qk", keys, keys)
        else:
            scores_of_rows = np.einsum("qkd,qd->qk", keys, queries[rows])
        scores[rows] = np.where(is_neighbor[rows], scores_of_rows, scores[rows])
    return scores


def missing_score(metric: Metric) -> float:
    """Returns the score of a missing neighbour, a float: infinity for distances, minus infinity for inner products."""
    return np.inf if metric == "squared_l2" else -np.inf


def pad_neighbors(scores: Any, ids: Any, valid: Any, num_neighbors: int, metric: Metric) -> Neighbors:
    """Pads the results `[queries, found]` of a search on the host to `num_neighbors` columns. Columns that are added or
    not valid have the id -1 and the score of a missing neighbour.
    """
    width = [(0, 0), (0, num_neighbors - scores.shape[1])]
    valid = np.pad(np.asarray(valid), width)
    scores = np.where(valid, np.pad(np.asarray(scores), width), np.asarray(missing_score(metric), scores.dtype))
    return Neighbors(scores, np.where(valid, np.pad(np.asarray(ids, np.int64), width), -1), valid)


def check_metric(metric: str) -> None:
    """Raises `ValueError` unless the metric is "squared_l2" or "inner_product"."""
    if metric not in get_args(Metric):
        raise ValueError(f"metric: given {metric!r}, allowed: {', '.join(get_args(Metric))}")


def check_num_neighbors(num_neighbors: int) -> None:
    """Raises `ValueError` if fewer than one neighbour is asked for."""
    if num_neighbors < 1:
        raise ValueError(f"num_neighbors: given {num_neighbors}, allowed: 1 or more")


def check_queries(queries: Any, dim: int, num_neighbors: int) -> np.ndarray:
    """Checks that queries have the shape `[queries, dim]` and are finite, and that a neighbour is asked for. Returns
    the queries as a NumPy array in at least float32.

    Raises:
      ValueError: The queries have another width or are not finite, or no neighbour is asked for.
    """
    check_num_neighbors(num_neighbors)
    queries = np.asarray(queries)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise ValueError(f"queries: given shape {queries.shape}, allowed: (queries, {dim}), the width of the keys")
    queries = queries.astype(np.promote_types(queries.dtype, np.float32))
    bad = ~np.isfinite(queries).all(axis=1)
    if bad.any():
        raise ValueError(f"queries: given row {int(np.argmax(bad))} that is NaN or infinite; they must be finite")
    return queries


def _ascending(scores: np.ndarray, valid: np.ndarray, metric: Metric) -> np.ndarray:
    """Returns scores for sorting in ascending order: the best is the smallest, and a missing neighbour the largest."""
    return np.where(valid, scores if metric == "squared_l2" else -scores, np.inf)
