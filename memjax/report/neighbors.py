"""Panels of the stored examples that a model is adapted to before it answers: their tasks, and some of their texts."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memjax.lifelong.looks import evenly_spaced
from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.samples import shorten

MOST_EXAMPLES = 100
"""Largest number of queries of a task."""
MOST_TASKS = 6
"""Largest number of tasks whose first query is shown."""
SHOWN = 3
"""Largest number of neighbours that are shown for a query."""
LETTERS = 110
"""Largest number of letters of a text in the table."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields one panel of the stored examples to which the model is adapted before it answers a query. It yields
    nothing unless the run adapts to neighbours of single queries.
    """
    if run.config.lifelong is None or not run.config.lifelong.method.adapts or not run.log_lines:
        return
    loaded = run.loaded_run
    if loaded.experiment.adapt_rows is None:  # one adaptation for all queries: no query has neighbours of its own
        return
    from memjax.lifelong.neighborhoods import neighborhoods, parts_in_order
    from memjax.lifelong.update_streams import ExampleSubset

    config, experiment = loaded.experiment.config, loaded.experiment
    evaluation = next((candidate for candidate in config.evaluations if candidate.task), config.evaluation)
    names, queries = [task.name for task in config.lifelong.ordered_tasks], list[tuple[Any, Any]]()
    for name in names:
        task_experiment = experiment.of_task(name)
        examples = task_experiment.documents(evaluation.split)
        numbers = np.array(evenly_spaced(range(len(examples)), MOST_EXAMPLES))
        queries.append((task_experiment, ExampleSubset(examples, numbers)))
    neighbors = neighborhoods(experiment, loaded.variables, queries, evaluation)
    parts = parts_in_order(experiment)
    figure = _origin_figure(neighbors, [part.first for part in parts], names, evaluation.split)
    rows = tuple(
        row
        for task in evenly_spaced(range(len(names)), MOST_TASKS)
        for row in _query_rows(queries[task], neighbors[task], parts, names, task)
    )
    text = (
        "Before it answers a query, the model is trained for some steps on stored examples near the query (de Masson "
        "d'Autume et al. 2019; Sprechmann et al. 2018; Wang et al. 2020). This helps only if the search finds examples "
        f"of the query's task. Memory: at most {config.lifelong.method.memory.capacity:,} rows."
    )
    yield Panel("neighbors", "Tasks of the neighbours", text, (figure, _neighbors_table(rows)))


def _origin_figure(found: Sequence[Any], firsts: Sequence[int], names: Sequence[str], split: str) -> Figure:
    from memjax.lifelong.neighborhoods import task_counts, task_shares

    counts = np.stack([task_counts(neighborhood.numbers, firsts) for neighborhood in found])
    shares, sizes = task_shares(counts), [len(neighborhood.rows) for neighborhood in found]
    each = f"{min(sizes):,}" if len({*sizes}) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    same_task = np.diag(counts).sum() / max(counts.sum(), 1)
    caption = (
        f"{each} queries from the {split} split of each task, each with the {found[0].numbers.shape[1]} stored rows "
        "that the model is adapted to. Rows are tasks of queries, columns are tasks of neighbours. The shares of a row "
        f"sum to 1. {100 * same_task:.0f} % of all neighbours are of their query's task. By chance, among tasks with "
        f"equally many rows, {100 / len(names):.0f} % would be."
    )
    draw, height = functools.partial(_draw_origin, shares=shares, names=names), min(1.4 + 0.42 * len(names), 6.0)
    return Figure("neighbors_origin", "Tasks of queries and of their neighbours", caption, draw, height)


def _neighbors_table(rows: tuple[tuple[Any, ...], ...]) -> Table:
    caption = (
        f"The first query of each task with up to {SHOWN} of its neighbours, the largest weight first. The weights of "
        "an example that is stored several times are added. `example` is the example's number in the run."
    )
    columns = ("query of", "neighbour of", "example", "weight", "class or answer", "text")
    if not any(row[-1] for row in rows):  # data of vectors has no texts
        columns, rows = columns[:-1], tuple(row[:-1] for row in rows)
    return Table("neighbors_read", "Some queries and their neighbours", caption, columns, rows)


def _draw_origin(figure: Any, shares: np.ndarray, names: Sequence[str]) -> None:
    numbers = "{:.2f}" if len(names) <= 8 else ""
    options = {"rows": names, "columns": names, "x": "task of the neighbours", "y": "task of the query"}
    charts.heatmap(figure, shares, numbers=numbers, low=0.0, high=1.0, **options)


def _query_rows(queries: tuple[Any, Any], found: Any, parts: Sequence[Any], names: Sequence[str], task: int) -> Any:
    """Yields the table rows of the first query of a task and its neighbours."""
    from memjax.lifelong.neighborhoods import task_of_number

    experiment, examples = queries
    query = examples.example(0)
    yield names[task], None, None, None, label_of(experiment, query), text_of(experiment, query)
    for example_number, weight in sum_weights_per_neighbor(found.numbers[0], found.weights[0])[:SHOWN]:
        origin = int(task_of_number(np.array([example_number]), [part.first for part in parts])[0])
        example = parts[origin].examples.example(example_number - parts[origin].first)
        yield None, names[origin], example_number, weight, label_of(experiment, example), text_of(experiment, example)


def sum_weights_per_neighbor(numbers: np.ndarray, weights: np.ndarray) -> list[tuple[int, float]]:
    """Adds the weights of equal neighbours of one query. Returns (example number, weight) of each distinct neighbour,
    the largest weight first.

    Args:
      numbers: Example numbers of the neighbours, nearest first, -1 for no neighbour, `[neighbors]`.
      weights: Weights of the neighbours `[neighbors]`.

    Returns:
      Example numbers with their weights, the largest weight first. Of equal weights the nearest comes first.

    Example:
      >>> sum_weights_per_neighbor(np.array([7, 3, 7, -1]), np.array([0.25, 0.25, 0.25, 0.0]))
      [(7, 0.5), (3, 0.25)]
    """
    totals: dict[int, float] = {}
    for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
        if number >= 0:
            totals[number] = totals.get(number, 0.0) + weight
    return sorted(totals.items(), key=lambda pair: -pair[1])


def text_of(experiment: Any, example: Any, most: int = LETTERS) -> str:
    """Returns the beginning of an example's input as text, at most `most` letters. '' if its inputs are vectors or
    there is no tokenizer.

    Args:
      experiment: Experiment of the example's task.
      example: The example.
      most: Largest number of letters.
    """
    if experiment.tokenizer is None or not np.issubdtype(example.inputs.dtype, np.integer):
        return ""
    return shorten(experiment.tokenizer.decode(example.inputs), most)


def label_of(experiment: Any, example: Any) -> str:
    """Returns the name of an example's class, or the text of its answer where the task has no classes.

    Args:
      experiment: Experiment of the example's task.
      example: The example.
    """
    targets, task = example.targets[np.asarray(example.weights) > 0], experiment.task
    if task.classifies:
        return task.class_names().get(int(targets[0]), str(targets[0]))
    if task.head() is None:
        return experiment.tokenizer.decode(targets)
    first, last = (int(place) for place in targets[:2])  # first and last position of an answer span
    return experiment.tokenizer.decode(example.inputs[first : last + 1])
