"""Small files that are old or new and never half of it, data that is on the disk when it is said to be, full disks.

A JSON file written here carries the checksum of its own contents, so that a flipped bit in it is noticed too.
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
"""end of the names of files that are being written"""


class DiskFull(OSError):
    """No space is left; names the file, and says what is there and how to go on."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes an object with its checksum; after a crash there is the old file or the new one.

    Args:
      path: of the file.
      value: a JSON object without the name `checksum`.
    """
    text = json.dumps({**value, "checksum": checksum(value)}, indent=1) + "\n"
    # Hosts that share a disk may write the same file at once: each has a temporary file of its own.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        write_file(temporary, text.encode())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    sync(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote, with its `checksum`.

    Raises:
      ValueError: the file is not what was written.
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
    """SHA-256 of a JSON value, in hexadecimal digits; the order of names in an object does not count.

    Example:
      >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
      True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Writes a file that survives a loss of power; its name does after `sync` of the folder."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes everything at the end of a file (`os.write` may write a part)."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, without a copy and for every dtype (bfloat16 has no buffer of its own)."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def sync(path: Path) -> None:
    """Makes new names in a folder, or what somebody else wrote to a file, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_full_disk(path: Path, message: str) -> Iterator[None]:
    """Gives the error of a full disk (or quota) the file and a message; lets all others pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or isinstance(error, DiskFull):
            raise
        raise DiskFull(error.errno, f"no space is left on the disk; {message}", str(path)) from error


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """One process at a time; the lock falls when the process ends, however that happens.

    Raises:
      ValueError: another process holds it.
    """
    import fcntl

    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"datastore: {what} is being written by another process; wait for it, or end it") from None
        yield
