"""Rules for reading a user's own files: their encoding, and what may be skipped."""

import codecs
from dataclasses import dataclass, fields
from typing import Any, Literal

from memjax.settings.checks import has_field
from memjax.settings.ranges import Encoding, describe_invalid

__all__ = ["ReadingRules", "check_encoding", "held_out_shares", "reading_rules_of"]


@dataclass(frozen=True)
class ReadingRules:
    """Rules for reading a user's files: their encoding, the columns of text and class, and what may be left out where
    it cannot be read.

    Attributes:
      encoding: Encoding of files that are not UTF-8, by a name of Python's codecs. Files that are UTF-8 stay so.
      skip: Unreadable files and records that may be left out. 'few' for at most 5 % of the bytes, 'all' for any
        number, 'none' for an error at the first one.
      text_column: Column or key of labelled files that holds the text. '' to find it by its place or its usual names.
      label_column: Column or key of labelled files that holds the class. '' to find it by its place or its usual names.
      escapes: Treatment of backslashes in labelled files. 'kept' leaves them as they are, 'resolved' replaces escapes
        by their characters, as published sets need it.

    Raises:
      ValueError: An unknown encoding.
    """

    encoding: str = "utf-8"
    skip: Literal["few", "all", "none"] = "few"
    text_column: str = ""
    label_column: str = ""
    escapes: Literal["kept", "resolved"] = "kept"

    def __post_init__(self):
        check_encoding(self.encoding)


def check_encoding(encoding: str) -> str:
    """Returns the name of a text encoding in the spelling of Python's codecs. Raises `ValueError` for an unknown one.

    Raises:
      ValueError: A name that is no text encoding.
    """
    if allowed := describe_invalid(encoding, Encoding):
        raise ValueError(f"encoding: given {encoding!r}, allowed: {allowed}")
    return codecs.lookup(encoding).name


def reading_rules_of(source: Any) -> ReadingRules:
    """Returns the `ReadingRules` that the settings of a source contain, such as its encoding. Default rules where they
    have no such fields.
    """
    names = [field.name for field in fields(ReadingRules) if has_field(source, field.name)]
    return ReadingRules(**{name: getattr(source, name) for name in names})


def held_out_shares(source: Any) -> dict[str, Any]:
    """Returns the shares from 0 to 1 that the settings of a source hold out for validation and test, as a dictionary
    with the keys 'validation' and 'test'.
    """
    return {"validation": source.validation_percent / 100, "test": source.test_percent / 100}
