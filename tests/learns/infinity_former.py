"""infinity-former learns to read its signal by time, and so do its sticky memories."""

import functools
from pathlib import Path
from typing import Literal

from memjax.config import Config
from memjax.settings.overrides import load_config
from tests.learns.task import Task, accuracies


def events(num_basis: int = 64, sticky: Literal["none", "sample"] = "none") -> Config:
    """Four events in a segment each; noise and a border of segments lie between the last of them and the questions."""
    config = load_config("sorting", "events")
    config.model.attention.num_basis, config.model.attention.sticky = num_basis, sticky
    return config


def measure(seed: int, workdir: Path, *, sticky: Literal["none", "sample"]) -> dict[str, float]:
    return accuracies(seed, workdir, memory=events(sticky=sticky), parent=events(num_basis=0))


TASK = Task(functools.partial(measure, sticky="none"), "which of several marked events, by their time")
STICKY = Task(functools.partial(measure, sticky="sample"), "which of several marked events, by their time")
