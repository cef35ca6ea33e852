"""The folder of a token file: its descriptions, its lock, and what becomes of a damaged one."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memjax.data.checked_files import DAMAGED, report_damage
from memjax.durable_files import DamagedError, checksum, is_unfinished, read_json, write_json


def is_made_from(folder: Path, header: Mapping[str, Any]) -> bool:
    """Returns whether a folder is a token file, possibly unfinished, with the values of `header`.

    Raises:
      ValueError: The folder contains files but is not a token file.
      DamagedError: The header is damaged or missing.
    """
    existing = read_json(folder / "header.json")
    if existing is None:
        entries = [entry for entry in folder.iterdir() if not is_unfinished(entry, "header.json")]
        strange = [entry.name for entry in entries if entry.name != ".lock"]
        if "tokens.bin" in strange:  # the last but one that `set_aside` moves
            raise DamagedError(f"path: {folder} is damaged (it has no header.json)")
        if strange:
            raise ValueError(f"path: {folder} holds {strange[0]} and is not a token file; give another folder")
        return False
    return all(existing.get(name) == value for name, value in header.items())


def read_descriptions(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """Reads the header, the totals and the checksums of the blocks of a finished token file. The checksums are None
    where an earlier version wrote none.

    Raises:
      DamagedError: A file is damaged, missing, or that of another token file.
    """
    if (folder / DAMAGED).exists():
        raise DamagedError(f"path: {folder} is damaged (a block was not what was written)")
    header, done, blocks = (read_json(folder / f"{name}.json") for name in ("header", "done", "blocks"))
    if not isinstance(header, dict) or not isinstance(done, dict):
        raise report_damage(folder / "header.json", "it is missing or no description of a token file")
    if "blocks" in done:
        for name, value in {"header": header, "blocks": blocks}.items():
            if value is None or checksum(value) != done[name]:
                raise report_damage(folder / f"{name}.json", "it is missing or that of another token file")
    return header, done, blocks


def set_aside(folder: Path) -> Path:
    """Moves everything in a damaged folder to a new folder beside it, whose path is returned."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    aside.mkdir()
    for entry in _in_order_of_removal(folder):
        entry.rename(aside / entry.name)
    return aside


def _in_order_of_removal(folder: Path) -> list[Path]:
    """Returns the entries of the folder of a token file, without its lock, in the order in which they are removed, so
    that a process that is killed in between leaves a folder that is prepared again.
    """
    # While there is a done.json, a folder without documents.bin is damaged, and after it no document is complete.
    # Otherwise the next writer would take damaged documents for complete. The header says to the end what the rest is.
    order = [DAMAGED, "documents.bin", "done.json", "", "tokens.bin", "header.json"]
    entries = [entry for entry in folder.iterdir() if entry.name != ".lock"]
    return sorted(entries, key=lambda entry: (order.index(entry.name if entry.name in order else ""), entry.name))


def start_folder(folder: Path, header: dict[str, Any]) -> None:
    """Empties a folder and writes the header of a new token file."""
    for entry in _in_order_of_removal(folder):
        if entry.name != "header.json":  # it is replaced
            entry.unlink()
    # Annotations are int32: a distance, a class, a flag.
    types = {"tokens": "<u2" if header["vocab_size"] <= 1 << 16 else "<i4"}
    types |= dict.fromkeys(header["annotations"], "<i4")
    write_json(folder / "header.json", {**header, "types": types}, indent=1, end="")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Context manager that locks the folder of a token file for one writer. The lock ends with its process."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
