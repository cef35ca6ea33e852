"""Builds a lifelong-learning method from components, an episodic memory, and options for replaying its rows.

One update computes the loss with the losses of the components, its gradients, and the gradients of rows from the
memory. It then applies the gradient transformations of the components, clipping and the optimiser, and checks that all
is finite. At last components update what they store, and rows are written to the memory. `memjax.training.step` has
the functions that compute and apply gradients.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from memjax.axes import constrain
from memjax.lifelong.contract import Method, Phase, Scope, TaskInfo, phase_of, settings_of, stage_examples
from memjax.lifelong.episodes import (
    EPISODES,
    UPDATES,
    DeviceMemoryBackend,
    HostMemoryBackend,
    MemoryOptions,
    Store,
    key_for,
    replay_key,
)
from memjax.lifelong.host_memory import HostMemory
from memjax.lifelong.progress import PROGRESS, draw_task, init_progress, observe_loss, odds_of_tasks
from memjax.lifelong.spans import SPAN, count_stage_updates, fraction_done
from memjax.lifelong.streams import TASK, EpisodeSchedule, ReplaySchedule
from memjax.models.heads import mark_seen_classes
from memjax.training.assembly import make_update_functions
from memjax.training.evaluation import PerRowAdaptation
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective, make_plain_learner
from memjax.training.objective import Objective
from memjax.training.optimizers import ReferenceGradients, make_reference_gradients
from memjax.training.sharding import Layout, row_shards
from memjax.training.stages import STREAM, Learner, PhaseContext, PlanInfo, PlannedProgram, Requirements
from memjax.training.step import Gradients, TrainState, apply_gradients, compute_gradients, model_variables
from memjax.typing import Batch, WeightedSum

__all__ = [
    "SUPPORT",
    "TestTimeAdaptation",
    "EpisodeOptions",
    "ReplayOptions",
    "Component",
    "chain_components",
    "rows_of",
]

REPLAY, PROJECTED = "replay", "projected"
"""Names of the kinds of update other than `stream`."""
SUPPORT = "support"
"""Name of the support in the method state that losses read: the rows that an update adapts to before its loss."""

StateChange = Callable[[TrainState, PhaseContext, TaskInfo], TrainState]
Observe = Callable[[TrainState, Batch | None, str], tuple[TrainState, dict[str, WeightedSum]]]
ObjectiveWrapper = Callable[[Objective, Any], Objective]
"""A function `wrap(objective, model) -> objective` that adds something to an objective, such as a penalty."""


def identity_wrapper(objective: Objective, model: Any) -> Objective:
    """Returns the objective unchanged."""
    del model
    return objective


class Component(NamedTuple):
    """One ingredient of a learning method: extra losses, a gradient transformation and hooks around updates and tasks.

    All fields but `name` are optional.

    Attributes:
      name: Name under which the component stores its state in `TrainState.method`.
      init: `init(params)` returns the first state of the component. None if it stores nothing.
      wrap_stream_loss: Wrapper of the objective for rows of the stream.
      wrap_replay_loss: Wrapper of the objective for replayed rows.
      gradient_transformation: Transformation applied before clipping. It may ask for the argument `reference`.
      after_update: `after_update(component_state, params_before, params_after, gradients)` returns the new state of the
        component, after every update.
      before_task: `before(state, context, task) -> state`, called once before the updates of a task.
      after_task: `after(state, context, task) -> state`, called once after the updates of a task.
      requirements: Information that batches and tasks must carry for the component, such as task numbers.
      init_params: `begin(params)` changes the parameters that training begins with, whether new or loaded.
      frozen: Parts of paths of parameters. Parameters whose path contains one of them are not trained.
      needs_stage_progress: Whether the component reads how far the stage has come
        (`memjax.lifelong.spans.fraction_done(state.method)`).
    """

    name: str
    init: Callable[[Any], Any] | None = None
    wrap_stream_loss: ObjectiveWrapper = identity_wrapper
    wrap_replay_loss: ObjectiveWrapper = identity_wrapper
    gradient_transformation: optax.GradientTransformation | None = None
    after_update: Callable[[Any, Any, Any, Any], Any] | None = None
    before_task: StateChange | None = None
    after_task: StateChange | None = None
    requirements: Requirements = Requirements()
    init_params: Callable[[Any], Any] | None = None
    frozen: tuple[str, ...] = ()
    needs_stage_progress: bool = False


UPDATE_COUNTER = Component(
    SPAN,
    init=lambda params: jnp.zeros(2, jnp.int32),
    after_update=lambda progress, before, after, gradients: progress.at[0].add(1),
)
"""A component that counts the updates of a stage for other components that read them."""


class ReplayOptions(NamedTuple):
    """Options for replaying rows of the episodic memory: how many, how often, and in which way.

    Attributes:
      rows: Number of rows that are replayed at once. With mode "tasks", the number for each earlier task.
      mode: Use of the rows. "sparse": separate updates between those of the stream. "mixed": in one update with a batch
        of the stream. "reference": their gradient is the reference of a gradient transformation. "tasks": the
        gradients of every earlier task are the references.
      every: Number of examples of the stream from one replay to the next. With 0, every update replays, and with mode
        "sparse" none does.
      replace: Whether rows are drawn with replacement.
      by_progress: Whether all rows are of one task, drawn by how much its loss falls (`memjax.lifelong.progress`). The
        groups of the memory must be tasks. If not, all rows of the memory are equally likely.
    """

    rows: int
    mode: Literal["sparse", "mixed", "reference", "tasks"] = "mixed"
    every: int = 0
    replace: bool = True
    by_progress: bool = False

    @property
    def schedule(self) -> ReplaySchedule:
        """The schedule of the updates that replay."""
        if self.mode == "sparse":
            return ReplaySchedule(self.every, REPLAY)
        return ReplaySchedule(self.every, PROJECTED, reads=True)


class EpisodeOptions(NamedTuple):
    """Options for learning in episodes: each update adapts to a support before the loss of its query.

    The query is the last batch of an update. Losses of components find the support under `SUPPORT`: batches of the
    stream, `[steps, rows, ...]`, or the result of `find`.

    Attributes:
      steps: Number of batches of the stream in front of the query.
      find: `find(model, store)(variables, query)` returns rows of the memory as the support of a query. None for a
        support from the stream.
      reduction: Loss of a query from the memory: "mean" over its rows, or "sum" of the means of its batches.
      keeps_last: Whether batches that are left at the end of a stage form a shorter episode. See `EpisodeSchedule`.
    """

    steps: int = 0
    find: Callable[[Any, Store], Callable[[Mapping[str, Any], Batch], Any]] | None = None
    reduction: Literal["mean", "sum"] = "mean"
    keeps_last: bool = False


class TestTimeAdaptation(NamedTuple):
    """Functions by which a method adapts to its memory before it is evaluated.

    Attributes:
      variables: `variables(experiment, store)(state, support, key)` returns the variables to evaluate with. See
        `Learner.adapt_variables`.
      rows: `rows(model, store)` returns the adaptation of each row by itself. See `Learner.adapt_rows`. None if all
        rows are evaluated with the same parameters.
      width: Name of the setting for the number of rows that are evaluated side by side on a device, each with its own
        parameters. Empty for none.
      copied: `copied(params)` returns the parameters of which each of those rows has a copy.
    """

    variables: Callable[[Experiment, Store], Callable[[TrainState, Any, Any], dict[str, Any]]]
    rows: Callable[[Any, Store], PerRowAdaptation] | None = None
    width: str = ""
    copied: Callable[[Any], Any] = lambda params: {}


def chain_components(
    *rules: Component,
    memory: MemoryOptions | None = None,
    replay: ReplayOptions | None = None,
    scope: Scope = "task",
    adapting: TestTimeAdaptation | None = None,
    episode: EpisodeOptions | None = None,
) -> Method:
    """Combines components into a learning method, as `optax.chain` combines gradient transformations.

    Args:
      *rules: Components. Their losses wrap the objective in this order, the first one innermost, and their gradient
        transformations are applied in this order.
      memory: Episodic memory of rows of the stream. None for none.
      replay: Options for replaying rows of the memory. None for no replay.
      scope: Tasks whose examples a stage reads: its own ("task"), all up to it ("seen"), or all at once ("all").
      adapting: Adaptation to the memory before an evaluation. None for none.
      episode: Adaptation to a support within each update. None for none.
    """
    counts = any(rule.needs_stage_progress for rule in rules) or (replay is not None and replay.by_progress)
    rules = (*rules, UPDATE_COUNTER) if counts else rules
    needs = Requirements(
        *(any(flags) for flags in zip(Requirements(), *(rule.requirements for rule in rules), strict=True))
    )
    if memory is not None:
        needs = needs._replace(examples=True, tasks_in_training=needs.tasks_in_training or memory.groups == "task")
    if episode is not None:
        needs = needs._replace(examples=True)
    schedule: ReplaySchedule | EpisodeSchedule = replay.schedule if replay else ReplaySchedule()
    if episode is not None and episode.find is None:
        schedule = EpisodeSchedule(schedule.every, REPLAY, steps=episode.steps, keeps_last=episode.keeps_last)

    def make_phase(changes: Sequence[StateChange | None]) -> Callable[[TaskInfo], Phase]:
        present = [change for change in changes if change is not None]
        return lambda task: phase_of(*(functools.partial(_apply_change, change, task) for change in present))

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        return _ComposedLearner(rules, memory, replay, method, adapting, episode, experiment, objective).learner(layout)

    before, after = make_phase([rule.before_task for rule in rules]), make_phase([rule.after_task for rule in rules])
    takes_tasks = memory is None or not memory.of_each_task
    method = Method(learner, before, after, scope, schedule, needs, takes_tasks)
    method = method if memory is None else method._replace(notes=memory.notes)
    return method._replace(stages=lambda task, stage: [count_stage_updates(stage)]) if counts else method


def _apply_change(change: StateChange, task: TaskInfo, state: TrainState, context: PhaseContext) -> TrainState:
    """Calls a hook of a component with the arguments of a phase, for one task."""
    return change(state, context, task)


def wrap_objective(objective: MakeObjective, laid: Sequence[ObjectiveWrapper]) -> MakeObjective:
    """Applies wrappers to the objective that `objective(config, model)` makes, the first one innermost."""

    def make_wrapped(config: Any, model: Any) -> Objective:
        wrapped = objective(config, model)
        for wrap in laid:
            wrapped = wrap(wrapped, model)
        return wrapped

    return make_wrapped


def make_update(experiment: Experiment, objective: MakeObjective, *rules: Component) -> Observe:
    """Makes the update function of components without a memory, for learners that add it as one kind of update.

    Args:
      experiment: Experiment with the model and its configuration.
      objective: `objective(config, model)` makes the objective that the components wrap.
      *rules: Components, in the order of `chain_components`.

    Returns:
      `observe(state, batch, kind) -> (state, sums)`. See `Learner.update`.
    """
    composed = _ComposedLearner(rules, None, None, chain_components(*rules), None, None, experiment, objective)
    return composed.observe


class _ComposedLearner:
    """The learner of a method of components: its update function, its memory, and its first state."""

    def __init__(
        self,
        rules: tuple[Component, ...],
        memory: MemoryOptions | None,
        replay: ReplayOptions | None,
        method: Method,
        adapting: TestTimeAdaptation | None,
        episode: EpisodeOptions | None,
        experiment: Experiment,
        objective: MakeObjective,
    ):
        self.rules, self.memory, self.replay, self.method, self.adapting = rules, memory, replay, method, adapting
        self.episode, self.find, self.store = episode, None, None
        self.experiment, self.model, self.config = experiment, experiment.model, experiment.config
        self.settings = settings_of(experiment)
        links = [rule.gradient_transformation for rule in rules if rule.gradient_transformation is not None]
        training = self.config.training
        partly_frozen = dataclasses.replace(
            training, frozen=(*training.frozen, *(name for rule in rules for name in rule.frozen))
        )
        self.parts = make_update_functions(
            dataclasses.replace(self.config, training=partly_frozen),
            self.model,
            objective=wrap_objective(objective, [r.wrap_stream_loss for r in rules]),
            links=links,
        )
        self.replayed = wrap_objective(objective, [rule.wrap_replay_loss for rule in rules])(self.config, self.model)

    def learner(self, layout: Layout | None) -> Learner:
        """Makes the learner for a layout of arrays over the mesh, or for a single device if it is None."""
        plain = make_plain_learner(self.experiment, layout)
        example, schedule = self._example(), self.method.schedule
        kinds: dict[str, Any] = schedule.kinds(example)
        self.store = self._make_store(plain, kinds[STREAM], layout)
        if self.episode is not None and self.episode.find is not None:
            assert self.store is not None
            self.find = self.episode.find(self.model, self.store)

        def init(values: Mapping[str, Any]) -> TrainState:
            for rule in self.rules:
                values = {**values, "params": rule.init_params(values["params"])} if rule.init_params else values
            stored = self._init_components(values)
            episodes = {} if self.store is None else {EPISODES: self.store.init()}
            if schedule.every:
                stored[UPDATES] = jnp.zeros((), jnp.int32)
            if self.replay is not None and self.replay.by_progress:
                stored[PROGRESS] = init_progress(len(self.settings.tasks))
            rows, key = self.config.data.batch_size, jax.random.key(self.config.training.seed)

            method = {**stored, **episodes}
            # The names of the sums are found by tracing the losses, which read the support of their rows.
            traced = {**values, "method": method}
            with_support = jax.eval_shape(self._with_support, traced, kinds[STREAM], example)["method"]
            begun = self.parts.init(
                values, self.model.init_state(rows), example, jax.random.fold_in(key, 1), method=with_support
            )
            return dataclasses.replace(begun, method=method)

        learner = plain._replace(
            init=init, update=self.observe, batch_shapes=kinds, requirements=self.method.needs, finish=self.parts.finish
        )
        if self.memory is None or self.store is None:
            return learner
        learner, parts = (
            learner._replace(host_arrays=self.store.host),
            {"write": PlannedProgram(self._write, writes=True)},
        )
        sizes = PlanInfo(kept=EPISODES, capacity=self.memory.setting)
        if self.adapting is not None:
            variables = self.adapting.variables(self.experiment, self.store)
            learner = learner._replace(adapt_variables=variables)
            if self.adapting.rows is not None:
                rows = self.adapting.rows(self.model, self.store)
                scored = dataclasses.replace(self.experiment, adapt_rows=rows)
                learner = learner._replace(adapt_rows=rows, evaluators=scored.evaluators(layout))
                parts["search"] = PlannedProgram(
                    lambda state, batch: rows.retrieve_support(variables(state, None, state.key), batch)
                )
                sizes = sizes._replace(width=self.adapting.width, copied=self.adapting.copied)
        # A plan counts the memory of devices: rows that the host stores and searches are left out.
        return learner if self.store.outside else learner._replace(plan_info=sizes._replace(parts=parts))

    def _init_components(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the first states of all components that have one, by their names."""
        return {rule.name: rule.init(values["params"]) for rule in self.rules if rule.init is not None}

    def _reads_memory(self, kind: str) -> bool:
        """Returns whether an update of this kind reads rows of the memory."""
        if self.replay is None:
            return False
        return kind != STREAM or (self.replay.mode != "sparse" and not self.replay.every)

    def _example(self) -> Batch:
        """Returns a batch of the stream, for its shapes."""
        if not self.settings.epochs:
            return self.experiment.example()
        return self.experiment.example(stage_examples(self.experiment, self.method)[0])

    # One update

    def observe(self, state: TrainState, batch: Batch | None, kind: str) -> tuple[TrainState, dict[str, WeightedSum]]:
        """Makes one update of the train state. See `Learner.update`.

        Args:
          state: Train state.
          batch: Batch of the stream. None for updates that only read rows of the memory.
          kind: Kind of the update: "stream", "projected" (a batch of the stream, with rows of the memory), or "replay"
            (rows of the memory).

        Returns:
          The new train state, and the sums of losses and metrics by name.
        """
        stored = dict(state.method)
        # The memory is taken out, so that no check and no gradient goes through all of it.
        episodes = stored.pop(EPISODES, None)
        slim = dataclasses.replace(state, method=stored)
        if batch is None:
            replayed_rows = self._sample_replay(state, episodes)
            query_state = self._with_support_in_state(slim, episodes, None, replayed_rows)
            new, sums = self._apply_gradients(slim, self._replay_gradients(query_state, replayed_rows))
            new = self._record_task_loss(new, replayed_rows, sums["nll"])
            episodes = self._record_replayed_answers(state, episodes, replayed_rows, sums)
            return dataclasses.replace(new, method={**new.method, EPISODES: episodes}), sums
        # Dropout follows the updates of the stream: replays between them do not move it.
        updates = stored.get(UPDATES, state.step)
        # Targets that weigh nothing get the number of no class.
        classes = jnp.where(batch.weights > 0, batch.targets, jnp.iinfo(jnp.int32).max)
        slim = dataclasses.replace(slim, constants=mark_seen_classes(state.constants, self.model.head_place, classes))
        if kind == REPLAY:  # an episode whose query is of the memory
            replayed_rows = self._sample_replay(state, episodes)
            query_state = self._with_support_in_state(slim, episodes, batch, replayed_rows)
            new, sums = self._apply_gradients(slim, self._replay_gradients(query_state, replayed_rows))
            episodes = self._record_replayed_answers(state, episodes, replayed_rows, sums)
            return self._write_to_memory(state, new, episodes, batch, updates, sums)
        steps = self.episode.steps if self.episode else 0
        query = jax.tree.map(lambda leaf: leaf[steps:], batch)
        query_state = self._with_support_in_state(dataclasses.replace(slim, step=updates), episodes, batch, query)
        start = self.model.init_state(query.inputs.shape[1]) if kind != STREAM else None
        gradients = self._compute_gradients(self.parts.objective, query_state, query, memory=start)
        present, rows, replay_sums, reference = jnp.sum(_present_rows(query)), query.inputs.shape[1], {}, None
        replayed_rows, replayed = None, gradients
        if self._reads_memory(kind):
            assert self.replay is not None
            if self.replay.mode == "tasks":
                reference = self._gradients_per_task(slim, episodes, batch)
            else:
                replayed_rows = self._sample_replay(state, episodes)
                replayed = self._replay_gradients(slim, replayed_rows)
                num_replayed = jnp.sum(_present_rows(replayed_rows))
                replay_sums = {f"replayed/{name}": value for name, value in replayed.sums.items()}
                if self.replay.mode == "mixed":
                    gradients = _average_gradients(gradients, replayed)
                    present, rows = present + num_replayed, rows + num_replayed
                else:
                    reference = ReferenceGradients(lambda name: replayed.params, *[_refuse_losses] * 3)
        if self.settings.epochs and self.settings.last_batch == "share":
            gradients = _scale_gradients(gradients, present / rows)
        new, sums = self._apply_gradients(slim, gradients, reference)
        if replayed_rows is not None:
            new = self._record_task_loss(new, replayed_rows, replayed.sums["nll"])
            episodes = self._record_replayed_answers(state, episodes, replayed_rows, sums)
        zero_if_skipped = lambda leaf: jnp.where(sums["skipped"].total == 0, leaf, 0).astype(jnp.float32)
        replay_sums = {name: jax.tree.map(zero_if_skipped, value) for name, value in replay_sums.items()}
        return self._write_to_memory(state, new, episodes, batch, updates, {**sums, **replay_sums})

    def _write_to_memory(
        self,
        state: TrainState,
        new: TrainState,
        episodes: Any,
        batch: Batch,
        updates: Any,
        sums: dict[str, WeightedSum],
    ) -> tuple[TrainState, dict[str, WeightedSum]]:
        """Returns the state and the sums after an update that has read a batch, with its rows offered to the memory.

        Args:
          state: Train state before the update.
          new: Train state after the update of the parameters.
          episodes: The memory, which `state.method` and `new.method` may lack.
          batch: Batch that the update has read.
          updates: Number of earlier updates that have read the stream.
          sums: Sums of the update. Nothing is written if they say that it was skipped.
        """
        ok, method = sums["skipped"].total == 0, dict(new.method)
        if UPDATES in method:
            method[UPDATES] = updates + ok
        if self.store is not None:
            offered = self._candidate_rows(model_variables(state), state.method, batch, ok)
            assert self.memory is not None
            for name, metric in self.memory.metrics.items():
                assert isinstance(self.store, DeviceMemoryBackend)
                sums = {**sums, name: self.store.measure(episodes, metric, offered)}
            method[EPISODES] = self.store.write(episodes, key_for(state.key, "write", updates), offered)
        constants = jax.tree.map(lambda now, old: jnp.where(ok, now, old), new.constants, state.constants)
        return dataclasses.replace(new, method=method, constants=constants), sums

    def _with_support_in_state(self, state: TrainState, episodes: Any, batch: Batch | None, query: Batch) -> TrainState:
        """Returns the state with the support of a query in its method state, for the loss of the query."""
        variables = {**model_variables(state), "method": {**state.method, EPISODES: episodes}}
        method = dict(self._with_support(variables, batch, query)["method"])
        del method[EPISODES]
        return dataclasses.replace(state, method=method)

    def _with_support(self, variables: Mapping[str, Any], batch: Batch | None, query: Batch) -> Mapping[str, Any]:
        """Returns variables with the support of a query: the batches in front of it, or rows of the memory."""
        if self.episode is None:
            return variables
        steps = self.episode.steps
        if self.find is None:
            support = None if batch is None else jax.tree.map(lambda leaf: leaf[:steps], batch)
        else:
            support = jax.lax.stop_gradient(self.find(variables, rows_of(query)))
        return {**variables, "method": {**variables["method"], SUPPORT: support}}

    def _compute_gradients(
        self, objective: Objective, state: TrainState, batch: Batch, *, memory: Any = None
    ) -> Gradients:
        return compute_gradients(objective, state, batch, memory=memory, **self.parts.segments)[1]

    def _replay_gradients(self, state: TrainState, rows: Batch) -> Gradients:
        """Computes the gradients of replayed rows. Their dropout uses a separate random key."""
        state = dataclasses.replace(state, key=key_for(state.key, "replay", 1))
        memory = self.model.init_state(rows.inputs.shape[1])
        gradients = self._compute_gradients(self.replayed, state, rows, memory=memory)
        is_sum = self.episode is not None and self.episode.reduction == "sum"
        assert self.replay is not None
        return _scale_gradients(gradients, self.replay.rows / self.config.data.batch_size) if is_sum else gradients

    def _apply_gradients(
        self, state: TrainState, update_gradients: Gradients, reference: ReferenceGradients | None = None
    ) -> tuple[TrainState, dict[str, WeightedSum]]:
        """Updates the parameters with gradients, and then the states of components."""
        hooked = [rule for rule in self.rules if rule.after_update is not None]

        def after_update(method: Any, before: Any, after: Any, gradients: Any) -> Any:
            update = lambda rule: rule.after_update(method[rule.name], before, after, gradients)
            new = {rule.name: update(rule) for rule in hooked}
            return {**method, **new}

        return apply_gradients(
            state,
            update_gradients,
            self.parts.optimizer,
            table_optimizer=self.parts.table_optimizer,
            reference=reference,
            after_update=after_update if hooked else None,
        )

    # The memory

    def _make_store(self, plain: Learner, example: Batch, layout: Layout | None) -> Store | None:
        """Makes the memory backend, on the devices or on the host. None if the method has no memory."""
        if self.memory is None:
            return None
        values: Any = jax.eval_shape(plain.make_variables)
        shapes = lambda values, batch: self._candidate_rows(
            values, self._init_components(values), batch, jnp.ones((), bool)
        )
        offered = jax.eval_shape(shapes, values, example)
        of_one = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype)
        row, keys = jax.tree.map(of_one, example), offered["keys"]
        capacity = self.memory.capacity * (len(self.settings.tasks) if self.memory.of_each_task else 1)
        sizes = (row, capacity, 0 if keys is None else keys.shape[-1])
        if self.memory.place == "device":
            return DeviceMemoryBackend(*sizes, self.memory.policy, layout)
        return HostMemoryBackend(
            HostMemory(*sizes, index=self.memory.index),
            self.memory.policy,
            offered,
            reads=self._reads_memory,
            rows=self.replay.rows if self.replay else 0,
            replace=bool(self.replay and self.replay.replace),
            split=layout is not None,
        )

    def _sample_replay(self, state: TrainState, episodes: Any) -> Batch:
        """Draws rows to replay, `[1, rows, ...]`. Rows that the memory does not have yet weigh nothing."""
        assert self.replay is not None and self.store is not None
        number, key = self.replay.rows, replay_key(state)
        if self.replay.by_progress:
            odds = odds_of_tasks(state.method[PROGRESS], fraction_done(state.method))
            rows = self.store.take(episodes, draw_task(episodes.groups, episodes.count, odds, key, number))
        else:
            rows = self.store.sample(episodes, key, number, replace=self.replay.replace)
        return _split_over_devices(jax.tree.map(lambda leaf: leaf[None], rows))

    def _record_task_loss(self, new: TrainState, rows: Batch, nll: WeightedSum) -> TrainState:
        """Records the loss of replayed rows for their task, if tasks are drawn by progress."""
        if PROGRESS not in new.method:
            return new
        assert self.replay is not None
        progress = observe_loss(new.method[PROGRESS], rows.extras[TASK][0, 0], nll, self.replay.rows)
        return dataclasses.replace(new, method={**new.method, PROGRESS: progress})

    def _record_replayed_answers(
        self, state: TrainState, episodes: Any, replayed: Batch, sums: Mapping[str, WeightedSum]
    ) -> Any:
        """Updates what the policy of the memory counts for replayed rows. A skipped update changes nothing."""
        if self.memory is None or self.memory.again is None:
            return episodes
        assert isinstance(self.store, DeviceMemoryBackend) and self.replay is not None
        number = self.replay.rows
        ids = self.store.drawn(episodes, replay_key(state), number, replace=self.replay.replace)
        rows = jax.tree.map(lambda leaf: leaf[:number], rows_of(replayed))
        right = self.memory.again(self.model, model_variables(state), state.method, rows)
        ids = jnp.where(sums["skipped"].total == 0, ids, -1)
        return self.store.seen_again(episodes, ids, right)

    def _write(self, state: TrainState, rows: Batch) -> TrainState:
        """Offers rows of the stream to the memory and does nothing else of an update, for a plan to compile."""
        assert self.store is not None
        batch, key = jax.tree.map(lambda leaf: leaf[None], rows), key_for(state.key, "write", state.step)
        offered = self._candidate_rows(model_variables(state), state.method, batch, jnp.ones((), bool))
        written = self.store.write(state.method[EPISODES], key, offered)
        return dataclasses.replace(state, method={**state.method, EPISODES: written})

    def _candidate_rows(
        self, variables: Mapping[str, Any], method: Mapping[str, Any], batch: Batch, ok: Any
    ) -> dict[str, Any]:
        """Makes the arguments that offer the rows of a batch to the memory: rows, keys, groups, scores and weights.

        Args:
          variables: Variables of the model.
          method: State of the method.
          batch: Batch of the stream.
          ok: Bool scalar. False for a skipped update, whose rows get weight 0.
        """
        assert self.memory is not None
        # An episode whose query is of the memory has one batch less, but the offer has one shape.
        missing = self.episode.steps + 1 - len(batch.inputs) if self.episode and self.find is None else 0
        pad = lambda leaf: jnp.pad(leaf, ((0, missing), *((0, 0),) * (leaf.ndim - 1))) if missing else leaf
        rows = rows_of(jax.tree.map(pad, batch))
        apply = lambda function: function and function(self.model, variables, method, rows)
        groups = rows.extras[TASK] if self.memory.groups == "task" else rows.targets[:, 0]
        return {
            "rows": rows,
            "keys": apply(self.memory.keys),
            "groups": groups.astype(jnp.int32),
            "scores": apply(self.memory.scores),
            "weights": jnp.broadcast_to(ok, groups.shape).astype(jnp.float32),
        }

    def _gradients_per_task(self, state: TrainState, episodes: Any, batch: Batch) -> ReferenceGradients:
        """Makes the reference gradients: those of every task but the task of the batch, 0 for a task without rows."""
        assert self.replay is not None and self.store is not None
        take = self.store.take
        number, tasks, current = self.replay.rows, len(self.settings.tasks), batch.extras[TASK][0, 0]
        used = jnp.arange(episodes.capacity) < episodes.count

        def rows_of_task(task: Any) -> Batch:
            mine = used & (episodes.groups == task) & (task != current)
            return take(episodes, jnp.nonzero(mine, size=number, fill_value=-1)[0])

        rows = _split_over_devices(jax.vmap(rows_of_task)(jnp.arange(tasks)))
        start, key = self.model.init_state(rows.inputs.shape[1]), key_for(state.key, "replay", state.step)

        def loss(params: Any, rows: Batch) -> Any:
            variables = {**model_variables(state), "method": state.method, "params": params}
            return self.replayed.loss(variables, start, rows, key)[2].mean()

        def losses(params: Any) -> dict[str, Any]:
            each = jax.vmap(loss, in_axes=(None, 0))(params, rows)
            return {f"task_{index}": each[index] for index in range(tasks)}

        def gradient(rows: Batch) -> Any:  # costs nothing for a task that has no rows yet
            none = lambda: jax.tree.map(jnp.zeros_like, state.params)
            return jax.lax.cond(jnp.any(rows.weights > 0), lambda: jax.grad(loss)(state.params, rows), none)

        return make_reference_gradients(losses, state.params, lambda: jax.lax.map(gradient, rows))


