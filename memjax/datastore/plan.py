"""Estimates of the disk space, memory and time that a datastore will take, before it is built."""

import dataclasses
import math
import os
import shutil
import time
import uuid
from pathlib import Path

from memjax.datastore.store import DIGESTS, VALUE_DTYPE, Header, num_blocks
from memjax.durable_files import PARTIAL, explain_full_disk, write_file

__all__ = ["StorePlan", "measure_write_speed", "plan_store"]

GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorePlan:
    """Estimates of the disk space, memory and seconds that a store will take, before it is built.

    Attributes:
      entries: Number of entries of the store.
      key_bytes: Bytes of all keys.
      value_bytes: Bytes of all values.
      checksum_bytes: Bytes of the checksums of all blocks.
      index_bytes: Estimated bytes of the index by backend, in the memory that it is searched in. This is device memory
        for `exact` and `sharded` (per device), main memory and disk for `scann` and `faiss`.
      build_bytes: Estimated bytes of main memory by backend while the index is built.
      forward_seconds: Seconds of the forward passes of all hosts together. None where their speed is not known.
      write_seconds: Seconds of writing the store to one disk. None where its speed is not known.
      free_bytes: Free bytes of the disk. None where no path was given.
    """

    entries: int
    key_bytes: int
    value_bytes: int
    checksum_bytes: int
    index_bytes: dict[str, int]
    build_bytes: dict[str, int]
    forward_seconds: float | None
    write_seconds: float | None
    free_bytes: int | None

    @property
    def store_bytes(self) -> int:
        """Bytes of the store on disk: keys, values and checksums, without indices."""
        return self.key_bytes + self.value_bytes + self.checksum_bytes

    @property
    def fits(self) -> bool:
        """Whether the store without indices fits into the free space of its disk. True where the free space is
        unknown.
        """
        return self.free_bytes is None or self.store_bytes <= self.free_bytes

    def to_lines(self) -> list[str]:
        """Formats the plan as a list of lines for printing: entries, disk, times, and memory of each index."""
        free = "" if self.free_bytes is None else f" of {_size(self.free_bytes)} free"
        lines = [
            f"entries   {self.entries:,}",
            f"disk      {_size(self.store_bytes)}{free}{'' if self.fits else ': does not fit'}"
            f" (keys {_size(self.key_bytes)}, values {_size(self.value_bytes)})",
        ]
        for name, seconds in (("forward", self.forward_seconds), ("writing", self.write_seconds)):
            lines.append(f"{name}   {'not measured' if seconds is None else _duration(seconds)}")
        for name, size in self.index_bytes.items():
            build = f", {_size(self.build_bytes[name])} while it is built" if name in self.build_bytes else ""
            lines.append(f"{name:9} {_size(size)}{build}")
        return lines


def plan_store(
    header: Header,
    entries: int,
    *,
    path: str | Path | None = None,
    tokens_per_second: float | None = None,
    write_bytes_per_second: float | None = None,
    num_devices: int = 1,
) -> StorePlan:
    """Estimates disk space, memory and time of a store with the settings in `header` and this number of entries. Speeds
    that are not given leave the times unknown.

    Args:
      header: Description of the store.
      entries: Number of entries, one for each scored token.
      path: Folder that the store is to be written to. Only the free space of its disk is read. None = not checked.
      tokens_per_second: Tokens that the forward passes of all hosts process in a second, measured on a few batches.
        None = unknown.
      write_bytes_per_second: Bytes that the disk writes in a second. See `measure_write_speed`. None = unknown.
      num_devices: Number of devices over which the `sharded` backend splits the keys.

    Example:
      >>> header = Header(dim=1024, model="m", tokenizer="t", data="d", protocol={})
      >>> plan = plan_store(header, 103_225_485, tokens_per_second=50_000, num_devices=64)
      >>> for line in plan.to_lines()[:3]:
      ...     print(line)
      entries   103,225,485
      disk      197.3 GiB (keys 196.9 GiB, values 393.8 MiB)
      forward   34 min
    """
    if entries < 0 or num_devices < 1:
        raise ValueError(f"entries: given {entries} over {num_devices} devices, allowed: 0 or more over 1 or more")
    keys, values = entries * header.key_bytes, entries * VALUE_DTYPE.itemsize
    rows = num_blocks(entries, header.block_entries) + header.num_shards
    checksums = rows * DIGESTS.itemsize
    full = entries * header.dim * 4
    # ScaNN: keys as float32 for reordering, 4 bits for every 2 dimensions, the leaf of each key, the leaves' centres.
    scann = full + entries * (math.ceil(header.dim / 2) / 2) + entries * 4 + math.sqrt(entries) * header.dim * 4
    return StorePlan(
        entries=entries,
        key_bytes=keys,
        value_bytes=values,
        checksum_bytes=checksums,
        index_bytes={
            "exact": keys + entries * 4,
            "sharded": math.ceil(entries / num_devices) * (header.key_bytes + 4),
            "scann": int(scann),
            "faiss": full,
        },
        build_bytes={"scann": full + int(scann), "faiss": full},
        forward_seconds=None if tokens_per_second is None else entries / tokens_per_second,
        write_seconds=None if write_bytes_per_second is None else (keys + values + checksums) / write_bytes_per_second,
        free_bytes=None if path is None else free_bytes(path),
    )


def free_bytes(path: str | Path) -> int:
    """Returns the free bytes of the disk that holds a path, or would hold it if it does not exist yet."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def measure_write_speed(path: str | Path, num_bytes: int = 64 << 20) -> float:
    """Measures how many bytes per second the disk of the folder `path` writes, with a file of `num_bytes` that is
    deleted afterwards.
    """
    file = Path(path) / f"speed.{uuid.uuid4().hex[:8]}{PARTIAL}"
    data = os.urandom(num_bytes)
    with explain_full_disk(file, "the speed of the disk was not measured"):
        try:
            start = time.perf_counter()
            write_file(file, data)
            return num_bytes / (time.perf_counter() - start)
        finally:
            file.unlink(missing_ok=True)


def _size(num_bytes: float) -> str:
    """Formats a number of bytes with a suitable unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.1f} {unit}" if unit != "bytes" else f"{num_bytes:.0f} bytes"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def _duration(seconds: float) -> str:
    """Formats seconds with a suitable unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
