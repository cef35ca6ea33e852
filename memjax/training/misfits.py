"""Fields of a configuration whose parameters do not fit those of the run that it starts from."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax

from memjax.config import Config
from memjax.tasks.interface import make_task
from memjax.training.named_arrays import preview_names
from memjax.training.optimizers import is_named
from memjax.training.train_state import init_variables
from memjax.training.variables import COLLECTIONS, name_arrays

PARTS = ("model", "task", "data.tokenizer", "data.segment_length", "training.lora")
"""Parts of a configuration that decide the shapes of the parameters"""
VOCABULARY = "params/vocabulary/embedding"
"""Name of the parameters that depend on the tokenizer"""
MANY_IDS = 1 << 20
"""Vocabulary size of models that are compared in shapes only: any number that is the same for both"""


def match_arrays(
    initial: Mapping[str, Any], saved: Mapping[str, Any], model: Any
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Returns the saved arrays that a model takes by name, the names of saved arrays that it lacks, and descriptions of
    arrays with another shape. Heads of another task that do not fit, and what a memory replaces, are left out.

    Args:
      initial: Initial arrays of the model by name, or their shapes.
      saved: Saved arrays by name, or their shapes.
      model: Model to initialize.
    """
    heads = tuple(prefix + name for prefix in COLLECTIONS.values() for name in model.task_parameters)
    fits = lambda name: name in initial and initial[name].shape == saved[name].shape
    taken = {name: leaf for name, leaf in saved.items() if not name.startswith(heads) or fits(name)}
    replaced = tuple(COLLECTIONS["params"] + name for name in model.replaced_parameters())
    unexpected = [name for name in taken if name not in initial and not name.startswith(replaced)]
    shapes = [
        f"{name} {list(saved[name].shape)} there and {list(leaf.shape)} here"
        for name, leaf in initial.items()
        if name in taken and taken[name].shape != leaf.shape
    ]
    return taken, unexpected, shapes


def describe_misfits(config: Config, trained: Config, run: Path | str) -> str:
    """Describes the fields of `config` that make other parameters than those of the run that it starts from, with the
    options that mend it. '' if all parameters fit.

    Args:
      config: Configuration of the run that starts.
      trained: Configuration of the run whose parameters it takes, after its growth.
      run: Directory of that run, for the text.
    """
    differing = [path for part in PARTS for path in _differences(config, trained, part)]
    if not differing:
        return ""
    reinitialized = config.training.reinitialized_parameters
    saved = {name: leaf for name, leaf in _shapes(trained)[1].items() if not is_named(name, reinitialized)}
    wrong, task = [], [path for path in differing if path == "task"]
    for path in differing:  # each is tried alone, but with the task, whose kind decides about the model
        changed = _with_fields(trained, config, [*task, path])
        needs_tokenizer = path.startswith("data.tokenizer") and not is_named(VOCABULARY, reinitialized)
        if needs_tokenizer or not _fits(changed, saved):
            wrong.append(path)
    lines = [f"{path}: given {_show(config, path)}, allowed: {_show(trained, path)}" for path in wrong]
    options = [_option(trained, path) for path in wrong if _option(trained, path)]
    advice = f"give {' '.join(options)}, or " if options and len(options) == len(wrong) else ""
    advice += f"begin with --from {run} and leave them out"
    advice += " (--memory-kind chooses model.attention)" if "model.attention" in wrong else ""
    return f"{'; '.join(lines)}, as in {run}; {advice}" if wrong else ""


def _fits(config: Config, saved: Mapping[str, Any]) -> bool:
    """Whether a model takes saved arrays. False for a configuration that no model can be made of."""
    try:
        model, initial = _shapes(config)
    except ValueError:
        return False
    _, unexpected, shapes = match_arrays(initial, saved, model)
    return not unexpected and not shapes


def _shapes(config: Config) -> tuple[Any, dict[str, Any]]:
    """Returns the model of a configuration for a vocabulary of `MANY_IDS`, and the shapes of its arrays by name."""
    model = make_task(config).model(MANY_IDS)
    make = lambda: name_arrays(
        init_variables(model, jax.random.key(0), config.data.segment_length), model.layer_groups()
    )
    return model, jax.eval_shape(make)


def _differences(config: Config, trained: Config, path: str) -> Iterator[str]:
    """Yields the paths of fields in which two configurations differ. A part of another kind is one difference."""
    ours, theirs = (attrgetter(path)(settings) for settings in (config, trained))
    if type(ours) is not type(theirs) or not dataclasses.is_dataclass(ours):
        if ours != theirs:
            yield path
        return
    for field in dataclasses.fields(ours):
        yield from _differences(config, trained, f"{path}.{field.name}")


def _with_fields(config: Config, other: Config, paths: list[str]) -> Config:
    """Returns a configuration with the fields at `paths` of another one."""
    config = copy.deepcopy(config)
    for path in paths:
        part, _, name = path.rpartition(".")
        setattr(attrgetter(part)(config) if part else config, name, copy.deepcopy(attrgetter(path)(other)))
    return config


def _show(config: Config, path: str) -> str:
    """Describes the value of a field: the kind of a part, else the value."""
    value = attrgetter(path)(config)
    return type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)


def _option(config: Config, path: str) -> str:
    """Returns the option that gives a field the value of a configuration. '' for a part, whose kind no option names."""
    value = attrgetter(path)(config)
    if dataclasses.is_dataclass(value) or isinstance(value, tuple | list | dict):
        return ""
    return f"--{path.replace('_', '-')} {value}"


def describe_other_arrays(unexpected: list[str], shapes: list[str]) -> str:
    """Describes saved arrays that a model lacks, and arrays of another shape, where no field says why."""
    lacks = f"the model lacks {preview_names(unexpected)}" if unexpected else ""
    return "; ".join(filter(None, [lacks, preview_names(shapes)]))
