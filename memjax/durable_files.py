"""Files that survive a crash: written through to the disk and replaced as a whole.

JSON files are written and read here, in all parts of memjax.
"""

import json
import os
import uuid
from pathlib import Path
from typing import Any

PARTIAL = ".partial"
"""Suffix of the names of files that are being written."""


def write_json(path: Path, value: Any, *, indent: int | None = 2, end: str = "\n") -> None:
    """Writes a JSON value to a file, in place of an old one. A crash leaves the old file or the new one, never a part.

    Args:
      path: File to write, in a folder that exists.
      value: JSON value.
      indent: Number of spaces of each level. None for a single line.
      end: Text after the value.
    """
    # Hosts that share a disk may write the same file at once, so each has its own temporary file.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        write_file(temporary, (json.dumps(value, indent=indent) + end).encode())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    sync_to_disk(path.parent)


def read_json(path: Path) -> Any:
    """Reads the value of a JSON file. Returns None if there is no file.

    Raises:
      ValueError: The file is damaged.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:  # UTF-8, or JSON
        raise ValueError(f"{path}: damaged ({error}), allowed: the JSON file that was written there") from None


def is_unfinished(path: Path, name: str) -> bool:
    """Returns whether a file is what a crash has left of writing the JSON file called `name`.

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
