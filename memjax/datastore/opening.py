"""Opening the index of a store with a backend of choice."""

from collections.abc import Callable
from typing import Any

from memjax.datastore.artefacts import artefact_names
from memjax.datastore.exact import ExactIndex, StreamedIndex
from memjax.datastore.faiss import open_faiss
from memjax.datastore.index import Backend, Index, Metric, check_metric, rescore
from memjax.datastore.scann import open_scann
from memjax.datastore.sharded import ShardedIndex
from memjax.datastore.store import Store

__all__ = ["choose_backend", "open_index"]

SMALL_BYTES = 1 << 30
"""Bytes of keys up to which a store without an index is searched exactly."""

OPENERS: dict[Backend, Callable[..., Index]] = {
    "exact": ExactIndex.from_store,
    "streamed": StreamedIndex,
    "sharded": ShardedIndex.from_store,
    "scann": open_scann,
    "faiss": open_faiss,
}


def open_index(
    store: Store,
    backend: str,
    *,
    metric: Metric = "squared_l2",
    exact_scores: bool = False,
    num_candidates: int = 0,
    **options: Any,
) -> Index:
    """Opens an index of a store with a backend: "exact", "streamed", "sharded", or a saved one of "scann" or "faiss".
    With `exact_scores` the scores of `num_candidates` neighbours are computed again from the keys.

    Args:
      store: Store with the keys.
      backend: One of `Backend`. "exact" loads the keys into the memory of a device, "sharded" into that of all devices
        of a mesh. "streamed" reads them from disk for every search. "scann" and "faiss" open the index that
        `build_scann` or `build_faiss` has saved in the store.
      metric: Metric of the scores, "squared_l2" or "inner_product".
      exact_scores: Whether the scores of the neighbours are computed again from the keys of the store.
      num_candidates: Number of candidates for exact scores. See `rescore`.
      **options: Options of the backend. See `ExactIndex.from_store`, `StreamedIndex`, `ShardedIndex.from_store`,
        `open_scann` and `open_faiss`.

    Raises:
      ValueError: The backend or metric is unknown, or the index was not built, is damaged or belongs to another store.
    """
    check_metric(metric)
    if backend not in OPENERS:
        raise ValueError(f"backend: given {backend!r}, allowed: {', '.join(OPENERS)}")
    index = OPENERS[backend](store, metric=metric, **options)
    return rescore(index, store, num_candidates) if exact_scores else index


def choose_backend(store: Store, metric: Metric = "squared_l2") -> str:
    """Returns the name of the backend to search a store with: "scann" or "faiss" if such an index is saved for the
    metric, otherwise "exact". A large store without an index is refused.

    Args:
      store: Store to search.
      metric: Metric of the scores, "squared_l2" or "inner_product".

    Raises:
      ValueError: The store is large and has no index.
    """
    built = [
        name for name in ("scann", "faiss") if any(n.startswith(f"{name}_{metric}") for n in artefact_names(store))
    ]
    size = store.entries * store.header.key_bytes
    if not built and size > SMALL_BYTES:
        allowed = f"up to {SMALL_BYTES:,}; build one (memjax datastore index), or name a backend"
        raise ValueError(f"datastore: {store.path} has no index and {size:,} bytes of keys, allowed: {allowed}")
    return (*built, "exact")[0]
