"""Rehearsal of stored examples for EMAR, EMR and EA-EMR: how they are chosen, stored and read again.

The train state stores the numbers of the examples and not the examples. They are read again from the data of the run,
so sentences do not count in the bytes that a method stores.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.batch_iterator import BatchIterator, epoch_order
from memjax.lifelong.class_features import HeadFeatures
from memjax.lifelong.kmeans import select_examples
from memjax.lifelong.method_interface import TaskInfo
from memjax.lifelong.update_streams import JoinedExamples, TaskSlice
from memjax.models.heads import mark_seen_classes
from memjax.training.experiment import Experiment
from memjax.training.train_state import TrainState
from memjax.training.update_functions import make_update_functions

CHOSEN = "chosen"
"""Name in `TrainState.method` of the numbers of stored examples in the run, int32 `[tasks, size]`. -1 for none."""
Selection = Literal["two_level", "flat", "random"]


# The choice of examples


def choose_rehearsal_examples(
    read: HeadFeatures, size: int, key: Any, how: Selection, *, normalized: bool = False
) -> np.ndarray:
    """Chooses at most `size` examples of a task to store, and returns their numbers, int32. `read` are features of all,
    `how` says whether by k-means of them or at random, `normalized` scales them to length 1.

    Args:
      read: Features, labels and numbers of the examples of the task.
      size: Number of examples to store for the task.
      key: Random key.
      how: "flat": the examples nearest to the centroids of k-means over the task. "two_level": for each class a number
        from `class_quotas`, nearest to the centroids of k-means over the class. "random": a uniform sample.
      normalized: Whether features are scaled to length 1.
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
    importance = [int(np.sum(read.labels[first] == label)) for label in classes]
    indices_of_class = [np.flatnonzero(read.labels == label) for label in classes]
    chosen = []
    for number, (places, quota) in enumerate(
        zip(indices_of_class, class_quotas(importance, [*map(len, indices_of_class)], size), strict=True)
    ):
        if quota:
            chosen.append(
                places[cluster_representatives(read.features[places], quota, jax.random.fold_in(key, number))]
            )
    return np.sort(read.numbers[np.concatenate(chosen)]).astype(np.int32)


def cluster_representatives(features: np.ndarray, number: int, key: Any) -> np.ndarray:
    """Clusters features `[examples, dim]` by k-means into `number` clusters, and returns for each the index of the
    example nearest to its centroid.

    Args:
      features: Features of the examples, `[examples, dim]`.
      number: Number of clusters.
      key: Random key.
    """
    # Padded to a power of two, so that few programs are compiled.
    padded = 1 << (len(features) - 1).bit_length()
    points = np.zeros((padded, features.shape[1]), np.float32)
    points[: len(features)] = features
    return np.asarray(_select(points, number, key, present=np.arange(padded) < len(features)))


_select = jax.jit(select_examples, static_argnums=1)


def class_quotas(importance: Sequence[int], available: Sequence[int], size: int) -> list[int]:
    """Returns a list of how many examples of each class to store, `size` in all with equal shares (Han et al. 2020).
    `available` are the numbers of examples, `importance` decides which classes get the remainder.

    Shares that are not whole numbers are rounded up for the most important classes, the first of equal ones, and down
    for the others. What a class lacks goes to the other classes in the same order, one example at a time.

    Args:
      importance: Importance of each class.
      available: Number of examples of each class.
      size: Number of examples to store in all.

    Example:
      >>> class_quotas([1, 5, 3], [9, 9, 9], 7), class_quotas([1, 5, 3], [9, 1, 9], 7)
      ([2, 3, 2], [3, 1, 3])
    """
    order = sorted(range(len(importance)), key=lambda label: (-importance[label], label))
    share, left = size // len(order), min(size, sum(available))
    quotas = [min(share, count) for count in available]
    left -= sum(quotas)
    for label in itertools.cycle(order):
        if not left:
            return quotas
        more = min(available[label] - quotas[label], 1)
        quotas[label], left = quotas[label] + more, left - more
    return quotas


# Streams of stored examples


