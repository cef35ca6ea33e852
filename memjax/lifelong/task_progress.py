"""Draws the task to replay by how much replay still lowers its loss (the published code of ELLE).

https://github.com/thunlp/ELLE. All rows that are replayed at once are of one task. A task is drawn with odds
proportional to the last fall of its loss per replayed row. A task whose loss has not fallen gets the highest odds of
all tasks in the first half of a stage, and almost none afterwards.

Differs from the published code: the loss is that of the replayed rows, smoothed, and not that of validation texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.lifelong.components import ReplayChoice
from memjax.lifelong.stage_progress import fraction_done
from memjax.lifelong.update_streams import TASK
from memjax.typing import Batch, Leaf, WeightedSum, tree_dataclass

PROGRESS = "progress"
"""Name of the `TaskProgress` of all tasks in `TrainState.method`."""
SMOOTHING = 0.9
"""Weight of earlier losses in the moving average of the loss of a task."""
LEAST = 1e-9
"""Lowest odds of a task."""


@tree_dataclass
class TaskProgress:
    """The loss of every task in replay, how fast it falls, and the number of replays, arrays `[tasks]`.

    Attributes:
      nats: Moving average of the loss of replayed rows in nats, float32 `[tasks]`.
      fallen: Fall of the average by the last replay, per replayed row, float32 `[tasks]`.
      seen: Number of replays so far, int32 `[tasks]`.
    """

    nats: Leaf
    fallen: Leaf
    seen: Leaf


def init_progress(tasks: int) -> TaskProgress:
    """Returns the `TaskProgress` of `tasks` tasks, a number, of which none was replayed yet."""
    return TaskProgress(jnp.zeros(tasks), jnp.zeros(tasks), jnp.zeros(tasks, jnp.int32))


def odds_of_tasks(progress: TaskProgress, share_done: Any) -> Float[Array, " tasks"]:
    """Returns the odds `[tasks]` by which the next task to replay is drawn, higher where the loss falls faster. All are
    equal if no task was replayed twice. `share_done` is the fraction of the stage that is over.

    Args:
      progress: Progress of all tasks.
      share_done: Fraction of the updates of the stage that were made, 0 to 1.

    Example:
      >>> known = TaskProgress(jnp.ones(3), jnp.array([0.5, -1.0, 0.0]), jnp.array([2, 2, 1]))
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
    """Draws a task by its odds, and returns the ids of `number` of its rows, drawn with replacement. `groups` has the
    task of each slot, and the first `count` slots are in use. All ids are -1 if none is.

    Args:
      groups: Task number of every row of the memory.
      count: Number of rows in use, at the beginning of the memory.
      odds: Odds of every task. Tasks without rows are never drawn.
      key: Random key.
      number: Number of ids to draw.

    Returns:
      Row ids. All are -1 if the memory has no rows.
    """
    tasks, used = jnp.arange(odds.shape[0]), jnp.arange(groups.shape[0]) < count
    has_rows = jnp.any((groups[:, None] == tasks[None]) & used[:, None], axis=0)
    of_task, of_rows = jax.random.split(key)
    task = jax.random.categorical(of_task, jnp.where(has_rows, jnp.log(odds), -jnp.inf))
    mine = used & (groups == task)
    places = jnp.nonzero(mine, size=groups.shape[0], fill_value=-1)[0]
    return places[jax.random.randint(of_rows, (number,), 0, jnp.maximum(jnp.sum(mine), 1))]


def _draw_by_progress(method_state: Mapping[str, Any], memory: Any, key: Any, number: int) -> Int[Array, " number"]:
    """Draws the ids of rows of one task, which is drawn by its progress. The groups of the memory must be tasks.

    Args:
      method_state: State of the method, with the progress of all tasks and the count of updates of the stage.
      memory: The episodic memory.
      key: Random key.
      number: Number of ids to draw.
    """
    odds = odds_of_tasks(method_state[PROGRESS], fraction_done(method_state))
    return draw_task(memory.groups, memory.count, odds, key, number)


def _record_progress(method_state: Mapping[str, Any], rows: Batch, nll: WeightedSum, number: int) -> Mapping[str, Any]:
    """Records the loss of replayed rows of one task.

    Args:
      method_state: State of the method, with the progress of all tasks.
      rows: The rows, `[1, rows, ...]`, with the number of their task. Some may be padding.
      nll: Sum of the negative log-likelihoods of their targets.
      number: Number of rows that were replayed.
    """
    progress = observe_loss(method_state[PROGRESS], rows.extras[TASK][0, 0], nll, number)
    return {**method_state, PROGRESS: progress}


BY_PROGRESS = ReplayChoice(_draw_by_progress, _record_progress)
"""The choice of rows of the task whose loss falls most."""


def observe_loss(progress: TaskProgress, task: Any, nll: WeightedSum, rows: int) -> TaskProgress:
    """Returns the progress after `rows` rows of task number `task` were replayed with the loss `nll`. A loss without
    targets or that is not finite changes nothing.

    Args:
      progress: Progress of all tasks.
      task: Task number of the rows, an int scalar.
      nll: Sum of the negative log-likelihoods of their targets.
      rows: Number of rows that were replayed.

    Example:
      >>> first = observe_loss(init_progress(2), 1, WeightedSum(jnp.array(6.0), jnp.array(2.0)), rows=4)
      >>> later = observe_loss(first, 1, WeightedSum(jnp.array(1.0), jnp.array(1.0)), rows=4)
      >>> print(first.nats, first.fallen, later.nats > 2.7, later.fallen > 0.04)
      [0. 3.] [0. 0.] [False  True] [False  True]
    """
    loss, before = nll.mean(), progress.nats[task]
    is_valid = (nll.weight > 0) & jnp.isfinite(loss)
    again = progress.seen[task] > 0
    after = jnp.where(again, SMOOTHING * before + (1 - SMOOTHING) * loss, loss)
    put = lambda leaf, value: leaf.at[task].set(jnp.where(is_valid, value, leaf[task]))
    return TaskProgress(
        nats=put(progress.nats, after),
        fallen=put(progress.fallen, jnp.where(again, (before - after) / rows, 0.0)),
        seen=put(progress.seen, progress.seen[task] + 1),
    )
