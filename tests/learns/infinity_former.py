"""infinity-former learns to read its signal by time, and so do its sticky memories."""

import functools
from pathlib import Path
from typing import Literal

from memjax.config import Config
from memjax.settings.overrides import load_config
from tests.learns.task import Task, accuracies


def events(num_basis: int = 64, sticky: Literal["none", "sample"] = "none") -> Config:
    """Makes the configuration of a small infinity-former that recalls four events.

    Each event is in a segment of its own. Noise and a border of segments lie between the last event and the questions.

    Args:
      num_basis: Number of basis functions. 0 for no memory.
      sticky: Kind of sticky memories.
    """
    config = load_config("sorting", "events")
    config.model.attention.num_basis, config.model.attention.sticky = num_basis, sticky
    return config


def measure(seed: int, workdir: Path, *, sticky: Literal["none", "sample"]) -> dict[str, float]:
    """Returns the accuracies of a model with a signal and of its parent without. See `accuracies`."""
    return accuracies(seed, workdir, memory=events(sticky=sticky), parent=events(num_basis=0))


TASK = Task(functools.partial(measure, sticky="none"), "which of several marked events, by their time")
STICKY = Task(functools.partial(measure, sticky="sample"), "which of several marked events, by their time")
