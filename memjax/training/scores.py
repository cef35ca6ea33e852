"""Scores: what a model was measured to predict for the targets of a batch, of a split and of its documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from memjax.training.metrics import LN2, perplexity
from memjax.typing import Batch, tree_dataclass

__all__ = ["DocumentScores", "EvaluationResult", "Score"]


@tree_dataclass
class BatchScore:
    """Scores of the targets of one batch, and the tensors of the model that were requested.

    Attributes:
      nats: Negative log-likelihood of each target, `[batch, length]`.
      correct: Whether each target is the most probable choice of the model, bool `[batch, length]`. None if accuracy
        was not requested.
      parts: Log-probability of each target under the model alone and under the candidates of each output memory that is
        mixed with it, `[1 + mixtures, batch, length]`. None if it was not requested.
      features: Requested inner tensors of the model by name, `[batch, length, dim]`.
      output: Output of the model, such as the scores of a task's head. None if it was not requested.
    """

    nats: Any
    correct: Any = None
    parts: Any = None
    features: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: Any = None

    def score(self, where: np.ndarray, extras: Mapping[str, Any]) -> Score:
        """Sums the scores of the targets at which the bool array `where` is True, in float64, and returns a `Score`.
        `extras` are those of the batch, for the bytes of the targets.

        Args:
          where: Targets to include, bool `[batch, length]`.
          extras: `Batch.extras` of the batch, for the bytes of the targets.
        """
        return Score(
            nats=float(np.sum(self.nats, where=where, dtype=np.float64)),
            targets=int(np.sum(where)),
            bytes=int(np.sum(extras["target_bytes"], where=where, dtype=np.int64)) if "target_bytes" in extras else 0,
            correct=None if self.correct is None else int(np.sum(self.correct, where=where)),
        )


Observe = Callable[[Batch, BatchScore], None]
"""Function `observe(batch, scores)`, called on the host with every batch and its scores, in order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over the scored targets: nats, number, bytes and correct ones. The scores of several hosts or parts of a
    split can be added.

    Attributes:
      nats: Negative log-likelihood of the targets.
      targets: Number of scored targets.
      bytes: UTF-8 bytes of the text of the targets. 0 if not known.
      correct: Number of targets that are the most probable choice of the model. None if not counted.
    """

    nats: float = 0.0
    targets: int = 0
    bytes: int = 0
    correct: int | None = None

    def plus(self, other: Score) -> Score:
        """Returns the sum of this score and another one."""
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return Score(
            nats=self.nats + other.nats,
            targets=self.targets + other.targets,
            bytes=self.bytes + other.bytes,
            correct=correct,
        )

    @property
    def nats_per_token(self) -> float | None:
        """Mean negative log-likelihood of a target in nats. None without targets."""
        return self.nats / self.targets if self.targets else None

    @property
    def bits_per_token(self) -> float | None:
        """Mean negative log-likelihood of a target in bits. None without targets."""
        return self.nats / LN2 / self.targets if self.targets else None

    @property
    def bits_per_byte(self) -> float | None:
        """Negative log-likelihood in bits per UTF-8 byte of the text. None if the number of bytes is not known."""
        return self.nats / LN2 / self.bytes if self.bytes else None

    @property
    def perplexity(self) -> float | None:
        """Perplexity per target. None without targets."""
        return perplexity(self.nats / self.targets) if self.targets else None

    @property
    def accuracy(self) -> float | None:
        """Fraction of targets that are the most probable choice of the model. None if they were not counted, or without
        targets.
        """
        return self.correct / self.targets if self.correct is not None and self.targets else None

    def as_dict(self) -> dict[str, Any]:
        """Returns the sums and means as JSON values by name, without those that are None."""
        means = ("nats_per_token", "bits_per_token", "bits_per_byte", "perplexity", "accuracy")
        values = {"nats": self.nats, "targets": self.targets, "bytes": self.bytes, "correct": self.correct}
        values |= {name: getattr(self, name) for name in means}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult(Score):
    """The score of a split, and a record of how it was measured.

    Attributes:
      protocol: Protocol of the evaluation: `separate`, `contiguous`, or `sliding_window`.
      rows: Number of rows that are read side by side. With `contiguous` the score depends on it.
      segment_length: Tokens per segment or window.
      stride: Tokens scored per window. 0 for protocols without windows.
      score_first: Whether the first token of each document was scored, from a begin token.
      complete: Whether the whole split was scored.
      words: Words of the text, if the corpus is measured per word and every token was scored. 0 if not known.
      subsets: Score of the targets in each subset, by name.
      metrics: Mean of each metric that the model reports, by name.
      measures: Numbers of the task's own measure by name. Empty if the task has none.
      notes: Lines on how the measures were computed.
      tokens_per_second: Tokens read per second, or tokens scored with `sliding_window`. The first batch, which
        compiles, is not included. 0 if there was a single batch.
      examples_per_second: Examples scored per second, including test-time adaptation, without the first batch. 0 if no
        examples were read or there was a single batch.
      memory_bytes: Bytes of the memory state of one row.
    """

    protocol: str
    rows: int
    segment_length: int
    stride: int = 0
    score_first: bool = True
    complete: bool = True
    words: int = 0
    subsets: Mapping[str, Score] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    measures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tokens_per_second: float = 0.0
    examples_per_second: float = 0.0
    memory_bytes: int = 0

    @property
    def word_perplexity(self) -> float | None:
        """Perplexity per word, comparable between tokenizers. None if the number of words is not known."""
        return perplexity(self.nats / self.words) if self.words else None

    def merge(self, other: EvaluationResult) -> EvaluationResult:
        """Merges the results of two hosts that have scored different rows of one split. Sums and rates are added.
        Metrics and measures are those of this host.
        """
        total = self.plus(other)
        return dataclasses.replace(
            self,
            **vars(total),
            subsets={name: score.plus(other.subsets[name]) for name, score in self.subsets.items()},
            tokens_per_second=self.tokens_per_second + other.tokens_per_second,
            examples_per_second=self.examples_per_second + other.examples_per_second,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns sums, means, measures, subsets and the record of the evaluation as JSON values by name.

        Measures stand beside the sums, subsets under `subsets`. Rates are included if they were measured.
        """
        rates = {"tokens_per_second": self.tokens_per_second, "examples_per_second": self.examples_per_second}
        added_below = {"words", "subsets", "metrics", "measures", "notes", *rates}
        names = vars(self).keys() - vars(Score()).keys() - added_below
        values = {name: getattr(self, name) for name in sorted(names)}
        subsets = {name: score.as_dict() for name, score in self.subsets.items()}
        values |= {"metrics": dict(self.metrics), "subsets": subsets, **({"notes": self.notes} if self.notes else {})}
        words = {"words": self.words, "word_perplexity": self.word_perplexity} if self.words else {}
        measured_rates = {name: rate for name, rate in rates.items() if rate}
        return {**super().as_dict(), **words, **self.measures, **values, **measured_rates}


