"""Which stored examples a model is adapted to before it answers: numbers, weights, and the tasks that they are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from memjax.data.documents import Examples
from memjax.data.examples import EXAMPLE
from memjax.lifelong.contract import concatenate_tasks, settings_of
from memjax.lifelong.streams import TaskSlice
from memjax.training.experiment import Experiment

__all__ = ["Neighborhood", "neighborhoods", "parts_in_order", "task_shares", "task_counts", "task_of_number"]


class Neighborhood(NamedTuple):
    """The neighbours of examples.

    Attributes:
      rows: int `[rows]`, the numbers of the examples in their split.
      numbers: int `[rows, neighbors]`, those of their neighbours in the run; -1 = none.
      weights: float `[rows, neighbors]`, how much each counts.
    """

    rows: np.ndarray
    numbers: np.ndarray
    weights: np.ndarray


def parts_in_order(experiment: Experiment) -> list[TaskSlice]:
    """The training examples of all tasks of a run in their order, with the number of the first of each in the run."""
    return concatenate_tasks([experiment.of_task(task.name) for task in settings_of(experiment).in_order])


def neighborhoods(
    experiment: Experiment,
    variables: Mapping[str, Any],
    tasks: Iterable[tuple[Experiment, Examples]],
    evaluation: Any = None,
) -> list[Neighborhood]:
    """The neighbours of examples of some tasks, for a run that adapts to every row (`Experiment.adapt_rows`).

    Args:
      experiment: of the run.
      variables: as it is evaluated.
      tasks: each with the examples that are looked at.
      evaluation: how they are read; None = as `Config.evaluation`.

    Raises:
      ValueError: a run that answers with the parameters that it has.
    """
    adapting = experiment.adapt_rows
    if adapting is None:
        method = type(settings_of(experiment).method).__name__
        raise ValueError(f"run: given {method} that adapts to no row, allowed: MbPA, or MetaMbPA for each or together")
    # A search that changes the memory of the host is not compiled.
    find = adapting.retrieve_support if adapting.runs_outside_jit else jax.jit(adapting.retrieve_support)
    found = []
    for one, examples in tasks:
        parts: list[tuple[np.ndarray, ...]] = []
        for batch in one.reading(evaluation).batches(examples):
            support = find(variables, jax.tree.map(jnp.asarray, batch))
            there = (np.asarray(batch.weights) > 0).any(axis=-1)
            read = (batch.extras[EXAMPLE], adapting.examples(support), adapting.weights(support))
            parts.append(tuple(np.asarray(part)[there] for part in read))
        found.append(Neighborhood(*(np.concatenate(part) for part in zip(*parts, strict=True))))
    return found


def task_of_number(numbers: Int[np.ndarray, "*some"], firsts: Sequence[int]) -> Int[np.ndarray, "*some"]:
    """The task of numbers of examples in a run; -1 of -1.

    Args:
      numbers: of examples.
      firsts: the number of the first example of each task, ascending from 0.

    Example:
      >>> task_of_number(np.array([0, 4, 5, 11, -1]), [0, 5, 10]).tolist()
      [0, 0, 1, 2, -1]
    """
    return np.searchsorted(np.asarray(firsts), numbers, side="right") - 1


def task_counts(numbers: Int[np.ndarray, "rows neighbors"], firsts: Sequence[int]) -> Int[np.ndarray, " tasks"]:
    """How many neighbours are of each task.

    Example:
      >>> task_counts(np.array([[0, 1, 7], [6, -1, -1]]), [0, 5, 10]).tolist()
      [2, 2, 0]
    """
    tasks = task_of_number(numbers, firsts)
    return np.bincount(tasks[tasks >= 0], minlength=len(firsts))


def task_shares(counts: Int[np.ndarray, "rows tasks"]) -> Float[np.ndarray, "rows tasks"]:
    """The share of each task, of every row; NaN of a row without neighbours.

    Example:
      >>> task_shares(np.array([[3, 1], [0, 0]])).tolist()
      [[0.75, 0.25], [nan, nan]]
    """
    total = counts.sum(axis=-1, keepdims=True)
    return np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
