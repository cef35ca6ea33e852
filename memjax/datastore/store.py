"""Keys and values on disk: what a datastore is, and reading it.

A store is a folder:

    meta.json             what it holds and what it was made from; says `complete` when all shards are
    shard_00000/          written by one writer, independent of the other shards
        keys.bin          [entries, dim] of the key dtype
        values.bin        int32 [entries]
        blocks.bin        for each block of entries: SHA-256 of its keys, SHA-256 of its values
        cursor.json       entries that are safely there, and the place in the data where they end
    indices/              serialised indices, see `artefacts`

Entries are numbered through the shards in their order. `memjax.datastore.writer` writes, `Store` reads.
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

from memjax.datastore.files import bytes_of, read_json

__all__ = ["Block", "Header", "Store"]

FORMAT = 1
KEY_DTYPES = ("float16", "bfloat16", "float32")
VALUE_DTYPE = np.dtype("<i4")
DIGESTS = np.dtype([("keys", "V32"), ("values", "V32")])
"""a row of blocks.bin"""

Progress = Callable[[str, int, int | None], None]
"""Called with (what, done so far, total or None)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """What a store is and what it is made from; fixed when its build begins.

    Attributes:
      dim: width of a key.
      model: hash of the model (its parameters and its configuration) that makes the keys.
      tokenizer: hash of the tokenizer whose ids are the values.
      data: hash of the texts.
      protocol: how the model read the texts: a JSON object such as `{"documents": "contiguous", "segment_length": 512,
        "key": "feed_forward_input"}`. Keys and queries of different protocols are not comparable.
      key_dtype: one of `KEY_DTYPES`.
      num_shards: shards, each with one writer.
      block_entries: entries under one checksum.
      rows: streams side by side in which the texts were read, an equal share of them in each shard; 0 = not known.
        With other rows a shard would hold other entries.
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
        try:  # tuples become lists now, so that what is read back is equal
            object.__setattr__(self, "protocol", json.loads(json.dumps(dict(self.protocol))))
        except TypeError as error:
            raise ValueError(f"protocol: given {self.protocol!r}, allowed: a JSON object ({error})") from None

    @property
    def key_bytes(self) -> int:
        """Of one key."""
        return self.dim * key_dtype(self.key_dtype).itemsize


class Block(NamedTuple):
    """Neighbouring entries of a store, as views into its files.

    Attributes:
      first: number of the first entry.
      keys: `[entries, dim]`, key dtype.
      values: int32 `[entries]`.
    """

    first: int
    keys: np.ndarray
    values: np.ndarray


class Store:
    """A finished store, memory-mapped: nothing is read before it is asked for.

    Attributes:
      path: of its folder.
      header: what it is and what it was made from.
      entries: of all shards.
      offsets: int64 `[shards + 1]`, where each shard begins.
      fingerprint: of everything in it, the same wherever the folder lies.

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
          path: of the folder.
          verify: compare every block with its checksum when it is first touched. The first touches of a store read it
            once in full; for one that is much larger than the main memory, call `problems` once and give False.

        Raises:
          ValueError: there is no finished store, or it is damaged.
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
            self._files["keys"].append(_mapped(folder / "keys.bin", self.key_dtype, (size, self.dim)))
            self._files["values"].append(_mapped(folder / "values.bin", VALUE_DTYPE, (size,)))
        blocks = [num_blocks(size, self.header.block_entries) for size in self._sizes]
        self._trusted = {name: [np.full(n, not verify) for n in blocks] for name in self._files}

    @property
    def dim(self) -> int:
        return self.header.dim

    @property
    def key_dtype(self) -> np.dtype:
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
        """Refuses queries of another model, tokenizer or protocol than the keys'; None = not compared.

        Raises:
          ValueError: one line with everything that differs.
        """
        given = {"model": model, "tokenizer": tokenizer, "data": data}
        pairs = [(name, value, getattr(self.header, name)) for name, value in given.items() if value is not None]
        if protocol is not None:
            ours = Header(dim=1, model="", tokenizer="", data="", protocol=protocol).protocol
            names = sorted({*ours, *self.header.protocol})
            pairs += [(f"protocol.{n}", ours.get(n), self.header.protocol.get(n)) for n in names]
        differences = [f"{name} {theirs!r}, given {mine!r}" for name, mine, theirs in pairs if mine != theirs]
        if differences:
            raise ValueError(
                f"datastore: {self.path} was made with {'; '.join(differences)}; give what it was made with, or build "
                "another store"
            )

    def keys(self, ids: Int[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape dim"]:
        """Keys of the given entries, in the store's dtype."""
        return self._gather("keys", ids)

    def values(self, ids: Int[np.ndarray, "*shape"]) -> Int32[np.ndarray, "*shape"]:
        """Values of the given entries."""
        return self._gather("values", ids)

    def blocks(self, entries: int = 65536, first: int = 0, last: int | None = None) -> Iterator[Block]:
        """The entries `[first, last)` in order, at most `entries` at a time; a block lies in one shard."""
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
                yield Block(begin + low, *parts)

    def sample(self, count: int, seed: int = 0) -> Int[np.ndarray, " count"]:
        """Entries drawn without replacement (all of them where there are fewer), ascending."""
        drawn = np.random.default_rng(seed).choice(self.entries, min(count, self.entries), replace=False)
        return np.sort(drawn).astype(np.int64)

    def problems(self, progress: Progress | None = None) -> Iterator[str]:
        """Reads everything again and yields one line for every damaged block or file."""
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
        """What the store is, as a JSON object."""
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
        flat = np.asarray(ids, np.int64).ravel()
        if flat.size and not 0 <= flat.min() <= flat.max() < self.entries:
            raise ValueError(f"ids: given {flat.min()} to {flat.max()}, allowed: 0 to {self.entries - 1}")
        files = self._files[name]
        out = np.empty((flat.size, *files[0].shape[1:]), files[0].dtype)
        order = np.argsort(flat, kind="stable")  # a file is read in one direction
        ends = np.searchsorted(flat[order], self.offsets)
        for shard, (low, high) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            if low < high:
                places = order[low:high]
                rows = flat[places] - self.offsets[shard]
                self._trust(name, shard, np.unique(rows // self.header.block_entries))
                out[places] = files[shard][rows]
        return out.reshape(*np.shape(ids), *out.shape[1:])

    def _trust(self, name: str, shard: int, blocks: np.ndarray) -> None:
        """Compares those of the blocks with their checksums that have not been compared yet."""
        trusted = self._trusted[name][shard]
        for block in blocks[~trusted[blocks]].tolist():
            if self._digest(name, shard, block) != self._expected(shard)[name][block].tobytes():
                raise ValueError(self._damage(name, shard, block))
            trusted[block] = True

    def _digest(self, name: str, shard: int, block: int) -> bytes:
        size = self.header.block_entries
        return hashlib.sha256(
            bytes_of(np.asarray(self._files[name][shard][block * size : (block + 1) * size]))
        ).digest()

    def _expected(self, shard: int) -> np.ndarray:
        digests = self._digests[shard]
        if digests is None:
            path = shard_folder(self.path, shard) / "blocks.bin"
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != self._checksums[shard]:
                raise ValueError(f"datastore: {path} is damaged: the checksums are not those of meta.json; {REMEDY}")
            digests = self._digests[shard] = np.frombuffer(data, DIGESTS)
        return digests

    def _damage(self, name: str, shard: int, block: int) -> str:
        first = block * self.header.block_entries
        last = min(first + self.header.block_entries, self._sizes[shard]) - 1
        path = shard_folder(self.path, shard) / f"{name}.bin"
        return f"datastore: {path} is damaged: entries {first} to {last} are not what was written; {REMEDY}"


REMEDY = "restore it from a copy, or delete the folder of its shard and build again, which makes that shard only"


def key_dtype(name: str) -> np.dtype:
    """The dtype of that name; NumPy itself does not know bfloat16."""
    return np.dtype(jax_dtype(name))


def num_blocks(entries: int, block_entries: int) -> int:
    """Blocks of so many entries; the last one may be shorter.

    Example:
      >>> num_blocks(8, 4), num_blocks(9, 4)
      (2, 3)
    """
    return -(-entries // block_entries)


def shard_folder(path: Path, shard: int) -> Path:
    """The folder of one shard.

    Example:
      >>> shard_folder(Path("a.datastore"), 3).name
      'shard_00003'
    """
    return path / f"shard_{shard:05d}"


def read_header(path: Path) -> tuple[Header, dict[str, Any]]:
    """(header, everything in meta.json) of a store that may be unfinished.

    Raises:
      ValueError: there is no store, it is damaged, or of another format.
    """
    if not (path / "meta.json").is_file():
        raise ValueError(f"path: {path} is not a datastore; build one there, or give another folder")
    meta = read_json(path / "meta.json")
    if meta["format"] != FORMAT:
        raise ValueError(
            f"path: {path} has format {meta['format']}, allowed: {FORMAT}; read it with the version of memjax that "
            "has written it"
        )
    names = [field.name for field in dataclasses.fields(Header) if field.name in meta]
    return Header(**{name: meta[name] for name in names}), meta


def _mapped(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = path.stat().st_size if path.is_file() else None
    expected = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if size != expected:
        found = "is missing" if size is None else f"has {size} bytes"
        raise ValueError(f"datastore: {path} is damaged: it {found} and should have {expected}; {REMEDY}")
    return np.memmap(path, dtype, "r", shape=shape) if expected else np.empty(shape, dtype)
