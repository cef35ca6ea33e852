"""What is measured of a learner of several tasks, in NumPy.

Everything comes from one matrix: `scores[i, j]` is the score of task j after task i was learned (R), `before[j]` that
of task j before any was (b). A matrix is `[tasks, tasks]`, in the order in which tasks were learned; higher is better,
but for perplexities. NaN = not evaluated: means are of the other entries, and NaN where there are none.

Lopez-Paz and Ranzato 2017 (backward and forward transfer), https://arxiv.org/abs/1706.08840; Chaudhry et al. 2018
(forgetting, intransigence), https://arxiv.org/abs/1801.10112; Qin et al. 2022 (ELLE: perplexities),
https://arxiv.org/abs/2203.06311.
"""

import importlib.util
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from scipy.spatial.distance import cdist

__all__ = [
    "ClassDistances",
    "Evaluations",
    "Spread",
    "accuracy_by_age",
    "area_under_curve",
    "average",
    "average_perplexity",
    "backward_transfer",
    "bytes_by_kind",
    "check_linear_probe",
    "class_distances",
    "forgetting",
    "forward_transfer",
    "increased_perplexity",
    "intransigence",
    "kept_bytes",
    "last_task_accuracy",
    "learning_accuracy",
    "linear_probe",
    "matrix_from_lines",
    "perplexities_after_each",
    "perplexity_summary",
    "score_deviations",
    "summary",
]


class Evaluations(NamedTuple):
    """Evaluations of a run over tasks.

    Attributes:
      tasks: names, in the order in which they were learned.
      scores: `[tasks, tasks]`.
      before: `[tasks]`.
    """

    tasks: tuple[str, ...]
    scores: Float[np.ndarray, "tasks tasks"]
    before: Float[np.ndarray, " tasks"]


class Spread(NamedTuple):
    """How much a score differs between runs.

    Attributes:
      mean: over orders of the means over seeds.
      orders: standard deviation of these means: of the order of tasks, and of what seeds leave of it.
      seeds: standard deviation of runs of one order (root of the mean variance).
    """

    mean: float
    orders: float
    seeds: float


# Scores


def average(scores: npt.ArrayLike) -> float:
    """The mean over tasks in the end (ACC)."""
    return _mean(_matrix(scores)[-1])


def area_under_curve(scores: npt.ArrayLike) -> float:
    """The mean over time of the mean over the tasks learned so far.

    Example:
      >>> area_under_curve([[0.75, 0.0], [0.25, 0.75]])
      0.625
    """
    scores = _matrix(scores)
    return _mean([_mean(row[: i + 1]) for i, row in enumerate(scores)])


def learning_accuracy(scores: npt.ArrayLike) -> float:
    """The mean of each task's score when it has just been learned."""
    return _mean(np.diag(_matrix(scores)))


def last_task_accuracy(scores: npt.ArrayLike) -> float:
    """The score of the last task in the end."""
    return float(_matrix(scores)[-1, -1])


def accuracy_by_age(scores: npt.ArrayLike) -> Float[np.ndarray, " tasks"]:
    """The mean score of what was learned 0, 1, 2, ... tasks ago.

    Example:
      >>> accuracy_by_age([[0.8, 0.0], [0.5, 0.6]])
      array([0.7, 0.5])
    """
    scores = _matrix(scores)
    return np.array([_mean(np.diag(scores, -age)) for age in range(len(scores))])


