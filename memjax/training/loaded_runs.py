"""Starts a model from the checkpoint of another run, and opens runs for evaluation and generation."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from memjax.config import Config, Training
from memjax.durable_files import DamageWarning
from memjax.models.adapters import is_adapter
from memjax.training import optimizers
from memjax.training.checkpoints import Checkpoints
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.misfits import VOCABULARY, describe_misfits, describe_other_arrays, match_arrays
from memjax.training.run_data import RunData
from memjax.training.runs import TOKENIZER, check_tokenizer, config_after_growth, load_config, open_tokenizer
from memjax.training.stages import Learner, Position, unadapted_variables
from memjax.training.variables import COLLECTIONS, fit_variables, join_arrays, name_arrays

__all__ = ["LoadedCheckpoint", "LoadedRun", "init_from", "load_run", "start_from"]


def describe_new_parameters(names: Sequence[str]) -> str:
    """Returns a line about the parameters that keep their initial values in a run that begins with those of another.

    Args:
      names: Names of the parameters. Those of adapters are counted instead of listed.
    """
    others = [name for name in names if not is_adapter(name)]
    adapters = [f"{len(names) - len(others)} of adapters"] if len(others) < len(names) else []
    return f"new parameters: {', '.join([*adapters, *others])}" if names else "no new parameters"


def init_from(
    run: Path | str,
    variables: Mapping[str, Any],
    model: Any,
    *,
    reinitialized: Sequence[str] = (),
    report: Callable[[str], None] = lambda line: None,
    config: Config | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Initializes a model from the newest checkpoint of another run, matching arrays by name and layer index. Returns
    the variables and the names of the arrays that keep their initial values, such as those in `reinitialized`.

    The model may have a memory that the other run did not have, or another memory size. Memory states are not
    parameters, so that only the parameters that the memory adds keep their initial values. The matrices of a
    feed-forward network that a memory has replaced are left out. An encoder for another task starts from the parameters
    that the tasks share: heads (`TextEncoder.task_parameters`) that do not fit are left out.

    Args:
      run: Run directory to read.
      variables: Newly initialized variables of the model, with its grouping of layers.
      model: Model to initialize.
      reinitialized: Parts of paths. An array whose path contains one of them keeps its initial values.
      report: Function that is called with a line about the checkpoint that was read.
      config: Configuration that the model is made of, whose fields an error then names. None for an error that names
        arrays.

    Returns:
      The variables, and the names of the arrays that keep their initial values.

    Raises:
      ValueError: The run has no checkpoint, the model lacks an array of the checkpoint, an array has another shape, or
        a part in `reinitialized` matches no array.
    """
    initial, (checkpoint, saved, _) = name_arrays(variables, model.layer_groups()), load_arrays(run)
    report(f"parameters from {run}, {checkpoint}")
    for part in reinitialized:
        if not any(optimizers.is_named(name, [part]) for name in saved):
            allowed = f"a part of a parameter's path, as {next(iter(saved))}"
            raise ValueError(f"training.reinitialized_parameters: given {part!r}, allowed: {allowed}")
    saved = {name: leaf for name, leaf in saved.items() if not optimizers.is_named(name, reinitialized)}
    saved, unexpected, shapes = match_arrays(initial, saved, model)
    if unexpected or shapes:
        fields = ""
        if config is not None:
            fields = describe_misfits(config, load_grown_config(run), run)
        raise ValueError(
            f"training.init_from: {fields or f'{run} does not fit: {describe_other_arrays(unexpected, shapes)}'}"
        )
    merged = {name: jnp.asarray(saved[name], leaf.dtype) if name in saved else leaf for name, leaf in initial.items()}
    return join_arrays(merged, model.layer_groups()), [name for name in initial if name not in saved]


def start_from(config: Config, run: Path | str) -> Config:
    """Returns a configuration that trains on the data of `config`, and starts from the model, the tokenizer, the
    segment length and the parameters of the run in the directory `run`.

    The task and the protocol of documents are those of the run, too, where both are of texts, as for masked tokens.
    Adapters of the run (`training.lora`) go on, unless `config` has some of its own.

    Args:
      config: Configuration with the new data, the task, the method and the training.
      run: Run directory with a checkpoint.

    Raises:
      ValueError: The directory is no run, or the run has no checkpoint.
    """
    trained, task = load_grown_config(run), config.task
    fields: dict[str, Any] = {"tokenizer": trained.data.tokenizer, "segment_length": trained.data.segment_length}
    if trained.data.source.content_types[0] == config.data.source.content_types[0] == "texts":
        fields["protocol"], task = trained.data.protocol, trained.task
    data = dataclasses.replace(config.data, **fields)
    lora = config.training.lora if config.training.lora.rank else trained.training.lora
    training = dataclasses.replace(config.training, init_from=str(run), lora=lora)
    return dataclasses.replace(config, model=trained.model, data=data, task=task, training=training)


