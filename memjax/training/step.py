"""One update: the train state, its objective and the jitted step."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from memjax.memory.contract import restore_state, save_state, select_state, state_axes
from memjax.training.segments import Rematerialize, add_segments, loss_over_segments, segment_keys
from memjax.training.tables import TableOptimizer, Tables, make_sinks, touched_rows
from memjax.typing import Aux, Batch, Leaf, Sum

RANDOM_STREAMS = ("dropout", "memory", "features")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that training changes, and what it needs to go on.

    Attributes:
      step: int32 scalar, updates whose loss and gradient were finite.
      params: the Linen collection `params`, float32.
      tables: row-sparse value tables with their moments; they never have a dense gradient.
      opt_state: of the optax optimiser, float32.
      batch_stats: running statistics; only training writes them.
      constants: random features and the like; never written.
      memory: the memory of every row, `[batch, ...]`.
      key: of dropout and sampling; each step folds in its number.
      totals: name -> `Sum` since they were last pulled: `nll`, `tokens` (read), `gradient_norm`, `skipped`, `bytes`
        where the batches carry them, and the losses and metrics of the model.
      restart: bool `[batch]`, rows whose document began in a step that was skipped: they start anew in the next.
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


SegmentLoss = Callable[[Mapping[str, Any], Any, Batch, Array], tuple[Any, Any, Sum, Aux]]
"""`loss(variables, memory, segment, key) -> (memory, batch_stats, negative log likelihood, aux)`, what a model has to
say about one segment. `variables` has the collections params, tables, batch_stats, constants and sinks."""


def language_model_loss(model: Any) -> SegmentLoss:
    """The negative log likelihood of a language model in training mode."""

    def loss(variables: Mapping[str, Any], memory: Any, segment: Batch, key: Array) -> tuple[Any, Any, Sum, Aux]:
        extras = model.choose_extras(segment.extras)
        (hidden, memory, aux), written = model.apply(
            variables,
            segment.inputs,
            memory,
            start_of_document=segment.start_of_document,
            mask=segment.mask,
            deterministic=False,
            rngs={name: jax.random.fold_in(key, i) for i, name in enumerate(RANDOM_STREAMS)},
            mutable=["batch_stats"],
            **({"extras": extras} if extras else {}),
        )
        nll = model.apply(variables, hidden, segment.targets, segment.weights, method="nll")
        return memory, written.get("batch_stats", {}), nll, aux

    return loss


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
    loss: SegmentLoss,
    optimizer: optax.GradientTransformation,
    variables: Mapping[str, Any],
    memory: Any,
    batch: Batch,
    key: Array,
    *,
    table_optimizer: TableOptimizer | None = None,
) -> TrainState:
    """The state before the first step.

    Args:
      loss: the same as in `make_train_step`.
      optimizer: of the dense parameters.
      variables: from `init_variables`, or loaded.
      memory: `model.init_state(rows)`.
      batch: an example (or its shapes), `[segments, batch, length]`: it decides which sums there are.
      key: of dropout and sampling.
      table_optimizer: of the collection `tables`; needed where the model has one.

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
    )

    def sums(state: TrainState, batch: Batch) -> dict[str, Sum]:
        segment = jax.tree.map(lambda leaf: leaf[0], batch)
        _, _, nll, aux = loss(model_variables(state), state.memory, segment, state.key)
        return _sums(nll, aux, segment, jnp.zeros(()), jnp.ones((), bool))

    names = jax.eval_shape(sums, state, batch)
    return dataclasses.replace(state, totals={name: Sum.zero() for name in names})


def model_variables(state: TrainState) -> dict[str, Any]:
    """The variables to apply the model with: params, and the other collections where they are not empty."""
    others = {"tables": state.tables.values, "batch_stats": state.batch_stats, "constants": state.constants}
    return {"params": state.params, **{name: value for name, value in others.items() if value}}


