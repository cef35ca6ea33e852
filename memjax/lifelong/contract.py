"""What a method of lifelong learning is, and the stages of a stream of tasks.

A method says how its learner is made and what happens before and after each task. The loop, the checkpoints, the
evaluations and the command are those of plain training.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from memjax.config import Config
from memjax.training.experiment import Experiment
from memjax.training.objective import Objective
from memjax.training.sharding import Layout
from memjax.training.stages import Change, Context, Learner, OfKind, Stage, keep
from memjax.training.step import TrainState

__all__ = ["Method", "task_stages"]

MakeObjective = Callable[[Config, Any], Objective]
Phase = Callable[[TrainState, Context], Change]


class Method(NamedTuple):
    """A method of lifelong learning for one configuration.

    Attributes:
      learner: `learner(experiment, layout, objective) -> Learner`; the experiment has the model as it has grown.
      before: `before(index, experiment)`, the phase before the updates of a task; the experiment has its documents.
      after: likewise after them.
    """

    learner: Callable[[Experiment, Layout | None, MakeObjective], Learner]
    before: Callable[[int, Experiment], Phase] = lambda index, experiment: keep
    after: Callable[[int, Experiment], Phase] = lambda index, experiment: keep


def task_stages(experiment: Experiment, layout: Layout | None, method: Method) -> Sequence[Stage]:
    """One stage for each task, with an equal share of the updates; every task is evaluated after each of them.

    Args:
      experiment: of a configuration with tasks.
      layout: of arrays on several devices.
      method: what happens between tasks.
    """
    config = experiment.config
    tasks, rows = config.lifelong.tasks if config.lifelong else (), config.data.rows
    held = layout.host_rows(rows) if layout else None
    scored = tuple(evaluation.name for evaluation in config.evaluations if evaluation.task)

    def stage(index: int, name: str) -> Stage:
        own = experiment.of_task(name)
        return Stage(
            name=name,
            open=lambda state, position: OfKind(own.stream(position, held)),
            steps=config.training.steps // len(tasks),
            before=method.before(index, own),
            after=method.after(index, own),
            task=name,
            evaluate=scored,
        )

    return [stage(index, task.name) for index, task in enumerate(tasks)]
