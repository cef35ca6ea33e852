"""One update: the train state, the gradients of an objective, and what they change.

`make_train_step` composes the two halves, `compute_gradients` and `apply_gradients`. A learner with gradients of its
own calls them itself. The order is always: loss, gradients, links (see `memjax.training.optimizers.make_optimizer`),
clipping and update rule, `after_update`, the finite check of the objective, the gradients and what would be written,
counters.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from memjax.memory.contract import restore_state, save_state, select_state, state_axes
from memjax.training.objective import RANDOM_STREAMS, Objective
from memjax.training.optimizers import ReferenceGradients
from memjax.training.segments import Rematerialize, add_segments, loss_over_segments, segment_keys
from memjax.training.tables import TableOptimizer, Tables, make_gradient_sinks, touched_rows
from memjax.typing import Aux, Batch, Leaf, SegmentLoss, Sum, tree_dataclass

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
    """Everything that training changes, and what it needs to go on.

    Attributes:
      step: int32 scalar, updates that were finite in all they read and wrote.
      params: the Linen collection `params`, float32.
      tables: row-sparse value tables with their moments; they never have a dense gradient.
      opt_state: of the optax optimiser, float32.
      batch_stats: running statistics; only training writes them.
      constants: random features and the like; no update writes them, a learner may (classes that were seen).
      memory: the memory of every row, `[batch, ...]`.
      key: of dropout and sampling; each step folds in its number.
      totals: name -> `Sum` since they were last pulled: `nll`, `tokens` (read), `gradient_norm`, `skipped`, `bytes`
        where the batches carry them, and the losses and metrics of the model.
      restart: bool `[batch]`, rows whose document began in a step that was skipped: they start anew in the next.
      method: what a learner keeps (anchors, importances, a teacher, episodes): any tree of arrays.
    """

    step: Leaf
    params: Any
    tables: Tables
    opt_state: Any
    batch_stats: Any
    constants: Any
    memory: Any
    key: Leaf
    totals: dict[str, Sum]
    restart: Leaf
    method: Any = dataclasses.field(default_factory=dict)


def init_variables(model: Any, key: Array, segment_length: int) -> dict[str, Any]:
    """The variables of a language model: collections params, and tables, batch_stats and constants where it has them.

    Args:
      model: a Linen language model.
      key: of the initial values.
      segment_length: tokens; values do not depend on it unless the model does.
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
    """The state before the first step.

    Args:
      objective: the same as in `make_train_step`.
      optimizer: of the dense parameters.
      variables: from `init_variables`, or loaded.
      memory: `model.init_state(rows)`.
      batch: an example (or its shapes), `[segments, batch, length]`: it decides which sums there are.
      key: of dropout and sampling.
      table_optimizer: of the collection `tables`; needed where the model has one.
      method: what a learner keeps; None = nothing.

    Raises:
      ValueError: tables without an optimiser.
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

    def sums(state: TrainState, batch: Batch) -> dict[str, Sum]:
        segment = _first(batch)
        _, _, nll, aux = objective.loss(_loss_variables(state), state.memory, segment, state.key)
        all_of = {"nll": nll, **_named_losses(objective, aux), **aux.metrics, **_counts(segment)}
        return _sums(all_of, jnp.zeros(()), jnp.ones((), bool))

    return dataclasses.replace(state, totals={name: Sum.zero() for name in jax.eval_shape(sums, state, batch)})


def model_variables(state: TrainState) -> dict[str, Any]:
    """The variables to apply the model with: params, and the other collections where they are not empty."""
    others = {"tables": state.tables.values, "batch_stats": state.batch_stats, "constants": state.constants}
    return {"params": state.params, **{name: value for name, value in others.items() if value}}


def _loss_variables(state: TrainState) -> dict[str, Any]:
    """The variables of a loss: those of the model, and what a learner keeps."""
    method = {"method": state.method} if jax.tree.leaves(state.method) else {}
    return {**model_variables(state), **method}


def finish_window(state: TrainState, optimizer: optax.GradientTransformation) -> TrainState:
    """Applies the gradients of a window of `apply_every` steps that is not full, as the mean of those that are in it.

    Args:
      state: the state after the last step of a stage.
      optimizer: the optimiser of the dense parameters, from `optimizers.make_optimizer` with `apply_every` above 1.

    Returns:
      The state with an empty window; what is not finite changes nothing else.
    """
    nothing = jax.tree.map(jnp.zeros_like, state.params)
    update: Any = optimizer.update
    updates, opt_state = update(nothing, state.opt_state, state.params, finish=True)
    params = optax.apply_updates(state.params, updates)
    ok = _stays_finite((params, opt_state), (state.params, state.opt_state))
    params, opt_state = select_state(ok, (params, opt_state), (state.params, state.opt_state))
    return dataclasses.replace(state, params=params, opt_state=opt_state)


AfterUpdate = Callable[[Any, Any, Any, Any], Any]
"""`after_update(method, params before, params after, gradients) -> method`, for what is gathered along the way"""


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    table_optimizer: TableOptimizer | None = None,
    after_update: AfterUpdate | None = None,
    jit: bool = True,
    **segments: Any,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Sum]]]:
    """The update `step(state, batch) -> (state, metrics)`, jitted and donating the state.

    Where the objective, the gradient norm or what the update would write is not finite, every field of the state keeps
    its value; only `totals["skipped"]` grows, and rows that began a document are noted in `restart`. A row whose memory
    is not finite puts every step off until its document ends; one that never ends, never trains
    (`Training.max_skipped`).

    Args:
      objective: what is made small.
      optimizer: of the dense parameters; tables are outside its decay and its norm.
      table_optimizer: as in `init_train_state`.
      after_update: as in `apply_gradients`.
      jit: False returns the plain function.
      **segments: `accumulate`, `rematerialize`, `segments_per_checkpoint`, `segments_without_gradient` of
        `compute_gradients`.

    Raises:
      ValueError: when traced: rows that `accumulate` does not divide, a loss without coefficient, no segment left that
        has a gradient.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Sum]]:
        state, found = compute_gradients(objective, state, batch, **segments)
        return apply_gradients(
            state,
            found,
            optimizer,
            table_optimizer=table_optimizer,
            after_update=after_update,
        )

    return jax.jit(train_step, donate_argnums=0) if jit else train_step


