"""Panels of training curves: losses, memory measurements and speed of one or several runs, and how the runs differ."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.inspection.figures import FIGURES
from memjax.report import charts
from memjax.report.comparison import compare_runs, differing_settings, split_finished
from memjax.report.contenders import RunDifference, compare_contenders
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.verdicts import describe_test, show_p

MOST_POINTS = 400
"""Largest number of points of a curve. Longer logs are averaged over neighbouring lines."""

MOST_CURVES = 24
"""Largest number of curves in one chart."""

LOSS = "nats_per_token"
UPDATES = {
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm",
    "tokens_per_second": "tokens a second",
    "skipped": "updates skipped",
}
"""Metric of the updates in `metrics.jsonl` -> title of its chart."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields the panels of one run's training curves: losses and speed, and measurements of the memories if there are
    any.
    """
    yield from compare_runs_panel([run])


def compare_runs_panel(runs: Sequence[OpenedRun]) -> Iterator[Panel]:
    """Yields panels that show all runs together: a table of their differences, if there are several, and charts with
    the training curves of all.

    Args:
      runs: Opened runs. A single run gets the charts without the table.
    """
    names = run_names(runs)
    if len(runs) > 1:
        yield _differences_panel(names)
    logs = {name: run.log_lines for name, run in names.items()}
    if not any(select_kind(lines, "train") or select_kind(lines, "evaluation") for lines in logs.values()):
        return
    yield Panel("curves", "Training", _describe_training(names), tuple(_training_figures(logs)))
    if memory := tuple(_memory_figures(logs)):
        text = (
            "Measurements of the memories during training. Faint horizontal lines mark the range that a working memory "
            "has after six segments with its initial parameters. A trained memory may well leave this range."
        )
        yield Panel("memory_curves", "Memory in training", text, memory)


def run_names(runs: Sequence[OpenedRun]) -> dict[str, OpenedRun]:
    """Returns a mapping from unique names to the runs. A further run of the same name gets a number, as in "x (2)".

    Example:
      >>> list(run_names([OpenedRun("a/x"), OpenedRun("b/x"), OpenedRun("y")]))
      ['x', 'x (2)', 'y']
    """
    runs_by_name: dict[str, OpenedRun] = {}
    for run in runs:
        name, number = run.name, 1
        while name in runs_by_name:
            number += 1
            name = f"{run.name} ({number})"
        runs_by_name[name] = run
    return runs_by_name


def select_kind(lines: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """Returns the lines of a log (dicts from `metrics.jsonl`) whose entry `kind` equals `kind`, such as "train" or
    "evaluation".
    """
    return [line for line in lines if line["kind"] == kind]


@dataclasses.dataclass(frozen=True)
class MetricSeries:
    """The values of one metric in training, with number of updates, tokens read and seconds at each. It has an entry
    for each line of the log that has the metric.

    Attributes:
      steps: Update number of each line, `[lines]`.
      tokens: Number of tokens read until each line, `[lines]`.
      seconds: Seconds of training until each line, with the time of earlier attempts of the run, `[lines]`.
      values: Value of the metric in each line, `[lines]`.
    """

    steps: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    values: np.ndarray

    def thinned(self, most: int = MOST_POINTS) -> MetricSeries:
        """Returns a series of at most `most` points, each the mean of a group of consecutive entries. A short series is
        returned unchanged.
        """
        every = -(-len(self.values) // most)
        if every <= 1:
            return self
        cuts = range(0, len(self.values), every)
        columns = {
            name: np.asarray([np.mean(column[at : at + every]) for at in cuts]) for name, column in vars(self).items()
        }
        return MetricSeries(**columns)


def training_series(lines: Sequence[Mapping[str, Any]], name: str) -> MetricSeries:
    """Extracts the metric `name` from the training lines of a log (dicts from `metrics.jsonl`) as a `MetricSeries`.
    Lines without a finite value are left out.

    Args:
      lines: Lines of the run's `metrics.jsonl`, in order.
      name: Name of the metric.

    Example:
      >>> line = {"kind": "train", "attempt": 1, "tokens": 8.0}
      >>> lines = [{**line, "step": 1, "seconds": 2.0, "loss": 3.0}, {**line, "step": 2, "seconds": 3.0, "loss": 2.0}]
      >>> lines += [{**line, "step": 3, "attempt": 2, "seconds": 1.0, "loss": 1.0}]
      >>> training_series(lines, "loss").seconds.tolist(), training_series(lines, "loss").tokens.tolist()
      ([2.0, 3.0, 4.0], [8.0, 16.0, 24.0])
    """
    points, tokens, before, last = [], 0.0, 0.0, (None, 0.0)
    for line in select_kind(lines, "train"):
        tokens += line.get("tokens") or 0.0
        seconds = line.get("seconds") or 0.0
        attempt = line.get("attempt", 1)
        before += last[1] if last[0] not in (None, attempt) else 0.0
        last = (attempt, seconds)
        if line.get(name) is not None:
            points.append((line["step"], tokens, before + seconds, line[name]))
    return MetricSeries(*np.asarray(points, float).reshape(-1, 4).T)


def _differences_panel(names: Mapping[str, OpenedRun]) -> Panel:
    """Makes the panel that compares runs: the settings in which they differ, and the results of finished runs."""
    paths = {name: run.path for name, run in names.items()}
    whole, left_out = split_finished(run.files for run in names.values())
    finished = [name for name in names if paths[name] in whole]
    differing = differing_settings({run.path: run.config for run in names.values()})
    facts = {name: dict(differing[paths[name]]) for name in names}
    results = compare_runs(whole.values())
    for name in finished:
        facts[name] |= {fact: value for fact, value in results[paths[name]].items() if fact not in facts[name]}
    rows = [*dict.fromkeys(fact for values in facts.values() for fact in values)]
    cells = tuple((_format_field(fact), *(_format_cell(facts[name].get(fact)) for name in names)) for fact in rows)
    open_runs = [name for name in names if names[name].finished is None]
    left = f" Not finished, and therefore without scores: {', '.join(open_runs)}." if open_runs else ""
    damaged = [line for name, path in paths.items() if name not in open_runs and (line := left_out.get(path))]
    left += f" Left out: {'; '.join(damaged)}." if damaged else ""
    caption = f"Settings in which the runs differ, then steps, sizes and scores of their last evaluations.{left}"
    table = Table("differences", "Side by side", caption, ("", *names), cells)
    text = "The settings in which these runs differ, and their results. `All settings` above lists the equal ones too."
    return Panel(
        "comparison",
        "Comparison",
        text,
        (table, *verdict_tables(compare_contenders(whole.values()), {path: name for name, path in paths.items()})),
    )


def verdict_tables(differences: Sequence[RunDifference], names: Mapping[str, str]) -> Iterator[Table]:
    """Yields a table of tested score differences, if there are any. `names` has the name of every run by its path."""
    if not differences:
        return
    cells = tuple(
        (
            f"{names[difference.name]} ({difference.runs} runs)",
            names[difference.control],
            difference.measure.replace("_", " "),
            difference.comparison.difference,
            None if math.isnan(difference.comparison.error) else difference.comparison.error,
            difference.comparison.counted,
            show_p(difference.comparison.p),
            difference.comparison.verdict,
        )
        for difference in differences
    )
    test = describe_test([difference.comparison for difference in differences])
    caption = f"Runs that differ only in seed or task order share a row, named after the first of them. {test}."
    heads = ("runs", "against", "score", "difference", "standard error", "units", "p", "verdict")
    yield Table("verdicts", "Differences", caption, heads, cells)


def _format_field(name: str) -> str:
    return name.removeprefix("evaluation.").replace("_", " ") if "." in name else name.replace("_", " ")


def _format_cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _describe_training(names: Mapping[str, OpenedRun]) -> str:
    running = [name for name, run in names.items() if run.finished is None]
    text = "Losses are averaged over lines of the log, in nats for each target. Evaluations on held-out data follow."
    return text + (f" Not finished: {', '.join(running)}." if running else "")


def _training_figures(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Figure]:
    losses = {name: training_series(lines, LOSS).thinned() for name, lines in logs.items()}
    losses = {name: series for name, series in losses.items() if len(series.values)}
    if losses:
        caption = (
            "Training loss over updates, tokens read and seconds of training. Runs with equally many updates may "
            "have read different numbers of tokens and taken different times."
        )
        draw = functools.partial(_draw_losses, losses=losses, borders=_task_borders(logs))
        yield Figure("training_loss", "Training loss", caption, draw, height=6.6)
    held_out = _evaluation_curves(logs)
    if any(len(steps) > 1 for steps, _ in held_out.values()):
        caption = (
            "Loss of each evaluation during training, in nats for each target. Only losses over the same targets can "
            "be compared."
        )
        yield Figure(
            "evaluation_loss", "Evaluation loss", caption, functools.partial(_draw_evaluations, curves=held_out)
        )
    charts_by_title = {title: _series_per_run(logs, metric) for metric, title in UPDATES.items()}
    none_skipped = not any(series.values.any() for series in charts_by_title[UPDATES["skipped"]].values())
    if none_skipped:
        del charts_by_title[UPDATES["skipped"]]
    charts_by_title = {title: series for title, series in charts_by_title.items() if series}
    if charts_by_title:
        skipped = "no update was skipped" if none_skipped else "updates skipped because a number was not finite"
        caption = (
            "Learning rate of the updates, norm of the gradient before clipping, tokens read per second (depends on "
            f"the machine); {skipped}."
        )
        draw = functools.partial(_draw_grid, charts_by_title=charts_by_title, columns=2)
        yield Figure("training_updates", "Updates", caption, draw, height=2.5 * -(-len(charts_by_title) // 2) + 0.4)


def _series_per_run(logs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> dict[str, MetricSeries]:
    all_series = {name: training_series(lines, metric).thinned() for name, lines in logs.items()}
    return {name: series for name, series in all_series.items() if len(series.values)}


def _task_borders(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[float]:
    """Lists the updates after which the next task begins. Empty if the runs do not agree."""
    borders_per_run = []
    for lines in logs.values():
        stages: dict[int, float] = {}
        for line in select_kind(lines, "train"):
            stages[line.get("stage", 0)] = line["step"]
        borders_per_run.append([*stages.values()][:-1])
    agreed = borders_per_run and all(borders == borders_per_run[0] for borders in borders_per_run)
    return borders_per_run[0] if agreed else []


def _evaluation_curves(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[list[float], list[float]]]:
    """Maps labels of evaluations to their steps and losses.

    A label is the name of the run, if there are several, and the name of the evaluation, if it has one. Runs over tasks
    show only the evaluation of all tasks together.
    """
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for run, lines in logs.items():
        scored = [line for line in select_kind(lines, "evaluation") if line.get(LOSS) is not None]
        plain = [line for line in scored if not line.get("name")]
        for line in plain if any(line.get("stage") for line in scored) else scored:
            label = " ".join(filter(None, [run if len(logs) > 1 else "", line.get("name", "")])) or "evaluation"
            steps, losses = curves.setdefault(label, ([], []))
            steps.append(line["step"])
            losses.append(line[LOSS])
    return dict(list(curves.items())[:MOST_CURVES])


def _draw_losses(figure: Any, *, losses: Mapping[str, MetricSeries], borders: Sequence[float]) -> None:
    axes = (("steps", "updates", borders), ("tokens", "tokens read", ()), ("seconds", "seconds of training", ()))
    for number, (name, label, upright) in enumerate(axes, start=1):
        series = {run: (getattr(loss, name), loss.values) for run, loss in losses.items()}
        shown = charts.line_chart(figure, series, x=label, y="nats", borders=upright, place=(3, 1, number))
        if number > 1 and shown.get_legend():
            shown.get_legend().remove()


def _draw_evaluations(figure: Any, *, curves: Mapping[str, tuple[list[float], list[float]]]) -> None:
    charts.line_chart(figure, curves, x="updates", y="nats", marks=all(len(steps) < 40 for steps, _ in curves.values()))


def _draw_grid(figure: Any, *, charts_by_title: Mapping[str, Mapping[str, MetricSeries]], columns: int) -> None:
    """Draws a chart for each metric with a line for each run, and one legend for all charts."""
    rows = -(-len(charts_by_title) // columns)
    handles: tuple[Any, Any] = ([], [])
    for number, (title, series_per_run) in enumerate(charts_by_title.items(), start=1):
        lines = {run: (series.steps, series.values) for run, series in series_per_run.items()}
        axes = charts.line_chart(figure, lines, x="updates", title=title, place=(rows, columns, number))
        if axes.get_legend():
            handles = max(handles, axes.get_legend_handles_labels(), key=lambda pair: len(pair[1]))
            axes.get_legend().remove()
    if handles[1]:
        figure.legend(*handles, loc="outside upper left", ncols=min(3, max(1, 66 // (max(map(len, handles[1])) + 6))))


def _memory_figures(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Figure]:
    """Yields a figure for each logged memory metric, with a line for each layer of one run, or for each of several."""
    logged: dict[str, dict[str, None]] = {}
    for lines in logs.values():
        for line in select_kind(lines, "train"):
            for metric in line:
                if (figure := memory_figure(metric)) is not None:
                    logged.setdefault(figure, {})[metric] = None
    order = [*(name for name in FIGURES if name in logged), *sorted(name for name in logged if name not in FIGURES)]
    for name in order:
        about = FIGURES.get(name)
        series = _memory_series(logs, [*logged[name]])
        if not series:
            continue
        levels = {f"working when new: {about.low:g} to {about.high:g}": about.low, "": about.high} if about else {}
        meaning = about.meaning if about else name.replace("_", " ")
        what = f": {meaning}" if about else ", as the layers log it"
        caption = f"`{name}`{what}{_layers_note(logs, len(logged[name]))}."
        draw: Callable[[Any], None] = functools.partial(_draw_memory, series=series, levels=levels)
        yield Figure(f"memory_{_to_identifier(name)}", meaning[0].upper() + meaning[1:], caption, draw, height=2.8)


def memory_figure(metric: str) -> str | None:
    """Returns the name of a memory metric without its layer: "gate" for "layer_02/gate". None if `metric` measures no
    memory. Nothing is drawn.

    Example:
      >>> [memory_figure(m) for m in ("layer_02/gate", "layer_00/transformer_xl/memory_share", "gradient_norm")]
      ['gate', 'transformer_xl/memory_share', None]
    """
    for name in FIGURES:
        if metric == name or metric.endswith(f"/{name}"):
            return name
    layer, _, rest = metric.partition("/")
    return rest if rest and layer.startswith("layer_") else None


def _memory_series(logs: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Sequence[str]) -> dict[str, MetricSeries]:
    """Returns one series for each layer of a single run, or for each of several runs the mean over its layers."""
    if len(logs) == 1:
        (lines,) = logs.values()
        by_layer = {
            metric.split("/")[0].replace("_", " "): training_series(lines, metric).thinned() for metric in metrics
        }
        return dict(list(by_layer.items())[:MOST_CURVES])
    by_run = {}
    for run, lines in logs.items():
        layers = [series for metric in metrics if len((series := training_series(lines, metric)).values)]
        if layers and len({len(series.values) for series in layers}) == 1:
            mean = np.mean([series.values for series in layers], axis=0)
            by_run[run] = dataclasses.replace(layers[0], values=mean).thinned()
    return by_run


def _layers_note(logs: Mapping[str, Any], layers: int) -> str:
    return f"; the mean of the {layers} layers that have it" if len(logs) > 1 and layers > 1 else ""


def _draw_memory(figure: Any, *, series: Mapping[str, MetricSeries], levels: Mapping[str, float]) -> None:
    lines = {name: (metric.steps, metric.values) for name, metric in series.items()}
    charts.line_chart(figure, lines, x="updates", levels=levels)


def _to_identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
