"""How often the right one of several choices scores best, where every choice is an example."""

from __future__ import annotations

import numpy as np

from memjax.data.examples import EXAMPLE
from memjax.typing import Batch

__all__ = ["GroupMeasure"]


class GroupMeasure:
    """The share of the groups whose example of class 1 scores higher than each of class 0; a tie is a wrong answer.

    The score of an example is that of class 1 less that of class 0. Groups of which not all examples were read, where
    an evaluation ends before its split does, are not counted.

    Example:
      >>> measure = GroupMeasure(np.array([7, 7, 9, 9]))
      >>> measure.add(np.arange(4), np.array([1.0, 0.5, 2.0, 2.0]), np.array([1, 0, 1, 0]))
      >>> measure.result()
      {'accuracy': 0.5, 'pair_accuracy': 0.5}
    """

    def __init__(self, groups: np.ndarray):
        """`groups`: int `[examples]`, of the split."""
        self._group = np.unique(groups, return_inverse=True)[1]
        self._right = np.full(len(groups), np.nan)
        self._score = np.full(len(groups), np.nan)

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Takes in a batch and its scores `[batch, 1, 2]`."""
        there, scores = np.asarray(batch.weights)[:, 0] > 0, np.asarray(output, np.float64)[:, 0]
        numbers, labels = np.asarray(batch.extras[EXAMPLE]), np.asarray(batch.targets)[:, 0]
        self.add(numbers[there], (scores[:, 1] - scores[:, 0])[there], labels[there])

    def add(self, numbers: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> None:
        """Takes in examples by their numbers in the split, their scores, of which NaN is wrong, and their classes."""
        wrong = np.where(labels == 1, -np.inf, np.inf)
        self._right[numbers], self._score[numbers] = labels, np.where(np.isnan(scores), wrong, scores)

    def result(self) -> dict[str, float]:
        """Name -> number: `accuracy` of the groups, and that of the examples by themselves."""
        count = self._group.max() + 1
        read = ~np.isnan(self._right)
        whole = np.bincount(self._group, read, count) == np.bincount(self._group, minlength=count)
        best = np.full((2, count), -np.inf)
        for label in (0, 1):
            own = read & (self._right == label)
            np.maximum.at(best[label], self._group[own], self._score[own])
        found = (best[1] > best[0])[whole]
        alone = (self._score[read] > 0) == (self._right[read] == 1)
        return {
            "accuracy": float(np.mean(found)) if found.size else float("nan"),
            "pair_accuracy": float(np.mean(alone)) if alone.size else float("nan"),
        }
