"""Files whose blocks have checksums, which are compared when a block is first read.

A file of 100 GB is opened at once, and a process reads and compares its own part only.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.durable_files import DamagedError

BLOCK_BYTES = 4 << 20
"""Number of bytes of a block"""
DAMAGED = "damaged"
"""Name of an empty file in a folder in which a damaged block has been found"""


def block_checksums(path: Path) -> list[str]:
    """Returns the SHA-256 of every block of a file, in hexadecimal digits. The last block may be shorter."""
    with open(path, "rb") as file:
        return [hashlib.sha256(block).hexdigest() for block in iter(lambda: file.read(BLOCK_BYTES), b"")]


class CheckedFile:
    """A memory-mapped file of numbers, each block of which is compared with its checksum when it is first read.

    Attributes:
      path: The file.
    """

    def __init__(self, path: Path, dtype: Any, checksums: Sequence[str] | None):
        """Maps a file.

        Args:
          path: File of numbers, one after the other, at least one.
          dtype: Dtype of the numbers.
          checksums: SHA-256 of every block, from `block_checksums`. None for a file of an earlier version without
            checksums, which is not compared.
        """
        self.path, self._checksums = path, checksums
        self._bytes = np.memmap(path, np.uint8, "r")
        self._array = self._bytes.view(np.dtype(dtype))
        blocks = -(-len(self._bytes) // BLOCK_BYTES)
        if checksums is not None and len(checksums) != blocks:
            raise report_damage(path, f"it has {blocks} blocks, not {len(checksums)}")
        self._is_compared = np.full(blocks, checksums is None)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Returns a range of the numbers, with a step of 1, without a copy.

        Raises:
          DamagedError: A block of the range is not as it was written.
        """
        start, stop, _ = part.indices(len(self._array))
        size = self._array.itemsize
        first, last = start * size // BLOCK_BYTES, -(-stop * size // BLOCK_BYTES)
        if not self._is_compared[first:last].all():
            self.compare(first, last)
        return self._array[start:stop]

    def compare(self, first: int = 0, last: int | None = None) -> None:
        """Compares the blocks from number `first` up to `last`, or to the end of the file, with their checksums.

        Raises:
          DamagedError: A block is not as it was written.
        """
        for number in (first + np.flatnonzero(~self._is_compared[first:last])).tolist():
            block = self._bytes[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            assert self._checksums is not None
            if hashlib.sha256(block.data).hexdigest() != self._checksums[number]:
                begin = number * BLOCK_BYTES
                raise report_damage(self.path, f"bytes {begin:,} to {begin + len(block):,} are not what was written")
            self._is_compared[number] = True


def read_checked(path: Path, checksums: Sequence[str] | None) -> bytes:
    """Reads a whole file, and compares it with the checksums of its blocks. None compares nothing.

    Raises:
      DamagedError: The file is not as it was written.
    """
    content = path.read_bytes()
    blocks = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    if checksums is not None and [hashlib.sha256(block).hexdigest() for block in blocks] != list(checksums):
        raise report_damage(path, "it is not what was written")
    return content


def report_damage(path: Path, reason: str) -> DamagedError:
    """Makes the error about a damaged file, and marks its folder, so that it is prepared again."""
    with contextlib.suppress(OSError):  # of a folder that cannot be written
        (path.parent / DAMAGED).touch()
    return DamagedError(f"path: {path} is damaged ({reason}); run the command again, which prepares it anew")
