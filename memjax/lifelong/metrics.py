"""Metrics of lifelong learning, such as average accuracy, forgetting and transfer, in NumPy.

All are computed from one matrix: `scores[i, j]` is the score of task j after task i was learned (R). `before[j]` is the
score of task j before any task was learned (b). Matrices are `[tasks, tasks]`, in the order in which tasks were
learned. Higher is better except for perplexities. NaN means not evaluated: means are over the other entries, and NaN
if there are none.

Lopez-Paz and Ranzato 2017 (backward and forward transfer), https://arxiv.org/abs/1706.08840; Chaudhry et al. 2018
(forgetting, intransigence), https://arxiv.org/abs/1801.10112; Qin et al. 2022 (ELLE: perplexities),
https://arxiv.org/abs/2203.06311.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Float


class Evaluations(NamedTuple):
    """The names of the tasks of a run, the scores of all tasks (columns) after each task (rows), and their scores
    before any task.

    Attributes:
      tasks: Names of the tasks, in the order in which they were learned.
      scores: Score of each task (column) after each task was learned (row), `[tasks, tasks]`.
      before: Score of each task before any was learned, `[tasks]`.
    """

    tasks: tuple[str, ...]
    scores: Float[np.ndarray, "tasks tasks"]
    before: Float[np.ndarray, " tasks"]


class Spread(NamedTuple):
    """The mean over orders of tasks of the mean score over seeds, and the standard deviations of scores over orders and
    over seeds.

    Attributes:
      mean: Mean over orders of the means over seeds.
      orders: Standard deviation of the means over seeds. It contains the effect of the order of tasks, and what the
        means leave of the effect of seeds.
      seeds: Standard deviation of runs with the same order (root of the mean variance).
    """

    mean: float
    orders: float
    seeds: float


# Scores


def average(scores: npt.ArrayLike) -> float:
    """Computes the mean score of all tasks at the end (ACC), a float. `scores[i, j]` is the score of task j after task
    i was learned.
    """
    return _mean(_matrix(scores)[-1])


def area_under_curve(scores: npt.ArrayLike) -> float:
    """Computes the mean over time of the mean score of the tasks learned so far, a float. `scores[i, j]` is the score
    of task j after task i was learned.

    Example:
      >>> area_under_curve([[0.75, 0.0], [0.25, 0.75]])
      0.625
    """
    scores = _matrix(scores)
    return _mean([_mean(row[: i + 1]) for i, row in enumerate(scores)])


def learning_accuracy(scores: npt.ArrayLike) -> float:
    """Computes the mean over tasks of the score of a task when it has just been learned, a float. `scores[i, j]` is the
    score of task j after task i was learned.
    """
    return _mean(np.diag(_matrix(scores)))


def last_task_accuracy(scores: npt.ArrayLike) -> float:
    """Returns the score of the last task at the end, a float. `scores[i, j]` is the score of task j after task i was
    learned.
    """
    return float(_matrix(scores)[-1, -1])


def accuracy_by_age(scores: npt.ArrayLike) -> Float[np.ndarray, " tasks"]:
    """Computes the mean score of tasks that were learned 0, 1, 2, ... tasks ago, an array `[tasks]`. `scores[i, j]` is
    the score of task j after task i was learned.

    Example:
      >>> accuracy_by_age([[0.8, 0.0], [0.5, 0.6]])
      array([0.7, 0.5])
    """
    scores = _matrix(scores)
    return np.array([_mean(np.diag(scores, -age)) for age in range(len(scores))])


def forgetting(scores: npt.ArrayLike, reference: str = "max_prev") -> Float[np.ndarray, " earlier"]:
    """Computes the loss of score of each task but the last, `[tasks - 1]`, from a reference score to the end.
    `scores[i, j]` is the score of task j after task i. `reference` is "max_prev", "max_all" or "diag".

    Args:
      scores: Scores of all tasks after each task, `[tasks, tasks]`.
      reference: The score to compare with. "max_prev": the best score before the last task was learned, even before the
        task itself was (Chaudhry et al.). The result is negative if the last task has helped. "max_all": the best score
        of all, including the end (mammoth). The result is never negative. "diag": the score when the task had just been
        learned (Avalanche). The mean of the result is then `-backward_transfer`.

    Raises:
      ValueError: the reference is unknown.

    Example:
      >>> scores = [[0.5, 0.0, 0.0], [0.75, 1.0, 0.0], [0.25, 1.25, 1.0]]
      >>> [forgetting(scores, reference).tolist() for reference in ("max_prev", "max_all", "diag")]
      [[0.5, -0.25], [0.5, 0.0], [0.25, -0.25]]
    """
    scores = _matrix(scores)
    match reference:
        case "max_prev":
            best = np.fmax.reduce(scores[:-1], axis=0, initial=np.nan)
        case "max_all":
            best = np.fmax.reduce(scores, axis=0)
        case "diag":
            best = np.diag(scores)
        case _:
            raise ValueError(f'reference: given {reference!r}, allowed: "max_prev", "max_all", "diag"')
    return (best - scores[-1])[:-1]


def backward_transfer(scores: npt.ArrayLike) -> float:
    """Computes the mean gain of score of all tasks but the last since they were learned (BWT), a float. `scores[i, j]`
    is the score of task j after task i was learned.
    """
    return -_mean(forgetting(scores, "diag"))


def forward_transfer(scores: npt.ArrayLike, before: npt.ArrayLike) -> float:
    """Computes the mean gain of score of all tasks but the first from `before` any task to just before each is learned
    (FWT), a float. `scores[i, j]` is the score of task j after task i was learned.

    Args:
      scores: Scores of all tasks after each task, `[tasks, tasks]`.
      before: Scores of all tasks before any was learned, `[tasks]`.

    Example:
      >>> forward_transfer([[0.9, 0.5, 0.3], [0.9, 0.9, 0.7], [0.9, 0.9, 0.9]], [0.5, 0.25, 0.2])
      0.375
    """
    scores = _matrix(scores)
    return _mean(np.diag(scores, 1) - _check_per_task("before", before, scores)[1:])


def intransigence(scores: npt.ArrayLike, joint: npt.ArrayLike) -> Float[np.ndarray, " tasks"]:
    """Computes how far the score of each task, when just learned, stays below its score in the array `joint`, that of
    joint training. `scores[i, j]` is the score of task j after task i was learned.

    Args:
      scores: Scores of all tasks after each task, `[tasks, tasks]`.
      joint: Score of each task by a model that has learned it together with all earlier tasks, `[tasks]`.
    """
    scores = _matrix(scores)
    return _check_per_task("joint", joint, scores) - np.diag(scores)


def average_perplexity(perplexities: npt.ArrayLike) -> float:
    """Computes the geometric mean of the perplexities of all tasks at the end (AP of ELLE), a float.
    `perplexities[i, j]` is that of task j after task i was learned.

    Example:
      >>> round(average_perplexity([[2.0, 9.0], [4.0, 16.0]]), 6)
      8.0
    """
    return math.exp(_mean(np.log(_matrix(perplexities)[-1])))


def increased_perplexity(perplexities: npt.ArrayLike) -> float:
    """Computes the mean increase of the perplexities of earlier tasks since they were learned (AP+ of ELLE), a float.
    `perplexities[i, j]` is that of task j after task i was learned.
    """
    return backward_transfer(perplexities)


def perplexity_summary(nats: npt.ArrayLike) -> dict[str, float]:
    """Returns a dict of the scalar metrics of losses in nats: their mean at the end, and the perplexities AP and AP+ of
    ELLE. `nats[i, j]` is the loss of task j after task i was learned.

    Example:
      >>> print({name: round(value, 3) for name, value in perplexity_summary([[1.0, 9.0], [2.0, 1.0]]).items()})
      {'average': 1.5, 'average_perplexity': 4.482, 'increased_perplexity': 4.671}
    """
    perplexities = np.exp(_matrix(nats))
    return {
        "average": average(nats),
        "average_perplexity": average_perplexity(perplexities),
        "increased_perplexity": increased_perplexity(perplexities),
    }


def perplexities_after_each(nats: npt.ArrayLike) -> dict[str, list[float]]:
    """Returns the perplexities AP and AP+ of ELLE of the tasks so far, each a list with a value after every task.
    `nats[i, j]` is the loss of task j after task i was learned.

    Args:
      nats: Losses in nats: a row for each task that was learned, a column for each task.

    Returns:
      `AP` and `AP+`, each a list with one value for every row. `AP+` is NaN after the first task.

    Example:
      >>> perplexities = perplexities_after_each([[1.0, 9.0], [2.0, 1.0]])
      >>> print({name: [round(value, 3) for value in values] for name, values in perplexities.items()})
      {'AP': [2.718, 4.482], 'AP+': [nan, 4.671]}
    """
    nats = np.asarray(nats, np.float64)
    so_far = [np.exp(nats[:count, :count]) for count in range(1, len(nats) + 1)]
    return {
        "AP": [average_perplexity(square) for square in so_far],
        "AP+": [increased_perplexity(square) if len(square) > 1 else math.nan for square in so_far],
    }


def summary(scores: npt.ArrayLike, before: npt.ArrayLike | None = None) -> dict[str, float]:
    """Returns a dict of all scalar metrics of scores, with the mean forgetting. `scores[i, j]` is the score of task j
    after task i was learned, and `before` are the scores before any task, for forward transfer.

    Args:
      scores: Scores of all tasks after each task, `[tasks, tasks]`.
      before: Scores of all tasks before any was learned, `[tasks]`. None to leave out `forward_transfer`.

    Example:
      >>> summary([[1.0, 0.5], [0.25, 0.75]])["forgetting"]
      0.75
    """
    metrics = {
        "average": average(scores),
        "area_under_curve": area_under_curve(scores),
        "learning_accuracy": learning_accuracy(scores),
        "last_task_accuracy": last_task_accuracy(scores),
        "forgetting": _mean(forgetting(scores)),
        "backward_transfer": backward_transfer(scores),
    }
    return metrics if before is None else metrics | {"forward_transfer": forward_transfer(scores, before)}


# Runs


def matrix_from_lines(
    lines: Iterable[Mapping[str, Any]], measure: str = "accuracy", tasks: Sequence[str] | None = None
) -> Evaluations:
    """Collects the scores of a run after each task (`Evaluations`) from the lines of its `metrics.jsonl`. `measure`
    names the score in a line, `tasks` names the tasks in their order.

    Row i has the evaluations after the i-th stage that is followed by evaluations. `before` has those before stage 0.
    Rows of stages that a run has not reached yet are NaN.

    Args:
      lines: Lines of the metrics (`memjax.training.read_metrics`). Only evaluations with a name before the first stage
        or after a stage are read.
      measure: Name of the score in an evaluation, such as "accuracy" or "nats_per_token". A value that is None because
        it was not finite becomes NaN.
      tasks: Names of the evaluations, in the order in which their tasks are learned. None for the order of their lines.

    Raises:
      ValueError: no evaluation of these tasks follows a stage, none has this score, or stages outnumber tasks.

    Example:
      >>> line = {"kind": "evaluation", "phase": "after"}
      >>> lines = [{**line, "name": "a", "accuracy": 0.9}, {**line, "name": "b", "accuracy": 0.1}]
      >>> lines += [{**line, "stage": 1, "name": name, "accuracy": 0.5} for name in "ab"]
      >>> matrix_from_lines(lines).scores.tolist()
      [[0.9, 0.1], [0.5, 0.5]]
    """
    # A line without a stage is of stage 0. A line without a phase was written during the updates of its stage.
    of_stages = [
        line
        for line in lines
        if line["kind"] == "evaluation"
        and line.get("name")
        and (line.get("phase") == "after" or (line.get("phase"), line.get("stage", 0)) == ("before", 0))
    ]
    # Evaluations of no task are made at the end of a run. The first stage has only those of tasks.
    stages = sorted({line.get("stage", 0) for line in of_stages if line.get("phase") == "after"})
    first = dict.fromkeys(line["name"] for line in of_stages if line.get("stage", 0) in (0, *stages[:1]))
    names = tuple(first if tasks is None else tasks)
    chosen = [line for line in of_stages if line["name"] in names]
    if not any(line.get("phase") == "after" for line in chosen):
        wanted = "named ones after every stage" if tasks is None else f"some of {[*tasks]}"
        raise ValueError(f"lines: given evaluations of {[*first]} after the first stage, allowed: {wanted}")
    if not any(measure in line for line in chosen):
        numbers = sorted(name for name, value in chosen[0].items() if isinstance(value, float))
        raise ValueError(f"measure: given {measure!r}, allowed: {', '.join(numbers)}")
    # A task may have stages without evaluations after them.
    stages = sorted({line.get("stage", 0) for line in chosen if line.get("phase") == "after"})
    if len(stages) > len(names):
        raise ValueError(f"lines: given {len(stages)} stages, allowed: as many as tasks, {len(names)}")
    scores, before = np.full((len(names),) * 2, np.nan), np.full(len(names), np.nan)
    for line in chosen:
        row = before if line.get("phase") == "before" else scores[stages.index(line.get("stage", 0))]
        value = line.get(measure)
        row[names.index(line["name"])] = np.nan if value is None else value
    return Evaluations(names, scores, before)


def score_deviations(scores: npt.ArrayLike) -> Spread:
    """Computes the mean over orders of tasks of the mean score over seeds, and the standard deviations over orders and
    over seeds (`Spread`). `scores` are `[orders, seeds]`, NaN for missing runs.

    Args:
      scores: Scores of runs, `[orders, seeds]`. NaN for runs that are missing.

    Example:
      >>> score_deviations([[1.0, 3.0], [5.0, 7.0]])
      Spread(mean=4.0, orders=2.8284271247461903, seeds=1.4142135623730951)
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2:
        raise ValueError(f"scores: given shape {scores.shape}, allowed: [orders, seeds]")
    means = np.array([_mean(row) for row in scores])
    return Spread(_mean(means), _deviation(means), math.sqrt(_mean([_deviation(row) ** 2 for row in scores])))