@tree_dataclass
class Gradients:
    """What the forward and backward pass of a step give.

    Attributes:
      objective: scalar.
      params: the gradient of the parameters, which `apply_gradients` takes; any other tree of their shapes will do.
      sinks: gradients of the looked-up rows of tables, `[groups, segments, ...]`.
      memory: the memory after the batch; None where the batch had a memory of its own.
      saved: what takes the memory back.
      batch_stats: after the batch.
      arrays: `Aux.arrays` with `[groups, segments]` in front.
      sums: name -> `Sum` of losses, metrics and counts.
      starts: bool `[batch]`, rows that began a document; None where the batch had a memory of its own.
      single: one segment in one group, whose memory is taken back by what was saved of it.
    """

    objective: Any
    params: Any
    sinks: Any
    memory: Any
    saved: Any
    batch_stats: Any
    arrays: dict[str, Any]
    sums: dict[str, Sum]
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
    """The first half of an update: the objective and its gradients.

    Args:
      objective: what is made small.
      state: as it is.
      batch: `[segments, batch, ...]`, the next one of the rows that the state remembers.
      memory: of the batch's rows, where they are others than those of the state (`model.init_state(rows)`): the memory
        of the state and what it notes of its rows are then neither read nor written.
      accumulate: row groups computed one after the other; the result is that of all rows at once.
      rematerialize: as in `loss_over_segments`.
      segments_per_checkpoint: as in `loss_over_segments`.
      segments_without_gradient: first segments of every update that only write the memory, at the price of a forward
        pass: none of their losses counts, and no gradient reaches the parameters through what they wrote.

    Returns:
      The state to hand to `apply_gradients` (equal to the one given), and what was found.
    """
    without, own = segments_without_gradient, memory is not None
    starts = batch.start_of_document
    batch = dataclasses.replace(
        batch,
        start_of_document=starts if own else starts.at[0].set(starts[0] | state.restart),
        weights=batch.weights.at[:without].set(0) if without else batch.weights,
    )
    # After one segment a long memory need only take back what that segment has written.
    single = batch.inputs.shape[0] == 1 and accumulate == 1 and not own
    memory = memory if own else state.memory
    saved = None if own else memory
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
    group = _Group(objective, state, keys, accumulate, without, over_segments)
    memories = _split_rows(memory, accumulate, state_axes(memory))
    batches = _split_rows(batch, accumulate, jax.tree.map(lambda leaf: 1, batch))
    trained = (state.params, _sinks(objective.loss, state, memories, batches, keys[without:]))
    value, gradients, written, batch_stats, nll, aux = (_accumulated if accumulate > 1 else _at_once)(
        group, trained, memories, batches
    )
    found = Gradients(
        objective=value,
        params=gradients[0],
        sinks=gradients[1],
        memory=None if own else _join_rows(written, memory),
        saved=saved,
        batch_stats=batch_stats,
        arrays=aux.arrays,
        sums={"nll": nll, **_named_losses(objective, aux), **aux.metrics, **_counts(batch)},
        starts=None if own else jnp.any(batch.start_of_document, axis=0),
        single=single,
    )
    return state, found


