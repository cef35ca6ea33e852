"""Compares the rows of a recipe once for its table, its findings, the survey and other texts, which state one verdict.

Findings of a recipe name a comparison in braces, `{ROW | CONTROL}` or `{ROW | CONTROL | NUMBER}`. The page of the
recipe has its difference, units and verdict in that place, so that findings follow the runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from memjax.report.verdicts import Comparison
from tools.recipes import RECIPES
from tools.results import comparisons, perplexities, streams
from tools.results.comparisons import Claim, state_comparison
from tools.results.ledger import Measurement, Run
from tools.results.searches import find_searches

FILLED = re.compile(r"\{([^{}|]+) \| ([^{}|]+)(?: \| ([^{}|]+))?\}")
"""Pattern of a comparison that a finding names in braces"""


def compare_recipe(name: str, runs: Sequence[Run], texts: Measurement | None = None) -> dict[Claim, Comparison]:
    """Compares the rows of a recipe with their controls, as in the table of the recipe.

    Args:
      name: Name of the recipe.
      runs: All runs of the ledger.
      texts: Measurement of the texts of a stream, by which the tasks that count are chosen. None where all tasks count.

    Returns:
      Row and control -> the comparison with its verdict. For recipes without orders of tasks the name of the compared
      number follows the control.
    """
    recipe, searches = RECIPES[name], find_searches(runs, name)
    recorded = [run for run in runs if run.recipe == name]
    if not recipe.orders:
        return comparisons.compare_rows(recorded, recipe, searches)
    if perplexities.is_of_nats(recorded):
        return perplexities.compare_ends(recorded, recipe, searches)
    return streams.compare_averages(recorded, recipe, searches, streams.kept_tasks(recorded, texts))


def fill_in(text: str, compared: Mapping[Claim, Comparison]) -> str:
    """Returns a text with difference, units and verdict in place of each comparison that it names in braces.

    Args:
      text: The text, such as a finding.
      compared: Comparisons of the table, see `compare_recipe`.

    Raises:
      ValueError: The text names a comparison that its table does not have.
    """

    def state(match: re.Match[str]) -> str:
        claim = tuple(filter(None, match.groups()))
        if claim not in compared:
            allowed = ", ".join(" | ".join(known) for known in compared)
            raise ValueError(f"findings: given {match[0]}, allowed: {allowed}")
        return state_comparison(compared[claim])

    return FILLED.sub(state, text)
