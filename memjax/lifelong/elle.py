"""ELLE: a model that grows before every task, recovers on rows of earlier tasks, and replays them beside each task.

Qin et al. 2022, https://arxiv.org/abs/2203.06311. `memjax.lifelong.expansion` computes the bigger model. This module
makes the stages. A task has two: a warm-up, before which the model grows and which learns rows of the memory only, and
the stage that reads the task.

Differs from the paper: the expansion is exact (`ELLE.as_published` makes settings for the paper's expansion). The
memory is written by a policy as in other methods, and with a share of each domain's text only if `share` is set.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.axes import parameter_names
from memjax.config import Config
from memjax.lifelong import policies
from memjax.lifelong.basic_methods import make_memory_options
from memjax.lifelong.components import REPLAY, Component, ReplayOptions
from memjax.lifelong.composition import chain_components
from memjax.lifelong.expansion import copy_layers, expand, expand_gradients, expand_moments, scaled_norm_path
from memjax.lifelong.growth_sources import Growth, copied_layers, copy_sources
from memjax.lifelong.kept_examples import with_fresh_optimizer
from memjax.lifelong.memory_backends import EPISODES, WriteRule, fill_memory
from memjax.lifelong.method_interface import Method, ModelGrowth, Phase, TaskInfo, settings_of
from memjax.lifelong.stage_progress import SPAN, UPDATE_COUNTER, count_stage_updates
from memjax.lifelong.task_progress import BY_PROGRESS, PROGRESS, init_progress
from memjax.lifelong.update_streams import JoinedExamples
from memjax.lifelong.updates import make_joint_update
from memjax.memory.layer_parts import NORM_WEIGHTS
from memjax.models.transformer import join_collection, split_collection
from memjax.training.experiment import Experiment
from memjax.training.objective import model_loss
from memjax.training.sharding import Layout
from memjax.training.stages import (
    GROWTH,
    GrowthHistory,
    Learner,
    PhaseContext,
    PhaseResult,
    PlannedUpdate,
    Stage,
    Update,
    UpdateStream,
)
from memjax.training.train_state import TrainState, init_variables, model_variables
from memjax.training.update_functions import MakeObjective, make_objective
from memjax.typing import Batch, WeightedSum

GROWTH_LINE = "grown"
"""Kind of the metrics lines about a growth: its seconds, and the loss on rows of the memory before and after it."""
SCORED = 256
"""Maximum number of rows of the memory that are scored before and after a growth."""
WARM_UP = "warm_up"
"""Kind of the updates that learn rows of the memory only, after the model has grown."""


def _stream_warm_up(steps: int, position: int | None) -> UpdateStream:
    """Makes a stream of updates of the warm-up, which read no batch of the stream of the task.

    Args:
      steps: Number of updates.
      position: Number of updates that were made. None for the beginning.
    """
    plan = lambda number: PlannedUpdate(WARM_UP, 0)
    return UpdateStream(plan, steps, iter(()), lambda number: number, number=position or 0)


def elle(settings: configs.ELLE) -> Method:
    """Makes the `Method` ELLE: before a task the model grows in width and depth and recovers on rows of earlier tasks,
    which are also replayed beside the task.
    """
    memory, by_progress = make_memory_options(settings.memory), settings.replay_sampling == "progress"
    if settings.memory_fraction:  # The memory is written after a task, not while it is learned.
        memory = memory._replace(rule=WriteRule(policies.random_policy(0.0)), notes=lambda *_: ())
    if by_progress:
        memory = memory._replace(groups="task")
    counters, choice = (
        [UPDATE_COUNTER] if settings.anneal_norms or by_progress else [],
        BY_PROGRESS if by_progress else None,
    )

    def replaying(options: ReplayOptions, num_tasks: int = 0) -> Method:
        progress = [Component(PROGRESS, lambda params: init_progress(num_tasks))] if by_progress else []
        return chain_components(*counters, *progress, memory=memory, replay=options._replace(choice=choice))

    beside = lambda num_tasks: replaying(ReplayOptions(settings.replay_batch_size, make_joint_update), num_tasks)
    base = beside(0) if settings.replay_batch_size else chain_components()

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        arguments, num_tasks = (experiment, layout, objective), len(settings_of(experiment).tasks)
        learner_of_stream = (beside(num_tasks) if settings.replay_batch_size else base).learner(*arguments)
        if not settings.recovery_steps:
            return learner_of_stream
        recovering = replaying(ReplayOptions(settings.recovery_batch_size, every=1), num_tasks)
        recover = recovering.learner(*arguments).updates[REPLAY]
        updates = {WARM_UP: _with_annealed_norms(recover) if settings.anneal_norms else recover}
        return learner_of_stream._replace(
            updates={**learner_of_stream.updates, **updates},
            batch_shapes={**learner_of_stream.batch_shapes, WARM_UP: None},
        )

    def stages(task: TaskInfo, stage: Stage) -> list[Stage]:
        stages_of_task = [
            stage._replace(after=_remember_examples(settings, task)) if settings.memory_fraction else stage
        ]
        if task.index and (settings.dim_per_task or settings.num_layers_per_task or settings.recovery_steps):
            grow_before = lambda state, context: _grow_model_for_task(settings, learner, task, state, context)
            if settings.recovery_steps:
                open_stream = lambda state, position: _stream_warm_up(settings.recovery_steps, position)
                stages_of_task.insert(
                    0, Stage(f"{stage.name}, warm-up", open_stream, settings.recovery_steps, task=stage.task)
                )
            stages_of_task[0] = stages_of_task[0]._replace(before=grow_before)
        return (
            [count_stage_updates(stage) for stage in stages_of_task]
            if counters and settings.replay_batch_size
            else stages_of_task
        )

    def fields_before(index: int, config: Config, lineage: GrowthHistory, key: Any) -> Mapping[str, Any] | None:
        step = next_growth(settings, config, index, lineage, key)
        return step and step[0]

    # Noise changes no shapes, so tracing for shapes leaves it out.
    quiet = dataclasses.replace(settings, copy_noise="none")
    shapes = lambda small, big, fields: _grow_state(quiet, learner(big, None, make_objective), small, big, fields)
    needs = base.needs._replace(boundaries=True, all_tasks=True)
    return base._replace(learner=learner, stages=stages, needs=needs, growth=ModelGrowth(fields_before, shapes))


def _grow_model_for_task(
    settings: configs.ELLE, learner: Any, task: TaskInfo, state: TrainState, context: PhaseContext
) -> PhaseResult:
    """Grows the model before a task and returns the bigger model's state and growth history.

    A model that does not grow before the task keeps its parameters, and gets a new optimiser unless moments are mapped.

    Args:
      settings: Settings of ELLE.
      learner: `learner(experiment, layout, objective)` makes the learner of an experiment.
      task: The task that is about to be learned.
      state: Train state before the growth.
      context: Context of the phase before the task.
    """
    small = task.experiment.with_growth(context.lineage)
    step = next_growth(settings, small.config, task.index, context.lineage, context.key)
    if step is None and settings.optimizer_moments == "mapped":
        return PhaseResult(state, context.lineage)
    if step is None:
        return PhaseResult(with_fresh_optimizer(state, task._replace(experiment=small)), context.lineage)
    began, lineage = time.perf_counter(), (*context.lineage, step[0])
    big = task.experiment.with_growth(lineage)
    changed = _grow_state(settings, learner(big, context.layout, make_objective), small, big, step[0])(state)
    context.report(f"grown to {big.config.model.num_layers} layers of width {big.config.model.dim}")
    measures = {"seconds": time.perf_counter() - began}
    if (rows := _rows_of_memory(state)) is not None:
        measures["nats_before"] = mean_nats(small.model, model_variables(state), rows)
        measures["nats_after"] = mean_nats(big.model, model_variables(changed), rows)
    context.measure(GROWTH_LINE, measures)
    return PhaseResult(changed, lineage)


def _grow_state(
    settings: configs.ELLE, learner: Learner, small: Experiment, big: Experiment, fields: Mapping[str, Any]
) -> Callable[[TrainState], TrainState]:
    """Makes a function that turns the train state of a model into that of a bigger one.

    Args:
      settings: Settings of ELLE.
      learner: Learner of the bigger model.
      small: Experiment of the smaller model.
      big: Experiment of the bigger model.
      fields: Entry of the growth history for this growth.
    """
    growth, seed = Growth.from_json(fields[GROWTH]), fields[GROWTH]["seed"]
    old, new, length = small.config.model, big.config.model, small.config.data.segment_length
    make = lambda model: init_variables(model, jax.random.key(0), length)
    options = {
        "noise": settings.copy_noise,
        "stddev": settings.noise_stddev,
        "seed": seed,
        "depth": settings.new_layer_init,
    }
    factor = (old.dim / new.dim) ** 0.5 if old.scale_embeddings else 1.0

    def change(state: TrainState) -> TrainState:
        before = model_variables(state)
        fresh = learner.init(expand(before, small.model, big.model, growth, make=make, factor=factor, **options))
        method = {name: state.method.get(name, value) for name, value in fresh.method.items()}
        changed = dataclasses.replace(fresh, step=state.step, key=state.key, method=method)
        if settings.optimizer_moments == "fresh":
            return changed
        moments = _map_moments(state, small.model, big.model, growth, make, fresh, factor)
        return dataclasses.replace(changed, opt_state=moments)

    return change


def _remember_examples(settings: configs.ELLE, task: TaskInfo) -> Phase:
    """Makes the phase after a task that writes a random share of its examples to the memory.

    Args:
      settings: Settings of ELLE.
      task: The task that was learned.

    Raises:
      ValueError: the memory is too small for the shares of all tasks.
    """
    number = lambda part: math.ceil(settings.memory_fraction * len(part.examples))
    if (size := sum(map(number, task.parts))) > settings.memory.capacity:
        stored = f"which {settings.memory_fraction:g} of all tasks are"
        what = f"given {settings.memory.capacity}, allowed: at least {size}, {stored}"
        raise ValueError(f"lifelong.method.memory.capacity: {what}")
    part, tells_task = task.parts[task.index], settings.replay_sampling == "progress"

    def remember(state: TrainState, context: PhaseContext) -> PhaseResult:
        random = np.random.default_rng(_seed(context.key))
        chosen = np.sort(random.choice(len(part.examples), number(part), replace=False))
        examples = JoinedExamples([part], tells_task=tells_task, order=chosen)
        memory = fill_memory(state.method[EPISODES], task.experiment, examples, context.key)
        return PhaseResult(dataclasses.replace(state, method={**state.method, EPISODES: memory}), context.lineage)

    return remember


def _with_annealed_norms(recover: Update) -> Update:
    """Wraps an update function so that weighted norms turn linearly into ordinary ones in the course of a stage.

    Args:
      recover: Update to wrap.
    """

    def update(state: TrainState, batch: Batch | None) -> tuple[TrainState, dict[str, WeightedSum]]:
        new, sums = recover(state, batch)
        (before, total), (after, _) = state.method[SPAN], new.method[SPAN]
        share = (after - before) / jnp.maximum(total - before, 1)
        anneal = lambda leaf: leaf + share.astype(leaf.dtype) * (1 / leaf.shape[-1] - leaf)
        anneal_norms = lambda path, leaf: anneal(leaf) if path[-1].key == NORM_WEIGHTS else leaf
        return dataclasses.replace(new, constants=jax.tree_util.tree_map_with_path(anneal_norms, new.constants)), sums

    return update


def _rows_of_memory(state: TrainState) -> Batch | None:
    """Returns the first rows of the memory, at most `SCORED`. None if the memory is empty or there is none."""
    memory = state.method.get(EPISODES)
    if memory is None or not int(memory.count):
        return None
    return jax.tree.map(lambda leaf: leaf[: min(int(memory.count), SCORED)], memory.rows)


def mean_nats(model: Any, variables: Any, rows: Batch) -> float:
    """Computes the mean negative log-likelihood in nats of all targets of a batch of rows, a float, in evaluation mode
    and with empty memories.
    """

    @jax.jit
    def score(variables: Any) -> Any:
        start = model.init_state(rows.inputs.shape[0])
        return model_loss(model, deterministic=True)(variables, start, rows, jax.random.key(0))[2].mean()

    return float(score(variables))


def next_growth(
    settings: configs.ELLE, config: Config, index: int, lineage: GrowthHistory, key: Any
) -> tuple[Mapping[str, Any], Growth] | None:
    """Computes how a model with the growth history `lineage` grows before task `index`, counted from 0. Returns the new
    entry of the history and the `Growth`, or None if it does not grow. `key` draws the copies.

    Args:
      settings: Settings of ELLE.
      config: Configuration of the model so far.
      index: Number of the task, from 1 for the second task.
      lineage: Growth history so far.
      key: Random key of the choice of copies.

    Returns:
      The new entry of the growth history, and the growth. None if the model does not grow.
    """
    if not settings.dim_per_task and not settings.num_layers_per_task:
        return None  # So models that have no width and number of layers work as well.
    model = config.model
    dim = settings.dim_per_task[index - 1] if settings.dim_per_task else model.dim
    layers = settings.num_layers_per_task[index - 1] if settings.num_layers_per_task else model.num_layers
    if (dim, layers) == (model.dim, model.num_layers):
        return None
    left = lineage[-1][GROWTH]["left"] if lineage else ()
    return make_growth(
        model, dim, layers, how=settings.copy_rule, norms=settings.norm_expansion, seed=_seed(key), left=left
    )


def make_growth(
    model: Any,
    dim: int,
    num_layers: int,
    *,
    how: Literal["random", "cyclic"] = "random",
    norms: Literal["weighted", "plain"] = "weighted",
    seed: Sequence[int] = (0,),
    left: Sequence[int] = (),
) -> tuple[dict[str, Any], Growth]:
    """Plans the growth of a model to width `dim` and `num_layers` layers. Returns the entry of the growth history and
    the `Growth`. `how` and `seed` choose what is copied, `norms` is "weighted" or "plain", `left` are layers to copy
    first.

    Heads keep their width. The numbers of heads and of feed-forward units grow in proportion to the residual stream.
    Give the entry of the growth history to `Experiment.with_growth`, which makes the bigger model, and the growth to
    `memjax.lifelong.expansion.expand`.

    Args:
      model: Settings of the model before the growth.
      dim: New width of the residual stream, a multiple of the width of a head and at least the old width.
      num_layers: New number of layers, from the old number to twice the old number.
      how: Choice of the entries that new ones copy, "random" or "cyclic". See
        `memjax.lifelong.growth_sources.copy_sources`.
      norms: Norms of a wider model: "weighted" (exact) or "plain" (the paper). See `memjax.config.ELLE`.
      seed: Seed of all random choices.
      left: Numbers of the layers that no earlier growth has copied yet. Empty for all layers.

    Returns:
      The entry of the growth history, and the growth.

    Raises:
      ValueError: a size is smaller than before, or more layers are added than there are.

    Example:
      >>> from memjax.config import Model
      >>> fields, growth = make_growth(Model(dim=8, num_layers=1, num_heads=2), 12, 2, how="cyclic")
      >>> fields["model.num_heads"], fields["model.feed_forward.dim"], growth.heads[0].tolist(), growth.layers
      (3, 48, [0, 1, 0], (0, 0))
    """
    head, old_heads = model.head_dim or model.dim // model.num_heads, model.num_heads
    old_mlp = model.feed_forward.dim or 4 * model.dim
    heads, mlp = max(old_heads, old_heads * dim // model.dim), old_mlp * dim // model.dim
    sources, left = copied_layers(model.num_layers, num_layers - model.num_layers, left, [*seed, 0])
    per_layer = lambda old, new, purpose: tuple(
        copy_sources(old, new, how, [*seed, purpose, layer]) for layer in range(model.num_layers)
    )
    growth = Growth(
        copy_sources(model.dim, dim, how, [*seed, 1]),
        per_layer(old_heads, heads, 2),
        per_layer(old_mlp, mlp, 3),
        sources,
    )
    fields: dict[str, Any] = {
        "model.dim": dim,
        "model.num_heads": heads,
        "model.head_dim": head,
        "model.num_layers": num_layers,
        "model.feed_forward.dim": mlp,
    }
    if norms == "weighted" and dim != model.dim:
        fields["model.weighted_norms"] = True
    return {**fields, GROWTH: {**growth.to_json(), "left": list(left), "seed": list(seed)}}, growth


def _seed(key: Any) -> list[int]:
    """Converts a random key to a seed of NumPy's generators."""
    return [int(word) for word in np.asarray(jax.random.key_data(key)).reshape(-1)]


def _map_moments(
    state: TrainState, model: Any, bigger: Any, growth: Growth, make: Any, fresh: TrainState, factor: float
) -> Any:
    """Expands the state of an optimiser to that of the bigger model (`memjax.lifelong.expansion.expand_moments`)."""
    names = split_collection(parameter_names(lambda: make(model))["params"], model.layer_groups())
    divided = scaled_norm_path(state.params, model, fresh.params)
    fields = {"head_dim": model.stack.layers[0].attention.head_dim, "divided": divided, "factor": factor}

    def grow(tree: Any, power: int) -> Any:
        wide = expand_gradients(split_collection(tree, model.layer_groups()), names, growth, power=power, **fields)
        return join_collection(copy_layers(wide, growth), bigger.layer_groups())

    return expand_moments(state.opt_state, state.params, grow, fresh.opt_state)
