"""Neighbours of every scored target: found once, mixed and tuned as often as wanted without another search.

    documents = AnnotatedDocuments(validation, numbers=True)
    evaluator = Evaluator(add_features(model, KEY), documents, features=(KEY,), ...)
    result, targets, neighbors = find_neighbors(evaluator, variables, index.search, values, 1024, feature=KEY)
    tuning = tune(targets, neighbors, weights=[...], temperatures=[...])
    score_mixture(test_targets, test_neighbors, tuning.interpolation_weight, tuning.temperature)

Arrays are on the host, one row for each scored target, in the order of the documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from memjax.data.annotations import NUMBER
from memjax.memory.knn_lm import DISTANCES, VALUES, Neighbors, Search, ValuesOf, neighbor_log_prob, search_neighbors
from memjax.settings.relations import require
from memjax.training.evaluation import EvaluationResult, Evaluator, Score, Scored
from memjax.training.metrics import perplexity
from memjax.typing import Batch

__all__ = [
    "CachedNeighbors",
    "Targets",
    "Tuning",
    "find_neighbors",
    "score_mixture",
    "score_targets",
    "tune",
    "tune_both",
]

WEIGHTS = tuple(i / 20 for i in range(20))
"""interpolation weights that are tried"""
TEMPERATURES = tuple(float(2**n) for n in range(-2, 8))
"""of distances, that are tried"""
SCORES_AT_ONCE = 1 << 24
"""neighbours whose probabilities are worked out in one piece"""


@dataclasses.dataclass(frozen=True)
class Targets:
    """The scored targets of a split and what a model says of them.

    Attributes:
      numbers: int64 `[targets]`, number of each among the tokens of the split, ascending.
      tokens: int32 `[targets]`.
      log_probs: `[targets]`, under the model with everything that is laid over it.
      parts: `[parts, targets]`, under the model alone and under each memory laid over it (the model's own where that
        has no candidates), if the evaluator shows them.
    """

    numbers: Int[np.ndarray, " targets"]
    tokens: Int[np.ndarray, " targets"]
    log_probs: Float[np.ndarray, " targets"]
    parts: Float[np.ndarray, "parts targets"] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def mixed(self, weight: float, part: int = 1) -> Targets:
        """Under the model alone interpolated with one of the memories laid over it, whatever the evaluation mixed.

        Args:
          weight: of the memory; 0 = the model alone.
          part: which memory, from 1, among the `parts`.
        """
        assert self.parts is not None
        own, other = self.parts[[0, part]].astype(np.float64)
        return dataclasses.replace(self, log_probs=_mixed(own, other, weight))


@dataclasses.dataclass(frozen=True)
class CachedNeighbors:
    """The neighbours of scored targets, nearest first.

    Attributes:
      distances: float32 `[targets, neighbors]`, squared L2 (of inner products their negative).
      values: int32 `[targets, neighbors]`, the tokens after the neighbours; -1 = no neighbour.
      ids: int64 `[targets, neighbors]`, entries of the store; -1 = no neighbour.
    """

    distances: Float[np.ndarray, "targets neighbors"]
    values: Int[np.ndarray, "targets neighbors"]
    ids: Int[np.ndarray, "targets neighbors"]

    def first(self, num_neighbors: int) -> CachedNeighbors:
        """The nearest of them, as a search for fewer would have found."""
        if not 1 <= num_neighbors <= self.values.shape[1]:
            raise ValueError(
                f"num_neighbors: given {num_neighbors}, allowed: 1 to {self.values.shape[1]}, as were found"
            )
        return CachedNeighbors(**{name: array[:, :num_neighbors] for name, array in vars(self).items()})

    def annotations(self, numbers: np.ndarray, num_tokens: int) -> dict[str, np.ndarray]:
        """Arrays over all tokens of the split for `AnnotatedDocuments`; tokens that were not scored have none.

        Args:
          numbers: of the targets (`Targets.numbers`).
          num_tokens: of the split.
        """
        shape = (num_tokens, self.values.shape[1])
        distances, values = np.zeros(shape, np.float32), np.full(shape, -1, np.int32)
        distances[numbers], values[numbers] = self.distances, self.values
        return {DISTANCES: distances, VALUES: values}

    def save(self, path: Path | str) -> None:
        """Writes them to an .npz file."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path | str) -> CachedNeighbors:
        """Reads what `save` has written."""
        with np.load(path) as file:
            return cls(**{field.name: file[field.name] for field in dataclasses.fields(cls)})


