"""What a method says of itself along the updates of a run, as curves: losses of its kinds of updates, odds, gains."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.inspection.figures import FIGURES
from memjax.report import charts
from memjax.report.panel import Figure

__all__ = ["borders_of", "broken", "logged", "method_figures"]

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
"""of a line of updates: not what a method says of itself, or drawn with the curves of every run"""
LOGGED = {
    "odds_of_writing": (
        "Odds of writing",
        "nats of odds",
        "Log odds of being written of the row at the 90th percentile of distance from the memory against that at the "
        "10th: how much the rule of Meta-MbPA prefers what is far. 0 = it writes at random.",
    ),
    "adapted_minus_base": (
        "What adaptation adds to the loss",
        "nats a target",
        "Loss of a query at parameters adapted to its neighbours, less that without adaptation (Wang et al. 2020). "
        "Below 0 the adaptation helps.",
    ),
}
"""name -> title, unit and meaning of what some methods log"""
MOST_FIGURES = 6
"""of what a method logs"""


def borders_of(lines: Iterable[Mapping[str, Any]], tasks: Sequence[str]) -> list[int]:
    """Updates that were made when each task was through.

    Example:
      >>> line = {"kind": "evaluation", "phase": "after", "name": "a"}
      >>> borders_of([{**line, "step": 4}, {**line, "step": 9, "stage": 2}], ["a"])
      [4, 9]
    """
    after = (line for line in lines if line["kind"] == "evaluation" and line.get("phase") == "after")
    return sorted({line.get("stage", 0): line["step"] for line in after if line.get("name") in tasks}.values())


def logged(lines: Iterable[Mapping[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """What a method says of itself along its updates: name -> updates, and its values there.

    What is counted, what is drawn for every run, and figures of memories are left out; so is what has one value, or 0
    in all lines.

    Example:
      >>> line = {"kind": "train", "step": 1, "nats_per_token": 2.0, "replayed/nll": None, "losses/ewc": 0.0}
      >>> logged([line, {**line, "step": 2, "replayed/nll": 3.0}, {**line, "step": 3, "replayed/nll": 1.0}])
      {'replayed/nll': ([2, 3], [3.0, 1.0])}
    """
    found: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        if line["kind"] != "train":
            continue
        for name, value in line.items():
            if not isinstance(value, float) or not math.isfinite(value) or _is_counted(name):
                continue
            steps, values = found.setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(value)
    return {name: both for name, both in found.items() if len(both[1]) > 1 and any(both[1])}


def _is_counted(name: str) -> bool:
    *_, last = name.split("/")
    return name in COUNTED or last in COUNTED or name.startswith("layer_") or name in FIGURES


def method_figures(lines: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Iterator[Figure]:
    """A figure of all losses, where a method has several, and one of everything else that it logs.

    Args:
      lines: of a run.
      tasks: names of their evaluations.
    """
    found, borders = logged(lines), borders_of(lines, tasks)
    losses = {name: both for name, both in found.items() if name.split("/")[-1] == "nll" or "losses/" in name}
    if losses:
        own = [(line["step"], line["nats_per_token"]) for line in lines if line["kind"] == "train"]
        own = [one for one in own if one[1] is not None]
        names = {_loss_name(name): both for name, both in losses.items()}
        series = {"the stream": tuple(zip(*own, strict=True)), **names} if own else names
        yield Figure(
            "stream_losses",
            "Losses along the stream",
            "Nats a target of the stream's own batches, and of the other kinds of updates and rows of the method, as "
            "they were logged; added losses are before their coefficient.",
            functools.partial(_draw_logged, series=series, y="nats a target", borders=borders),
            3.4,
        )
    others = [name for name in found if name not in losses][:MOST_FIGURES]
    for name in others:
        plain = name.replace("/", ": ").replace("_", " ")
        *kinds, last = name.split("/")
        known = LOGGED.get(last)
        title, unit, caption = known or (plain[0].upper() + plain[1:], plain, f"`{name}` of the run's lines.")
        title = f"{title} ({', '.join(kinds)})" if known and kinds else title
        draw = functools.partial(_draw_logged, series={title: found[name]}, y=unit, borders=borders)
        yield Figure(f"stream_{''.join(c if c.isalnum() else '_' for c in name)}", title, caption, draw)


def _loss_name(name: str) -> str:
    """Of a line in the picture.

    Example:
      >>> _loss_name("replayed/nll"), _loss_name("losses/method/penalty"), _loss_name("replayed/losses/kd")
      ('replayed', 'added: method penalty', 'replayed, added: kd')
    """
    kinds, added, loss = name.replace("_", " ").partition("losses/")
    of_kind = ", ".join(kinds.removesuffix("/nll").strip("/").split("/"))
    return ", ".join(filter(None, [of_kind, f"added: {loss.replace('/', ' ')}" if added else ""]))


def _draw_logged(figure: Any, series: Any, y: str, borders: Sequence[int]) -> None:
    least, most = (choose(len(xs) for xs, _ in series.values()) for choose in (min, max))
    if least >= 3 * len(borders):  # else a task has too few points for a line of its own
        series = {name: broken(xs, ys, borders) for name, (xs, ys) in series.items()}
    charts.lines(figure, series, x="updates", y=y, borders=borders, marks=most <= 12)


def broken(steps: Sequence[int], values: Sequence[float], borders: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """A curve that stops where a task is through and begins anew after it.

    Example:
      >>> [side.tolist() for side in broken([1, 2, 3], [0.5, 0.25, 0.75], [2])]
      [[1.0, 2.0, 3.0, 3.0], [0.5, 0.25, nan, 0.75]]
    """
    given = np.asarray(steps, np.float64)
    at = np.searchsorted(given, np.asarray(borders, np.float64), side="right")
    at = at[(at > 0) & (at < len(given))]
    broken_values = np.insert(np.asarray(values, np.float64), at, np.full(len(at), np.nan))
    return np.insert(given, at, given[at]), broken_values
