"""What was retrieved for chosen tokens, as text: where each neighbour stands, how far it is and what it weighs."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from memjax.retrieval.tuning import CachedNeighbors, Targets

__all__ = ["describe_retrieved", "largest_gains", "read_retrieved"]


@dataclasses.dataclass(frozen=True)
class Neighbor:
    """One neighbour of a target.

    Attributes:
      context: the text before it.
      token: the token after that, which it votes for.
      distance: of its key.
      weight: its share of the neighbours' distribution.
    """

    context: str
    token: str
    distance: float
    weight: float


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """A target, and its neighbours.

    Attributes:
      number: of the target among the tokens of its split.
      context: the text before it.
      token: the target.
      probability: under the model.
      mixed: under the mixture, or None where that is not known.
      neighbors: nearest first.
    """

    number: int
    context: str
    token: str
    probability: float
    mixed: float | None
    neighbors: tuple[Neighbor, ...]


def largest_gains(targets: Targets, mixed: np.ndarray, count: int) -> np.ndarray:
    """The targets whose log-probability a mixture has raised most, largest gain first.

    Args:
      targets: with the model's log-probabilities.
      mixed: `[targets]`, those of the mixture.
      count: how many.
    """
    return np.argsort(targets.log_probs - mixed, kind="stable")[:count]


def read_retrieved(
    chosen: Sequence[int] | np.ndarray,
    targets: Targets,
    neighbors: CachedNeighbors,
    *,
    before_target: Callable[[int], Sequence[int] | np.ndarray],
    before_entry: Callable[[int], Sequence[int] | np.ndarray],
    decode: Callable[[list[int]], str],
    temperature: float = 1.0,
    mixed: np.ndarray | None = None,
    count: int = 5,
) -> list[Retrieved]:
    """The chosen targets with their nearest neighbours.

    Args:
      chosen: rows of `targets`.
      targets: scored targets.
      neighbors: theirs.
      before_target: number of a target -> the tokens before it, as `AnnotatedDocuments.before` gives them.
      before_entry: id of an entry of the store -> the tokens before it.
      decode: tokens to text.
      temperature: of the weights.
      mixed: log-probabilities under the mixture, to show.
      count: neighbours of each target. Weights are shares of all that were found.
    """
    if temperature <= 0:
        raise ValueError(f"temperature: given {temperature}, allowed: more than 0")
    text = lambda tokens: decode([int(token) for token in tokens])
    rows = []
    for row in chosen:
        there = neighbors.values[row] >= 0
        distances = np.where(there, neighbors.distances[row].astype(np.float64), np.inf)
        nearest = distances.min(initial=np.inf)
        shares = np.exp(-(distances - (nearest if there.any() else 0)) / temperature)
        weights = shares / max(shares.sum(), np.finfo(float).tiny)
        found = [
            Neighbor(
                text(before_entry(int(neighbors.ids[row, k]))),
                text([neighbors.values[row, k]]),
                float(distances[k]),
                float(weights[k]),
            )
            for k in np.argsort(distances, kind="stable")[: min(count, int(there.sum()))]
        ]
        number = int(targets.numbers[row])
        rows.append(
            Retrieved(
                number,
                text(before_target(number)),
                text([targets.tokens[row]]),
                math.exp(float(targets.log_probs[row])),
                None if mixed is None else math.exp(float(mixed[row])),
                tuple(found),
            )
        )
    return rows


def describe_retrieved(rows: Sequence[Retrieved], width: int = 60) -> str:
    """A table: a line for each target, under it one for each neighbour.

    Args:
      rows: from `read_retrieved`.
      width: characters of a context that are shown, its end.
    """
    lines = []
    for row in rows:
        change = "" if row.mixed is None else f" -> {row.mixed:.4f}"
        shown = f"{_end(row.context, width)} | {_visible(row.token)}"
        lines.append(f"{row.number:>10,}  {shown}  ({row.probability:.4f}{change})")
        for neighbor in row.neighbors:
            shown = f"{_end(neighbor.context, width)} | {_visible(neighbor.token)}"
            lines.append(f"{neighbor.distance:10.3f}  {neighbor.weight:6.4f}  {shown}")
    return "\n".join(lines)


def _visible(text: str) -> str:
    """On one line."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def _end(text: str, width: int) -> str:
    text = _visible(text)
    return text if len(text) <= width else "..." + text[3 - width :]
