"""Panels of a run over several tasks: scores of every task after every task, what they cost, what the method logs.

The arrays are functions of the run's lines (`memjax.report.outcomes.stream_facts`); nothing is opened or computed anew.
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
from memjax.report.method_log import borders_of, method_figures
from memjax.report.outcomes import NATS, SPIKE, WHOLE, stream_facts
from memjax.report.panel import Figure, OpenedRun, Panel, Table

__all__ = ["Scores", "cost_rows", "growth_rows", "panels", "scores_of"]

WRITTEN = 10
"""tasks of a matrix whose cells have their number"""
MEANINGS = {
    "average": "mean over the tasks in the end",
    "area_under_curve": "mean over time of the mean over the tasks learned so far",
    "learning_accuracy": "mean of each task's score when it had just been learned",
    "last_task_accuracy": "score of the last task in the end",
    "forgetting": "what each task but the last has lost in the end of its best before (Chaudhry et al. 2018)",
    "backward_transfer": "what the tasks but the last have gained since they were learned (Lopez-Paz and Ranzato 2017)",
    "forward_transfer": "what the tasks but the first had gained before they were learned (ibid.)",
    "average_perplexity": "geometric mean of the perplexities of all tasks in the end (AP of ELLE)",
    "increased_perplexity": "growth of the perplexities of the tasks but the last since each was learned (AP+ of ELLE)",
    WHOLE: "score of the data of all tasks together in the end",
}
KEPT = {
    "memory": "rows of the episodic memory",
    "keys": "their keys, with the network that keys come from",
    "teachers": "models that teach",
    "anchors": "earlier parameters, and how much each matters",
    "columns": "columns before the newest",
    "total": "all that is kept beside the model",
}


@dataclasses.dataclass(frozen=True)
class Scores:
    """The matrix of a run.

    Attributes:
      label: what is measured.
      tasks: names, in the order in which they were learned.
      raw: `[tasks that are through, tasks]` as it is measured; NaN = not evaluated.
      less: less is better.
      whole: score of the data of all tasks after each, where it was evaluated.
    """

    label: str
    tasks: tuple[str, ...]
    raw: np.ndarray
    less: bool
    whole: tuple[float, ...] = ()

    @property
    def at_once(self) -> bool:
        """All tasks were learned in one stage, or one alone is through."""
        return len(self.raw) == 1 < len(self.tasks)

    def shown(self, values: Any) -> np.ndarray:
        """Values as people read them: perplexities for nats."""
        return np.exp(values) if self.less else np.asarray(values, np.float64)

    def learned(self) -> np.ndarray:
        """`[tasks that are through, tasks]`, NaN before a task was learned."""
        rows, columns = np.indices(self.raw.shape)
        return self.shown(np.where(columns <= rows, self.raw, np.nan))

    def means(self) -> np.ndarray:
        """After each task the mean over those learned so far; of perplexities the geometric one."""
        return self.shown([np.nanmean(row[: number + 1]) for number, row in enumerate(self.raw)])

    def by_age(self) -> np.ndarray:
        """The mean score of what was learned 0, 1, 2, ... tasks ago; likewise."""
        square = np.full((len(self.tasks),) * 2, np.nan)
        square[: len(self.raw)] = self.raw
        return self.shown(accuracy_by_age(square))[: len(self.raw)]

    @property
    def limits(self) -> tuple[float, float] | None:
        """Of an axis with scores: of accuracies up to all, from 0 unless all are far above it; else from the data."""
        if self.label != "accuracy":
            return None
        least = float(np.nanmin(self.learned()))
        return (math.floor(10 * least - 1) / 10 if least > 0.5 else 0.0, 1.02)

    @property
    def numbers(self) -> str:
        """The format of a score."""
        most = float(np.nanmax(np.abs(self.shown(self.raw)), initial=0.0))
        return "{:.2f}" if most < 10 else "{:.1f}" if most < 1000 else "{:.0f}"


def scores_of(facts: Mapping[str, Any]) -> Scores:
    """The matrix of `stream_facts`.

    Example:
      >>> facts = {"measure": "nats_per_token", "tasks": ["a", "b"], "scores": [[0.0, None], [1.0, 1.0]]}
      >>> found = scores_of(facts)
      >>> found.label, found.less, found.means().round(2).tolist()
      ('perplexity', True, [1.0, 2.72])
    """
    raw = np.array([[math.nan if value is None else value for value in row] for row in facts["scores"]], np.float64)
    less = facts["measure"] == NATS
    measure = str(facts["measure"])
    label = "perplexity" if less else "F1" if measure == "f1" else measure.replace("_", " ")
    whole = tuple(facts.get("after_each", {}).get("of all", ()))
    return Scores(label, tuple(facts["tasks"]), raw, less, whole)


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Scores, costs, and what the method logs; nothing of a run of one task, or before its first task is through."""
    facts = stream_facts(run.path, run.config)
    if not facts:
        return
    scores = scores_of(facts)
    yield _scores_panel(run, facts, scores)
    yield _costs_panel(run, facts, scores)
    if found := [*method_figures(run.lines, scores.tasks)]:
        text = (
            "What the method says of itself at the updates that were logged, beside the loss of the stream. Upright "
            "lines: a task is through."
        )
        yield Panel("stream_method", "What the method logs", text, tuple(found))


