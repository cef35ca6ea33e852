"""Streams of tasks: the order of their examples, and the order of the updates that read them.

Both are computed on the host from the counters in the position of a stream. So a stopped run continues exactly where it
stood, even in the middle of an epoch.
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
from memjax.data.rows import BatchIterator, epoch_order
from memjax.training.stages import STREAM
from memjax.typing import Batch

__all__ = [
    "TASK",
    "ExampleSubset",
    "EpisodePlan",
    "EpisodeSchedule",
    "JoinedExamples",
    "TaskSlice",
    "StreamPlan",
    "PlannedStream",
    "ReplaySchedule",
    "replay_frequency",
    "task_free_order",
]

TASK = "task"
"""The name in `Batch.extras` under which every row says its task, where a method needs it: int32 `[batch]`."""


class TaskSlice(NamedTuple):
    """The training examples of one task, with their place in the stream of all tasks.

    Attributes:
      examples: Examples of the training split of the task.
      task: Number of the task in the stream, from 0.
      first: Number of examples of all earlier tasks. Added to an example's number in its task, it makes a number that
        is unique in the run.
    """

    examples: Examples
    task: int
    first: int


class ExampleSubset(Examples):
    """A subset of a data set, in a given order, possibly with repetitions.

    Example:
      >>> from memjax.data.vectors import LabelledVectors, VectorArrays
      >>> values = VectorArrays(np.zeros((4, 2)), np.arange(4, dtype=np.int32), np.arange(4), classes=(0, 1, 2, 3))
      >>> chosen = ExampleSubset(LabelledVectors(values, length=2, num_classes=4), np.array([3, 1, 3]))
      >>> len(chosen), [int(chosen.example(i).targets[0]) for i in range(3)]
      (3, [3, 1, 3])
    """

    def __init__(self, examples: Examples, numbers: np.ndarray):
        """Stores the numbers of the examples. Examples are read when they are asked for.

        Args:
          examples: The whole data set.
          numbers: Numbers of the examples of the subset, in its order. Numbers may repeat.
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
    """A data set of the examples of one or more tasks, one task after the other or in a given order.

    Every example gets its number in the run, which is unique, as the extra "example".

    Example:
      >>> from memjax.data.vectors import LabelledVectors, VectorArrays
      >>> values = lambda n: VectorArrays(np.zeros((n, 2)), np.zeros(n, np.int32), np.arange(n), classes=(0,))
      >>> vectors = lambda size: LabelledVectors(values(size), length=2, num_classes=2)
      >>> tasks = JoinedExamples([TaskSlice(vectors(3), 0, 0), TaskSlice(vectors(2), 1, 3)], tells_task=True)
      >>> [int(tasks.example(i).context[name]) for i in (0, 4) for name in ("example", "task")]
      [0, 0, 4, 1]
    """

    def __init__(self, parts: Sequence[TaskSlice], *, tells_task: bool = False, order: np.ndarray | None = None):
        """Stores the order of the examples. Examples are read when they are asked for.

        Args:
          parts: Examples of every task.
          tells_task: Whether to add the task number of every example to its extras, as "task".
          order: Permutation of all examples: their numbers in the joined tasks. None for one task after the other.

        Raises:
          ValueError: a task has no examples.
        """
        for part in parts:
            if not len(part.examples):
                raise ValueError(f"lifelong.tasks.{part.task}: no examples for training, allowed: at least one")
        self._parts, self._tells_task = tuple(parts), tells_task
        self._ends = np.cumsum([len(part.examples) for part in parts])
        self._order = np.arange(self._ends[-1]) if order is None else order
        identity = "/".join([str(part.examples.fingerprint) for part in parts] + ["task"] * tells_task)
        digest = hashlib.sha256(identity.encode() + self._order.astype("<i8").tobytes())
        self.fingerprint = "joined-" + digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._order)

    def _find(self, index: int) -> tuple[TaskSlice, int]:
        """Returns the task of an example and its number in the task."""
        place = int(self._order[index])
        part = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[part], place - (int(self._ends[part - 1]) if part else 0)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        part, number = self._find(index)
        example = part.examples.example(number, epoch)
        context = {**example.context, EXAMPLE: np.array(part.first + number, np.int32)}
        if self._tells_task:
            context[TASK] = np.array(part.task, np.int32)
        return dataclasses.replace(example, context=context)

    def num_bytes(self, index: int, /) -> int:
        part, number = self._find(index)
        return part.examples.num_bytes(number)