def score_targets(evaluator: Evaluator, variables: Mapping[str, Any]) -> tuple[EvaluationResult, Targets]:
    """Evaluates, and keeps the log-probability of every target.

    Args:
      evaluator: on documents with numbers (`AnnotatedDocuments(..., numbers=True)`), of one host.
      variables: of its model.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    result = evaluator(variables, observe=lambda batch, scored: parts.append(_scored_targets(batch, scored)))
    return result, _in_order(parts)[0]


def find_neighbors(
    evaluator: Evaluator,
    variables: Mapping[str, Any],
    search: Search,
    values: ValuesOf,
    num_neighbors: int,
    *,
    feature: str,
    metric: str = "squared_l2",
    queries_at_once: int = 1024,
) -> tuple[EvaluationResult, Targets, CachedNeighbors]:
    """Evaluates, and finds the neighbours of every scored target with the model's inner tensor as the query.

    Args:
      evaluator: as in `score_targets`, with `feature` among its features.
      variables: of its model.
      search: as in `search_neighbors`, like `values` and `metric`.
      values: ids to tokens.
      num_neighbors: of each target.
      feature: the inner tensor that the keys of the store are.
      metric: of the scores.
      queries_at_once: searched together, at least.

    Returns:
      The model's own result, its targets, and their neighbours.

    Raises:
      ValueError: documents without numbers or targets, or a search that gives another number of rows than queries.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    waiting: list[np.ndarray] = []
    found: list[Neighbors] = []

    def search_waiting() -> None:
        found.append(search_neighbors(np.concatenate(waiting), search, values, num_neighbors, metric=metric))
        waiting.clear()

    def observe(batch: Batch, scored: Scored) -> None:
        parts.append(_scored_targets(batch, scored))
        if feature not in scored.features:
            raise ValueError(f"feature: given {feature!r}, the evaluator shows {sorted(scored.features)}")
        waiting.append(scored.features[feature][batch.weights > 0].astype(np.float32))
        if sum(map(len, waiting)) >= queries_at_once:
            search_waiting()

    result = evaluator(variables, observe=observe)
    if not result.targets:
        raise ValueError("evaluation.max_segments: nothing is scored in what is read of the split, allowed: more")
    if waiting:
        search_waiting()
    targets, order = _in_order(parts)
    return result, targets, CachedNeighbors(*(np.concatenate(part)[order] for part in zip(*found, strict=True)))


