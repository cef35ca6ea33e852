"""Rules for reading a user's own files: their encoding, and what may be skipped."""

import codecs
from dataclasses import dataclass
from typing import Literal

from memjax.settings.ranges import Encoding, describe_invalid

__all__ = ["ReadingRules", "check_encoding"]


@dataclass(frozen=True)
class ReadingRules:
    """Encoding of the files of a source, and the treatment of files and records that cannot be read.

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
    """Returns the name of a text encoding as Python's codecs write it.

    Raises:
      ValueError: A name that is no text encoding.
    """
    if allowed := describe_invalid(encoding, Encoding):
        raise ValueError(f"encoding: given {encoding!r}, allowed: {allowed}")
    return codecs.lookup(encoding).name