def load_grown_config(run: Path | str) -> Config:
    """Reads the configuration of a run with the model of its newest checkpoint, after all of its growth.

    Raises:
      ValueError: The directory is no run, or the run has no checkpoint.
    """
    trained, extras = load_config(run), [*checkpoint_extras(run).values()]
    if not extras:
        raise ValueError(f"{run}: no checkpoint, allowed: a run that has saved one")
    return config_after_growth(trained, extras[-1].get("lineage", ()))


def check_start_fits(config: Config) -> None:
    """Raises an error if a configuration makes other parameters than those of the run that it starts from.

    Raises:
      ValueError: Parameters do not fit, or the settings of the tokenizer differ. The error names the fields.
    """
    fields = describe_misfits(config, load_grown_config(config.training.init_from), config.training.init_from)
    if fields:
        raise ValueError(fields)


def tokenizer_of_start(config: Config) -> Any:
    """Returns the tokenizer of the run that a run starts from, if it takes it: its settings are the same, and the
    embedding of the vocabulary is not reinitialized. None for a tokenizer that the configuration describes, and where
    the other run is gone, which a run that goes on does not need.
    """
    start, reinitialized = config.training.init_from, config.training.reinitialized_parameters
    if not start or optimizers.is_named(VOCABULARY, reinitialized) or not Path(start).expanduser().exists():
        return None
    return open_tokenizer(start) if config.data.tokenizer == load_config(start).data.tokenizer else None


def check_start(training: Training, tokenizer: Any) -> None:
    """Raises `ValueError` if the run in `training.init_from` was trained with another tokenizer than the given one and
    the embedding of the vocabulary is not reinitialized.

    Raises:
      ValueError: The run has another tokenizer, and the embedding of the vocabulary is not in
        `training.reinitialized_parameters`.
    """
    saved = open_tokenizer(training.init_from)
    if saved is None or tokenizer is None or saved.base.fingerprint == tokenizer.base.fingerprint:
        return
    if not optimizers.is_named(VOCABULARY, training.reinitialized_parameters):
        raise ValueError(
            f"training.init_from: {training.init_from} was trained with the tokenizer {saved.base.fingerprint}, given "
            f"{tokenizer.base.fingerprint} here, allowed: the same (data.tokenizer can name the file in its folder "
            f"{TOKENIZER}), or training.reinitialized_parameters with vocabulary"
        )


