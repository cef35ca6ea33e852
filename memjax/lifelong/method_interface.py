"""The interface of a lifelong-learning method, and the stages of a run over a stream of tasks.

A method says how its learner is made, which data the stages read, and what happens before and after each task. The
training loop, checkpoints, evaluations and commands are the same as for plain training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from memjax import config as configs
from memjax.config import Config, Lifelong
from memjax.data.batch_iterator import epoch_order
from memjax.data.documents import Examples
from memjax.lifelong.update_streams import (
    EpisodeSchedule,
    ExampleSubset,
    JoinedExamples,
    ReplaySchedule,
    StreamPlan,
    TaskSlice,
    task_free_order,
)
from memjax.settings.pointers import import_by_name
from memjax.training.experiment import Experiment, task_of_evaluation
from memjax.training.plain_learner import make_stage
from memjax.training.sharding import Layout
from memjax.training.stages import (
    GrowthHistory,
    Learner,
    PhaseContext,
    PhaseResult,
    Requirements,
    Stage,
    UpdateStream,
    do_nothing,
)
from memjax.training.train_state import TrainState
from memjax.training.update_functions import MakeObjective

Phase = Callable[[TrainState, PhaseContext], PhaseResult]
Scope = Literal["task", "seen", "all"]
"""Examples that a stage reads: those of its task, those of all tasks up to it, or those of all tasks in one stage."""


def phase_of(*changes: Callable[[TrainState, PhaseContext], TrainState]) -> Phase:
    """Makes a phase from functions `change(state, context)`, given as positional arguments, which it applies to the
    train state one after the other. Without any it does nothing.
    """

    def run(state: TrainState, context: PhaseContext) -> PhaseResult:
        for change in changes:
            state = change(state, context)
        return PhaseResult(state, context.lineage)

    return run if changes else do_nothing


class TaskInfo(NamedTuple):
    """The task that phases and stages of a method are made for: its number, its experiment, and the examples of all
    tasks.

    Attributes:
      index: Number of the task in the order of the stream, from 0.
      experiment: Experiment that reads the documents of the task.
      parts: Examples of all tasks in the order of the stream, for methods with stages of their own.
    """

    index: int
    experiment: Experiment
    parts: Sequence[TaskSlice] = ()


class ModelGrowth(NamedTuple):
    """Two functions by which a method makes its model grow before tasks: `fields_before` plans a growth without any
    training, and `grow_state` changes the train state.

    Attributes:
      fields_before: `fields_before(index, config, lineage, key)` returns the fields of the configuration that change
        before task number `index`, as one entry of the growth history. None if the model does not grow before the task.
        `config` is the configuration of the model so far.
      grow_state: `grow_state(small, big, fields)` returns a function that turns the train state of experiment `small`
        into that of the bigger experiment `big`. `fields` is the entry of the growth history.
    """

    fields_before: Callable[[int, Config, GrowthHistory, Any], Mapping[str, Any] | None]
    grow_state: Callable[[Experiment, Experiment, Mapping[str, Any]], Callable[[TrainState], TrainState]]


class Method(NamedTuple):
    """A method of lifelong learning, as functions that make its learner and its phases and stages for each task, and
    options such as its replay schedule.

    Attributes:
      learner: `learner(experiment, layout, objective)` makes the learner. The experiment has the model with all its
        growth so far.
      before: `before(task)` makes the phase before the updates of a task.
      after: `after(task)` makes the phase after the updates of a task.
      scope: Tasks whose examples a stage reads. See `Scope`.
      schedule: Schedule of the updates between those of the stream.
      needs: Information that batches and tasks must carry for the method. It is given nothing else.
      stages: `stages(task, stage)` returns the stages of a task. `stage` is the one that reads the examples of the
        task, with its phases. Evaluations follow the last stage.
      growth: Growth of the model before tasks. None for a model that does not grow.
      notes: `notes(name, seen, total, epochs)` returns lines about a task: its name, the number of examples that the
        run reads before it, the number that it reads with repetitions, and how often it reads each.
    """

    learner: Callable[[Experiment, Layout | None, MakeObjective], Learner]
    before: Callable[[TaskInfo], Phase] = lambda task: do_nothing
    after: Callable[[TaskInfo], Phase] = lambda task: do_nothing
    scope: Scope = "task"
    schedule: ReplaySchedule | EpisodeSchedule = ReplaySchedule()
    needs: Requirements = Requirements()
    stages: Callable[[TaskInfo, Stage], Sequence[Stage]] = lambda task, stage: (stage,)
    growth: ModelGrowth | None = None
    notes: Callable[[str, int, int, int], Sequence[str]] = lambda name, seen, total, epochs: ()


def make_method(settings: Any, boundaries: str = "known") -> Method:
    """Makes the `Method` that settings such as `memjax.config.ELLE` describe, by calling the function that the settings
    name, or their own `make`. `boundaries` is the setting `lifelong.task_boundaries` of the stream.

    Args:
      settings: Settings of a method.
      boundaries: The setting `lifelong.task_boundaries` of the stream.

    Raises:
      ValueError: the settings are not those of a method, or a user's `make` returns something else.
    """
    if not isinstance(settings, configs.Method):
        allowed = ", ".join(kind.__name__ for kind in get_args(configs.MethodKind))
        raise ValueError(
            f"lifelong.method: given {type(settings).__name__}, allowed: {allowed}, or a Method of your own"
        )
    settings = settings.for_boundaries(boundaries)
    method = import_by_name(settings.made_by)(settings) if settings.made_by else settings.make()
    if not isinstance(method, Method):
        kind = type(settings).__name__
        raise ValueError(
            f"lifelong.method: given {kind}, whose make() returns a {type(method).__name__}, allowed: a "
            "memjax.lifelong.Method, as chain_components(...)"
        )
    return method


def task_stages(experiment: Experiment, layout: Layout | None, method: Method) -> Sequence[Stage]:
    """Makes the stages of a run over a stream of tasks, a list in their order. Usually there is one for each task, and
    all evaluations that have a name follow it.

    A task has one stage unless the method adds others, and is followed by all evaluations that have a name. A stream
    without known task boundaries, or a method that reads all tasks at once, has one stage.

    Tasks of documents, which never end, get equal shares of `training.steps`. Tasks of examples read each example
    `lifelong.epochs` times, or more often for `lifelong.min_updates_per_task`. The number of updates follows from
    that, with the updates of the method's schedule added.

    Args:
      experiment: Experiment of a configuration with tasks.
      layout: Shardings of all arrays over the mesh. None on a single device.
      method: Learning method.

    Raises:
      ValueError: the stream lacks information that the method needs, or a task has no examples.
    """
    config, settings = experiment.config, settings_of(experiment)
    _check_requirements(config, settings, method)
    scored = [evaluation.name for evaluation in config.evaluations]
    names = [task.name for task in settings.ordered_tasks]
    tasks = [experiment.of_task(name) for name in names]

    parts = concatenate_tasks(tasks) if settings.epochs else []

    def phases(index: int) -> dict[str, Phase]:
        if not method.needs.boundaries:
            return {}
        task = TaskInfo(index, tasks[index], parts)
        return {"before": method.before(task), "after": method.after(task)}

    before = lambda index: {"evaluate_before": scored if settings.evaluate_before_training and index == 0 else ()}
    if not settings.epochs:
        steps = config.training.steps // len(names)
        return [
            make_stage(task, layout, name, steps, task=name, evaluate_after=scored, **before(index), **phases(index))
            for index, (task, name) in enumerate(zip(tasks, names, strict=True))
        ]

    def stage(
        name: str,
        split: Examples,
        plan: StreamPlan,
        read: Mapping[str, Experiment],
        seen: int,
        **fields: Any,
    ) -> Stage:
        host_rows = layout.host_rows(config.data.batch_size) if layout else None
        passes = settings.passes(len(split), config.data.batch_size)

        def open_stream(state: TrainState, position: Mapping[str, Any] | None) -> UpdateStream:
            reading = {"epochs": passes, "shuffle": settings.task_boundaries == "known"}
            return plan.stream(experiment.stream(position, host_rows, split=split, **reading), position)

        lines = [f"{name}: the last {plan.left_out} examples fill no episode, and are left out"] * bool(plan.left_out)
        lines += [
            line for name, task in read.items() for line in _describe_skipped(name, task, config.evaluation.split)
        ]
        lines += method.notes(name, seen, plan.total, passes)
        lines += _describe_passes(name, passes, len(split), settings)
        return Stage(name, open_stream, plan.updates, evaluate_after=scored, notes=lines, **fields)

    splits = _join_tasks(experiment, method, parts)
    plans = _plan_stages(config, method, splits)
    if len(splits) == 1 < len(names):
        return [stage("all tasks", splits[0], plans[0], dict(zip(names, tasks, strict=True)), 0, **before(0))]
    stages: list[Stage] = []
    seen = itertools.accumulate((plan.total for plan in plans[:-1]), initial=0)
    for index, (name, split, plan, before_it) in enumerate(zip(names, splits, plans, seen, strict=True)):
        own_stage = stage(
            name, split, plan, {name: tasks[index]}, before_it, task=name, **before(index), **phases(index)
        )
        *first, last = method.stages(TaskInfo(index, tasks[index], parts), own_stage._replace(evaluate_after=()))
        stages += [*first, last._replace(evaluate_after=scored)]
    return stages


def learns_all_at_once(settings: Lifelong) -> bool:
    """Returns whether a run with these settings reads the examples of all tasks in one stage, because its method does
    or because the boundaries between tasks are unknown.
    """
    reads_all = make_method(settings.method).scope == "all" or settings.task_boundaries != "known"
    return bool(settings.epochs) and reads_all


def _describe_skipped(name: str, task: Experiment, evaluated: str) -> list[str]:
    """Returns a line for each split of a task with generated answers that says how many examples do not fit.

    Args:
      name: Name of the task.
      task: Experiment of the task.
      evaluated: Split that is evaluated. The training split is looked at too.
    """
    if not task.task.writes_answers:
        return []
    splits = dict.fromkeys(("train", evaluated))
    return [f"{name}, {split}: {line}" for split in splits for line in task.task.notes(task.documents(split))]


def _describe_passes(name: str, passes: int, num_examples: int, settings: Lifelong) -> list[str]:
    """Returns a line if the examples of a stage are read more often than the settings say, and [] otherwise.

    Args:
      name: Name of the stage.
      passes: Number of passes over the examples.
      num_examples: Number of examples.
      settings: Settings of the stream of tasks.
    """
    if passes <= settings.epochs:
        return []
    few = f"{passes} passes over {num_examples:,} examples instead of {settings.epochs}"
    return [f"{name}: {few}, for at least {settings.min_updates_per_task} updates (lifelong.min_updates_per_task)"]


def _plan_stages(config: Config, method: Method, splits: Sequence[Examples]) -> list[StreamPlan]:
    """Plans the updates of every stage.

    Args:
      config: Configuration with tasks.
      method: Learning method, for its schedule.
      splits: Examples of every stage.

    Raises:
      ValueError: a stage has too few examples for a single update.
    """
    assert config.lifelong is not None
    plans: list[StreamPlan] = []
    for index, split in enumerate(splits):
        sizes = (len(split), config.data.batch_size, config.lifelong.passes(len(split), config.data.batch_size))
        plan = method.schedule.plan(*sizes, plans[-1] if plans else None)
        if not plan.updates:
            what = f"lifelong.tasks.{index}: given {plan.total} examples to train on in {plan.batches} batches"
            first = plan.update(0)
            raise ValueError(f"{what}, allowed: {first.reads + first.padding} batches and more, an episode")
        plans.append(plan)
    return plans


def stage_examples(experiment: Experiment, method: Method) -> list[JoinedExamples]:
    """Returns a list of the training examples of each stage (`JoinedExamples`), numbered over the whole run. They carry
    the numbers of their tasks if the method needs these.
    """
    tasks = [experiment.of_task(task.name) for task in settings_of(experiment).ordered_tasks]
    return _join_tasks(experiment, method, concatenate_tasks(tasks))


def concatenate_tasks(tasks: Sequence[Experiment]) -> list[TaskSlice]:
    """Returns a list of the training examples of each task (`TaskSlice`), numbered consecutively over the whole run.
    `tasks` are the experiments of the tasks, in order.
    """
    splits = [_limit_examples(task, number) for number, task in enumerate(tasks)]
    starts = itertools.accumulate((len(examples) for examples in splits), initial=0)
    return [
        TaskSlice(examples, task, first) for task, (examples, first) in enumerate(zip(splits, starts, strict=False))
    ]


def _limit_examples(task: Experiment, number: int) -> Examples:
    """Returns the training examples of a task, limited to a random subset if `lifelong.max_examples_per_task` is set.

    Args:
      task: Experiment of the task.
      number: Number of the task in the stream.

    Raises:
      ValueError: the task has fewer examples than its limit.
    """
    examples, limits = task.documents("train"), settings_of(task).max_examples_per_task
    if not limits:
        return examples
    if limits[number] > len(examples):
        what = f"lifelong.max_examples_per_task.{number}: given {limits[number]}"
        raise ValueError(f"{what}, allowed: up to {len(examples)}, the examples of the task")
    chosen = epoch_order(len(examples), seed=task.config.data.seed, epoch=0)[: limits[number]]
    return ExampleSubset(examples, np.sort(chosen))


def _join_tasks(experiment: Experiment, method: Method, every: Sequence[TaskSlice]) -> list[JoinedExamples]:
    """Joins the examples of tasks into the data sets of the stages, by the scope of a method and the task boundaries.

    Args:
      experiment: Experiment of a configuration with tasks.
      method: Learning method, for its scope and its requirements.
      every: Examples of all tasks.

    Returns:
      The examples of every stage: one data set for each task, or a single one.
    """
    settings, splits = settings_of(experiment), [part.examples for part in every]
    tells: dict[str, Any] = {"tells_task": method.needs.tasks_in_training}
    if settings.task_boundaries != "known":
        width = {"sharp": 0.0, "blurred": float(settings.blur_width), "mixed": math.inf}[settings.task_boundaries]
        order = task_free_order([len(split) for split in splits], width=width, seed=experiment.config.data.seed)
        return [JoinedExamples(every, order=order, **tells)]
    match method.scope:
        case "task":
            return [JoinedExamples([part], **tells) for part in every]
        case "seen":
            return [JoinedExamples(every[: index + 1], **tells) for index in range(len(every))]
        case "all":
            return [JoinedExamples(every, **tells)]


def settings_of(experiment: Experiment) -> Lifelong:
    """Returns the settings of the stream of tasks (`Lifelong`) of an experiment with tasks."""
    settings = experiment.config.lifelong
    assert settings is not None
    return settings


def _check_requirements(config: Config, settings: Lifelong, method: Method) -> None:
    """Checks that a run can begin with a stream of tasks, which carries the information that a method needs.

    Args:
      config: Configuration of the run.
      settings: Settings of its stream of tasks.
      method: Learning method.

    Raises:
      ValueError: the information is missing. The message names the setting to change.
    """
    if settings.num_growths:
        raise ValueError(f"lifelong.num_growths: given {settings.num_growths}, allowed: 0 where a run begins")
    kind, borders = type(settings.method).__name__, settings.task_boundaries
    if borders != "known" and (method.needs.boundaries or method.scope == "seen"):
        raise ValueError(
            f"lifelong.task_boundaries: given {borders!r}, allowed: 'known', {kind} needs to know where tasks end"
        )
    if borders != "known" and method.needs.tasks_in_training:
        raise ValueError(
            f"lifelong.task_boundaries: given {borders!r}, allowed: 'known', {kind} needs to know the task"
        )
    counts = method.needs.examples or method.needs.tasks_in_training or method.scope != "task"
    if not settings.epochs and (counts or borders != "known"):
        what = kind if borders == "known" else f"borders {borders!r}"
        raise ValueError(f"lifelong.epochs: given 0, allowed: at least 1, {what} counts examples")
    if method.needs.tasks_in_evaluation:
        for evaluation in (config.evaluation, *config.evaluations):
            task_of_evaluation(config, evaluation)


def check_takes_tasks(config: Config, method: Method) -> None:
    """Raises ValueError if a run with this configuration and method cannot continue with further tasks as if it had
    known all of them from the beginning.

    Raises:
      ValueError: it cannot. The message names the setting that prevents it.
    """
    settings, decay = config.lifelong, config.training.schedule.decay
    assert settings is not None
    kind, more = type(settings.method).__name__, "allowed for a run that takes another task: "
    anew = "; or a new run with all of the tasks"
    if method.needs.all_tasks:
        allowed = f"{more}one whose memory and adapters are not divided by the tasks{anew}"
        raise ValueError(f"lifelong.method: given {kind}, {allowed}")
    if settings.task_boundaries != "known" or method.scope == "all":
        what = "lifelong.method" if method.scope == "all" else "lifelong.task_boundaries"
        value = kind if method.scope == "all" else repr(settings.task_boundaries)
        raise ValueError(f"{what}: given {value}, {more}a stage for each task; here all are one{anew}")
    if not settings.epochs and decay in ("cosine", "linear"):
        raise ValueError(
            f"training.schedule.decay: given {decay!r}, {more}'constant' or 'rsqrt'; this one ends with the tasks "
            f"known{anew}"
        )
