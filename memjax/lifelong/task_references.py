"""The rows of earlier tasks that GEM and A-GEM project by: for GEM the reference gradient of each task, for A-GEM the
choice of rows of all earlier tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from memjax.data.example_batches import EXAMPLE
from memjax.lifelong.components import Component, ReplayChoice
from memjax.lifelong.episodic_memory import draw
from memjax.lifelong.memory_backends import key_for, split_over_devices
from memjax.lifelong.method_interface import TaskInfo
from memjax.lifelong.update_streams import TASK
from memjax.lifelong.updates import UpdateParts
from memjax.training.optimizers import ReferenceGradients, make_reference_gradients
from memjax.training.stages import PhaseContext
from memjax.training.train_state import TrainState, model_variables
from memjax.typing import Batch


def gradients_of_tasks(
    num_tasks: int, parts: UpdateParts, state: TrainState, episodes: Any, batch: Batch
) -> ReferenceGradients:
    """Returns the gradients (`ReferenceGradients`) of the loss of every task's rows in the memory `episodes`, but those
    of the task of `batch`, at the parameters of `state`.

    Args:
      num_tasks: Number of tasks of the stream.
      parts: Parts of the updates of the learner, with the number of rows of each task in `parts.replay`.
      state: Train state before the update, without its memory.
      episodes: The memory, whose groups are tasks. The gradient of a task without rows is 0.
      batch: Batch of the stream, with the number of its task.
    """
    assert parts.replay is not None and parts.memory is not None
    take, rows_of_each, current = parts.memory.store.take, parts.replay.rows, batch.extras[TASK][0, 0]
    used = jnp.arange(episodes.capacity) < episodes.count

    def rows_of_task(task: Any) -> Batch:
        of_task = used & (episodes.groups == task) & (task != current)
        return take(episodes, jnp.nonzero(of_task, size=rows_of_each, fill_value=-1)[0])

    rows = split_over_devices(jax.vmap(rows_of_task)(jnp.arange(num_tasks)))
    start, key = parts.model.init_state(rows.inputs.shape[1]), key_for(state.key, "replay", state.step)

    def loss(params: Any, rows: Batch) -> Any:
        variables = {**model_variables(state), "method": state.method, "params": params}
        return parts.replay_objective.loss(variables, start, rows, key)[2].mean()

    def losses(params: Any) -> dict[str, Any]:
        each = jax.vmap(loss, in_axes=(None, 0))(params, rows)
        return {f"task_{index}": each[index] for index in range(num_tasks)}

    def gradient(rows: Batch) -> Any:  # Costs nothing for a task that has no rows yet.
        none = lambda: jax.tree.map(jnp.zeros_like, state.params)
        return jax.lax.cond(jnp.any(rows.weights > 0), lambda: jax.grad(loss)(state.params, rows), none)

    return make_reference_gradients(losses, state.params, lambda: jax.lax.map(gradient, rows))


TASK_START = "task_start"
"""Name in `TrainState.method` of the number of examples of all tasks before the one that is learned, an int32 scalar.
Stored examples with smaller numbers are of earlier tasks."""


def _begin_task(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
    """Returns the state at the beginning of a task, with the number of its first example in the run."""
    del context
    start = jnp.asarray(task.parts[task.index].first, jnp.int32)
    return dataclasses.replace(state, method={**state.method, TASK_START: start})


def _draw_earlier_rows(method_state: Mapping[str, Any], memory: Any, key: Any, number: int) -> Int[Array, " number"]:
    """Draws the ids of `number` rows of earlier tasks, with replacement. All are -1 if the memory has none.

    Args:
      method_state: State of the method, with the number of the first example of the task.
      memory: The episodic memory.
      key: Random key.
      number: Number of ids to draw.
    """
    examples, used = jnp.asarray(memory.rows.extras[EXAMPLE]), jnp.arange(memory.capacity) < memory.count
    is_earlier = used & (examples < method_state[TASK_START])
    places = jnp.nonzero(is_earlier, size=memory.capacity, fill_value=-1)[0]
    numbers = draw(jnp.sum(is_earlier), memory.capacity, key, number)
    return jnp.where(numbers < 0, -1, places[numbers])


EARLIER_ROWS = ReplayChoice(_draw_earlier_rows, lambda method_state, rows, nll, number: method_state)
"""The choice of rows of earlier tasks, all equally likely. It needs the component `TASK_STARTS`."""
TASK_STARTS = Component(TASK_START, lambda params: jnp.zeros((), jnp.int32), before_task=_begin_task)
"""The component that stores where the task that is learned begins."""
