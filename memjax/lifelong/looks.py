"""Finds the checkpoints of a run over tasks: those at the ends of tasks, and those between growths of the model.

Runs store their last two checkpoints unless `training.keep_checkpoints` asks for more. Then one checkpoint of every
stage stays. A task may have several stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.lifelong.growth_sources import Growth
from memjax.training.loaded_runs import checkpoint_extras, checkpoint_steps
from memjax.training.metrics import read_metrics
from memjax.training.stages import GROWTH, PHASES, Position

KEPT = "--training.keep-checkpoints 999"
"""Option with which a run stores a checkpoint of every stage."""


def task_ends(run: Path | str) -> dict[int, int]:
    """Returns the number of the checkpoint at the end of each task of a run directory, in a dict by the number of the
    task from 0. Tasks without such a checkpoint are left out.
    """
    lines = read_metrics(Path(run).expanduser() / "metrics.jsonl")
    return task_end_checkpoints(lines, checkpoint_steps(run))


def task_end_checkpoints(lines: Iterable[Mapping[str, Any]], kept: Sequence[int]) -> dict[int, int]:
    """Returns the number of the checkpoint at the end of each task, in a dict by the number of the task from 0. `lines`
    are the metrics of the run, `kept` the numbers of its stored checkpoints.

    Args:
      lines: Lines of the metrics of a run. A task ends with a stage that evaluations follow.
      kept: Numbers of the stored checkpoints, ascending.

    Example:
      >>> line = {"kind": "evaluation", "phase": "after"}
      >>> task_end_checkpoints([{**line, "step": 4}, {**line, "step": 8, "stage": 1}], [4, 11, 14])
      {0: 4, 1: 11}
    """
    after = [line for line in lines if line["kind"] == "evaluation" and line.get("phase") == "after"]
    steps, ends = {line.get("stage", 0): line["step"] for line in after}, {}
    for task, (stage, step) in enumerate(sorted(steps.items())):
        start = Position(step, stage).checkpoint_number
        if in_stage := [number for number in kept if start < number <= start + len(PHASES)]:
            ends[task] = in_stage[-1]
    return ends


def evenly_spaced(values: Sequence[Any], most: int) -> list[Any]:
    """Returns a list of at most `most` of the given values: the first, the last, and evenly spaced ones between them.

    Args:
      values: Values to choose from.
      most: Maximum number of values, at least 2.

    Example:
      >>> evenly_spaced("abcdefg", 3), evenly_spaced("ab", 3)
      (['a', 'd', 'g'], ['a', 'b'])
    """
    if len(values) <= most:
        return [*values]
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


@dataclasses.dataclass(frozen=True)
class GenerationCheckpoint:
    """A checkpoint of a model that grows: its number, and how many growths and updates came before it.

    Attributes:
      generation: Number of growths before the checkpoint.
      updates: Number of updates before the checkpoint.
      step: Number of the checkpoint.
    """

    generation: int
    updates: int
    step: int

    def __str__(self) -> str:
        return f"{self.generation}_{self.updates}"


def generation_checkpoints(run: Path | str) -> tuple[list[GenerationCheckpoint], list[Growth]]:
    """Returns a list of the first and the last `GenerationCheckpoint` of each generation of a run directory, oldest
    first, and the list of the growths (`Growth`) between generations.

    A generation is the time between two growths of the model.

    Raises:
      ValueError: the run has only one generation, or its model did not grow by copies.
    """
    extras = checkpoint_extras(run)
    looks = [
        GenerationCheckpoint(len(extra.get("lineage", ())), Position.read(step, extra["position"], 0).step, step)
        for step, extra in extras.items()
    ]
    generations = sorted({look.generation for look in looks})
    grouped = [[look for look in looks if look.generation == generation] for generation in generations]
    if len(grouped) < 2:
        allowed = f"checkpoints of two or more; train one that grows with {KEPT}"
        raise ValueError(f"run: given {run}, with checkpoints of {len(grouped)} generation, allowed: {allowed}")
    lineage = max((extra.get("lineage", ()) for extra in extras.values()), key=len)
    if any(GROWTH not in growth for growth in lineage):
        raise ValueError(f"run: given {run}, which has not grown by copies, allowed: a run of ELLE")
    first_and_last = [look for group in grouped for look in dict.fromkeys((group[0], group[-1]))]
    return first_and_last, [Growth.from_json(growth[GROWTH]) for growth in lineage]


def ancestor_pairs(looks: Sequence[GenerationCheckpoint]) -> list[tuple[GenerationCheckpoint, GenerationCheckpoint]]:
    """Pairs the last checkpoint of each generation with each checkpoint of later generations in `looks`. Returns tuples
    (ancestor, descendant).

    Example:
      >>> looks = [GenerationCheckpoint(*numbers) for numbers in ((0, 4, 4), (0, 8, 8), (1, 8, 10), (1, 9, 11))]
      >>> pairs = ancestor_pairs(looks)
      >>> [(str(ancestor), str(descendant)) for ancestor, descendant in pairs]
      [('0_8', '1_8'), ('0_8', '1_9')]
    """
    last = {look.generation: look for look in looks}
    return [(old, new) for old in last.values() for new in looks if old.generation < new.generation]
