"""A start from another run, and a run opened again."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from memjax.config import Config, Training
from memjax.training import optimizers
from memjax.training.checkpoints import Checkpoints, preview_names
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.places import CompiledLearner
from memjax.training.run_data import RunData
from memjax.training.runs import TOKENIZER, check_tokenizer, config_after_growth, load_config, open_tokenizer
from memjax.training.stages import Learner, unadapted_variables
from memjax.training.variables import COLLECTIONS, fit_variables, join_arrays, name_arrays

__all__ = ["LoadedCheckpoint", "LoadedRun", "init_from", "load_run"]


def init_from(
    run: Path | str,
    variables: Mapping[str, Any],
    model: Any,
    *,
    reinitialized: Sequence[str] = (),
    report: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, Any], list[str]]:
    """Starts a model from the newest checkpoint of another run, matching arrays by name and layer index.

    For a model trained without memory that goes on with one, or with another memory size: memory states are not
    parameters, so only what the memory adds keeps its initial values. The matrices of a feed-forward network that a
    memory has replaced are left out. An encoder that goes on with another task begins with what the tasks share: heads
    (`TextEncoder.task_parameters`) that do not fit are left out.

    Args:
      run: a run directory.
      variables: fresh ones of the model, in its own grouping of layers.
      model: the model.
      reinitialized: parts of the paths of arrays that keep their initial values although the checkpoint has them.
      report: told in a line which checkpoint was read.

    Returns:
      The variables, and the names of arrays that keep their initial values.

    Raises:
      ValueError: no checkpoint, an array that the model lacks, one of another shape, or a name of `reinitialized` that
        no array has.
    """
    ours, (read, theirs, _) = name_arrays(variables, model.groups()), load_arrays(run)
    report(f"parameters from {run}, {read}")
    for part in reinitialized:
        if not any(optimizers.is_named(name, [part]) for name in theirs):
            allowed = f"a part of a parameter's path, as {next(iter(theirs))}"
            raise ValueError(f"training.reinitialized: given {part!r}, allowed: {allowed}")
    theirs = {name: leaf for name, leaf in theirs.items() if not optimizers.is_named(name, reinitialized)}
    heads = tuple(prefix + name for prefix in COLLECTIONS.values() for name in model.task_parameters)
    fits = lambda name: name in ours and ours[name].shape == theirs[name].shape
    theirs = {name: leaf for name, leaf in theirs.items() if not name.startswith(heads) or fits(name)}
    replaced = tuple(COLLECTIONS["params"] + name for name in model.replaced_parameters())
    unexpected = [name for name in theirs if name not in ours and not name.startswith(replaced)]
    shapes = [
        f"{name} {list(theirs[name].shape)} there and {list(leaf.shape)} here"
        for name, leaf in ours.items()
        if name in theirs and theirs[name].shape != leaf.shape
    ]
    if unexpected or shapes:
        lacks = f"the model lacks {preview_names(unexpected)}" if unexpected else ""
        raise ValueError(f"init_from: {run} does not fit: {'; '.join(filter(None, [lacks, preview_names(shapes)]))}")
    merged = {name: jnp.asarray(theirs[name], leaf.dtype) if name in theirs else leaf for name, leaf in ours.items()}
    return join_arrays(merged, model.groups()), [name for name in ours if name not in theirs]


def check_start(training: Training, tokenizer: Any) -> None:
    """Refuses to begin with the parameters of a run whose tokenizer gives texts other ids.

    Raises:
      ValueError: `training.init_from` has another tokenizer, and the vocabulary is not learned anew.
    """
    theirs = open_tokenizer(training.init_from)
    if theirs is None or tokenizer is None or theirs.base.fingerprint == tokenizer.base.fingerprint:
        return
    if not optimizers.is_named("params/vocabulary/embedding", training.reinitialized):
        raise ValueError(
            f"training.init_from: {training.init_from} was trained with the tokenizer {theirs.base.fingerprint}, given "
            f"{tokenizer.base.fingerprint} here, allowed: the same (data.tokenizer can name the file in its folder "
            f"{TOKENIZER}), or training.reinitialized with vocabulary"
        )


@dataclasses.dataclass(frozen=True)
class LoadedCheckpoint:
    """Which checkpoint was read.

    Attributes:
      step: its step.
      newest: the newest step that the run has a checkpoint of.
      damaged: steps that were tried before it.
    """

    step: int
    newest: int
    damaged: tuple[int, ...] = ()

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"step": self.step, "newest_step": self.newest}

    def __str__(self) -> str:
        """For people.

        Example:
          >>> print(Checkpoint(400, 600, (600,)), Checkpoint(600, 600), sep="; ")
          step 400 (not the newest: step 600 is damaged); step 600
        """
        if self.step == self.newest:
            return f"step {self.step}"
        damaged = ", ".join(f"step {step}" for step in self.damaged)
        return f"step {self.step} (not the newest: {f'{damaged} is damaged' if damaged else f'step {self.newest} is'})"


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A run as its directory has it.

    Attributes:
      experiment: its parts, grown as the checkpoint is, with the run's own tokenizer.
      variables: of its model.
      checkpoint: where they are from.
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
    """Opens a run directory at its newest intact checkpoint, for evaluation or generation.

    With a tokenizer of its own the run needs nothing else: documents are read when they are asked for, and are then
    compared with those of training (`memjax.training.run_data`).

    Args:
      run: the directory.
      config: instead of the one in the directory (another memory size, other documents).
      step: of another checkpoint.
      learner: `learner(experiment)`, how the run has learned: its variables are then what `Learner.adapt_variables`
        gives, as for the evaluations of the run (`memjax.lifelong.load_run` knows the learner of any run).
      is_data_named: Whether the user has named the data, which may then be other data than that of training. Data that
        `config` names elsewhere may be.
      tell: Gets lines about the data: that it is other data, that it cannot be compared, that a cache is read.

    Raises:
      ValueError: no checkpoint, or one of another architecture (the line lists the difference).
    """
    read, loaded, extra = load_arrays(run, step)
    lineage, wanted = extra.get("lineage", ()), extra.get("tokenizer")
    trained = load_config(run)
    run_data = RunData.of_run(run, trained, config, extra=extra, is_named=is_data_named, tell=tell)
    config = config_after_growth(trained if config is None else config, lineage)
    progress = lambda what, done, total: tell(what) if total == 0 else None
    experiment = make_experiment(config, tokenizer=open_tokenizer(run, wanted), progress=progress, run_data=run_data)
    check_tokenizer(experiment.fingerprint, wanted, run)
    made, length = learner(experiment) if learner else None, experiment.config.data.segment_length
    if made is not None and made.adapt_rows is not None:
        experiment = dataclasses.replace(experiment, adapt_rows=made.adapt_rows)
    if made is None or made.adapt_variables is unadapted_variables:
        arrays, what = jax.tree.map(jnp.array, loaded), f"{run}: the checkpoint is of another architecture"
        return LoadedRun(experiment, fit_variables(arrays, experiment.model, length, what=what), read)
    places = CompiledLearner(None, made)
    with _checkpoints(run) as checkpoints:
        restored = checkpoints.restore(places.checkpoint_shapes(), step=read.step)
    assert restored is not None  # `load_arrays` has found one
    adapted = made.evaluation_variables(places.from_checkpoint(restored.tree), experiment.config.training.seed)
    return LoadedRun(experiment, dict(adapted), read)


def checkpoint_steps(run: Path | str) -> list[int]:
    """Steps of the checkpoints that a run has kept, ascending."""
    with _checkpoints(run) as checkpoints:
        return checkpoints.steps()


def checkpoint_extras(run: Path | str) -> dict[int, Mapping[str, Any]]:
    """Step -> what was saved beside the arrays, of all checkpoints that a run has kept, ascending."""
    with _checkpoints(run) as checkpoints:
        return {step: checkpoints.extra(step) or {} for step in checkpoints.steps()}


def saved_shapes(run: Path | str) -> dict[str, jax.ShapeDtypeStruct]:
    """Name -> shape of every array of the newest checkpoint of a run; {} without one."""
    with _checkpoints(run) as checkpoints:
        steps = checkpoints.steps()
        return checkpoints.shapes(steps[-1]) if steps else {}


def load_arrays(run: Path | str, step: int | None = None) -> tuple[LoadedCheckpoint, dict[str, Any], Mapping[str, Any]]:
    """A checkpoint, the newest intact one if None: name -> array of all collections, and what was saved beside."""
    with _checkpoints(run) as checkpoints:
        found, arrays, extra = checkpoints.load(tuple(COLLECTIONS.values()), step=step)
        return (
            LoadedCheckpoint(found, max(checkpoints.steps()), tuple(sorted(checkpoints.damaged))),
            arrays,
            extra or {},
        )


def _checkpoints(run: Path | str) -> AbstractContextManager[Checkpoints]:
    return contextlib.closing(Checkpoints(Path(run).expanduser() / "checkpoints", read_only=True))
