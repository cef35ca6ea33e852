"""Panels of a run over several tasks: scores of every task after every task, costs, and metrics of the method.

All numbers come from the run's log (`memjax.report.outcomes.stream_facts`). No model is loaded or evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.metrics import accuracy_by_age
from memjax.report import charts
from memjax.report.method_log import method_figures, task_borders
from memjax.report.outcomes import NATS, SPIKE, WHOLE
from memjax.report.panel import Figure, OpenedRun, Panel, Table

WRITTEN = 10
"""Largest number of tasks of a matrix with numbers in its cells."""
MEANINGS = {
    "average": "mean over all tasks at the end",
    "area_under_curve": "mean over time of the mean over the tasks learned so far",
    "learning_accuracy": "mean over tasks of the score right after the task was learned",
    "last_task_accuracy": "score of the last task at the end",
    "forgetting": "mean drop of each task but the last from its best earlier score to the end (Chaudhry et al. 2018)",
    "backward_transfer": "mean gain of each task but the last since it was learned (Lopez-Paz and Ranzato 2017)",
    "forward_transfer": "mean gain of each task but the first before it was learned (Lopez-Paz and Ranzato 2017)",
    "average_perplexity": "geometric mean of the perplexities of all tasks at the end (AP of ELLE)",
    "increased_perplexity": "mean increase in perplexity of each task but the last since it was learned (AP+ of ELLE)",
    WHOLE: "score on the data of all tasks together at the end",
}
"""Name of a summary score -> its meaning."""
KEPT = {
    "memory": "rows of the episodic memory",
    "keys": "keys of these rows, with the network that computes keys",
    "teachers": "teacher models",
    "anchors": "earlier parameters and their importance",
    "columns": "earlier columns of the network",
    "total": "everything stored beside the model",
}
"""Kind of stored arrays in a checkpoint -> its description."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of all tasks after each finished task of a run, as a matrix, with the name of the score.

    Attributes:
      label: Name of the score, such as "accuracy" or "perplexity".
      tasks: Names of the tasks in the order of training.
      raw: Scores as logged, `[finished tasks, tasks]`, with one row of scores after each task. NaN if not evaluated, or
        if the task was not learned yet.
      less: Whether the scores are nats, of which less is better. They are shown as perplexities.
      whole: Scores on the data of all tasks together after each task. Empty if it was not evaluated.
      largest: Score of always giving the most frequent class, of each task. Empty for tasks without classes.
    """

    label: str
    tasks: tuple[str, ...]
    raw: np.ndarray
    less: bool
    whole: tuple[float, ...] = ()
    largest: tuple[float, ...] = ()

    @property
    def at_once(self) -> bool:
        """Whether the matrix has only one row, but several tasks: all were learned in one stage, or only one of them is
        finished.
        """
        return len(self.raw) == 1 < len(self.tasks)

    def shown(self, values: Any) -> np.ndarray:
        """Converts logged scores to the scores that figures show, an array of the same shape: nats become perplexities,
        other scores stay.
        """
        return np.exp(values) if self.less else np.asarray(values, np.float64)

    def means(self) -> np.ndarray:
        """Returns, for each row of the matrix, the mean score of the first tasks, as many as rows so far,
        `[finished tasks]`: those learned by then, or the first one alone if all share a stage. For perplexities the
        mean is geometric.
        """
        return self.shown([np.nanmean(row[: number + 1]) for number, row in enumerate(self.raw)])

    def by_age(self) -> np.ndarray:
        """Returns the mean scores by the age of tasks, `[finished tasks]`: entry k is the mean over all rows i of the
        matrix of the score of task i - k. For perplexities the mean is geometric.
        """
        square = np.full((len(self.tasks),) * 2, np.nan)
        square[: len(self.raw)] = self.raw
        return self.shown(accuracy_by_age(square))[: len(self.raw)]

    @property
    def limits(self) -> tuple[float, float] | None:
        """Lowest and highest value of the axis of a chart of accuracies. The lowest is 0, or higher if all accuracies
        exceed 0.5. None for other scores.
        """
        if self.label != "accuracy":
            return None
        least = float(np.nanmin(self.shown(self.raw)))
        return (math.floor(10 * least - 1) / 10 if least > 0.5 else 0.0, 1.02)

    @property
    def numbers(self) -> str:
        """Format with which a figure writes a score, such as `{:.2f}`. Large scores have fewer decimals."""
        most = float(np.nanmax(np.abs(self.shown(self.raw)), initial=0.0))
        return "{:.2f}" if most < 10 else "{:.1f}" if most < 1000 else "{:.0f}"


def scores_of(facts: Mapping[str, Any]) -> Scores:
    """Makes the `Scores` of a run over tasks from its facts, the result of `memjax.report.outcomes.stream_facts`.

    Args:
      facts: Facts of a run over tasks (`memjax.report.outcomes.stream_facts`).

    Example:
      >>> facts = {"measure": "nats_per_token", "tasks": ["a", "b"], "scores": [[0.0, None], [1.0, 1.0]]}
      >>> scores = scores_of(facts)
      >>> scores.label, scores.less, scores.means().round(2).tolist()
      ('perplexity', True, [1.0, 2.72])
    """
    number = lambda value: math.nan if value is None else value
    raw = np.array([[*map(number, row)] for row in facts["scores"]], np.float64)
    if len(raw) == facts.get("num_tasks", len(raw)):  # else all tasks were learned in one stage
        rows, columns = np.indices(raw.shape)
        raw = np.where(columns <= rows, raw, math.nan)
    less = facts["measure"] == NATS
    measure = str(facts["measure"])
    label = "perplexity" if less else "F1" if measure == "f1" else measure.replace("_", " ")
    whole = tuple(facts.get("after_each", {}).get("of all", ()))
    largest = () if less else tuple(map(number, facts.get("largest_classes", ())))
    return Scores(label, tuple(facts["tasks"]), raw, less, whole, largest)


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields panels of scores, of stored bytes and times, and of the metrics of the method, for a run over tasks that
    has finished one. It yields nothing for other runs.
    """
    facts = run.files.stream
    if not facts:
        return
    scores = scores_of(facts)
    yield _scores_panel(run, facts, scores)
    yield _costs_panel(run, facts, scores)
    if figures := [*method_figures(run.log_lines, scores.tasks)]:
        text = (
            "Metrics that the method logs during training, beside the loss of the stream. Vertical lines mark the ends "
            "of tasks."
        )
        yield Panel("stream_method", "Metrics of the method", text, tuple(figures))


