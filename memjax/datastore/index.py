"""One protocol for every way to find the nearest entries of a store.

    found = index.search(queries, num_neighbors)

`queries` are `[queries, dim]` on the host, in any float dtype. `found` is `Neighbors(scores, ids, valid)`, best first:

* metric "squared_l2": `scores` are squared distances, ascending; `inner_product`: products, descending. They are at
  least float32. What an approximate index gives may be approximate; `rescore` makes it exact.
* `ids` are numbers of entries of the store, -1 where there are fewer entries than were asked for; there `valid` is
  False and the score is that of nothing: infinity for distances, minus infinity for products.

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
"""of main memory that exact re-scoring takes"""


class Neighbors(NamedTuple):
    """The nearest entries of each query, best first.

    Attributes:
      scores: `[queries, neighbors]`, see above.
      ids: `[queries, neighbors]`, numbers of entries (int64 from `Index.search`, int32 on devices); -1 = none.
      valid: bool `[queries, neighbors]`.
    """

    scores: Any
    ids: Any
    valid: Any


@runtime_checkable
class Index(Protocol):
    """What every backend offers.

    Attributes:
      metric: of the scores.
      entries: that can be found.
      dim: of keys and queries.
    """

    metric: Metric
    entries: int
    dim: int

    def search(self, queries: Shaped[Any, "queries dim"], num_neighbors: int) -> Neighbors:
        """The nearest entries of each query; see the text of the module."""
        ...


class BaseIndex(Index):
    """What the backends have in common."""

    def __init__(self, metric: Metric, entries: int, dim: int):
        check_metric(metric)
        self.metric, self.entries, self.dim = metric, entries, dim

    def search(self, queries: Shaped[Any, "queries dim"], num_neighbors: int) -> Neighbors:
        queries = check_queries(queries, self.dim, num_neighbors)
        if not len(queries):
            nobody = np.zeros((0, num_neighbors), bool)
            return pad_neighbors(nobody.astype(np.float32), nobody, nobody, num_neighbors, self.metric)
        return self._search(queries, num_neighbors)

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        """The same for at least one query, all of them checked."""
        raise NotImplementedError


def merge_neighbors(parts: Sequence[Neighbors], num_neighbors: int, metric: Metric) -> Neighbors:
    """The best of several searches of disjoint entries, such as those of the parts of a store on several hosts.

    Args:
      parts: results for the same queries, with the numbers that entries have in the whole.
      num_neighbors: of the result; what is missing is padded.
      metric: of the scores.

    Returns:
      Neighbours on the host. Of equal scores the one of the earlier part, or further ahead in its part, comes first.

    Example:
      >>> one = Neighbors(np.array([[1.0, 4.0]]), np.array([[7, 3]]), np.array([[True, True]]))
      >>> two = Neighbors(np.array([[2.0, np.inf]]), np.array([[12, -1]]), np.array([[True, False]]))
      >>> merge_neighbors([one, two], 4, "squared_l2").ids.tolist()
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
    """Several indices of disjoint ranges of entries as one, such as the parts of a store that outgrows one index."""

    def __init__(self, indices: Sequence[Index], offsets: Sequence[int] | None = None):
        """Merges the results of every search.

        Args:
          indices: of one metric and width.
          offsets: what is added to the ids of each; None = their ids are numbers in the whole already.

        Raises:
          ValueError: none at all, or of several metrics or widths.
        """
        kinds = {(index.metric, index.dim) for index in indices}
        if len(kinds) != 1:
            raise ValueError(f"indices: given {len(indices)} of {sorted(kinds)}, allowed: one metric and width")
        super().__init__(indices[0].metric, sum(index.entries for index in indices), indices[0].dim)
        self._parts = list(zip(indices, offsets or [0] * len(indices), strict=True))

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        found = [(index.search(queries, num_neighbors), offset) for index, offset in self._parts]
        parts = [n._replace(ids=np.where(n.valid, n.ids + offset, -1)) for n, offset in found]
        return merge_neighbors(parts, num_neighbors, self.metric)


