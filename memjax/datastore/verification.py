"""Recall of an index: the share of the neighbours from exact search that the index finds too."""

from typing import Any

import numpy as np
from jaxtyping import Shaped

from memjax.datastore.exact import StreamedIndex
from memjax.datastore.index import Index, Neighbors, check_num_neighbors, exact_scores
from memjax.datastore.store import Store

__all__ = ["measure_recall"]

TOLERANCE = 1e-5
"""Tolerance of a score, relative to the size of the numbers it is computed from. Entries as near as the last true
neighbour within it count as found."""


def measure_recall(
    index: Index,
    store: Store,
    sample: int | Shaped[Any, "queries dim"],
    num_neighbors: int,
    *,
    seed: int = 0,
    true: Neighbors | None = None,
) -> float:
    """Returns the share, from 0 to 1, of the true nearest entries that an index finds. `sample` holds queries, or is a
    number of keys to draw as queries. `true` are known true neighbours.

    The true neighbours come from exact search in the whole store. Texts repeat themselves, so many keys are equal. So
    an entry counts as found if it is as near as the last of the true neighbours, whatever its number.

    Args:
      index: Any index of the entries of the store.
      store: Store with the keys, which is read once.
      sample: Queries `[queries, dim]`, preferably of a text that is not in the store. Or the number of keys of the
        store to draw as queries, an easier test because each finds itself.
      num_neighbors: Number of neighbours of each query.
      seed: Seed of the random choice of keys.
      true: Neighbours that exact search finds for the same queries, to compare several indices. None = they are
        searched for.

    Raises:
      ValueError: The index has another width than the store, or there are no queries.
    """
    check_num_neighbors(num_neighbors)
    queries = store.keys(store.sample(sample, seed)) if isinstance(sample, int) else np.asarray(sample)
    queries = queries.astype(np.promote_types(queries.dtype, np.float32))
    if not len(queries) or not store.entries:
        raise ValueError(f"sample: {len(queries)} queries for {store.entries} entries, allowed: at least one of each")
    sign = 1 if index.metric == "squared_l2" else -1
    if true is None:
        true = StreamedIndex(store, metric=index.metric).search(queries, num_neighbors)
    neighbors = index.search(queries, num_neighbors)
    ids = _mask_repeated_ids(neighbors.ids)
    scores = sign * exact_scores(queries, store, ids, index.metric)
    limits = np.max(sign * true.scores, axis=1, where=true.valid, initial=-np.inf)
    sizes = np.maximum(np.sum(np.square(queries), axis=1), np.abs(limits))
    hits = (ids >= 0) & (scores <= (limits + TOLERANCE * sizes)[:, None])
    return float(np.minimum(hits.sum(axis=1), true.valid.sum(axis=1)).sum() / true.valid.sum())


def _mask_repeated_ids(ids: np.ndarray) -> np.ndarray:
    """Replaces repeated ids in each row by -1, and sorts the ids."""
    ids = np.sort(ids, axis=1)
    return np.where(np.pad(ids[:, 1:] == ids[:, :-1], [(0, 0), (1, 0)]), -1, ids)
