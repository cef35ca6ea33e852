"""The reference gradients of GEM: one for the rows of each earlier task in the memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from memjax.lifelong.memory_backends import key_for, split_over_devices
from memjax.lifelong.update_streams import TASK
from memjax.lifelong.updates import UpdateParts
from memjax.training.optimizers import ReferenceGradients, make_reference_gradients
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
