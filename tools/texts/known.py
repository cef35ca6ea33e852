"""The runs and measurements of a book by name, for the cells of its tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from memjax.report.verdicts import format_difference
from tools.recipes import RECIPES, page_of
from tools.results.comparisons import compare_learned, compare_rows
from tools.results.ledger import Measurement, Run, apart
from tools.results.tables import numbers

Measured = Mapping[tuple[str, str], Measurement]


class Known:
    """The runs and measurements of a book, by name."""

    def __init__(self, runs: Mapping[tuple[str, str, int], Run], measured: Measured):
        self._runs, self._measured = runs, measured

    def mean(self, recipe: str, row: str, name: str) -> float:
        """Returns the mean over seeds of a number of a contender."""
        runs = [run for key, run in self._runs.items() if key[:2] == (recipe, row)]
        return statistics.fmean(numbers(run, RECIPES.get(recipe))[name] for run in runs)

    def against(self, recipe: str, row: str, control: str, name: str, digits: int = 2) -> str:
        """Returns verdict, difference and standard error of a contender against its control, by seed."""
        comparison = compare_rows(self.runs(recipe), RECIPES[recipe])[row, control, name]
        return f"{comparison.verdict} {format_difference(comparison, digits)}"

    def learned(self, memory: str, without: str = "parent") -> str:
        """Returns verdict, difference and error of a model that was trained for its memory against its control."""
        measurements = [measurement for (kind, _), measurement in self._measured.items() if kind == "learns"]
        comparison = compare_learned(measurements)[memory, without]
        return f"{comparison.verdict} {format_difference(comparison, 2)}"

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
