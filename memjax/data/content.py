"""Identifies data by its content: SHA-256 of files and of examples.

The size and the time of a file only decide whether it is hashed again, so that a touched or copied file keeps its hash.
"""

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

__all__ = [
    "file_facts",
    "file_sha256",
    "files_with_facts",
    "hash_in_order",
    "hash_sample",
    "remember_file",
    "sample_numbers",
]

SAMPLE = 1000  # Number of examples of a random-access source that are hashed, besides the last one.
MAX_EXAMPLES, MAX_BYTES = 200_000, 1 << 28  # Number of examples and bytes that are hashed of other sources.
_BLOCK = 1 << 20
_SETTLED_NS = 2_000_000_000  # Younger files may change again without another time: they are always hashed.

_known: dict[str, tuple[int, int, str]] = {}


def file_facts(path: Path) -> tuple[int, int]:
    """Returns the size of a file in bytes and the time of its last change in nanoseconds."""
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


def files_with_facts(files: Iterable[Path]) -> tuple[tuple[Path, int, int], ...]:
    """Returns a tuple of (path, size, time of the last change) for each file, as a key for results that were computed
    from the files.
    """
    return tuple((file, *file_facts(file)) for file in files)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits, computed once per size and time of the file (again if the
    file has just changed).
    """
    name, (size, mtime_ns) = str(path.absolute()), file_facts(path)
    if _known.get(name, ())[:2] == (size, mtime_ns):
        return _known[name][2]
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    result = digest.hexdigest()
    if time.time_ns() - mtime_ns > _SETTLED_NS:
        _known[name] = (size, mtime_ns, result)
    return result


def remember_file(path: Path, size: int, mtime_ns: int, sha256: str) -> None:
    """Tells `file_sha256` the SHA-256 that an earlier process has computed for a file of this size and time of change.
    A SHA-256 that this process has computed for the file stays.
    """
    _known.setdefault(str(path.absolute()), (size, mtime_ns, sha256))


def sample_numbers(count: int) -> list[int]:
    """Returns the sorted numbers of the examples to hash, out of `count`: a random sample of `SAMPLE` examples that
    depends on `count` alone, and the last one. With at most `SAMPLE` examples, all.

    Example:
      >>> sample_numbers(3), len(sample_numbers(50_000)), sample_numbers(50_000)[-1]
      ([0, 1, 2], 1001, 49999)
    """
    if count <= SAMPLE:
        return list(range(count))
    chosen = np.random.default_rng(count).choice(count - 1, SAMPLE, replace=False)
    return [*sorted(map(int, chosen)), count - 1]


def hash_sample(count: int, read: Callable[[int], bytes]) -> tuple[str, str]:
    """Hashes the number `count` of examples and a sample of them. `read(number)` returns the bytes of an example.
    Returns 16 hexadecimal digits, and the part of the examples that they cover, in words ('' for all).

    Args:
      count: Number of examples.
      read: `read(number)`, the content of one example.

    Returns:
      The hash in 16 hexadecimal digits, and the part of the examples that it covers, in words ('' for all).
    """
    numbers = sample_numbers(count)
    digest = _hash([str(count).encode(), *map(read, numbers)])[0]
    return digest, "" if len(numbers) == count else f"{len(numbers):,} of {count:,} examples compared"


def hash_in_order(examples: Iterable[bytes], count: int | None = None, last: bytes = b"") -> tuple[str, str]:
    """Hashes examples (bytes) that can only be read in order, up to `MAX_EXAMPLES` and `MAX_BYTES`, and `last`, the
    content of the last one. Returns 16 hexadecimal digits, and the part that they cover, in words ('' for all).

    Args:
      examples: The content of each example.
      count: Number of examples, if it is known without reading them. None if unknown.
      last: The content of the last example, if it can be read alone. Empty if it cannot.

    Returns:
      The hash in 16 hexadecimal digits, and the part of the examples that it covers, in words ('' for all).
    """
    digest, number, complete = _hash(examples, MAX_EXAMPLES, MAX_BYTES)
    digest = _hash([str(number if count is None else count).encode(), last, digest.encode()])[0]
    of_all = "" if count is None else f" of {count:,}"
    return digest, "" if complete else f"the first {number:,}{of_all} examples compared"


def _hash(parts: Iterable[bytes], max_parts: int | None = None, max_bytes: int | None = None) -> tuple[str, int, bool]:
    """Hashes parts up to a number of parts and bytes.

    Returns:
      The hash, the number of parts that it covers, and whether these are all parts.
    """
    digest, number, size = hashlib.sha256(), 0, 0
    for part in parts:
        if (max_parts is not None and number >= max_parts) or (max_bytes is not None and size > max_bytes):
            return digest.hexdigest()[:16], number, False
        digest.update(len(part).to_bytes(8, "little") + part)
        number, size = number + 1, size + len(part)
    return digest.hexdigest()[:16], number, True
