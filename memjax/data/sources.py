"""Texts: named documents before tokenisation, from files of every kind the papers use.

Each reader checks its path when it is called and reads a text when it is asked for. A mistake of the user is a
`ValueError` of one line: what was given, what is allowed, what to do.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

SPLITS = ("train", "validation", "test")


@runtime_checkable
class TextSource(Protocol):
    """Named texts with random access.

    Attributes:
      names: one per document, unique.
      fingerprint: changes when a name or a text changes.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str: ...

    def __iter__(self) -> Iterator[str]: ...


class Texts:
    """Texts that are read one by one when they are asked for.

    Example:
      >>> texts = Texts.from_mapping({"a": "one", "b": "two"})
      >>> texts.names, texts[1], list(texts)
      (['a', 'b'], 'two', ['one', 'two'])
    """

    def __init__(self, names: Sequence[str], read: Callable[[int], str], fingerprint: str):
        self.names = list(names)
        self.fingerprint = fingerprint
        self._read = read

    @classmethod
    def from_mapping(cls, texts: Mapping[str, str], fingerprint: str | None = None) -> Texts:
        """Texts in memory; the fingerprint is their hash unless given."""
        values = list(texts.values())
        if fingerprint is None:
            fingerprint = _digest(part for item in texts.items() for part in item)
        return cls(list(texts), values.__getitem__, fingerprint)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> str:
        return self._read(index)

    def __iter__(self) -> Iterator[str]:
        return (self._read(index) for index in range(len(self.names)))


def split_of(name: str, *, validation: float = 0.08, test: float = 0.08) -> str:
    """The split that a document belongs to, by the SHA-256 of its name.

    Example:
      >>> [split_of(name) for name in ("asyncio", "datetime", "logging")]
      ['train', 'validation', 'test']
    """
    place = int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "big") / 2**64
    return "test" if place < test else "validation" if place < test + validation else "train"


def read_text(path: str | os.PathLike[str]) -> str:
    """A UTF-8 file, unpacked where its name ends in `.xz` or `.gz`.

    Raises:
      ValueError: a missing or empty file, or one that is not UTF-8 (with the byte offset).
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"path: {file} is not a file; check the path")
    content = _open(file).read()
    if not content:
        raise ValueError(f"path: {file} is empty; give a file with text, or remove it")
    return decode_text(content, str(file))


def decode_text(content: bytes, name: str) -> str:
    """UTF-8 bytes as text; `name` says in an error where they come from."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"path: {name} is not UTF-8 at byte {error.start}; convert it to UTF-8") from None


def _open(path: Path):
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    return opener(path, "rb")


def _digest(parts) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:16]
