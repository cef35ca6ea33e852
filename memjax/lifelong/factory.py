"""Makes the method that settings describe, and trains and loads runs of any configuration."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from memjax import config as configs
from memjax.config import Config
from memjax.lifelong.method_interface import Method, check_takes_tasks, make_method, settings_of, task_stages
from memjax.lifelong.stream_results import summarize_log
from memjax.lifelong.text_features import cache_states
from memjax.settings.checks import validate
from memjax.settings.minimum_memory import check_sizes
from memjax.training import loaded_runs, run_start
from memjax.training.available_memory import available_bytes
from memjax.training.experiment import Experiment
from memjax.training.loaded_runs import LoadedRun
from memjax.training.loop import TrainingResult
from memjax.training.plain_learner import make_plain_learner
from memjax.training.runs import config_after_growth, load_config
from memjax.training.sharding import Layout
from memjax.training.stages import GROWTH, GrowthHistory, Learner, MakeLearner, Stage, count_steps, phase_key
from memjax.training.update_functions import MakeObjective, make_objective


def _method_of(stream: configs.Lifelong) -> Method:
    """Makes the method of a stream of tasks, whose boundaries decide some defaults."""
    return make_method(stream.method, stream.task_boundaries)


def growth_histories(config: Config, key_of: Callable[[int], Any] = jax.random.key) -> list[GrowthHistory]:
    """Returns the growth history of the model before each task of a stream, as a list, without any training.
    `key_of(index)` returns the random key of the growth before task `index`.

    Args:
      config: Configuration with tasks.
      key_of: `key_of(index)` returns the random key of the growth before task `index`. With the default, the choice of
        copies is not that of a run.

    Returns:
      One growth history for each task.

    Raises:
      ValueError: the sizes in the settings of the method do not increase as they must.
    """
    assert config.lifelong is not None
    method, histories = _method_of(config.lifelong), list[GrowthHistory]([()])
    for index in range(1, len(config.lifelong.tasks)):
        history, fields = histories[-1], None
        if method.growth is not None:
            fields = method.growth.fields_before(index, config_after_growth(config, history), history, key_of(index))
        histories.append((*history, fields) if fields else history)
    return histories


def check_growth(experiment: Experiment, method: Method, planned: Sequence[GrowthHistory]) -> None:
    """Raises ValueError if the model cannot grow as planned before every task. `planned` are the growth histories
    before each task. Only shapes are computed.

    Args:
      experiment: Experiment at the beginning of the run.
      method: Learning method of the run.
      planned: Growth history before each task.

    Raises:
      ValueError: a bigger model is not valid, does not fit into memory, or has other arrays than the growth makes.
    """
    names, old = [task.name for task in settings_of(experiment).ordered_tasks], None
    for name, before, after in zip(names[1:], planned, planned[1:], strict=False):
        if after == before or method.growth is None:
            continue
        try:
            small, big = experiment.with_growth(before), experiment.with_growth(after)
            validate(big.config)
            check_sizes(big.config, available_bytes())
            old, new = old or _state_shapes(method, small), _state_shapes(method, big)
            result = jax.eval_shape(method.growth.grow_state(small, big, after[-1]), old)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{str(error).splitlines()[0]}, in the model for {name}") from error
        if result != new:
            raise ValueError(f"lifelong.method: given a model for {name} that does not grow, allowed: another")
        old = new


def _state_shapes(method: Method, experiment: Experiment) -> Any:
    """Computes the shapes of the train state that training begins with."""
    learner = method.learner(experiment, None, make_objective)
    return jax.eval_shape(lambda: learner.init(learner.make_variables()))


def _check_growth_history(lineage: GrowthHistory, planned: GrowthHistory) -> None:
    """Checks that the model of a checkpoint has grown as the run plans.

    Args:
      lineage: Growth history of the checkpoint.
      planned: Growth history of the run, up to its last task.

    Raises:
      ValueError: the checkpoint has more growths, other sizes, or copies that another run has drawn.
    """
    if len(lineage) > len(planned):
        raise ValueError(f"lineage: given {len(lineage)} growths, allowed: up to {len(planned)}, those of this run")
    for past, plan in zip(lineage, planned, strict=False):
        for name in {**past, **plan}:
            if name != GROWTH and past.get(name) != plan.get(name):
                value, wanted = past.get(name), plan.get(name)
                raise ValueError(f"lineage: given {name} = {value}, allowed: {wanted}, as the model of this run grows")
        seeds = [growth.get(GROWTH, {}).get("seed") for growth in (past, plan)]  # Older runs have none.
        if seeds[0] not in (None, seeds[1]):
            raise ValueError("lineage: given copies that another run has drawn, allowed: those of this run")


def make_learner(
    experiment: Experiment, layout: Layout | None = None, objective: MakeObjective = make_objective
) -> Learner:
    """Makes the learner of any experiment: that of its method, or plain training if it has no tasks.
    `objective(config, model)` makes the objective of an update.
    """
    if experiment.config.lifelong is None:
        return make_plain_learner(experiment, layout, objective)
    return _method_of(experiment.config.lifelong).learner(experiment, layout, objective)


def make_learner_and_stages(
    experiment: Experiment, layout: Layout | None, objective: MakeObjective
) -> tuple[MakeLearner, Sequence[Stage]]:
    """Returns a function that makes the learner of an experiment with tasks for a growth history, and the list of its
    stages. `objective(config, model)` makes the objective of an update.

    Args:
      experiment: Experiment of the configuration.
      layout: Shardings of all arrays over the mesh. None on a single device.
      objective: `objective(config, model)` makes the objective of an update.

    Returns:
      `make(growth_history)`, which makes the learner, and the stages.
    """
    assert experiment.config.lifelong is not None
    method = _method_of(experiment.config.lifelong)
    stages = task_stages(experiment, layout, method)
    steps = count_steps(stages)
    # A learning rate decays over all updates, whose number is known by now.
    if experiment.config.lifelong.epochs and steps:
        training = dataclasses.replace(experiment.config.training, steps=steps)
        experiment = dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, training=training))
    # A model grows before the first stage of a task.
    first = {stage.task: number for number, stage in reversed([*enumerate(stages)])}
    names, seed = [task.name for task in settings_of(experiment).ordered_tasks], experiment.config.training.seed
    planned = growth_histories(
        experiment.config, lambda index: phase_key(seed, first.get(names[index], index), "before")
    )
    check_growth(experiment, method, planned)

    def make(lineage: GrowthHistory) -> Learner:
        _check_growth_history(lineage, planned[-1])
        return method.learner(experiment.with_growth(lineage), layout, objective)

    return make, stages


def train(
    config: Config,
    *,
    method: configs.Method | None = None,
    memory: configs.Attention | None = None,
    source: configs.Source | None = None,
    **arguments: Any,
) -> TrainingResult:
    """Trains a configuration and returns its `TrainingResult`. With tasks it trains one task after the other, without
    tasks as `memjax.training.train` does. `method`, `memory` and `source` replace those of the configuration.

    Without `config.evaluations`, each task gets an evaluation with the settings `config.evaluation` and its own name. A
    run that has learned the first tasks, finished or not, continues with further tasks (`Config.with_task`) and ends
    like a run that knew all tasks from the beginning. Encoder states that are missing in `data.encoder_states_dir` are
    computed first.

    Args:
      config: Configuration to train.
      method: Settings of the learning method, such as those of your own. None for `lifelong.method`.
      memory: Settings of the memory, the attention of the layers. None for `model.attention`.
      source: Settings of the source of the data. None for `data.source`.
      **arguments: Further arguments of `memjax.training.run_start.train`.

    Raises:
      ValueError: the tasks of the run are not the first tasks of the configuration, its method cannot take further
        tasks, or `memjax.training.run_start.train` raises it.
    """
    config = config.with_parts(method=method, memory=memory, source=source)
    if config.data.encoder_states_dir:
        cache_states(config)
    if config.lifelong is None:
        return run_start.train(config, **arguments)
    config = with_task_evaluations(config)
    check = lambda config: check_takes_tasks(config, _method_of(config.lifelong))
    of_tasks = {"course": make_learner_and_stages, "check_added_tasks": check, "summarize": summarize_log}
    return run_start.train(config, **{**of_tasks, **arguments})


def with_task_evaluations(config: Config) -> Config:
    """Returns the configuration with which a run is trained and saved: a configuration with tasks and without
    `evaluations` gets one for each task, with the name of the task.
    """
    if config.lifelong is None or config.evaluations:
        return config
    names = [task.name for task in config.lifelong.ordered_tasks]
    evaluations = tuple(dataclasses.replace(config.evaluation, name=name, task=name) for name in names)
    return dataclasses.replace(config, evaluations=evaluations)


def load_run(run: Path | str, config: Config | None = None, *, step: int | None = None, **about_data: Any) -> LoadedRun:
    """Opens a run directory of any configuration and returns it as a `LoadedRun`, with the learner of its method, which
    may adapt before evaluations. `step` is the number of the checkpoint, by default the last.

    See `memjax.training.load_run`.

    Args:
      run: Run directory.
      config: Configuration. None for that of the run.
      step: Step of the checkpoint. None for the last.
      **about_data: Further arguments of `memjax.training.loaded_runs.load_run`.
    """
    config = load_config(run) if config is None else config
    learner = None if config.lifelong is None else make_learner
    return loaded_runs.load_run(run, config, step=step, learner=learner, **about_data)
