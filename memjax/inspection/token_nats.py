"""Records the loss of every scored token of a split, and how long ago its document contained that token before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.config import Evaluation
from memjax.settings.checks import require
from memjax.training.experiment import Experiment
from memjax.training.scores import BatchScore, EvaluationResult
from memjax.typing import Batch

__all__ = ["LastMentions", "TokenNats", "mention_buckets", "token_nats"]

FARTHEST = 32
"""Largest distance of a bucket of mentions, in segments. All farther mentions are in one bucket."""


@dataclasses.dataclass(frozen=True)
class TokenNats:
    """Losses of all scored tokens of an evaluation in nats, row by row and in the order of the text, with the document
    and segment of each token and how long ago it occurred last.

    Two evaluations that read the split in the same way have the same tokens in the same order.

    Attributes:
      tokens: Ids of the scored tokens `[targets]`.
      nats: Loss of each token in nats `[targets]`.
      document: Number of each token's document among those that were read `[targets]`. The tokens of a document are
        consecutive.
      segment: Number of each token's segment in its document `[targets]`.
      since: Number of tokens since the document contained the same token last `[targets]`. 0 if it never did.
      inside: Whether that last occurrence is in the same segment `[targets]`.
      result: Result of the evaluation.
    """

    tokens: Int[np.ndarray, "targets"]
    nats: Float[np.ndarray, "targets"]
    document: Int[np.ndarray, "targets"]
    segment: Int[np.ndarray, "targets"]
    since: Int[np.ndarray, "targets"]
    inside: Bool[np.ndarray, "targets"]
    result: EvaluationResult


def token_nats(experiment: Experiment, variables: Mapping[str, Any], evaluation: Evaluation | None = None) -> TokenNats:
    """Scores a split as an evaluation reads it, and returns the loss of every scored token as `TokenNats`.

    Args:
      experiment: Experiment of a model that predicts next tokens.
      variables: Variables of the model.
      evaluation: Settings of the evaluation. None for those of the configuration.

    Raises:
      ValueError: The part that is read contains no scored token.
    """
    evaluation = evaluation or experiment.config.evaluation
    mentions: list[LastMentions] = []
    parts_by_row: dict[int, list[tuple[np.ndarray, ...]]] = {}

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
            parts_by_row.setdefault(row, []).append(
                (targets[real][chosen], nats, *(column[chosen] for column in columns))
            )

    result = experiment.evaluator(evaluation)(variables, observe=observe)
    require(
        bool(parts_by_row),
        "evaluation.max_segments",
        evaluation.max_segments,
        "more: nothing is scored in what is read",
    )
    parts = [(row, part) for row in sorted(parts_by_row) for part in parts_by_row[row]]
    columns = zip(*(part for _, part in parts), strict=True)
    tokens, nats, document, segment, since, inside = map(np.concatenate, columns)
    rows = np.concatenate([np.full(len(part[0]), row) for row, part in parts])
    new = np.concatenate([[False], (np.diff(rows) != 0) | (np.diff(document) != 0)])
    return TokenNats(tokens, nats, np.cumsum(new), segment, since, inside, result)


class LastMentions:
    """Tracks the tokens that one row has read of its document, to tell how long ago a token occurred last.

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
        """Reads the next segment of the row. `begins` says that it begins a document. Returns for each token the
        numbers of its document and segment, how many tokens ago it occurred last (0 for never), and whether in this
        segment.

        Args:
          tokens: Token ids of the segment.
          begins: Whether a document begins with the segment.

        Returns:
          Four arrays `[tokens]`: the number of the document, the number of the segment in the document, how many tokens
          ago the same token occurred last (0 for never), and whether that was in this segment.
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
    """Groups scored tokens (`found`) by how many segments ago their document contained the same token last. Returns a
    bool mask of the tokens for each group by name, without empty groups.

    Args:
      found: Scored tokens.
      segment_length: Number of tokens of a segment.

    Returns:
      Name of a group -> mask of its tokens `[targets]`. The groups are 'never', 'in this segment', up to 1, 2, 4, ...
      segments ago, and 'beyond' the last of these. Empty groups are left out.

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
