"""Groups of runs that differ only in seeds or orders of tasks: mean scores, and tested differences between them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from memjax.lifelong.stream_results import LARGEST_CLASS, NATS
from memjax.report.comparison import ORDER, RunRecord, settings_that_matter
from memjax.report.verdicts import (
    Comparison,
    Interval,
    compare_pairs,
    compute_interval,
    correct_for_many,
    describe_intervals,
    format_interval,
)
from memjax.settings.overrides import suggestion

DRAWN = ("training.seed", "data.seed", ORDER)
"""Fields in which runs of one contender may differ: the seeds, and the order of the tasks."""
AVERAGE = "average"
LESS_IS_BETTER = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")
STREAM_SCORES = (AVERAGE, "learning_accuracy", "forgetting", "average_perplexity", "increased_perplexity")
"""Scores of a run over tasks that a table of contenders shows."""
MAX_TASKS = 10
"""Largest number of tasks of which a table of contenders shows every score."""
MAX_FIELDS = 4
"""Largest number of fields in the label of a contender, if fewer tell it from the others."""
MAIN_FIELDS = ("lifelong.method", "model.attention", "tasks")
"""Fields that a label of few fields shows rather than others."""
PERCENT = ("score", "exact_match", "f1")
"""Measures of tasks that are in percent."""


class Contender(NamedTuple):
    """Finished runs that are compared as one: they differ only in seeds, in the order of their tasks, or in other
    fields that are averaged over.

    Attributes:
      label: Settings in which this contender differs from the others, as a text.
      runs: Its runs, by the order of their tasks and by the values of the other fields that they differ in.
      unit: Kind of the independent units of runs with one order, "seed" or "run".
    """

    label: str
    runs: Mapping[tuple[str, str], RunRecord]
    unit: str = "seed"

    @property
    def first(self) -> RunRecord:
        """The run that was given first."""
        return next(iter(self.runs.values()))

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores that a table of contenders shows: those that all runs have."""
        from memjax.tasks import make_task

        records = [*self.runs.values()]
        if self.first.stream:
            tasks = self.first.stream["tasks"]
            names = (*STREAM_SCORES, *(tasks if len(tasks) <= MAX_TASKS else ()))
        else:
            names = tuple(dict.fromkeys((*make_task(self.first.config).main_metrics, LARGEST_CLASS, NATS)))
        return tuple(name for name in names if not any(math.isnan(record.score(name)) for record in records))

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the rows and columns of `matrix`: the tasks where all runs have one order, otherwise their places in
        the order. Empty for runs without tasks.
        """
        tasks = self.first.stream.get("tasks", ())
        is_one_order = len({order for order, _ in self.runs}) == 1
        return tuple(tasks) if is_one_order else tuple(f"task {number}" for number in range(1, len(tasks) + 1))

    def interval(self, read: Callable[[RunRecord], float]) -> Interval:
        """Returns the mean of a number of each run, `read(record)`, and its interval over independent units: orders of
        tasks, in which seeds are averaged, or where there is one order seeds.
        """
        return compute_interval(place_by_order(self.runs, map(read, self.runs.values())), unit=self.unit)

    def matrix(self) -> list[list[Interval]]:
        """Returns for runs over tasks the mean of every score of their matrices, and its interval. The row and the
        column of a task is its place in the order of learning. Empty for other runs, and for runs of unlike matrices.
        """
        scores = [record.stream.get("scores", ()) for record in self.runs.values()]
        if len({tuple(map(len, rows)) for rows in scores}) != 1:
            return []
        known = lambda value: math.nan if value is None else value
        cell = lambda row, column: lambda record: known(record.stream["scores"][row][column])
        return [[self.interval(cell(i, j)) for j in range(len(row))] for i, row in enumerate(scores[0])]


class RunDifference(NamedTuple):
    """The tested difference in one score between two groups of runs. The runs of a group differ only in seed and order
    of tasks, and are paired by these with runs of the other group.

    Attributes:
      runs: Number of runs of the contender.
      name: First run of the contender.
      control: First run of the other one.
      measure: Name of the score that is compared.
      comparison: The difference and its verdict.
      label: Settings of the contender that tell it from others, as a text.
      control_label: Settings of the other one, as a text.
    """

    runs: int
    name: str
    control: str
    measure: str
    comparison: Comparison
    label: str = ""
    control_label: str = ""


def group_runs(records: Iterable[RunRecord], over: Sequence[str] = DRAWN) -> list[Contender]:
    """Groups finished runs whose settings are equal but for the fields `over`, such as seeds and the order of tasks.
    Returns a `Contender` for each group, in the order of the first runs.

    Args:
      records: Finished runs, as `split_finished` returns them.
      over: Fields of the configuration in which runs of one group may differ.

    Raises:
      ValueError: A field of `over` is in no configuration.
    """
    groups = dict[str, tuple[dict[str, Any], dict[tuple[str, str], RunRecord]]]()
    known = dict[str, None]()
    for record in records:
        settings = settings_that_matter(record.config)
        known |= dict.fromkeys(settings)
        averaged = {name: str(settings.pop(name, "")) for name in over}
        place = averaged.pop(ORDER, ""), ", ".join(averaged.values())
        groups.setdefault(str(settings), (settings, {}))[1].setdefault(place, record)
    for name in over:
        if groups and over is not DRAWN and name not in known:
            hint = suggestion(name, known)
            raise ValueError(f"--over: given {name}, allowed: fields of the runs, such as {', '.join(DRAWN)}{hint}")
    whole = [settings for settings, _ in groups.values()]
    labels = _label_settings([_name_tasks(settings) for settings in whole])
    labels = labels if len(set(labels)) == len(whole) else _label_settings(whole)
    unit = "seed" if all(name.endswith("seed") or name == ORDER for name in over) else "run"
    return [Contender(label, runs, unit) for label, (_, runs) in zip(labels, groups.values(), strict=True)]


def compare_contenders(records: Iterable[RunRecord], over: Sequence[str] = DRAWN) -> list[RunDifference]:
    """Tests whether groups of finished runs differ in score. Runs that differ only in the fields `over` form a group.
    Returns a difference from the group of the first run for each other group that has two or more pairs.

    Such a group is a contender. It is compared in one score that all of its pairs have: the average over tasks in the
    end where all are runs over tasks, else the first number that the task of the first run is about.

    Args:
      records: Finished runs, as `split_finished` returns them.
      over: Fields of the configuration in which runs of one group may differ.

    Returns:
      A difference for each other contender that has at least two pairs and a score in common with the first one.
    """
    contenders = group_runs(records, over)
    differences = []
    for other in contenders[1:]:
        first = contenders[0]
        shared = [place for place in other.runs if place in first.runs]
        pairs = [[contender.runs[place] for place in shared] for contender in (other, first)]
        chosen = _shared_measure([*pairs[0], *pairs[1]])
        if len(shared) < 2 or chosen is None:
            continue
        measure, more_is_better = chosen
        values = [place_by_order(shared, (record.score(measure) for record in side)) for side in pairs]
        comparison = compare_pairs(*values, more_is_better=more_is_better, unit=first.unit)
        differences.append(
            RunDifference(
                len(other.runs), other.first.path, first.first.path, measure, comparison, other.label, first.label
            )
        )
    corrected = correct_for_many([difference.comparison for difference in differences])
    pairs = zip(differences, corrected, strict=True)
    return [difference._replace(comparison=comparison) for difference, comparison in pairs]


def place_by_order(places: Iterable[tuple[str, str]], values: Iterable[float]) -> np.ndarray:
    """Arranges numbers of runs as an array `[orders, seeds]`, with NaN for missing runs. `places` are the order and the
    seed of each number.
    """
    places = [*places]
    orders, seeds = ([*dict.fromkeys(names)] for names in zip(*places, strict=True))
    arranged = np.full((len(orders), len(seeds)), np.nan)
    for (order, seed), value in zip(places, values, strict=True):
        arranged[orders.index(order), seeds.index(seed)] = value
    return arranged


def tabulate(contenders: Sequence[Contender]) -> tuple[tuple[str, ...], list[tuple[Any, ...]], str]:
    """Makes a table with a row for each contender: its number of runs, and mean and interval of each score. Streams
    whose tasks are measured differently, such as by accuracy and in percent, have a column that says so. Returns the
    headings, the rows, and a sentence about the intervals.
    """
    measures = [contender.first.stream.get("measure") for contender in contenders]
    is_mixed = len({*measures}) > 1
    names = list(dict.fromkeys(name for contender in contenders for name in contender.scores))
    rows, intervals = list[tuple[Any, ...]](), list[Interval]()
    for contender, measure in zip(contenders, measures, strict=True):
        of_name = {n: contender.interval(lambda record, n=n: record.score(n)) for n in contender.scores}
        intervals += of_name.values()
        cells = (format_interval(of_name[name]) if name in of_name else None for name in names)
        unit = (f"{measure}, %" if measure in PERCENT else measure,) if is_mixed else ()
        rows.append((contender.label, len(contender.runs), *unit, *cells))
    heads = ("", "runs", *(["measure"] if is_mixed else []), *(name.replace("_", " ") for name in names))
    return heads, rows, describe_intervals(intervals)


def _shared_measure(records: Sequence[RunRecord]) -> tuple[str, bool] | None:
    """Returns the score that all of some runs have, and whether more of it is better. None without such a score."""
    from memjax.tasks import make_task

    of_streams = {record.stream.get("measure") for record in records}
    if len(of_streams) == 1 and None not in of_streams:
        return AVERAGE, NATS not in of_streams
    names = (*make_task(records[0].config).main_metrics, NATS) if records else ()
    for name in names:
        if all(name in record.results["evaluation"] for record in records):
            return name, name not in LESS_IS_BETTER
    return None


def _name_tasks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run with the names of its tasks in place of their data and evaluations. Settings
    without tasks are returned as they are.

    Example:
      >>> _name_tasks({"dim": 8, "lifelong.tasks.0.name": "news", "lifelong.tasks.0.source.path": "news.csv"})
      {'dim': 8, 'tasks': 'news'}
    """
    names = [value for name, value in settings.items() if re.fullmatch(r"lifelong\.tasks\.\d+\.name", name)]
    of_tasks = ("lifelong.tasks.", "evaluations.", "data.source") if names else ()
    others = {name: value for name, value in settings.items() if not name.startswith(of_tasks)}
    return {**others, "tasks": ", ".join(names)} if names else others