def make_train_step(
    loss: SegmentLoss,
    optimizer: optax.GradientTransformation,
    *,
    coefficients: Mapping[str, float] | None = None,
    accumulate: int = 1,
    rematerialize: Rematerialize = "none",
    segments_per_checkpoint: int = 0,
    segments_without_gradient: int = 0,
    table_optimizer: TableOptimizer | None = None,
    jit: bool = True,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Sum]]]:
    """The update `step(state, batch) -> (state, metrics)`, jitted and donating the state.

    The objective is the sum of the negative log likelihoods of all rows and segments divided once by the number of
    scored targets, plus each auxiliary loss, so divided too, times its coefficient. Where it or the gradient norm is
    not finite, every field of the state keeps its value; only `totals["skipped"]` grows, and rows that began a document
    are noted in `restart`.

    Args:
      loss: of one segment.
      optimizer: of the dense parameters; tables are outside its decay and its norm.
      coefficients: name -> coefficient of each of `Aux.losses`, without `layer_<index>/`; 0 logs it only.
      accumulate: row groups computed one after the other; the result is that of all rows at once.
      rematerialize: as in `loss_over_segments`.
      segments_per_checkpoint: as in `loss_over_segments`.
      segments_without_gradient: first segments of every update that only write the memory, at the price of a forward
        pass: none of their losses counts, and no gradient reaches the parameters through what they wrote.
      table_optimizer: as in `init_train_state`.
      jit: False returns the plain function.

    Raises:
      ValueError: when traced: rows that `accumulate` does not divide, a loss without coefficient, no segment left that
        has a gradient.
    """
    coefficients = dict(coefficients or {})
    over_segments = functools.partial(
        loss_over_segments, rematerialize=rematerialize, segments_per_checkpoint=segments_per_checkpoint
    )

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Sum]]:
        starts = batch.start_of_document
        batch = dataclasses.replace(
            batch,
            start_of_document=starts.at[0].set(starts[0] | state.restart),
            weights=batch.weights.at[:segments_without_gradient].set(0) if segments_without_gradient else batch.weights,
        )
        # After one segment a long memory need only take back what that segment has written.
        one = batch.inputs.shape[0] == 1 and accumulate == 1
        memory, saved = state.memory, state.memory
        if one:
            memory, saved = save_state(memory, batch.start_of_document[0], batch.inputs.shape[2])
        state_before = dataclasses.replace(state, memory=memory)
        found = _gradients(
            loss, state_before, batch, coefficients, accumulate, segments_without_gradient, over_segments
        )
        norm = optax.tree.norm(found.gradients)
        ok = jnp.isfinite(found.objective) & jnp.isfinite(norm)
        for leaf in jax.tree.leaves(found.sink_gradients):
            ok &= jnp.all(jnp.isfinite(leaf))
        updates, opt_state = optimizer.update(found.gradients, state.opt_state, state.params)
        tables = state.tables
        if table_optimizer is not None and tables.values:
            touched = touched_rows(tables.values, found.sink_gradients, found.aux.arrays)
            tables = Tables(*table_optimizer.update(*_parts(tables), touched, step=state.step, ok=ok))
        select = lambda new, old: jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)  # noqa: E731
        sums = _sums(found.nll, found.aux, batch, norm, ok)
        params, later = _ok_after(ok, select(optax.apply_updates(state.params, updates), state.params))
        new = TrainState(
            step=select(state.step + 1, state.step),
            params=params,
            tables=tables,
            opt_state=select_state(later, opt_state, state.opt_state),
            batch_stats=select(found.batch_stats, state.batch_stats),
            constants=state.constants,
            memory=restore_state(ok, found.memory, saved) if one else select_state(ok, found.memory, saved),
            key=state.key,
            totals={name: state.totals[name] + sums[name] for name in state.totals},
            restart=jnp.where(ok, False, jnp.any(batch.start_of_document, axis=0)),
        )
        return new, sums

    return jax.jit(train_step, donate_argnums=0) if jit else train_step


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
class _Found:
    """What the forward and backward pass of a step give; arrays of `aux` have `[groups, segments]` in front."""

    objective: Array
    gradients: Any
    sink_gradients: Any
    memory: Any
    batch_stats: Any
    nll: Sum
    aux: Aux


