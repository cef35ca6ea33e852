"""Learning methods of a few components: plain and joint training, replay, gradient projection, penalties, distillation.

The arguments of each function are the fields of its settings, which `memjax.settings.methods` describes.

Penalties and distillation hold a model near its state after earlier tasks. They were published for streams whose tasks
share one solution or have separate heads. For classes that come one task after the other and share one head, van de Ven
and Tolias 2019 (https://arxiv.org/abs/1904.07734) report that they forget as plain training does, and that replay does
not. Our numbers: tools/results/tables/lifelong_mnist.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.config import EpisodicMemory
from memjax.lifelong import penalties, policies, projection
from memjax.lifelong.components import Component, ReplayOptions
from memjax.lifelong.composition import chain_components, make_of_experiment, start_again
from memjax.lifelong.memory_backends import MemoryOptions, WriteRule, describe_writes, key_for, rows_of
from memjax.lifelong.method_interface import Method, TaskInfo, settings_of
from memjax.lifelong.stage_progress import UPDATE_COUNTER, count_updates, fraction_done
from memjax.lifelong.task_references import EARLIER_ROWS, TASK_STARTS, gradients_of_tasks
from memjax.lifelong.update_streams import find_classes
from memjax.lifelong.updates import make_joint_update, make_projected_update, make_stream_update
from memjax.models.heads import CLASSES
from memjax.training.experiment import Experiment
from memjax.training.objective import Objective, model_loss, read_segment, with_distillation, with_penalty
from memjax.training.sharding import Layout
from memjax.training.stages import Learner, PhaseContext, Requirements
from memjax.training.train_state import TrainState, model_variables
from memjax.training.trained_parameters import fill_in, select_like
from memjax.training.update_functions import MakeObjective
from memjax.typing import Batch

TOLD_BORDERS = Requirements(boundaries=True)
EARLIER = "earlier"
"""Entry of the state of distillation with the classes of earlier tasks: bool `[classes]`"""


def sequential(settings: configs.Sequential) -> Method:
    """Makes the `Method` of plain training on one task after the other, without any means against forgetting."""
    del settings
    return chain_components()


def single_task(settings: configs.SingleTask) -> Method:
    """Makes the `Method` that trains every task alone, each from the first parameters of the run.

    Parameters of earlier tasks are not kept: only the scores right after a task are those of its own model.
    """
    del settings
    return chain_components(_restart_before_task())


def joint(settings: configs.Joint) -> Method:
    """Makes the `Method` of joint training. It reads the examples of all tasks shuffled, either all in one stage, or in
    each stage those of the tasks so far, as `settings.schedule` says.
    """
    match settings.schedule:
        case "one":
            return chain_components(scope="all")
        case "cumulative":
            return chain_components(scope="seen")
        case "anew":
            return chain_components(_restart_before_task(), scope="seen")


def replay(settings: configs.Replay) -> Method:
    """Makes the `Method` of experience replay, which learns stored rows of earlier batches again, together with new
    rows or in updates of their own.
    """
    separate = settings.mode == "sparse"
    replayed = ReplayOptions(
        settings.replay_batch_size,
        None if separate else make_joint_update,
        settings.replay_interval if separate else 0,
        settings.with_replacement,
    )
    rules = [Component("compared", wrap_stream_loss=_compare_with_batch)] if settings.softmax_classes == "batch" else []
    return chain_components(*rules, memory=make_memory_options(settings.memory), replay=replayed)


def _compare_with_batch(objective: Objective, model: Any) -> Objective:
    """Returns an objective whose softmax over the classes has only the classes of the batch (ER-ACE).

    A batch with targets `[batch, 1]` gets the extra `CLASSES`, `[batch, classes]`: true for every class that a target
    with a weight above 0 has, and the same in every row. Where the batch has the extra already, both must allow a
    class.

    Caccia, Aljundi, Asadi, Tuytelaars, Pineau and Belilovsky, "New Insights on Reducing Abrupt Representation Change in
    Online Continual Learning", ICLR 2022, https://arxiv.org/abs/2104.05025.

    Differs from the paper or its code: with `training.num_microbatches` the classes are those of a group of rows.

    Args:
      objective: Objective of the update.
      model: Model with a head of classes.

    Raises:
      ValueError: A model without a head of classes.
    """
    count = model.num_classes()
    if not count:
        allowed = "'seen', or a model with a head of classes"
        raise ValueError(
            f"lifelong.method.softmax_classes: given 'batch' with {type(model).__name__}, allowed: {allowed}"
        )

    def loss(variables: Any, memory: Any, segment: Batch, key: Any) -> Any:
        labels = jnp.where(segment.weights > 0, segment.targets, count)
        present = jnp.zeros(count, bool).at[labels.reshape(-1)].set(True, mode="drop")
        allowed = jnp.broadcast_to(present, (len(segment.targets), count)) & segment.extras.get(CLASSES, True)
        segment = dataclasses.replace(segment, extras={**segment.extras, CLASSES: allowed})
        return objective.loss(variables, memory, segment, key)

    return objective._replace(loss=loss)


def agem(settings: configs.AGEM) -> Method:
    """Makes the `Method` A-GEM, which projects gradients so that the mean loss of stored rows does not increase."""
    rules = [Component("agem", gradient_transformation=projection.agem())]
    replayed = ReplayOptions(settings.reference_batch_size, make_projected_update, settings.projection_interval)
    if settings.reference_tasks == "earlier":
        rules, replayed = [*rules, TASK_STARTS], replayed._replace(choice=EARLIER_ROWS)
    return chain_components(*rules, memory=make_memory_options(settings.memory), replay=replayed)


def gem(settings: configs.GEM) -> Method:
    """Makes the `Method` GEM, which projects gradients so that the loss of stored rows increases for no earlier task.

    `examples_per_task` rows of every task are stored, drawn among all of it. Those of an ended task never change.
    """
    link = projection.gem(margin=settings.memory_strength, epsilon=settings.epsilon, stored=settings.cache_gradients)
    needs = Requirements(tasks_in_training=True, all_tasks=True)
    rule = Component("gem", gradient_transformation=link, requirements=needs)
    rows, setting = settings.examples_per_task, "lifelong.method.examples_per_task"

    def of_experiment(experiment: Experiment | None) -> Method:
        num_tasks = len(settings_of(experiment).tasks) if experiment else 1
        rule_of_writes = WriteRule(policies.balanced_policy(most=rows))
        memory = MemoryOptions(rows * num_tasks, rule_of_writes, groups="task", setting=setting)
        references = functools.partial(gradients_of_tasks, num_tasks)
        replayed = ReplayOptions(rows, functools.partial(make_stream_update, references=references))
        return chain_components(rule, memory=memory, replay=replayed)

    return make_of_experiment(of_experiment)


def ewc(settings: configs.EWC) -> Method:
    """Makes the `Method` EWC: a quadratic penalty for leaving the parameters after earlier tasks, weighted by Fisher
    information.

    Differs from the papers or their code: the information is that of the mean over a row's targets, for rows that are
    read with an empty memory. Value tables, which have no dense gradient, get no penalty.
    """

    def importance(model: Any, state: TrainState, params: Any, batch: Batch, key: Any) -> tuple[Any, Any]:
        likelihood, log_probs = _row_functions(model, state)
        rows, weights = _rows_and_weights(batch)
        options: dict[str, Any] = {"log_probs": log_probs, "key": key} if settings.fisher_estimate == "true" else {}
        labels = rows.targets
        return penalties.fisher(
            likelihood, params, rows, labels, kind=settings.fisher_estimate, weights=weights, **options
        )

    online = settings.decay if settings.consolidation == "online" else None
    return chain_components(
        _consolidate_after_task(
            "ewc", settings.penalty_weight, importance, settings.fisher_batches, lambda first: {"decay": online}
        )
    )


def mas(settings: configs.MAS) -> Method:
    """Makes the `Method` MAS: a quadratic penalty for leaving earlier parameters, weighted by how much the outputs
    depend on each of them.

    Differs from the paper: it has no 1/2 in its penalty, so that its lambda is half of `penalty_weight`.
    """

    def importance(model: Any, state: TrainState, params: Any, batch: Batch, key: Any) -> tuple[Any, Any]:
        del key
        rows, weights = _rows_and_weights(batch)
        outputs = lambda params, row: _scores_of(model, state, params, row)
        return penalties.sensitivity(outputs, params, rows, kind=settings.gradient_granularity, weights=weights)

    def consolidation(first: bool) -> dict[str, float]:
        return (
            {"decay": 1.0}
            if settings.old_importance_fraction is None
            else {
                "decay": settings.old_importance_fraction,
                "share": 1.0 if first else 1 - settings.old_importance_fraction,
            }
        )

    return chain_components(
        _consolidate_after_task("mas", settings.penalty_weight, importance, settings.importance_batches, consolidation)
    )


def si(settings: configs.SI) -> Method:
    """Makes the `Method` SI: a quadratic penalty for leaving earlier parameters, weighted by how much each has
    contributed to the fall of the loss.

    Differs from the paper: the penalty has a factor 1/2, so that the paper's c is half of `penalty_weight`.
    """

    def init(params: Any) -> dict[str, Any]:
        copy = jax.tree.map(jnp.copy, params)
        penalty = {
            "weight": jnp.asarray(settings.penalty_weight, jnp.float32),
            "around": penalties.init_consolidated(params),
        }
        return {**penalty, "path": penalties.init_path(params), "start": copy}

    def gather(stored: Any, before: Any, after: Any, gradients: Any) -> Any:
        # The gradient of the penalty is subtracted: it would count as progress on the task.
        pull = jax.grad(lambda params: stored["weight"] * penalties.quadratic_penalty(params, stored["around"]))(before)
        of_task = jax.tree.map(lambda gradient, part: gradient - part, gradients, pull)
        return {**stored, "path": penalties.accumulate_path(stored["path"], before, after, of_task)}

    @jax.jit
    def consolidate(state: TrainState) -> Any:
        stored = state.method["si"]
        params = select_like(state.params, stored["start"])
        importance = penalties.path_importance(stored["path"], stored["start"], params, damping=settings.damping)
        around = penalties.consolidate(stored["around"], importance, params, decay=1.0)
        path, start = penalties.init_path(params), jax.tree.map(jnp.copy, params)
        return {**stored, "around": around, "path": path, "start": start}

    def after(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
        del context, task
        return _with_method_state(state, "si", consolidate(state))

    wrap = _add_quadratic_penalty("si")
    rule = Component("si", init, wrap, wrap, after_update=gather, after_task=after, requirements=TOLD_BORDERS)
    return chain_components(rule)


def lwf(settings: configs.LwF) -> Method:
    """Makes the `Method` LwF: distillation from the model before a task, on the inputs of the task, over the classes of
    earlier tasks.

    Differs from the paper: all classes share one head, and the temperature is a setting. There is no teacher during the
    first task. A model that scores a vocabulary is distilled over all of it.
    """

    def make(count: int) -> Method:
        return chain_components(
            _distill_from_previous_model(
                "lwf", settings.distillation_weight, settings.temperature, stream=True, earlier_of=count
            )
        )

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        return make(experiment.model.num_classes()).learner(experiment, layout, objective)

    return make(0)._replace(learner=learner)


def logit_kd(settings: configs.LogitKD) -> Method:
    """Makes the `Method` of replay with distillation: the model before a task is the teacher of the replayed rows."""
    rule = _distill_from_previous_model(
        "logit_kd", settings.distillation_weight, settings.temperature, stream=False, annealed=settings.anneal_weight
    )
    counters = [UPDATE_COUNTER] if settings.anneal_weight else []
    replayed = ReplayOptions(settings.replay_batch_size, make_joint_update)
    method = chain_components(rule, *counters, memory=make_memory_options(settings.memory), replay=replayed)
    return count_updates(method) if settings.anneal_weight else method


def make_memory_options(settings: EpisodicMemory, *, keys: Any = None) -> MemoryOptions:
    """Makes the `MemoryOptions` of an episodic memory from its settings. `keys` is the function that computes the keys
    of rows, None for a memory without keys.

    Args:
      settings: Settings of the memory.
      keys: Function that computes the keys of rows. None for a memory without keys. See `MemoryOptions`.

    Raises:
      ValueError: the policy compares keys and the memory has none.
    """
    if keys is None and settings.write_policy == "diversity":
        raise ValueError(
            "lifelong.method.memory.write_policy: given 'diversity', allowed: another one, or MbPA (it has keys)"
        )
    memory = MemoryOptions(settings.capacity, _make_write_rule(settings), keys, settings.balance_by)
    written = {"all": 1.0, "random": settings.write_probability}.get(settings.write_policy, 0.0)
    drops = settings.when_full == "drop"
    notes = functools.partial(describe_writes, memory.capacity, memory.setting, written, drops)
    return memory._replace(notes=notes, place=settings.storage, index=settings.key_search)


def _make_write_rule(settings: EpisodicMemory) -> WriteRule:
    """Makes the rule by which a memory stores rows of the stream."""
    match settings.write_policy:
        case "all":
            return WriteRule(policies.write_all_policy(settings.when_full))
        case "random":
            return WriteRule(policies.random_policy(settings.write_probability, settings.when_full))
        case "reservoir":
            return WriteRule(policies.reservoir_policy())
        case "priority":
            return WriteRule(policies.priority_policy())
        case "balanced":
            return WriteRule(policies.balanced_policy())
        case "uncertainty":
            return WriteRule(policies.uncertainty_policy(), scores=_prediction_uncertainty)
        case "forgettable":
            return WriteRule(policies.forgetting_policy(), is_answered=_is_answered_correctly)
        case "diversity":
            chances = settings.write_probability, settings.diversity_temperature
            signs, relative = {"dissimilar": 1, "similar": -1}, settings.distance_scale == "median"
            options: dict[str, Any] = {"sign": signs[settings.prefer], "relative": relative, "full": settings.when_full}
            metrics = {"odds_of_writing": policies.spread_of_odds(*chances, relative=relative)}
            is_measured = settings.storage == "device"
            return WriteRule(policies.diversity_policy(*chances, **options), metrics=metrics if is_measured else {})


# Components


def _restart_before_task() -> Component:
    """Makes a component that resets parameters and optimiser to their first state before every task but the first."""

    def before(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
        del context
        if task.index == 0:
            return state
        return start_again(state, fill_in(jax.tree.map(jnp.copy, state.method["anew"]), state.params), task)

    return Component(
        "anew", lambda params: jax.tree.map(jnp.copy, params), before_task=before, requirements=TOLD_BORDERS
    )


def _add_quadratic_penalty(name: str) -> Callable[[Objective, Any], Objective]:
    """Makes a wrapper that adds a quadratic penalty for leaving the parameters after earlier tasks.

    Args:
      name: Name of the component in `TrainState.method`. Its state has the weight of the penalty under "weight", and
        parameters with their importances under "around".
    """

    def penalty(params: Any, method: Any) -> Any:
        stored = method[name]
        held = select_like(params, stored["around"].anchor)
        return stored["weight"] * penalties.quadratic_penalty(held, stored["around"])

    def wrap(objective: Objective, model: Any) -> Objective:
        del model
        loss_name = f"{name}/penalty"
        loss = with_penalty(objective.loss, loss_name, penalty)
        return objective._replace(loss=loss, coefficients={**objective.coefficients, loss_name: 1.0})

    return wrap


def _consolidate_after_task(
    name: str,
    weight: float,
    importance: Callable[[Any, TrainState, Any, Batch, Any], tuple[Any, Any]],
    batches: int,
    how: Callable[[bool], dict[str, Any]],
) -> Component:
    """Makes a component with a quadratic penalty whose importances are measured after each task, on its data.

    Args:
      name: Name of the component in `TrainState.method`.
      weight: Weight of the penalty.
      importance: `importance(model, state, params, batch, key)` returns sums of the importances of `params`, those
        that the penalty holds, over a batch, and their weight.
      batches: Number of batches to measure on, from the beginning of the task's data.
      how: `how(is_first_task)` returns keyword arguments of `penalties.consolidate`.
    """

    def init(params: Any) -> dict[str, Any]:
        return {"weight": jnp.asarray(weight, jnp.float32), "around": penalties.init_consolidated(params)}

    def after(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
        model, stored = task.experiment.model, state.method[name]
        params, sums = select_like(state.params, stored["around"].anchor), None
        measured = jax.jit(lambda *arrays: importance(model, *arrays))
        for number, batch in enumerate(itertools.islice(_stage_batches(context), batches)):
            context.stop()
            more = measured(state, params, batch, key_for(context.key, "importance", number))
            sums = more if sums is None else jax.tree.map(jnp.add, sums, more)
        assert sums is not None
        information = jax.tree.map(lambda leaf: leaf / jnp.maximum(sums[1], 1), sums[0])
        around = jax.jit(lambda *arrays: penalties.consolidate(*arrays, **how(task.index == 0)))(
            stored["around"], information, params
        )
        context.report(f"{name}: consolidated after task {task.index}, from {int(sums[1])} gradients")
        return _with_method_state(state, name, {**stored, "around": around})

    wrap = _add_quadratic_penalty(name)
    return Component(name, init, wrap, wrap, after_task=after, requirements=TOLD_BORDERS)


def _distill_from_previous_model(
    name: str, weight: float, temperature: float, *, stream: bool, annealed: bool = False, earlier_of: int = 0
) -> Component:
    """Makes a component that distills from the model before a task, during every task but the first.

    Args:
      name: Name of the component in `TrainState.method`.
      weight: Weight of the divergence from the teacher.
      temperature: Temperature of the softmax of teacher and student.
      stream: Whether rows of the stream are distilled. If not, replayed rows are.
      annealed: Whether the weight falls linearly to 0 in the course of a stage, whose updates `UPDATE_COUNTER` counts.
      earlier_of: Number of classes of the head of which those of earlier tasks alone are distilled. 0 for all.
    """
    loss_name = f"{name}/divergence"

    def init(params: Any) -> dict[str, Any]:
        classes = {EARLIER: jnp.zeros(earlier_of, bool)} if earlier_of else {}
        return {"weight": jnp.zeros((), jnp.float32), "teacher": jax.tree.map(jnp.copy, params), **classes}

    def teacher(method: Any) -> Any:
        return {"params": method[name]["teacher"]}

    def wrap(objective: Objective, model: Any) -> Objective:
        distilled = with_distillation(
            model_loss(model, output=True),
            loss_name,
            model,
            teacher,
            temperature=temperature,
            classes=(lambda method: method[name][EARLIER]) if earlier_of else None,
        )

        def weighted_loss(variables: Any, memory: Any, segment: Batch, key: Any) -> Any:
            memory, batch_stats, nll, aux = distilled(variables, memory, segment, key)
            share, divergence = variables["method"][name]["weight"], aux.losses[loss_name]
            share = share * (1 - fraction_done(variables["method"])) if annealed else share
            losses = {**aux.losses, loss_name: dataclasses.replace(divergence, total=share * divergence.total)}
            return memory, batch_stats, nll, dataclasses.replace(aux, losses=losses)

        return objective._replace(loss=weighted_loss, coefficients={**objective.coefficients, loss_name: 1.0})

    def before(state: TrainState, context: PhaseContext, task: TaskInfo) -> TrainState:
        del context
        strength = jnp.asarray(weight if task.index else 0.0, jnp.float32)
        teacher, stored = jax.tree.map(jnp.copy, select_like(state.params, state.method[name]["teacher"])), {}
        if EARLIER in state.method[name]:
            earlier = np.zeros(state.method[name][EARLIER].shape, bool)
            for part in task.parts[: task.index]:
                earlier[find_classes(part.examples)] = True
            stored = {EARLIER: jnp.asarray(earlier)}
        return _with_method_state(state, name, {"weight": strength, "teacher": teacher, **stored})

    wrappers: dict[str, Any] = {"wrap_stream_loss": wrap} if stream else {"wrap_replay_loss": wrap}
    return Component(name, init, **wrappers, before_task=before, requirements=TOLD_BORDERS)


# Functions of a model that components use


def _prediction_uncertainty(model: Any, variables: Any, method: Any, rows: Batch) -> Any:
    """Computes the uncertainty of the model about rows: 1 minus the highest class probability, floats `[rows]`."""
    del method
    output = read_segment(model, variables, model.init_state(rows.inputs.shape[0]), rows, deterministic=True)[0]
    log_probs = model.apply(variables, output, method="log_probs")
    return 1 - jnp.exp(jnp.max(log_probs, axis=-1))[:, 0]


def _is_answered_correctly(model: Any, variables: Any, method: Any, rows: Batch) -> Any:
    """Returns whether the most probable class is the target at all targets of a row, bool `[rows]`."""
    del method
    output = read_segment(model, variables, model.init_state(rows.inputs.shape[0]), rows, deterministic=True)[0]
    answers = jnp.argmax(model.apply(variables, output, method="log_probs"), axis=-1)
    return jnp.all((answers == rows.targets) | (rows.weights == 0), axis=-1)


def _with_method_state(state: TrainState, name: str, kept: Any) -> TrainState:
    """Returns the state with the state of a component replaced under its name."""
    return dataclasses.replace(state, method={**state.method, name: kept})


def _stage_batches(context: PhaseContext) -> Iterator[Batch]:
    """Iterates over the batches that the updates of a stage read, from the beginning of the stage."""
    return (batch for _, batch in context.data() if batch is not None)


def _rows_and_weights(batch: Batch) -> tuple[Batch, Any]:
    """Returns the rows of all segments of a batch, `[rows, ...]`, and weights: 1 for rows with targets, else 0."""
    rows = rows_of(batch)
    return rows, jnp.any(rows.weights > 0, axis=-1).astype(jnp.float32)


def _with_params(state: TrainState, params: Any) -> dict[str, Any]:
    """Returns the variables of the model with other parameters, all of them or the trained ones."""
    return {**model_variables(state), "params": fill_in(params, state.params)}


def _output_of(model: Any, state: TrainState, params: Any, row: Batch) -> Any:
    """Applies the model to a single row in evaluation mode and returns its output, `[1, ...]`."""
    variables, batch = _with_params(state, params), jax.tree.map(lambda leaf: leaf[None], row)
    return read_segment(model, variables, model.init_state(1), batch, deterministic=True)[0]


def _scores_of(model: Any, state: TrainState, params: Any, row: Batch) -> Any:
    """Returns the scores of a single row before a softmax, `[1, targets, choices]`, with 0 for choices that are left
    out and for targets that are not scored, such as padding.
    """
    output = _output_of(model, state, params, row)
    scores = model.apply(_with_params(state, params), output, method="logits")
    return jnp.where((row.weights > 0)[None, :, None] & (scores != -jnp.inf), scores, 0)


def _row_functions(model: Any, state: TrainState) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Makes two functions of a row: `log_likelihood(params, row, targets)`, a mean, and `log_probs(params, row)`.
    `params` are all parameters or the trained ones.
    """

    def log_likelihood(params: Any, row: Batch, targets: Any) -> Any:
        variables, output = _with_params(state, params), _output_of(model, state, params, row)
        targets = jnp.broadcast_to(targets, row.targets.shape)
        return -model.apply(variables, output, targets[None], row.weights[None], method="nll").mean()

    def log_probs(params: Any, row: Batch) -> Any:
        output = _output_of(model, state, params, row)
        return model.apply(_with_params(state, params), output, method="log_probs")[0]

    return log_likelihood, log_probs
