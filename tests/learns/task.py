"""*Learns*: a model learns to use its memory, on a task that nothing but that memory can solve.

A task trains a small model with its memory, and a parent without. It scores documents that neither has seen. Then it
takes the memory away from the trained model: every segment gets a cleared memory, or the memory of another row. The
ledger of results has the measurements of six seeds (`python -m tools.measurements.learns`), and bounds are computed
from them.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from memjax.config import Config
from memjax.training import load_run, train
from memjax.training.progress import Event

SEEDS = (0, 1, 2)
"""Seeds that the slow tests train again."""
MEASURED_SEEDS = (*SEEDS, 3, 4, 5)
"""Seeds of the measurement. Fewer than six would be too few for a verdict."""
STATES = ("kept", "cleared", "shuffled")
KEPT, ALONE = "kept", "alone"
LEAST_DEVIATION = 0.01
"""Smallest standard deviation over seeds in bounds: answers are about a thousand, and processors round differently."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A task that needs a memory.

    Attributes:
      measure: `measure(seed, workdir)` trains, and returns the measured numbers by name. `kept` is with the memory, and
        all others are without it or with less of it. `alone` is reported and not compared.
      about: Description of the texts that have to be remembered, in a line.
      unit: Unit of the numbers.
      chance: Number that a model without any knowledge of these texts reaches.
    """

    measure: Callable[[int, Path], dict[str, float]]
    about: str
    unit: str = "accuracy"
    chance: float = 0.125


def bounds(measured: Sequence[Mapping[str, float]]) -> tuple[float, dict[str, float]]:
    """Computes the lower bound of `kept`, and the upper bounds of all other numbers, from the measurements of seeds.

    The bounds are two standard deviations from the means. The bound of `kept` is also at least two smallest deviations
    (`LEAST_DEVIATION`) over the largest of the others, for seeds that lie far apart.

    Args:
      measured: Measured numbers by name, for each seed.

    Example:
      >>> least, most = bounds([{"kept": 0.9, "cleared": 0.1}, {"kept": 1.0, "cleared": 0.12}])
      >>> print(round(least, 3), {name: round(value, 3) for name, value in most.items()})
      0.809 {'cleared': 0.138}
    """
    spread = {
        name: (statistics.fmean(values), 2 * max(statistics.stdev(values), LEAST_DEVIATION))
        for name in measured[0]
        if (values := [results[name] for results in measured]) and name != ALONE
    }
    most = {name: mean + width for name, (mean, width) in spread.items() if name != KEPT}
    mean, width = spread[KEPT]
    return max(mean - width, max(most.values()) + 2 * LEAST_DEVIATION), most


def accuracies(
    seed: int, workdir: Path, *, memory: Config, parent: Config, subset: str = "is_answer"
) -> dict[str, float]:
    """Trains two models, and returns accuracies on held-out documents.

    The model with the memory has `kept`, `cleared` and `shuffled`, and one accuracy for each of its named evaluations.
    The model without the memory has `parent`.

    Args:
      seed: Seed of parameters and documents.
      workdir: Parent folder of the two runs.
      memory: Configuration of the model with the memory.
      parent: Configuration of an equal model without the memory.
      subset: Name of the targets that are scored. '' = all.
    """
    results = {}
    for name, config in {"memory": memory, "parent": parent}.items():
        loaded = load_run(train_run(config, f"{name}_{seed}", seed, workdir))
        evaluations = {"parent": loaded.experiment.config.evaluation}
        if name == "memory":
            trained_config = loaded.experiment.config
            evaluations = {
                state: dataclasses.replace(trained_config.evaluation, memory_intervention=state) for state in STATES
            }
            evaluations |= {evaluation.name: evaluation for evaluation in trained_config.evaluations}
        for evaluation_name, evaluation in evaluations.items():
            result = loaded.experiment.evaluate(
                loaded.variables, dataclasses.replace(evaluation, compute_accuracy=True)
            )
            results[evaluation_name] = (result.subsets[subset] if subset else result).accuracy
    return results


def train_run(config: Config, name: str, seed: int, workdir: Path) -> Path:
    """Trains a run that evaluates and saves at its end only, and returns its directory."""
    config = dataclasses.replace(config, name=name, workdir=str(workdir))
    config.training.seed = config.data.seed = seed
    config.training.evaluate_every, config.training.log_every = 0, config.training.steps
    config.training.checkpoint_every = config.training.steps
    return Path(train(config, on_event=_nothing).path)


def _nothing(event: Event) -> None:
    """Ignores an event, so that training shows no progress."""
