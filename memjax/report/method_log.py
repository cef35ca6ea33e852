"""Figures of the metrics that a lifelong-learning method logs during training, such as replay and penalty losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.inspection.figures import FIGURES
from memjax.report import charts
from memjax.report.panel import Figure

COUNTED = {
    *(
        "step",
        "attempt",
        "tokens",
        "targets",
        "tokens_per_second",
        "seconds",
        "first_step_seconds",
        "learning_rate",
        "perplexity",
        "skipped",
    ),
    *("nats_per_token", "gradient_norm", "stage"),
}
"""Metrics of a line of updates that are not specific to a method, or are drawn with the curves of every run."""
LOGGED = {
    "odds_of_writing": (
        "Odds of writing",
        "nats of odds",
        "Log odds of being written of the row at the 90th percentile of distance from the memory, compared with the "
        "row at the 10th percentile: how much Meta-MbPA prefers distant rows. 0 = it writes at random.",
    ),
    "adapted_minus_base": (
        "Loss added by adaptation",
        "nats a target",
        "Loss of a query with parameters adapted to its neighbours, minus its loss without adaptation (Wang et al. "
        "2020). Below 0 the adaptation helps.",
    ),
}
"""Name of a metric of some methods -> its title, unit and meaning."""
MOST_FIGURES = 6
"""Largest number of figures of single metrics."""


def task_borders(lines: Iterable[Mapping[str, Any]], tasks: Sequence[str]) -> list[int]:
    """Lists the number of updates at the end of each finished task. `lines` are dicts from `metrics.jsonl`, `tasks` the
    names of the evaluations that score single tasks.

    Args:
      lines: Lines of the run's `metrics.jsonl`.
      tasks: Names of the evaluations of single tasks.

    Example:
      >>> line = {"kind": "evaluation", "phase": "after", "name": "a"}
      >>> task_borders([{**line, "step": 4}, {**line, "step": 9, "stage": 2}], ["a"])
      [4, 9]
    """
    after = (line for line in lines if line["kind"] == "evaluation" and line.get("phase") == "after")
    return sorted({line.get("stage", 0): line["step"] for line in after if line.get("name") in tasks}.values())


def method_metrics(lines: Iterable[Mapping[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """Extracts the metrics that a lifelong-learning method has logged: name of a metric -> (numbers of updates,
    values). Metrics that every run logs are left out.

    Counters, metrics that are drawn for every run and memory metrics are left out, as are metrics with a single value
    or with 0 in all lines.

    Args:
      lines: Lines of the run's `metrics.jsonl`.

    Example:
      >>> line = {"kind": "train", "step": 1, "nats_per_token": 2.0, "replayed/nll": None, "losses/ewc": 0.0}
      >>> method_metrics([line, {**line, "step": 2, "replayed/nll": 3.0}, {**line, "step": 3, "replayed/nll": 1.0}])
      {'replayed/nll': ([2, 3], [3.0, 1.0])}
    """
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        if line["kind"] != "train":
            continue
        for name, value in line.items():
            if not isinstance(value, float) or not math.isfinite(value) or _is_counted(name):
                continue
            steps, values = curves.setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(value)
    return {name: (steps, values) for name, (steps, values) in curves.items() if len(values) > 1 and any(values)}


def _is_counted(name: str) -> bool:
    *_, last = name.split("/")
    return name in COUNTED or last in COUNTED or name.startswith("layer_") or name in FIGURES


def method_figures(lines: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Iterator[Figure]:
    """Yields one figure with all losses that a method has logged, if there are any, and one for each of at most six
    other metrics. `lines` are dicts from `metrics.jsonl`, `tasks` the names of the evaluations of single tasks.

    Args:
      lines: Lines of the run's `metrics.jsonl`.
      tasks: Names of the evaluations of single tasks.
    """
    curves, borders = method_metrics(lines), task_borders(lines, tasks)
    losses = {name: curve for name, curve in curves.items() if name.split("/")[-1] == "nll" or "losses/" in name}
    if losses:
        points = [(line["step"], line["nats_per_token"]) for line in lines if line["kind"] == "train"]
        points = [(step, nats) for step, nats in points if nats is not None]
        names = {_loss_name(name): curve for name, curve in losses.items()}
        series = {"the stream": tuple(zip(*points, strict=True)), **names} if points else names
        yield Figure(
            "stream_losses",
            "Losses along the stream",
            "Logged losses in nats a target: on the stream's own batches, and on the method's other batches, such as "
            "replayed rows. Added losses are shown before multiplication by their coefficient.",
            functools.partial(_draw_logged, series=series, y="nats a target", borders=borders),
            3.4,
        )
    others = [name for name in curves if name not in losses][:MOST_FIGURES]
    for name in others:
        plain = name.replace("/", ": ").replace("_", " ")
        *kinds, last = name.split("/")
        known = LOGGED.get(last)
        title, unit, caption = known or (plain[0].upper() + plain[1:], plain, f"`{name}` in the run's log.")
        title = f"{title} ({', '.join(kinds)})" if known and kinds else title
        draw = functools.partial(_draw_logged, series={title: curves[name]}, y=unit, borders=borders)
        yield Figure(f"stream_{''.join(c if c.isalnum() else '_' for c in name)}", title, caption, draw)


def _loss_name(name: str) -> str:
    """Returns the name of a loss for the legend.

    Example:
      >>> _loss_name("replayed/nll"), _loss_name("losses/method/penalty"), _loss_name("replayed/losses/kd")
      ('replayed', 'added: method penalty', 'replayed, added: kd')
    """
    kinds, added, loss = name.replace("_", " ").partition("losses/")
    of_kind = ", ".join(kinds.removesuffix("/nll").strip("/").split("/"))
    return ", ".join(filter(None, [of_kind, f"added: {loss.replace('/', ' ')}" if added else ""]))


def _draw_logged(figure: Any, series: Any, y: str, borders: Sequence[int]) -> None:
    least, most = (choose(len(xs) for xs, _ in series.values()) for choose in (min, max))
    if least >= 3 * len(borders):  # otherwise a task has too few points for a separate line
        series = {name: split_at_tasks(xs, ys, borders) for name, (xs, ys) in series.items()}
    charts.line_chart(figure, series, x="updates", y=y, borders=borders, marks=most <= 12)


def split_at_tasks(
    steps: Sequence[int], values: Sequence[float], borders: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Inserts NaN into a curve at the end of each task, so that it is drawn with gaps. Returns steps and values.
    `borders` are the numbers of updates at the ends of tasks.

    Args:
      steps: Number of updates at each point.
      values: Value of each point.
      borders: Number of updates at the end of each task.

    Returns:
      The steps and values with one further point for each border.

    Example:
      >>> [side.tolist() for side in split_at_tasks([1, 2, 3], [0.5, 0.25, 0.75], [2])]
      [[1.0, 2.0, 3.0, 3.0], [0.5, 0.25, nan, 0.75]]
    """
    all_steps = np.asarray(steps, np.float64)
    at = np.searchsorted(all_steps, np.asarray(borders, np.float64), side="right")
    at = at[(at > 0) & (at < len(all_steps))]
    broken_values = np.insert(np.asarray(values, np.float64), at, np.full(len(at), np.nan))
    return np.insert(all_steps, at, all_steps[at]), broken_values
