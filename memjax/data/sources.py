"""Texts before tokenisation: named documents with random access, and readers for files of the kinds that papers use.

A reader checks its path when it is called, and reads each text when it is accessed. A mistake of the user raises a
`ValueError` with one line: what was given, what is allowed, what to do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from memjax.data.paths import (
    digest,
    encoding_suffix,
    file_fingerprint,
    is_hidden,
    read_text,
    readable_files,
    select_texts,
)
from memjax.data.reader_errors import check_inside, reading
from memjax.data.reading_report import UnreadableError
from memjax.settings.reading_rules import ReadingRules

__all__ = ["TextSource", "Texts", "texts_from_directories", "read_text", "texts_from_files"]

SPLITS = ("train", "validation", "test")


@runtime_checkable
class TextSource(Protocol):
    """Interface of texts that are read by index, each a str. Their names are in `names`.

    Attributes:
      names: Unique names of the documents.
      fingerprint: Hash that changes when a name or a text changes.
    """

    names: list[str]
    fingerprint: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str: ...

    def __iter__(self) -> Iterator[str]: ...


class Texts:
    """Named texts with random access, each of which is read when it is accessed, as a str.

    Attributes:
      names: Unique names of the documents.
      fingerprint: Hash that changes when a name or a text changes.
      compared: Part of the texts that the fingerprint covers, in words. Empty for all of them.
      note: Line about files and records that were skipped. Empty where none were.

    Example:
      >>> texts = Texts.from_mapping({"a": "one", "b": "two"})
      >>> texts.names, texts[1], list(texts)
      (['a', 'b'], 'two', ['one', 'two'])
    """

    def __init__(self, names: Sequence[str], read: Callable[[int], str], fingerprint: str):
        """Takes the names of the texts, a function from the number of a text to the text, and a hash of the texts."""
        self.names = list(names)
        self.fingerprint, self.compared, self.note = fingerprint, "", ""
        self._read = read

    @classmethod
    def from_mapping(cls, texts: Mapping[str, str], fingerprint: str | None = None) -> Texts:
        """Wraps texts in memory, name -> text, as `Texts`. Their fingerprint is a hash of them unless one is passed."""
        values = list(texts.values())
        if fingerprint is None:
            fingerprint = digest(part for item in texts.items() for part in item)[:16]
        return cls(list(texts), values.__getitem__, fingerprint)

    def select(self, indices: Sequence[int], name: str) -> Texts:
        """Returns the texts at `indices` as `Texts`. `name` is a name of this selection, which is added to the
        fingerprint.
        """
        return Texts([self.names[i] for i in indices], lambda i: self._read(indices[i]), f"{self.fingerprint}-{name}")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> str:
        return self._read(index)

    def __iter__(self) -> Iterator[str]:
        return (self._read(index) for index in range(len(self.names)))


def texts_without_names(texts: Any) -> Iterator[str]:
    """Yields the texts of a source, each a str, without their names. Texts that cannot be read and may be skipped are
    left out.

    Args:
      texts: Texts with random access, or an iterable of texts or of pairs of name and text.
    """
    if hasattr(texts, "names"):
        items = (text_or_problem(texts, index) for index in range(len(texts)))
    else:
        items = (item[1] if isinstance(item, tuple) else item for item in texts)
    return (item for item in items if not isinstance(item, UnreadableError))


def text_or_problem(texts: Any, index: int) -> str | UnreadableError:
    """Returns one text of a source, or the `UnreadableError` of a text that cannot be read and may be skipped. A text
    that must not be skipped raises its error.

    Raises:
      UnreadableError: A broken text, which must not be skipped.
    """
    try:
        return texts[index]
    except UnreadableError as problem:
        if problem.is_broken:
            raise
        return problem


def assign_split(name: str, *, validation: float, test: float) -> str:
    """Returns 'train', 'validation' or 'test' for a document, by the SHA-256 of its name. `validation` and `test` are
    the shares of documents in [0, 1] that are held out.

    Args:
      name: Name of the document.
      validation: Share of the documents in [0, 1] that is held out for validation.
      test: Share of the documents in [0, 1] that is held out for the test.

    Returns:
      'train', 'validation' or 'test'.

    Example:
      >>> [assign_split(name, validation=0.08, test=0.08) for name in ("asyncio", "datetime", "logging")]
      ['train', 'validation', 'test']
    """
    place = int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "big") / 2**64
    return "test" if place < test else "validation" if place < test + validation else "train"


def select_split(
    texts: Texts, split: str | None, *, validation: float, test: float, few_are_cut: bool = False
) -> Texts:
    """Returns the texts of one split, selected by a hash of their names. `validation` and `test` are the held-out
    shares. With `few_are_cut` each text is cut into three parts instead if some split would have none. See
    `assign_split`.

    Args:
      texts: All documents.
      split: `train`, `validation` or `test`. None for all documents.
      validation: Share of the documents in [0, 1] that is held out for validation.
      test: Share of the documents in [0, 1] that is held out for the test.
      few_are_cut: Whether to cut each text into three parts if some split would otherwise have no document.

    Raises:
      ValueError: An unknown split, or a split without documents.
    """
    if split is None:
        return texts
    check_split(split)
    places = [assign_split(name, validation=validation, test=test) for name in texts.names]
    indices = [index for index, place in enumerate(places) if place == split]
    shares_of = {"train": 1 - validation - test, "validation": validation, "test": test}
    if few_are_cut and any(share > 0 and name not in places for name, share in shares_of.items()):
        cut = lambda index: _part_of_text(texts[index], split, texts.names[index], validation=validation, test=test)
        names = [f"{name} ({split})" for name in texts.names]
        return Texts(names, cut, f"{texts.fingerprint}-{split}-{validation:g}-{test:g}-inside")
    if not indices:
        raise ValueError(
            f"split: no document in {split} ({shares_of[split]:.0%} of {len(texts)} by a hash of the name); "
            "give more documents, or a larger share"
        )
    return texts.select(indices, f"{split}-{validation:g}-{test:g}")


def count_in_split(num_train: int, split: str, fraction: int = 8) -> int:
    """Returns the number of synthetic documents of a split: `num_train` for 'train', `num_train // fraction` (at least
    1) for the other splits.

    Args:
      num_train: Number of documents of the training split.
      split: 'train', 'validation' or 'test'.
      fraction: Divisor of the number for validation and test.

    Example:
      >>> [count_in_split(64, split) for split in SPLITS]
      [64, 8, 8]
    """
    return num_train if split == "train" else max(num_train // fraction, 1)


def texts_from_files(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    validation: float = 0.05,
    test: float = 0.05,
    rules: ReadingRules = ReadingRules(),
) -> Texts:
    """Opens text files, also packed ones, or one split of them, as `Texts`, one per file. `validation` and `test` are
    held-out shares: of files by a hash of their names, or of the end of a single file. `rules` say how files are read.

    Files are assigned to splits by a hash of their names. A single file is cut at line ends into consecutive parts
    instead: the first `1 - validation - test` of it is train, then comes validation, then test. All files are cut in
    this way if some split would otherwise have none.

    Args:
      path: A file, a folder (all files in it except hidden ones) or a glob (`**` for any depth).
      split: `train`, `validation` or `test`. None for all texts.
      validation: Share in [0, 1] that is held out for validation.
      test: Share in [0, 1] that is held out for the test.
      rules: Encoding of the files, and rules for files that may be skipped.

    Raises:
      ValueError: A path that is missing or without text, files that must not be skipped, a split without documents, or
        (when a text is read) a file in another encoding.
    """
    files, note = readable_files(path, rules)
    if len(files) == 1:
        texts = _part_of_file(files[0], split, validation=validation, test=test, encoding=rules.encoding)
    else:
        root = Path(os.path.commonpath([file.parent for file in files]))
        names = [file.relative_to(root).as_posix() for file in files]
        fingerprint = file_fingerprint(files, root) + encoding_suffix(rules)
        texts = Texts(names, lambda i: read_text(files[i], encoding=rules.encoding), fingerprint)
        texts = select_split(texts, split, validation=validation, test=test, few_are_cut=True)
    texts.note = note
    return texts


def texts_from_directories(
    path: str | os.PathLike[str],
    *,
    pattern: str = "**/*",
    order_file: str = "",
    split: str | None = None,
    validation: float = 0.05,
    test: float = 0.05,
    rules: ReadingRules = ReadingRules(),
) -> Texts:
    """Opens the folders in `path`, such as code repositories or books in chapters, as `Texts`, one per folder.
    `pattern` is a glob of the files to join, `order_file` the name of a file in each folder that lists them in order.

    The files of a folder are joined, each after a line `# path`. Hidden files are left out, and files that are not
    texts are skipped.

    Args:
      path: Folder that contains the folders.
      pattern: Glob of the files to join, relative to each folder.
      order_file: Name of a file inside each folder that lists the files in order, one path per line relative to the
        folder. Files that are not listed are left out. A folder without the file is joined in path order. Empty for
        path order in all folders.
      split: `train`, `validation` or `test`, by a hash of the name of the folder. None for all folders.
      validation: Share of the folders in [0, 1] that is held out for validation.
      test: Share of the folders in [0, 1] that is held out for the test.
      rules: Encoding of the files, and rules for files that may be skipped.

    Raises:
      ValueError: No such folder, no folder inside it with matching text, a listed file that does not exist, or files
        that must not be skipped.
    """
    root, (members, note) = Path(path), find_directory_files(path, pattern=pattern, order_file=order_file, rules=rules)
    names = list(members)

    def read(index: int) -> str:
        folder = root / names[index]
        parts = (
            (file.relative_to(folder).as_posix(), read_text(file, encoding=rules.encoding))
            for file in members[names[index]]
        )
        return "".join(f"# {name}\n{text}" + ("" if text.endswith("\n") else "\n") for name, text in parts)

    fingerprint = file_fingerprint([file for files in members.values() for file in files], root)
    texts = select_split(
        Texts(names, read, fingerprint + encoding_suffix(rules)), split, validation=validation, test=test
    )
    texts.note = note
    return texts


def find_directory_files(
    path: str | os.PathLike[str], *, pattern: str, order_file: str, rules: ReadingRules
) -> tuple[dict[str, list[Path]], str]:
    """Returns folder name -> list of the files that `texts_from_directories` joins, and a line about skipped files, ''
    for none. See `texts_from_directories` for the arguments.

    Returns:
      Mapping from the name of a folder to its files, and a line of text about skipped files (empty if there are none).

    Raises:
      ValueError: No such folder, or no folder inside it with matching text.
    """
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"path: {root} is not a folder; give the folder that holds one folder per document")
    members = {}
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        files = _files_of_folder(folder, root, pattern, order_file)
        if files:
            members[folder.name] = files
    if not members:
        raise ValueError(f"path: no folder in {root} has files that match {pattern!r}; check the path and the pattern")
    readable, note = select_texts(root, [file for files in members.values() for file in files], rules)
    texts = set(readable)
    return {name: left for name, files in members.items() if (left := [file for file in files if file in texts])}, note


def check_split(split: str) -> str:
    """Returns the name of a split, and raises `ValueError` for an unknown one."""
    if split not in SPLITS:
        raise ValueError(f"split: {split!r}; allowed are {', '.join(SPLITS)}")
    return split


def _part_of_file(file: Path, split: str | None, *, validation: float, test: float, encoding: str) -> Texts:
    """Opens the part of a single file that belongs to a split."""
    text = read_text(file, encoding=encoding)
    if split is None:
        return Texts.from_mapping({file.name: text})
    part = _part_of_text(text, split, str(file), validation=validation, test=test)
    return Texts.from_mapping({f"{file.name} ({split})": part})


def _part_of_text(text: str, split: str, name: str, *, validation: float, test: float) -> str:
    """Returns the part of a text that belongs to a split: the beginning is train, then comes validation, then test."""
    part = SPLITS.index(check_split(split))
    marks = [0.0, 1 - validation - test, 1 - test, 1.0]
    bounds = [0, *(_line_end(text, round(len(text) * mark)) for mark in marks[1:-1]), len(text)]
    if bounds[part] >= bounds[part + 1]:
        raise ValueError(f"split: no text in {split} of {name}; give a larger file, or a larger share")
    return text[bounds[part] : bounds[part + 1]]


def _line_end(text: str, place: int) -> int:
    """Returns the position after the end of the line that contains `place`, or `place` itself in the last line."""
    end = text.find("\n", max(place - 1, 0)) + 1
    return end if 0 < end < len(text) else place


def _files_of_folder(folder: Path, root: Path, pattern: str, order_file: str) -> list[Path]:
    """Lists the files of a folder in the order in which they are joined. All must be inside `root`."""
    listing = folder / order_file
    if order_file and listing.is_file():
        with reading(listing, "a list of files, one path in the folder per line"):
            listed = [
                folder / line.strip() for line in read_text(check_inside(listing, root)).splitlines() if line.strip()
            ]
            missing = [file for file in listed if not file.is_file()]
            if missing:
                raise ValueError(f"order_file: {listing} lists {missing[0]}, which is not a file; correct the list")
            return [check_inside(file, root) for file in listed]
    files_of_pattern = (file for file in folder.glob(pattern) if file.is_file() and not is_hidden(file, folder))
    files = [check_inside(file, root) for file in files_of_pattern]
    return sorted(files, key=lambda file: file.relative_to(folder).parts)
