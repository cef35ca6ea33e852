"""Differences between contenders with their errors, and what may be said of them: gain, level or loss.

Runs of one seed have the same batches, so that differences are taken seed by seed. A difference is a gain or a loss
where 0 lies outside its interval of 95 % (Student's t of the seeds), of three seeds or more; otherwise it is level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tools.recipes import Recipe
from tools.results.ledger import Measurement, Run
from tools.results.speed_tables import grid, with_error
from tools.results.tables import numbers, spread

MORE_IS_BETTER = ("accuracy", "BLEU", "F1", "ROUGE", "METEOR", "exact match")
LEAST_SEEDS = 3
NOT_COMPARED = ("parameters", "memory bytes per row", "targets", "pairs", "pairs too long")


class Difference(NamedTuple):
    """Of a number of two contenders, over the seeds that both have.

    Attributes:
      mean: of the differences.
      error: standard error of that mean; NaN of a single seed.
      seeds: how many.
      verdict: 'gain', 'level', 'loss', or 'too few seeds'.
    """

    mean: float
    error: float
    seeds: int
    verdict: str


def difference(own: Mapping[int, float], control: Mapping[int, float], *, more_is_better: bool) -> Difference:
    """What a contender has more than its control.

    Args:
      own: seed -> value.
      control: seed -> value of the control.
      more_is_better: a larger value is a gain.

    Raises:
      ValueError: no seed in common.

    Example:
      >>> control = {0: 2.0, 1: 2.1, 2: 2.2}
      >>> difference({0: 1.5, 1: 1.61, 2: 1.69}, control, more_is_better=False).verdict
      'gain'
      >>> difference({0: 1.5, 1: 2.5, 2: 2.2}, control, more_is_better=False).verdict
      'level'
    """
    from scipy import stats

    found = [own[seed] - control[seed] for seed in own if seed in control]
    if not found:
        raise ValueError(f"seeds: given {sorted(own)} and {sorted(control)}, allowed: at least one in common")
    mean, count = statistics.fmean(found), len(found)
    error = statistics.stdev(found) / math.sqrt(count) if count > 1 else math.nan
    if count < LEAST_SEEDS:
        return Difference(mean, error, count, "too few seeds")
    outside = abs(mean) > error * float(stats.t.ppf(0.975, count - 1))
    verdict = "level" if not outside else "gain" if (mean > 0) == more_is_better else "loss"
    return Difference(mean, error, count, verdict)


def compare(runs: Sequence[Run], row: str, control: str, name: str, recipe: Recipe | None = None) -> Difference:
    """A number of a row against that of its control, as tables name it (`tools.results.tables.numbers`)."""
    own, other = (
        {run.seed: numbers(run, recipe)[name] for run in runs if run.row == wanted} for wanted in (row, control)
    )
    return difference(own, other, more_is_better=any(word in name for word in MORE_IS_BETTER))


def differences(runs: Sequence[Run], recipe: Recipe) -> str:
    """Every row against its control, each number with its standard error; '' where the recipe names none."""
    known, cells = {run.row: run for run in runs}, []
    pairs = [(row, control) for row, controls in recipe.controls.items() for control in controls]
    for row, control in pairs:
        if row in known and control in known:
            both = [numbers(known[name], recipe) for name in (row, control)]
            shown = [
                n for n in both[0] if n in both[1] and not n.endswith(NOT_COMPARED) and not n.startswith("slots: ")
            ]
            for name in shown:
                found = compare(runs, row, control, name, recipe)
                cells.append([row, control, name, with_error(found.mean, found.error, 4), found.seeds, found.verdict])
    if not cells:
        return ""
    heads = ["row", "control", "number", "difference ± standard error", "seeds", "verdict"]
    return f"Against the controls, seed by seed:\n\n{grid(heads, cells)}"


def memory_figures(runs: Sequence[Run]) -> str:
    """What the memories of the trained models say of themselves, mean and range over seeds; '' where none does."""
    from memjax.inspection.figures import FIGURES, find_figures

    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for name, figure in find_figures(run.results["evaluation"].get("metrics", {})).items():
            found.setdefault(run.row, {}).setdefault(name, []).append(figure.mean)
    names = [name for name in FIGURES if any(name in values for values in found.values())]
    if not names:
        return ""
    cells = [[row, *(spread(values.get(name, [])) for name in names)] for row, values in found.items()]
    meanings = "; ".join(f"`{name}`: {FIGURES[name].meaning}" for name in names)
    return f"What the memories say of themselves at the end ({meanings}):\n\n{grid(['row', *names], cells)}"


def learned(measurements: Sequence[Measurement]) -> str:
    """What models have learned to use of their memories: every task, with the memory and without, mean and range."""
    cells = []
    for one in measurements:
        facts = one.facts
        found = [record["found"] for record in facts["records"]]
        for what in found[0]:
            about = [one.name, facts["about"], facts["unit"], f"{facts['chance']:g}"] if what == "kept" else [""] * 4
            cells.append([*about, what.replace("_", " "), spread([values[what] for values in found])])
        cells[-1].append(f"{facts['cpu_seconds']:,}")
        cells[-1].append(one.commit)
    heads = ["memory", "what has to be remembered", "unit", "chance", "memory is", "three seeds", "CPU s", "commit"]
    return grid(heads, [[*cell, *[""] * (len(heads) - len(cell))] for cell in cells])
