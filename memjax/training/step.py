"""One training step: from the gradients of a batch to new parameters and a new memory.

`make_train_step` composes the two halves, `compute_gradients` and `apply_gradients`. A learner with gradients of its
own calls them itself. The order is always: loss, gradients, gradient transformations (see
`memjax.training.optimizers.make_optimizer`), clipping and update rule, `after_update`, the finite check of the
objective, the gradients and what would be written, counters.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from memjax.memory.interface import restore_state, select_state
from memjax.training.gradients import Gradients, compute_gradients
from memjax.training.objective import Objective
from memjax.training.optimizers import ReferenceGradients
from memjax.training.tables import TableOptimizer, Tables, touched_rows
from memjax.training.train_state import TrainState, step_sums
from memjax.typing import Batch, WeightedSum

__all__ = ["apply_gradients", "finish_window", "make_train_step"]


def finish_window(state: TrainState, optimizer: optax.GradientTransformation) -> TrainState:
    """Applies the mean gradient of an incomplete window of gradient accumulation at the end of a stage, and returns the
    train state with an empty window.

    A window has `gradient_accumulation_steps` steps, whose gradients are averaged and applied together.

    Args:
      state: Train state after the last step of a stage.
      optimizer: Optimiser of the dense parameters, from `optimizers.make_optimizer` with
        `gradient_accumulation_steps` above 1.

    Returns:
      The train state with an empty window. Parameters and optimiser state keep their values if any of the new ones is
      not finite.
    """
    nothing = jax.tree.map(jnp.zeros_like, state.params)
    update: Any = optimizer.update
    updates, opt_state = update(nothing, state.opt_state, state.params, finish=True)
    params = optax.apply_updates(state.params, updates)
    ok = _all_still_finite((params, opt_state), (state.params, state.opt_state))
    params, opt_state = select_state(ok, (params, opt_state), (state.params, state.opt_state))
    return dataclasses.replace(state, params=params, opt_state=opt_state)


AfterUpdate = Callable[[Any, Any, Any, Any], Any]
"""Function `after_update(method, old_params, new_params, gradients) -> method`.

It computes the next `TrainState.method` after each update, for example to accumulate importances along the way.
"""


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    table_optimizer: TableOptimizer | None = None,
    after_update: AfterUpdate | None = None,
    jit: bool = True,
    **segments: Any,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, WeightedSum]]]:
    """Makes the train step `step(state, batch) -> (state, metrics)`, jitted and donating the state unless
    `jit` is False. `after_update` is a function that computes the next state of a learning method.

    A step is skipped if the objective, the gradient norm or any new value is not finite. Every field of the state then
    keeps its value, except that `totals["skipped"]` grows and `restart` marks the rows that began a document. A row
    whose memory is not finite makes the model skip every step until its document ends. If the document never ends,
    training never continues, and `training.max_skipped_steps` ends the run.

    Args:
      objective: Objective to minimize.
      optimizer: Optimiser of the dense parameters. Value tables are not part of its weight decay and gradient norm.
      table_optimizer: Optimiser of the collection `tables`. Required if the model has value tables.
      after_update: Function that computes the next `TrainState.method`. None leaves it unchanged. See
        `apply_gradients`.
      jit: Whether to jit the step. False returns the plain function.
      **segments: Arguments `accumulate`, `rematerialize`, `segments_per_checkpoint`, `segments_without_gradient` and
        `is_frozen` of `compute_gradients`.

    Raises:
      ValueError: When the step is traced: `accumulate` does not divide the number of rows, a loss has no coefficient,
        or no segment is left that has a gradient.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, WeightedSum]]:
        state, gradients = compute_gradients(objective, state, batch, **segments)
        return apply_gradients(
            state,
            gradients,
            optimizer,
            table_optimizer=table_optimizer,
            after_update=after_update,
        )

    return jax.jit(train_step, donate_argnums=0) if jit else train_step