# Scores


def _scores_panel(run: OpenedRun, facts: Mapping[str, Any], scores: Scores) -> Panel:
    better = "lower is better" if scores.less else "higher is better"
    counted = _describe_evaluation(run, scores.tasks)
    values = {name: value for name, value in facts.items() if isinstance(value, float)}
    meaning = {**MEANINGS, "average": "mean nats a token over all tasks at the end"} if scores.less else MEANINGS
    rows = tuple(
        (name.replace("_", " "), value + 0.0, meaning.get(name, MEANINGS["average"])) for name, value in values.items()
    )
    summary = f"Summary of the matrix, as `memjax eval` prints it. {counted}."
    table = Table("stream_summary", "Summary scores", summary, ("score", "value", "meaning"), rows)
    if scores.at_once:
        text = f"All tasks were learned in one stage, or only one of them is finished: {scores.label}, {better}."
        bars = Figure(
            "stream_tasks",
            f"{scores.label} of each task".capitalize(),
            f"{counted}, after {run.log_lines[-1]['step']:,} updates.",
            functools.partial(_draw_bars, scores=scores),
            1.2 + 0.4 * len(scores.tasks) * (1 + bool(scores.largest)),
        )
        return Panel("stream_scores", "Tasks", text, (bars, table))
    text = (
        f"How well does the model still solve earlier tasks? The {scores.label} of every task after every task, "
        f"{better}. Lopez-Paz and Ranzato 2017 and Chaudhry et al. 2018 compute all their scores from this matrix. "
        "Most papers on lifelong learning show curves of each task."
    )
    return Panel("stream_scores", "One task after the other", text, (*_score_figures(scores, counted), table))