def neighbor_log_probs(targets: Targets, neighbors: CachedNeighbors, temperatures: Sequence[float]) -> np.ndarray:
    """`log p_kNN` of every target at each temperature, float64 `[temperatures, targets]`.

    Where a target has no neighbours at all it is the model's own log-probability, so that mixing changes nothing.
    """
    if len(neighbors.values) != len(targets):
        raise ValueError(f"neighbors: given those of {len(neighbors.values)} targets, allowed: {len(targets)}")
    for temperature in temperatures:
        require(0 < temperature < np.inf, "temperature", temperature, "a number above 0")
    size = max(SCORES_AT_ONCE // neighbors.values.shape[1], 1)
    grid = jnp.asarray(temperatures, jnp.float32)
    rows = []
    for begin in range(0, len(targets), size):
        part = [array[begin : begin + size] for array in (neighbors.distances, neighbors.values, targets.tokens)]
        rows.append(np.asarray(_log_probs_at(grid, *map(jnp.asarray, part)), np.float64))
    present = (neighbors.values >= 0).any(axis=1)
    return np.where(present, np.concatenate(rows, axis=1), targets.log_probs.astype(np.float64))


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What every setting of a grid gives.

    Attributes:
      weights: interpolation weights.
      temperatures: of distances.
      nats_per_token: float64 `[temperatures, weights]`.
    """

    weights: tuple[float, ...]
    temperatures: tuple[float, ...]
    nats_per_token: Float[np.ndarray, "temperatures weights"]

    @property
    def interpolation_weight(self) -> float:
        """The best one."""
        return self.weights[self._best()[1]]

    @property
    def temperature(self) -> float:
        """The best one."""
        return self.temperatures[self._best()[0]]

    @property
    def perplexity(self) -> float:
        """Of the best setting."""
        return perplexity(float(self.nats_per_token[self._best()]))

    def rows(self) -> list[dict[str, float]]:
        """Every setting with its perplexity, best first."""
        settings = [
            {"interpolation_weight": weight, "temperature": temperature, "perplexity": perplexity(float(nats))}
            for temperature, row in zip(self.temperatures, self.nats_per_token, strict=True)
            for weight, nats in zip(self.weights, row, strict=True)
        ]
        return sorted(settings, key=lambda setting: setting["perplexity"])

    def _best(self) -> tuple[int, int]:
        place = np.unravel_index(int(np.argmin(self.nats_per_token)), self.nats_per_token.shape)
        return int(place[0]), int(place[1])


def tune(
    targets: Targets,
    neighbors: CachedNeighbors,
    *,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
) -> Tuning:
    """Tries every interpolation weight with every temperature on cached neighbours.

    What the neighbours are mixed with is `targets.log_probs`: with a continuous cache over the model, both together.
    """
    if not len(weights) or not len(temperatures):
        raise ValueError(f"weights, temperatures: given {weights!r}, {temperatures!r}, allowed: at least one of each")
    for weight in weights:
        require(0 <= weight <= 1, "interpolation_weight", weight, "0 to 1")
    others = neighbor_log_probs(targets, neighbors, temperatures)
    nats = mixture_nats(targets.log_probs, others, weights) / max(len(targets), 1)
    return Tuning(tuple(weights), tuple(temperatures), nats)


def tune_both(
    targets: Targets,
    neighbors: CachedNeighbors,
    part: int = 1,
    *,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
) -> tuple[float, Tuning]:
    """The weight of a memory laid over the model that is best together with neighbours, and what those then give.

    Args:
      targets: with parts.
      neighbors: theirs.
      part: which memory, see `Targets.mixed`.
      weights: tried for the memory and for the neighbours.
      temperatures: of distances.
    """
    others = neighbor_log_probs(targets, neighbors, temperatures)
    present = (neighbors.values >= 0).any(axis=1)
    found = []
    for weight in weights:
        own = targets.mixed(weight, part).log_probs
        nats = mixture_nats(own, np.where(present, others, own), weights) / max(len(targets), 1)
        found.append((weight, Tuning(tuple(weights), tuple(temperatures), nats)))
    return min(found, key=lambda one: one[1].nats_per_token.min())


def score_mixture(
    targets: Targets, neighbors: CachedNeighbors, interpolation_weight: float, temperature: float
) -> tuple[Score, np.ndarray]:
    """The score of one setting, and the log-probability of every target under it."""
    others = neighbor_log_probs(targets, neighbors, [temperature])
    mixed = _mixed(targets.log_probs.astype(np.float64), others[0], interpolation_weight)
    return Score(nats=-float(mixed.sum()), targets=len(targets)), mixed


def mixture_nats(
    log_probs: Float[np.ndarray, " targets"], others: Float[np.ndarray, "options targets"], weights: Sequence[float]
) -> np.ndarray:
    """Nats of all targets for every weight of every other distribution, float64 `[options, weights]`.

    Also for the parts of a continuous cache: `mixture_nats(targets.parts[0], targets.parts[1:], weights)`.

    Args:
      log_probs: of the targets under the model.
      others: under each other distribution.
      weights: of the other.

    Example:
      >>> mixture_nats(np.log([0.5]), np.log([[0.25]]), [0.0, 1.0]).round(4).tolist()
      [[0.6931, 1.3863]]
    """
    own = log_probs.astype(np.float64)
    return np.array([[-_mixed(own, other.astype(np.float64), w).sum() for w in weights] for other in others])


def _mixed(own: np.ndarray, other: np.ndarray, weight: float) -> np.ndarray:
    if not 0 <= weight <= 1:
        raise ValueError(f"interpolation_weight: given {weight}, allowed: 0 to 1")
    with np.errstate(divide="ignore"):
        return np.logaddexp(own + np.log1p(-weight), other + np.log(weight)) if weight else own


@jax.jit
def _log_probs_at(temperatures: Any, distances: Any, values: Any, tokens: Any) -> Any:
    return jax.lax.map(lambda t: neighbor_log_prob(distances, values, tokens, t), temperatures)


def _scored_targets(batch: Batch, scored: Scored) -> tuple[np.ndarray, ...]:
    """The arrays of `Targets` for one batch."""
    if NUMBER not in batch.extras:
        raise ValueError("documents: given without numbers, allowed: AnnotatedDocuments(..., numbers=True)")
    chosen = batch.weights > 0
    each = () if scored.parts is None else (scored.parts[:, chosen],)
    return batch.extras[NUMBER][chosen], batch.targets[chosen], -scored.nats[chosen], *each


def _in_order(parts: Sequence[tuple[np.ndarray, ...]]) -> tuple[Targets, np.ndarray]:
    """The targets of all batches in the order of the documents, and that order."""
    numbers, tokens, log_probs, *each = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")
    if (np.diff(numbers[order]) == 0).any():
        raise ValueError("documents: a target was scored twice; the numbers of their tokens are not unique")
    shown = each[0][:, order] if each else None
    return Targets(numbers[order].astype(np.int64), tokens[order], log_probs[order], shown), order
