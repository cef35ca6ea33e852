"""Reading of texts that a user gives to a command, in options or in files."""

from collections.abc import Sequence
from pathlib import Path


def read_file(path: str, option: str) -> str:
    """Returns the text of the file at a path. `option` is the name of the option that named it, for the message of an
    error.

    Raises:
      ValueError: The file does not exist or is not UTF-8.
    """
    from memjax.data.sources import read_text

    if not Path(path).is_file():
        raise ValueError(f"{option}: given {path!r}, allowed: a text file")
    return read_text(path)


def read_texts(texts: Sequence[str], files: Sequence[str], *, by_line: bool = False) -> list[str]:
    """Returns the texts of `--text`, followed by those in the files at the paths of `--file`: one for each line of a
    file with `by_line`, else one for each file.

    Args:
      texts: Values of `--text`.
      files: Values of `--file`.
      by_line: Whether every line of a file is a text. False for one text per file.

    Raises:
      ValueError: There is no text, or an empty one.
    """
    all_texts = [*texts]
    for file in files:
        content = read_file(file, "file")
        all_texts += content.splitlines() if by_line else [content]
    if not all_texts or not all(text.strip() for text in all_texts):
        raise ValueError(
            f"--text: given {'an empty one' if all_texts else 'none'}, allowed: --text TEXT or --file FILE"
        )
    return all_texts