def rescore(index: Index, store: Store, num_candidates: int = 0) -> Index:
    """An index whose scores are exact: what another one finds is scored again with the keys of the store.

    With the same neighbours found the result is the same, however rough the other scores are.

    Args:
      index: any.
      store: with the keys of the index.
      num_candidates: taken from the index for every query, of which the best are returned; 0 = as many as asked for.

    Raises:
      ValueError: the index has another width, or more entries, than the store.
    """
    if index.dim != store.dim or index.entries > store.entries:
        raise ValueError(
            f"index: given {index.entries} entries of width {index.dim}, the store has {store.entries} of {store.dim}"
        )
    return _Rescored(index, store, num_candidates)


class _Rescored(BaseIndex):
    def __init__(self, index: Index, store: Store, num_candidates: int):
        super().__init__(index.metric, index.entries, index.dim)
        self._index, self._store, self._num_candidates = index, store, num_candidates

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        found = self._index.search(queries, max(num_neighbors, self._num_candidates))
        scores = exact_scores(queries, self._store, found.ids, self.metric)
        return merge_neighbors([found._replace(scores=scores)], num_neighbors, self.metric)


def exact_scores(
    queries: Float[np.ndarray, "queries dim"], store: Store, ids: Int[np.ndarray, "queries neighbors"], metric: Metric
) -> Float[np.ndarray, "queries neighbors"]:
    """Scores of the given entries from the keys of the store; the score of nothing where an id is -1.

    A distance is the sum of squared differences: `|q|^2 - 2 q k + |k|^2` loses digits where keys are long and near.
    """
    queries = queries.astype(np.promote_types(queries.dtype, np.float32))
    found = ids >= 0
    scores = np.full(ids.shape, nothing(metric), queries.dtype)
    step = max(1, CHUNK_BYTES // max(1, ids.shape[1] * store.dim * queries.itemsize))
    for first in range(0, len(queries) if found.any() else 0, step):
        rows = slice(first, first + step)
        keys = store.keys(np.where(found[rows], ids[rows], 0)).astype(queries.dtype)
        if metric == "squared_l2":
            keys -= queries[rows, None]
            part = np.einsum("qkd,qkd->qk", keys, keys)
        else:
            part = np.einsum("qkd,qd->qk", keys, queries[rows])
        scores[rows] = np.where(found[rows], part, scores[rows])
    return scores


def nothing(metric: Metric) -> float:
    """The score of a neighbour that is not there."""
    return np.inf if metric == "squared_l2" else -np.inf


def pad_neighbors(scores: Any, ids: Any, valid: Any, num_neighbors: int, metric: Metric) -> Neighbors:
    """Neighbours on the host with int64 ids, padded to `num_neighbors` and uniform where they are not valid."""
    width = [(0, 0), (0, num_neighbors - scores.shape[1])]
    valid = np.pad(np.asarray(valid), width)
    scores = np.where(valid, np.pad(np.asarray(scores), width), np.asarray(nothing(metric), scores.dtype))
    return Neighbors(scores, np.where(valid, np.pad(np.asarray(ids, np.int64), width), -1), valid)


def check_metric(metric: str) -> None:
    """Refuses what is no metric."""
    if metric not in get_args(Metric):
        raise ValueError(f"metric: given {metric!r}, allowed: {', '.join(get_args(Metric))}")


def check_num_neighbors(num_neighbors: int) -> None:
    """Refuses fewer than one."""
    if num_neighbors < 1:
        raise ValueError(f"num_neighbors: given {num_neighbors}, allowed: 1 or more")


def check_queries(queries: Any, dim: int, num_neighbors: int) -> np.ndarray:
    """The queries on the host, at least float32.

    Raises:
      ValueError: another width, a query that is not finite, or no neighbour asked for.
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
    """Scores such that the best is the smallest, and nothing the largest."""
    return np.where(valid, scores if metric == "squared_l2" else -scores, np.inf)
