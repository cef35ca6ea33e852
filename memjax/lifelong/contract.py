"""What a method of lifelong learning is, and the stages of a stream of tasks.

A method says how its learner is made and what happens before and after each task. The loop, the checkpoints, the
evaluations and the command are those of plain training.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective, plain_stage
from memjax.training.sharding import Layout
from memjax.training.stages import Change, Context, Learner, Stage, keep
from memjax.training.step import TrainState

__all__ = ["Method", "task_stages"]

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
    tasks = [task.name for task in (config.lifelong.tasks if config.lifelong else ())]
    scored, steps = [evaluation.name for evaluation in config.evaluations if evaluation.task], config.training.steps

    def stage(index: int, name: str) -> Stage:
        own = experiment.of_task(name)
        phases = {"before": method.before(index, own), "after": method.after(index, own)}
        return plain_stage(own, layout, name, steps // len(tasks), task=name, evaluate=scored, **phases)

    return [stage(index, name) for index, name in enumerate(tasks)]
