"""Panels of the value tables of product-key memories: how many slots are in use, how evenly, and since when not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from memjax.inspection.slot_usage import SlotCounts, describe_counts, last_used, measure_usage
from memjax.report.charts import bar_chart, histogram, line_chart
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.run_text import evenly_spaced, label_log_axes

MOST_SEGMENTS = 32
"""Number of segments that are counted for each segment of `OpenedRun.segments`."""
DRAWN, MOST_CHECKPOINTS = 6, 8
"""Largest numbers of tables with a line and of checkpoints that are counted."""

Counts = Mapping[str, Mapping[str, SlotCounts]]


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields one panel about the use of value tables: how many of their slots are chosen, how evenly, and when last. It
    yields nothing for models without tables.
    """
    if not run.loaded_run.variables.get("tables"):
        return
    counts = _measure(run, run.loaded_run)
    facts = describe_counts(counts)
    first = next(iter(counts.values()))[""]
    heads = f"{int(first.lookups.sum())} lookups"
    where = f"{run.split} split, up to {_segments(run)} segments of each row, {heads} in a table"
    text = (
        "How much of the table is in use? Lample et al. 2019 report the share of slots that were chosen and the "
        "divergence of their weights from the uniform distribution (https://arxiv.org/abs/1907.05242). Kim and Jung "
        "2020 report the share of slots that had the largest weight of some token (https://arxiv.org/abs/2010.03881)."
    )
    yield Panel("usage", "Use of the value tables", text, tuple(_usage_items(run, counts, facts, where)))


def _segments(run: OpenedRun) -> int:
    """Returns the number of segments that are counted."""
    most = MOST_SEGMENTS * run.segments
    return min(run.loaded_run.experiment.config.evaluation.max_segments or most, most)


def _measure(run: OpenedRun, loaded: Any) -> Counts:
    experiment = loaded.experiment
    evaluation = dataclasses.replace(experiment.config.evaluation, split=run.split, max_segments=_segments(run))
    return measure_usage(experiment, loaded.variables, evaluation)


def _usage_items(run: OpenedRun, counts: Counts, facts: Mapping[str, Any], where: str) -> Iterator[Figure | Table]:
    numbers = ("slots", "lookups", "usage", "top_usage", "count_divergence", "weight_divergence")
    yield Table(
        "usage_numbers",
        "Slots in use",
        f"Measured on the {where}. usage = share of slots that were chosen. top usage = share of slots that had the "
        "largest weight of some token. The divergences of choices and of weights from uniform use are in nats.",
        ("table", *(name.replace("_", " ") for name in numbers)),
        tuple((table, *(_rounded(values[name]) for name in numbers)) for table, values in facts.items()),
    )
    yield Figure(
        "usage_ranks",
        "How often slots are chosen",
        f"Slots by rank, the most chosen first ({where}). The horizontal line is uniform use. Slots that were never "
        "chosen are not drawn." + (f" {DRAWN} of {len(counts)} tables." if len(counts) > DRAWN else ""),
        lambda figure: draw_ranks(figure, counts),
    )
    yield Figure(
        "usage_histogram",
        "Spread of the use of slots",
        f"Share of slots by how often they were chosen, in even shares (1 = as often as the mean slot, {where}).",
        lambda figure: draw_histogram(figure, counts),
    )
    yield from _subsets(facts, where)
    yield from _staleness_figure(run, counts)


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _subsets(facts: Mapping[str, Any], where: str) -> Iterator[Figure | Table]:
    """Yields a table and a figure of how classes of tokens differ in the slots that they choose."""
    rows = [
        (table, subset, _rounded(numbers["overlap_with_rest"]), _rounded(numbers["divergence_from_rest"]))
        for table, values in facts.items()
        for subset, numbers in values.get("subsets", {}).items()
        if "overlap_with_rest" in numbers  # tokens inside and outside of the subset were counted
    ]
    if not rows:
        return
    yield Table(
        "usage_classes",
        "Slots of kinds of tokens",
        "Overlap = intersection over union of the slots that the kind and all other tokens choose (1 = the same slots "
        f"equally often). Divergence in nats, with 1 added to every count ({where}). Kim and Jung 2020 compare classes "
        "in this way.",
        ("table", "tokens", "overlap with the rest", "divergence from the rest"),
        tuple(rows),
    )
    overlap = {subset: [row[2] for row in rows if row[1] == subset] for subset in dict.fromkeys(row[1] for row in rows)}
    if len(facts) > 1 and len({len(values) for values in overlap.values()}) == 1:
        chosen = [*overlap][:DRAWN]
        yield Figure(
            "usage_overlap",
            "Overlap of kinds of tokens, by table",
            f"See the table above. Lower = the kinds use different slots ({where}).",
            lambda figure: bar_chart(
                figure, [*facts], {name: overlap[name] for name in chosen}, x="overlap", limits=(0, 1), numbers="{:.2f}"
            ),
            height=1.2 + 0.4 * len(facts) * len(chosen),
        )


