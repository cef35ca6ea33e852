"""Files that survive a crash and show damage: written through to the disk, replaced as a whole, with checksums.

JSON files are written and read here, in all parts of memjax.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARTIAL = ".partial"
"""Suffix of the names of files that are being written."""
CHECKSUM = "checksum"
"""Name of the entry of a JSON object that holds the checksum of all its other entries."""
NO_SPACE = "no space is left on the disk"
FULL = {
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
    errno.EFBIG: "the file is larger than its disk or ulimit allows",
}
"""Error number of a full disk -> what it means"""
AS_WRITTEN = "allowed: the JSON file that was written there"
"""Advice about a damaged file"""
MOST_LEVELS = 100
"""Largest number of lists and objects inside each other in a JSON file. memjax writes about 10."""


class DamagedError(ValueError):
    """An error for a file whose contents are not those that memjax wrote. The message names the file."""


class DiskFull(OSError):
    """An error for a full disk, an `OSError` whose message names the file and says how to continue."""


class DamageWarning(UserWarning):
    """A warning about a damaged part of a file that can be read without it. The message names the file."""


def write_json(path: Path, value: Any, *, indent: int | None = 2, end: str = "\n", checked: bool = True) -> None:
    """Writes a JSON value to a file, in place of an old one. An object gets the entry `checksum`, which `read_json`
    compares and removes. A crash leaves the old file or the new one, never a part.

    Args:
      path: File to write, in a folder that exists.
      value: JSON value. An object must not have an entry `checksum`.
      indent: Number of spaces of each level. None for a single line.
      end: Text after the value.
      checked: Whether to add the checksum to an object. False for the files of other programs.
    """
    if checked and isinstance(value, dict):
        value = {**value, CHECKSUM: checksum(value)}
    replace_file(path, (json.dumps(value, indent=indent) + end).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Writes bytes to a file, in place of an old one. A crash leaves the old file or the new one, never a part."""
    # Hosts that share a disk may write the same file at once, so each has its own temporary file.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        write_file(temporary, data)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    sync_to_disk(path.parent)


def read_json(path: Path, *, advice: str = AS_WRITTEN, needs_checksum: bool = False, compare: bool = True) -> Any:
    """Reads the value of a JSON file, without its checksum. Returns None if there is no file. `advice` ends the line
    about damage.

    Args:
      path: File to read.
      advice: End of the message about a damaged file, such as "delete it".
      needs_checksum: Whether an object without a checksum is damaged. False for files that earlier versions may have
        written without one.
      compare: Whether to compare the checksum. False for a file that may have been edited.

    Raises:
      DamagedError: The file is not as it was written.
    """
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # UTF-8, or JSON
        raise DamagedError(f"{path}: damaged ({error}), {advice}") from None
    if _is_nested_deeply(value):  # what walks through the value would exceed the recursion limit
        raise DamagedError(f"{path}: damaged (it is nested too deeply), {advice}")
    if isinstance(value, dict) and (needs_checksum or CHECKSUM in value):
        if value.pop(CHECKSUM, None) != checksum(value) and compare:
            raise DamagedError(f"{path}: damaged (it is not what memjax wrote), {advice}")
    return value


def _is_nested_deeply(value: Any) -> bool:
    """Returns whether a JSON value has more than `MOST_LEVELS` lists and objects inside each other."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = list(itertools.chain.from_iterable(parts))
    return bool(level)


def describe_full_disk(error: BaseException) -> str:
    """Describes an error that says that a disk, a quota or a file is full, as the system or TensorStore say it, in a
    few words. '' for other errors.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        return FULL[error.errno]
    return next((text for code, text in FULL.items() if f"os_error_code='{code}'" in str(error)), "")


@contextlib.contextmanager
def explain_full_disk(path: Path, message: str = "free some and run the same command again") -> Iterator[None]:
    """Context manager that turns the error of a full disk or quota into `DiskFull`, which names the file `path` and
    ends with `message`. Other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        reason = describe_full_disk(error)
        if isinstance(error, DiskFull) or not reason:
            raise
        raise DiskFull(errno.ENOSPC, f"{reason}; {message}", str(path)) from error


def has_checksum(path: Path) -> bool:
    """Returns whether the JSON object in an intact file carries a checksum. Earlier versions wrote none."""
    value = json.loads(path.read_text("utf-8"))
    return isinstance(value, dict) and CHECKSUM in value


def checksum(value: Any) -> str:
    """Returns the SHA-256 of a value that JSON can hold, in hexadecimal digits. The order of the names in an object has
    no effect.

    Example:
      >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
      True
    """
    # As it is read again: keys are strings and tuples are lists.
    return hashlib.sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode()).hexdigest()


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of the contents of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_unfinished(path: Path, name: str) -> bool:
    """Returns whether a file is what a crash has left of replacing the file called `name`.

    Example:
      >>> is_unfinished(Path("run/config.json.0f3a9c21.partial"), "config.json")
      True
    """
    if path.name == f"{Path(name).stem}.tmp":  # of earlier versions
        return True
    return path.name.startswith(f"{name}.") and path.name.endswith(PARTIAL)


def write_file(path: Path, data: bytes) -> None:
    """Writes bytes to a file, in place of old contents, and waits until they are on the disk. The name of a new file is
    only safe after `sync_to_disk` of its folder.
    """
    with explain_full_disk(path):
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


def sync_to_disk(path: Path) -> None:
    """Waits until the contents of a file, or the names of the files in a folder, are on the disk and survive a loss of
    power.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