@dataclasses.dataclass(frozen=True)
class _Objective:
    """The objective of one row group as a function of (params, sinks)."""

    loss: SegmentLoss
    state: TrainState
    keys: Array
    coefficients: Mapping[str, float]
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
            variables = {**model_variables(self.state), "params": params}
            variables.update({name: value for name, value in collections.items() if value})
            key = jax.random.fold_in(key, index) if self.accumulate > 1 else key
            memory, written, nll, aux = self.loss(variables, carry[0], batch, key)
            return (memory, written or carry[1]), (nll, aux)

        carry, (before, after) = (memory, batch_stats), _split_segments((group, self.keys), self.without_gradient)
        if self.without_gradient:
            stop = jax.lax.stop_gradient
            carry = stop(loss_over_segments(step, stop(params), carry, (*before, {}))[0])
        carry, (nll, aux) = self.over_segments(step, params, carry, (*after, sinks))
        return *carry, nll, aux

    def __call__(self, trained: Any, divisors: Any, *arguments: Any) -> tuple[Array, Any]:
        """The group's share of the objective, divided by its own sums where `divisors` is None."""
        memory, batch_stats, nll, aux = self.forward(trained, *arguments)
        if divisors is None:
            divisors = _at_least_one(_weights(nll, aux, self.coefficients))
        objective = nll.total / divisors["nll"]
        for name, value in _losses(aux).items():
            if self.coefficients[name]:
                objective += self.coefficients[name] * value.total / divisors[f"losses/{name}"]
        return objective, (memory, batch_stats, nll, aux)


def _gradients(
    loss: SegmentLoss,
    state: TrainState,
    batch: Batch,
    coefficients: Mapping[str, float],
    accumulate: int,
    without_gradient: int,
    over_segments: Callable[..., tuple[Any, Any]],
) -> _Found:
    """The objective with its gradients, over `accumulate` row groups one after the other."""
    segments, rows = batch.inputs.shape[:2]
    if rows % accumulate:
        raise ValueError(f"accumulate: given {accumulate}, allowed: a divisor of the {rows} rows of a batch")
    if not 0 <= without_gradient < segments:
        raise ValueError(
            f"segments_without_gradient: given {without_gradient}, allowed: from 0 to {segments - 1}, so that one of "
            f"the {segments} segments of an update has a gradient"
        )
    keys = segment_keys(state.key, state.step, segments)
    objective = _Objective(loss, state, keys, coefficients, accumulate, without_gradient, over_segments)
    memories, batches = _split_rows(state.memory, accumulate), _split_batch(batch, accumulate)
    trained = (state.params, _sinks(loss, state, memories, batches, keys[without_gradient:]))
    if accumulate > 1:
        return _accumulated(objective, trained, memories, batches)
    value, gradients = jax.value_and_grad(objective, has_aux=True)(
        trained, None, _first(memories), state.batch_stats, _first(batches), 0
    )
    total, (memory, batch_stats, nll, aux) = value
    return _Found(
        objective=total,
        gradients=gradients[0],
        sink_gradients=_lead(gradients[1]),
        memory=_join_rows(_lead(memory), state.memory),
        batch_stats=batch_stats,
        nll=nll,
        aux=Aux(aux.losses, aux.metrics, _lead(aux.arrays)),
    )


def _accumulated(objective: _Objective, trained: Any, memories: Any, batches: Batch) -> _Found:
    """A scan over row groups; `memories` and `batches` have the groups at axis 0."""
    state = objective.state
    groups = (memories, batches, jnp.arange(objective.accumulate))

    # The divisors first, from a forward pass of which the compiler keeps nothing else.
    def count(_: None, group: Any) -> tuple[None, Any]:
        memory, batch, index = group
        _, _, nll, aux = objective.forward(trained, memory, state.batch_stats, batch, index)
        return None, _weights(nll, aux, objective.coefficients)

    counted = jax.lax.scan(count, None, groups)[1]
    divisors = _at_least_one(jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), counted))

    def body(carry: Any, group: Any) -> Any:
        gradients, batch_stats = carry
        memory, batch, index = group
        (total, (memory, batch_stats, nll, aux)), (more, sink_gradients) = jax.value_and_grad(objective, has_aux=True)(
            trained, divisors, memory, batch_stats, batch, index
        )
        return (jax.tree.map(jnp.add, gradients, more), batch_stats), (total, sink_gradients, memory, nll, aux)

    start = (jax.tree.map(jnp.zeros_like, state.params), state.batch_stats)
    (gradients, batch_stats), (totals, sink_gradients, memory, nll, aux) = jax.lax.scan(body, start, groups)
    nll, aux = add_segments((nll, aux))
    memory = _join_rows(memory, state.memory)
    return _Found(jnp.sum(totals), gradients, sink_gradients, memory, batch_stats, nll, aux)