def task_free_order(sizes: Sequence[int], *, width: float, seed: int) -> np.ndarray:
    """Orders the examples of all tasks for a stream whose task boundaries are unknown to the learner.

    The examples of every task are shuffled. Then each moves by up to half of `width` places in either direction, so
    that one task blends into the next over `width` examples.

    Args:
      sizes: Number of examples of each task.
      width: Number of examples over which tasks blend. 0 for sharp boundaries, `inf` for fully mixed tasks.
      seed: Seed of the order.

    Returns:
      Example numbers in the order of reading, int64 `[examples]`.

    Example:
      >>> task_free_order([3, 2], width=0, seed=0).tolist()  # 0 to 2 are the first task's
      [1, 2, 0, 4, 3]
      >>> sorted(task_free_order([3, 2], width=float("inf"), seed=0).tolist())
      [0, 1, 2, 3, 4]
    """
    starts = np.cumsum([0, *sizes[:-1]])
    tasks = zip(starts, sizes, strict=True)
    order = np.concatenate(
        [start + epoch_order(size, seed=seed, epoch=index) for index, (start, size) in enumerate(tasks)]
    )
    if width == np.inf:
        return order[epoch_order(len(order), seed=seed, epoch=len(sizes))]
    rank = np.argsort(epoch_order(len(order), seed=seed, epoch=len(sizes)), kind="stable")
    moved = np.arange(len(order)) + width * (rank / max(len(order), 1) - 0.5)
    return order[np.argsort(moved, kind="stable")]


class ReplaySchedule(NamedTuple):
    """A schedule of updates of another kind, such as replay, between those of the stream.

    Attributes:
      every: Number of examples of the stream from one such update to the next, counted from the beginning of the run.
        0 for none.
      kind: Name of the kind of these updates.
      reads: Whether such an update replaces an update of the stream and reads its batch. If not, it follows the update
        and gets no batch.
    """

    every: int = 0
    kind: str = "replay"
    reads: bool = False

    def plan(self, examples: int, rows: int, epochs: int, before: StreamPlan | None) -> StreamPlan:
        """Plans the updates of a stage.

        Args:
          examples: Number of examples of the stage.
          rows: Number of rows of a batch.
          epochs: Number of times that each example is read.
          before: Plan of the stage before. None for the first stage.
        """
        return StreamPlan(examples, rows, epochs, before.seen + before.total if before else 0, self)

    def kinds(self, example: Batch) -> dict[str, Batch | None]:
        """Returns a batch for each kind of update, or None for updates without one, from a batch of the stream."""
        other = {self.kind: example if self.reads else None} if self.every else {}
        return {STREAM: example, **other}


