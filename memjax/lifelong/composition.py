"""Builds a lifelong-learning method from components, an episodic memory, and options for replaying its rows.

`memjax.lifelong.components` has the parts, and `memjax.lifelong.updates` has the updates that they result in.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from memjax.lifelong.components import (
    REPLAY,
    SUPPORT,
    Component,
    EpisodeOptions,
    ReplayOptions,
    StateChange,
    TestTimeAdaptation,
    wrap_objective,
)
from memjax.lifelong.memory_backends import (
    EPISODES,
    UPDATES,
    MemoryOptions,
    StreamMemory,
    candidate_rows,
    make_store,
    rows_of,
)
from memjax.lifelong.method_interface import Method, Phase, Scope, TaskInfo, phase_of, settings_of, stage_examples
from memjax.lifelong.update_streams import EpisodeSchedule, ReplaySchedule
from memjax.lifelong.updates import (
    Support,
    UpdateParts,
    make_replay_episode_update,
    make_replay_update,
    make_stream_update,
)
from memjax.training.experiment import Experiment
from memjax.training.plain_learner import make_plain_learner
from memjax.training.sharding import Layout
from memjax.training.stages import STREAM, Learner, PhaseContext, Requirements, StoredRows, Update
from memjax.training.train_state import TrainState
from memjax.training.update_functions import MakeObjective, is_frozen_beside_adapters, make_update_functions
from memjax.typing import Batch


class Composition(NamedTuple):
    """The arguments that `chain_components` combines into a method: components, episodic memory, replay, episodes and
    adaptation before evaluations.

    Attributes:
      components: Components of the method, in the order in which their losses wrap the objective.
      memory: Options of the episodic memory. None for none.
      replay: Options for replaying rows of the memory. None for no replay.
      test_time_adaptation: Adaptation to the memory before an evaluation. None for none.
      episode: Adaptation to a support within each update. None for none.
    """

    components: Sequence[Component]
    memory: MemoryOptions | None = None
    replay: ReplayOptions | None = None
    test_time_adaptation: TestTimeAdaptation | None = None
    episode: EpisodeOptions | None = None

    def requirements(self) -> Requirements:
        """Returns the `Requirements` of all parts together: which information batches and tasks must carry for them."""
        of_components = (component.requirements for component in self.components)
        needs = Requirements(*(any(flags) for flags in zip(Requirements(), *of_components, strict=True)))
        if any(component.before_task or component.after_task for component in self.components):
            needs = needs._replace(boundaries=True)
        if self.memory is not None:
            tasks_in_training = needs.tasks_in_training or self.memory.groups == "task"
            needs = needs._replace(examples=True, tasks_in_training=tasks_in_training)
        return needs if self.episode is None else needs._replace(examples=True)

    def schedule(self) -> ReplaySchedule | EpisodeSchedule:
        """Returns the schedule of the updates of a stage: an `EpisodeSchedule` if updates adapt to batches of the
        stream, otherwise a `ReplaySchedule`.
        """
        schedule, episode = self.replay.schedule if self.replay else ReplaySchedule(), self.episode
        if episode is None or episode.find is not None:
            return schedule
        return EpisodeSchedule(schedule.every, REPLAY, steps=episode.steps, keeps_last=episode.keeps_last)

    def init_component_states(self, params: Any) -> dict[str, Any]:
        """Returns a dict of the initial states of the components by name, made from the parameters `params`, or from
        the trained ones in a run with adapters. Components without state are left out.
        """
        return {component.name: component.init(params) for component in self.components if component.init is not None}


def chain_components(
    *components: Component,
    memory: MemoryOptions | None = None,
    replay: ReplayOptions | None = None,
    scope: Scope = "task",
    test_time_adaptation: TestTimeAdaptation | None = None,
    episode: EpisodeOptions | None = None,
) -> Method:
    """Combines components into a learning method (`Method`), as `optax.chain` combines transformations. `scope` says
    whose examples a stage reads: those of its own "task", of the tasks "seen" so far, or of "all".

    Args:
      *components: Components. Their losses wrap the objective in this order, the first one innermost, and their
        gradient transformations are applied in this order.
      memory: Episodic memory of rows of the stream. None for none.
      replay: Options for replaying rows of the memory. None for no replay.
      scope: Tasks whose examples a stage reads: its own ("task"), all up to it ("seen"), or all at once ("all").
      test_time_adaptation: Adaptation to the memory before an evaluation. None for none.
      episode: Adaptation to a support within each update. None for none.
    """
    composition = Composition(components, memory, replay, test_time_adaptation, episode)

    def make_phase(hooks: Sequence[tuple[str, StateChange | None]]) -> Callable[[TaskInfo], Phase]:
        present = [(name, change) for name, change in hooks if change is not None]
        return lambda task: phase_of(*(functools.partial(_apply_change, *hook, task) for hook in present))

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        return _make_composed_learner(composition, method, experiment, layout, objective)

    before = make_phase([(f"before_task of {part.name}", part.before_task) for part in components])
    after = make_phase([(f"after_task of {part.name}", part.after_task) for part in components])
    method = Method(learner, before, after, scope, composition.schedule(), composition.requirements())
    return method if memory is None else method._replace(notes=memory.notes)


def _apply_change(
    name: str, change: StateChange, task: TaskInfo, state: TrainState, context: PhaseContext
) -> TrainState:
    """Calls the hook `name` of a component with the arguments of a phase, for one task.

    Raises:
      ValueError: The hook returns no train state.
    """
    changed = change(state, context, task)
    if not isinstance(changed, TrainState):
        changed_text = "None" if changed is None else type(changed).__name__
        raise ValueError(f"{name}: given {changed_text}, allowed: a TrainState, such as replace(state, params=...)")
    return changed


def make_of_experiment(make: Callable[[Experiment | None], Method]) -> Method:
    """Returns the method `make(None)` with the learner of `make(experiment)`, for a method whose learner depends on the
    experiment, such as on its number of tasks or its frozen parameters.
    """
    return make(None)._replace(learner=lambda experiment, *others: make(experiment).learner(experiment, *others))


def freeze_parameters(experiment: Experiment, frozen: Sequence[str]) -> Experiment:
    """Returns an experiment whose learner does not train the parameters whose paths contain one of the strings in
    `frozen`.
    """
    training = experiment.config.training
    training = dataclasses.replace(training, frozen_parameters=(*training.frozen_parameters, *frozen))
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, training=training))


def restrict_to_trained(
    select: Callable[[str], bool] | None, experiment: Experiment | None
) -> Callable[[str], bool] | None:
    """Returns the function `select`, which says of the path of a parameter whether it is adapted, restricted to the
    trained parameters of an experiment with adapters.

    Args:
      select: `select(path)` returns whether a parameter is adapted. None to adapt all.
      experiment: Experiment with the model and its configuration. None for no restriction.
    """
    is_frozen = experiment and is_frozen_beside_adapters(experiment.config.training, experiment.model)
    if not is_frozen:
        return select
    return lambda path: not is_frozen(path) and (select is None or select(path))


def start_again(state: TrainState, params: Any, task: TaskInfo) -> TrainState:
    """Returns the state at the beginning of a task with other parameters and an optimiser that starts again."""
    optimizer = make_update_functions(task.experiment.config, task.experiment.model).optimizer
    return dataclasses.replace(state, params=params, opt_state=optimizer.init(params))


def make_update(experiment: Experiment, objective: MakeObjective, *components: Component) -> Update:
    """Makes an update function of components without a memory, for a learner that adds it as a kind of update on other
    rows than those of the stream. `objective(config, model)` makes the objective that the components wrap.

    Its batches have other rows than those of the stream.

    Args:
      experiment: Experiment with the model and its configuration.
      objective: `objective(config, model)` makes the objective that the components wrap.
      *components: Components, in the order of `chain_components`.
    """
    return make_stream_update(_make_parts(experiment, objective, components), separate_rows=True)


def _make_parts(experiment: Experiment, objective: MakeObjective, components: Sequence[Component]) -> UpdateParts:
    """Makes the `UpdateParts` of a learner that has no memory.

    Args:
      experiment: Experiment with the model and its configuration.
      objective: `objective(config, model)` makes the objective that the components wrap.
      components: Components of the method.
    """
    config, model, settings = experiment.config, experiment.model, settings_of(experiment)
    transformations = [component.gradient_transformation for component in components]
    functions = make_update_functions(
        config,
        model,
        objective=wrap_objective(objective, [component.wrap_stream_loss for component in components]),
        transformations=[each for each in transformations if each is not None],
    )
    of_replay = wrap_objective(objective, [component.wrap_replay_loss for component in components])(config, model)
    weighs = bool(settings.epochs) and settings.last_batch_weighting == "share"
    return UpdateParts(model, functions, of_replay, components, weighs_batches=weighs)


def _make_composed_learner(
    composition: Composition,
    method: Method,
    experiment: Experiment,
    layout: Layout | None,
    objective: MakeObjective,
) -> Learner:
    """Makes the learner of a method from its components, memory, replay, adaptation and episodes.

    Args:
      composition: Parts of the method.
      method: The method, for its schedule and its requirements.
      experiment: Experiment with the model and its configuration.
      layout: Shardings of all arrays over the mesh. None on a single device.
      objective: `objective(config, model)` makes the objective that the components wrap.
    """
    plain, config, settings = make_plain_learner(experiment, layout), experiment.config, settings_of(experiment)
    example = experiment.example(stage_examples(experiment, method)[0]) if settings.epochs else experiment.example()
    kinds: dict[str, Any] = method.schedule.kinds(example)
    parts = _make_parts(experiment, objective, composition.components)
    if composition.memory is not None:
        variables = jax.eval_shape(plain.make_variables)
        make_states = lambda params: composition.init_component_states(parts.functions.select_trained(params))
        options = composition.memory, composition.replay
        memory = _make_stream_memory(*options, make_states, experiment, layout, variables, kinds[STREAM])
        parts = dataclasses.replace(parts, memory=memory, replay=composition.replay)
    if composition.episode is not None:
        parts = _with_episodes(parts, composition.episode, config.data.batch_size)

    def init(values: Mapping[str, Any]) -> TrainState:
        method_state = composition.init_component_states(parts.functions.select_trained(values["params"]))
        if parts.memory is not None:
            method_state[EPISODES] = parts.memory.store.init()
        if method.schedule.every:
            method_state[UPDATES] = jnp.zeros((), jnp.int32)
        key, traced = jax.random.key(config.training.seed), method_state
        # The names of the sums are found by tracing the losses, which read the support of their rows.
        if parts.support is not None:
            variables = {**values, "method": method_state}
            traced = {**method_state, SUPPORT: jax.eval_shape(parts.support, variables, kinds[STREAM], example)}
        memory_of_rows = experiment.model.init_state(config.data.batch_size)
        begun = parts.functions.init(values, memory_of_rows, example, jax.random.fold_in(key, 1), method=traced)
        return dataclasses.replace(begun, method=method_state)

    learner = plain._replace(
        init=init,
        updates={kind: make_update_of_kind(parts, kind, batch) for kind, batch in kinds.items()},
        batch_shapes=kinds,
        finish=parts.functions.finish,
    )
    if parts.memory is None:
        return learner
    return _add_memory(learner, parts.memory, composition.test_time_adaptation, experiment, layout)


def _make_stream_memory(
    options: MemoryOptions,
    replay: ReplayOptions | None,
    make_states: Callable[[Any], dict[str, Any]],
    experiment: Experiment,
    layout: Layout | None,
    variables: Any,
    batch: Batch,
) -> StreamMemory:
    """Makes the episodic memory that the rows of the stream are offered to.

    Args:
      options: Options of the memory.
      replay: Options of the replay of its rows. None for no replay.
      make_states: `make_states(params)` returns the initial states of the components of the method.
      experiment: Experiment with the model.
      layout: Shardings of all arrays over the mesh. None on a single device.
      variables: Shapes of the variables of the model.
      batch: Batch of an update of the stream.
    """
    model = experiment.model
    offer = lambda values, batch: candidate_rows(
        options, model, values, make_states(values["params"]), batch, jnp.ones((), bool)
    )
    store = make_store(
        options,
        jax.eval_shape(offer, variables, batch),
        layout=layout,
        reads=replay.is_read_by if replay else lambda kind: False,
        rows=replay.rows if replay else 0,
        replace=bool(replay and replay.replace),
        choose=replay.choice.draw if replay and replay.choice else None,
    )
    return StreamMemory(store, options, model, len(batch.inputs))


def _with_episodes(parts: UpdateParts, episode: EpisodeOptions, batch_size: int) -> UpdateParts:
    """Returns the `UpdateParts` with the support, the number of steps and the replay factor of episodes.

    Args:
      parts: Parts of the updates, with the memory of the learner.
      episode: Options of the episodes.
      batch_size: Number of rows of a batch of the stream.
    """
    support: Support = lambda variables, batch, query: (
        None if batch is None else jax.tree.map(lambda leaf: leaf[: episode.steps], batch)
    )
    if episode.find is not None:
        assert parts.memory is not None
        find = episode.find(parts.model, parts.memory.store)
        support = lambda variables, batch, query: jax.lax.stop_gradient(find(variables, rows_of(query)))
    is_sum = episode.reduction == "sum" and parts.replay is not None
    factor = parts.replay.rows / batch_size if is_sum and parts.replay else None
    return dataclasses.replace(parts, support=support, steps=episode.steps, replay_factor=factor)


def make_update_of_kind(parts: UpdateParts, kind: str, batch: Batch | None) -> Update:
    """Makes the update function of the kind named `kind`, such as "stream" or "replay", from the parts that the updates
    of a learner share. `batch` is None if updates of this kind read no batch.

    Args:
      parts: Parts of the updates of the learner.
      kind: Kind of update.
      batch: Example of a batch of this kind of update. None for updates that only read rows of the memory.
    """
    if kind == REPLAY:
        return make_replay_update(parts) if batch is None else make_replay_episode_update(parts)
    replays = parts.replay is not None and parts.replay.is_read_by(kind)
    make = parts.replay.make_update if parts.replay is not None and replays else None
    return (make or make_stream_update)(parts, separate_rows=kind != STREAM)


def _add_memory(
    learner: Learner,
    memory: StreamMemory,
    adaptation: TestTimeAdaptation | None,
    experiment: Experiment,
    layout: Layout | None,
) -> Learner:
    """Adds to a learner what a memory needs outside of updates: host arrays, a write for memory plans, adaptation.

    Args:
      learner: Learner whose updates use the memory already.
      memory: Memory of the learner.
      adaptation: Adaptation to the rows of the memory before an evaluation. None for none.
      experiment: Experiment with the model and its evaluations.
      layout: Shardings of all arrays over the mesh. None on a single device.
    """
    learner = learner._replace(host_arrays=memory.store.host)
    # A plan counts the memory of devices: rows that the host stores are left out.
    if not memory.store.outside:
        learner = learner._replace(stored_rows=StoredRows(EPISODES, memory.options.setting, memory.write))
    if adaptation is None:
        return learner
    learner = learner._replace(adapt_variables=adaptation.variables(experiment, memory.store))
    if adaptation.rows is None:
        return learner
    adapt_rows = adaptation.rows(experiment, memory.store)
    adapted = dataclasses.replace(experiment, adapt_rows=adapt_rows)
    return learner._replace(adapt_rows=adapt_rows, evaluators=adapted.evaluators(layout))