@dataclasses.dataclass(frozen=True)
class LoadedCheckpoint:
    """The step of a checkpoint that was read, the newest step of its run, and the steps of newer checkpoints that are
    damaged.

    Attributes:
      step: Number of steps that training had done at the checkpoint.
      newest: Number of steps at the newest checkpoint of the run.
      damaged: Numbers of steps at newer checkpoints that could not be read.
      number: Number of the checkpoint, the name of its folder. In a run over tasks it also counts the changes of task.
    """

    step: int
    newest: int
    damaged: tuple[int, ...] = ()
    number: int = 0

    def facts(self) -> dict[str, Any]:
        """Returns the step of the checkpoint as `step` and that of the newest one as `newest_step`."""
        return {"step": self.step, "newest_step": self.newest}

    def __str__(self) -> str:
        """Describes the checkpoint in a few words for the user.

        Example:
          >>> print(LoadedCheckpoint(400, 600, (600,)), LoadedCheckpoint(600, 600), sep="; ")
          step 400 (not the newest: step 600 is damaged); step 600
        """
        if self.step == self.newest:
            return f"step {self.step}"
        damaged = ", ".join(f"step {step}" for step in self.damaged)
        return f"step {self.step} (not the newest: {f'{damaged} is damaged' if damaged else f'step {self.newest} is'})"


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A trained run, opened at one of its checkpoints: its experiment and the variables of its model.

    Attributes:
      experiment: Experiment of the run with its saved tokenizer. The model has the growth history of the checkpoint.
      variables: Variables of the model.
      checkpoint: Checkpoint that the variables were read from.
    """

    experiment: Experiment
    variables: dict[str, Any]
    checkpoint: LoadedCheckpoint


def load_run(
    run: Path | str,
    config: Config | None = None,
    *,
    step: int | None = None,
    learner: Callable[[Experiment], Learner] | None = None,
    is_data_named: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> LoadedRun:
    """Opens a run directory for evaluation or generation, at its newest intact checkpoint or that of `step`, as a
    `LoadedRun`. `config` takes the place of the saved configuration, and `learner(experiment)` makes the learner of the
    run.

    A run with a saved tokenizer can be opened without its data. Documents are read when they are needed, and are then
    compared with those of training (`memjax.training.run_data`).

    Args:
      run: Run directory.
      config: Configuration to use instead of the saved one, for example with another memory size or other documents.
        None for the saved one.
      step: Number of the checkpoint to open. None for the newest intact one.
      learner: Function `learner(experiment)` that makes the learner of the run. The variables are then those of
        `Learner.adapt_variables`, as in the evaluations of the run. `memjax.lifelong.load_run` knows the learner of
        every run. None takes the variables of the checkpoint.
      is_data_named: Whether the user has named the data. It may then differ from the data of training, as may data
        that `config` names elsewhere.
      tell: Function that is called with lines about the data: that it is other data, that it cannot be compared, that a
        cache is read.

    Raises:
      ValueError: There is no intact checkpoint, or it belongs to another architecture. The message lists the
        difference.
    """
    read, loaded, extra = load_arrays(run, step)
    lineage, wanted = extra.get("lineage", ()), extra.get("tokenizer")
    trained = load_config(run)
    run_data = RunData.of_run(run, trained, config, extra=extra, is_named=is_data_named, tell=tell)
    config = config_after_growth(trained if config is None else config, lineage)
    progress = lambda what, done, total: tell(what) if total == 0 else None
    experiment = make_experiment(config, tokenizer=open_tokenizer(run, wanted), progress=progress, run_data=run_data)
    check_tokenizer(experiment.fingerprint, wanted, run)
    run_learner, length = learner(experiment) if learner else None, experiment.config.data.segment_length
    if run_learner is not None:
        chosen = {"adapt_rows": run_learner.adapt_rows, "variables_of_task": run_learner.variables_of_task}
        experiment = dataclasses.replace(experiment, **chosen)
    if run_learner is None or run_learner.adapt_variables is unadapted_variables:
        arrays, what = jax.tree.map(jnp.array, loaded), f"{run}: the checkpoint is of another architecture"
        return LoadedRun(experiment, fit_variables(arrays, experiment.model, length, what=what), read)
    compiled = CompiledLearner(None, run_learner)
    with _checkpoints(run) as checkpoints:
        restored = checkpoints.restore(compiled.checkpoint_shapes(), step=read.number)
    assert restored is not None  # `load_arrays` has found one
    adapted = run_learner.evaluation_variables(compiled.from_checkpoint(restored.tree), experiment.config.training.seed)
    return LoadedRun(experiment, dict(adapted), read)


def checkpoint_steps(run: Path | str) -> list[int]:
    """Lists the steps of the checkpoints of a run in ascending order."""
    with _checkpoints(run) as checkpoints:
        return checkpoints.steps()


def checkpoint_extras(run: Path | str) -> dict[int, Mapping[str, Any]]:
    """Reads the JSON values that were saved in the intact checkpoints of a run, by step in ascending order."""
    with _checkpoints(run) as checkpoints:
        return {step: extra or {} for step, extra in checkpoints.extras().items()}


def saved_shapes(run: Path | str) -> dict[str, jax.ShapeDtypeStruct]:
    """Reads the shapes and dtypes of the arrays in the newest intact checkpoint of a run by name. Empty without one."""
    with _checkpoints(run) as checkpoints:
        return checkpoints.shapes()


def load_arrays(run: Path | str, step: int | None = None) -> tuple[LoadedCheckpoint, dict[str, Any], Mapping[str, Any]]:
    """Loads the variables of a model from a checkpoint of a run. Returns the checkpoint that was read, the arrays of
    all collections by name, and the JSON value that was saved with them.

    Args:
      run: Run directory.
      step: Number of the checkpoint. None for the newest intact one.

    Returns:
      The checkpoint that was read, its arrays of all collections by name, and the JSON value that was saved with them.
    """
    with _checkpoints(run) as checkpoints:
        number, arrays, extra = checkpoints.load(tuple(COLLECTIONS.values()), step=step)
        steps = _steps_done(number, extra or {})
        damaged = tuple(other - number + steps for other in sorted(checkpoints.damaged))
        newest = max(checkpoints.steps())
        extras = checkpoints.extras() if newest != number and newest not in checkpoints.damaged else {}
        if newest in extras:
            newest_steps = _steps_done(newest, extras[newest] or {})
        else:  # No position can be read from a damaged checkpoint, which is most often of the same task.
            newest_steps = newest - number + steps
        return LoadedCheckpoint(steps, newest_steps, damaged, number), arrays, extra or {}


def _steps_done(number: int, extra: Mapping[str, Any]) -> int:
    """Returns the number of steps that training had done at a checkpoint, from its number and its JSON value."""
    return Position.read(number, extra.get("position") or {}, number).step


def _checkpoints(run: Path | str) -> AbstractContextManager[Checkpoints]:
    """Context manager that opens the checkpoints of a run for reading. A damaged one is a `DamageWarning`."""
    folder = Path(run).expanduser() / "checkpoints"
    warn = lambda line: warnings.warn(DamageWarning(f"{folder}: {line}"), stacklevel=3)
    return contextlib.closing(Checkpoints(folder, read_only=True, on_warning=warn))
