"""Renders tables of streams of texts: scores, costs and comparisons of every method.

The matrices of these runs have nats per token, of which less is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.metrics import (
    average_perplexity,
    increased_perplexity,
    perplexities_after_each,
)
from memjax.report.outcomes import SPIKE
from memjax.report.verdicts import Comparison, compare_pairs
from tools.recipes import Recipe
from tools.results.comparisons import Claim
from tools.results.ledger import Measurement, Run
from tools.results.searches import RowSearch, settle_verdicts
from tools.results.speed_tables import grid
from tools.results.streams import kept_in_words, table_of

NATS = "nats_per_token"
ABOUT = (
    "AP, the geometric mean of the perplexities of all domains in the end, and AP+, by how much those of the domains "
    "but the last have grown since they were learned: means over seeds and their deviations. Beside them the nats a "
    "token of each domain in the end (and right after it was learned)."
)


def is_of_nats(runs: Sequence[Run]) -> bool:
    """Returns whether the matrices of some runs have nats per token. False where there are no runs."""
    return bool(runs) and runs[0].evaluations.get("stream", {}).get("measure") == NATS


MEANS = ("growth_seconds", "compilation_seconds", "skipped", "spikes", "parameters")
"""Costs whose means over runs a table has, in the order of its columns"""
COSTS = (
    "What a run needs beside the model, and where its seconds go (means over seeds of the runs that say it; rows are "
    "not timed side by side): of updates, until the end of each domain; of growing the model; of the first updates of "
    "all stages, compilation included where no earlier run had compiled the same; the updates that were skipped; lines "
    f"of the log whose loss is {SPIKE:g} nats above that of the line before; and nats a token of rows of the memory "
    "right before and after each growth, which is what a warm-up has to mend. AP and AP+ after each domain are of the "
    "domains so far; the work until then is the same in all rows."
)


def in_words(values: Sequence[float], digits: int = 1) -> str:
    """Returns the mean and the standard deviation of some values as a text. A single value has no deviation.

    Args:
      values: Values of runs, one or more.
      digits: Decimals of both numbers.
    """
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def costs(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of the perplexities after each domain and of the costs, with one row for each method."""
    cells, count = [], len(runs[0].evaluations["stream"]["tasks"])
    for row in recipe.variants:
        streams = [run.evaluations["stream"] for run in runs if run.row.rpartition(", ")[0] == row]
        if not streams:
            continue
        each = [perplexities_after_each(stream["scores"]) for stream in streams]
        after = [
            _after([perplexities["AP"][i] for perplexities in each], [perplexities["AP+"][i] for perplexities in each])
            for i in range(count)
        ]
        stored = kept_in_words([stream["kept_bytes"] for stream in streams])
        growths = [stream["cost"]["growths"] for stream in streams if stream["cost"].get("growths")]
        moved = [f"{a:.3f} → {b:.3f}" for a, b in np.mean(growths, axis=0)] if growths else []
        seconds_after_each = [
            stream["cost"]["seconds_after_each"] for stream in streams if "seconds_after_each" in stream["cost"]
        ]
        until = (
            " / ".join(f"{seconds:.0f}" for seconds in np.mean(seconds_after_each, axis=0))
            if seconds_after_each
            else ""
        )
        means = [until or _mean_cost(streams, "update_seconds"), *(_mean_cost(streams, name) for name in MEANS)]
        cells.append([row, *after, *means, stored, ", ".join(moved)])
    heads = ["row", *(f"AP (AP+) after {name}" for name in runs[0].evaluations["stream"]["tasks"]), "seconds"]
    heads += ["growing, s", "compiling, s", "skipped", "spikes", "parameters", "room, MB", "nats before → after growth"]
    return f"{COSTS}\n\n{grid(heads, cells)}"


def _after(perplexities: Sequence[float], increases: Sequence[float]) -> str:
    """Returns the mean and deviation of AP over runs, followed by the mean of AP+ where all runs have it."""
    return in_words(perplexities) + ("" if np.isnan(increases).any() else f" ({np.mean(increases):+.1f})")


