"""What a method of lifelong learning is, and the stages of a stream of tasks.

A method says how its learner is made, which data the stages read, and what happens before and after each task. The
loop, the checkpoints, the evaluations and the command are those of plain training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from memjax.config import Config, Lifelong
from memjax.data.documents import Examples
from memjax.data.rows import epoch_order
from memjax.lifelong.streams import (
    Chosen,
    EpisodePlan,
    EpisodeSchedule,
    EpisodeStream,
    JoinedExamples,
    Part,
    Plan,
    PlannedStream,
    Schedule,
    task_free_order,
)
from memjax.training.experiment import Experiment, task_evaluated
from memjax.training.loop import MakeObjective, plain_stage
from memjax.training.sharding import Layout
from memjax.training.stages import Change, Context, Learner, Lineage, Needs, Stage, keep
from memjax.training.step import TrainState

__all__ = ["Method", "Phase", "Scope", "TaskInfo", "phase_of", "settings_of", "stage_examples", "task_stages"]

Phase = Callable[[TrainState, Context], Change]
Scope = Literal["task", "seen", "all"]
"""whose examples a stage reads: the task's own, those of all tasks up to it, or those of all tasks in one stage"""


def phase_of(*changes: Callable[[TrainState, Context], TrainState]) -> Phase:
    """A phase of changes, one after the other; of none `keep`."""

    def run(state: TrainState, context: Context) -> Change:
        for change in changes:
            state = change(state, context)
        return Change(state, context.lineage)

    return run if changes else keep


class TaskInfo(NamedTuple):
    """The task before or after which a phase stands.

    Attributes:
      index: in the order of the stream.
      experiment: with the documents of the task.
      parts: the examples of all tasks, in their order, for stages of a method's own.
    """

    index: int
    experiment: Experiment
    parts: Sequence[Part] = ()


class Method(NamedTuple):
    """A method of lifelong learning for one configuration.

    Attributes:
      learner: `learner(experiment, layout, objective) -> Learner`; the experiment has the model as it has grown.
      before: `before(task)`, the phase before the updates of a task.
      after: likewise after them.
      scope: whose examples a stage reads.
      schedule: which updates stand between those of the stream.
      needs: what the method must be told; it is told nothing else.
      takes_tasks: what it keeps has room for tasks that it did not know of when it began.
      stages: `stages(task, own)`, the stages of a task, of which `own` is the one that reads its examples, with the
        phases of the task; evaluations follow the last.
      growth: `growth(config, index, lineage, key)`, what the model becomes before a task, as a part of its lineage;
        None = it stays. The configuration is that of the model so far.
      grow: `grow(small, big, fields) -> change(state)`, the state of the experiment that has grown by the fields that
        `growth` gives, from that of the one before it; traced for shapes before anything is trained.
      notes: `notes(name, seen, total, epochs)`, lines about a task of that name, before which the run has read so many
        examples, and which reads so many, each time that one is read counting.
    """

    learner: Callable[[Experiment, Layout | None, MakeObjective], Learner]
    before: Callable[[TaskInfo], Phase] = lambda task: keep
    after: Callable[[TaskInfo], Phase] = lambda task: keep
    scope: Scope = "task"
    schedule: Schedule | EpisodeSchedule = Schedule()
    needs: Needs = Needs()
    takes_tasks: bool = True
    stages: Callable[[TaskInfo, Stage], Sequence[Stage]] = lambda task, own: (own,)
    growth: Callable[[Config, int, Lineage, Any], Mapping[str, Any] | None] = lambda config, index, lineage, key: None
    grow: Callable[[Experiment, Experiment, Mapping[str, Any]], Callable[[TrainState], TrainState]] | None = None
    notes: Callable[[str, int, int, int], Sequence[str]] = lambda name, seen, total, epochs: ()


