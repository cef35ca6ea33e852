"""Crash-safe files: replaced as a whole, written through to the disk, and explained when the disk is full.

A JSON file written here carries the checksum of its own contents, so that even a flipped bit is noticed.
"""

import contextlib
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DiskFull"]

PARTIAL = ".partial"
"""Suffix of the names of files that are being written."""


class DiskFull(OSError):
    """An error for a full disk, an `OSError` whose message names the file and says how to continue."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes the JSON object `value` to a file, with a checksum added to it. A crash leaves the old file or the new
    one, never a part.

    Args:
      path: File to write.
      value: JSON object without the name `checksum`.
    """
    text = json.dumps({**value, "checksum": checksum(value)}, indent=1) + "\n"
    # Hosts that share a disk may write the same file at once, so each has its own temporary file.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        write_file(temporary, text.encode())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    sync_to_disk(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that `write_json` wrote, and compares it with its checksum. Returns the object with the entry
    `checksum`.

    Raises:
      ValueError: The file is not as it was written.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
        intact = value.get("checksum") == checksum({k: v for k, v in value.items() if k != "checksum"})
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError):
        intact, value = False, {}
    if not intact:
        raise ValueError(f"datastore: {path} is damaged: it is not what was written; restore it, or build it anew")
    return value


def checksum(value: Any) -> str:
    """Returns the SHA-256 of a value that JSON can hold, in hexadecimal digits. The order of the names in an object has
    no effect.

    Example:
      >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
      True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of the contents of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Writes bytes to a file, in place of old contents, and waits until they are on the disk. The name of a new file is
    only safe after `sync_to_disk` of its folder.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all bytes of `data` to an open file descriptor, at its position, where a single `os.write` may write only
    some.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def view_as_bytes(array: np.ndarray) -> memoryview:
    """Returns the memory of a contiguous array of any dtype as a `memoryview` of bytes, without a copy."""
    # The view as bytes is for bfloat16, which has no buffer of its own.
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def sync_to_disk(path: Path) -> None:
    """Waits until the contents of a file, or the names of the files in a folder, are on the disk and survive a loss of
    power.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_full_disk(path: Path, message: str) -> Iterator[None]:
    """Context manager that turns the `OSError` of a full disk or quota into `DiskFull`, which names the file `path` and
    ends with `message`. Other errors pass unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or isinstance(error, DiskFull):
            raise
        raise DiskFull(error.errno, f"no space is left on the disk; {message}", str(path)) from error


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
