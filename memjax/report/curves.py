"""How runs went: their losses, memories and pace in training, and what tells them apart."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.inspection.figures import FIGURES
from memjax.report import charts
from memjax.report.comparison import RunRecord, compare_contenders, compare_runs, settings_apart, split_finished
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.verdicts import describe_test, show_p

__all__ = ["compared", "panels", "training_series"]

MOST_POINTS = 400
"""of a curve; more lines of a log are shown as means of a few"""

MOST_CURVES = 24
"""of layers, or of evaluations, in a chart"""

LOSS = "nats_per_token"
UPDATES = {
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm",
    "tokens_per_second": "tokens a second",
    "skipped": "updates skipped",
}
"""what a log says of updates -> as it is called here"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """The curves of one run."""
    yield from compared([run])


def compared(runs: Sequence[OpenedRun]) -> Iterator[Panel]:
    """The curves of several runs in the same charts, after a table of what tells them apart."""
    names = run_names(runs)
    if len(runs) > 1:
        yield _differences(names)
    logs = {name: run.lines for name, run in names.items()}
    if not any(of_kind(lines, "train") or of_kind(lines, "evaluation") for lines in logs.values()):
        return
    yield Panel("curves", "Training", _told(names), tuple(_training(logs)))
    if memory := tuple(_memory(logs)):
        text = (
            "What the memories say of themselves in training. Faint level lines are the least and the most of a memory "
            "that is alive after six segments with its initial parameters; a trained one may well leave them."
        )
        yield Panel("memory_curves", "Memory in training", text, memory)


def run_names(runs: Sequence[OpenedRun]) -> dict[str, OpenedRun]:
    """Name -> run; runs of one name are told apart by numbers.

    Example:
      >>> list(run_names([OpenedRun("a/x"), OpenedRun("b/x"), OpenedRun("y")]))
      ['x', 'x (2)', 'y']
    """
    named: dict[str, OpenedRun] = {}
    for run in runs:
        name, number = run.name, 1
        while name in named:
            number += 1
            name = f"{run.name} ({number})"
        named[name] = run
    return named


def of_kind(lines: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """The lines of a log of one kind."""
    return [line for line in lines if line["kind"] == kind]


@dataclasses.dataclass(frozen=True)
class Series:
    """One number of the lines of a log.

    Attributes:
      steps: of each line.
      tokens: read until then.
      seconds: of training until then, those of earlier attempts included.
      values: of the number.
    """

    steps: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    values: np.ndarray

    def thinned(self, most: int = MOST_POINTS) -> Series:
        """At most so many points, each the mean of as many lines."""
        every = -(-len(self.values) // most)
        if every <= 1:
            return self
        cuts = range(0, len(self.values), every)
        columns = {
            name: np.asarray([np.mean(column[at : at + every]) for at in cuts]) for name, column in vars(self).items()
        }
        return Series(**columns)


def training_series(lines: Sequence[Mapping[str, Any]], name: str) -> Series:
    """A number of the updates of a run; lines that lack it, or where it was not finite, are left out.

    Args:
      lines: of `metrics.jsonl`.
      name: of the number.

    Example:
      >>> line = {"kind": "train", "attempt": 1, "tokens": 8.0}
      >>> lines = [{**line, "step": 1, "seconds": 2.0, "loss": 3.0}, {**line, "step": 2, "seconds": 3.0, "loss": 2.0}]
      >>> lines += [{**line, "step": 3, "attempt": 2, "seconds": 1.0, "loss": 1.0}]
      >>> training_series(lines, "loss").seconds.tolist(), training_series(lines, "loss").tokens.tolist()
      ([2.0, 3.0, 4.0], [8.0, 16.0, 24.0])
    """
    points, tokens, before, last = [], 0.0, 0.0, (None, 0.0)
    for line in of_kind(lines, "train"):
        tokens += line.get("tokens") or 0.0
        seconds = line.get("seconds") or 0.0
        attempt = line.get("attempt", 1)
        before += last[1] if last[0] not in (None, attempt) else 0.0
        last = (attempt, seconds)
        if line.get(name) is not None:
            points.append((line["step"], tokens, before + seconds, line[name]))
    return Series(*np.asarray(points, float).reshape(-1, 4).T)


def _differences(names: Mapping[str, OpenedRun]) -> Panel:
    """What tells runs apart, and what those that are finished have come to."""
    paths = {name: run.path for name, run in names.items()}
    whole, left_out = split_finished([*paths.values()])
    finished = [name for name in names if paths[name] in whole]
    apart = settings_apart({run.path: run.config for run in names.values()})
    facts = {name: dict(apart[paths[name]]) for name in names}
    came = compare_runs(whole.values())
    for name in finished:
        facts[name] |= {fact: value for fact, value in came[paths[name]].items() if fact not in facts[name]}
    rows = [*dict.fromkeys(fact for values in facts.values() for fact in values)]
    cells = tuple((_field(fact), *(_cell(facts[name].get(fact)) for name in names)) for fact in rows)
    open_runs = [name for name in names if names[name].finished is None]
    left = f" Not finished, and without scores here: {', '.join(open_runs)}." if open_runs else ""
    damaged = [line for name, path in paths.items() if name not in open_runs and (line := left_out.get(path))]
    left += f" Left out: {'; '.join(damaged)}." if damaged else ""
    caption = f"Settings in which the runs differ, then steps, sizes and scores of their last evaluations.{left}"
    table = Table("differences", "Side by side", caption, ("", *names), cells)
    text = (
        "What tells these runs apart, and what they have come to: that of their settings that is equal is in the fold."
    )
    return Panel(
        "comparison",
        "Comparison",
        text,
        (table, *_verdicts([*whole.values()], {path: name for name, path in paths.items()})),
    )


def _verdicts(records: Sequence[RunRecord], names: Mapping[str, str]) -> Iterator[Table]:
    """A table of the differences between contenders, where runs of several seeds or orders are there."""
    differences = compare_contenders(records)
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
    caption = f"Runs that differ in seed or order of tasks alone are one row, named by its first run. {test}."
    heads = ("runs", "against", "score", "difference", "standard error", "units", "p", "verdict")
    yield Table("verdicts", "Differences", caption, heads, cells)


def _field(name: str) -> str:
    return name.removeprefix("evaluation.").replace("_", " ") if "." in name else name.replace("_", " ")


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _told(names: Mapping[str, OpenedRun]) -> str:
    running = [name for name, run in names.items() if run.finished is None]
    text = "Losses are means over the lines of the log, in nats for each target; below them, what was held out."
    return text + (f" Not finished: {', '.join(running)}." if running else "")


def _training(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Figure]:
    losses = {name: training_series(lines, LOSS).thinned() for name, lines in logs.items()}
    losses = {name: series for name, series in losses.items() if len(series.values)}
    if losses:
        caption = (
            "Loss of the training text over updates, tokens read and seconds of training. Runs with equal updates may "
            "have read unequal numbers of tokens, and taken unequal times."
        )
        draw = functools.partial(_draw_losses, losses=losses, borders=_borders(logs))
        yield Figure("training_loss", "Training loss", caption, draw, height=6.6)
    held_out = _evaluations(logs)
    if any(len(steps) > 1 for steps, _ in held_out.values()):
        caption = "Loss of each evaluation in training, in nats for each target; equal targets compare, others do not."
        yield Figure(
            "evaluation_loss", "Evaluation loss", caption, functools.partial(_draw_evaluations, found=held_out)
        )
    found = {title: _named(logs, metric) for metric, title in UPDATES.items()}
    none_skipped = not any(one.values.any() for one in found[UPDATES["skipped"]].values())
    if none_skipped:
        del found[UPDATES["skipped"]]
    found = {title: series for title, series in found.items() if series}
    if found:
        skipped = "no update was skipped" if none_skipped else "updates skipped, since their numbers were not finite"
        caption = (
            "Learning rate of the updates, norm of the gradient before it was clipped, tokens read a second (of that "
            f"machine); {skipped}."
        )
        draw = functools.partial(_draw_grid, found=found, columns=2)
        yield Figure("training_updates", "Updates", caption, draw, height=2.5 * -(-len(found) // 2) + 0.4)


def _named(logs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> dict[str, Series]:
    series = {name: training_series(lines, metric).thinned() for name, lines in logs.items()}
    return {name: one for name, one in series.items() if len(one.values)}


def _borders(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[float]:
    """Steps where a run over tasks goes to its next task, where all runs do so."""
    found = []
    for lines in logs.values():
        stages: dict[int, float] = {}
        for line in of_kind(lines, "train"):
            stages[line.get("stage", 0)] = line["step"]
        found.append([*stages.values()][:-1])
    return found[0] if found and all(one == found[0] for one in found) else []


def _evaluations(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[list[float], list[float]]]:
    """Run, and name where it has several -> steps and losses; of a stream of tasks what is of all of them alone."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for run, lines in logs.items():
        scored = [line for line in of_kind(lines, "evaluation") if line.get(LOSS) is not None]
        plain = [line for line in scored if not line.get("name")]
        for line in plain if any(line.get("stage") for line in scored) else scored:
            label = " ".join(filter(None, [run if len(logs) > 1 else "", line.get("name", "")])) or "evaluation"
            steps, losses = found.setdefault(label, ([], []))
            steps.append(line["step"])
            losses.append(line[LOSS])
    return dict(list(found.items())[:MOST_CURVES])


