"""Panels of the feature space of a run over classification tasks: the features of examples after each task."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.looks import KEPT, evenly_spaced, task_end_checkpoints
from memjax.report import charts
from memjax.report.method_log import task_borders
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.samples import shorten

MOST_SPACES = 6
MOST_EXAMPLES = 200
"""Largest number of examples of a task."""
FEW_CLASSES, MOST_CLASSES = 4, 6
"""Examples of further tasks are added until `FEW_CLASSES` classes are present. At most `MOST_CLASSES` are shown."""
COLUMNS = 3
LETTERS = 20
"""Largest number of letters of a class name in the legend."""


@dataclasses.dataclass(frozen=True)
class FeatureProjection:
    """Features of examples, the inputs of the classification head, in the checkpoint at the end of one task. They have
    their full width: `FeatureProjections.projected` reduces it to 2.

    Attributes:
      task: Name of the last task that had been learned, or "all tasks".
      features: Features `[examples, dim]`. All spaces of a run hold the same examples.
      marks: Class vectors or prototypes `[classes, dim]` with which the head compares features, for the shown classes.
        None for a head without such vectors.
      within: Mean distance between two examples of one class. NaN if it was not measured.
      between: Mean distance between two examples of different classes. NaN if it was not measured.
    """

    task: str
    features: np.ndarray
    marks: np.ndarray | None
    within: float = math.nan
    between: float = math.nan


@dataclasses.dataclass(frozen=True)
class FeatureProjections:
    """The features of the same examples at the ends of several tasks of a run (`spaces`), with the classes of the
    examples.

    Attributes:
      spaces: Feature spaces, oldest first.
      labels: Class of each example `[examples]`.
      names: Number of a class -> its name.
      tasks: Names of the tasks that the examples belong to.
      split: Split that the examples belong to.
      kept: Number of finished tasks whose final checkpoint still exists.
      count: Number of finished tasks.
    """

    spaces: tuple[FeatureProjection, ...]
    labels: np.ndarray
    names: dict[int, str]
    tasks: tuple[str, ...]
    split: str
    kept: int
    count: int

    def projected(self) -> tuple[list[np.ndarray], list[np.ndarray | None], float]:
        """Projects the features and class vectors of all tasks on their two common principal axes. Returns features,
        class vectors, and the share of the variance along the axes.

        Returns:
          The features `[examples, 2]` of each space, the class vectors `[classes, 2]` of each space (None where it has
          none), and the share of the features' variance along the two axes.
        """
        from memjax.lifelong.class_features import principal_axes

        every = np.concatenate([space.features for space in self.spaces])
        middle, axes, share = principal_axes(every)
        plane = lambda points: None if points is None else (points - middle) @ axes
        return [(s.features - middle) @ axes for s in self.spaces], [plane(s.marks) for s in self.spaces], share


def read_spaces(run: OpenedRun) -> FeatureProjections | None:
    """Computes features of the same examples in the checkpoints at the ends of up to six tasks of a run. None if its
    tasks have no classes or no task has ended yet.
    """
    from memjax.lifelong import load_run
    from memjax.lifelong.class_features import align_features, class_vectors_of_head, read_features
    from memjax.lifelong.feature_separation import class_distances
    from memjax.tasks import make_task
    from memjax.training.loaded_runs import checkpoint_steps

    stream = run.config.lifelong
    if stream is None or not make_task(run.config).classifies:
        return None
    ends = task_end_checkpoints(run.log_lines, checkpoint_steps(run.path))
    if not ends:
        return None
    evaluation_names = [evaluation.name for evaluation in run.config.evaluations if evaluation.task]
    count = len(task_borders(run.log_lines, evaluation_names))
    order, spaces = [task.name for task in stream.ordered_tasks], list[FeatureProjection]()
    sources: list[tuple[str, Any, Any]] = []
    labels, names = np.zeros(0, np.int32), dict[int, str]()
    for task in evenly_spaced([*ends], MOST_SPACES):
        loaded = load_run(run.path, step=ends[task])
        sources = sources or _choose_examples(loaded, order)
        parts = [
            read_features(loaded.experiment.of_task(name), loaded.variables, examples, evaluation)
            for name, evaluation, examples in sources
        ]
        labels = np.concatenate([part.labels for part in parts])
        classes = np.unique(labels)[:MOST_CLASSES]
        selected = np.isin(labels, classes)
        labels = labels[selected]
        features = align_features(loaded.variables, np.concatenate([part.features for part in parts])[selected])
        marks = class_vectors_of_head(loaded.experiment.model, loaded.variables)
        distances = {}
        if len(classes) > 1 and np.bincount(labels).max() > 1:
            distances = class_distances(features, labels).means()
        # If all tasks are learned in one stage, no single task names it.
        after = order[task] if len(ends) > 1 or len(order) == 1 else "all tasks"
        spaces.append(FeatureProjection(after, features, None if marks is None else marks[classes], **distances))
        class_names = loaded.experiment.task.class_names()
        names = names or {int(number): class_names.get(int(number), str(number)) for number in classes}
    tasks, split = tuple(name for name, _, _ in sources), sources[0][1].split
    return FeatureProjections(tuple(spaces), labels, names, tasks, split, len(ends), count)


def _choose_examples(loaded: Any, order: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Chooses examples of the first tasks until they have enough classes.

    Returns:
      For each task its name, its evaluation, and evenly spaced examples of the evaluation's split.
    """
    from memjax.lifelong.update_streams import ExampleSubset

    config, sources, classes = loaded.experiment.config, list[tuple[str, Any, Any]](), set[int]()
    evaluations = {evaluation.task: evaluation for evaluation in reversed(config.evaluations) if evaluation.task}
    for name in order:
        evaluation = evaluations.get(name, config.evaluation)
        examples = loaded.experiment.of_task(name).documents(evaluation.split)
        numbers = np.array(evenly_spaced(range(len(examples)), MOST_EXAMPLES))
        sources.append((name, evaluation, ExampleSubset(examples, numbers)))
        classes |= {int(sources[-1][2].example(index).targets[0]) for index in range(len(numbers))}
        if len(classes) >= FEW_CLASSES:
            break
    return sources


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields one panel that shows the features of examples after each task in two dimensions. It yields nothing unless
    the run learns classification tasks and a task has ended.
    """
    spaces = read_spaces(run)
    if spaces is None:
        return
    number, tasks = len(spaces.labels), " and ".join(spaces.tasks)
    *_, share = spaces.projected()
    names = [*spaces.names.values()]
    examples = f"{number:,} examples of {len(spaces.names)} classes from the {spaces.split} split of {tasks}"
    marks = " Crosses: the vector or prototype of each class with which the head compares features." * (
        spaces.spaces[0].marks is not None
    )
    parts: list[Any] = [
        Figure(
            "features_space",
            "Features that the head reads after each task",
            f"{examples}, the same in every picture, on two principal axes that are common to all pictures and hold "
            f"{100 * share:.0f} % of the variance. Classes that lie apart can be told apart.{marks}",
            functools.partial(_draw_spaces, found=spaces),
            0.3
            + 2.3 * math.ceil(len(spaces.spaces) / _columns(spaces))
            + 0.25 * math.ceil(len(names) / _legend_columns(names)),
        )
    ]
    if all(math.isfinite(space.between) for space in spaces.spaces):
        parts += _distance_items(spaces, examples)
    text = (
        "Where do the features of the first tasks' examples lie after later tasks? EMAR (Han et al. 2020) shows such "
        "figures, and EA-EMR (Wang et al. 2019) shows the distortion that its alignment corrects. An episodic memory "
        "preserves the space. Forgetting mixes the classes, or moves them away from their class vectors."
    )
    if spaces.kept < spaces.count:
        text += f" Final checkpoints exist for {spaces.kept} of {spaces.count} tasks; `{KEPT}` keeps all of them."
    yield Panel("features", "Feature space", text, tuple(parts))


def _distance_items(found: FeatureProjections, examples: str) -> Iterator[Figure | Table]:
    """Yields a figure and a table of the distances within classes and between classes after each task."""
    rows = tuple((space.task, space.within, space.between, space.within / space.between) for space in found.spaces)
    caption = (
        f"Mean Euclidean distance between two of the {examples}: within a class, between two classes, and the ratio of "
        "both. The smaller the ratio, the better the classes are separated. At 1 they are not separated at all."
    )
    if len(rows) > 1:
        draw = functools.partial(_draw_ratio, found=found)
        yield Figure("features_ratio", "Distance within a class over distance between classes", caption, draw, 2.6)
    columns = ("after", "within a class", "between two", "ratio")
    yield Table("features_spread", "Separation of the classes", caption, columns, rows)


def _columns(found: FeatureProjections) -> int:
    return min(len(found.spaces), 2 if len(found.spaces) == 4 else COLUMNS)


def _legend_columns(names: Sequence[str]) -> int:
    """Returns the number of class names that fit into a row of the legend."""
    longest = max((len(shorten(name, LETTERS)) for name in names), default=0)
    return max(1, min(len(names), 66 // (longest + 4)))


def _draw_spaces(figure: Any, found: FeatureProjections) -> None:
    points, marks, _ = found.projected()
    columns = _columns(found)
    rows = math.ceil(len(points) / columns)
    order = np.argsort(found.labels, kind="stable")
    names = [shorten(found.names[int(label)], LETTERS) for label in found.labels[order]]
    all_points = [*points, *(vectors for vectors in marks if vectors is not None)]
    low, high = (edge(np.concatenate(all_points), axis=0) for edge in (np.min, np.max))
    room = 0.06 * np.maximum(high - low, 1e-6)
    axes: Any = None
    for index, (space, features, mark) in enumerate(zip(found.spaces, points, marks, strict=True)):
        place = (rows, columns, index + 1)
        axes = charts.scatter(
            figure, features[order], names, title=f"after {space.task}", size=14.0, bare=True, place=place
        )
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
            figure.legend(handles, shown, loc="outside lower center", ncols=_legend_columns(shown), handletextpad=0.2)


def _draw_ratio(figure: Any, found: FeatureProjections) -> None:
    at = np.arange(1, len(found.spaces) + 1)
    ratios = [space.within / space.between for space in found.spaces]
    options: dict[str, Any] = {"x": "after", "y": "within / between", "limits": (0, 1.15 * max(ratios))}
    axes = charts.line_chart(figure, {"ratio": (at, ratios)}, marks=True, **options)
    axes.set_xticks(at, [space.task for space in found.spaces])
