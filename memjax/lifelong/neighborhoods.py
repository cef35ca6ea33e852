"""Finds the stored examples that a model adapts to before it answers, with their weights and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from memjax.data.documents import Examples
from memjax.data.example_batches import EXAMPLE
from memjax.lifelong.method_interface import concatenate_tasks, settings_of
from memjax.lifelong.update_streams import TaskSlice
from memjax.training.experiment import Experiment


class Neighborhood(NamedTuple):
    """The neighbours in the memory of the examples of a split: the numbers of the neighbours and their weights, each
    `[rows, neighbors]`.

    Attributes:
      rows: Numbers of the examples in their split, int `[rows]`.
      numbers: Numbers of their neighbours in the run, int `[rows, neighbors]`. -1 for none.
      weights: Weights of the neighbours, float `[rows, neighbors]`.
    """

    rows: np.ndarray
    numbers: np.ndarray
    weights: np.ndarray


def parts_in_order(experiment: Experiment) -> list[TaskSlice]:
    """Returns a list of the training examples of each task of a run (`TaskSlice`), in the order of the tasks and
    numbered over the whole run.
    """
    return concatenate_tasks([experiment.of_task(task.name) for task in settings_of(experiment).ordered_tasks])


def neighborhoods(
    experiment: Experiment,
    variables: Mapping[str, Any],
    tasks: Iterable[tuple[Experiment, Examples]],
    evaluation: Any = None,
) -> list[Neighborhood]:
    """Finds the neighbours in the memory of examples, for a run that adapts to every row. `tasks` are pairs of the
    experiment of a task and examples of it. Returns a list of one `Neighborhood` for each.

    Args:
      experiment: Experiment of the run.
      variables: Variables for evaluation.
      tasks: Experiment of each task, with the examples whose neighbours are searched.
      evaluation: Settings for reading the examples. None for `Config.evaluation`.

    Returns:
      One neighbourhood for each task.

    Raises:
      ValueError: the method of the run does not adapt to rows.
    """
    adapting = experiment.adapt_rows
    if adapting is None:
        method = type(settings_of(experiment).method).__name__
        raise ValueError(f"run: given {method} that adapts to no row, allowed: MbPA, or MetaMbPA for each or together")
    # A search that changes the memory of the host is not compiled.
    find = adapting.retrieve_support if adapting.runs_outside_jit else jax.jit(adapting.retrieve_support)
    results = []
    for task, examples in tasks:
        parts: list[tuple[np.ndarray, ...]] = []
        for batch in task.reading(evaluation).batches(examples):
            support = find(variables, jax.tree.map(jnp.asarray, batch))
            has_targets = (np.asarray(batch.weights) > 0).any(axis=-1)
            arrays = (batch.extras[EXAMPLE], adapting.examples(support), adapting.weights(support))
            parts.append(tuple(np.asarray(part)[has_targets] for part in arrays))
        results.append(Neighborhood(*(np.concatenate(part) for part in zip(*parts, strict=True))))
    return results


def task_of_number(numbers: Int[np.ndarray, "*some"], firsts: Sequence[int]) -> Int[np.ndarray, "*some"]:
    """Returns the task of each example in `numbers`, its number in the run. -1 for -1. `firsts` are the numbers of the
    first examples of the tasks.

    Args:
      numbers: Numbers of examples in the run.
      firsts: Number of the first example of each task, ascending from 0.

    Example:
      >>> task_of_number(np.array([0, 4, 5, 11, -1]), [0, 5, 10]).tolist()
      [0, 0, 1, 2, -1]
    """
    return np.searchsorted(np.asarray(firsts), numbers, side="right") - 1


def task_counts(numbers: Int[np.ndarray, "rows neighbors"], firsts: Sequence[int]) -> Int[np.ndarray, " tasks"]:
    """Returns how many neighbours are of each task, over all rows together, `[tasks]`. `numbers` are the numbers of the
    neighbours in the run, and `firsts` those of the first examples of the tasks.

    Args:
      numbers: Numbers of the neighbours in the run. -1 for none.
      firsts: Number of the first example of each task, ascending from 0.

    Example:
      >>> task_counts(np.array([[0, 1, 7], [6, -1, -1]]), [0, 5, 10]).tolist()
      [2, 2, 0]
    """
    tasks = task_of_number(numbers, firsts)
    return np.bincount(tasks[tasks >= 0], minlength=len(firsts))


def task_shares(counts: Int[np.ndarray, "rows tasks"]) -> Float[np.ndarray, "rows tasks"]:
    """Converts the numbers of neighbours of each task, `[rows, tasks]`, to fractions of all neighbours of a row. NaN
    for rows without neighbours.

    Args:
      counts: Number of neighbours of each task, for every row.

    Example:
      >>> task_shares(np.array([[3, 1], [0, 0]])).tolist()
      [[0.75, 0.25], [nan, nan]]
    """
    total = counts.sum(axis=-1, keepdims=True)
    return np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