def apply_gradients(
    state: TrainState,
    found: Gradients,
    optimizer: optax.GradientTransformation,
    *,
    table_optimizer: TableOptimizer | None = None,
    reference: ReferenceGradients | None = None,
    after_update: AfterUpdate | None = None,
) -> tuple[TrainState, dict[str, Sum]]:
    """The second half of an update: what the gradients change, and the sums of the step.

    Args:
      state: from `compute_gradients`.
      found: from `compute_gradients`; `found.params` may have been replaced.
      optimizer: of the dense parameters, with its links.
      table_optimizer: of the collection `tables`.
      reference: for the links of the optimiser; other parts of it do not see it.
      after_update: what `TrainState.method` becomes.
    """
    norm = optax.tree.norm(found.params)
    referring = {} if reference is None else {"reference": reference}
    updates, opt_state = optax.with_extra_args_support(optimizer).update(
        found.params, state.opt_state, state.params, **referring
    )
    params, method = optax.apply_updates(state.params, updates), state.method
    if after_update is not None:
        method = after_update(method, state.params, params, found.params)
    ok = jnp.isfinite(found.objective) & jnp.isfinite(norm)
    for leaf in jax.tree.leaves(found.sinks):
        ok &= jnp.all(jnp.isfinite(leaf))
    # A rule can make what is not finite of a finite gradient: of moments that are not, of 0 / 0, of a rate of 1e30.
    ok &= _stays_finite(
        (params, opt_state, found.batch_stats, method),
        (state.params, state.opt_state, state.batch_stats, state.method),
    )
    tables = state.tables
    if table_optimizer is not None and tables.values:
        touched = touched_rows(tables.values, found.sinks, found.arrays)
        tables = Tables(*table_optimizer.update(tables.values, tables.moments, touched, step=state.step, ok=ok))
    select = lambda new, old: jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)
    sums = _sums(found.sums, norm, ok)
    params, later = _ok_after(ok, select(params, state.params))
    memory, restart = state.memory, state.restart
    if found.memory is not None:
        restore = restore_state if found.single else select_state
        memory, restart = restore(ok, found.memory, found.saved), jnp.where(ok, False, found.starts)
    new = dataclasses.replace(
        state,
        step=select(state.step + 1, state.step),
        params=params,
        tables=tables,
        opt_state=select_state(later, opt_state, state.opt_state),
        batch_stats=select(found.batch_stats, state.batch_stats),
        memory=memory,
        totals={name: total + sums[name] if name in sums else total for name, total in state.totals.items()},
        restart=restart,
        method=select_state(later, method, state.method),
    )
    return new, sums


def _stays_finite(new: Any, old: Any) -> Array:
    """Whether no entry that was finite in the old arrays is another in the new ones; ids and counts do not matter."""
    ok = jnp.ones((), bool)
    for after, before in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        if after is not before and jnp.issubdtype(after.dtype, jnp.floating):
            ok &= jnp.all(jnp.isfinite(after) | ~jnp.isfinite(before))
    return ok


def _ok_after(ok: Array, params: Any) -> tuple[Any, Array]:
    """The parameters and `ok`, in such a way that XLA computes `ok` after all of the parameters.

    New parameters are computed from the old moments once more, and not from the new ones. Unless the moments are
    provably overwritten later, XLA copies all of them first: a tenth of a step on a CPU.
    """
    if not jax.sharding.get_abstract_mesh().empty:  # one entry of a split array would have to travel
        return params, ok
    params = jax.lax.optimization_barrier(params)
    entries = [leaf[(0,) * leaf.ndim].astype(jnp.float32) for leaf in jax.tree.leaves(params)]
    bits = jax.lax.population_count(jax.lax.bitcast_convert_type(jnp.stack(entries), jnp.int32))
    return params, ok & (jnp.sum(bits) >= 0)  # always true; the compiler does not know


@dataclasses.dataclass(frozen=True)
class _Group:
    """The objective of one row group as a function of (params, sinks)."""

    objective: Objective
    state: TrainState
    keys: Array
    accumulate: int
    without_gradient: int
    over_segments: Callable[..., tuple[Any, Any]]

    def forward(
        self, trained: Any, memory: Any, batch_stats: Any, group: Batch, index: Any
    ) -> tuple[Any, Any, Sum, Aux]:
        """(memory, batch_stats, nll, aux) after all segments of row group `index`."""
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
        """The group's share of the objective, divided by its own sums where `divisors` is None."""
        memory, batch_stats, nll, aux = self.forward(trained, *arguments)
        divisors = self.objective.divisors(nll, aux) if divisors is None else divisors
        return self.objective.value(nll, aux, divisors), (memory, batch_stats, nll, aux)


