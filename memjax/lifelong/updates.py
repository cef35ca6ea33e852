"""The updates of a learner of components, one function for each kind of update.

An update computes the loss with the losses of the components, its gradients, and the gradients of rows from the
memory. It then applies the gradient transformations of the components, clipping and the optimiser, and checks that all
is finite. At last components update what they store, and rows are written to the memory. `memjax.training.step` has
the functions that compute and apply gradients.

=============================  =======================================  ==============================
function                       its gradient is that of                  rows that it writes
=============================  =======================================  ==============================
`make_stream_update`           a batch of the stream                    those of the batch
`make_joint_update`            a batch of the stream and replayed rows  those of the batch
`make_projected_update`        a batch, projected by replayed rows      those of the batch
`make_replay_update`           replayed rows                            none
`make_replay_episode_update`   replayed rows, adapted to a batch        those of the batch
=============================  =======================================  ==============================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from memjax.lifelong.components import SUPPORT, Component, ReplayOptions
from memjax.lifelong.memory_backends import (
    EPISODES,
    UPDATES,
    DeviceMemoryBackend,
    StreamMemory,
    key_for,
    replay_key,
    rows_of,
    split_over_devices,
)
from memjax.models.heads import mark_seen_classes
from memjax.training.gradients import Gradients, compute_gradients
from memjax.training.objective import Objective
from memjax.training.optimizers import ReferenceGradients
from memjax.training.stages import Update
from memjax.training.step import apply_gradients
from memjax.training.train_state import TrainState, model_variables
from memjax.training.update_functions import UpdateFunctions
from memjax.typing import Batch, WeightedSum

Sums = dict[str, WeightedSum]
Support = Callable[[Mapping[str, Any], Batch | None, Batch], Any]
"""A function `support(variables, batch, query)` that returns the support of a query."""


@dataclasses.dataclass(frozen=True)
class UpdateParts:
    """The functions and options that the updates of a learner share.

    Attributes:
      model: The Linen model.
      functions: Objective of rows of the stream, and optimisers.
      replay_objective: Objective of replayed rows.
      components: Components of the method.
      memory: Episodic memory. None if the method has none.
      replay: Options of the replay of its rows. None for no replay.
      support: Function that returns the support of a query. None if updates adapt to no support.
      steps: Number of batches of the stream in front of a query.
      replay_factor: Factor of the gradients of replayed rows. None for 1.
      weighs_batches: Whether the gradient of a batch is weighted by its share of rows that have targets.
    """

    model: Any
    functions: UpdateFunctions
    replay_objective: Objective
    components: Sequence[Component]
    memory: StreamMemory | None = None
    replay: ReplayOptions | None = None
    support: Support | None = None
    steps: int = 0
    replay_factor: float | None = None
    weighs_batches: bool = False


References = Callable[[UpdateParts, TrainState, Any, Batch], ReferenceGradients]
"""A function `references(parts, state, memory, batch)` that makes the reference gradients of an update."""


# One function for each kind of update


def make_stream_update(parts: UpdateParts, *, separate_rows: bool, references: References | None = None) -> Update:
    """Makes the update function that learns a batch of the stream, or the query of an episode. With `separate_rows`,
    its batches have rows whose memory is not in the train state. `references` makes reference gradients.

    Args:
      parts: Parts of the updates of the learner.
      separate_rows: Whether the batches have other rows than those whose memory the train state holds.
      references: Function that makes the reference gradients of a gradient transformation. None for none.
    """

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        slim, episodes = _take_out_memory(_mark_classes(parts, state, batch))
        gradients, query = _stream_gradients(parts, slim, episodes, batch, separate_rows)
        present, rows = _count_present(query), query.inputs.shape[1]
        weighed, reference = _weigh_by_rows(parts, gradients, present, rows), None
        if references is not None:
            share = jnp.where(present > 0, present / rows, 1.0) if parts.weighs_batches else 1.0
            reference = references(parts, slim, episodes, batch)._replace(share=share)
        new, sums = _apply_gradients(parts, slim, weighed, gradients, reference)
        return _write_batch(parts, state, new, episodes, batch, sums)

    return update


def make_joint_update(parts: UpdateParts, *, separate_rows: bool) -> Update:
    """Makes the update function that learns a batch of the stream and replayed rows together. With `separate_rows`, its
    batches have rows whose memory is not in the train state.

    Args:
      parts: Parts of the updates of the learner.
      separate_rows: Whether the batches have other rows than those whose memory the train state holds.
    """

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        slim, episodes = _take_out_memory(_mark_classes(parts, state, batch))
        gradients, query = _stream_gradients(parts, slim, episodes, batch, separate_rows)
        present, rows = _count_present(query), query.inputs.shape[1]
        replayed = _replay_beside(parts, state, slim, episodes)
        joint = _average_gradients(gradients, replayed.gradients)
        weighed = _weigh_by_rows(parts, joint, present + replayed.present, rows + replayed.present)
        new, sums = _apply_gradients(parts, slim, weighed, gradients)
        new, episodes, sums = _record_replay_beside(parts, state, new, episodes, replayed, sums)
        return _write_batch(parts, state, new, episodes, batch, sums)

    return update


def make_projected_update(parts: UpdateParts, *, separate_rows: bool) -> Update:
    """Makes the update function that learns a batch of the stream, with the gradient of replayed rows as a reference
    for projection. With `separate_rows`, its batches have rows whose memory is not in the train state.

    Args:
      parts: Parts of the updates of the learner. A gradient transformation of a component asks for the reference.
      separate_rows: Whether the batches have other rows than those whose memory the train state holds.
    """

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        slim, episodes = _take_out_memory(_mark_classes(parts, state, batch))
        gradients, query = _stream_gradients(parts, slim, episodes, batch, separate_rows)
        present, rows = _count_present(query), query.inputs.shape[1]
        replayed = _replay_beside(parts, state, slim, episodes)
        reference = ReferenceGradients(lambda name: replayed.gradients.params, *[_refuse_losses] * 3)
        weighed = _weigh_by_rows(parts, gradients, present, rows)
        new, sums = _apply_gradients(parts, slim, weighed, gradients, reference)
        new, episodes, sums = _record_replay_beside(parts, state, new, episodes, replayed, sums)
        return _write_batch(parts, state, new, episodes, batch, sums)

    return update


def make_replay_update(parts: UpdateParts) -> Update:
    """Makes the update function that learns rows of the memory alone. It is called with None instead of a batch."""

    def update(state: TrainState, batch: None) -> tuple[TrainState, Sums]:
        slim, episodes = _take_out_memory(state)
        rows = _sample_replay(parts, state, episodes)
        gradients = _replay_gradients(parts, _with_support(parts, slim, episodes, batch, rows), rows)
        new, sums = _apply_gradients(parts, slim, _weigh_replay(parts, gradients), gradients)
        new = _record_replayed_loss(parts, new, rows, sums["nll"])
        episodes = _record_replayed_answers(parts, state, episodes, rows, sums)
        return dataclasses.replace(new, method={**new.method, EPISODES: episodes}), sums

    return update


def make_replay_episode_update(parts: UpdateParts) -> Update:
    """Makes the update function that learns a query of replayed rows after adapting to a support, the batch that it is
    called with.
    """

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        slim, episodes = _take_out_memory(_mark_classes(parts, state, batch))
        rows = _sample_replay(parts, state, episodes)
        gradients = _replay_gradients(parts, _with_support(parts, slim, episodes, batch, rows), rows)
        new, sums = _apply_gradients(parts, slim, _weigh_replay(parts, gradients), gradients)
        episodes = _record_replayed_answers(parts, state, episodes, rows, sums)
        return _write_batch(parts, state, new, episodes, batch, sums)

    return update


# The state before an update


def _take_out_memory(state: TrainState) -> tuple[TrainState, Any]:
    """Takes the memory out of the method state, so that no check and no gradient goes through all of it.

    Returns:
      The state without its memory, and the memory. None if the method has no memory.
    """
    stored = dict(state.method)
    episodes = stored.pop(EPISODES, None)
    return dataclasses.replace(state, method=stored), episodes


def _mark_classes(parts: UpdateParts, state: TrainState, batch: Batch) -> TrainState:
    """Marks the classes of a batch as read by training, in the constants of the model."""
    # Targets that weigh nothing get the number of no class.
    classes = jnp.where(batch.weights > 0, batch.targets, jnp.iinfo(jnp.int32).max)
    return dataclasses.replace(state, constants=mark_seen_classes(state.constants, parts.model.head_path, classes))


def _count_stream_updates(state: TrainState) -> Any:
    """Returns the number of earlier updates that have read the stream."""
    return state.method.get(UPDATES, state.step)


def _with_support(
    parts: UpdateParts, state: TrainState, episodes: Any, batch: Batch | None, query: Batch
) -> TrainState:
    """Returns the state with the support of a query in its method state, for the loss of the query."""
    if parts.support is None:
        return state
    variables = {**model_variables(state), "method": {**state.method, EPISODES: episodes}}
    support = parts.support(variables, batch, query)
    return dataclasses.replace(state, method={**state.method, SUPPORT: support})


# Gradients


def _stream_gradients(
    parts: UpdateParts, state: TrainState, episodes: Any, batch: Batch, separate_rows: bool
) -> tuple[Gradients, Batch]:
    """Computes the gradients of a batch of the stream, whose first `parts.steps` batches are the support of the last.

    Returns:
      The gradients, and the query: the part of the batch that was learned.
    """
    query = jax.tree.map(lambda leaf: leaf[parts.steps :], batch)
    # Dropout follows the updates of the stream: replays between them do not move it.
    state = dataclasses.replace(state, step=_count_stream_updates(state))
    state = _with_support(parts, state, episodes, batch, query)
    memory = parts.model.init_state(query.inputs.shape[1]) if separate_rows else None
    return _compute_gradients(parts, parts.functions.objective, state, query, memory), query


def _replay_gradients(parts: UpdateParts, state: TrainState, rows: Batch) -> Gradients:
    """Computes the gradients of replayed rows. Their dropout uses a separate random key."""
    state = dataclasses.replace(state, key=key_for(state.key, "replay", 1))
    memory = parts.model.init_state(rows.inputs.shape[1])
    return _compute_gradients(parts, parts.replay_objective, state, rows, memory)


def _weigh_replay(parts: UpdateParts, gradients: Gradients) -> Gradients:
    """Multiplies gradients of replayed rows by the replay factor of episodes."""
    return gradients if parts.replay_factor is None else _scale_gradients(gradients, parts.replay_factor)


def _compute_gradients(
    parts: UpdateParts, objective: Objective, state: TrainState, batch: Batch, memory: Any
) -> Gradients:
    return compute_gradients(objective, state, batch, memory=memory, **parts.functions.segments)[1]


def _apply_gradients(
    parts: UpdateParts,
    state: TrainState,
    gradients: Gradients,
    of_task: Gradients,
    reference: ReferenceGradients | None = None,
) -> tuple[TrainState, Sums]:
    """Updates the parameters with gradients, and then the states of components.

    Args:
      parts: Parts of the updates of the learner.
      state: Train state before the update, without its memory.
      gradients: Gradients to apply.
      of_task: Gradients of the batch of the stream by itself, or of replayed rows where the update has no such batch,
        whatever they weigh in `gradients`, for components that measure the progress on the task.
      reference: Reference gradients of a gradient transformation. None for none.
    """
    hooked = [component for component in parts.components if component.after_update is not None]

    def after_update(method: Any, before: Any, after: Any, _: Any) -> Any:
        arrays = [parts.functions.select_trained(tree) for tree in (before, after, of_task.params)]
        update = lambda component: component.after_update(method[component.name], *arrays)
        return {**method, **{component.name: update(component) for component in hooked}}

    return apply_gradients(
        state,
        gradients,
        parts.functions.optimizer,
        table_optimizer=parts.functions.table_optimizer,
        reference=reference,
        after_update=after_update if hooked else None,
    )


def _count_present(batch: Batch) -> Any:
    """Counts the rows that have a target with a weight above 0, a float scalar."""
    return jnp.sum(jnp.any(batch.weights > 0, axis=(0, 2)).astype(jnp.float32))


def _weigh_by_rows(parts: UpdateParts, gradients: Gradients, present: Any, rows: Any) -> Gradients:
    """Weights gradients by the fraction of the rows that have targets, if the settings of the stream say so."""
    return _scale_gradients(gradients, present / rows) if parts.weighs_batches else gradients


def _scale_gradients(gradients: Gradients, factor: Any) -> Gradients:
    """Multiplies the objective and its gradients by a factor."""
    params = jax.tree.map(lambda gradient: gradient * factor, gradients.params)
    return dataclasses.replace(gradients, objective=gradients.objective * factor, params=params)


def _average_gradients(stream: Gradients, replayed: Gradients) -> Gradients:
    """Averages the gradients of rows of the stream and replayed rows, weighted by their numbers of targets."""
    stream_weight, replayed_weight = stream.sums["nll"].weight, replayed.sums["nll"].weight
    total = stream_weight + replayed_weight
    share = jnp.where(total > 0, replayed_weight / jnp.where(total > 0, total, 1), 0)
    # Not (1 - share) x + share y: without replayed rows, the gradient stays as it is, bit for bit.
    mix = lambda x, y: x + share * (y - x)
    params = jax.tree.map(mix, stream.params, replayed.params)
    return dataclasses.replace(stream, objective=mix(stream.objective, replayed.objective), params=params)


def _refuse_losses(*_: Any) -> Any:
    """Raises, because there is one reference gradient and a gradient transformation asks for several."""
    raise ValueError(
        "reference: given a request for several gradients, allowed: one, or a method with one a task (GEM)"
    )


# Replayed rows


class _Replayed(NamedTuple):
    """Rows of the memory that are replayed beside a batch of the stream.

    Attributes:
      rows: The rows, `[1, rows, ...]`.
      gradients: Gradients of the rows.
      present: Number of rows that have targets.
    """

    rows: Batch
    gradients: Gradients
    present: Any


def _replay_beside(parts: UpdateParts, state: TrainState, slim: TrainState, episodes: Any) -> _Replayed:
    """Draws rows of the memory to replay beside a batch, and computes their gradients."""
    rows = _sample_replay(parts, state, episodes)
    return _Replayed(rows, _weigh_replay(parts, _replay_gradients(parts, slim, rows)), _count_present(rows))


def _sample_replay(parts: UpdateParts, state: TrainState, episodes: Any) -> Batch:
    """Draws rows to replay, `[1, rows, ...]`. Rows that the memory does not have yet weigh nothing."""
    assert parts.replay is not None and parts.memory is not None
    number, key, store = parts.replay.rows, replay_key(state), parts.memory.store
    if parts.replay.choice is None or store.outside:  # The host has drawn by the choice already.
        rows = store.sample(episodes, key, number, replace=parts.replay.replace)
    else:
        rows = store.take(episodes, parts.replay.choice.draw(state.method, episodes, key, number))
    return split_over_devices(jax.tree.map(lambda leaf: leaf[None], rows))


def _record_replay_beside(
    parts: UpdateParts, state: TrainState, new: TrainState, episodes: Any, replayed: _Replayed, sums: Sums
) -> tuple[TrainState, Any, Sums]:
    """Records replayed rows after an update that has read a batch too.

    Returns:
      The state, the memory, and the sums with those of the replayed rows, which are 0 if the update was skipped.
    """
    new = _record_replayed_loss(parts, new, replayed.rows, replayed.gradients.sums["nll"])
    episodes = _record_replayed_answers(parts, state, episodes, replayed.rows, sums)
    zero_if_skipped = lambda leaf: jnp.where(sums["skipped"].total == 0, leaf, 0).astype(jnp.float32)
    more = {f"replayed/{name}": jax.tree.map(zero_if_skipped, value) for name, value in replayed.gradients.sums.items()}
    return new, episodes, {**sums, **more}


def _record_replayed_loss(parts: UpdateParts, new: TrainState, rows: Batch, nll: WeightedSum) -> TrainState:
    """Records the loss of replayed rows, if the choice of rows depends on it."""
    if parts.replay is None or parts.replay.choice is None:
        return new
    return dataclasses.replace(new, method=parts.replay.choice.record(new.method, rows, nll, parts.replay.rows))


def _record_replayed_answers(
    parts: UpdateParts, state: TrainState, episodes: Any, replayed: Batch, sums: Mapping[str, WeightedSum]
) -> Any:
    """Updates what the policy of the memory counts for replayed rows. A skipped update changes nothing."""
    if parts.memory is None or parts.memory.options.rule.is_answered is None:
        return episodes
    assert parts.replay is not None
    number, store, choice = parts.replay.rows, parts.memory.store, parts.replay.choice
    assert isinstance(store, DeviceMemoryBackend)
    if choice is None:
        ids = store.drawn(episodes, replay_key(state), number, replace=parts.replay.replace)
    else:
        ids = choice.draw(state.method, episodes, replay_key(state), number)
    rows = jax.tree.map(lambda leaf: leaf[:number], rows_of(replayed))
    right = parts.memory.options.rule.is_answered(parts.model, model_variables(state), state.method, rows)
    ids = jnp.where(sums["skipped"].total == 0, ids, -1)
    return store.seen_again(episodes, ids, right)


# The memory after an update


def _write_batch(
    parts: UpdateParts, state: TrainState, new: TrainState, episodes: Any, batch: Batch, sums: Sums
) -> tuple[TrainState, Sums]:
    """Returns the state and the sums after an update that has read a batch, with its rows offered to the memory.

    Args:
      parts: Parts of the updates of the learner.
      state: Train state before the update.
      new: Train state after the update of the parameters.
      episodes: The memory, which `new.method` may lack.
      batch: Batch that the update has read.
      sums: Sums of the update. Nothing is written if they say that it was skipped.
    """
    ok, method, updates = sums["skipped"].total == 0, dict(new.method), _count_stream_updates(state)
    if UPDATES in method:
        method[UPDATES] = updates + ok
    if parts.memory is not None:
        candidates = parts.memory.candidates(model_variables(state), state.method, batch, ok)
        sums = {**sums, **parts.memory.measure(episodes, candidates)}
        method[EPISODES] = parts.memory.store.write(episodes, key_for(state.key, "write", updates), candidates)
    constants = jax.tree.map(lambda now, old: jnp.where(ok, now, old), new.constants, state.constants)
    return dataclasses.replace(new, method=method, constants=constants), sums