# Scores


def _scores_panel(run: OpenedRun, facts: Mapping[str, Any], scores: Scores) -> Panel:
    better = "lower is better" if scores.less else "higher is better"
    counted = _counted(run, scores.tasks)
    named = {name: value for name, value in facts.items() if isinstance(value, float)}
    meaning = {**MEANINGS, "average": "mean nats a token over the tasks in the end"} if scores.less else MEANINGS
    rows = tuple((name.replace("_", " "), v + 0.0, meaning.get(name, MEANINGS["average"])) for name, v in named.items())
    summary = f"Of the matrix, as `memjax eval` prints it. {counted}."
    table = Table("stream_summary", "In one number each", summary, ("what", "value", "meaning"), rows)
    if scores.at_once:
        text = f"All tasks were learned in one stage, or one of them alone is through: {scores.label}, {better}."
        bars = Figure(
            "stream_tasks",
            f"{scores.label} of each task".capitalize(),
            f"{counted}, after {run.lines[-1]['step']:,} updates.",
            functools.partial(_draw_bars, scores=scores),
            1.2 + 0.4 * len(scores.tasks),
        )
        return Panel("stream_scores", "Tasks", text, (bars, table))
    text = (
        f"How much is left of a task after those that followed: {scores.label} of every task after every task, "
        f"{better}. Lopez-Paz and Ranzato 2017 and Chaudhry et al. 2018 read all their numbers off this matrix; curves "
        "of each task are those of most papers of lifelong learning."
    )
    return Panel("stream_scores", "One task after the other", text, (*_score_figures(scores, counted), table))


def _score_figures(scores: Scores, counted: str) -> Iterator[Figure]:
    label, count = scores.label, len(scores.tasks)
    title = label[0].upper() + label[1:]
    drawn = lambda draw: functools.partial(draw, scores=scores)
    darker = "Darker: worse." if scores.less else "Darker: better."
    yield Figure(
        "stream_matrix",
        f"{title} of every task after every task",
        f"{counted}. A row for each task that is through, a column for each task; right of the diagonal a task has not "
        f"been learned yet. {darker}",
        drawn(_draw_matrix),
        min(1.4 + 0.42 * len(scores.raw), 6.0),
    )
    yield Figure(
        "stream_forgetting",
        f"{title} of each task while others are learned",
        f"{counted}. Each line begins when its task has just been learned; where it "
        f"{'rises' if scores.less else 'falls'}, the task is forgotten.",
        drawn(_draw_forgetting),
        3.2,
    )
    mean = "geometric mean" if scores.less else "mean"
    yield Figure(
        "stream_means",
        f"{title} over the tasks learned so far",
        f"The {mean} over the tasks learned so far, after each of them."
        + (" Beside it the data of all tasks together, those to come included (`whole`)." if scores.whole else ""),
        drawn(_draw_means),
    )
    if len(scores.raw) > 1:
        yield Figure(
            "stream_age",
            f"{title} by the age of the task",
            f"The {mean} over tasks that were learned 0, 1, 2, ... tasks ago, in all rows of the matrix: of {count} "
            "tasks one has the greatest age.",
            drawn(_draw_age),
        )


