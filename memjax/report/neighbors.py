"""Panels of the neighbours that a model is adapted to: the tasks that they are of, and some of them to read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.looks import evenly_spaced
from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.samples import shortened

__all__ = ["heaviest", "label_of", "panels", "text_of"]

MOST_EXAMPLES = 100
"""of a task"""
MOST_TASKS = 6
"""of which a query is shown"""
SHOWN = 3
"""neighbours of a query"""
LETTERS = 110
"""of a text in the table"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Origin of neighbours, of a run that adapts to rows of an episodic memory."""
    if run.config.lifelong is None or not run.config.lifelong.method.adapts or not run.lines:
        return
    loaded = run.loaded
    if loaded.experiment.adapt_rows is None:  # one adaptation for all has no rows of its own
        return
    from memjax.lifelong.neighborhoods import neighborhoods, parts_in_order
    from memjax.lifelong.streams import ExampleSubset

    config, experiment = loaded.experiment.config, loaded.experiment
    evaluation = next((one for one in config.evaluations if one.task), config.evaluation)
    names, asked = [task.name for task in config.lifelong.in_order], list[tuple[Any, Any]]()
    for name in names:
        one = experiment.of_task(name)
        examples = one.documents(evaluation.split)
        asked.append((one, ExampleSubset(examples, np.array(evenly_spaced(range(len(examples)), MOST_EXAMPLES)))))
    found = neighborhoods(experiment, loaded.variables, asked, evaluation)
    parts = parts_in_order(experiment)
    figure = _origin_figure(found, [part.first for part in parts], names, evaluation.split)
    rows = tuple(
        row
        for task in evenly_spaced(range(len(names)), MOST_TASKS)
        for row in _query_rows(asked[task], found[task], parts, names, task)
    )
    text = (
        "Before it answers, a model takes some steps on stored examples that lie near the query (de Masson d'Autume et "
        "al. 2019; Sprechmann et al. 2018; Wang et al. 2020). It can recall a task only where the search finds rows of "
        f"it. Memory: at most {config.lifelong.method.memory.capacity:,} rows."
    )
    yield Panel("neighbors", "Where neighbours come from", text, (figure, _table(rows)))


def _origin_figure(found: Sequence[Any], firsts: Sequence[int], names: Sequence[str], split: str) -> Figure:
    from memjax.lifelong.neighborhoods import task_counts, task_shares

    counts = np.stack([task_counts(one.numbers, firsts) for one in found])
    shares, sizes = task_shares(counts), [len(one.rows) for one in found]
    each = f"{min(sizes):,}" if len({*sizes}) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    own = np.diag(counts).sum() / max(counts.sum(), 1)
    caption = (
        f"{each} examples of the {split} split of each task, with the {found[0].numbers.shape[1]} stored rows that "
        "each is adapted to. A row for the task of the query, a column for that of its neighbours; shares of a row add "
        f"up to 1. {100 * own:.0f} % of all neighbours are of the task of their query; by chance, among tasks with "
        f"equally many rows, {100 / len(names):.0f} % would be."
    )
    draw, height = functools.partial(_draw_origin, shares=shares, names=names), min(1.4 + 0.42 * len(names), 6.0)
    return Figure("neighbors_origin", "Tasks of queries against tasks of their neighbours", caption, draw, height)


def _table(rows: tuple[tuple[Any, ...], ...]) -> Table:
    caption = (
        f"The first query of each task with up to {SHOWN} of its neighbours, those that count most first; one that was "
        "stored several times counts with all its weight. Numbers are those of examples in the run."
    )
    columns = ("query of", "neighbour of", "example", "weight", "class or answer", "text")
    if not any(row[-1] for row in rows):  # vectors
        columns, rows = columns[:-1], tuple(row[:-1] for row in rows)
    return Table("neighbors_read", "Some queries with their neighbours", caption, columns, rows)


def _draw_origin(figure: Any, shares: np.ndarray, names: Sequence[str]) -> None:
    numbers = "{:.2f}" if len(names) <= 8 else ""
    named = {"rows": names, "columns": names, "x": "task of the neighbours", "y": "task of the query"}
    charts.heat(figure, shares, numbers=numbers, low=0.0, high=1.0, **named)


def _query_rows(asked: tuple[Any, Any], found: Any, parts: Sequence[Any], names: Sequence[str], task: int) -> Any:
    """Rows of the table: the first query of a task, and its neighbours."""
    from memjax.lifelong.neighborhoods import task_of_number

    one, examples = asked
    query = examples.example(0)
    yield names[task], None, None, None, label_of(one, query), text_of(one, query)
    for number, weight in heaviest(found.numbers[0], found.weights[0])[:SHOWN]:
        of = int(task_of_number(np.array([number]), [part.first for part in parts])[0])
        example = parts[of].examples.example(number - parts[of].first)
        yield None, names[of], number, weight, label_of(one, example), text_of(one, example)


def heaviest(numbers: np.ndarray, weights: np.ndarray) -> list[tuple[int, float]]:
    """The neighbours of a row, each once with all its weight, the heaviest first; of equal ones the nearest.

    Example:
      >>> heaviest(np.array([7, 3, 7, -1]), np.array([0.25, 0.25, 0.25, 0.0]))
      [(7, 0.5), (3, 0.25)]
    """
    found: dict[int, float] = {}
    for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
        if number >= 0:
            found[number] = found.get(number, 0.0) + weight
    return sorted(found.items(), key=lambda one: -one[1])


def text_of(experiment: Any, example: Any, most: int = LETTERS) -> str:
    """The beginning of what an example reads; '' of numbers."""
    if experiment.tokenizer is None or not np.issubdtype(example.inputs.dtype, np.integer):
        return ""
    return shortened(experiment.tokenizer.decode(example.inputs), most)


def label_of(experiment: Any, example: Any) -> str:
    """The answer that an example has: the name of its class, or words."""
    asked, task = example.targets[np.asarray(example.weights) > 0], experiment.task
    if task.classifies:
        return task.class_names().get(int(asked[0]), str(asked[0]))
    if task.head() is None:
        return experiment.tokenizer.decode(asked)
    first, last = (int(place) for place in asked[:2])  # of a span
    return experiment.tokenizer.decode(example.inputs[first : last + 1])
