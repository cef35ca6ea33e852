"""The settings of a method -> the method; and training of any configuration."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from memjax import config as configs
from memjax.config import Config
from memjax.lifelong.contract import MakeObjective, Method, task_stages
from memjax.lifelong.ewc import ewc
from memjax.lifelong.sequential import sequential
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeLearner, TrainingResult
from memjax.training.loop import train as train_course
from memjax.training.sharding import Layout
from memjax.training.stages import Stage

__all__ = ["course_of", "train"]


def make_method(settings: Any) -> Method:
    """The method that the settings describe.

    Raises:
      ValueError: they describe none.
    """
    match settings:
        case configs.Sequential():
            return sequential()
        case configs.EWC():
            return ewc(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)})
    raise ValueError(f"lifelong.method: given {type(settings).__name__}, allowed: Sequential, EWC")


def course_of(
    experiment: Experiment, layout: Layout | None, objective: MakeObjective
) -> tuple[MakeLearner, Sequence[Stage]]:
    """The learner and the stages of a configuration with tasks (see `memjax.training.loop.train`)."""
    assert experiment.config.lifelong is not None
    method = make_method(experiment.config.lifelong.method)
    learner = lambda lineage: method.learner(experiment.grown(lineage), layout, objective)
    return learner, task_stages(experiment, layout, method)


def train(config: Config, **arguments: Any) -> TrainingResult:
    """Trains a configuration: with one task as `memjax.training.train` does, with several one after the other.

    Without `config.evaluations`, each task is evaluated as `config.evaluation` says, under its name.
    """
    if config.lifelong is None:
        return train_course(config, **arguments)
    if not config.evaluations:
        own = lambda name: dataclasses.replace(config.evaluation, name=name, task=name)
        config = dataclasses.replace(config, evaluations=tuple(own(task.name) for task in config.lifelong.tasks))
    return train_course(config, **{"course": course_of, **arguments})