def task_stages(experiment: Experiment, layout: Layout | None, method: Method) -> Sequence[Stage]:
    """The stages of each task, one unless the method has more, or one for all tasks where they are read at once; each
    task is followed by every evaluation that has a name.

    Documents, which are read for ever, get an equal share of the updates. Examples are read `lifelong.epochs` times,
    or more often where `lifelong.least_updates` asks for it; that takes as many updates as it takes, and those of the
    method's schedule between them.

    Args:
      experiment: of a configuration with tasks.
      layout: of arrays on several devices.
      method: what happens between tasks.

    Raises:
      ValueError: the stream does not give what the method needs, or a task has no examples.
    """
    config, settings = experiment.config, settings_of(experiment)
    if settings.growths:
        raise ValueError(f"lifelong.growths: given {settings.growths}, allowed: 0 where a run begins")
    check_needs(settings, method)
    if method.needs.tasks_in_evaluation:
        for evaluation in (config.evaluation, *config.evaluations):
            task_evaluated(config, evaluation)
    scored = [evaluation.name for evaluation in config.evaluations]
    names = [task.name for task in settings.in_order]
    own = [experiment.of_task(name) for name in names]

    parts = parts_of(own) if settings.epochs else []

    def phases(index: int) -> dict[str, Phase]:
        if not method.needs.boundaries:
            return {}
        task = TaskInfo(index, own[index], parts)
        return {"before": method.before(task), "after": method.after(task)}

    before = lambda index: {"evaluate_before": scored if settings.evaluate_before and index == 0 else ()}
    if not settings.epochs:
        steps = config.training.steps // len(names)
        return [
            plain_stage(one, layout, name, steps, task=name, evaluate=scored, **before(index), **phases(index))
            for index, (one, name) in enumerate(zip(own, names, strict=True))
        ]

    def stage(
        name: str, split: Examples, plan: Plan | EpisodePlan, read: Mapping[str, Experiment], seen: int, **fields: Any
    ) -> Stage:
        host_rows = layout.host_rows(config.data.rows) if layout else None
        passes = settings.passes(len(split), config.data.rows)

        def opened(state: TrainState, position: Mapping[str, Any] | None) -> PlannedStream | EpisodeStream:
            reading = {"epochs": passes, "shuffle": settings.borders == "known"}
            return plan.stream(experiment.stream(position, host_rows, split=split, **reading), position)

        lines = [f"{name}: the last {plan.left_out} examples fill no episode, and are left out"] * bool(plan.left_out)
        lines += [line for one in read.items() for line in left_out(*one, config.evaluation.split)]
        lines += method.notes(name, seen, plan.total, passes)
        if passes > settings.epochs:
            few = f"{passes} passes over {len(split):,} examples instead of {settings.epochs}"
            lines.append(f"{name}: {few}, for at least {settings.least_updates} updates (lifelong.least_updates)")
        return Stage(name, opened, plan.updates, evaluate=scored, notes=lines, **fields)

    splits = joined_parts(experiment, method, parts)
    plans = plans_of(config, method, splits)
    if len(splits) == 1 < len(names):
        return [stage("all tasks", splits[0], plans[0], dict(zip(names, own, strict=True)), 0, **before(0))]
    found: list[Stage] = []
    seen = itertools.accumulate((plan.total for plan in plans[:-1]), initial=0)
    for index, (name, split, plan, before_it) in enumerate(zip(names, splits, plans, seen, strict=True)):
        one = stage(name, split, plan, {name: own[index]}, before_it, task=name, **before(index), **phases(index))
        *first, last = method.stages(TaskInfo(index, own[index], parts), one._replace(evaluate=()))
        found += [*first, last._replace(evaluate=scored)]
    return found


def left_out(name: str, task: Experiment, evaluated: str) -> list[str]:
    """How many examples of a task whose answers are written do not fit, in a line a split."""
    if not task.task.writes_answers:
        return []
    splits = dict.fromkeys(("train", evaluated))
    return [f"{name}, {split}: {line}" for split in splits for line in task.task.notes(task.documents(split))]


def plans_of(config: Config, method: Method, splits: Sequence[Examples]) -> list[Plan | EpisodePlan]:
    """The updates of every stage.

    Raises:
      ValueError: one has none.
    """
    assert config.lifelong is not None
    plans: list[Any] = []
    for index, split in enumerate(splits):
        sizes = (len(split), config.data.rows, config.lifelong.passes(len(split), config.data.rows))
        plan: Any = method.schedule.plan(*sizes, plans[-1] if plans else None)
        if not plan.updates:
            what = f"lifelong.tasks.{index}: given {plan.total} examples to train on in {plan.batches} batches"
            raise ValueError(f"{what}, allowed: {plan.size(0)} batches and more, an episode")
        plans.append(plan)
    return plans


