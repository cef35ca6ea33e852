"""JSON files of stores, which must have a checksum, and locks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from memjax.durable_files import DamagedError, DiskFull, checksum, read_json, write_json

__all__ = ["DiskFull"]


def write_checked_json(path: Path, value: dict[str, Any]) -> None:
    """Writes the JSON object `value`, which has no name `checksum`, to a file, with a checksum added to it. See
    `memjax.durable_files.write_json`.
    """
    write_json(path, value, indent=1)


def read_checked_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that `write_checked_json` wrote, and compares it with its checksum. Returns the object with
    the entry `checksum`.

    Raises:
      ValueError: The file is not as it was written.
    """
    with contextlib.suppress(DamagedError):
        value = read_json(path, needs_checksum=True)
        if isinstance(value, dict):
            return {**value, "checksum": checksum(value)}
    raise DamagedError(f"datastore: {path} is damaged: it is not what was written; restore it, or build it anew")


def view_as_bytes(array: np.ndarray) -> memoryview:
    """Returns the memory of a contiguous array of any dtype as a `memoryview` of bytes, without a copy."""
    # The view as bytes is for bfloat16, which has no buffer of its own.
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


@contextlib.contextmanager
def lock_file(path: Path, what: str) -> Iterator[None]:
    """Context manager that holds a lock on the file `path`, and raises `ValueError` if another process holds it. `what`
    names the locked thing in the message.

    Args:
      path: Lock file, which is created.
      what: Name of the locked thing in the error message.

    Raises:
      ValueError: Another process holds the lock.
    """
    import fcntl

    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"datastore: {what} is being written by another process; wait for it, or end it") from None
        yield