def _at_once(group: _Group, trained: Any, memories: Any, batches: Batch) -> tuple[Any, ...]:
    """(objective, gradients, memories, batch_stats, nll, aux) of all rows; they have one group in front."""
    (value, (memory, batch_stats, nll, aux)), gradients = jax.value_and_grad(group, has_aux=True)(
        trained, None, _first(memories), group.state.batch_stats, _first(batches), 0
    )
    aux = Aux(aux.losses, aux.metrics, _lead(aux.arrays))
    return value, (gradients[0], _lead(gradients[1])), _lead(memory), batch_stats, nll, aux


def _accumulated(group: _Group, trained: Any, memories: Any, batches: Batch) -> tuple[Any, ...]:
    """The same by a scan over row groups; `memories` and `batches` have the groups at axis 0."""
    state = group.state
    groups = (memories, batches, jnp.arange(group.accumulate))

    # The divisors first, from a forward pass of which the compiler keeps nothing else.
    def count(_: None, one: Any) -> tuple[None, Any]:
        memory, batch, index = one
        _, _, nll, aux = group.forward(trained, memory, state.batch_stats, batch, index)
        return None, group.objective.divisors(nll, aux)

    counted = jax.lax.scan(count, None, groups)[1]
    divisors = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), counted)

    def body(carry: Any, one: Any) -> Any:
        gradients, batch_stats = carry
        memory, batch, index = one
        (total, (memory, batch_stats, nll, aux)), (more, sinks) = jax.value_and_grad(group, has_aux=True)(
            trained, divisors, memory, batch_stats, batch, index
        )
        return (jax.tree.map(jnp.add, gradients, more), batch_stats), (total, sinks, memory, nll, aux)

    start = (jax.tree.map(jnp.zeros_like, state.params), state.batch_stats)
    (gradients, batch_stats), (totals, sinks, memory, nll, aux) = jax.lax.scan(body, start, groups)
    nll, aux = add_segments((nll, aux))
    return jnp.sum(totals), (gradients, sinks), memory, batch_stats, nll, aux


def _named_losses(objective: Objective, aux: Aux) -> dict[str, Sum]:
    return {f"losses/{name}": value for name, value in objective.losses(aux).items()}


def _counts(batch: Batch) -> dict[str, Sum]:
    """What a batch says of itself: tokens read and, where it knows, bytes of its targets."""
    one, counts = jnp.ones((), jnp.float32), {}
    if "target_bytes" in batch.extras:
        scored = jnp.sum(batch.extras["target_bytes"] * (batch.weights > 0))
        counts["bytes"] = Sum(scored.astype(jnp.float32), one)
    return {**counts, "tokens": Sum(jnp.sum(batch.mask), one)}


def _sums(found: dict[str, Sum], norm: Array, ok: Bool[Array, ""]) -> dict[str, Sum]:
    """What a step adds to the totals: nothing but `skipped` where it was not finite."""
    one = jnp.ones((), jnp.float32)
    sums = {**found, "gradient_norm": Sum(norm, one)}
    sums = jax.tree.map(lambda leaf: jnp.where(ok, leaf, 0).astype(jnp.float32), sums)
    return {**sums, "skipped": Sum(jnp.where(ok, 0.0, 1.0).astype(jnp.float32), one)}


def _sinks(loss: SegmentLoss, state: TrainState, memories: Any, batches: Batch, keys: Array) -> Any:
    """Zeros for the gradients of the looked-up rows of one row group; {} for a model without tables."""
    if not state.tables.values:
        return {}
    aux = jax.eval_shape(
        lambda m, b: loss(_loss_variables(state), m, b, keys[0])[3], _first(memories), _first(_first(batches))
    )
    return make_gradient_sinks(state.tables.values, aux.arrays, keys.shape[0])


def _split_rows(tree: Any, groups: int, axes: Any) -> Any:
    """Every leaf as `[groups, ...]`; group g has rows g, g + groups, ... so that rows on several devices stay there.

    `axes` says where a leaf has its rows.
    """

    def split(leaf: Array, axis: int) -> Array:
        shape = (*leaf.shape[:axis], leaf.shape[axis] // groups, groups, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(jnp.reshape(leaf, shape), axis + 1, 0)

    return _lead(tree) if groups == 1 else jax.tree.map(split, tree, axes)


def _join_rows(memories: Any, like: Any) -> Any:
    """The inverse of `_split_rows`."""

    def join(leaf: Array, axis: int, old: Any) -> Array:
        return jnp.moveaxis(leaf, 0, axis + 1).reshape(old.shape)

    return jax.tree.map(join, memories, state_axes(like), like)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _lead(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)