def forgetting(scores: npt.ArrayLike, reference: str = "max_prev") -> Float[np.ndarray, " earlier"]:
    """What each task but the last has lost in the end.

    Args:
      scores: the matrix.
      reference: lost from where. "max_prev": the best before the last task was learned, also before the task itself was
        (Chaudhry et al.; below 0 where the last task has helped). "max_all": the best of all, the end as well (mammoth;
        never below 0). "diag": when the task had just been learned (Avalanche); its mean is `-backward_transfer`.

    Raises:
      ValueError: another reference.

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
    """What the tasks but the last have gained since they were learned (BWT)."""
    return -_mean(forgetting(scores, "diag"))


def forward_transfer(scores: npt.ArrayLike, before: npt.ArrayLike) -> float:
    """What the tasks but the first have gained by the time before they are learned (FWT).

    Example:
      >>> forward_transfer([[0.9, 0.5, 0.3], [0.9, 0.9, 0.7], [0.9, 0.9, 0.9]], [0.5, 0.25, 0.2])
      0.375
    """
    scores = _matrix(scores)
    return _mean(np.diag(scores, 1) - _of_tasks("before", before, scores)[1:])


def intransigence(scores: npt.ArrayLike, joint: npt.ArrayLike) -> Float[np.ndarray, " tasks"]:
    """What each task, just learned, lacks of the score of a model that has learned it together with those before."""
    scores = _matrix(scores)
    return _of_tasks("joint", joint, scores) - np.diag(scores)


def average_perplexity(perplexities: npt.ArrayLike) -> float:
    """The geometric mean of the perplexities of all tasks in the end (AP of ELLE).

    Example:
      >>> round(average_perplexity([[2.0, 9.0], [4.0, 16.0]]), 6)
      8.0
    """
    return math.exp(_mean(np.log(_matrix(perplexities)[-1])))


def increased_perplexity(perplexities: npt.ArrayLike) -> float:
    """By how much the perplexities of the tasks but the last have grown since they were learned (AP+ of ELLE)."""
    return backward_transfer(perplexities)


def perplexity_summary(nats: npt.ArrayLike) -> dict[str, float]:
    """Every scalar of a matrix of nats, of which lower is better: their mean in the end, AP and AP+ of ELLE.

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
    """AP and AP+ of ELLE after every task, of the tasks so far.

    Args:
      nats: a row for each task that is through, a column for each task.

    Returns:
      `AP`; `AP+`, NaN after the first task, before which none was learned.

    Example:
      >>> found = perplexities_after_each([[1.0, 9.0], [2.0, 1.0]])
      >>> print({name: [round(value, 3) for value in values] for name, values in found.items()})
      {'AP': [2.718, 4.482], 'AP+': [nan, 4.671]}
    """
    nats = np.asarray(nats, np.float64)
    so_far = [np.exp(nats[:count, :count]) for count in range(1, len(nats) + 1)]
    return {
        "AP": [average_perplexity(square) for square in so_far],
        "AP+": [increased_perplexity(square) if len(square) > 1 else math.nan for square in so_far],
    }


def summary(scores: npt.ArrayLike, before: npt.ArrayLike | None = None) -> dict[str, float]:
    """Every scalar of a matrix, by name; `forgetting` is the mean of its default.

    Args:
      scores: the matrix.
      before: None = without `forward_transfer`.

    Example:
      >>> summary([[1.0, 0.5], [0.25, 0.75]])["forgetting"]
      0.75
    """
    found = {
        "average": average(scores),
        "area_under_curve": area_under_curve(scores),
        "learning_accuracy": learning_accuracy(scores),
        "last_task_accuracy": last_task_accuracy(scores),
        "forgetting": _mean(forgetting(scores)),
        "backward_transfer": backward_transfer(scores),
    }
    return found if before is None else found | {"forward_transfer": forward_transfer(scores, before)}


# Runs


