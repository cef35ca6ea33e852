"""The settings of a method -> the method; and training of any configuration."""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import jax

from memjax import config as configs
from memjax.config import Config
from memjax.lifelong.contract import Method, check_takes_tasks, task_stages
from memjax.lifelong.features import cache_states
from memjax.training import loop, restoring
from memjax.training.assembly import make_objective
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeLearner, MakeObjective, TrainingResult
from memjax.training.restoring import LoadedRun
from memjax.training.runs import grown, load_config, run_path, takes_tasks
from memjax.training.sharding import Layout
from memjax.training.stages import Learner, Lineage, Stage, count_steps

__all__ = ["course_of", "lineages", "load_run", "make_learner", "train"]


def make_method(settings: Any) -> Method:
    """The method that the settings describe: their class names the function that makes it of their fields.

    Raises:
      ValueError: they describe none.
    """
    if not isinstance(settings, kinds := get_args(configs.MethodKind)):
        allowed = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"lifelong.method: given {type(settings).__name__}, allowed: {allowed}")
    file, name = settings.made_by.split(".")
    make = getattr(importlib.import_module(f"memjax.lifelong.{file}"), name)
    return make(**settings.arguments())


def lineages(config: Config) -> list[Lineage]:
    """How the model will have grown by each task of a stream; nothing is trained, and what is drawn is not a run's.

    Args:
      config: with tasks.
    """
    assert config.lifelong is not None
    method, found = make_method(config.lifelong.method), list[Lineage]([()])
    for index in range(1, len(config.lifelong.tasks)):
        step = method.growth(grown(config, found[-1]), index, found[-1], jax.random.key(index))
        found.append((*found[-1], step) if step else found[-1])
    return found


def make_learner(
    experiment: Experiment, layout: Layout | None = None, objective: MakeObjective = make_objective
) -> Learner:
    """The learner of any configuration: that of its method, where it has one."""
    if experiment.config.lifelong is None:
        return loop.plain_learner(experiment, layout, objective)
    return make_method(experiment.config.lifelong.method).learner(experiment, layout, objective)


def course_of(
    experiment: Experiment, layout: Layout | None, objective: MakeObjective
) -> tuple[MakeLearner, Sequence[Stage]]:
    """The learner and the stages of a configuration with tasks (see `memjax.training.loop.train`)."""
    assert experiment.config.lifelong is not None
    method = make_method(experiment.config.lifelong.method)
    stages = task_stages(experiment, layout, method)
    steps = count_steps(stages)
    if (
        experiment.config.lifelong.epochs and steps
    ):  # a rate that decays does so over all updates, which are known by now
        training = dataclasses.replace(experiment.config.training, steps=steps)
        experiment = dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, training=training))
    return lambda lineage: method.learner(experiment.grown(lineage), layout, objective), stages


def train(config: Config, **arguments: Any) -> TrainingResult:
    """Trains a configuration: with one task as `memjax.training.train` does, with several one after the other.

    Without `config.evaluations`, each task is evaluated as `config.evaluation` says, under its name. A run that has
    learned the first tasks, whether it is through or not, goes on with the others (`Config.with_task`), and ends as one
    that knew them all from the beginning. What `data.states` lacks is computed first.

    Raises:
      ValueError: the tasks of the run do not come first, or its method cannot take others, and as the loop.
    """
    if config.data.states:
        cache_states(config)
    if config.lifelong is None:
        return loop.train(config, **arguments)
    if takes_tasks(run_path(config), config):
        check_takes_tasks(config, make_method(config.lifelong.method))
    if not config.evaluations:
        own = lambda name: dataclasses.replace(config.evaluation, name=name, task=name)
        config = dataclasses.replace(config, evaluations=tuple(own(task.name) for task in config.lifelong.in_order))
    return loop.train(config, **{"course": course_of, **arguments})


def load_run(run: Path | str, config: Config | None = None, *, step: int | None = None) -> LoadedRun:
    """Opens a run of any configuration, as `memjax.training.load_run` does; the learner of a method adapts."""
    config = load_config(run) if config is None else config
    if config.lifelong is None:
        return restoring.load_run(run, config, step=step)
    return restoring.load_run(run, config, step=step, learner=make_learner)
