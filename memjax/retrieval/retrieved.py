"""The neighbours retrieved for some targets as readable text: their contexts, distances and weights."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from memjax.retrieval.tuning import CachedNeighbors, ScoredTargets

__all__ = ["describe_retrieved", "largest_gains", "read_retrieved"]


@dataclasses.dataclass(frozen=True)
class Neighbor:
    """One neighbour of a target, decoded as text, with its distance and its share.

    Attributes:
      context: Text before the neighbour.
      token: The token that follows the context, for which the neighbour votes.
      distance: Distance of the neighbour's key to the query.
      weight: Share of the neighbour in the distribution over the target's neighbours.
    """

    context: str
    token: str
    distance: float
    weight: float


@dataclasses.dataclass(frozen=True)
class TargetWithNeighbors:
    """A target with its neighbours, decoded as text, and its probabilities.

    Attributes:
      number: Number of the target among the tokens of its split.
      context: Text before the target.
      token: The target itself, as text.
      probability: Probability of the target under the model.
      mixed: Probability of the target under the mixture. None where that is unknown.
      neighbors: Neighbours of the target, nearest first.
    """

    number: int
    context: str
    token: str
    probability: float
    mixed: float | None
    neighbors: tuple[Neighbor, ...]


def largest_gains(targets: ScoredTargets, mixed: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the `count` targets whose log-probability a mixture raises most, largest gain first.
    `mixed` are the log-probabilities under the mixture.

    Args:
      targets: Scored targets with the model's log-probabilities.
      mixed: `[targets]`, log-probabilities under the mixture.
      count: Number of targets to return.
    """
    return np.argsort(targets.log_probs - mixed, kind="stable")[:count]


def read_retrieved(
    chosen: Sequence[int] | np.ndarray,
    targets: ScoredTargets,
    neighbors: CachedNeighbors,
    *,
    before_target: Callable[[int], Sequence[int] | np.ndarray],
    before_entry: Callable[[int], Sequence[int] | np.ndarray],
    decode: Callable[[list[int]], str],
    temperature: float = 1.0,
    mixed: np.ndarray | None = None,
    count: int = 5,
) -> list[TargetWithNeighbors]:
    """Decodes the targets with the indices `chosen` and their `count` nearest neighbours, as a list of
    `TargetWithNeighbors`. `before_target` and `before_entry` are functions from a number to the tokens before it.

    Args:
      chosen: Rows of `targets` to decode.
      targets: Scored targets of a split.
      neighbors: Neighbours of all targets.
      before_target: Function from the number of a target to the tokens before it, such as `AnnotatedDocuments.before`.
      before_entry: Function from the id of a store's entry to the tokens before it.
      decode: Function from tokens to text.
      temperature: Number above 0 that distances are divided by for the weights.
      mixed: `[targets]`, log-probabilities under the mixture, to show them too. None = unknown.
      count: Number of neighbours of each target to decode. Their weights are shares among all neighbours found.
    """
    if temperature <= 0:
        raise ValueError(f"temperature: given {temperature}, allowed: more than 0")
    text = lambda tokens: decode([int(token) for token in tokens])
    rows = []
    for row in chosen:
        is_neighbor = neighbors.values[row] >= 0
        distances = np.where(is_neighbor, neighbors.distances[row].astype(np.float64), np.inf)
        nearest = distances.min(initial=np.inf)
        shares = np.exp(-(distances - (nearest if is_neighbor.any() else 0)) / temperature)
        weights = shares / max(shares.sum(), np.finfo(float).tiny)
        decoded = [
            Neighbor(
                text(before_entry(int(neighbors.ids[row, k]))),
                text([neighbors.values[row, k]]),
                float(distances[k]),
                float(weights[k]),
            )
            for k in np.argsort(distances, kind="stable")[: min(count, int(is_neighbor.sum()))]
        ]
        number = int(targets.numbers[row])
        rows.append(
            TargetWithNeighbors(
                number,
                text(before_target(number)),
                text([targets.tokens[row]]),
                math.exp(float(targets.log_probs[row])),
                None if mixed is None else math.exp(float(mixed[row])),
                tuple(decoded),
            )
        )
    return rows


def describe_retrieved(rows: Sequence[TargetWithNeighbors], width: int = 60) -> str:
    """Formats targets and their neighbours as a text table: one line for each target, and under it one for each
    neighbour. `width` is the number of characters of a context.

    Args:
      rows: Targets with neighbours, from `read_retrieved`.
      width: Number of characters to show of each context. The end of the context is shown.
    """
    lines = []
    for row in rows:
        change = "" if row.mixed is None else f" -> {row.mixed:.4f}"
        texts = f"{_last_characters(row.context, width)} | {_escape_whitespace(row.token)}"
        lines.append(f"{row.number:>10,}  {texts}  ({row.probability:.4f}{change})")
        for neighbor in row.neighbors:
            texts = f"{_last_characters(neighbor.context, width)} | {_escape_whitespace(neighbor.token)}"
            lines.append(f"{neighbor.distance:10.3f}  {neighbor.weight:6.4f}  {texts}")
    return "\n".join(lines)


def _escape_whitespace(text: str) -> str:
    """Escapes line breaks and tabs, so that a text stays on one line."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def _last_characters(text: str, width: int) -> str:
    """Returns the last `width` characters of a text."""
    text = _escape_whitespace(text)
    return text if len(text) <= width else "..." + text[3 - width :]