def _draw_matrix(figure: Any, scores: Scores) -> None:
    shown = scores.shown(scores.raw)
    numbers = scores.numbers if len(scores.tasks) <= WRITTEN else ""
    low = float(np.nanmin(shown)) if scores.less else 0.0
    rows = [f"after {name}" for name in scores.tasks[: len(shown)]]
    charts.heat(figure, shown, rows=rows, columns=scores.tasks, numbers=numbers, low=low)


def _draw_forgetting(figure: Any, scores: Scores) -> None:
    at = np.arange(1, len(scores.raw) + 1)
    series = {name: (at, values) for name, values in zip(scores.tasks, scores.learned().T, strict=True)}
    series = {name: both for name, both in series.items() if np.isfinite(both[1]).any()}
    named: dict[str, Any] = {"limits": scores.limits, "log_y": _is_wide(scores)}
    _name_tasks(charts.lines(figure, series, y=scores.label, marks=True, **named), scores)


def _draw_means(figure: Any, scores: Scores) -> None:
    at = np.arange(1, len(scores.raw) + 1)
    series = {"tasks learned so far": (at, scores.means())}
    if scores.whole:
        series["all tasks (whole)"] = (at[: len(scores.whole)], scores.shown(scores.whole)[: len(at)])
    _name_tasks(charts.lines(figure, series, y=scores.label, marks=True, limits=scores.limits), scores)


def _draw_seconds(figure: Any, scores: Scores, seconds: Sequence[float]) -> None:
    series = {"tasks learned so far": (np.asarray(seconds), scores.means())}
    charts.lines(figure, series, x="seconds of updates", y=scores.label, marks=True, limits=scores.limits)


