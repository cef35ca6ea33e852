"""Streams of tasks: which examples stand in which order, and which update comes next.

What is decided here is decided on the host, as a function of counters that the position of a stream holds, so that a
run goes on where it was stopped, in the middle of an epoch too.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from memjax.data.documents import Example, Examples
from memjax.data.examples import EXAMPLE
from memjax.data.rows import RowStream, epoch_order
from memjax.training.stages import STREAM
from memjax.typing import Batch

__all__ = [
    "TASK",
    "Chosen",
    "EpisodePlan",
    "EpisodeSchedule",
    "JoinedExamples",
    "Part",
    "Plan",
    "PlannedStream",
    "Schedule",
    "replay_frequency",
    "task_free_order",
]

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


class Chosen(Examples):
    """Some examples of others, by their numbers.

    Example:
      >>> from memjax.data.vectors import LabelledVectors, Vectors
      >>> values = Vectors(np.zeros((4, 2)), np.arange(4, dtype=np.int32), np.arange(4), classes=(0, 1, 2, 3))
      >>> chosen = Chosen(LabelledVectors(values, length=2, num_classes=4), np.array([3, 1, 3]))
      >>> len(chosen), [int(chosen.example(i).targets[0]) for i in range(3)]
      (3, [3, 1, 3])
    """

    def __init__(self, examples: Examples, numbers: np.ndarray):
        """Reads nothing.

        Args:
          examples: all of them.
          numbers: which, in which order; one may stand there more than once.
        """
        self._examples, self._numbers = examples, numbers
        digest = hashlib.sha256(f"{examples.fingerprint}".encode() + numbers.astype("<i8").tobytes())
        self.fingerprint = "chosen-" + digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._numbers)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        return self._examples.example(int(self._numbers[index]), epoch)

    def num_bytes(self, index: int, /) -> int:
        return self._examples.num_bytes(int(self._numbers[index]))


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

    def plan(self, examples: int, rows: int, epochs: int, before: Plan | None) -> Plan:
        """The updates of a stage that follows those of `before`; None = it is the first."""
        return Plan(examples, rows, epochs, before.seen + before.total if before else 0, self)

    def kinds(self, example: Batch) -> dict[str, Batch | None]:
        """Kind of update -> an example of its batches, of one of the stream."""
        other = {self.kind: example if self.reads else None} if self.every else {}
        return {STREAM: example, **other}


class Plan(NamedTuple):
    """The updates of a stage, counted before it begins: one for every batch, and those of its schedule.

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
    def left_out(self) -> int:
        """Examples that no update reads."""
        return 0

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

    def stream(self, batches: RowStream, position: Mapping[str, Any] | None = None) -> PlannedStream:
        """The updates from a position on; `batches` stand there too."""
        return PlannedStream(batches, self, position)


def replay_frequency(interval: int, batch: int, steps: int) -> int:
    """Every how many episodes one is a replay: `ceil((R_I / b + 1) / (m + 1))` (Holla et al. 2020).

    An episode reads m + 1 batches of the stream, one of a replay m: replays are about `interval` examples apart.

    Args:
      interval: examples of the stream from one replay to the next (R_I), at least those of a batch.
      batch: examples of a batch (b).
      steps: of the inner loop (m).

    Example:
      >>> replay_frequency(9600, 16, 5), replay_frequency(1600, 4, 5), replay_frequency(32, 32, 0)
      (101, 67, 2)
    """
    return -(-(interval + batch) // (batch * (steps + 1)))


class EpisodeSchedule(NamedTuple):
    """Episodes of several batches: those to adapt to, and a query, which now and then is of the memory.

    Attributes:
      every: examples of the stream from one replay to the next, about (`replay_frequency`); 0 = none.
      kind: of the update whose query is of the memory.
      reads: it reads batches of the stream.
      steps: batches that an update adapts to (m).
      keeps_last: batches at the end that fill no episode are one all the same, with fewer steps.
    """

    every: int = 0
    kind: str = "replay"
    reads: bool = True
    steps: int = 0
    keeps_last: bool = False

    def plan(self, examples: int, rows: int, epochs: int, before: EpisodePlan | None) -> EpisodePlan:
        """The updates of a stage that follows those of `before`; None = it is the first."""
        return EpisodePlan(examples, rows, epochs, before.first + before.updates if before else 0, self)

    def kinds(self, example: Batch) -> dict[str, Batch | None]:
        """Kind of update -> shapes of its batches, of an example of one of the stream."""
        shape = lambda leaf, size: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)
        several = lambda size: jax.tree.map(lambda leaf: shape(leaf, size), example) if size else None
        other = {self.kind: several(self.steps)} if self.every else {}
        return {STREAM: several(self.steps + 1), **other}


