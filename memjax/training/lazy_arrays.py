"""Arrays on the host that are read when they are needed and not kept, so that a model may be larger than the memory."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
    """An array with a known shape and dtype whose values a function reads or computes. Every use as a NumPy array calls
    the function again.

    Attributes:
      shape: Shape of the array.
      dtype: Dtype of the array.
      read: Function `read() -> array` that returns the values, a NumPy array of this shape and dtype.

    Example:
      >>> table = LazyArray((2, 2), np.dtype("float32"), lambda: np.ones((2, 2), np.float32))
      >>> len(table), table.size, table.nbytes, table[0].tolist()
      (2, 4, 16, [1.0, 1.0])
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the values."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.read()[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Reads the values, in another `dtype` if one is given. `copy` has no effect, since they are always new."""
        del copy
        array = self.read()
        return array if dtype is None else array.astype(dtype, copy=False)