def _weights(nll: Sum, aux: Aux, coefficients: Mapping[str, float]) -> dict[str, Array]:
    """What the sums of the objective were summed over, without gradient."""
    losses = _losses(aux)
    if set(losses) != set(coefficients):
        raise ValueError(
            f"coefficients: given {sorted(coefficients)}, allowed: one for each loss of the model, {sorted(losses)}; "
            "0 logs a loss without training on it"
        )
    weights = {"nll": nll.weight, **{f"losses/{name}": value.weight for name, value in losses.items()}}
    return jax.lax.stop_gradient(weights)


def _at_least_one(weights: dict[str, Array]) -> dict[str, Array]:
    """The divisors of the objective: 1 where nothing was summed."""
    return {name: jnp.where(weight > 0, weight, 1) for name, weight in weights.items()}


def _losses(aux: Aux) -> dict[str, Sum]:
    """The auxiliary losses, those of all layers (`layer_<index>/name`) added under one name."""
    losses: dict[str, Sum] = {}
    for name, value in aux.losses.items():
        name = re.sub(r"^layer_\d+/", "", name)
        losses[name] = losses[name] + value if name in losses else value
    return losses


def _sums(nll: Sum, aux: Aux, batch: Batch, norm: Array, ok: Bool[Array, ""]) -> dict[str, Sum]:
    """What a step adds to the totals: nothing but `skipped` where it was not finite."""
    one = jnp.ones((), jnp.float32)
    sums = {"nll": nll, **{f"losses/{name}": value for name, value in _losses(aux).items()}, **aux.metrics}
    if "target_bytes" in batch.extras:
        scored = jnp.sum(batch.extras["target_bytes"] * (batch.weights > 0))
        sums["bytes"] = Sum(scored.astype(jnp.float32), one)
    sums["tokens"] = Sum(jnp.sum(batch.mask), one)
    sums["gradient_norm"] = Sum(norm, one)
    sums = jax.tree.map(lambda leaf: jnp.where(ok, leaf, 0).astype(jnp.float32), sums)
    return {**sums, "skipped": Sum(jnp.where(ok, 0.0, 1.0).astype(jnp.float32), one)}


def _sinks(loss: SegmentLoss, state: TrainState, memories: Any, batches: Batch, keys: Array) -> Any:
    """Zeros for the gradients of the looked-up rows of one row group; {} for a model without tables."""
    if not state.tables.values:
        return {}
    aux = jax.eval_shape(
        lambda m, b: loss(model_variables(state), m, b, keys[0])[3],
        jax.tree.map(lambda leaf: leaf[0], memories),
        jax.tree.map(lambda leaf: leaf[0, 0], batches),
    )
    return make_sinks(state.tables.values, aux.arrays, keys.shape[0])


def _split_segments(segments: Any, count: int) -> tuple[Any, Any]:
    """The first `count` segments, and those after them."""
    return jax.tree.map(lambda leaf: leaf[:count], segments), jax.tree.map(lambda leaf: leaf[count:], segments)


def _split_rows(memory: Any, groups: int) -> Any:
    """Every leaf as `[groups, ...]`; group g has rows g, g + groups, ... so that rows on several devices stay there."""

    def split(leaf: Array, axis: int) -> Array:
        shape = (*leaf.shape[:axis], leaf.shape[axis] // groups, groups, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(leaf.reshape(shape), axis + 1, 0)

    if groups == 1:
        return jax.tree.map(lambda leaf: leaf[None], memory)
    return jax.tree.map(split, memory, state_axes(memory))


def _join_rows(memories: Any, like: Any) -> Any:
    """The inverse of `_split_rows`."""

    def join(leaf: Array, axis: int, old: Any) -> Array:
        return jnp.moveaxis(leaf, 0, axis + 1).reshape(old.shape)

    return jax.tree.map(join, memories, state_axes(like), like)


def _split_batch(batch: Batch, groups: int) -> Batch:
    """Every leaf `[segments, batch, ...]` as `[groups, segments, batch / groups, ...]`, rows as in `_split_rows`."""

    def split(leaf: Array) -> Array:
        segments, rows = leaf.shape[:2]
        return jnp.moveaxis(jnp.reshape(leaf, (segments, rows // groups, groups, *leaf.shape[2:])), 2, 0)

    return jax.tree.map(split, batch)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _lead(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)


def _parts(tables: Tables) -> tuple[Any, Any]:
    return tables.values, tables.moments