class KeptExamples(NamedTuple):
    """The training examples of all tasks, with functions that read those with given numbers, such as the stored ones.

    Attributes:
      parts: Examples of all tasks.
      experiment: Experiment of the run.
    """

    parts: Sequence[TaskSlice]
    experiment: Experiment

    def joined(self, numbers: np.ndarray, order: int = 0) -> JoinedExamples:
        """Returns the examples with the given numbers as a data set, in this order if `order` is 0, otherwise in a
        random order with the seed `order`.

        Args:
          numbers: Numbers of the examples in the run.
          order: 0 for the order of `numbers`. Any other number is a seed of a random order.
        """
        seed = self.experiment.config.data.seed
        places = epoch_order(len(numbers), seed=seed, epoch=order, lap=1, shuffle=order > 0)
        return JoinedExamples(self.parts, order=np.asarray(numbers, np.int64)[places])

    def of_task(self, index: int) -> np.ndarray:
        """Returns the numbers in the run of all training examples of task `index`."""
        part = self.parts[index]
        return np.arange(part.first, part.first + len(part.examples))

    def labels(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the classes, int32, of the examples with the given numbers in the run."""
        every = JoinedExamples(self.parts)
        return np.array([int(every.example(int(number)).targets[0]) for number in numbers], np.int32)

    def stream(
        self, numbers: np.ndarray, position: Mapping[str, Any] | None, *, rows: int, epochs: int, order: int = 0
    ) -> BatchIterator:
        """Returns an iterator over batches of `rows` of the examples with the given numbers. It reads them `epochs`
        times, from `position` on, in an order that depends on the seed `order`.

        Args:
          numbers: Numbers of the examples in the run.
          position: Position of an earlier stream to continue. None for the beginning.
          rows: Number of rows of a batch.
          epochs: Number of times that each example is read.
          order: Seed of the order of the examples.
        """
        config = self.experiment.config
        config_of_stream = dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=rows))
        examples = self.joined(numbers, 1 + order)
        return dataclasses.replace(self.experiment, config=config_of_stream).stream(
            position, split=examples, epochs=epochs
        )


def allocate_kept(state: TrainState, tasks: int, size: int) -> TrainState:
    """Returns the train state with room for the numbers of `size` examples of each of `tasks` tasks, where `tasks` is a
    number. With size 0 nothing is added.
    """
    room = {CHOSEN: jnp.full((tasks, size), -1, jnp.int32)} if size else {}
    return dataclasses.replace(state, method={**state.method, **room})


def kept_example_ids(state: TrainState, task: int | None = None) -> np.ndarray:
    """Returns the numbers in the run of the stored examples of task number `task`, or of all tasks if it is None."""
    if CHOSEN not in state.method:
        return np.zeros(0, np.int64)
    stored = np.asarray(state.method[CHOSEN])
    numbers = stored.reshape(-1) if task is None else stored[task]
    return numbers[numbers >= 0].astype(np.int64)


def keep_examples(state: TrainState, task: int, numbers: np.ndarray) -> TrainState:
    """Returns the train state with `numbers` as the numbers of the stored examples of task number `task`."""
    stored = np.array(state.method[CHOSEN])
    stored[task, : len(numbers)] = numbers
    return dataclasses.replace(state, method={**state.method, CHOSEN: jnp.asarray(stored)})


def note_seen_classes(state: TrainState, model: Any, labels: np.ndarray) -> TrainState:
    """Returns the train state with the classes in `labels` marked as seen in the constants of the model, if its head
    records them.
    """
    return dataclasses.replace(state, constants=mark_seen_classes(state.constants, model.head_path, np.unique(labels)))


def with_fresh_optimizer(state: TrainState, task: TaskInfo) -> TrainState:
    """Returns the train state with its optimiser in the first state. `task` is a `TaskInfo`, for its configuration."""
    optimizer = make_update_functions(task.experiment.config, task.experiment.model).optimizer
    return dataclasses.replace(state, opt_state=optimizer.init(state.params))


def rows_like(example: Any, rows: int) -> Any:
    """Returns the shapes of a batch such as `example`, `[segments, rows, ...]`, with another number of rows."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], rows, *leaf.shape[2:]), leaf.dtype), example)
