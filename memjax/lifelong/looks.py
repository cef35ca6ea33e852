"""Checkpoints of a run over tasks that are looked at afterwards: that of each task's end, and those of generations.

Runs keep their last two checkpoints unless `training.keep_checkpoints` says more; then one stays of every stage, of
which a task may have several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.lifelong.expansion import Growth
from memjax.training.metrics import read_metrics
from memjax.training.restoring import checkpoint_extras, checkpoint_steps
from memjax.training.stages import GROWTH, PHASES, Position

__all__ = [
    "KEPT",
    "GenerationCheckpoint",
    "task_end_checkpoints",
    "generation_checkpoints",
    "ancestor_pairs",
    "evenly_spaced",
    "task_ends",
]

KEPT = "--training.keep-checkpoints 999"
"""what keeps a checkpoint of every stage"""


def task_ends(run: Path | str) -> dict[int, int]:
    """Task -> the checkpoint of its end, of those that a run has kept; tasks count from 0 in their order."""
    lines = read_metrics(Path(run).expanduser() / "metrics.jsonl")
    return task_end_checkpoints(lines, checkpoint_steps(run))


def task_end_checkpoints(lines: Iterable[Mapping[str, Any]], kept: Sequence[int]) -> dict[int, int]:
    """Task -> checkpoint, by the lines of a run and the checkpoints that it has.

    Args:
      lines: of its metrics; a task ends with a stage that evaluations follow.
      kept: numbers of checkpoints, ascending.

    Example:
      >>> line = {"kind": "evaluation", "phase": "after"}
      >>> task_end_checkpoints([{**line, "step": 4}, {**line, "step": 8, "stage": 1}], [4, 11, 14])
      {0: 4, 1: 11}
    """
    after = [line for line in lines if line["kind"] == "evaluation" and line.get("phase") == "after"]
    steps, found = {line.get("stage", 0): line["step"] for line in after}, {}
    for task, (stage, step) in enumerate(sorted(steps.items())):
        start = Position(step, stage).checkpoint_number
        if there := [one for one in kept if start < one <= start + len(PHASES)]:
            found[task] = there[-1]
    return found


def evenly_spaced(values: Sequence[Any], most: int) -> list[Any]:
    """The first and the last of many, and some between them, evenly.

    Example:
      >>> evenly_spaced("abcdefg", 3), evenly_spaced("ab", 3)
      (['a', 'd', 'g'], ['a', 'b'])
    """
    if len(values) <= most:
        return [*values]
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


@dataclasses.dataclass(frozen=True)
class GenerationCheckpoint:
    """A checkpoint of a run.

    Attributes:
      generation: how often the model had grown.
      updates: made before it.
      step: of the checkpoint.
    """

    generation: int
    updates: int
    step: int

    def __str__(self) -> str:
        return f"{self.generation}_{self.updates}"


def generation_checkpoints(run: Path | str) -> tuple[list[GenerationCheckpoint], list[Growth]]:
    """The first and the last checkpoint of each generation of a run, oldest first, and how it has grown in between.

    Raises:
      ValueError: one generation alone, or growth without copies of heads.
    """
    extras = checkpoint_extras(run)
    looks = [
        GenerationCheckpoint(len(extra.get("lineage", ())), Position.read(step, extra["position"], 0).step, step)
        for step, extra in extras.items()
    ]
    own = [[look for look in looks if look.generation == one] for one in sorted({look.generation for look in looks})]
    if len(own) < 2:
        allowed = f"checkpoints of two or more; train one that grows with {KEPT}"
        raise ValueError(f"run: given {run}, with checkpoints of {len(own)} generation, allowed: {allowed}")
    lineage = max((extra.get("lineage", ()) for extra in extras.values()), key=len)
    if any(GROWTH not in one for one in lineage):
        raise ValueError(f"run: given {run}, which has not grown by copies, allowed: a run of ELLE")
    return [look for one in own for look in dict.fromkeys((one[0], one[-1]))], [
        Growth.from_json(one[GROWTH]) for one in lineage
    ]


def ancestor_pairs(looks: Sequence[GenerationCheckpoint]) -> list[tuple[GenerationCheckpoint, GenerationCheckpoint]]:
    """The last checkpoint of each generation with all of later generations.

    Example:
      >>> looks = [GenerationCheckpoint(*numbers) for numbers in ((0, 4, 4), (0, 8, 8), (1, 8, 10), (1, 9, 11))]
      >>> pairs = ancestor_pairs(looks)
      >>> [(str(one), str(other)) for one, other in pairs]
      [('0_8', '1_8'), ('0_8', '1_9')]
    """
    last = {look.generation: look for look in looks}
    return [(one, other) for one in last.values() for other in looks if one.generation < other.generation]