def _score_figures(scores: Scores, counted: str) -> Iterator[Figure]:
    label, count = scores.label, len(scores.tasks)
    title = label[0].upper() + label[1:]
    drawn_by = lambda draw: functools.partial(draw, scores=scores)
    darker = "Darker: worse." if scores.less else "Darker: better."
    darker += f" The last row is the {label} of always giving the largest class." if scores.largest else ""
    yield Figure(
        "stream_matrix",
        f"{title} of every task after every task",
        f"{counted}. There is a row for each finished task and a column for each task. Right of the diagonal, "
        f"where a task has not been learned yet, the matrix is blank. {darker}",
        drawn_by(_draw_matrix),
        min(1.4 + 0.42 * (len(scores.raw) + bool(scores.largest)), 6.0),
    )
    yield Figure(
        "stream_forgetting",
        f"{title} of each task while others are learned",
        f"{counted}. Each line begins when its task has just been learned. Where it "
        f"{'rises' if scores.less else 'falls'}, the task is forgotten.",
        drawn_by(_draw_forgetting),
        3.2,
    )
    mean = "geometric mean" if scores.less else "mean"
    yield Figure(
        "stream_means",
        f"{title} over the tasks learned so far",
        f"The {mean} over the tasks learned so far, after each of them."
        + (" The second line is the data of all tasks together, with later tasks (`whole`)." if scores.whole else ""),
        drawn_by(_draw_means),
    )
    if len(scores.raw) > 1:
        yield Figure(
            "stream_age",
            f"{title} by the age of the task",
            f"The {mean} over tasks that were learned 0, 1, 2, ... tasks ago, in all rows of the matrix. Only one of "
            f"{count} tasks reaches the greatest age.",
            drawn_by(_draw_age),
        )


def _draw_matrix(figure: Any, scores: Scores) -> None:
    shown = scores.shown(scores.raw)
    numbers = scores.numbers if len(scores.tasks) <= WRITTEN else ""
    low = float(np.nanmin(shown)) if scores.less else 0.0
    rows = [f"after {name}" for name in scores.tasks[: len(shown)]]
    if scores.largest:
        shown, rows = np.concatenate([shown, [scores.largest]]), [*rows, "largest class"]
    charts.heatmap(figure, shown, rows=rows, columns=scores.tasks, numbers=numbers, low=low)


def _draw_forgetting(figure: Any, scores: Scores) -> None:
    at = np.arange(1, len(scores.raw) + 1)
    series = {name: (at, values) for name, values in zip(scores.tasks, scores.shown(scores.raw).T, strict=True)}
    series = {name: curve for name, curve in series.items() if np.isfinite(curve[1]).any()}
    options: dict[str, Any] = {"limits": scores.limits, "log_y": _spans_magnitudes(scores)}
    _name_tasks(charts.line_chart(figure, series, y=scores.label, marks=True, **options), scores)


def _draw_means(figure: Any, scores: Scores) -> None:
    at = np.arange(1, len(scores.raw) + 1)
    series = {"tasks learned so far": (at, scores.means())}
    if scores.whole:
        series["all tasks (whole)"] = (at[: len(scores.whole)], scores.shown(scores.whole)[: len(at)])
    _name_tasks(charts.line_chart(figure, series, y=scores.label, marks=True, limits=scores.limits), scores)


