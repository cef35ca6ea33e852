"""Verdicts on files and records: what is taken, skipped or broken, and the line that counts it.

A file or a record is taken; or it is no text at all (a picture, an empty file) and is skipped; or it is broken, such as
text in another encoding, which is an error unless `ReadingRules.skip` is 'all'.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from memjax.settings.reading_rules import ReadingRules

__all__ = ["ReadingReport", "Record", "UnreadableError"]

MAX_SKIPPED = 0.05  # Share of the bytes that may be skipped without being asked for.


class UnreadableError(ValueError):
    """A file or a record that cannot be taken.

    Attributes:
      reason: Why, in the words of the count, such as 'empty' or 'not text'.
      size: Bytes that it has, 0 where they are not counted.
      is_broken: Whether the text is damaged or in another encoding, which is skipped only where everything may be.
    """

    def __init__(self, message: str, reason: str, *, is_broken: bool = True, size: int = 0):
        super().__init__(message)
        self.reason, self.is_broken, self.size = reason, is_broken, size


class Record(NamedTuple):
    """One row of a table or one object of a JSON file.

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
    """Counts which files or records are taken and skipped, and raises what must not be skipped.

    Attributes:
      num_taken: Number of files or records taken.
      skipped: Reason -> number of files or records skipped for it.
    """

    def __init__(self, unit: str, where: object, rules: ReadingRules):
        """Begins to count.

        Args:
          unit: Plural of the things that are counted, such as 'files'.
          where: Path that messages name.
          rules: Limits of skipping.
        """
        self.unit, self.where, self.rules = unit, where, rules
        self.num_taken = 0
        self.skipped: collections.Counter[str] = collections.Counter()
        self._bytes = self._skipped_bytes = 0
        self._first: UnreadableError | None = None

    def take(self, size: int) -> None:
        """Counts a file or a record of `size` bytes as taken."""
        self.num_taken += 1
        self._bytes += size

    def skip(self, error: UnreadableError, size: int, *, is_alone: bool = False) -> None:
        """Counts a file or a record as skipped.

        Args:
          error: Why it cannot be taken.
          size: Bytes.
          is_alone: Whether the user named this very file.

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

    def select(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields the records that can be taken and counts all."""
        for record in records:
            if isinstance(record.value, UnreadableError):
                self.skip(record.value, record.size)
            else:
                self.take(record.size)
                yield record

    def finish(self) -> str:
        """Returns the line about what was skipped, '' where nothing was.

        Raises:
          ValueError: Nothing was taken, or more than 5 % of the bytes were skipped without being asked for.
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