def _staleness_figure(run: OpenedRun, newest: Counts) -> Iterator[Figure]:
    """Yields the figure of the checkpoints at which slots were last in use, if the run has several checkpoints."""
    from memjax.lifelong import load_run
    from memjax.training.loaded_runs import checkpoint_steps

    steps = checkpoint_steps(run.path)
    steps = [steps[index] for index in evenly_spaced(len(steps), MOST_CHECKPOINTS)]
    if len(steps) < 2:
        return
    counts_by_step = {step: _measure(run, load_run(run.path, step=step)) for step in steps[:-1]}
    counts_by_step[steps[-1]] = newest
    slots_by_table = last_used(counts_by_step)
    tables = [*slots_by_table][:DRAWN]
    yield Figure(
        "usage_staleness",
        "When slots were last in use",
        "Share of each table's slots by the last checkpoint at which they had the largest weight of some token, for "
        f"{len(steps)} kept checkpoints on the same tokens. never = at none of them. Bars before the last one are "
        "slots that are no longer used.",
        lambda figure: draw_staleness(figure, {table: slots_by_table[table] for table in tables}),
    )


def _table_label(table: str) -> str:
    """Returns the label of a table: `layer 1` for `layer_01/values`."""
    layer = table.partition("/")[0]
    return f"layer {int(layer[6:])}" if layer.startswith("layer_") and layer[6:].isdigit() else table


def _choose_tables(counts: Counts) -> dict[str, SlotCounts]:
    names = [*counts]
    return {_table_label(names[index]): counts[names[index]][""] for index in evenly_spaced(len(names), DRAWN)}


def draw_ranks(figure: Any, counts: Counts) -> Any:
    """Draws how often slots were chosen, as a multiple of uniform use, the most chosen first, with one line for each of
    at most six value tables. Returns the axes. `counts` comes from `measure_usage`.
    """
    series = {}
    for name, counted in _choose_tables(counts).items():
        used = np.sort(counted.lookups[counted.lookups > 0])[::-1] / max(counted.lookups.mean(), 1e-12)
        at = np.unique(np.geomspace(1, max(len(used), 1), 200).astype(int))
        at = at[at <= len(used)]
        series[name] = (at, used[at - 1])
    options = {"x": "slot, by rank", "y": "chosen, in even shares", "levels": {"even": 1.0}}
    return label_log_axes(line_chart(figure, series, log_x=True, log_y=True, **options))


def draw_histogram(figure: Any, counts: Counts) -> Any:
    """Draws a histogram of how often slots were chosen, as a multiple of uniform use, for at most six value tables, and
    returns its axes. The last bin holds all slots above the largest 99th percentile of a table.
    """
    values = {
        name: counted.lookups / max(counted.lookups.mean(), 1e-12) for name, counted in _choose_tables(counts).items()
    }
    high = max(float(np.quantile(counts, 0.99)) for counts in values.values())
    clipped = {name: np.minimum(counts, high) for name, counts in values.items()}
    return histogram(figure, clipped, bins=30, x="chosen, in even shares", y="share of slots", log_y=True)


def draw_staleness(figure: Any, slots_by_table: Mapping[str, Mapping[str, int]]) -> Any:
    """Draws, for each value table, bars of the share of slots by the checkpoint at which they were last in use.
    `slots_by_table` is the result of `last_used`.
    """
    names = [*dict.fromkeys(name for slots in slots_by_table.values() for name in slots)]
    share = lambda slots: [slots.get(name, 0) / sum(slots.values()) for name in names]
    series = {_table_label(table): share(slots) for table, slots in slots_by_table.items()}
    return bar_chart(figure, names, series, x="last in use at step", y="share of slots", upright=True, limits=(0, None))
