"""Indices of several processes as one: a store that outgrows the memory of one host."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from memjax.datastore.index import Index, Metric, Neighbors, check_queries, merge_neighbors

__all__ = ["HostsIndex"]


class HostsIndex:
    """The index of this process together with those of all others, each of other entries of one store.

    Every process calls `search` with the same queries, as a step of a program on several hosts does; each searches its
    own entries, and scores and ids of what was found, and nothing else, go to all. With one process it is its index.

    Attributes:
      metric: of the scores.
      entries: of all processes.
      dim: of keys and queries.

    Example:
      >>> from memjax.datastore.exact import ExactIndex
      >>> index = HostsIndex(ExactIndex(np.eye(3, dtype=np.float32)))
      >>> index.search(np.array([[0.0, 1.0, 0.0]]), 1).ids.tolist()
      [[1]]
    """

    metric: Metric

    def __init__(self, index: Index):
        """Takes this process's part, such as `open_index(store, "scann", part=jax.process_index())`.

        Raises:
          ValueError: parts of several metrics or widths.
        """
        kinds = _gather(np.array([index.metric == "squared_l2", index.dim], np.int32))
        if (kinds != kinds[0]).any():
            raise ValueError("index: given one of another metric or width than another process has, allowed: the same")
        self.metric, self.dim = index.metric, index.dim
        self.entries = int(_gather(np.array([index.entries], np.int64)).sum())
        self._index = index

    def search(self, queries: Shaped[Any, "queries dim"], num_neighbors: int) -> Neighbors:
        queries = check_queries(queries, self.dim, num_neighbors)
        own = self._index.search(queries, num_neighbors)
        scores, ids, valid = (_gather(np.asarray(array)) for array in own)
        parts = [Neighbors(*part) for part in zip(scores, ids, valid, strict=True)]
        return merge_neighbors(parts, num_neighbors, self.metric)


def _gather(array: np.ndarray) -> np.ndarray:
    """`[...]` of every process -> `[processes, ...]`, bit for bit: as bytes, since JAX would shorten 64-bit numbers."""
    if jax.process_count() == 1 or not array.size:
        return np.stack([array] * jax.process_count())
    from jax.experimental import multihost_utils

    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(data)).reshape(jax.process_count(), -1)
    return np.stack([row.view(array.dtype).reshape(array.shape) for row in np.ascontiguousarray(rows)])
