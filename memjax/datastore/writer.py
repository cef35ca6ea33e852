"""Writing a datastore with one writer for each shard, which continues after a kill, a full disk or a loss of power.

Every process that makes entries calls `create_store` with the same header and writes shards of its own, at its own
pace. When all are finished, one of them calls `finish_store`:

    create_store(path, header)
    with ShardWriter(path, shard) as writer:
        for place, keys, values in entries_after(writer.progress):  # None at the beginning
            writer.append(keys, values)
            writer.commit(place)
        writer.finish()
    store = finish_store(path)

Committed entries survive any crash, and the next writer of the shard cuts off all others. So no entry is lost or
repeated if the maker of the entries continues from `progress`. The data is on the disk before the cursor moves, and the
cursor is one file that is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.datastore.files import (
    lock_file,
    read_checked_json,
    view_as_bytes,
    write_checked_json,
)
from memjax.datastore.store import (
    DIGESTS,
    FORMAT,
    REMEDY,
    VALUE_DTYPE,
    Header,
    Store,
    key_dtype,
    read_header,
    shard_folder,
)
from memjax.durable_files import PARTIAL, explain_full_disk, file_checksum, sync_to_disk, write_all, write_file

__all__ = ["ShardWriter", "create_store", "finish_store", "read_cursor"]


def create_store(path: str | Path, header: Header) -> None:
    """Creates the folder of an empty store with this header. If the store is there already, its header is compared and
    nothing is changed.

    Any number of processes may call this at any time.

    Raises:
      ValueError: The folder holds something else, or a store with another header.
    """
    path = Path(path)
    value = dataclasses.asdict(header)
    if (path / "meta.json").is_file():
        existing, _ = read_header(path)
        differences = [
            f"{name} {getattr(existing, name)!r}, given {new_value!r}"
            for name, new_value in value.items()
            if getattr(existing, name) != new_value
        ]
        if differences:
            raise ValueError(
                f"path: {path} is a store of {'; '.join(differences)}; give another folder, or delete this one"
            )
        return
    with explain_full_disk(path, "nothing has been written yet; free some and run the same command again"):
        path.mkdir(parents=True, exist_ok=True)
        other_files = sorted(entry.name for entry in path.iterdir() if not entry.name.endswith(PARTIAL))
        if other_files and not (path / "meta.json").is_file():  # another process may have come first
            raise ValueError(f"path: {path} holds {other_files[0]} and is not a datastore; give another folder")
        _write_meta(path, value, shards=[])


def finish_store(path: str | Path) -> Store:
    """Declares a store complete, and opens it as a `Store`. Raises `ValueError` while a shard is not finished. May be
    called again.

    Raises:
      ValueError: A shard is not finished.
    """
    path = Path(path)
    header, _ = read_header(path)
    shards, open_shards = [], []
    for shard in range(header.num_shards):
        cursor = read_cursor(path, shard)
        if not cursor["complete"]:
            open_shards.append(f"{shard} ({cursor['entries']} entries)")
        else:
            shards.append({"entries": cursor["entries"], "sha256": cursor["sha256"]})
    if open_shards:
        raise ValueError(
            f"path: {path} has {len(open_shards)} of {header.num_shards} shards that are not finished: "
            f"{', '.join(open_shards[:4])}{', ...' if len(open_shards) > 4 else ''}; continue its build"
        )
    value = dataclasses.asdict(header)
    with explain_full_disk(path, "all shards are finished; free some and run the same command again"):
        _write_meta(path, value, shards)
        for leftover in path.glob(f"meta.json.*{PARTIAL}"):
            leftover.unlink(missing_ok=True)
    return Store(path)


def read_cursor(path: str | Path, shard: int) -> dict[str, Any]:
    """Reads how far the shard with number `shard` is, as a dict: committed `entries`, `complete`, `progress` (position
    in the data), and more for the writer itself.
    """
    file = shard_folder(Path(path), shard) / "cursor.json"
    if not file.is_file():
        return {"entries": 0, "complete": False, "progress": None, "state": None, "commits": 0, "open_block": None}
    return read_checked_json(file)


class ShardWriter:
    """A writer that appends entries to one shard of a store. While it is open, no other writer can open the shard. Use
    it in a `with` block.

    Attributes:
      path: Folder of the store.
      shard: Number of the shard.
      header: Description of the store.
      entries: Number of entries appended so far, committed or not.
      progress: Argument `progress` of the last `commit`, where the maker of the entries continues. None at the
        beginning.
      complete: Whether the shard is finished. Nothing can be appended then.
    """

    def __init__(self, path: str | Path, shard: int = 0):
        """Opens a shard where its last commit has left it.

        Args:
          path: Folder of a store that `create_store` has made.
          shard: Number of the shard, from 0.

        Raises:
          ValueError: There is no such shard, another process writes it, or it is damaged.
        """
        self.path, self.shard = Path(path), shard
        self.header, _ = read_header(self.path)
        if not 0 <= shard < self.header.num_shards:
            raise ValueError(f"shard: given {shard}, allowed: 0 to {self.header.num_shards - 1}")
        self._folder, self._dtype = shard_folder(self.path, shard), key_dtype(self.header.key_dtype)
        self._committed, self._failed = 0, False
        with contextlib.ExitStack() as stack, self._explain_full_disk():
            self._folder.mkdir(exist_ok=True)
            stack.enter_context(lock_file(self._folder / ".lock", f"shard {shard} of {self.path}"))
            cursor = read_cursor(self.path, shard)
            self.entries = self._committed = cursor["entries"]
            self.complete, self.progress = cursor["complete"], cursor["progress"]
            self._state, self._commits = cursor["state"], cursor["commits"]
            self._remove_leftovers()
            if not self.complete:
                self._descriptors = {name: self._open(name, size, stack) for name, size in self._sizes().items()}
                self._pending: list[bytes] = []
                self._begin_block()
                self._hash(*self._read_open_block())
                if cursor.get("open_block") not in (None, self._open_digests()):
                    first = self.entries - self._hashed
                    raise ValueError(
                        f"datastore: {self._folder} is damaged: entries {first} to {self.entries - 1} of the shard are "
                        f"not what was written; {REMEDY}"
                    )
            self._stack = stack.pop_all()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the shard without a commit. The next writer cuts off entries that were appended after the last
        commit.
        """
        self._stack.close()
        self._failed = True

    def append(self, keys: Any, values: Any) -> None:
        """Appends entries, keys `[entries, dim]` and int values `[entries]`. They only survive a crash after the next
        `commit` or `finish`.

        Args:
          keys: `[entries, dim]`, any float dtype. They are stored in the dtype of the header.
          values: `[entries]`, integers that fit into int32.

        Raises:
          ValueError: The shapes are wrong, a key is not finite or too large for the key dtype, or a value is out of
            range.
          DiskFull: No space is left. Entries of the last commit stay.
        """
        self._check_open()
        keys, values = self._convert_keys(np.asarray(keys)), _convert_values(np.asarray(values))
        if len(keys) != len(values):
            raise ValueError(f"values: given {len(values)} for {len(keys)} keys, allowed: one for each key")
        with self._mark_failed_while_writing():
            write_all(self._descriptors["keys.bin"], view_as_bytes(keys))
            write_all(self._descriptors["values.bin"], view_as_bytes(values))
        self._hash(keys, values)
        self.entries += len(keys)

    def commit(self, progress: Any = None, state: Mapping[str, np.ndarray] | None = None) -> None:
        """Makes all entries appended so far survive a crash, with what their maker needs to continue: its position in
        the data (`progress`, a JSON value) and named arrays (`state`).

        Args:
          progress: JSON value, position in the data after the last appended entry.
          state: Named arrays that the maker of the entries needs besides to continue, such as the memory of the model.
            See `load_state`. The state of the previous commit is deleted.

        Raises:
          ValueError: `progress` is not a JSON value.
          DiskFull: No space is left. Entries of the previous commit stay.
        """
        self._check_open()
        try:
            progress = json.loads(json.dumps(progress))  # the form in which the next writer reads it
        except TypeError as error:
            raise ValueError(f"progress: given {progress!r}, allowed: a JSON value ({error})") from None
        self._commit(progress, state, complete=False)

    def finish(self) -> None:
        """Commits, and declares the shard complete, so that nothing can be appended any more. Does nothing if it is
        complete already.
        """
        if self.complete:
            return
        self._check_open()
        if self.entries % self.header.block_entries:
            self._end_block()
        self._commit(self.progress, None, complete=True)

    def load_state(self) -> dict[str, np.ndarray] | None:
        """Loads the arrays `state` of the last commit, name -> array. None if it had no state.

        Raises:
          ValueError: The file of the state is damaged.
        """
        from safetensors.numpy import load_file

        if self._state is None:
            return None
        file = self._folder / self._state["file"]
        if not file.is_file() or file_checksum(file) != self._state["sha256"]:
            raise ValueError(f"datastore: {file} is damaged: it is not what was written; {REMEDY}")
        return load_file(file)

    # The files

    def _sizes(self) -> dict[str, int]:
        """Returns the bytes of each file up to the last commit."""
        return {
            "keys.bin": self.entries * self.header.key_bytes,
            "values.bin": self.entries * VALUE_DTYPE.itemsize,
            "blocks.bin": self.entries // self.header.block_entries * DIGESTS.itemsize,
        }

    def _open(self, name: str, size: int, stack: contextlib.ExitStack) -> int:
        """Opens a file for appending at `size`, and cuts off everything after it."""
        path = self._folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        stack.callback(os.close, descriptor)
        file_size = os.fstat(descriptor).st_size
        if file_size < size:
            raise ValueError(f"datastore: {path} is damaged: {file_size} bytes, and {size} were committed; {REMEDY}")
        os.ftruncate(descriptor, size)
        return descriptor

    def _remove_leftovers(self) -> None:
        """Deletes files that crashes have left: partly written files, and states that the cursor does not name."""
        current_state = self._state and self._state["file"]
        for path in (*self._folder.glob(f"*{PARTIAL}"), *self._folder.glob("state_*")):
            if path.name != current_state:
                path.unlink()

    def _commit(self, progress: Any, state: Mapping[str, np.ndarray] | None, complete: bool) -> None:
        """Writes everything through to the disk, and then replaces the cursor."""
        with self._mark_failed_while_writing():
            write_all(self._descriptors["blocks.bin"], b"".join(self._pending))
            for descriptor in self._descriptors.values():
                os.fsync(descriptor)
            self._commits += 1
            self._state = None if state is None else self._save_state(state)
            sync_to_disk(self._folder)
            cursor = {
                "entries": self.entries,
                "complete": complete,
                "progress": progress,
                "state": self._state,
                "commits": self._commits,
                "open_block": None if complete else self._open_digests(),
            }
            if complete:
                cursor["sha256"] = file_checksum(self._folder / "blocks.bin")
            write_checked_json(self._folder / "cursor.json", cursor)
            self._remove_leftovers()
        self._pending = []
        self.complete, self.progress, self._committed = complete, progress, self.entries

    def _save_state(self, state: Mapping[str, np.ndarray]) -> dict[str, str]:
        """Writes the state to a file of its own, and returns its name and checksum."""
        from safetensors.numpy import save

        data = save({name: np.ascontiguousarray(array) for name, array in state.items()})
        file = self._folder / f"state_{self._commits:08d}.safetensors"
        write_file(file, data)
        return {"file": file.name, "sha256": hashlib.sha256(data).hexdigest()}

    @contextlib.contextmanager
    def _mark_failed_while_writing(self) -> Iterator[None]:
        """Marks the writer as failed while files change, since only the next writer can repair a half-written file."""
        self._failed = True
        with self._explain_full_disk():
            yield
        self._failed = False

    @contextlib.contextmanager
    def _explain_full_disk(self) -> Iterator[None]:
        """Explains errors of a full disk."""
        message = f"shard {self.shard} has {self._committed} entries; free some and run the same command again"
        with explain_full_disk(self._folder, message):
            yield

    # Checksums

    def _begin_block(self) -> None:
        """Starts the checksums of the next block."""
        self._hashes, self._hashed = {"keys": hashlib.sha256(), "values": hashlib.sha256()}, 0

    def _end_block(self) -> None:
        """Records the checksums of a full block for the next commit."""
        self._pending.append(b"".join(self._hashes[name].digest() for name in ("keys", "values")))
        self._begin_block()

    def _open_digests(self) -> list[str]:
        """Returns the checksums of the block that is not full yet, so that the next writer can check it."""
        return [self._hashes[name].hexdigest() for name in ("keys", "values")]

    def _hash(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Adds entries to the checksums of their blocks."""
        while len(keys):
            room = self.header.block_entries - self._hashed
            self._hashes["keys"].update(view_as_bytes(keys[:room]))
            self._hashes["values"].update(view_as_bytes(values[:room]))
            self._hashed += len(keys[:room])
            keys, values = keys[room:], values[room:]
            if self._hashed == self.header.block_entries:
                self._end_block()

    def _read_open_block(self) -> tuple[np.ndarray, np.ndarray]:
        """Reads the committed entries of the block that is not full yet."""
        # Only the checksums of these entries are not in blocks.bin yet.
        rows = self.entries % self.header.block_entries
        first, parts = self.entries - rows, []
        for name, dtype, width in (("keys.bin", self._dtype, self.header.dim), ("values.bin", VALUE_DTYPE, 1)):
            size = dtype.itemsize * width
            data = os.pread(self._descriptors[name], rows * size, first * size)
            parts.append(np.frombuffer(data, np.uint8).view(dtype).reshape(rows, width))
        return parts[0], parts[1][:, 0].copy()

    # Arguments

    def _check_open(self) -> None:
        """Raises an error where the shard is complete, or the writer is closed or has failed."""
        if self.complete:
            raise ValueError(f"shard: {self.shard} of {self.path} is finished; entries cannot be added to it")
        if self._failed:
            raise ValueError(f"shard: the writer of {self.shard} was closed, or has failed; open another one")

    def _convert_keys(self, keys: np.ndarray) -> np.ndarray:
        """Converts keys to the dtype of the store, and checks their shape and range."""
        if keys.ndim != 2 or keys.shape[1] != self.header.dim:
            raise ValueError(f"keys: given shape {keys.shape}, allowed: (entries, {self.header.dim})")
        with np.errstate(over="ignore", invalid="ignore"):
            stored = np.ascontiguousarray(keys, self._dtype)
        bad = ~np.isfinite(stored).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            if np.isfinite(keys[row]).all():
                problem = f"up to {np.abs(keys[row]).max():g}, too large for {self._dtype}; use another key_dtype"
            else:
                problem = "that is NaN or infinite; keys must be finite numbers"
            raise ValueError(f"keys: given row {row} (entry {self.entries + row} of shard {self.shard}) {problem}")
        return stored


def _convert_values(values: np.ndarray) -> np.ndarray:
    """Converts values to int32, and checks their shape and range."""
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"values: given shape {values.shape} of {values.dtype}, allowed: integers of shape (entries,)")
    limits = np.iinfo(VALUE_DTYPE)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise ValueError(f"values: given {values.min()} to {values.max()}, allowed: what fits into int32")
    return np.ascontiguousarray(values, VALUE_DTYPE)


def _write_meta(path: Path, header: Mapping[str, Any], shards: list[dict[str, Any]]) -> None:
    """Writes meta.json, which declares the store complete if it has `shards`."""
    value = {
        "format": FORMAT,
        "complete": bool(shards),
        "entries": sum(shard["entries"] for shard in shards),
        "value_dtype": "int32",
        **header,
        "shards": shards,
    }
    write_checked_json(path / "meta.json", value)
