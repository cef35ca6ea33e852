"""What a model makes of every scored token of a split, and how long ago its row has read that token last."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.config import Evaluation
from memjax.settings.relations import require
from memjax.training.evaluation import BatchScore, EvaluationResult
from memjax.training.experiment import Experiment
from memjax.typing import Batch

__all__ = ["LastMentions", "TokenNats", "mention_buckets", "token_nats"]

FARTHEST = 32
"""segments, beyond which all mentions are alike"""


@dataclasses.dataclass(frozen=True)
class TokenNats:
    """Scored tokens, row by row and in their order; two evaluations of one reading have the same.

    Attributes:
      tokens: their ids.
      nats: of each.
      document: number of its document among those that were read: tokens of one are consecutive.
      segment: number of its segment in the document.
      since: tokens since its document had it last, 0 = never before.
      inside: it was had before within the segment.
      result: of the evaluation.
    """

    tokens: Int[np.ndarray, "targets"]
    nats: Float[np.ndarray, "targets"]
    document: Int[np.ndarray, "targets"]
    segment: Int[np.ndarray, "targets"]
    since: Int[np.ndarray, "targets"]
    inside: Bool[np.ndarray, "targets"]
    result: EvaluationResult


def token_nats(experiment: Experiment, variables: Mapping[str, Any], evaluation: Evaluation | None = None) -> TokenNats:
    """Scores a split as an evaluation reads it, and keeps what it says of every token.

    Args:
      experiment: of a run, of a model whose targets are the tokens that follow.
      variables: of its model.
      evaluation: another one than the configuration describes.

    Raises:
      ValueError: nothing is scored in what is read.
    """
    evaluation = evaluation or experiment.config.evaluation
    mentions: list[LastMentions] = []
    found: dict[int, list[tuple[np.ndarray, ...]]] = {}

    def observe(batch: Batch, scored: BatchScore) -> None:
        if not mentions:
            mentions.extend(LastMentions() for _ in batch.inputs)
        for row, mention in enumerate(mentions):
            real, scores = np.asarray(batch.mask[row]), np.asarray(batch.weights[row]) > 0
            targets = np.asarray(batch.targets[row])
            if not real.any():
                continue
            columns = mention.read(targets[real], begins=bool(batch.start_of_document[row]))
            chosen = scores[real]
            if not chosen.any():
                continue
            nats = np.asarray(scored.nats[row], np.float64)[real][chosen]
            found.setdefault(row, []).append((targets[real][chosen], nats, *(one[chosen] for one in columns)))

    result = experiment.evaluator(evaluation)(variables, observe=observe)
    require(bool(found), "evaluation.max_segments", evaluation.max_segments, "more: nothing is scored in what is read")
    parts = [(row, part) for row in sorted(found) for part in found[row]]
    columns = zip(*(part for _, part in parts), strict=True)
    tokens, nats, document, segment, since, inside = map(np.concatenate, columns)
    rows = np.concatenate([np.full(len(part[0]), row) for row, part in parts])
    new = np.concatenate([[False], (np.diff(rows) != 0) | (np.diff(document) != 0)])
    return TokenNats(tokens, nats, np.cumsum(new), segment, since, inside, result)


class LastMentions:
    """What one row has read of its document.

    Example:
      >>> mentions = LastMentions()
      >>> _ = mentions.read([5, 6, 5], begins=True)
      >>> [column.tolist() for column in mentions.read([6, 7, 7], begins=False)]
      [[0, 0, 0], [1, 1, 1], [2, 0, 1], [False, False, True]]
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._place = self._document = self._segment = 0
        self._begun = False

    def read(self, tokens: Any, *, begins: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The next segment of the row.

        Args:
          tokens: of the segment.
          begins: a document begins with it.

        Returns:
          For each token the number of its document and of its segment in it, how many tokens ago it was there last
          (0 = never), and whether that was in this segment.
        """
        if begins and self._begun:
            self._last, self._place, self._segment = {}, 0, 0
            self._document += 1
        elif self._begun:
            self._segment += 1
        self._begun = True
        since = []
        for token in np.asarray(tokens).tolist():
            since.append(self._place - self._last.get(token, self._place))
            self._last[token] = self._place
            self._place += 1
        ago = np.asarray(since, np.int64)
        inside = (ago > 0) & (ago <= np.arange(len(ago)))
        return np.full(len(ago), self._document), np.full(len(ago), self._segment), ago, inside


def mention_buckets(found: TokenNats, segment_length: int) -> dict[str, Bool[np.ndarray, "targets"]]:
    """Name -> which tokens were last had there: 'never', 'in this segment', up to 1, 2, 4, ... segments ago, 'beyond'.

    Args:
      found: scored tokens.
      segment_length: tokens of a segment.

    Example:
      >>> columns = {"document": [0, 0, 0], "segment": [0, 1, 1], "since": [0, 1, 12], "inside": [False, True, False]}
      >>> arrays = {name: np.asarray(column) for name, column in columns.items()}
      >>> found = TokenNats(tokens=np.arange(3), nats=np.zeros(3), result=EvaluationResult(
      ...     protocol="separate", rows=1, segment_length=4), **arrays)
      >>> {name: where.tolist() for name, where in mention_buckets(found, 4).items()}
      {'never': [True, False, False], 'in this segment': [False, True, False], '2x to 4x': [False, False, True]}
    """
    beyond = (found.since > 0) & ~found.inside
    buckets = {"never": found.since == 0, "in this segment": found.inside}
    low, farthest = 0, int(found.since.max(initial=0))
    while low * segment_length < farthest and low < FARTHEST:
        high = 2 * low or 1
        where = beyond & (found.since > low * segment_length) & (found.since <= high * segment_length)
        buckets[f"{low}x to {high}x" if low else "up to 1x"] = where
        low = high
    buckets[f"beyond {low}x"] = beyond & (found.since > low * segment_length)
    return {name: where for name, where in buckets.items() if where.any()}
