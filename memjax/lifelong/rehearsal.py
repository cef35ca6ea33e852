"""What EMAR, EMR and EA-EMR share: examples of every task that are kept, who is chosen, and streams that read them.

Examples are kept by their numbers, in the train state: they stay where the run reads its data from, which a memory of
rows would copy. What a run says of the bytes that it keeps leaves the sentences out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.rows import RowStream, epoch_order
from memjax.lifelong.contract import TaskInfo
from memjax.lifelong.head_features import HeadFeatures
from memjax.lifelong.kmeans import select_examples
from memjax.lifelong.streams import JoinedExamples, TaskSlice
from memjax.models.heads import note_classes
from memjax.training.assembly import make_update_functions
from memjax.training.experiment import Experiment
from memjax.training.step import TrainState

__all__ = [
    "CHOSEN",
    "KeptExamples",
    "kept_example_ids",
    "class_quotas",
    "choose_rehearsal_examples",
    "cluster_representatives",
]

CHOSEN = "chosen"
"""the kept examples in `TrainState.method`: int32 `[tasks, size]`, their numbers in the run, -1 = none"""
Selection = Literal["two_level", "flat", "random"]


# Who is kept


def choose_rehearsal_examples(
    read: HeadFeatures, size: int, key: Any, how: Selection, *, normalized: bool = False
) -> np.ndarray:
    """The numbers of the examples of a task that are kept, int32 `[at most size]`.

    Args:
      read: the examples of the task.
      size: of the memory of a task.
      key: of what is drawn.
      how: "flat": the examples nearest to the centroids of k-means over the task. "two_level": as many of each class
        as `class_quotas` say, nearest to the centroids of k-means over the class. "random": any.
      normalized: features of length 1.
    """
    size = min(size, len(read.numbers))
    if how == "random":
        return read.numbers[np.sort(np.asarray(jax.random.permutation(key, len(read.numbers)))[:size])].astype(np.int32)
    if normalized:
        lengths = np.linalg.norm(read.features, axis=1, keepdims=True)
        read = read._replace(features=read.features / np.maximum(lengths, np.finfo(np.float32).tiny))
    first = cluster_representatives(read.features, size, key)
    if how == "flat":
        return np.sort(read.numbers[first]).astype(np.int32)
    classes = np.unique(read.labels)
    importance = [int(np.sum(read.labels[first] == one)) for one in classes]
    there = [np.flatnonzero(read.labels == one) for one in classes]
    kept = []
    for number, (places, quota) in enumerate(
        zip(there, class_quotas(importance, [*map(len, there)], size), strict=True)
    ):
        if quota:
            kept.append(places[cluster_representatives(read.features[places], quota, jax.random.fold_in(key, number))])
    return np.sort(read.numbers[np.concatenate(kept)]).astype(np.int32)


def cluster_representatives(features: np.ndarray, number: int, key: Any) -> np.ndarray:
    """Places of so many different examples, one nearest to the centroid of each cluster."""
    # Few programs, however many examples there are.
    padded = 1 << (len(features) - 1).bit_length()
    points = np.zeros((padded, features.shape[1]), np.float32)
    points[: len(features)] = features
    return np.asarray(_select(points, number, key, present=np.arange(padded) < len(features)))


_select = jax.jit(select_examples, static_argnums=1)


def class_quotas(importance: Sequence[int], available: Sequence[int], size: int) -> list[int]:
    """How many examples of each class are kept (Han et al. 2020): `size` in all, an equal share of each.

    A share that is no whole number is rounded up for the most important classes, the first of equal ones, and down for
    the others. What a class has not, goes to the others in the same order, one to each in turn.

    Args:
      importance: of each class.
      available: examples that it has.
      size: examples in all.

    Example:
      >>> class_quotas([1, 5, 3], [9, 9, 9], 7), class_quotas([1, 5, 3], [9, 1, 9], 7)
      ([2, 3, 2], [3, 1, 3])
    """
    order = sorted(range(len(importance)), key=lambda one: (-importance[one], one))
    share, left = size // len(order), min(size, sum(available))
    found = [min(share, count) for count in available]
    left -= sum(found)
    for one in itertools.cycle(order):
        if not left:
            return found
        more = min(available[one] - found[one], 1)
        found[one], left = found[one] + more, left - more
    return found


# Streams of them


class KeptExamples(NamedTuple):
    """The examples of all tasks, of which some are kept.

    Attributes:
      parts: the examples of all tasks.
      experiment: of the run.
    """

    parts: Sequence[TaskSlice]
    experiment: Experiment

    def joined(self, numbers: np.ndarray, order: int = 0) -> JoinedExamples:
        """Those with these numbers, in one of many orders; 0 = theirs."""
        seed = self.experiment.config.data.seed
        places = epoch_order(len(numbers), seed=seed, epoch=order, lap=1, shuffle=order > 0)
        return JoinedExamples(self.parts, order=np.asarray(numbers, np.int64)[places])

    def of_task(self, index: int) -> np.ndarray:
        """The numbers of the examples of a task."""
        part = self.parts[index]
        return np.arange(part.first, part.first + len(part.examples))

    def labels(self, numbers: np.ndarray) -> np.ndarray:
        """The classes of examples."""
        every = JoinedExamples(self.parts)
        return np.array([int(every.example(int(number)).targets[0]) for number in numbers], np.int32)

    def stream(
        self, numbers: np.ndarray, position: Mapping[str, Any] | None, *, rows: int, epochs: int, order: int = 0
    ) -> RowStream:
        """The batches of some epochs of the examples with these numbers, in one of many orders."""
        config = self.experiment.config
        own = dataclasses.replace(config, data=dataclasses.replace(config.data, rows=rows))
        examples = self.joined(numbers, 1 + order)
        return dataclasses.replace(self.experiment, config=own).stream(position, split=examples, epochs=epochs)


def allocate_kept(state: TrainState, tasks: int, size: int) -> TrainState:
    """With room for the numbers of `size` examples of each task."""
    room = {CHOSEN: jnp.full((tasks, size), -1, jnp.int32)} if size else {}
    return dataclasses.replace(state, method={**state.method, **room})


def kept_example_ids(state: TrainState, task: int | None = None) -> np.ndarray:
    """The numbers of the kept examples, of one task or of all."""
    if CHOSEN not in state.method:
        return np.zeros(0, np.int64)
    kept = np.asarray(state.method[CHOSEN])
    numbers = kept.reshape(-1) if task is None else kept[task]
    return numbers[numbers >= 0].astype(np.int64)


def keep_examples(state: TrainState, task: int, numbers: np.ndarray) -> TrainState:
    """With the kept examples of a task."""
    kept = np.array(state.method[CHOSEN])
    kept[task, : len(numbers)] = numbers
    return dataclasses.replace(state, method={**state.method, CHOSEN: jnp.asarray(kept)})


def note_seen_classes(state: TrainState, model: Any, labels: np.ndarray) -> TrainState:
    """With the classes of a task among those that training has read, where the head of the model notes them."""
    return dataclasses.replace(state, constants=note_classes(state.constants, model.head_place, np.unique(labels)))


def with_fresh_optimizer(state: TrainState, task: TaskInfo) -> TrainState:
    """With an optimiser at its beginning."""
    optimizer = make_update_functions(task.experiment.config, task.experiment.model).optimizer
    return dataclasses.replace(state, opt_state=optimizer.init(state.params))


def rows_like(example: Any, rows: int) -> Any:
    """Shapes of a batch like another one, with so many rows."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], rows, *leaf.shape[2:]), leaf.dtype), example)
