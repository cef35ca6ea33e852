"""Finds the files of a path, selects those that are texts, reads them, and computes fingerprints of files."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path

from memjax.data.content import file_sha256, files_with_facts
from memjax.data.file_contents import HEAD_BYTES, PACKINGS, check_text, decode_bytes, open_unpacked, read_text_file
from memjax.data.reader_errors import check_inside
from memjax.data.reading_report import ReadingReport, UnreadableError
from memjax.settings.reading_rules import ReadingRules, check_encoding

__all__ = [
    "digest",
    "encoding_suffix",
    "file_fingerprint",
    "find_files",
    "find_packed",
    "is_hidden",
    "packed_names",
    "read_text",
    "readable_files",
    "select_texts",
]


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """Lists the files of a path, sorted: the file itself, all files below a folder except hidden ones, or those of a
    glob. Not finding any is an error.

    Raises:
      ValueError: The path has no files, or is a folder with a link that leads out of it.
    """
    if not str(path):
        raise ValueError("path: not given; give a file, a folder or a glob")
    if Path(path).is_file():
        return [Path(path)]
    is_folder = Path(path).is_dir()
    if is_folder:
        os.scandir(path).close()  # a folder that may not be read looks empty to `rglob`
    candidates = Path(path).rglob("*") if is_folder else map(Path, glob(str(path), recursive=True))
    files = sorted(file for file in candidates if file.is_file() and not (is_folder and is_hidden(file, path)))
    for file in filter(Path.is_symlink, files if is_folder else []):
        check_inside(file, Path(path))
    if not files:
        what = "has no files" if is_folder else "does not exist and matches no file"
        raise ValueError(f"path: {path} {what}; give a file, a folder or a glob")
    return files


def readable_files(path: str | os.PathLike[str], rules: ReadingRules = ReadingRules()) -> tuple[list[Path], str]:
    """Lists the files of a path (file, folder or glob) that are texts, and returns them with a line about skipped
    files, '' for none. See `select_texts`.

    Args:
      path: File, folder or glob.
      rules: Encoding of the files, and rules for files that may be skipped.

    Returns:
      The files, and a line about skipped files (empty if there are none).

    Raises:
      ValueError: The path has no files, or files that must not be skipped.
    """
    return select_texts(path, find_files(path), rules)


def select_texts(where: object, files: Sequence[Path], rules: ReadingRules) -> tuple[list[Path], str]:
    """Selects those of `files` that are texts, by their first 64 KiB, and returns them with a line about skipped files,
    '' for none. Messages name the path `where`. `rules` say what may be skipped.

    Args:
      where: Path that messages name.
      files: Files to select from.
      rules: Encoding of the files, and rules for files that may be skipped.

    Returns:
      The files, and a line about skipped files (empty if there are none).

    Raises:
      ValueError: Files that must not be skipped, or no file that is a text.
    """
    is_alone = list(files) == [Path(str(where))]
    return _select_texts_once(str(where), files_with_facts(files), rules, is_alone)


@functools.lru_cache(maxsize=8)
def _select_texts_once(
    where: str, facts: Sequence[tuple[Path, int, int]], rules: ReadingRules, is_alone: bool
) -> tuple[list[Path], str]:
    """Selects the files that are texts, from files with their sizes and times. `is_alone`: `where` is a single file."""
    # Cached, because every split needs the files.
    report, files = ReadingReport("files", where, rules), []
    for file, size, _ in facts:
        try:
            # If all broken files may be skipped, files are read completely, to find those broken after the beginning.
            with open_unpacked(file) as opened:
                content = opened.read(-1 if rules.skip == "all" else HEAD_BYTES)
            check_text(content, file, rules.encoding)
            decode_bytes(content, file, rules.encoding, is_head=len(content) == HEAD_BYTES)
        except UnreadableError as error:
            report.count_skipped(error, size, is_alone=is_alone)
        else:
            report.count_read(size)
            files.append(file)
    return files, report.finish()


def packed_names(*names: str) -> list[str]:
    """Returns each of the given file names unpacked and with the endings `.xz` and `.gz`, as a list for messages."""
    return [f"{name}{suffix}" for name in names for suffix in ("", *list(PACKINGS)[:2])]


def find_packed(folder: str | os.PathLike[str], *names: str) -> Path | None:
    """Returns the path of the first of some files, given by their names, that exists in a folder, unpacked or packed.
    None if none exists. A link that leads out of the folder is an error.
    """
    files = (Path(folder) / f"{name}{suffix}" for name in names for suffix in ("", *PACKINGS))
    file = next((file for file in files if file.is_file()), None)
    return check_inside(file, Path(folder)) if file is not None and file.is_symlink() else file


def read_text(path: str | os.PathLike[str], *, allow_empty: bool = False, encoding: str = "utf-8") -> str:
    """Reads the text of a file, which may be packed, as UTF-8 or in `encoding`. An empty file is an error unless
    `allow_empty` is set.

    Args:
      path: Path of the file.
      allow_empty: Whether an empty file is read as an empty text. If False, it is an error.
      encoding: Encoding of the text if it is not UTF-8.

    Raises:
      ValueError: A missing or empty file, one in another encoding (the message says where, and proposes an encoding),
        or one that is not a text.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"path: {file} is not a file; check the path")
    if allow_empty and not file.stat().st_size:
        return ""
    return read_text_file(file, encoding)


def encoding_suffix(rules: ReadingRules) -> str:
    """Returns `-ENCODING`, the end of a fingerprint of files that `rules` read in this encoding. Empty for UTF-8."""
    encoding = check_encoding(rules.encoding)
    return "" if encoding == "utf-8" else f"-{encoding}"


def file_fingerprint(files: Iterable[Path], root: Path) -> str:
    """Returns a fingerprint of the names (relative to `root`) and contents of files, which copying does not change."""
    facts = ((file.relative_to(root).as_posix(), file_sha256(file)) for file in files)
    return "files-" + digest(part for item in facts for part in item)[:16]


def digest(parts: Iterable[str]) -> str:
    """Returns the SHA-256 of a sequence of texts in hexadecimal digits, which also depends on where one text ends and
    the next begins.
    """
    result = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        result.update(len(encoded).to_bytes(8, "little") + encoded)
    return result.hexdigest()


def is_hidden(file: Path, root: str | os.PathLike[str]) -> bool:
    """Returns whether the name of a file, or of a folder between `root` and the file, begins with a dot."""
    return any(part.startswith(".") for part in file.relative_to(root).parts)