def _choose_fields(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Returns all `names` of fields, or of more than `MAX_FIELDS` one or two whose values tell all configurations
    apart, if there are such.
    """
    some = sorted(names, key=lambda name: name not in MAIN_FIELDS)
    is_unique = lambda few: len({tuple(str(fields.get(name)) for name in few) for fields in settings}) == len(settings)
    choices = (few for size in (1, 2) for few in itertools.combinations(some, size) if is_unique(few))
    return names if len(names) <= MAX_FIELDS else next(choices, names)


def _label_settings(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a text for each of several configurations with the values in which it differs from the others, such as
    "EWC" for a kind or "dim 64" for a number. Of more than `MAX_FIELDS` it shows one or two that tell all apart, then
    "...".

    Example:
      >>> ewc, si = {"method": "EWC", "method.weight": 1.0}, {"method": "SI", "method.damping": 0.1}
      >>> _label_settings([ewc, si]), _label_settings([ewc, {**ewc, "method.weight": 2.0}]), _label_settings([ewc])
      (['EWC', 'SI'], ['weight 1.0', 'weight 2.0'], ['all runs'])
    """
    every = {name: None for fields in settings for name in fields}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings}) > 1]

    def follows(name: str) -> bool:  # from a kind that differs, such as the weight of EWC from the method
        kinds = [kind for kind in apart if name.startswith(f"{kind}.")]
        values = {tuple(str(fields.get(n)) for n in (*kinds, name)) for fields in settings}
        return bool(kinds) and len(values) == len({value[:-1] for value in values})

    is_kind = {name: any(other.startswith(f"{name}.") for other in every) for name in apart}
    shown = sorted((name for name in apart if not follows(name)), key=lambda name: not is_kind[name])
    chosen = _choose_fields(shown, settings)
    rest, shown = ([] if len(chosen) == len(shown) else ["..."]), chosen
    last = lambda name: name.rpartition(".")[2]
    title = lambda name: last(name) if sum(last(name) == last(other) for other in shown) == 1 else name
    text = lambda fields, name: "none" if fields.get(name) is None else str(fields[name])
    show = lambda fields, name: text(fields, name) if is_kind[name] else f"{title(name)} {text(fields, name)}"
    return [", ".join([*(show(fields, name) for name in shown), *rest]) or "all runs" for fields in settings]
