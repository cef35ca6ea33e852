"""Opens the index of a store, whatever searches it."""

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
"""of keys that are searched exactly where no index was built"""

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
    """An index of a store.

    Args:
      store: its keys.
      backend: one of `Backend`. "exact" loads the keys into the memory of a device, "sharded" into that of all devices
        of a mesh; "streamed" reads them from disk for every search; "scann" and "faiss" open what `build_scann` or
        `build_faiss` has saved in the store.
      metric: of the scores.
      exact_scores: score what was found again with the keys of the store.
      num_candidates: see `rescore`.
      **options: of the backend: see `ExactIndex.from_store`, `StreamedIndex`, `ShardedIndex.from_store`, `open_scann`,
        `open_faiss`.

    Raises:
      ValueError: an unknown backend or metric, or an index that was not built, is damaged or of another store.
    """
    check_metric(metric)
    if backend not in OPENERS:
        raise ValueError(f"backend: given {backend!r}, allowed: {', '.join(OPENERS)}")
    index = OPENERS[backend](store, metric=metric, **options)
    return rescore(index, store, num_candidates) if exact_scores else index


def choose_backend(store: Store, metric: Metric = "squared_l2") -> str:
    """What a store is best searched with: an index that was built for it, or exactly where it is small.

    Args:
      store: which.
      metric: of the scores.

    Raises:
      ValueError: a large store without an index.
    """
    built = [
        name for name in ("scann", "faiss") if any(n.startswith(f"{name}_{metric}") for n in artefact_names(store))
    ]
    size = store.entries * store.header.key_bytes
    if not built and size > SMALL_BYTES:
        allowed = f"up to {SMALL_BYTES:,}; build one (memjax datastore index), or name a backend"
        raise ValueError(f"datastore: {store.path} has no index and {size:,} bytes of keys, allowed: {allowed}")
    return (*built, "exact")[0]