def _draw_age(figure: Any, scores: Scores) -> None:
    means = scores.by_age()
    named: dict[str, Any] = {"x": "tasks learned since", "y": scores.label, "limits": scores.limits}
    axes = charts.lines(figure, {"mean": (np.arange(len(means)), means)}, marks=True, **named)
    axes.set_xticks(np.arange(0, len(means), max(1, len(means) // 10)))


def _draw_bars(figure: Any, scores: Scores) -> None:
    values = scores.shown(scores.raw[0])
    charts.bars(figure, scores.tasks, {scores.label: values}, x=scores.label, numbers=scores.numbers)


def _is_wide(scores: Scores) -> bool:
    """Perplexities of several sizes."""
    shown = scores.learned()
    return scores.less and bool(np.nanmax(shown) > 10 * np.nanmin(shown))


def _name_tasks(axes: Any, scores: Scores) -> None:
    """Tasks below a chart: their names where these are short, else their numbers."""
    at, names = np.arange(1, len(scores.raw) + 1), scores.tasks[: len(scores.raw)]
    if sum(map(len, names)) <= 45:
        axes.set_xticks(at, names)
        axes.set_xlabel("after")
    else:
        every = at[:: max(1, len(at) // 10)]
        axes.set_xticks(every, [str(number) for number in every])
        axes.set_xlabel("tasks learned")


def _counted(run: OpenedRun, tasks: Sequence[str]) -> str:
    """How much was scored of each task, and where."""
    from memjax.tasks import task_of

    lines = [line for line in run.lines if line["kind"] == "evaluation" and line.get("name") in tasks]
    sizes, splits = {line["targets"] for line in lines}, sorted({line["split"] for line in lines})
    size = f"{min(sizes):,}" if len(sizes) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    task, where = task_of(run.config), f"of the {' and '.join(splits)} split of each task"
    if task.writes_answers:
        return f"Answers to at most {run.config.evaluation.answers:,} questions {where}"
    return f"{size} {task.scored} {where}"


# Costs


def _costs_panel(run: OpenedRun, facts: Mapping[str, Any], scores: Scores) -> Panel:
    caption = (
        "Bytes of the newest checkpoint. Seconds of updates are at the pace of those that were timed: compilation, "
        "evaluations and checkpoints do not count; examples a second are the median of the lines. An example is scored "
        "with all that is done for it, an adaptation too."
    )
    table = Table(
        "stream_costs",
        "What it costs",
        caption,
        ("what", "value", "unit"),
        tuple(cost_rows(facts["kept_bytes"], facts["cost"])),
    )
    parts: list[Any] = [table]
    seconds = facts["cost"].get("seconds_after_each", ())
    if len(seconds) == len(scores.raw) > 1:
        parts.append(
            Figure(
                "stream_seconds",
                f"{scores.label[0].upper()}{scores.label[1:]} against seconds of updates",
                f"The {'geometric mean' if scores.less else 'mean'} over the tasks learned so far, after each of them, "
                "by the seconds that all updates until then took.",
                functools.partial(_draw_seconds, scores=scores, seconds=seconds),
            )
        )
    if grown := growth_rows(run.lines, facts["tasks"], _lineage(run)):
        caption = (
            "Nats a token of rows of the memory right before and right after the model was made larger; equal numbers: "
            "growth keeps what the model computes (Qin et al. 2022, function-preserving expansion)."
        )
        columns = ("before task", "updates", "layers", "width", "heads", "nats before", "nats after", "seconds")
        parts.append(Table("stream_growth", "Loss before and after growth", caption, columns, tuple(grown)))
    text = "What is kept beside the model, and where the seconds went: comparisons of methods mean little without it."
    return Panel("stream_costs", "Costs of the stream", text, tuple(parts))


def cost_rows(kept: Mapping[str, int], cost: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of a table: what, its number, its unit.

    Example:
      >>> [*cost_rows({"memory": 8, "total": 8}, {"seconds_per_test_example": 0.002, "adapts": True})]
      ... # doctest: +NORMALIZE_WHITESPACE
      [('rows of the episodic memory', 8, 'bytes'), ('all that is kept beside the model', 8, 'bytes'),
       ('scoring, with its adaptation', 2.0, 'ms an example')]
    """
    for kind, count in kept.items():
        if count or kind == "total":
            yield KEPT.get(kind, kind), count, "bytes"
    scoring = "scoring, with its adaptation" if cost.get("adapts") else "scoring"
    milliseconds = 1000 * cost["seconds_per_test_example"] if "seconds_per_test_example" in cost else None
    samples = cost["samples"] / cost["generation_seconds"] if cost.get("generation_seconds") else None
    for what, value, unit in (
        ("the model in the end", cost.get("parameters"), "parameters"),
        ("training", cost.get("examples_per_second"), "examples a second"),
        (scoring, milliseconds, "ms an example"),
        ("all updates", cost.get("update_seconds"), "seconds"),
        ("first updates of stages, compilation included", cost.get("compilation_seconds"), "seconds"),
        ("updates that were skipped", cost.get("skipped") or None, "updates"),
        (f"spikes of the loss, {SPIKE:g} nats above the line before", cost.get("spikes") or None, "lines"),
        ("growth of the model", cost.get("growth_seconds"), "seconds"),
        ("writing of samples", cost.get("generation_seconds"), "seconds"),
        ("samples that were written", cost.get("samples"), "samples"),
        ("pace of writing", samples, "samples a second"),
    ):
        if value is not None:
            yield what, value, unit


def growth_rows(
    lines: Sequence[Mapping[str, Any]], tasks: Sequence[str], lineage: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """Rows of a table: one for each growth, the model as it is from then on.

    Args:
      lines: of the run.
      tasks: names, in their order.
      lineage: of its newest checkpoint.
    """
    borders, found = borders_of(lines, tasks), []
    grown = [line for line in lines if line["kind"] == "grown"]
    for number, line in enumerate(grown):
        own = lineage[number] if number < len(lineage) else {}
        through = sum(border <= line["step"] for border in borders)
        task = tasks[through] if through < len(tasks) else None
        sizes = (own.get(f"model.{name}") for name in ("num_layers", "dim", "num_heads"))
        nats = (line.get(f"nats_{when}") for when in ("before", "after"))
        found.append((task, line["step"], *sizes, *nats, line["seconds"]))
    return found


def _lineage(run: OpenedRun) -> Sequence[Mapping[str, Any]]:
    """How the model has grown, as the newest checkpoint has it."""
    from memjax.training.restoring import checkpoint_extras

    return max((extra.get("lineage", ()) for extra in checkpoint_extras(run.path).values()), key=len, default=())