class EpisodePlan(NamedTuple):
    """The episodes of a stage, counted before it begins. None reaches over into the next stage.

    Attributes:
      examples: of the stream, each once.
      rows: of a batch.
      epochs: how often each is read.
      first: episodes of the run before the stage.
      schedule: of episodes.

    Example:
      >>> plan = EpisodePlan(575_000, 16, 1, 0, EpisodeSchedule(every=9600, steps=5))
      >>> plan.updates, plan.num_due, plan.left_out  # episodes, those that replay, examples in none
      (5999, 59, 40)
    """

    examples: int
    rows: int
    epochs: int
    first: int
    schedule: EpisodeSchedule

    @property
    def total(self) -> int:
        """Examples of the stream."""
        return self.examples * self.epochs

    @property
    def batches(self) -> int:
        """Batches of the stream."""
        return self.epochs * -(-self.examples // self.rows)

    def replays(self, episode: int) -> bool:
        """Whether the query of an episode of the stage is of the memory."""
        every, _, _, steps, _ = self.schedule
        return bool(every) and (self.first + episode + 1) % replay_frequency(every, self.rows, steps) == 0

    def size(self, episode: int) -> int:
        """Batches of an episode of the stage."""
        return self.schedule.steps + (not self.replays(episode))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batches that every episode reads; the last may have fewer than it asks for, where it is kept."""
        left, found = self.batches, list[int]()
        while left >= (size := self.size(len(found))):
            found.append(size)
            left -= size
        return (*found, left) if left and self.schedule.keeps_last else tuple(found)

    @property
    def updates(self) -> int:
        """Episodes."""
        return len(self.sizes)

    @property
    def num_due(self) -> int:
        """Episodes that replay."""
        return sum(self.replays(episode) for episode in range(self.updates))

    @property
    def left_out(self) -> int:
        """Examples that are in no episode."""
        plan = Plan(self.examples, self.rows, self.epochs, 0, Schedule())
        return plan.total - plan.before(sum(self.sizes))

    def stream(self, batches: RowStream, position: Mapping[str, Any] | None = None) -> EpisodeStream:
        """The episodes from a position on; `batches` stand there too."""
        return EpisodeStream(batches, self, position)


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


class EpisodeStream:
    """The episodes of a stage: `[batches, rows, ...]` of a stream, the query behind what is adapted to.

    Attributes:
      position: JSON-able: that of the batches, and how many episodes were read.
    """

    def __init__(self, batches: RowStream, plan: EpisodePlan, position: Mapping[str, Any] | None = None):
        """Goes on with the next episode.

        Args:
          batches: at the same position.
          plan: of the stage.
          position: where an earlier stream stood; None = the beginning.
        """
        self._batches, self._plan, self._sizes = batches, plan, plan.sizes
        self._read = position["episodes"] if position else 0

    @property
    def position(self) -> dict[str, Any]:
        return {**self._batches.position, "episodes": self._read}

    def __iter__(self) -> Iterator[tuple[str, Batch | None]]:
        return self

    def __next__(self) -> tuple[str, Batch | None]:
        if self._read == len(self._sizes):
            raise StopIteration
        number, replays = self._read, self._plan.replays(self._read)
        self._read += 1
        found = [next(self._batches) for _ in range(self._sizes[number])]
        kind, size = self._plan.schedule.kind if replays else STREAM, self._plan.size(number)
        if not size:
            return kind, None
        # The batches that a last episode lacks are padding, in front: its query is the last one that there is.
        nothing = [self._batches.empty() for _ in range(size - len(found))]
        return kind, jax.tree.map(lambda *leaves: np.concatenate(leaves), *nothing, *found)
