"""How much of what exact search finds an index finds too."""

from typing import Any

import numpy as np
from jaxtyping import Shaped

from memjax.datastore.exact import StreamedIndex
from memjax.datastore.index import Index, Neighbors, check_num_neighbors, exact_scores
from memjax.datastore.store import Store

__all__ = ["recall"]

TOLERANCE = 1e-5
"""of a score, relative to the size of the numbers it is made of: entries as near as the last true neighbour count"""


def recall(
    index: Index,
    store: Store,
    sample: int | Shaped[Any, "queries dim"],
    num_neighbors: int,
    *,
    seed: int = 0,
    true: Neighbors | None = None,
) -> float:
    """The share of the nearest entries of a sample of queries that an index finds.

    The truth comes from exact search in the whole store. Texts repeat themselves, so many keys are equal: an entry
    counts as found where it is as near as the last of the true neighbours, whatever its number.

    Args:
      index: any, of the entries of the store.
      store: with the keys; it is read once.
      sample: queries `[queries, dim]`, best of a text that is not in the store; or how many keys of the store to draw
        (each finds itself, so that is the easier test).
      num_neighbors: of each query.
      seed: of the draw.
      true: what exact search finds for the same queries, for recalls of several indices; None = it is searched.

    Raises:
      ValueError: an index of another width, or no queries.
    """
    check_num_neighbors(num_neighbors)
    queries = store.keys(store.sample(sample, seed)) if isinstance(sample, int) else np.asarray(sample)
    queries = queries.astype(np.promote_types(queries.dtype, np.float32))
    if not len(queries) or not store.entries:
        raise ValueError(f"sample: {len(queries)} queries for {store.entries} entries, allowed: at least one of each")
    sign = 1 if index.metric == "squared_l2" else -1
    if true is None:
        true = StreamedIndex(store, metric=index.metric).search(queries, num_neighbors)
    found = index.search(queries, num_neighbors)
    ids = _without_repetitions(found.ids)
    scores = sign * exact_scores(queries, store, ids, index.metric)
    limits = np.max(sign * true.scores, axis=1, where=true.valid, initial=-np.inf)
    sizes = np.maximum(np.sum(np.square(queries), axis=1), np.abs(limits))
    hits = (ids >= 0) & (scores <= (limits + TOLERANCE * sizes)[:, None])
    return float(np.minimum(hits.sum(axis=1), true.valid.sum(axis=1)).sum() / true.valid.sum())


def _without_repetitions(ids: np.ndarray) -> np.ndarray:
    """The ids of each row once; -1 in the place of the others."""
    ids = np.sort(ids, axis=1)
    return np.where(np.pad(ids[:, 1:] == ids[:, :-1], [(0, 0), (1, 0)]), -1, ids)
