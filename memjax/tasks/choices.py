"""Accuracy of multiple choice, where each choice of a group is an example of its own."""

from __future__ import annotations

import numpy as np

from memjax.data.example_batches import EXAMPLE
from memjax.typing import Batch


class GroupMeasure:
    """A `TaskMetric` for multiple choice: the share of groups whose right choice, the example of class 1, scores higher
    than every other one of the group.

    A group counts as right if its example of class 1 scores higher than every example of class 0. A tie is wrong.

    The score of an example is the score of class 1 minus the score of class 0. Groups of which not all examples were
    read, because an evaluation ended before its split, are not counted.

    Example:
      >>> measure = GroupMeasure(np.array([7, 7, 9, 9]))
      >>> measure.add(np.arange(4), np.array([1.0, 0.5, 2.0, 2.0]), np.array([1, 0, 1, 0]))
      >>> measure.result()
      {'accuracy': 0.5, 'pair_accuracy': 0.5}
    """

    def __init__(self, groups: np.ndarray):
        """Prepares the measure for a split.

        Args:
          groups: int `[examples]`, the group of each example of the split.
        """
        self._group = np.unique(groups, return_inverse=True)[1]
        self._right = np.full(len(groups), np.nan)
        self._score = np.full(len(groups), np.nan)

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Adds a batch and its class scores `[batch, 1, 2]`. The score of a choice is that of class 1 minus that of
        class 0.
        """
        is_real, scores = np.asarray(batch.weights)[:, 0] > 0, np.asarray(output, np.float64)[:, 0]
        numbers, labels = np.asarray(batch.extras[EXAMPLE]), np.asarray(batch.targets)[:, 0]
        self.add(numbers[is_real], (scores[:, 1] - scores[:, 0])[is_real], labels[is_real])

    def add(self, numbers: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> None:
        """Adds examples, given by their numbers in the split, with one score and one label (1 for the right choice,
        else 0) each.

        Args:
          numbers: int `[examples]`, numbers of the examples in the split.
          scores: `[examples]`, score of each example. NaN counts as a wrong answer.
          labels: `[examples]`, class of each example, 0 or 1.
        """
        wrong = np.where(labels == 1, -np.inf, np.inf)
        self._right[numbers], self._score[numbers] = labels, np.where(np.isnan(scores), wrong, scores)

    def result(self) -> dict[str, float]:
        """Returns two numbers from 0 to 1: `accuracy`, the share of groups answered right, and `pair_accuracy`, the
        share of single examples classified right. NaN if there are none.
        """
        count = self._group.max() + 1
        read = ~np.isnan(self._right)
        whole = np.bincount(self._group, read, count) == np.bincount(self._group, minlength=count)
        best = np.full((2, count), -np.inf)
        for label in (0, 1):
            is_label = read & (self._right == label)
            np.maximum.at(best[label], self._group[is_label], self._score[is_label])
        is_right = (best[1] > best[0])[whole]
        example_is_right = (self._score[read] > 0) == (self._right[read] == 1)
        return {
            "accuracy": float(np.mean(is_right)) if is_right.size else float("nan"),
            "pair_accuracy": float(np.mean(example_is_right)) if example_is_right.size else float("nan"),
        }