def matrix_from_lines(
    lines: Iterable[Mapping[str, Any]], measure: str = "accuracy", tasks: Sequence[str] | None = None
) -> Evaluations:
    """The matrix of a run from the lines of its `metrics.jsonl` (`memjax.training.read_metrics`).

    Row i is the evaluations after the i-th stage that is followed by some, `before` those before stage 0. Of a run that
    is not through, the other rows are NaN.

    Args:
      lines: other lines, and evaluations during updates or without a name, are skipped.
      measure: which number of an evaluation, such as "nats_per_token"; None in a line (not finite) becomes NaN.
      tasks: names of evaluations in the order in which their tasks are learned; None = the order of their lines.

    Raises:
      ValueError: no evaluation of these tasks after a stage, none with this measure, or more stages than tasks.

    Example:
      >>> line = {"kind": "evaluation", "phase": "after"}
      >>> lines = [{**line, "name": "a", "accuracy": 0.9}, {**line, "name": "b", "accuracy": 0.1}]
      >>> lines += [{**line, "stage": 1, "name": name, "accuracy": 0.5} for name in "ab"]
      >>> matrix_from_lines(lines).scores.tolist()
      [[0.9, 0.1], [0.5, 0.5]]
    """
    # A line that says no stage is of stage 0, one that says no phase is of its updates.
    of_stages = [
        line
        for line in lines
        if line["kind"] == "evaluation"
        and line.get("name")
        and (line.get("phase") == "after" or (line.get("phase"), line.get("stage", 0)) == ("before", 0))
    ]
    # At the end of a run evaluations that are of no task are made too: the first stage has those of tasks alone.
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
    # A task may have stages that no evaluation follows.
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
    """The deviations of a score over orders of tasks and over seeds, apart.

    Args:
      scores: `[orders, seeds]`; NaN = not run.

    Example:
      >>> spread([[1.0, 3.0], [5.0, 7.0]])
      Spread(mean=4.0, orders=2.8284271247461903, seeds=1.4142135623730951)
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2:
        raise ValueError(f"scores: given shape {scores.shape}, allowed: [orders, seeds]")
    means = np.array([_mean(row) for row in scores])
    return Spread(_mean(means), _deviation(means), math.sqrt(_mean([_deviation(row) ** 2 for row in scores])))


def bytes_by_kind(**trees: Any) -> dict[str, int]:
    """The bytes of what a method keeps, by kind, and their `total`.

    Args:
      **trees: kind, such as `memory`, `keys`, `anchors`, `teachers`, -> a tree of arrays or shapes; None = nothing.

    Example:
      >>> bytes_by_kind(memory={"tokens": np.zeros((8, 4), np.int32)}, keys=np.zeros((8, 2), np.float32), teachers=None)
      {'memory': 128, 'keys': 64, 'teachers': 0, 'total': 192}
    """
    count = lambda tree: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    found = {kind: count(tree) for kind, tree in trees.items()}
    return found | {"total": sum(found.values())}


def kept_bytes(saved: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of what a method keeps beside the model, by kind, of the arrays of a checkpoint.

    Args:
      saved: name -> array or shape, as checkpoints name them.

    Returns:
      `memory`: rows of an episodic memory, on devices or the host. `keys`: theirs, and the network that they come from.
      `teachers`: models that teach. `anchors`: earlier parameters and importances. `columns`, where there are any:
      those before the newest, and the matrices out of them. And their `total`.

    Example:
      >>> importance, key = np.zeros((4, 2), np.float32), np.zeros((8, 3), np.float32)
      >>> kept_bytes({"params/w": importance, "method/ewc/around/w": importance, "host/keys": key})
      {'memory': 0, 'keys': 96, 'teachers': 0, 'anchors': 32, 'total': 128}
    """
    kinds: dict[str, dict[str, Any]] = {kind: {} for kind in ("memory", "keys", "teachers", "anchors")}
    numbers = [int(found[1]) for name in saved if (found := re.match(r"params/columns_(\d+)/", name))]
    newest = f"params/columns_{max(numbers)}/" if numbers else ""
    if newest:
        earlier = [name for name in saved if name.startswith("params/") and not name.startswith(newest)]
        kinds["columns"] = {name: saved[name] for name in earlier}
    for name, leaf in saved.items():
        place, *path = name.split("/")
        if place not in ("method", "host") or not leaf.shape:  # counters are none of them
            continue
        if path[-1] == "keys" or "key_network" in path:
            kind = "keys"
        elif place == "host" or path[0] == "episodes":
            kind = "memory"
        else:
            kind = "teachers" if "teacher" in path else "anchors"
        kinds[kind][name] = leaf
    return bytes_by_kind(**kinds)


