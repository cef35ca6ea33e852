"""The settings of a method -> the method; and training of any configuration."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import jax

from memjax import config as configs
from memjax.config import Config
from memjax.lifelong.contract import Method, check_takes_tasks, settings_of, task_stages
from memjax.lifelong.features import cache_states
from memjax.settings.relations import validate
from memjax.settings.sizes import check_sizes
from memjax.training import loop, restoring
from memjax.training.assembly import make_objective
from memjax.training.capacity import available_bytes
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeLearner, MakeObjective, TrainingResult
from memjax.training.restoring import LoadedRun
from memjax.training.runs import config_after_growth, load_config, run_path, takes_tasks
from memjax.training.sharding import Layout
from memjax.training.stages import GROWTH, GrowthHistory, Learner, Stage, count_steps, phase_key

__all__ = ["make_learner_and_stages", "growth_histories", "load_run", "make_learner", "train"]


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


def growth_histories(config: Config, key_of: Callable[[int], Any] = jax.random.key) -> list[GrowthHistory]:
    """How the model will have grown by each task of a stream; nothing is trained.

    Args:
      config: with tasks.
      key_of: number of a task -> the key of its growth; as it stands, what is drawn is not a run's.

    Raises:
      ValueError: the sizes of a method that do not follow each other.
    """
    assert config.lifelong is not None
    method, found = make_method(config.lifelong.method), list[GrowthHistory]([()])
    for index in range(1, len(config.lifelong.tasks)):
        step = method.growth(config_after_growth(config, found[-1]), index, found[-1], key_of(index))
        found.append((*found[-1], step) if step else found[-1])
    return found


def check_growth(experiment: Experiment, method: Method, planned: Sequence[GrowthHistory]) -> None:
    """Refuses a stream in which the model cannot become what a later task is to have; shapes are all that is made.

    Args:
      experiment: as the run begins.
      method: of it.
      planned: how the model will have grown by each task.

    Raises:
      ValueError: a generation that is not valid, cannot fit, or has other arrays than it grows to.
    """
    names, old = [task.name for task in settings_of(experiment).in_order], None
    for name, before, after in zip(names[1:], planned, planned[1:], strict=False):
        if after == before or method.grow is None:
            continue
        try:
            small, big = experiment.with_growth(before), experiment.with_growth(after)
            validate(big.config)
            check_sizes(big.config, available_bytes())
            old, new = old or state_shapes(method, small), state_shapes(method, big)
            found = jax.eval_shape(method.grow(small, big, after[-1]), old)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{str(error).splitlines()[0]}, in the model for {name}") from error
        if found != new:
            raise ValueError(f"lifelong.method: given a model for {name} that does not grow, allowed: another")
        old = new


def state_shapes(method: Method, experiment: Experiment) -> Any:
    """Of the train state that training begins with."""
    learner = method.learner(experiment, None, make_objective)
    return jax.eval_shape(lambda: learner.init(learner.make_variables()))


def check_growth_history(lineage: GrowthHistory, planned: GrowthHistory) -> None:
    """Refuses a checkpoint whose model has grown otherwise than that of the run.

    Args:
      lineage: of the checkpoint.
      planned: of the run, by its last task.

    Raises:
      ValueError: more growths, other sizes, or copies that another run has drawn.
    """
    if len(lineage) > len(planned):
        raise ValueError(f"lineage: given {len(lineage)} growths, allowed: up to {len(planned)}, those of this run")
    for there, here in zip(lineage, planned, strict=False):
        for name in {**there, **here}:
            if name != GROWTH and there.get(name) != here.get(name):
                given, wanted = there.get(name), here.get(name)
                raise ValueError(f"lineage: given {name} = {given}, allowed: {wanted}, as the model of this run grows")
        seeds = [one.get(GROWTH, {}).get("seed") for one in (there, here)]  # older runs do not have them
        if seeds[0] not in (None, seeds[1]):
            raise ValueError("lineage: given copies that another run has drawn, allowed: those of this run")


def make_learner(
    experiment: Experiment, layout: Layout | None = None, objective: MakeObjective = make_objective
) -> Learner:
    """The learner of any configuration: that of its method, where it has one."""
    if experiment.config.lifelong is None:
        return loop.make_plain_learner(experiment, layout, objective)
    return make_method(experiment.config.lifelong.method).learner(experiment, layout, objective)


def make_learner_and_stages(
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
    # A task begins, and its model grows, with the first of its stages.
    first = {stage.task: number for number, stage in reversed([*enumerate(stages)])}
    names, seed = [task.name for task in settings_of(experiment).in_order], experiment.config.training.seed
    planned = growth_histories(
        experiment.config, lambda index: phase_key(seed, first.get(names[index], index), "before")
    )
    check_growth(experiment, method, planned)

    def make(lineage: GrowthHistory) -> Learner:
        check_growth_history(lineage, planned[-1])
        return method.learner(experiment.with_growth(lineage), layout, objective)

    return make, stages


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
    return loop.train(config, **{"course": make_learner_and_stages, **arguments})


def load_run(run: Path | str, config: Config | None = None, *, step: int | None = None, **about_data: Any) -> LoadedRun:
    """Opens a run of any configuration, as `memjax.training.load_run` does; the learner of a method adapts."""
    config = load_config(run) if config is None else config
    learner = None if config.lifelong is None else make_learner
    return restoring.load_run(run, config, step=step, learner=learner, **about_data)
