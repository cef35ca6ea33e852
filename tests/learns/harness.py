"""*Learns*: a model learns to use its memory, on a task that nothing but that memory can solve.

A row trains a small model with its memory and its parent without, scores documents that neither has seen, and then
takes the memory away from the trained model: every segment finds it cleared, or finds that of another row.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from memjax.config import Config
from memjax.training import load_run, train
from memjax.training.progress import Event

SEEDS = (0, 1, 2)
STATES = ("kept", "cleared", "shuffled")


@dataclasses.dataclass(frozen=True)
class Learns:
    """A task and what was measured on it.

    Attributes:
      config: with the memory; named evaluations are measured too.
      parent: the same without the memory.
      at_least: what was measured -> the mean of `SEEDS` minus two deviations.
      at_most: what was measured -> the mean plus two deviations.
    """

    config: Callable[[], Config]
    parent: Callable[[], Config]
    at_least: Mapping[str, float]
    at_most: Mapping[str, float]


def measure(row: Learns, seed: int, workdir: Path, *, subset: str = "is_answer") -> dict[str, float]:
    """Accuracy on held-out documents: `kept`, `cleared`, `shuffled`, `parent`, and of every named evaluation.

    Args:
      row: the task.
      seed: of parameters and documents.
      workdir: of the two runs.
      subset: of the targets, '' = all.
    """
    found = {}
    for name, config in {"memory": row.config(), "parent": row.parent()}.items():
        loaded = load_run(trained(config, f"{name}_{seed}", seed, workdir))
        asked = {"parent": loaded.experiment.config.evaluation}
        if name == "memory":
            own = loaded.experiment.config
            asked = {state: dataclasses.replace(own.evaluation, memory_state=state) for state in STATES}
            asked |= {evaluation.name: evaluation for evaluation in own.evaluations}
        for what, evaluation in asked.items():
            result = loaded.experiment.evaluate(loaded.variables, dataclasses.replace(evaluation, accuracy=True))
            found[what] = (result.subsets[subset] if subset else result).accuracy
    return found


def check(row: Learns, found: Mapping[str, float]) -> None:
    """Every number is where the seeds have put it."""
    assert row.at_least and row.at_most
    for name, least in row.at_least.items():
        assert found[name] >= least, (name, found, row.at_least)
    for name, most in row.at_most.items():
        assert found[name] <= most, (name, found, row.at_most)


def trained(config: Config, name: str, seed: int, workdir: Path) -> Path:
    """The directory of a run that evaluates and saves at its end only."""
    config = dataclasses.replace(config, name=name, workdir=str(workdir))
    config.training.seed = config.data.seed = seed
    config.training.evaluate_every, config.training.log_every = 0, config.training.steps
    config.training.checkpoint_every = config.training.steps
    return Path(train(config, on_event=_nothing).path)


def _nothing(event: Event) -> None:
    """Shows no progress."""
