"""Nearest-neighbour search on the host with faiss, if it is installed: exact, inverted lists, product quantisation.

The kNN-LM paper (Khandelwal et al. 2020, https://arxiv.org/abs/1911.00172) uses 4096 inverted lists and 64 bytes per
key, trained on a million keys, with 32 lists searched: `build_faiss(store, factory="IVF4096,PQ64")`, `num_probes=32`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from memjax.datastore.artefacts import open_artefact, save_artefact
from memjax.datastore.index import BaseIndex, Metric, Neighbors, check_metric, pad_neighbors
from memjax.datastore.store import Store

__all__ = ["FaissIndex", "build_faiss", "open_faiss"]


class FaissIndex(BaseIndex):
    """An index, exact or approximate, that faiss searches in the memory of the host. `build_faiss` builds one,
    `open_faiss` opens a saved one.
    """

    def __init__(self, index: Any, metric: Metric, *, num_probes: int = 0):
        """Wraps an index of faiss.

        Args:
          index: Index of faiss.
          metric: Metric of the index.
          num_probes: Number of inverted lists to search. 0 = as the index is set.
        """
        super().__init__(metric, index.ntotal, index.d)
        self._index = index
        if num_probes:
            import faiss

            faiss.extract_index_ivf(index).nprobe = num_probes

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        with _matrix_products():
            scores, ids = self._index.search(np.ascontiguousarray(queries, np.float32), num_neighbors)
        return pad_neighbors(scores, ids, ids >= 0, num_neighbors, self.metric)


def build_faiss(
    store: Store,
    *,
    metric: Metric = "squared_l2",
    factory: str = "Flat",
    training_entries: int = 1_000_000,
    num_probes: int = 32,
    seed: int = 1,
    save: bool = True,
) -> FaissIndex:
    """Builds a faiss index of all keys of a store and returns it. With `save` it is also saved in the store's folder.
    `factory` is a string for `faiss.index_factory`, `num_probes` the number of inverted lists to search.

    Args:
      store: Store with the keys. Each block is compared with its checksum.
      metric: "squared_l2" or "inner_product".
      factory: Kind of index, a string for `faiss.index_factory`.
      training_entries: Number of random entries that the index is trained on.
      num_probes: Number of inverted lists to search, if the index has any.
      seed: Seed of the random choice of entries.
      save: Whether to save the index in the folder of the store.

    Raises:
      ValueError: The metric is unknown, faiss does not know the factory string, or the store is damaged.
      DiskFull: No space is left. An index that was saved before is still there.
    """
    import faiss

    check_metric(metric)
    measure = faiss.METRIC_L2 if metric == "squared_l2" else faiss.METRIC_INNER_PRODUCT
    try:
        index = faiss.index_factory(store.dim, factory, measure)
    except RuntimeError as error:
        raise ValueError(f"factory: given {factory!r}, allowed: what faiss.index_factory knows ({error})") from None
    if not index.is_trained:
        index.train(store.keys(store.sample(training_entries, seed)).astype(np.float32))
    for block in store.blocks():
        index.add(block.keys.astype(np.float32))
    if faiss.try_extract_index_ivf(index) is None:
        num_probes = 0
    wrapped = FaissIndex(index, metric, num_probes=num_probes)
    if save:
        write = lambda folder: faiss.write_index(index, str(folder / "index.faiss"))
        about = {"metric": metric, "factory": factory, "faiss": faiss.__version__}
        save_artefact(store, f"faiss_{metric}", about, write)
    return wrapped


def open_faiss(store: Store, *, metric: Metric = "squared_l2", num_probes: int = 0) -> FaissIndex:
    """Opens the index for `metric` that `build_faiss` has saved in a store, and returns it. `num_probes` is the number
    of inverted lists to search.

    Args:
      store: Store whose keys the index was built from.
      metric: Metric that the index was built for.
      num_probes: Number of inverted lists to search. 0 = as it was built.

    Raises:
      ValueError: There is no such index, a file is damaged, or the index belongs to other keys.
    """
    import faiss

    check_metric(metric)
    folder, _ = open_artefact(store, f"faiss_{metric}")
    return FaissIndex(faiss.read_index(str(folder / "index.faiss")), metric, num_probes=num_probes)


@contextlib.contextmanager
def _matrix_products() -> Iterator[None]:
    """Lets faiss compare a batch of queries by a matrix product, several times faster than its default."""
    import faiss

    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 20
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before