class ClassDistances(NamedTuple):
    """How far apart features lie.

    Attributes:
      within: the mean Euclidean distance of two examples of one class, of every class `[classes]`; NaN of one example.
      between: of two examples of two classes `[classes, classes]`; NaN on the diagonal.
    """

    within: np.ndarray
    between: np.ndarray

    def means(self) -> dict[str, float]:
        """The mean of the classes, and that of their pairs; where the first is far below, classes stand apart."""
        return {"within": float(np.nanmean(self.within)), "between": float(np.nanmean(self.between))}


def class_distances(features: npt.ArrayLike, labels: npt.ArrayLike) -> ClassDistances:
    """How far apart features of one class lie, and those of two.

    Args:
      features: `[examples, dim]`.
      labels: `[examples]`, integers, of at least two classes, one of which has two examples.

    Raises:
      ValueError: labels of one class, or no class with two examples.

    Example:
      >>> found = class_distances([[0.0], [2.0], [9.0]], [0, 0, 1])
      >>> found.within.tolist(), found.means()
      ([2.0, nan], {'within': 2.0, 'between': 8.0})
    """
    points, labels = np.asarray(features, np.float64), np.asarray(labels)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.max() < 2:
        given = f"those of {len(classes)} classes, at most {counts.max()} examples each"
        raise ValueError(f"labels: given {given}, allowed: 2 or more classes, one of them with 2 or more examples")
    some = [points[labels == one] for one in classes]
    sums = np.array([[cdist(one, other).sum() for other in some] for one in some])
    pairs = np.outer(counts, counts).astype(np.float64)
    with np.errstate(invalid="ignore"):
        within = np.diag(sums) / (counts * (counts - 1.0))
    np.fill_diagonal(pairs, np.nan)
    return ClassDistances(within, sums / pairs)


def linear_probe(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    test_features: npt.ArrayLike,
    test_labels: npt.ArrayLike,
    *,
    strength: float = 1.0,
) -> float:
    """The accuracy of a linear classifier that is trained anew on frozen features: what they still tell of a task.

    A model may have forgotten a task in its head alone; then this stays as it was. Logistic regression by scikit-learn,
    on features with mean 0 and deviation 1; the same every time.

    Args:
      features: `[examples, dim]`, of a task's training data.
      labels: `[examples]`, integers, of at least two classes.
      test_features: `[tests, dim]`.
      test_labels: `[tests]`.
      strength: of the square penalty, above 0 (1 / C).

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
      ValueError: labels of one class.
    """
    check_linear_probe()
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(classes := np.unique(labels)) < 2:
        raise ValueError(f"labels: given those of {len(classes)} class, allowed: 2 or more")
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / strength, max_iter=1000))
    return float(probe.fit(features, labels).score(test_features, test_labels))


def check_linear_probe() -> None:
    """Raises `ModuleNotFoundError` where scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise ModuleNotFoundError("scikit-learn is not installed (linear_probe); memjax[eval] has it", name="sklearn")


def _matrix(scores: npt.ArrayLike) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not scores.size:
        raise ValueError(f"scores: given shape {scores.shape}, allowed: [tasks, tasks]")
    return scores


def _of_tasks(name: str, values: npt.ArrayLike, scores: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.shape != scores.shape[:1]:
        raise ValueError(f"{name}: given shape {values.shape}, allowed: [tasks], {len(scores)} of them")
    return values


def _mean(values: Any) -> float:
    """Of what is not NaN; NaN of nothing."""
    values = np.asarray(values, np.float64)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def _deviation(values: np.ndarray) -> float:
    """The standard deviation of what is not NaN, of which there must be two; else NaN."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1)) if known.size > 1 else math.nan
