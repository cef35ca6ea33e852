"""Tables of streams of texts, whose matrices are of nats: what every method has come to, lower is better."""

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
    """Whether the matrices of some runs are of nats."""
    return bool(runs) and runs[0].evaluations.get("stream", {}).get("measure") == NATS


MEANS = ("growth_seconds", "compilation_seconds", "skipped", "spikes", "parameters")
COSTS = (
    "What a run needs beside the model, and where its seconds go (means over seeds of the runs that say it; rows are "
    "not timed side by side): of updates, until the end of each domain; of growing the model; of the first updates of "
    "all stages, compilation included where no earlier run had compiled the same; the updates that were skipped; lines "
    f"of the log whose loss is {SPIKE:g} nats above that of the line before; and nats a token of rows of the memory "
    "right before and after each growth, which is what a warm-up has to mend. AP and AP+ after each domain are of the "
    "domains so far; the work until then is the same in all rows."
)


def in_words(values: Sequence[float], digits: int = 1) -> str:
    """Mean and deviation."""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def costs(runs: Sequence[Run], recipe: Recipe) -> str:
    """A line a method of AP on the way and of what it costs."""
    cells, count = [], len(runs[0].evaluations["stream"]["tasks"])
    for row in recipe.variants:
        own = [run.evaluations["stream"] for run in runs if run.row.rpartition(", ")[0] == row]
        if not own:
            continue
        each = [perplexities_after_each(stream["scores"]) for stream in own]
        after = [_after([one["AP"][i] for one in each], [one["AP+"][i] for one in each]) for i in range(count)]
        kept = kept_in_words([stream["kept_bytes"] for stream in own])
        growths = [stream["cost"]["growths"] for stream in own if stream["cost"].get("growths")]
        moved = [f"{a:.3f} → {b:.3f}" for a, b in np.mean(growths, axis=0)] if growths else []
        passed = [stream["cost"]["seconds_after_each"] for stream in own if "seconds_after_each" in stream["cost"]]
        until = " / ".join(f"{seconds:.0f}" for seconds in np.mean(passed, axis=0)) if passed else ""
        means = [until or _mean_cost(own, "update_seconds"), *(_mean_cost(own, name) for name in MEANS)]
        cells.append([row, *after, *means, kept, ", ".join(moved)])
    heads = ["row", *(f"AP (AP+) after {name}" for name in runs[0].evaluations["stream"]["tasks"]), "seconds"]
    heads += ["growing, s", "compiling, s", "skipped", "spikes", "parameters", "kept, MB", "nats before → after growth"]
    return f"{COSTS}\n\n{grid(heads, cells)}"


def _after(perplexities: Sequence[float], increases: Sequence[float]) -> str:
    """AP and, where there is one, AP+."""
    return in_words(perplexities) + ("" if np.isnan(increases).any() else f" ({np.mean(increases):+.1f})")


def _mean_cost(streams: Sequence[Mapping[str, Any]], name: str) -> str:
    """Of those that say it."""
    known = [stream["cost"][name] for stream in streams if name in stream["cost"]]
    return f"{np.mean(known):,.1f}".removesuffix(".0") if known else ""


def methods(runs: Sequence[Run], recipe: Recipe) -> str:
    """A line a method."""
    cells, names = [], runs[0].evaluations["stream"]["tasks"]
    for row in recipe.variants:
        own = [run for run in runs if run.row.rpartition(", ")[0] == row]
        if not own:
            continue
        nats = np.array([run.evaluations["stream"]["scores"] for run in own])
        found = [
            in_words([measure(np.exp(one)) for one in nats]) for measure in (average_perplexity, increased_perplexity)
        ]
        mean = nats.mean(axis=0)
        domains = [f"{mean[-1, i]:.3f} ({mean[i, i]:.3f})" for i in range(len(names))]
        cells.append([row, str(len(own)), *found, *domains, f"{np.mean([run.step for run in own]):,.0f}"])
    return f"{ABOUT}\n\n{grid(['row', 'runs', 'AP', 'AP+', *names, 'updates'], cells)}"


def compare_ends(runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch]) -> dict[Claim, Comparison]:
    """Compares every row with its controls, seed by seed, in the mean nats of all domains in the end, where there are
    pairs of runs. Returns row and control -> the comparison with its verdict.
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
    """Every row against its controls, seed by seed, in the mean nats of all domains in the end."""
    about = "Nats a token, the mean of all domains in the end, seed by seed; less is a gain"
    return table_of(compare_ends(runs, recipe, searches), searches, about, "nats", 4)


def ancestors(found: Measurement) -> str:
    """A line for each pair of generations: correlations of heads with relatives and with others, means and by layer."""
    shown = lambda value: "-" if value is None else f"{value:.3f}"
    names, cells = ("relatives", "beside", "others"), []
    for pair in found.facts["pairs"]:
        (old, new), (before, after) = pair["generations"], pair["updates"]
        means = [shown(pair[kind][name]) for kind in ("weights", "beyond_even") for name in names]
        layers = zip(pair["sources"], pair["beyond_even"]["layers"]["relatives"], strict=True)
        by_layer = "; ".join(f"{number} ({source}): {shown(one)}" for number, (source, one) in enumerate(layers))
        cells.append([f"{old}, {before:,}", f"{new}, {after:,}", *means, by_layer])
    heads = ["ancestor, updates", "descendant, updates", "relatives", "others in the layer", "others"]
    heads += ["beyond even: relatives", "others in the layer", "others", "relatives by layer (its source)"]
    return grid(heads, cells)


def shared_texts(found: Measurement) -> str:
    """A line a task and split."""
    names = ("task", "domain", "split", "texts", "shared")
    heads = ["task", "domain", "split", "texts", "in the domain too"]
    return grid(heads, [[row[name] for name in names] for row in found.facts["rows"]])
