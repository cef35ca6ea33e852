"""The runs and measurements of a book by name, for the cells of its tables."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from memjax.report.verdicts import Comparison
from tools.recipes import RECIPES, page_of
from tools.results.comparisons import Claim, compare_learned, judge, state_comparison, state_verdict
from tools.results.ledger import Measurement, Run, apart
from tools.results.tables import numbers
from tools.results.verdicts import compare_recipe

LEAST_UNITS = 6
"""Units of a verdict in a text for people. A table has verdicts of three."""
Measured = Mapping[tuple[str, str], Measurement]


class Known:
    """The runs and measurements of a book, by name."""

    def __init__(self, runs: Mapping[tuple[str, str, int], Run], measured: Measured):
        self._runs, self._measured = runs, measured
        self._compared: dict[str, dict[Claim, Comparison]] = {}

    def mean(self, recipe: str, row: str, name: str) -> float:
        """Returns the mean over seeds of a number of a contender."""
        runs = [run for key, run in self._runs.items() if key[:2] == (recipe, row)]
        return statistics.fmean(numbers(run, RECIPES.get(recipe))[name] for run in runs)

    def against(self, recipe: str, row: str, control: str, number: str = "", digits: int = 2) -> str:
        """Returns difference, standard error, units and verdict of a contender against its control. `number` is what
        is compared of runs that are no stream.
        """
        return state_comparison(self._compare(recipe, row, control, number), digits, LEAST_UNITS)

    def verdict(self, recipe: str, row: str, control: str) -> str:
        """Returns units and verdict of a row of a stream against its control."""
        return state_verdict(self._compare(recipe, row, control), 1, LEAST_UNITS)

    def count_verdicts(self, recipes: Iterable[str]) -> Counter[str]:
        """Counts the verdicts of all comparisons of some recipes."""
        compared = (comparison for recipe in recipes for comparison in self._compare_all(recipe).values())
        return Counter(judge(comparison, LEAST_UNITS) for comparison in compared)

    def _compare(self, recipe: str, row: str, control: str, number: str = "") -> Comparison:
        return self._compare_all(recipe)[(row, control, number) if number else (row, control)]

    def _compare_all(self, recipe: str) -> Mapping[Claim, Comparison]:
        if recipe not in self._compared:
            texts = self.measured("texts", RECIPES[recipe].texts)
            self._compared[recipe] = compare_recipe(recipe, self.all_runs(), texts)
        return self._compared[recipe]

    def learned(self, memory: str, without: str = "cleared") -> str:
        """Returns difference, error, units and verdict of a model that was trained for its memory."""
        measurements = [measurement for (kind, _), measurement in self._measured.items() if kind == "learns"]
        return state_comparison(compare_learned(measurements)[memory, without], 2, LEAST_UNITS)

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