def _draw_losses(figure: Any, *, losses: Mapping[str, Series], borders: Sequence[float]) -> None:
    axes = (("steps", "updates", borders), ("tokens", "tokens read", ()), ("seconds", "seconds of training", ()))
    for number, (name, label, upright) in enumerate(axes, start=1):
        series = {run: (getattr(one, name), one.values) for run, one in losses.items()}
        shown = charts.lines(figure, series, x=label, y="nats", borders=upright, place=(3, 1, number))
        if number > 1 and shown.get_legend():
            shown.get_legend().remove()


def _draw_evaluations(figure: Any, *, found: Mapping[str, tuple[list[float], list[float]]]) -> None:
    charts.lines(figure, found, x="updates", y="nats", marks=all(len(steps) < 40 for steps, _ in found.values()))


def _draw_grid(figure: Any, *, found: Mapping[str, Mapping[str, Series]], columns: int) -> None:
    """A chart for each number, a line for each run; one legend for all."""
    rows = -(-len(found) // columns)
    handles: tuple[Any, Any] = ([], [])
    for number, (title, series) in enumerate(found.items(), start=1):
        lines = {run: (one.steps, one.values) for run, one in series.items()}
        axes = charts.lines(figure, lines, x="updates", title=title, place=(rows, columns, number))
        if axes.get_legend():
            handles = max(handles, axes.get_legend_handles_labels(), key=lambda pair: len(pair[1]))
            axes.get_legend().remove()
    if handles[1]:
        figure.legend(*handles, loc="outside upper left", ncols=min(3, max(1, 66 // (max(map(len, handles[1])) + 6))))


def _memory(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Figure]:
    """A figure for each memory figure that is logged: of one run a line a layer, of several a line a run."""
    logged: dict[str, dict[str, None]] = {}
    for lines in logs.values():
        for line in of_kind(lines, "train"):
            for metric in line:
                if (figure := memory_figure(metric)) is not None:
                    logged.setdefault(figure, {})[metric] = None
    order = [*(name for name in FIGURES if name in logged), *sorted(name for name in logged if name not in FIGURES)]
    for name in order:
        about = FIGURES.get(name)
        series = _of_figure(logs, [*logged[name]])
        if not series:
            continue
        levels = {f"alive when new: {about.low:g} to {about.high:g}": about.low, "": about.high} if about else {}
        meaning = about.meaning if about else name.replace("_", " ")
        what = f": {meaning}" if about else ", as the layers log it"
        caption = f"`{name}`{what}{_of_layers(logs, len(logged[name]))}."
        draw: Callable[[Any], None] = functools.partial(_draw_memory, series=series, levels=levels)
        yield Figure(f"memory_{_letters(name)}", meaning[0].upper() + meaning[1:], caption, draw, height=2.8)


def memory_figure(metric: str) -> str | None:
    """The figure of a memory that a metric is, without its layer; None = it is none.

    Example:
      >>> [memory_figure(m) for m in ("layer_02/gate", "layer_00/transformer_xl/memory_share", "gradient_norm")]
      ['gate', 'transformer_xl/memory_share', None]
    """
    for name in FIGURES:
        if metric == name or metric.endswith(f"/{name}"):
            return name
    layer, _, rest = metric.partition("/")
    return rest if rest and layer.startswith("layer_") else None


def _of_figure(logs: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Sequence[str]) -> dict[str, Series]:
    """Of one run: layer -> its numbers; of several: run -> the mean over its layers."""
    if len(logs) == 1:
        (lines,) = logs.values()
        found = {metric.split("/")[0].replace("_", " "): training_series(lines, metric).thinned() for metric in metrics}
        return dict(list(found.items())[:MOST_CURVES])
    found = {}
    for run, lines in logs.items():
        layers = [series for metric in metrics if len((series := training_series(lines, metric)).values)]
        if layers and len({len(series.values) for series in layers}) == 1:
            mean = np.mean([series.values for series in layers], axis=0)
            found[run] = dataclasses.replace(layers[0], values=mean).thinned()
    return found


def _of_layers(logs: Mapping[str, Any], layers: int) -> str:
    return f"; the mean of the {layers} layers that have it" if len(logs) > 1 and layers > 1 else ""


def _draw_memory(figure: Any, *, series: Mapping[str, Series], levels: Mapping[str, float]) -> None:
    lines = {name: (one.steps, one.values) for name, one in series.items()}
    charts.lines(figure, lines, x="updates", levels=levels)


def _letters(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
