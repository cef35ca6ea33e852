"""Datastores: keys and values on disk, and how to read them.

A store is a folder:

    meta.json             description of the store and its origin; says `complete` when all shards are
    shard_00000/          written by one writer, independent of the other shards
        keys.bin          [entries, dim] of the key dtype
        values.bin        int32 [entries]
        blocks.bin        for each block of entries: SHA-256 of its keys, SHA-256 of its values
        cursor.json       number of entries that are safely written, and the position in the data where they end
    indices/              saved indices, see `artefacts`

Entries are numbered across the shards in their order. `memjax.datastore.writer` writes stores, `Store` reads them.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.numpy import dtype as jax_dtype
from jaxtyping import Int, Int32, Shaped

from memjax.datastore.files import read_checked_json, view_as_bytes

__all__ = ["EntryBlock", "Header", "Store"]

FORMAT = 1
KEY_DTYPES = ("float16", "bfloat16", "float32")
VALUE_DTYPE = np.dtype("<i4")
DIGESTS = np.dtype([("keys", "V32"), ("values", "V32")])
"""Dtype of a row of blocks.bin."""

Progress = Callable[[str, int, int | None], None]
"""Function called with the name of the work, how much of it is done, and the total or None."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The description of a store: width and dtype of the keys, shards, and hashes of the model, tokenizer and texts
    that it is made from. It is fixed when the build begins.

    Attributes:
      dim: Width of a key.
      model: Hash of the model that makes the keys, its parameters and its configuration.
      tokenizer: Hash of the tokenizer whose ids are the values.
      data: Hash of the texts.
      protocol: Way in which the model read the texts, a JSON object such as `{"documents": "contiguous",
        "segment_length": 512, "key": "feed_forward_input"}`. Keys and queries of different protocols cannot be
        compared.
      key_dtype: Dtype of the keys, one of `KEY_DTYPES`.
      num_shards: Number of shards, each with one writer.
      block_entries: Number of entries under one checksum.
      rows: Number of rows (streams side by side) in which the texts were read. Each shard holds an equal share of them,
        so with other rows it would hold other entries. 0 = unknown.
    """

    dim: int
    model: str
    tokenizer: str
    data: str
    protocol: Mapping[str, Any]
    key_dtype: str = "float16"
    num_shards: int = 1
    block_entries: int = 8192
    rows: int = 0

    def __post_init__(self):
        if self.key_dtype not in KEY_DTYPES:
            raise ValueError(f"key_dtype: given {self.key_dtype!r}, allowed: {', '.join(KEY_DTYPES)}")
        for name in ("dim", "num_shards", "block_entries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: given {getattr(self, name)}, allowed: 1 or more")
        try:  # tuples become lists now, so that the protocol equals the one read back
            object.__setattr__(self, "protocol", json.loads(json.dumps(dict(self.protocol))))
        except TypeError as error:
            raise ValueError(f"protocol: given {self.protocol!r}, allowed: a JSON object ({error})") from None

    @property
    def key_bytes(self) -> int:
        """Number of bytes of one key on disk."""
        return self.dim * key_dtype(self.key_dtype).itemsize


class EntryBlock(NamedTuple):
    """Consecutive entries of a store: the number of the first one, and the keys and values of all as views into the
    files.

    Attributes:
      first: Number of the first entry.
      keys: `[entries, dim]`, in the dtype of the keys.
      values: int32 `[entries]`.
    """

    first: int
    keys: np.ndarray
    values: np.ndarray


class Store:
    """A finished datastore, opened for reading. Its files are memory-mapped, so that only the entries that are asked
    for are read.

    Attributes:
      path: Folder of the store.
      header: Description of the store and of its origin.
      entries: Number of entries of all shards.
      offsets: int64 `[shards + 1]`, first entry of each shard, and the number of all entries.
      fingerprint: Hash of the whole content, independent of where the folder lies.

    Example:
      >>> import tempfile
      >>> from memjax.datastore.writer import ShardWriter, create_store, finish_store
      >>> path = Path(tempfile.mkdtemp()) / "tiny.datastore"
      >>> create_store(path, Header(dim=2, model="m", tokenizer="t", data="d", protocol={}))
      >>> with ShardWriter(path) as writer:
      ...     writer.append(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([7, 8]))
      ...     writer.finish()
      >>> store = finish_store(path)
      >>> store.keys(np.array([1])).tolist(), store.values(np.array([1, 0])).tolist()
      ([[3.0, 4.0]], [8, 7])
    """

    def __init__(self, path: str | Path, *, verify: bool = True):
        """Opens a store and checks the sizes of its files.

        Args:
          path: Folder of the store.
          verify: Whether to compare every block with its checksum when it is first read. These first reads go through
            the whole store once. For a store much larger than the main memory call `find_problems` once and give False.

        Raises:
          ValueError: There is no finished store, or it is damaged.
        """
        self.path = Path(path)
        self.header, meta = read_header(self.path)
        if not meta["complete"]:
            raise ValueError(f"path: {self.path} is not finished; continue its build")
        self.fingerprint: str = meta["checksum"][:16]
        self._sizes = [shard["entries"] for shard in meta["shards"]]
        self._checksums = [shard["sha256"] for shard in meta["shards"]]
        self.offsets = np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)])
        self.entries: int = meta["entries"]
        self._digests: list[np.ndarray | None] = [None] * len(self._sizes)
        self._files = {"keys": [], "values": []}
        for shard, size in enumerate(self._sizes):
            folder = shard_folder(self.path, shard)
            self._files["keys"].append(_map_array(folder / "keys.bin", self.key_dtype, (size, self.dim)))
            self._files["values"].append(_map_array(folder / "values.bin", VALUE_DTYPE, (size,)))
        blocks = [num_blocks(size, self.header.block_entries) for size in self._sizes]
        self._trusted = {name: [np.full(n, not verify) for n in blocks] for name in self._files}

    @property
    def dim(self) -> int:
        """Number of dimensions of a key."""
        return self.header.dim

    @property
    def key_dtype(self) -> np.dtype:
        """NumPy dtype in which the keys are stored."""
        return key_dtype(self.header.key_dtype)

    def __len__(self) -> int:
        return self.entries

    def check(
        self,
        *,
        model: str | None = None,
        tokenizer: str | None = None,
        data: str | None = None,
        protocol: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `ValueError` unless the hashes and the protocol that are given equal those of the model, tokenizer and
        texts that the store was made from. None is not compared.

        Args:
          model: Hash of the model. None = not compared.
          tokenizer: Hash of the tokenizer. None = not compared.
          data: Hash of the texts. None = not compared.
          protocol: Way in which the model reads texts. None = not compared.

        Raises:
          ValueError: Something differs. One line names everything that does.
        """
        expected = {"model": model, "tokenizer": tokenizer, "data": data}
        pairs = [(name, value, getattr(self.header, name)) for name, value in expected.items() if value is not None]
        if protocol is not None:
            query_protocol = Header(dim=1, model="", tokenizer="", data="", protocol=protocol).protocol
            names = sorted({*query_protocol, *self.header.protocol})
            pairs += [(f"protocol.{n}", query_protocol.get(n), self.header.protocol.get(n)) for n in names]
        differences = [
            f"{name} {stored!r}, given {query_value!r}" for name, query_value, stored in pairs if query_value != stored
        ]
        if differences:
            raise ValueError(
                f"datastore: {self.path} was made with {'; '.join(differences)}; give what it was made with, or build "
                "another store"
            )

    def keys(self, ids: Int[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape dim"]:
        """Returns the keys of the entries with the numbers `ids`, an int array of any shape, as `[*shape, dim]` in the
        store's dtype.
        """
        return self._gather("keys", ids)

    def values(self, ids: Int[np.ndarray, "*shape"]) -> Int32[np.ndarray, "*shape"]:
        """Returns the values, int32 tokens, of the entries with the numbers `ids`, an int array of any shape, in the
        same shape.
        """
        return self._gather("values", ids)

    def blocks(self, entries: int = 65536, first: int = 0, last: int | None = None) -> Iterator[EntryBlock]:
        """Yields the entries from number `first` to before `last` in order, as `EntryBlock` of at most `entries`
        entries. A block never spans two shards.
        """
        last = self.entries if last is None else last
        if entries < 1 or not 0 <= first <= last <= self.entries:
            raise ValueError(f"blocks: given {entries} entries of [{first}, {last}), the store has {self.entries}")
        for shard, begin in enumerate(self.offsets[:-1].tolist()):
            start, stop = max(first - begin, 0), min(last - begin, self._sizes[shard])
            for low in range(start, stop, entries):
                high = min(low + entries, stop)
                rows = np.arange(low // self.header.block_entries, num_blocks(high, self.header.block_entries))
                parts = []
                for name in ("keys", "values"):
                    self._trust(name, shard, rows)
                    parts.append(np.asarray(self._files[name][shard][low:high]))
                yield EntryBlock(begin + low, *parts)

    def sample(self, count: int, seed: int = 0) -> Int[np.ndarray, " count"]:
        """Draws the numbers of `count` different entries at random, or of all where there are fewer. Returns them in
        ascending order, int64.
        """
        entries = np.random.default_rng(seed).choice(self.entries, min(count, self.entries), replace=False)
        return np.sort(entries).astype(np.int64)

    def find_problems(self, progress: Progress | None = None) -> Iterator[str]:
        """Reads the whole store and yields a line of text for every damaged block or file. `progress(name, done,
        total)` is called after each block.
        """
        done = 0
        for shard, size in enumerate(self._sizes):
            try:
                digests = self._expected(shard)
            except ValueError as error:
                yield str(error)
                continue
            for block in range(len(digests)):
                for name in ("keys", "values"):
                    if self._digest(name, shard, block) != digests[name][block].tobytes():
                        yield self._damage(name, shard, block)
                done += min(self.header.block_entries, size - block * self.header.block_entries)
                if progress is not None:
                    progress("verify", done, self.entries)

    def describe(self) -> dict[str, Any]:
        """Returns a dict about the store that JSON can hold: path, fingerprint, sizes, and the fields of the header."""
        return {
            "path": str(self.path),
            "fingerprint": self.fingerprint,
            "entries": self.entries,
            "bytes": self.entries * (self.header.key_bytes + VALUE_DTYPE.itemsize),
            "shard_entries": list(self._sizes),
            "value_dtype": "int32",
            **dataclasses.asdict(self.header),
        }

    def _gather(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Reads keys or values of some entries, after comparing their blocks with the checksums."""
        flat = np.asarray(ids, np.int64).ravel()
        if flat.size and not 0 <= flat.min() <= flat.max() < self.entries:
            raise ValueError(f"ids: given {flat.min()} to {flat.max()}, allowed: 0 to {self.entries - 1}")
        files = self._files[name]
        out = np.empty((flat.size, *files[0].shape[1:]), files[0].dtype)
        order = np.argsort(flat, kind="stable")  # reads each file in ascending order
        ends = np.searchsorted(flat[order], self.offsets)
        for shard, (low, high) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            if low < high:
                places = order[low:high]
                rows = flat[places] - self.offsets[shard]
                self._trust(name, shard, np.unique(rows // self.header.block_entries))
                out[places] = files[shard][rows]
        return out.reshape(*np.shape(ids), *out.shape[1:])

    def _trust(self, name: str, shard: int, blocks: np.ndarray) -> None:
        """Compares blocks with their checksums, unless they have been compared already."""
        trusted = self._trusted[name][shard]
        for block in blocks[~trusted[blocks]].tolist():
            if self._digest(name, shard, block) != self._expected(shard)[name][block].tobytes():
                raise ValueError(self._damage(name, shard, block))
            trusted[block] = True

    def _digest(self, name: str, shard: int, block: int) -> bytes:
        """Computes the checksum of a block of keys or values."""
        size = self.header.block_entries
        return hashlib.sha256(
            view_as_bytes(np.asarray(self._files[name][shard][block * size : (block + 1) * size]))
        ).digest()

    def _expected(self, shard: int) -> np.ndarray:
        """Reads the checksums of all blocks of a shard."""
        digests = self._digests[shard]
        if digests is None:
            path = shard_folder(self.path, shard) / "blocks.bin"
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != self._checksums[shard]:
                raise ValueError(f"datastore: {path} is damaged: the checksums are not those of meta.json; {REMEDY}")
            digests = self._digests[shard] = np.frombuffer(data, DIGESTS)
        return digests

    def _damage(self, name: str, shard: int, block: int) -> str:
        """Formats the error for a damaged block."""
        first = block * self.header.block_entries
        last = min(first + self.header.block_entries, self._sizes[shard]) - 1
        path = shard_folder(self.path, shard) / f"{name}.bin"
        return f"datastore: {path} is damaged: entries {first} to {last} are not what was written; {REMEDY}"


REMEDY = "restore it from a copy, or delete the folder of its shard and build again, which makes that shard only"


def key_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype with this name, also for "bfloat16", which NumPy alone does not know."""
    return np.dtype(jax_dtype(name))


def num_blocks(entries: int, block_entries: int) -> int:
    """Returns the number of blocks of `block_entries` entries that hold `entries` entries. The last block may be
    shorter.

    Example:
      >>> num_blocks(8, 4), num_blocks(9, 4)
      (2, 3)
    """
    return -(-entries // block_entries)


def shard_folder(path: Path, shard: int) -> Path:
    """Returns the path of the folder of the shard with number `shard` in the store folder `path`. Nothing is created.

    Example:
      >>> shard_folder(Path("a.datastore"), 3).name
      'shard_00003'
    """
    return path / f"shard_{shard:05d}"


def read_header(path: Path) -> tuple[Header, dict[str, Any]]:
    """Reads the `meta.json` of a store, finished or not, and returns (`Header`, the whole JSON object).

    Raises:
      ValueError: There is no store, or it is damaged or has another format.
    """
    if not (path / "meta.json").is_file():
        raise ValueError(f"path: {path} is not a datastore, allowed: a folder that `memjax datastore build` has made")
    meta = read_checked_json(path / "meta.json")
    if meta.get("format") != FORMAT:
        raise ValueError(
            f"path: {path / 'meta.json'} has format {meta.get('format')}, allowed: {FORMAT}; read it with the version "
            "of memjax that has written it"
        )
    names = [field.name for field in dataclasses.fields(Header) if field.name in meta]
    return Header(**{name: meta[name] for name in names}), meta


def _map_array(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Memory-maps an array in a file, after checking the size of the file."""
    size = path.stat().st_size if path.is_file() else None
    expected = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if size != expected:
        problem = "is missing" if size is None else f"has {size} bytes"
        raise ValueError(f"datastore: {path} is damaged: it {problem} and should have {expected}; {REMEDY}")
    return np.memmap(path, dtype, "r", shape=shape) if expected else np.empty(shape, dtype)
