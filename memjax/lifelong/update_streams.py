"""Streams of tasks: the order of their examples, and the order of the updates that read them.

Both are computed on the host from the counters in the position of a stream. So a stopped run continues exactly where it
stood, even in the middle of an epoch.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from memjax.data.batch_iterator import BatchIterator, epoch_order
from memjax.data.documents import Example, Examples
from memjax.data.example_batches import EXAMPLE
from memjax.training.stages import STREAM, PlannedUpdate, UpdateStream
from memjax.typing import Batch

TASK = "task"
"""The name in `Batch.extras` under which every row says its task, where a method needs it: int32 `[batch]`."""


class TaskSlice(NamedTuple):
    """The training examples of one task, with the number of the task and the number of examples of all earlier tasks.

    Attributes:
      examples: Examples of the training split of the task.
      task: Number of the task in the stream, from 0.
      first: Number of examples of all earlier tasks. Added to an example's number in its task, it makes a number that
        is unique in the run.
    """

    examples: Examples
    task: int
    first: int


def find_classes(examples: Examples) -> np.ndarray:
    """Returns the numbers of the classes of some labelled examples, ascending: all of their targets that count.

    Example:
      >>> from memjax.data.vectors import LabelledVectors, VectorArrays
      >>> values = VectorArrays(np.zeros((3, 2)), np.array([3, 1, 3], np.int32), np.arange(3), classes=(1, 3))
      >>> find_classes(LabelledVectors(values, length=2, num_classes=4)).tolist()
      [1, 3]
    """
    labelled = [examples.example(index) for index in range(len(examples))]
    return np.unique([target for example in labelled for target in example.targets[example.weights > 0]])


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
          order: Numbers of the examples to read in their order, counted over the joined tasks. None for all examples,
            one task after the other.

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
    """Orders the examples of all tasks for a stream without known task boundaries, and returns their numbers: each task
    is shuffled, and successive tasks blend over `width` examples. `sizes` are numbers of examples.

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


