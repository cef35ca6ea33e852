"""The gradients of an objective over the segments of a batch, of all rows at once or by groups of rows."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.memory.interface import save_state, state_axes
from memjax.training.objective import Objective
from memjax.training.segment_loop import Rematerialize, add_segments, loss_over_segments, segment_keys
from memjax.training.tables import make_gradient_sinks
from memjax.training.train_state import TrainState, count_tokens, loss_variables, named_losses, take_first
from memjax.training.trained_parameters import fill_in, select_trained
from memjax.typing import Aux, Batch, SegmentLoss, WeightedSum, tree_dataclass

__all__ = ["Gradients", "compute_gradients"]


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
    is_frozen: Callable[[str], bool] | None = None,
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
      is_frozen: Function from the path of a parameter to whether no gradient is computed for it. Its gradient is then
        0. None computes those of all parameters, also of those that the optimiser does not change.

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
    sinks = _make_sinks(objective.loss, state, memories, batches, keys[without:])
    trained = (select_trained(state.params, is_frozen), sinks)
    value, gradients, written, batch_stats, nll, aux = (
        _gradients_by_row_groups if accumulate > 1 else _gradients_of_all_rows
    )(group, trained, memories, batches)
    result = Gradients(
        objective=value,
        params=fill_in(gradients[0], jax.tree.map(jnp.zeros_like, state.params)) if is_frozen else gradients[0],
        sinks=gradients[1],
        memory=None if has_separate_memory else _join_rows(written, memory),
        saved=saved,
        batch_stats=batch_stats,
        arrays=aux.arrays,
        sums={"nll": nll, **named_losses(objective, aux), **aux.metrics, **count_tokens(batch)},
        starts=None if has_separate_memory else jnp.any(batch.start_of_document, axis=0),
        single=single,
    )
    return state, result


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
        params, sinks = fill_in(trained[0], self.state.params), trained[1]

        def step(params: Any, carry: tuple[Any, Any], segment: Any) -> Any:
            batch, key, sink = segment
            collections = {"batch_stats": carry[1], "sinks": sink}
            variables = {**loss_variables(self.state), "params": params}
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
        trained, None, take_first(memories), group.state.batch_stats, take_first(batches), 0
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

    start = (jax.tree.map(jnp.zeros_like, trained[0]), state.batch_stats)
    (gradients, batch_stats), (totals, sinks, memory, nll, aux) = jax.lax.scan(body, start, groups)
    nll, aux = add_segments((nll, aux))
    return jnp.sum(totals), (gradients, sinks), memory, batch_stats, nll, aux


def _make_sinks(loss: SegmentLoss, state: TrainState, memories: Any, batches: Batch, keys: Array) -> Any:
    """Makes zeros that collect the gradients of the looked-up table rows of one row group.

    A model without value tables gets an empty dictionary.
    """
    if not state.tables.values:
        return {}
    aux = jax.eval_shape(
        lambda m, b: loss(loss_variables(state), m, b, keys[0])[3],
        take_first(memories),
        take_first(take_first(batches)),
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


def _add_leading_axis(tree: Any) -> Any:
    """Adds an axis of size 1 in front of every leaf."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