class DocumentScores:
    """Collects the losses and numbers of targets of each document of an evaluation. Pass its `observe` to a call of an
    `Evaluator`.

    A document is anything that begins with a new memory: a document (`separate`), a row of the whole split
    (`contiguous`), a window (`sliding_window`) or an example. Two evaluations with the same reading plan have the same
    documents in the same order.

    Example:
      >>> batch = Batch(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 2), bool), np.ones((1, 2)), np.array([True]))
      >>> scores = DocumentScores()
      >>> for nats in ([[1.0, 2.0]], [[3.0, 3.0]]):
      ...     scores.observe(batch, BatchScore(np.array(nats)))
      >>> scores.nats.tolist(), scores.targets.tolist()
      ([3.0, 6.0], [2.0, 2.0])
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        self._numbers: dict[int, int] = {}

    def observe(self, batch: Batch, scored: BatchScore) -> None:
        """Adds the scores of a batch to the documents that its targets belong to."""
        read = np.flatnonzero(np.any(np.asarray(batch.mask), axis=1))
        where = np.asarray(batch.weights) > 0
        for row in read.tolist():
            self._numbers[row] = self._numbers.get(row, 0) + bool(batch.start_of_document[row])
            nats = np.sum(scored.nats[row], where=where[row], dtype=np.float64)
            sums = self._sums.setdefault((row, self._numbers[row]), np.zeros(2))
            sums += nats, np.sum(where[row])

    @property
    def nats(self) -> np.ndarray:
        """Negative log-likelihood of each document, `[documents]`, without documents that have no scored target."""
        return self._columns()[0]

    @property
    def targets(self) -> np.ndarray:
        """Number of scored targets of each document, `[documents]`, without documents that have none."""
        return self._columns()[1]

    def _columns(self) -> np.ndarray:
        """Returns nats and number of targets of each document that has targets, `[2, documents]`."""
        columns = np.array([self._sums[place] for place in sorted(self._sums)]).reshape(-1, 2).T
        return columns[:, columns[1] > 0]