class StreamPlan(NamedTuple):
    """A plan of the updates of a stage, made before it begins: how many examples it reads, in batches of how many rows,
    how often, and by which schedule. No update reads batches of two stages.

    Rows do not wait for each other at the end of an epoch (`memjax.data.batch_iterator`). Batches are full as long as
    all rows have something to read, and the examples that are left over are spread over the last batches.

    Attributes:
      examples: Number of different examples of the stage.
      rows: Number of rows of a batch.
      epochs: Number of times that each example is read.
      earlier: Number of examples that the run reads before the stage, or of episodes for a schedule of episodes.
      schedule: Schedule of the updates.

    Example:
      >>> plan = StreamPlan(examples=7, rows=3, epochs=1, earlier=0, schedule=ReplaySchedule(every=3))
      >>> plan.batches, plan.updates, [plan.count(batch) for batch in range(plan.batches)]
      (3, 5, [3, 3, 1])
      >>> [plan.update(number).kind for number in range(plan.updates)]
      ['stream', 'replay', 'stream', 'replay', 'stream']
      >>> plan = StreamPlan(575_000, 16, 1, 0, EpisodeSchedule(every=9600, steps=5))
      >>> plan.updates, plan.left_out  # Episodes, and examples in none.
      (5999, 40)
    """

    examples: int
    rows: int
    epochs: int
    earlier: int
    schedule: ReplaySchedule | EpisodeSchedule

    @property
    def total(self) -> int:
        """Number of examples that the stage reads, with repetitions."""
        return self.examples * self.epochs

    @property
    def batches(self) -> int:
        """Number of batches of the stage in all epochs."""
        return self.epochs * -(-self.examples // self.rows)

    def count(self, batch: int) -> int:
        """Returns the number of examples in batch number `batch` of the stage."""
        return self.examples_before(batch + 1) - self.examples_before(batch)

    def examples_before(self, batch: int) -> int:
        """Returns the number of examples that the stage reads before batch number `batch`."""
        full = self.epochs * (self.examples // self.rows)
        return min(batch, full) * self.rows + max(batch - full, 0) * (self.examples % self.rows)

    @property
    def updates(self) -> int:
        """Number of updates of the stage, of all kinds. For an `EpisodeSchedule` they are episodes."""
        return self.schedule.count_updates(self)

    def update(self, number: int) -> PlannedUpdate:
        """Returns the plan of update number `number` of the stage (`PlannedUpdate`): its kind, and how many batches it
        reads.
        """
        return self.schedule.update(self, number)

    @property
    def left_out(self) -> int:
        """Number of examples, repetitions in all epochs included, that fill no episode and are not read."""
        return self.total - self.examples_before(self.schedule.batches_before(self, self.updates))

    def stream(self, batches: BatchIterator, position: Mapping[str, Any] | None = None) -> UpdateStream:
        """Returns an `UpdateStream`, an iterator over the updates of the stage and their batches, from `position` on or
        from the beginning. The iterator `batches` must be at the same position.
        """
        number = self.schedule.number_at(self, position) if position else 0
        place = lambda number: {**batches.position, **self.schedule.position_of(self, number)}
        return UpdateStream(self.update, self.updates, batches, place, number=number)


class ReplaySchedule(NamedTuple):
    """A schedule of updates of another kind, such as replay, between updates of the stream or in place of some.

    Its methods are functions of the plan of a stage and of a number of an update in the stage.

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
        """Returns the `StreamPlan` of a stage of `examples` examples, a number, read `epochs` times in batches of
        `rows` rows. `before` is the plan of the stage before, None for the first stage.

        Args:
          examples: Number of examples of the stage.
          rows: Number of rows of a batch.
          epochs: Number of times that each example is read.
          before: Plan of the stage before. None for the first stage.
        """
        return StreamPlan(examples, rows, epochs, before.earlier + before.total if before else 0, self)

    def kinds(self, example: Batch) -> dict[str, Batch | None]:
        """Returns a dict from each kind of update to a batch with its shapes: `example` for updates that read a batch
        of the stream, None for updates that read no batch.
        """
        other = {self.kind: example if self.reads else None} if self.every else {}
        return {STREAM: example, **other}

    def count_due(self, plan: StreamPlan, batch: int) -> int:
        """Returns how many updates of `kind` are due once the stage with the plan `plan` has read its first `batch`
        batches.
        """
        seen = plan.earlier + plan.examples_before(batch)
        return seen // self.every - plan.earlier // self.every if self.every else 0

    def batches_before(self, plan: StreamPlan, number: int) -> int:
        """Returns how many batches the first `number` updates of the stage with the plan `plan` read."""
        if self.reads or not self.every:
            return number
        # A batch is read by the update whose number is that of the batch and of all updates of the schedule before it.
        number_of = lambda batch: batch + self.count_due(plan, batch)
        return bisect.bisect_left(range(plan.batches), number, key=number_of)

    def count_updates(self, plan: StreamPlan) -> int:
        """Returns the number of updates, of all kinds, of the stage with the plan `plan`."""
        return plan.batches + (0 if self.reads else self.count_due(plan, plan.batches))

    def update(self, plan: StreamPlan, number: int) -> PlannedUpdate:
        """Returns the kind of update number `number` of the stage with the plan `plan`, and whether it reads a batch
        (`PlannedUpdate`).
        """
        batch = self.batches_before(plan, number)
        if self.reads:
            is_due = self.count_due(plan, batch + 1) > self.count_due(plan, batch)
            return PlannedUpdate(self.kind if is_due else STREAM)
        return PlannedUpdate() if batch + self.count_due(plan, batch) == number else PlannedUpdate(self.kind, 0)

    def position_of(self, plan: StreamPlan, number: int) -> dict[str, Any]:
        """Returns a dict of the position before update number `number` of a stage: `read`, the number of batches read,
        and `due`, the number of updates without a batch that are next.
        """
        read = self.batches_before(plan, number)
        return {"read": read, "due": 0 if self.reads else read + self.count_due(plan, read) - number}

    def number_at(self, plan: StreamPlan, position: Mapping[str, Any]) -> int:
        """Returns the number of the next update in the stage at a position that `position_of` has returned."""
        read = position["read"]
        return read if self.reads else read + self.count_due(plan, read) - position["due"]


class EpisodeSchedule(NamedTuple):
    """A schedule of episodes: updates that adapt to several batches and learn a query, sometimes from the memory.

    Its methods are functions of the plan of a stage and of the number of an episode in the stage.

    Attributes:
      every: Approximate number of examples of the stream from one replay episode to the next (`replay_frequency`). 0
        for no replay.
      kind: Name of the kind of replay episodes, whose query comes from the memory.
      steps: Number of batches that an episode adapts to (m).
      keeps_last: Whether batches that are left at the end of a stage form an episode with fewer steps. If not, they are
        not read.
    """

    every: int = 0
    kind: str = "replay"
    steps: int = 0
    keeps_last: bool = False

    def plan(self, examples: int, rows: int, epochs: int, before: StreamPlan | None) -> StreamPlan:
        """Returns the `StreamPlan` of a stage of `examples` examples, a number, read `epochs` times in batches of
        `rows` rows, by episodes. `before` is the plan of the stage before. See `ReplaySchedule.plan`.
        """
        return StreamPlan(examples, rows, epochs, before.earlier + before.updates if before else 0, self)

    def kinds(self, example: Batch) -> dict[str, Batch | None]:
        """Returns a dict of the shapes of the batches of each kind of episode, made from `example`, a batch of the
        stream. None for a kind that reads no batch.
        """
        shape = lambda leaf, size: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)
        several = lambda size: jax.tree.map(lambda leaf: shape(leaf, size), example) if size else None
        other = {self.kind: several(self.steps)} if self.every else {}
        return {STREAM: several(self.steps + 1), **other}

    def count_due(self, plan: StreamPlan, number: int) -> int:
        """Returns how many of the first `number` episodes of the stage with the plan `plan` have a query from the
        memory.
        """
        if not self.every:
            return 0
        frequency = replay_frequency(self.every, plan.rows, self.steps)
        return (plan.earlier + number) // frequency - plan.earlier // frequency

    def batches_before(self, plan: StreamPlan, number: int) -> int:
        """Returns how many batches the first `number` episodes of the stage with the plan `plan` read."""
        return min(number * (self.steps + 1) - self.count_due(plan, number), plan.batches)

    def count_updates(self, plan: StreamPlan) -> int:
        """Returns the number of episodes of the stage with the plan `plan`."""
        needed = lambda number: number * (self.steps + 1) - self.count_due(plan, number)
        # At most every second episode replays, and without steps such an episode reads nothing.
        full = bisect.bisect_right(range(2 * plan.batches + 2), plan.batches, key=needed) - 1
        return full + (self.keeps_last and needed(full) < plan.batches)

    def update(self, plan: StreamPlan, number: int) -> PlannedUpdate:
        """Returns the kind of episode number `number` of a stage and how many batches it reads (`PlannedUpdate`). A
        last episode that lacks batches is padded in front, before its support.
        """
        replays = self.count_due(plan, number + 1) > self.count_due(plan, number)
        size = self.steps + (not replays)
        reads = min(size, plan.batches - self.batches_before(plan, number))
        return PlannedUpdate(self.kind if replays else STREAM, reads, size - reads)

    def position_of(self, plan: StreamPlan, number: int) -> dict[str, Any]:
        """Returns a dict of the position before episode number `number` of a stage, whose only entry `episodes` is this
        number. `plan` is not used.
        """
        del plan
        return {"episodes": number}

    def number_at(self, plan: StreamPlan, position: Mapping[str, Any]) -> int:
        """Returns the number of the next episode in the stage at a position that `position_of` has returned. `plan` is
        not used.
        """
        del plan
        return position["episodes"]


def replay_frequency(interval: int, batch: int, steps: int) -> int:
    """Returns the number of episodes from one replay to the next: `ceil((interval / batch + 1) / (steps + 1))` (Holla
    et al. 2020). `interval` and `batch` are numbers of examples, `steps` those of the inner loop.

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
