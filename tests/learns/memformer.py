"""Memformer learns to keep pairs in its slots over four segments of noise."""

import dataclasses
from pathlib import Path

from memjax.config import Config
from memjax.settings.overrides import load_config
from tests.learns.task import Task, accuracies


def recall(num_slots: int) -> Config:
    """Makes the configuration `memformer_recall` with some number of slots, 0 for no memory.

    Four pairs are in the first segment, the questions in the last.
    """
    config = load_config("memformer_recall")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, num_slots=num_slots))


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the accuracies of a model with 16 slots and of its parent without. See `accuracies`."""
    return accuracies(seed, workdir, memory=recall(16), parent=recall(0))


TASK = Task(measure, "four pairs over four segments of noise, in 16 slots")
