"""Looks up and compares the runs and measurements of a book, for the texts that quote them."""

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
"""Smallest number of units for a verdict in README, guides and survey. A table has verdicts from three units on"""
Measured = Mapping[tuple[str, str], Measurement]
"""Kind and name -> measurement"""


class Known:
    """The runs and measurements of a book, by name.

    Args:
      runs: Recipe, row and seed -> run.
      measured: Kind and name -> measurement.
    """

    def __init__(self, runs: Mapping[tuple[str, str, int], Run], measured: Measured):
        self._runs, self._measured = runs, measured
        self._compared: dict[str, dict[Claim, Comparison]] = {}

    def mean(self, recipe: str, row: str, name: str) -> float:
        """Returns the mean over seeds of a number of a row. `name` is its name in `tools.results.tables.numbers`."""
        runs = [run for key, run in self._runs.items() if key[:2] == (recipe, row)]
        return statistics.fmean(numbers(run, RECIPES.get(recipe))[name] for run in runs)

    def against(self, recipe: str, row: str, control: str, number: str = "", digits: int = 2) -> str:
        """Returns difference, standard error, units and verdict of a row against its control, as text.

        Args:
          recipe: Name of the recipe.
          row: Row of the recipe.
          control: Row that it is compared with.
          number: Name of the compared number, such as 'test perplexity'. '' for a stream of tasks.
          digits: Decimals of the difference.
        """
        return state_comparison(self._compare(recipe, row, control, number), digits, LEAST_UNITS)

    def verdict(self, recipe: str, row: str, control: str) -> str:
        """Returns units and verdict of a row of a stream of tasks against its control, as text."""
        return state_verdict(self._compare(recipe, row, control), 1, LEAST_UNITS)

    def count_verdicts(self, recipes: Iterable[str]) -> Counter[str]:
        """Counts the verdicts of all comparisons of some recipes."""
        compared = (comparison for recipe in recipes for comparison in self._compare_all(recipe).values())
        return Counter(judge(comparison, LEAST_UNITS) for comparison in compared)

    def _compare(self, recipe: str, row: str, control: str, number: str = "") -> Comparison:
        return self._compare_all(recipe)[(row, control, number) if number else (row, control)]

    def _compare_all(self, recipe: str) -> Mapping[Claim, Comparison]:
        if recipe not in self._compared:
            texts = self.find_measurement("texts", RECIPES[recipe].texts)
            self._compared[recipe] = compare_recipe(recipe, self.all_runs(), texts)
        return self._compared[recipe]

    def describe_memory_effect(self, memory: str, without: str = "cleared") -> str:
        """Returns difference, standard error, units and verdict of a trained model with its memory against the same
        model without it, as text.

        Args:
          memory: Name of the measurement of the kind `learns`.
          without: Name of the control, such as 'cleared'.
        """
        measurements = [measurement for (kind, _), measurement in self._measured.items() if kind == "learns"]
        return state_comparison(compare_learned(measurements)[memory, without], 2, LEAST_UNITS)

    def count_runs(self, recipe: str, row: str) -> int:
        """Returns the number of runs of a row."""
        return sum(key[:2] == (recipe, row) for key in self._runs)

    def runs(self, recipe: str) -> list[Run]:
        """Returns all runs of a recipe."""
        return [run for key, run in self._runs.items() if key[0] == recipe]

    def all_runs(self) -> list[Run]:
        """Returns the runs of all recipes."""
        return [*self._runs.values()]

    def facts(self, kind: str, name: str) -> dict[str, Any]:
        """Returns the recorded numbers of a measurement."""
        return self._measured[kind, name].facts

    def find_measurement(self, kind: str, name: str) -> Measurement | None:
        """Returns the measurement of a kind and a name. None where the book does not have it."""
        return self._measured.get((kind, name))

    def row(self, kind: str, name: str, key: str, value: Any) -> dict[str, Any]:
        """Returns the row of a measurement whose entry `key` is `value`."""
        return next(row for row in self.facts(kind, name)["rows"] if row[key] == value)

    def speed_ratio(self, suite: str, contender: str, mode: str) -> float:
        """Returns the speed of a contender as a multiple of that of the suite's baseline, another implementation."""
        facts = self.facts("bench", suite)
        wanted = (contender, mode)
        record = next(r for r in apart(facts) if (r["contender"], r["mode"]) == wanted)
        return record["ratios"][facts["baseline"]]["value"]


def describe_neighbors(facts: Mapping[str, Any]) -> str:
    """Describes how many neighbours a measurement of kNN-LM is best with on validation, such as "256 neighbours", and
    whether they are the most that were tried.
    """
    best = min(facts["knn_lm"], key=lambda row: row["validation"])["neighbors"]
    is_most = best == max(row["neighbors"] for row in facts["knn_lm"])
    return f"{best} neighbours{', the most that were tried' if is_most else ''}"


def link(name: str, text: str = "table") -> str:
    """Returns a link to the page of a recipe or a measurement. Its target is a path from the top of the repository."""
    return f"[{text}](tools/results/tables/{page_of(name)}.md)"
