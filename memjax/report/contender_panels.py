"""Panels of runs that are shown as one for all that differ only in seeds or orders of tasks, with 95 % intervals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.report import charts
from memjax.report.comparison import RunRecord
from memjax.report.contenders import MAX_TASKS, Contender, compare_contenders, tabulate
from memjax.report.curves import LOSS, MOST_CURVES, select_kind, training_series, verdict_tables
from memjax.report.panel import Figure, Panel, Table
from memjax.report.streams import scores_of
from memjax.report.verdicts import format_interval

Curve = tuple[np.ndarray, np.ndarray]
"""The x values and the y values of a curve, two arrays `[points]`."""


def contender_panels(contenders: Sequence[Contender], over: Sequence[str]) -> Iterator[Panel]:
    """Yields panels about contenders: their scores with intervals, the tested differences between them, and their mean
    curves with bands. `over` are the fields over which is averaged.

    Args:
      contenders: Groups of finished runs, as `group_runs` returns them.
      over: Fields in which runs of one contender may differ.
    """
    records = [record for contender in contenders for record in contender.runs.values()]
    differences = compare_contenders(records, over)
    labels = {difference.name: difference.label for difference in differences}
    labels |= {difference.control: difference.control_label for difference in differences}
    text = f"Every row is the mean over all runs that differ only in {', '.join(over)}."
    matrices = _matrix_tables(contenders)
    yield Panel(
        "contenders",
        "Comparison",
        text,
        (contenders_table(contenders), *verdict_tables(differences, labels), *matrices),
    )
    figures = [*_figures({contender.label: contender for contender in contenders[:MOST_CURVES]})]
    if figures:
        text = "Means over runs. The bands are 95 % intervals by Student's t. Curves of single runs have no band."
        yield Panel("contender_curves", "Curves", text, tuple(figures))


def contenders_table(contenders: Sequence[Contender]) -> Table:
    """Makes the table with a row for each contender: its number of runs, and mean and interval of each score."""
    heads, rows, about = tabulate(contenders)
    return Table("contender_scores", "Scores", f"{about[0].upper()}{about[1:]}.", heads, tuple(rows))


def _matrix_tables(contenders: Sequence[Contender]) -> Iterator[Table]:
    """Yields a table for each contender that learns tasks one after the other: its mean matrix of scores."""
    for contender in contenders:
        matrix = contender.matrix()
        if not 1 < len(matrix) <= MAX_TASKS:
            continue
        names, measure = contender.task_names, contender.first.stream["measure"].replace("_", " ")
        rows = [(name, *map(format_interval, row)) for name, row in zip(names, matrix, strict=False)]
        caption = f"{measure} of every task (column) after every task (row), mean ± half of the 95 % interval."
        title = f"{contender.label}: {measure} after every task"
        yield Table("contender_matrix", title, caption, ("after", *names), tuple(rows))


def _figures(contenders: Mapping[str, Contender]) -> Iterator[Figure]:
    """Yields the figures of mean curves that all contenders have."""

    def read_training(record: RunRecord) -> Curve:
        series = training_series(record.log_lines, LOSS).thinned()
        return series.steps, series.values

    def read_evaluation(record: RunRecord) -> Curve:
        lines = [line for line in select_kind(record.log_lines, "evaluation") if not line.get("name")]
        points = {line["step"]: line[LOSS] for line in lines if line.get(LOSS) is not None}
        return np.array([*points]), np.array([*points.values()])

    def read_means(record: RunRecord) -> Curve:
        means = scores_of(record.stream).means() if record.stream else np.zeros(0)
        return np.arange(1, len(means) + 1), means

    of_tasks = "Mean over the tasks learned so far, after each of them."
    for name, title, caption, read, labels in (
        ("contender_loss", "Training loss", "Mean loss of a target in training.", read_training, ("updates", "nats")),
        ("contender_evaluation", "Evaluation loss", "Loss on held-out data.", read_evaluation, ("updates", "nats")),
        ("contender_means", "Tasks learned so far", of_tasks, read_means, ("tasks learned", "score")),
    ):
        curves = {label: mean_curve(contender, read) for label, contender in contenders.items()}
        curves = {label: curve for label, curve in curves.items() if len(curve[0]) > 1}
        if curves:
            yield Figure(name, title, caption, functools.partial(_draw, curves=curves, labels=labels), height=3.4)


def mean_curve(contender: Contender, read: Callable[[RunRecord], Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean curve of a contender: x values, means and half widths of their intervals, three arrays
    `[points]`. It has the points that the curves of all runs, `read(record)`, have in common.

    Args:
      contender: Runs to average.
      read: Function that returns the x values and the y values of the curve of a run.
    """
    points = {path: dict(zip(*map(np.ndarray.tolist, read(record)), strict=True)) for path, record in _named(contender)}
    shared = sorted(set.intersection(*(set(curve) for curve in points.values())))
    intervals = [contender.interval(lambda record, x=x: points[record.path][x]) for x in shared]
    means, widths = [interval.mean for interval in intervals], [interval.half_width for interval in intervals]
    return np.array(shared), np.array(means, np.float64), np.array(widths, np.float64)


def _named(contender: Contender) -> list[tuple[str, RunRecord]]:
    return [(record.path, record) for record in contender.runs.values()]


def _draw(
    figure: Any, curves: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], labels: tuple[str, str]
) -> None:
    series = {name: (xs, means) for name, (xs, means, _) in curves.items()}
    bands = {
        name: (means - np.nan_to_num(widths), means + np.nan_to_num(widths))
        for name, (_, means, widths) in curves.items()
    }
    few = all(len(xs) < 40 for xs, *_ in curves.values())
    charts.line_chart(figure, series, x=labels[0], y=labels[1], bands=bands, marks=few)