def bytes_by_kind(**trees: Any) -> dict[str, int]:
    """Returns a dict of the sizes in bytes of trees of arrays, which are given as keyword arguments, and of their
    `total`.

    Args:
      **trees: Trees of arrays or shapes, by a name such as `memory`, `keys`, `anchors` or `teachers`. None for an empty
        tree.

    Example:
      >>> bytes_by_kind(memory={"tokens": np.zeros((8, 4), np.int32)}, keys=np.zeros((8, 2), np.float32), teachers=None)
      {'memory': 128, 'keys': 64, 'teachers': 0, 'total': 192}
    """
    count = lambda tree: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    sizes = {kind: count(tree) for kind, tree in trees.items()}
    return sizes | {"total": sum(sizes.values())}


def kept_bytes(saved: Mapping[str, Any]) -> dict[str, int]:
    """Returns a dict of the bytes that a method stores beside the model, by kind, such as `memory` or `anchors`.
    `saved` are the arrays of a checkpoint by name.

    Args:
      saved: Arrays or shapes by their names in a checkpoint.

    Returns:
      `memory`: rows of an episodic memory, on devices or the host. `keys`: keys of these rows and the network that
      computes them. `teachers`: teacher models. `anchors`: earlier parameters and importances. `columns`, only for
      progressive networks: all columns but the newest, and the matrices out of them. `total`: the sum of all.

    Example:
      >>> importance, key = np.zeros((4, 2), np.float32), np.zeros((8, 3), np.float32)
      >>> kept_bytes({"params/w": importance, "method/ewc/around/w": importance, "host/keys": key})
      {'memory': 0, 'keys': 96, 'teachers': 0, 'anchors': 32, 'total': 128}
    """
    kinds: dict[str, dict[str, Any]] = {kind: {} for kind in ("memory", "keys", "teachers", "anchors")}
    numbers = [int(match[1]) for name in saved if (match := re.match(r"params/columns_(\d+)/", name))]
    newest = f"params/columns_{max(numbers)}/" if numbers else ""
    if newest:
        earlier = [name for name in saved if name.startswith("params/") and not name.startswith(newest)]
        kinds["columns"] = {name: saved[name] for name in earlier}
    for name, leaf in saved.items():
        place, *path = name.split("/")
        if place not in ("method", "host") or not leaf.shape:  # Counters do not count.
            continue
        if path[-1] == "keys" or "key_network" in path:
            kind = "keys"
        elif place == "host" or path[0] == "episodes":
            kind = "memory"
        else:
            kind = "teachers" if "teacher" in path else "anchors"
        kinds[kind][name] = leaf
    return bytes_by_kind(**kinds)


def _matrix(scores: npt.ArrayLike) -> np.ndarray:
    """Converts scores to an array and checks that it is square."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not scores.size:
        raise ValueError(f"scores: given shape {scores.shape}, allowed: [tasks, tasks]")
    return scores


def _check_per_task(name: str, values: npt.ArrayLike, scores: np.ndarray) -> np.ndarray:
    """Converts values to an array and checks that there is one for each task."""
    values = np.asarray(values, np.float64)
    if values.shape != scores.shape[:1]:
        raise ValueError(f"{name}: given shape {values.shape}, allowed: [tasks], {len(scores)} of them")
    return values


def _mean(values: Any) -> float:
    """Computes the mean of all values that are not NaN, or NaN if there are none."""
    values = np.asarray(values, np.float64)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def _deviation(values: np.ndarray) -> float:
    """Computes the standard deviation of all values that are not NaN, or NaN if there are fewer than two."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1)) if known.size > 1 else math.nan
