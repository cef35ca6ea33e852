"""Opens the index of a store, whatever searches it."""

from typing import Any, get_args

from memjax.datastore.exact import ExactIndex, StreamedIndex
from memjax.datastore.faiss import open_faiss
from memjax.datastore.index import Backend, Index, Metric, check_metric, rescore
from memjax.datastore.scann import open_scann
from memjax.datastore.sharded import ShardedIndex
from memjax.datastore.store import Store

__all__ = ["open_index"]


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
    match backend:
        case "exact":
            index = ExactIndex.from_store(store, metric=metric, **options)
        case "streamed":
            index = StreamedIndex(store, metric=metric, **options)
        case "sharded":
            index = ShardedIndex.from_store(store, metric=metric, **options)
        case "scann":
            index = open_scann(store, metric=metric, **options)
        case "faiss":
            index = open_faiss(store, metric=metric, **options)
        case _:
            raise ValueError(f"backend: given {backend!r}, allowed: {', '.join(get_args(Backend))}")
    return rescore(index, store, num_candidates) if exact_scores else index