def _draw_seconds(figure: Any, scores: Scores, seconds: Sequence[float]) -> None:
    series = {"tasks learned so far": (np.asarray(seconds), scores.means())}
    charts.line_chart(figure, series, x="seconds of updates", y=scores.label, marks=True, limits=scores.limits)


def _draw_age(figure: Any, scores: Scores) -> None:
    means = scores.by_age()
    options: dict[str, Any] = {"x": "tasks learned since", "y": scores.label, "limits": scores.limits}
    axes = charts.line_chart(figure, {"mean": (np.arange(len(means)), means)}, marks=True, **options)
    axes.set_xticks(np.arange(0, len(means), max(1, len(means) // 10)))


def _draw_bars(figure: Any, scores: Scores) -> None:
    series = {scores.label: scores.shown(scores.raw[0])}
    series |= {"largest class": np.array(scores.largest)} if scores.largest else {}
    charts.bar_chart(figure, scores.tasks, series, x=scores.label, numbers=scores.numbers)


def _spans_magnitudes(scores: Scores) -> bool:
    """Returns whether the scores are perplexities that differ by more than a factor of 10."""
    shown = scores.shown(scores.raw)
    return scores.less and bool(np.nanmax(shown) > 10 * np.nanmin(shown))


def _name_tasks(axes: Any, scores: Scores) -> None:
    """Labels the axis of tasks below a chart with their names if these are short, otherwise with their numbers."""
    at, names = np.arange(1, len(scores.raw) + 1), scores.tasks[: len(scores.raw)]
    if sum(map(len, names)) <= 45:
        axes.set_xticks(at, names)
        axes.set_xlabel("after")
    else:
        every = at[:: max(1, len(at) // 10)]
        axes.set_xticks(every, [str(number) for number in every])
        axes.set_xlabel("tasks learned")


def _describe_evaluation(run: OpenedRun, tasks: Sequence[str]) -> str:
    """Describes how much of each task was scored, and in which split."""
    from memjax.tasks import make_task

    lines = [line for line in run.log_lines if line["kind"] == "evaluation" and line.get("name") in tasks]
    sizes, splits = {line["targets"] for line in lines}, sorted({line["split"] for line in lines})
    size = f"{min(sizes):,}" if len(sizes) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    task, where = make_task(run.config), f"of the {' and '.join(splits)} split of each task"
    if task.writes_answers:
        return f"Answers to at most {run.config.evaluation.max_answers:,} questions {where}"
    return f"{size} {task.target_unit} {where}"


# Costs


def _costs_panel(run: OpenedRun, facts: Mapping[str, Any], scores: Scores) -> Panel:
    caption = (
        "Bytes are those of the newest checkpoint. Seconds of updates are computed from the logged speed, without "
        "compilation, evaluations and checkpoints. Examples a second are the median over the lines of the log. The "
        "time to score an example includes its adaptation, if there is one."
    )
    table = Table(
        "stream_costs",
        "Memory and time",
        caption,
        ("cost", "value", "unit"),
        tuple(cost_rows(facts["kept_bytes"], facts["cost"])),
    )
    parts: list[Any] = [table]
    seconds = facts["cost"].get("seconds_after_each", ())
    if len(seconds) == len(scores.raw) > 1:
        parts.append(
            Figure(
                "stream_seconds",
                f"{scores.label[0].upper()}{scores.label[1:]} against seconds of updates",
                f"The {'geometric mean' if scores.less else 'mean'} over the tasks learned so far after each task, "
                "over the seconds of all updates until then.",
                functools.partial(_draw_seconds, scores=scores, seconds=seconds),
            )
        )
    if table_rows := growth_rows(run.log_lines, facts["tasks"], _growth_history(run)):
        caption = (
            "Nats a token on rows of the memory right before and right after the model was enlarged. Equal numbers "
            "mean that growth preserves the function of the model (Qin et al. 2022, function-preserving expansion)."
        )
        columns = ("before task", "updates", "layers", "width", "heads", "nats before", "nats after", "seconds")
        parts.append(Table("stream_growth", "Loss before and after growth", caption, columns, tuple(table_rows)))
    text = "Memory that is stored beside the model, and the time of training. Compare methods only together with these."
    return Panel("stream_costs", "Costs of the stream", text, tuple(parts))


def cost_rows(kept: Mapping[str, int], cost: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yields (description, number, unit) of each row in the table of costs. `kept` is kind -> stored bytes, `cost` is
    the dict of times and counts in the facts of the run.

    Args:
      kept: Kind of stored arrays -> their bytes.
      cost: Times and counts of the run (`memjax.report.outcomes.stream_cost` and `phase_costs`).

    Example:
      >>> [*cost_rows({"memory": 8, "total": 8}, {"seconds_per_test_example": 0.002, "adapts": True})]
      ... # doctest: +NORMALIZE_WHITESPACE
      [('rows of the episodic memory', 8, 'bytes'), ('everything stored beside the model', 8, 'bytes'),
       ('scoring, with adaptation', 2.0, 'ms an example')]
    """
    for kind, count in kept.items():
        if count or kind == "total":
            yield KEPT.get(kind, kind), count, "bytes"
    scoring = "scoring, with adaptation" if cost.get("adapts") else "scoring"
    milliseconds = 1000 * cost["seconds_per_test_example"] if "seconds_per_test_example" in cost else None
    samples = cost["samples"] / cost["generation_seconds"] if cost.get("generation_seconds") else None
    for what, value, unit in (
        ("size of the model at the end", cost.get("parameters"), "parameters"),
        ("training", cost.get("examples_per_second"), "examples a second"),
        (scoring, milliseconds, "ms an example"),
        ("all updates", cost.get("update_seconds"), "seconds"),
        ("first updates of stages, compilation included", cost.get("compilation_seconds"), "seconds"),
        ("skipped updates", cost.get("skipped") or None, "updates"),
        (f"spikes of the loss, {SPIKE:g} nats above the line before", cost.get("spikes") or None, "lines"),
        ("growth of the model", cost.get("growth_seconds"), "seconds"),
        ("generation of pseudo-samples", cost.get("generation_seconds"), "seconds"),
        ("generated pseudo-samples", cost.get("samples"), "samples"),
        ("speed of generation", samples, "samples a second"),
    ):
        if value is not None:
            yield what, value, unit


def growth_rows(
    lines: Sequence[Mapping[str, Any]], tasks: Sequence[str], lineage: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """Lists a table row for each growth of the model: next task, updates, sizes of the enlarged model, loss before and
    after, seconds. `lineage` has the settings that each growth changed.

    Args:
      lines: Lines of the run's `metrics.jsonl`.
      tasks: Names of the tasks in the order of training.
      lineage: Growth history of the newest checkpoint: the changed settings of each growth step.

    Returns:
      For each growth the next task, the number of updates before it, layers, width and heads of the enlarged model,
      nats a token before and after, and seconds.
    """
    borders, rows = task_borders(lines, tasks), []
    growth_lines = [line for line in lines if line["kind"] == "grown"]
    for number, line in enumerate(growth_lines):
        growth = lineage[number] if number < len(lineage) else {}
        num_done = sum(border <= line["step"] for border in borders)
        task = tasks[num_done] if num_done < len(tasks) else None
        sizes = (growth.get(f"model.{name}") for name in ("num_layers", "dim", "num_heads"))
        nats = (line.get(f"nats_{when}") for when in ("before", "after"))
        rows.append((task, line["step"], *sizes, *nats, line["seconds"]))
    return rows


def _growth_history(run: OpenedRun) -> Sequence[Mapping[str, Any]]:
    """Returns the longest growth history among the run's checkpoints."""
    from memjax.training.loaded_runs import checkpoint_extras

    return max((extra.get("lineage", ()) for extra in checkpoint_extras(run.path).values()), key=len, default=())
