"""The results of a table of faults, a JSON line for each row, with which a later call goes on."""

from __future__ import annotations

import collections
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tools.faults.judge import FAULTS
from tools.slow_suite import is_of, read_results

__all__ = ["Results", "Row", "describe_counts", "is_in_part"]


class Row(NamedTuple):
    """A row that has been tried.

    Attributes:
      table: Name of the table.
      name: Name of the row, which is the same in every call.
      verdict: A verdict of `tools.faults.judge`.
      details: Lines that tell what has happened. Empty where all is right.
    """

    table: str
    name: str
    verdict: str
    details: str = ""


class Results:
    """The rows that were tried on the same sources.

    Attributes:
      seed: Seed of everything that is drawn.
      rows: Row by the name of its table and its own.
    """

    def __init__(self, file: Path | None, sources: str, part: tuple[int, int] = (1, 1), seed: int = 0):
        """Reads the results of earlier calls.

        Args:
          file: File of the results, which is made. None keeps them in memory.
          sources: Commit of the sources. Rows of others are tried again, and so are rows with a fault.
          part: `(number, parts)`: rows to try, a part of all that is drawn by their names. (1, 1) for all.
          seed: Seed of everything that is drawn.
        """
        self._file, self._part, self.seed = file, part, seed
        self._key = {"sources": sources, "seed": seed}
        lines = read_results(file) if file is not None else []
        known = [Row(*(line[name] for name in Row._fields)) for line in lines if is_of(line, self._key)]
        self.rows = {row[:2]: row for row in known if row.verdict not in FAULTS}

    def is_wanted(self, table: str, name: str) -> bool:
        """Returns whether a row is in the part, and not done."""
        return (table, name) not in self.rows and is_in_part(name, *self._part)

    def draw(self, name: str) -> random.Random:
        """Returns the random generator of a row."""
        return random.Random(f"{self.seed}/{name}")

    def add(self, row: Row) -> None:
        """Adds a row, and writes it to the file. A fault is printed."""
        self.rows[row[:2]] = row
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({**self._key, **row._asdict()}) + "\n")
        if row.verdict in FAULTS:
            print(f"{row.table}: {row.name}: {row.verdict}\n{row.details}", file=sys.stderr, flush=True)


def is_in_part(name: str, number: int, parts: int) -> bool:
    """Returns whether a row is in part `number` (from 1) of `parts` parts, which are drawn by the names of rows.

    Example:
      >>> [sum(is_in_part(f"row {row}", part, 3) for row in range(99)) for part in (1, 2, 3)]
      [33, 33, 33]
    """
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % parts == number - 1


def describe_counts(rows: Iterable[Row], kinds: Iterable[str], group: Callable[[Row], Any]) -> str:
    """Describes the number of rows by verdict as a table in Markdown.

    Args:
      rows: Rows of the table.
      kinds: Verdicts, one for each column.
      group: Function that returns the name of the line in which a row is counted.

    Example:
      >>> print(describe_counts([Row("damage", "a", "right")], ("right",), lambda row: row.name))
      | damage | right |
      |---|--:|
      | a | 1 |
      | all | 1 |
    """
    counts: dict[str, collections.Counter[str]] = {}
    rows, kinds = list(rows), list(kinds)
    for row in rows:
        counts.setdefault(str(group(row)), collections.Counter())[row.verdict] += 1
    counts["all"] = collections.Counter(row.verdict for row in rows)
    head = [f"| {rows[0].table if rows else ''} | {' | '.join(kinds)} |", f"|---|{'--:|' * len(kinds)}"]
    return "\n".join(
        [*head, *(f"| {name} | {' | '.join(str(c[kind]) for kind in kinds)} |" for name, c in counts.items())]
    )
