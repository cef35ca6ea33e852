"""How much the likelihood of data depends on each parameter."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.training.objective import Objective, model_loss
from memjax.training.step import TrainState, gradients_of
from memjax.typing import Aux, Batch

__all__ = ["fisher_information"]


def fisher_information(
    model: Any, state: TrainState, batch: Batch, kind: str = "example"
) -> tuple[Any, Float[Array, ""]]:
    """The squared gradients of a batch's log likelihood, without dropout, added up; and how many.

    Args:
      model: a Linen model.
      state: the parameters and other collections; its memory is not read.
      batch: `[segments, batch, ...]`.
      kind: "example": of each row that has a target, by itself; "batch": of the mean over all of them.
    """
    loss = model_loss(model, deterministic=True)

    def likelihood(*arguments: Any) -> Any:
        memory, batch_stats, nll, aux = loss(*arguments)
        return memory, batch_stats, nll, Aux(arrays=aux.arrays)

    def squares(batch: Batch) -> tuple[Any, Array]:
        memory = model.init_state(batch.inputs.shape[1])
        found = gradients_of(Objective(likelihood), state, batch, memory=memory)[1]
        return jax.tree.map(jnp.square, found.params), jnp.any(batch.weights > 0).astype(jnp.float32)

    if kind == "batch":
        return squares(batch)
    rows = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0)[:, :, None], batch)
    zeros = (jax.tree.map(jnp.zeros_like, state.params), jnp.zeros(()))
    return jax.lax.scan(lambda sums, row: (jax.tree.map(jnp.add, sums, squares(row)), None), zeros, rows)[0]
