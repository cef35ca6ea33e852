"""*Learns*: a model learns to use its memory, on a task that nothing but that memory can solve.

A task trains a small model with its memory and its parent without, scores documents that neither has seen, and then
takes the memory away from the trained model: every segment finds it cleared, or finds that of another row. What six
seeds have measured is in the ledger of results (`python -m tools.measurements.learns`), and bounds are made from it.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from memjax.config import Config
from memjax.training import load_run, train
from memjax.training.progress import Event

SEEDS = (0, 1, 2)
"""Seeds that the slow tests train again"""
MEASURED_SEEDS = (*SEEDS, 3, 4, 5)
"""Seeds of the measurement: fewer than six would be too few for a verdict"""
STATES = ("kept", "cleared", "shuffled")
KEPT, ALONE = "kept", "alone"
LEAST_DEVIATION = 0.01
"""of a number over seeds: answers are a thousand or so, and processors round differently"""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a memory is needed for.

    Attributes:
      measure: `measure(seed, workdir)` trains and gives what is measured by name: `kept` with the memory, everything
        else without it or with less of it, but for `alone`, which is told and not compared.
      about: what has to be remembered, in a line.
      unit: of the numbers.
      chance: what knowing nothing of it gives.
    """

    measure: Callable[[int, Path], dict[str, float]]
    about: str
    unit: str = "accuracy"
    chance: float = 0.125


def bounds(measured: Sequence[Mapping[str, float]]) -> tuple[float, dict[str, float]]:
    """The least that `kept` has to be, and the most of everything else, from what the seeds have measured.

    They are two deviations from the means. Where the seeds of `kept` lie so far apart that this would be no more than
    nothing, its bound is that of the others and two deviations more.

    Example:
      >>> least, most = bounds([{"kept": 0.9, "cleared": 0.1}, {"kept": 1.0, "cleared": 0.12}])
      >>> print(round(least, 3), {name: round(value, 3) for name, value in most.items()})
      0.809 {'cleared': 0.138}
    """
    spread = {
        name: (statistics.fmean(values), 2 * max(statistics.stdev(values), LEAST_DEVIATION))
        for name in measured[0]
        if (values := [one[name] for one in measured]) and name != ALONE
    }
    most = {name: mean + width for name, (mean, width) in spread.items() if name != KEPT}
    mean, width = spread[KEPT]
    return max(mean - width, max(most.values()) + 2 * LEAST_DEVIATION), most


def accuracies(
    seed: int, workdir: Path, *, memory: Config, parent: Config, subset: str = "is_answer"
) -> dict[str, float]:
    """Accuracy on held-out documents: `kept`, `cleared`, `shuffled`, `parent`, and of every named evaluation.

    Args:
      seed: of parameters and documents.
      workdir: of the two runs.
      memory: with it; its named evaluations are measured too.
      parent: the same without it.
      subset: of the targets, '' = all.
    """
    found = {}
    for name, config in {"memory": memory, "parent": parent}.items():
        loaded = load_run(trained(config, f"{name}_{seed}", seed, workdir))
        asked = {"parent": loaded.experiment.config.evaluation}
        if name == "memory":
            own = loaded.experiment.config
            asked = {state: dataclasses.replace(own.evaluation, memory_intervention=state) for state in STATES}
            asked |= {evaluation.name: evaluation for evaluation in own.evaluations}
        for what, evaluation in asked.items():
            result = loaded.experiment.evaluate(
                loaded.variables, dataclasses.replace(evaluation, compute_accuracy=True)
            )
            found[what] = (result.subsets[subset] if subset else result).accuracy
    return found


def trained(config: Config, name: str, seed: int, workdir: Path) -> Path:
    """The directory of a run that evaluates and saves at its end only."""
    config = dataclasses.replace(config, name=name, workdir=str(workdir))
    config.training.seed = config.data.seed = seed
    config.training.evaluate_every, config.training.log_every = 0, config.training.steps
    config.training.checkpoint_every = config.training.steps
    return Path(train(config, on_event=_nothing).path)


def _nothing(event: Event) -> None:
    """Shows no progress."""
