"""Streams of tasks: which examples stand in which order, and which update comes next.

What is decided here is decided on the host, as a function of counters that the position of a stream holds, so that a
run goes on where it was stopped, in the middle of an epoch too.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from memjax.data.documents import Example, Examples
from memjax.data.examples import EXAMPLE
from memjax.data.rows import RowStream, epoch_order
from memjax.training.stages import STREAM
from memjax.typing import Batch

__all__ = ["TASK", "JoinedExamples", "Part", "Plan", "PlannedStream", "Schedule", "task_free_order"]

TASK = "task"
"""The name in `Batch.extras` under which every row says its task, where a method needs it: int32 `[batch]`."""


class Part(NamedTuple):
    """The examples of a task in a stream.

    Attributes:
      examples: of its training split.
      task: its number in the stream.
      first: examples of the tasks before it: what is added to their numbers, so that no two of a run have one number.
    """

    examples: Examples
    task: int
    first: int


class JoinedExamples(Examples):
    """The examples of one or more tasks, one after the other; `extras["example"]` is a number of its own in the run.

    Example:
      >>> from memjax.data.vectors import LabelledVectors, Vectors
      >>> values = lambda size: Vectors(np.zeros((size, 2)), np.zeros(size, np.int32), np.arange(size), classes=(0,))
      >>> vectors = lambda size: LabelledVectors(values(size), length=2, num_classes=2)
      >>> both = JoinedExamples([Part(vectors(3), 0, 0), Part(vectors(2), 1, 3)], tells_task=True)
      >>> [int(both.example(i).context[name]) for i in (0, 4) for name in ("example", "task")]
      [0, 0, 4, 1]
    """

    def __init__(self, parts: Sequence[Part], *, tells_task: bool = False, order: np.ndarray | None = None):
        """Reads nothing.

        Args:
          parts: the tasks.
          tells_task: every example says its task in `extras["task"]`.
          order: of all examples, numbers of those in their parts' order; None = that order.

        Raises:
          ValueError: a task without examples.
        """
        for part in parts:
            if not len(part.examples):
                raise ValueError(f"lifelong.tasks.{part.task}: no examples for training, allowed: at least one")
        self._parts, self._tells_task = tuple(parts), tells_task
        self._ends = np.cumsum([len(part.examples) for part in parts])
        self._order = np.arange(self._ends[-1]) if order is None else order
        told = "/".join([str(part.examples.fingerprint) for part in parts] + ["task"] * tells_task)
        digest = hashlib.sha256(told.encode() + self._order.astype("<i8").tobytes())
        self.fingerprint = "joined-" + digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._order)

    def _find(self, index: int) -> tuple[Part, int]:
        place = int(self._order[index])
        part = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[part], place - (int(self._ends[part - 1]) if part else 0)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        part, number = self._find(index)
        found = part.examples.example(number, epoch)
        context = {**found.context, EXAMPLE: np.array(part.first + number, np.int32)}
        if self._tells_task:
            context[TASK] = np.array(part.task, np.int32)
        return dataclasses.replace(found, context=context)

    def num_bytes(self, index: int, /) -> int:
        part, number = self._find(index)
        return part.examples.num_bytes(number)


def task_free_order(sizes: Sequence[int], *, width: float, seed: int) -> np.ndarray:
    """The order of the examples of all tasks in a stream without borders, int64 `[examples]`.

    Every task's examples are shuffled; then each moves by up to half of `width` places to either side, so that over so
    many examples one task goes over into the next.

    Args:
      sizes: examples of each task.
      width: in examples; 0 = sharp borders, `inf` = all tasks fully mixed.
      seed: of the order.

    Example:
      >>> task_free_order([3, 2], width=0, seed=0).tolist()  # 0 to 2 are the first task's
      [1, 2, 0, 4, 3]
      >>> sorted(task_free_order([3, 2], width=float("inf"), seed=0).tolist())
      [0, 1, 2, 3, 4]
    """
    starts = np.cumsum([0, *sizes[:-1]])
    both = zip(starts, sizes, strict=True)
    order = np.concatenate(
        [start + epoch_order(size, seed=seed, epoch=index) for index, (start, size) in enumerate(both)]
    )
    if width == np.inf:
        return order[epoch_order(len(order), seed=seed, epoch=len(sizes))]
    rank = np.argsort(epoch_order(len(order), seed=seed, epoch=len(sizes)), kind="stable")
    moved = np.arange(len(order)) + width * (rank / max(len(order), 1) - 0.5)
    return order[np.argsort(moved, kind="stable")]


class Schedule(NamedTuple):
    """Which updates stand between those of the stream.

    Attributes:
      every: examples from one to the next, counted from the first of the run; 0 = none.
      kind: of the update that is due.
      reads: it takes the place of the stream's update, and reads its batch; else it follows it, without a batch.
    """

    every: int = 0
    kind: str = "replay"
    reads: bool = False


class Plan(NamedTuple):
    """The updates of a stage, counted before it begins.

    Rows do not wait for each other at the end of an epoch (`memjax.data.rows`): while every row has something to read
    a batch is full, and the examples that are left over fill no more than a part of the last ones.

    Attributes:
      examples: of the stage, each once.
      rows: of a batch.
      epochs: how often each is read.
      seen: examples of the run before the stage.
      schedule: of other updates.

    Example:
      >>> plan = Plan(examples=7, rows=3, epochs=1, seen=0, schedule=Schedule(every=3))
      >>> plan.batches, plan.updates, [plan.count(i) for i in range(plan.batches)], [plan.is_due(i) for i in range(3)]
      (3, 5, [3, 3, 1], [True, True, False])
    """

    examples: int
    rows: int
    epochs: int
    seen: int
    schedule: Schedule

    @property
    def total(self) -> int:
        """Examples that are read."""
        return self.examples * self.epochs

    @property
    def batches(self) -> int:
        """Updates that read the stream."""
        return self.epochs * -(-self.examples // self.rows)

    @property
    def updates(self) -> int:
        """All updates."""
        return self.batches + (0 if self.schedule.reads else self.num_due)

    @property
    def num_due(self) -> int:
        """Updates of the schedule."""
        every = self.schedule.every
        return (self.seen + self.total) // every - self.seen // every if every else 0

    def count(self, batch: int) -> int:
        """Examples of a batch."""
        full = self.epochs * (self.examples // self.rows)
        return self.rows if batch < full else self.examples % self.rows

    def before(self, batch: int) -> int:
        """Examples of the run before a batch."""
        full = self.epochs * (self.examples // self.rows)
        return self.seen + min(batch, full) * self.rows + max(batch - full, 0) * (self.examples % self.rows)

    def is_due(self, batch: int) -> bool:
        """Whether an update of the schedule is due with a batch."""
        every, before = self.schedule.every, self.before(batch)
        return bool(every) and (before + self.count(batch)) // every > before // every


class PlannedStream:
    """The updates of a stage: batches of a stream, and what its plan has between them.

    Attributes:
      position: JSON-able: that of the batches, how many were read, and whether an update is due before the next.
    """

    def __init__(self, batches: RowStream, plan: Plan, position: Mapping[str, Any] | None = None):
        """Goes on with the next update.

        Args:
          batches: at the same position.
          plan: of the stage.
          position: where an earlier stream stood; None = the beginning.
        """
        self._batches, self._plan = batches, plan
        self._read, self._due = (position["read"], position["due"]) if position else (0, False)

    @property
    def position(self) -> dict[str, Any]:
        return {**self._batches.position, "read": self._read, "due": self._due}

    def __iter__(self) -> Iterator[tuple[str, Batch | None]]:
        return self

    def __next__(self) -> tuple[str, Batch | None]:
        schedule = self._plan.schedule
        if self._due:
            self._due = False
            return schedule.kind, None
        batch, due = next(self._batches), self._plan.is_due(self._read)
        self._read += 1
        if due and schedule.reads:
            return schedule.kind, batch
        self._due = due
        return STREAM, batch