def _refuse_losses(*_: Any) -> Any:
    """Raises, because there is one reference gradient and a gradient transformation asks for several."""
    raise ValueError("reference: a link asked for more than one gradient, allowed: with replay of mode 'tasks'")


def _split_over_devices(rows: Batch) -> Batch:
    """Splits the rows of `[batches, rows, ...]` over devices as those of the stream are, padded to equal shares."""
    missing = -rows.inputs.shape[1] % row_shards(jax.sharding.get_abstract_mesh())
    fill = lambda leaf: jnp.pad(leaf, ((0, 0), (0, missing), *((0, 0),) * (leaf.ndim - 2))) if missing else leaf
    return jax.tree.map(lambda leaf: constrain(fill(leaf), None, "batch", *(None,) * (leaf.ndim - 2)), rows)


def rows_of(batch: Batch) -> Batch:
    """Joins the rows of all segments of a batch `[segments, rows, ...]` into `[segments * rows, ...]`."""
    if len(batch.inputs) == 1:
        return jax.tree.map(lambda leaf: leaf[0], batch)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)


def _present_rows(batch: Batch) -> Any:
    """Returns floats `[batch]`: 1 for rows that have a target with a weight above 0."""
    return jnp.any(batch.weights > 0, axis=(0, 2)).astype(jnp.float32)


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
