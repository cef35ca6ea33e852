"""Saved indices in the folder of a store, which are complete or absent, and checked when they are opened.

    indices/NAME.json       description, fingerprint of the store, size and SHA-256 of each file; written last
    indices/NAME-xxxxxxxx/  files that the library of the backend has written

The JSON file names the folder. Building again writes another folder and replaces the JSON file. A folder that no JSON
file names is left over from an interrupted build, and the next build with that name deletes it.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memjax.datastore.files import (
    lock_file,
    read_checked_json,
    write_checked_json,
)
from memjax.datastore.plan import free_bytes
from memjax.datastore.store import Store
from memjax.durable_files import DiskFull, explain_full_disk, file_checksum, sync_to_disk


def save_artefact(
    store: Store, name: str, about: dict[str, Any], write: Callable[[Path], None], expected_bytes: int = 0
) -> None:
    """Saves an index in the folder of a store, in place of an index of the same name. The function `write(folder)`
    writes its files, `about` is a JSON object that describes it, `expected_bytes` checks the free space.

    Args:
      store: Store that the index belongs to.
      name: Name of the index.
      about: Description of the index, a JSON object that `open_artefact` returns.
      write: Function that writes the files of the index into an empty folder.
      expected_bytes: Approximate size of the files, for checking the free space first.

    Raises:
      ValueError: Another process is saving an index of that name.
      DiskFull: No space is left. The old index is still there.
    """
    indices = store.path / "indices"
    hint = f"free some and build the index {name} again"
    with explain_full_disk(indices, hint):
        indices.mkdir(exist_ok=True)
        with lock_file(indices / f".{name}.lock", f"index {name} of {store.path}"):
            remove_leftovers(store, name)
            folder = indices / f"{name}-{uuid.uuid4().hex[:8]}"
            folder.mkdir()
            try:
                if free_bytes(folder) < expected_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                _write(folder, write, hint)
                files = {}
                for path in sorted(folder.iterdir()):
                    sync_to_disk(path)
                    files[path.name] = {"bytes": path.stat().st_size, "sha256": file_checksum(path)}
                sync_to_disk(folder)
                value = {"about": about, "store": store.fingerprint, "folder": folder.name, "files": files}
                write_checked_json(indices / f"{name}.json", value)
            except Exception:
                shutil.rmtree(folder, ignore_errors=True)  # its files may have filled the disk
                raise
            remove_leftovers(store, name)


def open_artefact(store: Store, name: str) -> tuple[Path, dict[str, Any]]:
    """Compares the files of a saved index with their checksums, and returns (folder of the files, JSON object that
    describes the index). The index itself is not loaded.

    Raises:
      ValueError: There is no such index, it is damaged, or it was built from other keys than the store has now.
    """
    path = store.path / "indices" / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"index: {store.path} has no {name}; build it (memjax datastore index)")
    value = read_checked_json(path)
    if value["store"] != store.fingerprint:
        raise ValueError(
            f"index: {name} of {store.path} was made from other keys ({value['store']}, now {store.fingerprint}); "
            "build it again (memjax datastore index)"
        )
    folder = path.parent / value["folder"]
    for file, expected in value["files"].items():
        saved_file = folder / file
        intact = saved_file.is_file() and saved_file.stat().st_size == expected["bytes"]
        if not intact or file_checksum(saved_file) != expected["sha256"]:
            raise ValueError(
                f"index: {saved_file} is damaged: it is not what was written; "
                "build the index again (memjax datastore index)"
            )
    return folder, value["about"]


def find_artefact_problems(store: Store) -> Iterator[str]:
    """Reads the files of all saved indices of a store and yields a line of text for each index that is damaged or
    belongs to other keys.
    """
    for name in artefact_names(store):
        try:
            open_artefact(store, name)
        except ValueError as error:
            yield str(error)


def remove_artefact(store: Store, name: str) -> None:
    """Deletes the saved index of this name from the folder of a store, if there is one. After a crash it is complete or
    absent.
    """
    (store.path / "indices" / f"{name}.json").unlink(missing_ok=True)
    remove_leftovers(store, name)


def artefact_names(store: Store) -> list[str]:
    """Returns the sorted names of all indices that are saved in the folder of a store."""
    return sorted(path.stem for path in (store.path / "indices").glob("*.json"))


def remove_leftovers(store: Store, name: str) -> None:
    """Deletes the folders of the index `name` in a store that its JSON file does not name, such as those of interrupted
    builds. A saved index stays.
    """
    path = store.path / "indices" / f"{name}.json"
    try:
        current_folder = read_checked_json(path)["folder"] if path.is_file() else ""
    except ValueError:  # the file is damaged and names no folder
        current_folder = ""
    for folder in path.parent.glob(f"{name}-????????"):
        if folder.name != current_folder:
            shutil.rmtree(folder)


def _write(folder: Path, write: Callable[[Path], None], hint: str) -> None:
    """Calls `write`, and explains a failure on a full disk."""
    try:
        write(folder)
    except RuntimeError as error:  # the libraries of the backends do not say why they could not write
        if free_bytes(folder) < 1 << 20:
            raise DiskFull(errno.ENOSPC, f"no space is left on the disk; {hint}", str(folder)) from error
        raise
