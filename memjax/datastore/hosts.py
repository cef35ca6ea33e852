"""One index over several processes, for a store that does not fit into the memory of one host."""

import jax
import numpy as np

from memjax.datastore.index import BaseIndex, Index, Neighbors, merge_neighbors

__all__ = ["HostsIndex"]


class HostsIndex(BaseIndex):
    """An index that joins the indices of all JAX processes, each over other entries of one store. All processes have to
    call `search` together, with the same queries.

    Each process searches its own entries, and only the scores and ids of its neighbours are sent to all. With one
    process it gives the results of its own index.

    Attributes:
      entries: Number of entries of all processes.

    Example:
      >>> from memjax.datastore.exact import ExactIndex
      >>> index = HostsIndex(ExactIndex(np.eye(3, dtype=np.float32)))
      >>> index.search(np.array([[0.0, 1.0, 0.0]]), 1).ids.tolist()
      [[1]]
    """

    def __init__(self, index: Index):
        """Joins this process's index with those of the others. All processes have to call it.

        Args:
          index: Index of this process, such as `open_index(store, "scann", part=jax.process_index())`.

        Raises:
          ValueError: The indices of the processes differ in metric or width.
        """
        kinds = _gather(np.array([index.metric == "squared_l2", index.dim, index.entries], np.int64))
        if (kinds[:, :2] != kinds[0, :2]).any():
            raise ValueError("index: given one of another metric or width than another process has, allowed: the same")
        super().__init__(index.metric, int(kinds[:, 2].sum()), index.dim)
        self._index = index

    def _search(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        local_neighbors = self._index.search(queries, num_neighbors)
        scores, ids, valid = (_gather(np.asarray(array)) for array in local_neighbors)
        parts = [Neighbors(*part) for part in zip(scores, ids, valid, strict=True)]
        return merge_neighbors(parts, num_neighbors, self.metric)


def _gather(array: np.ndarray) -> np.ndarray:
    """Gathers an array of every process, `[...]` -> `[processes, ...]`, bit for bit."""
    if jax.process_count() == 1:
        return array[None]
    # The arrays travel as bytes, since JAX would shorten 64-bit numbers.
    from jax.experimental import multihost_utils

    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(data)).reshape(jax.process_count(), -1)
    return np.stack([row.view(array.dtype).reshape(array.shape) for row in np.ascontiguousarray(rows)])
