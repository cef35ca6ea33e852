"""One training step: the train state, the gradients of an objective, and the update of parameters and memory.

`make_train_step` composes the two halves, `compute_gradients` and `apply_gradients`. A learner with gradients of its
own calls them itself. The order is always: loss, gradients, gradient transformations (see
`memjax.training.optimizers.make_optimizer`), clipping and update rule, `after_update`, the finite check of the
objective, the gradients and what would be written, counters.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from memjax.memory.interface import restore_state, save_state, select_state, state_axes
from memjax.training.objective import RANDOM_STREAMS, Objective
from memjax.training.optimizers import ReferenceGradients
from memjax.training.segment_loop import Rematerialize, add_segments, loss_over_segments, segment_keys
from memjax.training.tables import TableOptimizer, Tables, make_gradient_sinks, touched_rows
from memjax.typing import Aux, Batch, Leaf, SegmentLoss, WeightedSum, tree_dataclass

__all__ = [
    "Gradients",
    "TrainState",
    "apply_gradients",
    "finish_window",
    "compute_gradients",
    "init_train_state",
    "init_variables",
    "make_train_step",
    "model_variables",
]


@tree_dataclass
class TrainState:
    """All arrays that training changes or needs to continue.

    Attributes:
      step: Number of steps that were applied, int32 scalar. Steps with a non-finite value are skipped and not counted.
      params: Linen collection `params`, float32.
      tables: Value tables with row-sparse updates, and their Adam moments. They never have a dense gradient.
      opt_state: State of the optax optimiser, float32.
      batch_stats: Running statistics. Only training steps write them.
      constants: Arrays that no training step writes, such as random features. A learner may write them, for example to
        mark the classes that it has seen.
      memory: Memory of every row, arrays `[batch, ...]`.
      key: Random key of dropout and sampling. Each step folds in its number.
      totals: `WeightedSum` by name since the totals were last read: `nll`, `tokens` (tokens read), `gradient_norm`,
        `skipped`, `bytes` if the batches carry them, and the losses and metrics of the model.
      restart: Rows whose document began in a skipped step, bool `[batch]`. Their memory is reset in the next step.
      method: State of the learning method (anchors, importances, a teacher, an episodic memory), any tree of arrays.
    """

    step: Leaf
    params: Any
    tables: Tables
    opt_state: Any
    batch_stats: Any
    constants: Any
    memory: Any
    key: Leaf
    totals: dict[str, WeightedSum]
    restart: Leaf
    method: Any = dataclasses.field(default_factory=dict)


def init_variables(model: Any, key: Array, segment_length: int) -> dict[str, Any]:
    """Initializes the variables of a model: `params`, and `tables`, `batch_stats` and `constants` if it has them.

    Args:
      model: Linen model to initialize.
      key: Random key of the initial values.
      segment_length: Tokens per segment. The values depend on it only if the parameters of the model do.
    """
    keys = {name: jax.random.fold_in(key, i) for i, name in enumerate(("params", *RANDOM_STREAMS))}
    tokens = jnp.zeros((1, segment_length), jnp.int32)
    return model.init(keys, tokens, model.init_state(1), start_of_document=jnp.ones(1, bool))


def init_train_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    variables: Mapping[str, Any],
    memory: Any,
    batch: Batch,
    key: Array,
    *,
    table_optimizer: TableOptimizer | None = None,
    method: Any = None,
) -> TrainState:
    """Makes the train state before the first step from variables of a model and the memory of its rows. `batch` is an
    example, for shapes and names, and `method` the state of a learning method.

    Args:
      objective: Objective that the train step minimizes. It decides the names of the totals.
      optimizer: Optimiser of the dense parameters.
      variables: Variables of the model, from `init_variables` or loaded.
      memory: Memory of the rows, from `model.init_state(rows)`.
      batch: Example batch or its shapes, `[segments, batch, length]`. It decides the names of the totals.
      key: Random key of dropout and sampling.
      table_optimizer: Optimiser of the collection `tables`. Required if the model has value tables.
      method: State of the learning method, any tree of arrays. None for no state.

    Raises:
      ValueError: The model has value tables and `table_optimizer` is None.
    """
    values = variables.get("tables", {})
    if values and table_optimizer is None:
        raise ValueError("table_optimizer: given None for a model with value tables, allowed: a TableOptimizer")
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        tables=Tables(values, table_optimizer.init(values) if table_optimizer else {}),
        opt_state=optimizer.init(variables["params"]),
        batch_stats=variables.get("batch_stats", {}),
        constants=variables.get("constants", {}),
        memory=memory,
        key=key,
        totals={},
        restart=jnp.zeros(batch.start_of_document.shape[1], bool),
        method={} if method is None else method,
    )

    def sums(state: TrainState, batch: Batch) -> dict[str, WeightedSum]:
        segment = _take_first(batch)
        _, _, nll, aux = objective.loss(_loss_variables(state), state.memory, segment, state.key)
        values = {"nll": nll, **_named_losses(objective, aux), **aux.metrics, **_count_tokens(segment)}
        return _step_sums(values, jnp.zeros(()), jnp.ones((), bool))

    return dataclasses.replace(state, totals={name: WeightedSum.zero() for name in jax.eval_shape(sums, state, batch)})


def model_variables(state: TrainState) -> dict[str, Any]:
    """Returns the variables to apply the model with: `params` and all other collections that are not empty."""
    others = {"tables": state.tables.values, "batch_stats": state.batch_stats, "constants": state.constants}
    return {"params": state.params, **{name: value for name, value in others.items() if value}}


def _loss_variables(state: TrainState) -> dict[str, Any]:
    """Returns the variables that a loss receives: those of the model and, under `method`, the state of the method."""
    method = {"method": state.method} if jax.tree.leaves(state.method) else {}
    return {**model_variables(state), **method}


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
      **segments: Arguments `accumulate`, `rematerialize`, `segments_per_checkpoint` and `segments_without_gradient` of
        `compute_gradients`.

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


@tree_dataclass
class Gradients:
    """Results of the forward and backward pass of a step: the objective, its gradients, the next memory and statistics,
    and sums.

    A batch that came with a separate memory leaves the memory of the train state alone: see `compute_gradients`.

    Attributes:
      objective: Value of the objective, scalar.
      params: Gradient of the parameters. It may be replaced by any tree of the same shapes before `apply_gradients`.
      sinks: Gradients of the looked-up rows of value tables, arrays `[groups, segments, ...]`.
      memory: Memory of the rows after the batch. None if the batch came with a separate memory.
      saved: Memory from before the batch, to restore if the step is skipped. If `single`, the entries that
        `restore_state` needs. None if the batch came with a separate memory.
      batch_stats: Running statistics after the batch.
      arrays: `Aux.arrays` of the model, with leading axes `[groups, segments]`.
      sums: `WeightedSum` of each loss, metric and count by name.
      starts: Rows that began a document, bool `[batch]`. None if the batch came with a separate memory.
      single: Whether the batch is one segment in one row group. The memory is then restored by `restore_state`, else
        the whole memory is selected.
    """

    objective: Any
    params: Any
    sinks: Any
    memory: Any
    saved: Any
    batch_stats: Any
    arrays: dict[str, Any]
    sums: dict[str, WeightedSum]
    starts: Any
    single: bool = dataclasses.field(metadata={"static": True})


def compute_gradients(
    objective: Objective,
    state: TrainState,
    batch: Batch,
    *,
    memory: Any = None,
    accumulate: int = 1,
    rematerialize: Rematerialize = "none",
    segments_per_checkpoint: int = 0,
    segments_without_gradient: int = 0,
) -> tuple[TrainState, Gradients]:
    """Computes the objective of a batch and its gradients, the first half of a training step. Returns the unchanged
    train state and the `Gradients`. `accumulate` is a number of row groups, computed one after the other.

    Args:
      objective: Objective to minimize.
      state: Train state before the step.
      batch: Next batch of the rows whose memory the state holds, arrays `[segments, batch, ...]`.
      memory: Memory of the rows of the batch, such as `model.init_state(rows)`, for a batch with other rows than those
        of the state. `TrainState.memory` and `TrainState.restart` are then neither read nor written. None reads the
        memory of the state.
      accumulate: Number of row groups that are computed one after the other to save device memory. The result is that
        of all rows at once. It must divide the number of rows.
      rematerialize: Activations to recompute in the backward pass. See `loss_over_segments`.
      segments_per_checkpoint: Segments between two checkpoints of the backward pass. See `loss_over_segments`.
      segments_without_gradient: Number of first segments of the batch that only write the memory. They cost a forward
        pass, their losses do not count, and no gradient flows through the entries that they wrote.

    Returns:
      The train state, unchanged, to pass to `apply_gradients`, and the gradients.

    Raises:
      ValueError: `accumulate` does not divide the number of rows, or no segment is left that has a gradient.
    """
    without, has_separate_memory = segments_without_gradient, memory is not None
    starts = batch.start_of_document
    batch = dataclasses.replace(
        batch,
        start_of_document=starts if has_separate_memory else starts.at[0].set(starts[0] | state.restart),
        weights=batch.weights.at[:without].set(0) if without else batch.weights,
    )
    # For a single segment it suffices to save the entries of a long memory that this segment overwrites.
    single = batch.inputs.shape[0] == 1 and accumulate == 1 and not has_separate_memory
    memory = memory if has_separate_memory else state.memory
    saved = None if has_separate_memory else memory
    if single:
        memory, saved = save_state(memory, batch.start_of_document[0], batch.inputs.shape[2])
    segments, rows = batch.inputs.shape[:2]
    if rows % accumulate:
        raise ValueError(f"accumulate: given {accumulate}, allowed: a divisor of the {rows} rows of a batch")
    if not 0 <= without < segments:
        raise ValueError(
            f"segments_without_gradient: given {without}, allowed: from 0 to {segments - 1}, so that one of "
            f"the {segments} segments of an update has a gradient"
        )
    keys = segment_keys(state.key, state.step, segments)
    over_segments = functools.partial(
        loss_over_segments, rematerialize=rematerialize, segments_per_checkpoint=segments_per_checkpoint
    )
    group = _RowGroupObjective(objective, state, keys, accumulate, without, over_segments)
    memories = _split_rows(memory, accumulate, state_axes(memory))
    batches = _split_rows(batch, accumulate, jax.tree.map(lambda leaf: 1, batch))
    trained = (state.params, _make_sinks(objective.loss, state, memories, batches, keys[without:]))
    value, gradients, written, batch_stats, nll, aux = (
        _gradients_by_row_groups if accumulate > 1 else _gradients_of_all_rows
    )(group, trained, memories, batches)
    result = Gradients(
        objective=value,
        params=gradients[0],
        sinks=gradients[1],
        memory=None if has_separate_memory else _join_rows(written, memory),
        saved=saved,
        batch_stats=batch_stats,
        arrays=aux.arrays,
        sums={"nll": nll, **_named_losses(objective, aux), **aux.metrics, **_count_tokens(batch)},
        starts=None if has_separate_memory else jnp.any(batch.start_of_document, axis=0),
        single=single,
    )
    return state, result


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
    sums = _step_sums(gradients.sums, norm, ok)
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


@dataclasses.dataclass(frozen=True)
class _RowGroupObjective:
    """The objective of one row group, as a function of `(params, sinks)` that can be differentiated.

    Attributes:
      objective: Objective to minimize.
      state: Train state before the step.
      keys: Random keys of the segments, `[segments]`.
      accumulate: Number of row groups.
      without_gradient: Number of first segments without gradient.
      over_segments: `loss_over_segments` with its options bound.
    """

    objective: Objective
    state: TrainState
    keys: Array
    accumulate: int
    without_gradient: int
    over_segments: Callable[..., tuple[Any, Any]]

    def forward(
        self, trained: Any, memory: Any, batch_stats: Any, group: Batch, index: Any
    ) -> tuple[Any, Any, WeightedSum, Aux]:
        """Runs all segments of row group `index` and returns `(memory, batch_stats, nll, aux)`."""
        params, sinks = trained

        def step(params: Any, carry: tuple[Any, Any], segment: Any) -> Any:
            batch, key, sink = segment
            collections = {"batch_stats": carry[1], "sinks": sink}
            variables = {**_loss_variables(self.state), "params": params}
            variables.update({name: value for name, value in collections.items() if value})
            key = jax.random.fold_in(key, index) if self.accumulate > 1 else key
            memory, written, nll, aux = self.objective.loss(variables, carry[0], batch, key)
            return (memory, written or carry[1]), (nll, aux)

        carry, segments, first = (memory, batch_stats), (group, self.keys), self.without_gradient
        if first:
            stop, before = jax.lax.stop_gradient, jax.tree.map(lambda leaf: leaf[:first], segments)
            carry = stop(loss_over_segments(step, stop(params), carry, (*before, {}))[0])
        after = jax.tree.map(lambda leaf: leaf[first:], segments)
        carry, (nll, aux) = self.over_segments(step, params, carry, (*after, sinks))
        return *carry, nll, aux

    def __call__(self, trained: Any, divisors: Any, *arguments: Any) -> tuple[Array, Any]:
        """Returns the share of the group in the objective, and `(memory, batch_stats, nll, aux)`.

        `divisors` are the sums over all groups that losses are divided by. None takes the sums of this group.
        """
        memory, batch_stats, nll, aux = self.forward(trained, *arguments)
        divisors = self.objective.divisors(nll, aux) if divisors is None else divisors
        return self.objective.value(nll, aux, divisors), (memory, batch_stats, nll, aux)


def _gradients_of_all_rows(group: _RowGroupObjective, trained: Any, memories: Any, batches: Batch) -> tuple[Any, ...]:
    """Computes the gradients of all rows at once.

    `memories` and `batches` have one row group at axis 0.

    Returns:
      `(objective, gradients, memories, batch_stats, nll, aux)`.
    """
    (value, (memory, batch_stats, nll, aux)), gradients = jax.value_and_grad(group, has_aux=True)(
        trained, None, _take_first(memories), group.state.batch_stats, _take_first(batches), 0
    )
    aux = Aux(aux.losses, aux.metrics, _add_leading_axis(aux.arrays))
    return value, (gradients[0], _add_leading_axis(gradients[1])), _add_leading_axis(memory), batch_stats, nll, aux


def _gradients_by_row_groups(group: _RowGroupObjective, trained: Any, memories: Any, batches: Batch) -> tuple[Any, ...]:
    """Computes the gradients by a scan over row groups, with the result of `_gradients_of_all_rows`.

    `memories` and `batches` have the row groups at axis 0.
    """
    state = group.state
    groups = (memories, batches, jnp.arange(group.accumulate))

    # The divisors come first, from a forward pass of which the compiler keeps nothing else.
    def count(_: None, indexed_group: Any) -> tuple[None, Any]:
        memory, batch, index = indexed_group
        _, _, nll, aux = group.forward(trained, memory, state.batch_stats, batch, index)
        return None, group.objective.divisors(nll, aux)

    counted = jax.lax.scan(count, None, groups)[1]
    divisors = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), counted)

    def body(carry: Any, indexed_group: Any) -> Any:
        gradients, batch_stats = carry
        memory, batch, index = indexed_group
        (total, (memory, batch_stats, nll, aux)), (more, sinks) = jax.value_and_grad(group, has_aux=True)(
            trained, divisors, memory, batch_stats, batch, index
        )
        return (jax.tree.map(jnp.add, gradients, more), batch_stats), (total, sinks, memory, nll, aux)

    start = (jax.tree.map(jnp.zeros_like, state.params), state.batch_stats)
    (gradients, batch_stats), (totals, sinks, memory, nll, aux) = jax.lax.scan(body, start, groups)
    nll, aux = add_segments((nll, aux))
    return jnp.sum(totals), (gradients, sinks), memory, batch_stats, nll, aux


def _named_losses(objective: Objective, aux: Aux) -> dict[str, WeightedSum]:
    """Returns the auxiliary losses, without coefficients, under the names of their totals."""
    return {f"losses/{name}": value for name, value in objective.losses(aux).items()}


def _count_tokens(batch: Batch) -> dict[str, WeightedSum]:
    """Counts the tokens of a batch and, if the batch carries them, the bytes of its scored targets."""
    weight, counts = jnp.ones((), jnp.float32), {}
    if "target_bytes" in batch.extras:
        scored = jnp.sum(batch.extras["target_bytes"] * (batch.weights > 0))
        counts["bytes"] = WeightedSum(scored.astype(jnp.float32), weight)
    return {**counts, "tokens": WeightedSum(jnp.sum(batch.mask), weight)}


def _step_sums(sums: dict[str, WeightedSum], norm: Array, ok: Bool[Array, ""]) -> dict[str, WeightedSum]:
    """Returns the sums that a step adds to the totals. A step that was not finite adds 0 to all except `skipped`."""
    weight = jnp.ones((), jnp.float32)
    sums = {**sums, "gradient_norm": WeightedSum(norm, weight)}
    sums = jax.tree.map(lambda leaf: jnp.where(ok, leaf, 0).astype(jnp.float32), sums)
    return {**sums, "skipped": WeightedSum(jnp.where(ok, 0.0, 1.0).astype(jnp.float32), weight)}


def _make_sinks(loss: SegmentLoss, state: TrainState, memories: Any, batches: Batch, keys: Array) -> Any:
    """Makes zeros that collect the gradients of the looked-up table rows of one row group.

    A model without value tables gets an empty dictionary.
    """
    if not state.tables.values:
        return {}
    aux = jax.eval_shape(
        lambda m, b: loss(_loss_variables(state), m, b, keys[0])[3],
        _take_first(memories),
        _take_first(_take_first(batches)),
    )
    return make_gradient_sinks(state.tables.values, aux.arrays, keys.shape[0])


def _split_rows(tree: Any, groups: int, axes: Any) -> Any:
    """Splits the rows of every leaf into groups, at a new axis 0.

    Group g has the rows g, g + groups, and so on. `axes` is a tree with the axis of the rows of each leaf.
    """

    # Every group has rows of every device, so that rows on several devices stay where they are.
    def split(leaf: Array, axis: int) -> Array:
        shape = (*leaf.shape[:axis], leaf.shape[axis] // groups, groups, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(jnp.reshape(leaf, shape), axis + 1, 0)

    return _add_leading_axis(tree) if groups == 1 else jax.tree.map(split, tree, axes)


def _join_rows(memories: Any, like: Any) -> Any:
    """Joins the rows of all groups, the inverse of `_split_rows`. `like` is the tree before the split."""

    def join(leaf: Array, axis: int, old: Any) -> Array:
        return jnp.moveaxis(leaf, 0, axis + 1).reshape(old.shape)

    return jax.tree.map(join, memories, state_axes(like), like)


def _take_first(tree: Any) -> Any:
    """Returns the first entry along axis 0 of every leaf."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _add_leading_axis(tree: Any) -> Any:
    """Adds an axis of size 1 in front of every leaf."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
