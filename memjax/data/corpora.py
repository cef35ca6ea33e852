"""Published corpora as sources of texts: enwik8, WikiText and folders of novels."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from memjax import config as configs
from memjax.data.file_contents import decode_bytes, read_tar
from memjax.data.paths import (
    file_fingerprint,
    find_packed,
    packed_names,
    read_text,
)
from memjax.data.sources import SPLITS, Texts, check_split, select_split, texts_from_files

__all__ = ["enwik8", "novels", "wikitext"]


def enwik8(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    sizes: tuple[int, int, int] = (90_000_000, 5_000_000, 5_000_000),
) -> Texts:
    """Reads one split of enwik8 or text8 as `Texts` with one document. The splits are the first, next and last bytes of
    one file, as many as the three `sizes` say. Without `split` it reads all of them.

    The splits have exactly `sizes` bytes. A cut may go through a character, whose bytes are preserved as surrogate
    escapes, which the byte and SentencePiece tokenizers can encode.

    Args:
      path: The file (also `.xz` or `.gz`).
      split: `train`, `validation` or `test`. None for all of them as one text.
      sizes: Number of bytes of train, validation and test.

    Raises:
      ValueError: The file is missing, has fewer bytes, or is not UTF-8.
    """
    file = Path(path)
    content = read_text(file).encode("utf-8")
    if len(content) < sum(sizes):
        raise ValueError(f"path: {file} has {len(content)} bytes; the splits {sizes} need {sum(sizes)}")
    bounds = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    part = SPLITS.index(check_split(split)) if split else 0
    begin, end = bounds[part : part + 2] if split else (0, bounds[-1])
    text = content[begin:end].decode("utf-8", "surrogateescape")
    name = f"{file.name}[{begin}:{end}]"
    return Texts.from_mapping({name: text})


def wikitext(path: str | os.PathLike[str], *, split: str, articles: bool = True) -> Texts:
    """Reads one split of WikiText-2 or WikiText-103 from a folder as `Texts`, one per article, or one in all if
    `articles` is False. `WordTokenizer` gives the published token counts.

    Args:
      path: Folder with `train.txt`, `valid.txt`, `test.txt` or `wiki.train.tokens` and so on (also `.xz`, `.gz`).
      split: `train`, `validation` or `test`.
      articles: Whether each article is a document, cut before its heading ` = Title = ` (for protocol `separate`). If
        False, the whole split is one document (for protocol `contiguous`).

    Raises:
      ValueError: The file of the split is missing or not UTF-8.
    """
    stem = {"train": "train", "validation": "valid", "test": "test"}[check_split(split)]
    names = (f"{stem}.txt", f"wiki.{stem}.tokens")
    file = find_packed(path, *names)
    if file is None:
        raise ValueError(f"path: {path} has none of {', '.join(packed_names(*names))}; give the folder of WikiText")
    text = read_text(file)
    if not articles:
        return Texts.from_mapping({split: text})
    # A heading stands between blank lines; formulas that begin with " = " do not.
    cuts = [
        match.start() for match in re.finditer(r"(?m)^ = [^=\n]+ = $", text) if _is_between_blank_lines(text, match)
    ]
    # What stands before the first heading belongs to the first article, so that the articles join to the file.
    bounds = [0, *cuts[1:], len(text)]
    parts = {}
    for number, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        first = cuts[number] if cuts else 0
        heading = text[first : text.find("\n", first)].strip(" =")
        parts[f"{split}/{number:05d} {heading}"] = text[begin:end]
    return Texts.from_mapping(parts)


def novels(
    path: str | os.PathLike[str], *, split: str | None = None, validation: float = 0.08, test: float = 0.08
) -> Texts:
    """Opens whole books, or one split of them, as `Texts`: every `.txt` file of a folder or of a tar (`.tar`,
    `.tar.xz`, `.tar.gz`). `validation` and `test` are the shares held out by a hash of the file name.

    Books are assigned to splits by a hash of their file name, and never cut. A tar is unpacked into memory.

    Args:
      path: The folder or the tar.
      split: `train`, `validation` or `test`. None for all books.
      validation: Share of the books in [0, 1] that is held out for validation.
      test: Share of the books in [0, 1] that is held out for the test.

    Raises:
      ValueError: The path is missing, is not a tar, or has no `.txt` files, or (when a book is read) it is not UTF-8.
    """
    root = Path(path)
    if root.is_dir():
        texts = texts_from_files(root / "**" / "*.txt", split=None)
        texts = Texts([Path(name).name for name in texts.names], texts.__getitem__, texts.fingerprint)
        return select_split(texts, split, validation=validation, test=test)
    if not root.is_file():
        raise ValueError(f"path: {root} does not exist; give a folder or a tar of .txt files")
    fingerprint = file_fingerprint([root], root.parent)
    books = _books_of_tar(root, fingerprint)
    if not books:
        raise ValueError(f"path: {root} holds no .txt files; give a folder or a tar of .txt files")
    names = sorted(books)
    texts = Texts(names, lambda i: decode_bytes(books[names[i]], f"{root}:{names[i]}"), fingerprint)
    return select_split(texts, split, validation=validation, test=test)


@functools.lru_cache(maxsize=1)
def _books_of_tar(path: Path, fingerprint: str) -> dict[str, bytes]:
    """Unpacks the books of a tar: file name -> content."""
    # Cached because unpacking takes seconds, and each split needs it.
    del fingerprint  # Only distinguishes a changed file from the cached one.
    return {Path(name).name: content for name, content in read_tar(path, lambda name: name.endswith(".txt")).items()}


def open_enwik8(data: configs.Data, split: str) -> Texts:
    """Returns one split of enwik8 or text8, from the file `data.source.path`, as `Texts` with one document."""
    return enwik8(data.source.path, split=split)


def open_wikitext(data: configs.Data, split: str) -> Texts:
    """Returns one split of WikiText, from the folder `data.source.path`, as `Texts`: one per article or one in all.

    It is read as separate articles if the protocol is 'separate' or if the run trains on a half of them, otherwise as
    one text.
    """
    halved = bool(data.train_half) and split == "train"
    return wikitext(data.source.path, split=split, articles=data.protocol == "separate" or halved)


def open_novels(data: configs.Data, split: str) -> Texts:
    """Returns the whole books of one split, from the folder or tar `data.source.path`, as `Texts`."""
    return novels(data.source.path, split=split)


def _is_between_blank_lines(text: str, match: re.Match[str]) -> bool:
    """Returns whether a matched line of a text has blank lines before and after it."""
    before = text[text.rfind("\n", 0, max(match.start() - 1, 0)) + 1 : match.start()]
    after = text[match.end() + 1 : text.find("\n", match.end() + 1) + 1]
    return not before.strip() and not after.strip()
