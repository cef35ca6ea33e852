"""Counts files and records that are read or skipped, and raises errors for those that must not be skipped.

A file or record is either read, or not a text at all (a picture, an empty file) and skipped, or broken, such as text in
another encoding. A broken one is an error unless `ReadingRules.skip` is 'all'.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from memjax.settings.reading_rules import ReadingRules

__all__ = ["ReadingReport", "Record", "UnreadableError"]

MAX_SKIPPED = 0.05  # Share of the bytes that may be skipped without being asked for.


class UnreadableError(ValueError):
    """The error for a file or a record that cannot be read.

    Attributes:
      reason: Reason in a few words, such as 'empty' or 'not text', by which skipped files are counted.
      size: Number of bytes of the file or record. 0 if they are not counted.
      is_broken: Whether the text is damaged or in another encoding, which is only skipped if `ReadingRules.skip` is
        'all'.
    """

    def __init__(self, message: str, reason: str, *, is_broken: bool = True, size: int = 0):
        super().__init__(message)
        self.reason, self.is_broken, self.size = reason, is_broken, size


class Record(NamedTuple):
    """One row of a table or one object of a JSON file, or the error that says why it cannot be read, with its place and
    size.

    Attributes:
      place: File and number of the row, for messages.
      number: Number of the row or line in the file, from 1.
      value: Fields of a table row as a list, a JSON value, or the error that says why there is none.
      size: Number of characters that it takes, roughly.
    """

    place: str
    number: int
    value: Any
    size: int


class ReadingReport:
    """Counts the files or records that are read and skipped, and raises errors for those that must not be skipped.

    Attributes:
      num_taken: Number of files or records that were read.
      skipped: Number of files or records that were skipped, by reason.
    """

    def __init__(self, unit: str, where: object, rules: ReadingRules):
        """Starts with counts of 0.

        Args:
          unit: Plural of what is counted, such as 'files'.
          where: Path that messages name.
          rules: Rules for what may be skipped.
        """
        self.unit, self.where, self.rules = unit, where, rules
        self.num_taken = 0
        self.skipped: collections.Counter[str] = collections.Counter()
        self._bytes = self._skipped_bytes = 0
        self._first: UnreadableError | None = None

    def count_read(self, size: int) -> None:
        """Counts a file or a record of `size` bytes as read."""
        self.num_taken += 1
        self._bytes += size

    def count_skipped(self, error: UnreadableError, size: int, *, is_alone: bool = False) -> None:
        """Counts a file or a record of `size` bytes as skipped because of `error`, or raises the error if the rules do
        not allow to skip it. `is_alone` says that the user named this very file.

        Args:
          error: Error that describes why it cannot be read.
          size: Number of its bytes.
          is_alone: Whether the user named this very file, which must then not be skipped.

        Raises:
          UnreadableError: The rules do not allow to skip it.
        """
        if is_alone or self.rules.skip == "none" or (error.is_broken and self.rules.skip != "all"):
            advice = "" if is_alone else "; --skip leaves out what cannot be read" if error.is_broken else ""
            raise UnreadableError(f"{error}{advice}", error.reason, is_broken=error.is_broken)
        self.skipped[error.reason] += 1
        self._first = self._first or error
        self._bytes += size
        self._skipped_bytes += size

    def filter_readable(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields the records that can be read, and counts all records. A record that must not be skipped raises its
        error.
        """
        for record in records:
            if isinstance(record.value, UnreadableError):
                self.count_skipped(record.value, record.size)
            else:
                self.count_read(record.size)
                yield record

    def finish(self) -> str:
        """Returns a line about skipped files or records, '' if there are none. It is an error if all were skipped, or
        more than the rules allow.

        Raises:
          ValueError: Nothing was read, or more than 5 % of the bytes were skipped although `skip` is not 'all'.
        """
        if not self.skipped:
            return ""
        count = sum(self.skipped.values())
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.skipped.most_common())
        line = f"{count:,} of {count + self.num_taken:,} {self.unit} skipped: {reasons}"
        if not self.num_taken:
            raise ValueError(f"path: {self.where}: no {self.unit} with text ({reasons}); {self._first}")
        if self.rules.skip != "all" and self._skipped_bytes > MAX_SKIPPED * self._bytes:
            share = f"{self._skipped_bytes / self._bytes:.0%} of the bytes"
            advice = f"more than {MAX_SKIPPED:.0%} needs --skip (source.skip 'all'), or another path"
            raise ValueError(f"path: {self.where}: {line}, {share}; {advice}; the first: {self._first}")
        return line