def stage_examples(experiment: Experiment, method: Method) -> list[JoinedExamples]:
    """What the stage of each task reads, each example with its number in the run, and its task where that is needed."""
    own = [experiment.of_task(task.name) for task in settings_of(experiment).in_order]
    return joined_parts(experiment, method, parts_of(own))


def parts_of(tasks: Sequence[Experiment]) -> list[Part]:
    """The examples of all tasks, which are numbered one after the other."""
    own = [limited(task, number) for number, task in enumerate(tasks)]
    starts = itertools.accumulate((len(examples) for examples in own), initial=0)
    return [Part(examples, task, first) for task, (examples, first) in enumerate(zip(own, starts, strict=False))]


def limited(task: Experiment, number: int) -> Examples:
    """The examples of a task that its stage reads, in their order.

    Raises:
      ValueError: there are not as many as `lifelong.limits` says.
    """
    examples, limits = task.documents("train"), settings_of(task).limits
    if not limits:
        return examples
    if limits[number] > len(examples):
        what = f"lifelong.limits.{number}: given {limits[number]}"
        raise ValueError(f"{what}, allowed: up to {len(examples)}, the examples of the task")
    chosen = epoch_order(len(examples), seed=task.config.data.seed, epoch=0)[: limits[number]]
    return Chosen(examples, np.sort(chosen))


def joined_parts(experiment: Experiment, method: Method, every: Sequence[Part]) -> list[JoinedExamples]:
    """The examples of all tasks as the stages of a method read them."""
    settings, own = settings_of(experiment), [part.examples for part in every]
    tells: dict[str, Any] = {"tells_task": method.needs.tasks_in_training}
    if settings.borders != "known":
        width = {"sharp": 0.0, "blurred": float(settings.border_width), "mixed": math.inf}[settings.borders]
        order = task_free_order([len(one) for one in own], width=width, seed=experiment.config.data.seed)
        return [JoinedExamples(every, order=order, **tells)]
    match method.scope:
        case "task":
            return [JoinedExamples([part], **tells) for part in every]
        case "seen":
            return [JoinedExamples(every[: index + 1], **tells) for index in range(len(every))]
        case "all":
            return [JoinedExamples(every, **tells)]


def settings_of(experiment: Experiment) -> Lifelong:
    """The settings of the stream."""
    settings = experiment.config.lifelong
    assert settings is not None
    return settings


def check_needs(settings: Lifelong, method: Method) -> None:
    """Refuses a stream that does not give what a method needs.

    Raises:
      ValueError: one line with what is missing.
    """
    kind, borders = type(settings.method).__name__, settings.borders
    if borders != "known" and (method.needs.boundaries or method.scope == "seen"):
        raise ValueError(f"lifelong.borders: given {borders!r}, allowed: 'known', {kind} needs to know where tasks end")
    if borders != "known" and method.needs.tasks_in_training:
        raise ValueError(f"lifelong.borders: given {borders!r}, allowed: 'known', {kind} needs to know the task")
    counts = method.needs.examples or method.needs.tasks_in_training or method.scope != "task"
    if not settings.epochs and (counts or borders != "known"):
        what = kind if borders == "known" else f"borders {borders!r}"
        raise ValueError(f"lifelong.epochs: given 0, allowed: at least 1, {what} counts examples")


def check_takes_tasks(config: Config, method: Method) -> None:
    """Refuses further tasks where a run of all of them at once would have begun otherwise.

    Raises:
      ValueError: one line with what stands against it.
    """
    settings, decay = config.lifelong, config.training.schedule.decay
    assert settings is not None
    kind, more = type(settings.method).__name__, "allowed for a run that takes another task: "
    if not method.takes_tasks:
        raise ValueError(f"lifelong.method: given {kind}, {more}one whose memory is not divided by the tasks")
    if settings.borders != "known" or method.scope == "all":
        what = "lifelong.method" if method.scope == "all" else "lifelong.borders"
        given = kind if method.scope == "all" else repr(settings.borders)
        raise ValueError(f"{what}: given {given}, {more}a stage for each task; here all are one")
    if not settings.epochs and decay in ("cosine", "linear"):
        raise ValueError(
            f"training.schedule.decay: given {decay!r}, {more}'constant' or 'rsqrt'; this one ends with the tasks known"
        )
