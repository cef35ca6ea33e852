"""Which earlier task is replayed: any, or rather one whose loss still falls while it is (the published code of ELLE).

https://github.com/thunlp/ELLE. All rows that are replayed at once are of one task. It is drawn by how much the loss of
its rows has fallen lately, for each row that was replayed. One that has not fallen counts as much as the best in the
first half of a stage, and as nothing afterwards.

Differs from the published code: the loss is that of the replayed rows, smoothed, and not that of validation texts.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.typing import Leaf, Sum, tree_dataclass

__all__ = ["PROGRESS", "Progress", "draw_task", "init_progress", "observe_loss", "odds_of_tasks"]

PROGRESS = "progress"
"""in `TrainState.method`"""
SMOOTHING = 0.9
"""weight of earlier losses in the mean of a task"""
LEAST = 1e-9
"""odds that every task has"""


@tree_dataclass
class Progress:
    """What is known of every task.

    Attributes:
      nats: float32 `[tasks]`, the smoothed loss of its rows.
      fallen: float32 `[tasks]`, by how much the last replay has lowered it, a row.
      seen: int32 `[tasks]`, how often its rows were replayed.
    """

    nats: Leaf
    fallen: Leaf
    seen: Leaf


def init_progress(tasks: int) -> Progress:
    """Nothing is known of any task."""
    return Progress(jnp.zeros(tasks), jnp.zeros(tasks), jnp.zeros(tasks, jnp.int32))


def odds_of_tasks(progress: Progress, share_done: Any) -> Float[Array, " tasks"]:
    """What tasks are drawn by; without knowledge all equally.

    Args:
      progress: what is known.
      share_done: of the stage, 0 to 1.

    Example:
      >>> known = Progress(jnp.ones(3), jnp.array([0.5, -1.0, 0.0]), jnp.array([2, 2, 1]))
      >>> print(odds_of_tasks(known, 0.2), odds_of_tasks(known, 0.6))
      [0.5 0.5 0.5] [5.e-01 1.e-09 5.e-01]
    """
    best = jnp.max(progress.fallen)
    known = progress.seen > 1
    instead = jnp.where(known & (share_done >= 0.5), 0.0, best)
    return jnp.maximum(jnp.where(known & (progress.fallen > 0), progress.fallen, instead), LEAST)


def draw_task(
    groups: Int[Array, " capacity"],
    count: Int[Array, ""],
    odds: Float[Array, " tasks"],
    key: Any,
    number: int,
) -> Int[Array, " number"]:
    """Ids of rows of one task, with replacement; -1 where there are no rows at all.

    Args:
      groups: the task of every row.
      count: the first rows are in use.
      odds: of tasks; those without rows are not drawn.
      key: all that is random.
      number: of ids.
    """
    tasks, used = jnp.arange(odds.shape[0]), jnp.arange(groups.shape[0]) < count
    there = jnp.any((groups[:, None] == tasks[None]) & used[:, None], axis=0)
    of_task, of_rows = jax.random.split(key)
    task = jax.random.categorical(of_task, jnp.where(there, jnp.log(odds), -jnp.inf))
    mine = used & (groups == task)
    places = jnp.nonzero(mine, size=groups.shape[0], fill_value=-1)[0]
    return places[jax.random.randint(of_rows, (number,), 0, jnp.maximum(jnp.sum(mine), 1))]


def observe_loss(progress: Progress, task: Any, nll: Sum, rows: int) -> Progress:
    """With the loss of replayed rows of a task; of none, or of one that is no number, as it was.

    Args:
      progress: what is known.
      task: int scalar, whose rows they are.
      nll: of their targets.
      rows: that were replayed.

    Example:
      >>> first = observe_loss(init_progress(2), 1, Sum(jnp.array(6.0), jnp.array(2.0)), rows=4)
      >>> later = observe_loss(first, 1, Sum(jnp.array(1.0), jnp.array(1.0)), rows=4)
      >>> print(first.nats, first.fallen, later.nats > 2.7, later.fallen > 0.04)
      [0. 3.] [0. 0.] [False  True] [False  True]
    """
    loss, before = nll.mean(), progress.nats[task]
    there = (nll.weight > 0) & jnp.isfinite(loss)
    again = progress.seen[task] > 0
    after = jnp.where(again, SMOOTHING * before + (1 - SMOOTHING) * loss, loss)
    put = lambda leaf, value: leaf.at[task].set(jnp.where(there, value, leaf[task]))
    return Progress(
        nats=put(progress.nats, after),
        fallen=put(progress.fallen, jnp.where(again, (before - after) / rows, 0.0)),
        seen=put(progress.seen, progress.seen[task] + 1),
    )
