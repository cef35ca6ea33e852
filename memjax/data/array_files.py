"""Reads arrays of NumPy from .npy and .npz files, whatever is wrong with the file."""

from __future__ import annotations

import os

import numpy as np

from memjax.data.reader_errors import reading

__all__ = ["read_array", "read_arrays"]


def read_array(path: str | os.PathLike[str], form: str, *, mapped: bool = False) -> np.ndarray:
    """Reads the array of a .npy file. With `mapped` it stays on the disk, and is read where it is used.

    Args:
      path: Path of the file.
      form: Expected array in words, such as 'float32 [examples, width]', for the error.
      mapped: Whether the array is memory-mapped, read only.

    Raises:
      UnreadableError: The file is not a .npy, has objects instead of numbers, or is shorter than its header says.
    """
    with reading(path, f"a .npy, {form}"):
        # Mapped first, since a damaged header may ask for more memory than there is.
        array = np.lib.format.open_memmap(path, mode="r")
        return array if mapped else np.array(array)


def read_arrays(path: str | os.PathLike[str], form: str) -> dict[str, np.ndarray]:
    """Reads the arrays of a .npz file by their names.

    Args:
      path: Path of the file.
      form: Expected content in words, for the error.

    Raises:
      UnreadableError: The file is not a .npz, or is damaged.
    """
    with reading(path, form), open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
