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
    """An error for a full disk. It names the file, and says what is already written and how to continue."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object with its checksum. A crash leaves either the old file or the new one.

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
    """Reads a JSON object that `write_json` wrote, including its `checksum`.

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
    """Returns the SHA-256 of a JSON value in hexadecimal digits. The order of names in an object has no effect.

    Example:
      >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
      True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Writes a file whose contents survive a loss of power. Its name survives after `sync_to_disk` of the folder."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all bytes at the end of a file, where `os.write` may write only some."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def view_as_bytes(array: np.ndarray) -> memoryview:
    """Returns the bytes of a contiguous array of any dtype without a copy."""
    # The view as bytes is for bfloat16, which has no buffer of its own.
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def sync_to_disk(path: Path) -> None:
    """Makes new names in a folder, or the contents of a file that another writer wrote, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_full_disk(path: Path, message: str) -> Iterator[None]:
    """Turns errors of a full disk or quota into `DiskFull` with a file and a message. Other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or isinstance(error, DiskFull):
            raise
        raise DiskFull(error.errno, f"no space is left on the disk; {message}", str(path)) from error


@contextlib.contextmanager
def lock_file(path: Path, what: str) -> Iterator[None]:
    """Locks a file, so that one process at a time runs the block. The lock ends with the process, however it ends.

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