def apply_gradients(
    state: TrainState,
    gradients: Gradients,
    optimizer: optax.GradientTransformation,
    *,
    table_optimizer: TableOptimizer | None = None,
    reference: ReferenceGradients | None = None,
    after_update: AfterUpdate | None = None,
) -> tuple[TrainState, dict[str, WeightedSum]]:
    """Applies the gradients of a batch to the train state, the second half of a training step, unless a value is not
    finite. Returns the next state, and losses, metrics and counts by name. `reference` are `ReferenceGradients`.

    Args:
      state: Train state that `compute_gradients` returned.
      gradients: Gradients that `compute_gradients` returned. `Gradients.params` may have been replaced.
      optimizer: Optimiser of the dense parameters, from `optimizers.make_optimizer`.
      table_optimizer: Optimiser of the collection `tables`. None for a model without value tables.
      reference: Gradients of other examples, for gradient transformations that compare with them. None if there is no
        such transformation.
      after_update: Function that computes the next `TrainState.method`. None leaves it unchanged.

    Returns:
      `(state, sums)`: The train state after the step, and a `WeightedSum` of each loss, metric and count by name. If
      any gradient or new value is not finite, the step is skipped, as `make_train_step` describes.
    """
    norm = optax.tree.norm(gradients.params)
    referring = {} if reference is None else {"reference": reference}
    updates, opt_state = optax.with_extra_args_support(optimizer).update(
        gradients.params, state.opt_state, state.params, **referring
    )
    params, method = optax.apply_updates(state.params, updates), state.method
    if after_update is not None:
        method = after_update(method, state.params, params, gradients.params)
    ok = jnp.isfinite(gradients.objective) & jnp.isfinite(norm)
    for leaf in jax.tree.leaves(gradients.sinks):
        ok &= jnp.all(jnp.isfinite(leaf))
    # An optimiser can turn a finite gradient into a non-finite update: by non-finite moments, 0 / 0 or a rate of 1e30.
    ok &= _all_still_finite(
        (params, opt_state, gradients.batch_stats, method),
        (state.params, state.opt_state, state.batch_stats, state.method),
    )
    tables = state.tables
    if table_optimizer is not None and tables.values:
        touched = touched_rows(tables.values, gradients.sinks, gradients.arrays)
        tables = Tables(*table_optimizer.update(tables.values, tables.moments, touched, step=state.step, ok=ok))
    select = lambda new, old: jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)
    sums = step_sums(gradients.sums, norm, ok)
    params, later = _delay_ok(ok, select(params, state.params))
    memory, restart = state.memory, state.restart
    if gradients.memory is not None:
        restore = restore_state if gradients.single else select_state
        memory, restart = restore(ok, gradients.memory, gradients.saved), jnp.where(ok, False, gradients.starts)
    new = dataclasses.replace(
        state,
        step=select(state.step + 1, state.step),
        params=params,
        tables=tables,
        opt_state=select_state(later, opt_state, state.opt_state),
        batch_stats=select(gradients.batch_stats, state.batch_stats),
        memory=memory,
        totals={name: total + sums[name] if name in sums else total for name, total in state.totals.items()},
        restart=restart,
        method=select_state(later, method, state.method),
    )
    return new, sums


def _all_still_finite(new: Any, old: Any) -> Array:
    """Returns whether every entry that was finite in the old arrays is finite in the new ones, a bool scalar.

    Integer arrays are not checked.
    """
    ok = jnp.ones((), bool)
    for after, before in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        if after is not before and jnp.issubdtype(after.dtype, jnp.floating):
            ok &= jnp.all(jnp.isfinite(after) | ~jnp.isfinite(before))
    return ok


def _delay_ok(ok: Array, params: Any) -> tuple[Any, Array]:
    """Returns the parameters and `ok`, such that XLA computes `ok` after all parameters."""
    # New parameters are computed from the old moments once more, and not from the new ones. Unless the moments are
    # provably overwritten later, XLA copies all of them first: a tenth of a step on a CPU.
    if not jax.sharding.get_abstract_mesh().empty:  # one entry of a split array would have to move between devices
        return params, ok
    params = jax.lax.optimization_barrier(params)
    entries = [leaf[(0,) * leaf.ndim].astype(jnp.float32) for leaf in jax.tree.leaves(params)]
    bits = jax.lax.population_count(jax.lax.bitcast_convert_type(jnp.stack(entries), jnp.int32))
    return params, ok & (jnp.sum(bits) >= 0)  # always true; the compiler does not know
