"""Turns whatever a parser raises about a file into one error that names the file and says what was expected.

Every reader of files that memjax has not written itself parses inside `reading`:

    with reading(file, "the JSON of SQuAD 1.1"):
        for article in parse_json_file(file)["data"]:
            yield article["title"]
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from memjax.data.reading_report import UnreadableError

__all__ = ["check_inside", "expect", "reading"]

Value = TypeVar("Value")

_DAMAGE = (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError, zipfile.BadZipFile, tarfile.TarError)
_MOST = 160  # Number of characters of a parser's message that are repeated.


@contextlib.contextmanager
def reading(path: object, form: str) -> Iterator[None]:
    """Context manager that turns every error of a parser into an `UnreadableError`, which is one line with the file
    `path`, what is wrong with it, and `form`, the expected form. In a generator it holds around the iteration.

    Errors that already name the file keep their text. A file that does not exist or must not be read, and a library
    that is not installed, keep their errors.

    Args:
      path: Path of the file, or a place in it such as 'FILE:3'.
      form: Expected content, as a noun phrase such as 'the JSON of SQuAD 1.1'.

    Raises:
      UnreadableError: The block has raised an error.

    Example:
      >>> with reading("a.json", "a JSON object with data"):
      ...     {}["data"]
      Traceback (most recent call last):
      memjax.data.reading_report.UnreadableError: path: a.json has no 'data', allowed: a JSON object with data
    """
    try:
        yield
    except (UnreadableError, ImportError):
        raise
    except OSError as error:
        if error.filename is not None and str(error.filename) == str(path):
            raise
        raise _unreadable(path, form, error) from error
    except Exception as error:  # libraries raise their own, such as tokenizers a plain Exception
        raise _unreadable(path, form, error) from error


def expect(value: object, kind: type[Value]) -> Value:
    """Returns `value` if it is of a type, such as `str`. Otherwise it raises a `TypeError`, for `reading`.

    Raises:
      TypeError: The value is of another type.

    Example:
      >>> expect("a text", str)
      'a text'
    """
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def check_inside(file: Path, folder: Path) -> Path:
    """Returns `file`, which a data set names or links, if it is inside the folder of the data set once links are
    followed. Otherwise it is an error.

    Args:
      file: File in the folder, or a link.
      folder: Folder of the data set.

    Raises:
      UnreadableError: The file is outside.
    """
    target = file.resolve()
    if target.is_relative_to(folder.resolve()):
        return file
    allowed = f"files inside {folder}; copy it there if it belongs to the data (cp -L)"
    raise UnreadableError(f"path: {file} leads to {target}, allowed: {allowed}", "outside")


def _unreadable(path: object, form: str, error: Exception) -> UnreadableError:
    """Returns the error for a file whose parser has raised `error`."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) and str(path) in text:
        return UnreadableError(text, "of another form")
    if len(text) > _MOST:
        text = f"{text[:_MOST]}..."
    match error:
        case json.JSONDecodeError():
            problem, reason = f"is not JSON ({text})", "not JSON"
        case UnicodeDecodeError():
            problem, reason = f"is not UTF-8 at byte {error.start}", "not UTF-8"
        case RecursionError():
            problem, reason = "is nested too deeply", "of another form"
        case MemoryError():
            problem, reason = f"does not fit into the memory ({text})", "too large"
        case KeyError():
            problem, reason = f"has no {text}", "of another form"
        case _ if isinstance(error, _DAMAGE):
            problem, reason = f"cannot be unpacked ({text or type(error).__name__})", "damaged"
        case _:
            problem, reason = f"cannot be read ({text or type(error).__name__})", "damaged"
    return UnreadableError(f"path: {path} {problem}, allowed: {form}", reason)