class StreamPlan(NamedTuple):
    """A plan of the updates of a stage, made before it begins: one for every batch, and those of its schedule.

    Rows do not wait for each other at the end of an epoch (`memjax.data.rows`). Batches are full as long as all rows
    have something to read, and the examples that are left over are spread over the last batches.

    Attributes:
      examples: Number of different examples of the stage.
      rows: Number of rows of a batch.
      epochs: Number of times that each example is read.
      seen: Number of examples that the run reads before the stage.
      schedule: Schedule of the other updates.

    Example:
      >>> plan = StreamPlan(examples=7, rows=3, epochs=1, seen=0, schedule=ReplaySchedule(every=3))
      >>> plan.batches, plan.updates, [plan.count(i) for i in range(plan.batches)], [plan.is_due(i) for i in range(3)]
      (3, 5, [3, 3, 1], [True, True, False])
    """

    examples: int
    rows: int
    epochs: int
    seen: int
    schedule: ReplaySchedule

    @property
    def total(self) -> int:
        """Number of examples that the stage reads, with repetitions."""
        return self.examples * self.epochs

    @property
    def batches(self) -> int:
        """Number of updates that read a batch of the stream."""
        return self.epochs * -(-self.examples // self.rows)

    @property
    def updates(self) -> int:
        """Number of all updates."""
        return self.batches + (0 if self.schedule.reads else self.num_due)

    @property
    def left_out(self) -> int:
        """Number of examples that no update reads."""
        return 0

    @property
    def num_due(self) -> int:
        """Number of updates of the schedule."""
        every = self.schedule.every
        return (self.seen + self.total) // every - self.seen // every if every else 0

    def count(self, batch: int) -> int:
        """Returns the number of examples of a batch, by the number of the batch in the stage."""
        full = self.epochs * (self.examples // self.rows)
        return self.rows if batch < full else self.examples % self.rows

    def before(self, batch: int) -> int:
        """Returns the number of examples that the run reads before a batch, by the number of the batch in the stage."""
        full = self.epochs * (self.examples // self.rows)
        return self.seen + min(batch, full) * self.rows + max(batch - full, 0) * (self.examples % self.rows)

    def is_due(self, batch: int) -> bool:
        """Returns whether an update of the schedule is due with a batch, by the number of the batch in the stage."""
        every, before = self.schedule.every, self.before(batch)
        return bool(every) and (before + self.count(batch)) // every > before // every

    def stream(self, batches: BatchIterator, position: Mapping[str, Any] | None = None) -> PlannedStream:
        """Returns the updates of the stage from a position on. `batches` must be at the same position."""
        return PlannedStream(batches, self, position)


def replay_frequency(interval: int, batch: int, steps: int) -> int:
    """Computes the number of episodes from one replay to the next: `ceil((R_I / b + 1) / (m + 1))` (Holla et al. 2020).

    An episode reads m + 1 batches of the stream, and a replay episode reads m. So replays are about `interval` examples
    apart.

    Args:
      interval: Number of examples of the stream from one replay to the next (R_I), at least a batch.
      batch: Number of examples of a batch (b).
      steps: Number of steps of the inner loop (m).

    Example:
      >>> replay_frequency(9600, 16, 5), replay_frequency(1600, 4, 5), replay_frequency(32, 32, 0)
      (101, 67, 2)
    """
    return -(-(interval + batch) // (batch * (steps + 1)))


class EpisodeSchedule(NamedTuple):
    """A schedule of episodes: updates that adapt to several batches and learn a query, sometimes from the memory.

    Attributes:
      every: Approximate number of examples of the stream from one replay episode to the next (`replay_frequency`). 0
        for no replay.
      kind: Name of the kind of replay episodes, whose query comes from the memory.
      reads: Whether replay episodes read batches of the stream. They always do.
      steps: Number of batches that an episode adapts to (m).
      keeps_last: Whether batches that are left at the end of a stage form an episode with fewer steps. If not, they are
        not read.
    """

    every: int = 0
    kind: str = "replay"
    reads: bool = True
    steps: int = 0
    keeps_last: bool = False

    def plan(self, examples: int, rows: int, epochs: int, before: EpisodePlan | None) -> EpisodePlan:
        """Plans the episodes of a stage.

        Args:
          examples: Number of examples of the stage.
          rows: Number of rows of a batch.
          epochs: Number of times that each example is read.
          before: Plan of the stage before. None for the first stage.
        """
        return EpisodePlan(examples, rows, epochs, before.first + before.updates if before else 0, self)

    def kinds(self, example: Batch) -> dict[str, Batch | None]:
        """Returns the shapes of the batches of each kind of update, from a batch of the stream."""
        shape = lambda leaf, size: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)
        several = lambda size: jax.tree.map(lambda leaf: shape(leaf, size), example) if size else None
        other = {self.kind: several(self.steps)} if self.every else {}
        return {STREAM: several(self.steps + 1), **other}


class EpisodePlan(NamedTuple):
    """A plan of the episodes of a stage, made before it begins. No episode extends into the next stage.

    Attributes:
      examples: Number of different examples of the stage.
      rows: Number of rows of a batch.
      epochs: Number of times that each example is read.
      first: Number of episodes that the run has before the stage.
      schedule: Schedule of the episodes.

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
        """Number of examples of the stream, with repetitions."""
        return self.examples * self.epochs

    @property
    def batches(self) -> int:
        """Number of batches of the stream."""
        return self.epochs * -(-self.examples // self.rows)

    def replays(self, episode: int) -> bool:
        """Returns whether the query of an episode comes from the memory, by the number of the episode in the stage."""
        every, _, _, steps, _ = self.schedule
        return bool(every) and (self.first + episode + 1) % replay_frequency(every, self.rows, steps) == 0

    def size(self, episode: int) -> int:
        """Returns the number of batches of an episode, by the number of the episode in the stage."""
        return self.schedule.steps + (not self.replays(episode))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of batches that every episode reads. A last episode that is kept may have fewer than the others."""
        left, sizes = self.batches, list[int]()
        while left >= (size := self.size(len(sizes))):
            sizes.append(size)
            left -= size
        return (*sizes, left) if left and self.schedule.keeps_last else tuple(sizes)

    @property
    def updates(self) -> int:
        """Number of episodes."""
        return len(self.sizes)

    @property
    def num_due(self) -> int:
        """Number of episodes that replay."""
        return sum(self.replays(episode) for episode in range(self.updates))

    @property
    def left_out(self) -> int:
        """Number of examples that are in no episode."""
        plan = StreamPlan(self.examples, self.rows, self.epochs, 0, ReplaySchedule())
        return plan.total - plan.before(sum(self.sizes))

    def stream(self, batches: BatchIterator, position: Mapping[str, Any] | None = None) -> EpisodeStream:
        """Returns the episodes of the stage from a position on. `batches` must be at the same position."""
        return EpisodeStream(batches, self, position)


class PlannedStream:
    """An iterator over the updates of a stage: batches of a stream, with the updates of its plan between them.

    Attributes:
      position: JSON value with the position of the batches, the number of batches that were read, and whether an update
        of the schedule is due before the next batch.
    """

    def __init__(self, batches: BatchIterator, plan: StreamPlan, position: Mapping[str, Any] | None = None):
        """Makes an iterator that continues with the update after `position`.

        Args:
          batches: Batches of the stream, at the same position.
          plan: Plan of the stage.
          position: Position of an earlier iterator. None for the beginning of the stage.
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
    """An iterator over the episodes of a stage: `[batches, rows, ...]` of a stream, the support first, then the query.

    Attributes:
      position: JSON value with the position of the batches and the number of episodes that were read.
    """

    def __init__(self, batches: BatchIterator, plan: EpisodePlan, position: Mapping[str, Any] | None = None):
        """Makes an iterator that continues with the episode after `position`.

        Args:
          batches: Batches of the stream, at the same position.
          plan: Plan of the stage.
          position: Position of an earlier iterator. None for the beginning of the stage.
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
        batches = [next(self._batches) for _ in range(self._sizes[number])]
        kind, size = self._plan.schedule.kind if replays else STREAM, self._plan.size(number)
        if not size:
            return kind, None
        # The batches that a last episode lacks are padded in front: its query is the last batch of the stage.
        nothing = [self._batches.make_padding_batch() for _ in range(size - len(batches))]
        return kind, jax.tree.map(lambda *leaves: np.concatenate(leaves), *nothing, *batches)
