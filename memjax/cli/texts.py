"""Texts that a user gives to a verb, by word or in files."""

from collections.abc import Sequence
from pathlib import Path


def read_file(path: str, option: str) -> str:
    """A text file that an option names.

    Raises:
      ValueError: there is no such file, or it is not UTF-8.
    """
    from memjax.data.sources import read_text

    if not Path(path).is_file():
        raise ValueError(f"{option}: given {path!r}, allowed: a text file")
    return read_text(path)


def read_texts(texts: Sequence[str], files: Sequence[str], *, by_line: bool = False) -> list[str]:
    """Texts, then those of files.

    Args:
      texts: of `--text`.
      files: of `--file`.
      by_line: every line of a file is a text.

    Raises:
      ValueError: none at all, or an empty one.
    """
    found = [*texts]
    for file in files:
        text = read_file(file, "file")
        found += text.splitlines() if by_line else [text]
    if not found or not all(text.strip() for text in found):
        raise ValueError(f"text: given {'an empty one' if found else 'none'}, allowed: --text TEXT or --file FILE")
    return found
