"""What a cell is made of: the runs and measurements of a book, by name, and what is asked of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from tools.recipes import RECIPES, page_of
from tools.results.comparisons import compare_learned, compare_rows
from tools.results.ledger import Measurement, Run, apart
from tools.results.speed_tables import with_error
from tools.results.tables import numbers

Measured = Mapping[tuple[str, str], Measurement]


class Known:
    """What a cell is made of: the runs and measurements of a book, by name."""

    def __init__(self, runs: Mapping[tuple[str, str, int], Run], measured: Measured):
        self._runs, self._measured = runs, measured

    def mean(self, recipe: str, row: str, name: str) -> float:
        """Of a number of a contender, over its seeds."""
        found = [run for key, run in self._runs.items() if key[:2] == (recipe, row)]
        return statistics.fmean(numbers(run, RECIPES.get(recipe))[name] for run in found)

    def against(self, recipe: str, row: str, control: str, name: str, digits: int = 2) -> str:
        """What a contender is to its control: verdict, difference and standard error; its table has the seeds."""
        one = compare_rows(self.runs(recipe), RECIPES[recipe])[row, control, name]
        return f"{one.verdict} {with_error(one.difference, one.error, digits)}"

    def learned(self, memory: str, without: str = "parent") -> str:
        """What a model that was trained on a task for its memory has over one without: verdict, difference, error."""
        measurements = [one for (kind, _), one in self._measured.items() if kind == "learns"]
        one = compare_learned(measurements)[memory, without]
        return f"{one.verdict} {with_error(one.difference, one.error, 2)}"

    def seeds(self, recipe: str, row: str) -> int:
        """How many runs a contender has."""
        return sum(key[:2] == (recipe, row) for key in self._runs)

    def runs(self, recipe: str) -> list[Run]:
        """All of a recipe."""
        return [run for key, run in self._runs.items() if key[0] == recipe]

    def all_runs(self) -> list[Run]:
        """Of all recipes."""
        return [*self._runs.values()]

    def facts(self, kind: str, name: str) -> dict[str, Any]:
        """Of a measurement."""
        return self._measured[kind, name].facts

    def measured(self, kind: str, name: str) -> Measurement | None:
        """A measurement, where there is one."""
        return self._measured.get((kind, name))

    def row(self, kind: str, name: str, key: str, value: Any) -> dict[str, Any]:
        """The row of a measurement that has this value."""
        return next(row for row in self.facts(kind, name)["rows"] if row[key] == value)

    def speed(self, suite: str, contender: str, mode: str) -> float:
        """How many times as fast as the other implementation."""
        facts = self.facts("bench", suite)
        wanted = (contender, mode)
        record = next(r for r in apart(facts) if (r["contender"], r["mode"]) == wanted)
        return record["ratios"][facts["baseline"]]["value"]


def link(name: str, text: str = "table") -> str:
    """A link to the page of a recipe or a measurement, from the top of the repository."""
    return f"[{text}](tools/results/tables/{page_of(name)}.md)"