def _mean_cost(streams: Sequence[Mapping[str, Any]], name: str) -> str:
    """Returns the mean of a cost over the runs that report it, as a cell of a table. '' where no run does."""
    known = [stream["cost"][name] for stream in streams if name in stream["cost"]]
    return f"{np.mean(known):,.1f}".removesuffix(".0") if known else ""


def methods(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of AP, AP+ and the nats a token of each domain, with one row for each method."""
    cells, names = [], runs[0].evaluations["stream"]["tasks"]
    for row in recipe.variants:
        row_runs = [run for run in runs if run.row.rpartition(", ")[0] == row]
        if not row_runs:
            continue
        nats = np.array([run.evaluations["stream"]["scores"] for run in row_runs])
        perplexities = [
            in_words([measure(np.exp(matrix)) for matrix in nats])
            for measure in (average_perplexity, increased_perplexity)
        ]
        mean = nats.mean(axis=0)
        domains = [f"{mean[-1, i]:.3f} ({mean[i, i]:.3f})" for i in range(len(names))]
        cells.append(
            [row, str(len(row_runs)), *perplexities, *domains, f"{np.mean([run.step for run in row_runs]):,.0f}"]
        )
    return f"{ABOUT}\n\n{grid(['row', 'runs', 'AP', 'AP+', *names, 'updates'], cells)}"


def compare_ends(runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch]) -> dict[Claim, Comparison]:
    """Compares the mean nats of all domains at the end of every row with those of its controls, seed by seed.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      searches: Row -> its search. Rows that were not searched alike have no verdict.

    Returns:
      Row and control -> the comparison with its verdict, where there are pairs of runs.
    """
    ends = {
        (run.row.rpartition(", ")[0], run.seed): float(np.mean(run.evaluations["stream"]["scores"][-1])) for run in runs
    }
    compared: dict[Claim, Comparison] = {}
    for row, controls in recipe.controls.items():
        for control in controls:
            pair = [[ends.get((name, seed), np.nan) for seed in recipe.seeds] for name in (row, control)]
            comparison = compare_pairs(*pair, more_is_better=False)
            if comparison.units:
                compared[row, control] = comparison
    return settle_verdicts(compared, searches)


def differences(runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch]) -> str:
    """Returns a table of every row against its controls, and how each row was searched.

    The mean nats of all domains at the end are compared, seed by seed. '' where there is no comparison.
    """
    about = "Nats a token, the mean of all domains in the end, seed by seed; less is a gain"
    return table_of(compare_ends(runs, recipe, searches), searches, about, "nats", 4)


def ancestors(measurement: Measurement) -> str:
    """Returns a table of the correlations of heads with those of ancestors, with a row for each pair of generations.

    The columns are means over all heads, for related heads and others, and means over the related heads of each layer.
    """
    show = lambda value: "-" if value is None else f"{value:.3f}"
    names, cells = ("relatives", "beside", "others"), []
    for pair in measurement.facts["pairs"]:
        (old, new), (before, after) = pair["generations"], pair["updates"]
        means = [show(pair[kind][name]) for kind in ("weights", "beyond_even") for name in names]
        layers = zip(pair["sources"], pair["beyond_even"]["layers"]["relatives"], strict=True)
        by_layer = "; ".join(
            f"{number} ({source}): {show(correlation)}" for number, (source, correlation) in enumerate(layers)
        )
        cells.append([f"{old}, {before:,}", f"{new}, {after:,}", *means, by_layer])
    heads = ["ancestor, updates", "descendant, updates", "relatives", "others in the layer", "others"]
    heads += ["beyond even: relatives", "others in the layer", "others", "relatives by layer (its source)"]
    return grid(heads, cells)


def shared_texts(measurement: Measurement) -> str:
    """Returns a table of the texts that a task shares with its domain, with a row for each task and split."""
    names = ("task", "domain", "split", "texts", "shared")
    heads = ["task", "domain", "split", "texts", "in the domain too"]
    return grid(heads, [[row[name] for name in names] for row in measurement.facts["rows"]])
