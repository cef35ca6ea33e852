"""Panels of the feature space of a run over tasks with classes: what the head reads after each task."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.looks import KEPT, evenly_spaced, task_end_checkpoints
from memjax.report import charts
from memjax.report.method_log import borders_of
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.samples import shortened

__all__ = ["Space", "Spaces", "panels", "read_spaces"]

MOST_SPACES = 6
MOST_EXAMPLES = 200
"""of a task"""
FEW_CLASSES, MOST_CLASSES = 4, 6
"""another task is looked at where the first ones have fewer classes; of more the first are shown, each in a colour"""
COLUMNS = 3
LETTERS = 20
"""of the name of a class"""


@dataclasses.dataclass(frozen=True)
class Space:
    """What a head reads after a task.

    Attributes:
      task: the last one that was learned.
      features: `[examples, dim]`, the same examples in every space.
      marks: `[classes, dim]`, what a head of similarities compares them with, of the classes that are shown; or None.
      within: the mean distance of two examples of a class.
      between: of two classes.
    """

    task: str
    features: np.ndarray
    marks: np.ndarray | None
    within: float = math.nan
    between: float = math.nan


@dataclasses.dataclass(frozen=True)
class Spaces:
    """Some of them, and what they are of.

    Attributes:
      spaces: oldest first.
      labels: `[examples]`, their classes.
      names: class -> its name.
      tasks: whose examples they are.
      split: of these.
      kept: tasks of which a checkpoint is there.
      count: all tasks that are through.
    """

    spaces: tuple[Space, ...]
    labels: np.ndarray
    names: dict[int, str]
    tasks: tuple[str, ...]
    split: str
    kept: int
    count: int

    def projected(self) -> tuple[list[np.ndarray], list[np.ndarray | None], float]:
        """Features and marks of every space on the two axes along which the features of all of them differ most.

        Returns:
          Both, `[examples, 2]` and `[classes, 2]` of each space, and the share of the variance that lies in these axes.
        """
        from memjax.lifelong.head_features import principal_axes

        every = np.concatenate([space.features for space in self.spaces])
        middle, axes, share = principal_axes(every)
        plane = lambda points: None if points is None else (points - middle) @ axes
        return [(s.features - middle) @ axes for s in self.spaces], [plane(s.marks) for s in self.spaces], share


def read_spaces(run: OpenedRun) -> Spaces | None:
    """The feature spaces of a run, at most six; None of a run whose tasks have no classes, or before its first ends."""
    from memjax.lifelong import load_run
    from memjax.lifelong.head_features import align_features, class_vectors_of_head, read_features
    from memjax.lifelong.metrics import class_distances
    from memjax.tasks import task_of
    from memjax.training.restoring import checkpoint_steps

    stream = run.config.lifelong
    if stream is None or not task_of(run.config).classifies:
        return None
    ends = task_end_checkpoints(run.lines, checkpoint_steps(run.path))
    if not ends:
        return None
    count = len(borders_of(run.lines, [one.name for one in run.config.evaluations if one.task]))
    order, spaces = [task.name for task in stream.in_order], list[Space]()
    looked: list[tuple[str, Any, Any]] = []
    labels, names = np.zeros(0, np.int32), dict[int, str]()
    for task in evenly_spaced([*ends], MOST_SPACES):
        loaded = load_run(run.path, step=ends[task])
        looked = looked or _looked_at(loaded, order)
        parts = [read_features(loaded.experiment.of_task(one[0]), loaded.variables, one[2], one[1]) for one in looked]
        labels = np.concatenate([part.labels for part in parts])
        classes = np.unique(labels)[:MOST_CLASSES]
        shown = np.isin(labels, classes)
        labels = labels[shown]
        features = align_features(loaded.variables, np.concatenate([part.features for part in parts])[shown])
        marks = class_vectors_of_head(loaded.experiment.model, loaded.variables)
        spread = {}
        if len(classes) > 1 and np.bincount(labels).max() > 1:
            spread = class_distances(features, labels).means()
        # A stage of all tasks at once is no task of its own.
        after = order[task] if len(ends) > 1 or len(order) == 1 else "all tasks"
        spaces.append(Space(after, features, None if marks is None else marks[classes], **spread))
        names = names or {int(one): loaded.experiment.task.class_names().get(int(one), str(one)) for one in classes}
    tasks, split = tuple(name for name, _, _ in looked), looked[0][1].split
    return Spaces(tuple(spaces), labels, names, tasks, split, len(ends), count)


def _looked_at(loaded: Any, order: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """The first tasks, until there are some classes: name, evaluation, and some examples of its split, evenly."""
    from memjax.lifelong.streams import ExampleSubset

    config, found, classes = loaded.experiment.config, list[tuple[str, Any, Any]](), set[int]()
    evaluations = {one.task: one for one in reversed(config.evaluations) if one.task}
    for name in order:
        evaluation = evaluations.get(name, config.evaluation)
        examples = loaded.experiment.of_task(name).documents(evaluation.split)
        numbers = np.array(evenly_spaced(range(len(examples)), MOST_EXAMPLES))
        found.append((name, evaluation, ExampleSubset(examples, numbers)))
        classes |= {int(found[-1][2].example(index).targets[0]) for index in range(len(numbers))}
        if len(classes) >= FEW_CLASSES:
            break
    return found


def panels(run: OpenedRun) -> Iterator[Panel]:
    """The feature space after each task, of a run whose tasks have classes."""
    found = read_spaces(run)
    if found is None:
        return
    number, tasks = len(found.labels), " and ".join(found.tasks)
    *_, share = found.projected()
    names = [*found.names.values()]
    what = f"{number:,} examples of {len(found.names)} classes, of the {found.split} split of {tasks}"
    marks = " Crosses: what the head compares them with, a vector or prototype of each class." * (
        found.spaces[0].marks is not None
    )
    parts: list[Any] = [
        Figure(
            "features_space",
            "What the head reads after each task",
            f"{what}, the same in every picture, on the two axes along which all of them differ most, fitted once; "
            f"{100 * share:.0f} % of the variance lies in these. Classes that stand apart can be told apart.{marks}",
            functools.partial(_draw_spaces, found=found),
            0.3 + 2.3 * math.ceil(len(found.spaces) / _columns(found)) + 0.25 * math.ceil(len(names) / _beside(names)),
        )
    ]
    if all(math.isfinite(space.between) for space in found.spaces):
        parts += _spread_parts(found, what)
    text = (
        "Where examples of the first tasks lie for the head after later tasks: figures of EMAR (Han et al. 2020) and, "
        "for what its alignment has to mend, EA-EMR (Wang et al. 2019). An episodic memory keeps the space in shape; "
        "forgetting mixes its classes, or moves them away from what the head compares them with."
    )
    if found.kept < found.count:
        text += f" Of {found.kept} of {found.count} tasks the checkpoint of the end is there; `{KEPT}` keeps all."
    yield Panel("features", "Feature space", text, tuple(parts))


def _spread_parts(found: Spaces, what: str) -> Iterator[Figure | Table]:
    """The same by numbers."""
    rows = tuple((one.task, one.within, one.between, one.within / one.between) for one in found.spaces)
    caption = (
        f"Mean Euclidean distance of two of the {what}: of one class, of two classes, and the first over the second. "
        "The smaller the ratio, the further apart the classes; 1 = they cannot be told."
    )
    if len(rows) > 1:
        draw = functools.partial(_draw_ratio, found=found)
        yield Figure("features_ratio", "Distance within a class over that between two", caption, draw, 2.6)
    columns = ("after", "within a class", "between two", "ratio")
    yield Table("features_spread", "How far apart classes lie", caption, columns, rows)


def _columns(found: Spaces) -> int:
    return min(len(found.spaces), 2 if len(found.spaces) == 4 else COLUMNS)


def _beside(names: Sequence[str]) -> int:
    """Names of classes in a row of the legend."""
    longest = max((len(shortened(name, LETTERS)) for name in names), default=0)
    return max(1, min(len(names), 66 // (longest + 4)))


def _draw_spaces(figure: Any, found: Spaces) -> None:
    points, marks, _ = found.projected()
    columns = _columns(found)
    rows = math.ceil(len(points) / columns)
    order = np.argsort(found.labels, kind="stable")
    names = [shortened(found.names[int(label)], LETTERS) for label in found.labels[order]]
    drawn = [*points, *(one for one in marks if one is not None)]
    low, high = (edge(np.concatenate(drawn), axis=0) for edge in (np.min, np.max))
    room = 0.06 * np.maximum(high - low, 1e-6)
    axes: Any = None
    for index, (space, own, mark) in enumerate(zip(found.spaces, points, marks, strict=True)):
        place = (rows, columns, index + 1)
        axes = charts.scatter(figure, own[order], names, title=f"after {space.task}", size=14.0, bare=True, place=place)
        legend = axes.get_legend()
        handles, shown = axes.get_legend_handles_labels()
        if legend is not None:
            legend.remove()
        if mark is not None:
            colors = [charts.SERIES[number % len(charts.SERIES)] for number in range(len(mark))]
            axes.scatter(*mark.T, marker="X", s=55, color=colors, edgecolors=charts.INK, linewidths=1.0)
        axes.spines[:].set_visible(True)
        axes.set_xlim(low[0] - room[0], high[0] + room[0])
        axes.set_ylim(low[1] - room[1], high[1] + room[1])
        if index == 0 and len(shown) > 1:
            figure.legend(handles, shown, loc="outside lower center", ncols=_beside(shown), handletextpad=0.2)


def _draw_ratio(figure: Any, found: Spaces) -> None:
    at = np.arange(1, len(found.spaces) + 1)
    ratios = [space.within / space.between for space in found.spaces]
    named: dict[str, Any] = {"x": "after", "y": "within / between", "limits": (0, 1.15 * max(ratios))}
    axes = charts.lines(figure, {"ratio": (at, ratios)}, marks=True, **named)
    axes.set_xticks(at, [space.task for space in found.spaces])
