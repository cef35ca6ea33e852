"""Accuracy of multiple choice, where each choice of a group is an example of its own."""

from __future__ import annotations

import numpy as np

from memjax.data.example_batches import EXAMPLE
from memjax.typing import Batch


class GroupMeasure:
    """Accuracy over groups of choices, where class 1 marks the right choice.

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
        """Adds a batch and its scores `[batch, 1, 2]`."""
        is_real, scores = np.asarray(batch.weights)[:, 0] > 0, np.asarray(output, np.float64)[:, 0]
        numbers, labels = np.asarray(batch.extras[EXAMPLE]), np.asarray(batch.targets)[:, 0]
        self.add(numbers[is_real], (scores[:, 1] - scores[:, 0])[is_real], labels[is_real])

    def add(self, numbers: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> None:
        """Adds scored examples.

        Args:
          numbers: int `[examples]`, numbers of the examples in the split.
          scores: `[examples]`, score of each example. NaN counts as a wrong answer.
          labels: `[examples]`, class of each example, 0 or 1.
        """
        wrong = np.where(labels == 1, -np.inf, np.inf)
        self._right[numbers], self._score[numbers] = labels, np.where(np.isnan(scores), wrong, scores)

    def result(self) -> dict[str, float]:
        """Returns `accuracy`, the accuracy over groups, and `pair_accuracy`, the accuracy over single examples."""
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
