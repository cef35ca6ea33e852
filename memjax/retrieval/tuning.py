"""Tuning of kNN-LM: finds the neighbours of every scored target once, and tries any weights without another search.

    documents = AnnotatedDocuments(validation, numbers=True)
    evaluator = Evaluator(add_features(model, KEY), documents, feature_names=(KEY,), ...)
    result, targets, neighbors = find_neighbors(evaluator, variables, index.search, values, 1024, feature=KEY)
    tuning = tune(targets, neighbors, weights=[...], temperatures=[...])
    score_mixture(test_targets, test_neighbors, tuning.interpolation_weight, tuning.temperature)

All arrays are on the host, with one row for each scored target, in the order of the documents.
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
from memjax.data.array_files import read_arrays
from memjax.data.reader_errors import reading
from memjax.memory.knn_lm import (
    DISTANCES,
    VALUES,
    BatchNeighbors,
    Search,
    ValuesOf,
    neighbor_log_prob,
    search_neighbors,
)
from memjax.settings.checks import require
from memjax.training.evaluation import Evaluator
from memjax.training.metrics import perplexity
from memjax.training.scores import BatchScore, EvaluationResult, Score
from memjax.typing import Batch

__all__ = [
    "CachedNeighbors",
    "ScoredTargets",
    "Tuning",
    "find_neighbors",
    "score_mixture",
    "score_targets",
    "tune_interpolation",
    "tune_with_memory",
]

WEIGHTS = tuple(i / 20 for i in range(20))
"""Interpolation weights that are tried by default."""
TEMPERATURES = tuple(float(2**n) for n in range(-2, 8))
"""Temperatures of the distances that are tried by default."""
SCORES_AT_ONCE = 1 << 24
"""Number of neighbours whose probabilities are computed at once."""


@dataclasses.dataclass(frozen=True)
class ScoredTargets:
    """The scored targets of a split: their tokens, their numbers in the split, and their log-probabilities under a
    model.

    Attributes:
      numbers: int64 `[targets]`, number of each target among the tokens of the split, ascending.
      tokens: int32 `[targets]`, token ids of the targets.
      log_probs: `[targets]`, log-probabilities under the model with all its output memories.
      parts: `[parts, targets]`, log-probabilities under the model alone and under each of its output memories. Where a
        memory has no candidates it is the model's own. None unless the evaluator returns them.
    """

    numbers: Int[np.ndarray, " targets"]
    tokens: Int[np.ndarray, " targets"]
    log_probs: Float[np.ndarray, " targets"]
    parts: Float[np.ndarray, "parts targets"] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def mixed(self, weight: float, part: int = 1) -> ScoredTargets:
        """Returns the targets with their log-probabilities under the model interpolated with one of its output
        memories, whose number is `part`, from 1, and whose share is `weight`.

        The interpolation of the evaluation itself does not matter.

        Args:
          weight: Weight of the memory. 0 = the model alone.
          part: Number of the memory in `parts`, from 1.
        """
        assert self.parts is not None
        model_log_probs, memory_log_probs = self.parts[[0, part]].astype(np.float64)
        return dataclasses.replace(self, log_probs=_interpolate(model_log_probs, memory_log_probs, weight))


@dataclasses.dataclass(frozen=True)
class CachedNeighbors:
    """The neighbours of scored targets that were found in a store, nearest first: distances, tokens after them, and
    entries.

    Attributes:
      distances: float32 `[targets, neighbors]`, squared L2 distances. For inner products their negative.
      values: int32 `[targets, neighbors]`, the token after each neighbour. -1 = no neighbour.
      ids: int64 `[targets, neighbors]`, numbers of the neighbours among the entries of the store. -1 = no neighbour.
    """

    distances: Float[np.ndarray, "targets neighbors"]
    values: Int[np.ndarray, "targets neighbors"]
    ids: Int[np.ndarray, "targets neighbors"]

    def __post_init__(self):
        shapes = {array.shape for array in vars(self).values()}
        kinds = "".join(array.dtype.kind for array in vars(self).values())
        if len(shapes) > 1 or any(len(shape) != 2 for shape in shapes) or kinds != "fii":
            description = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in vars(self).items())
            raise ValueError(f"neighbors: given {description}, allowed: arrays [targets, neighbors] of one shape")

    def first(self, num_neighbors: int) -> CachedNeighbors:
        """Returns a copy with the `num_neighbors` nearest neighbours of each target, as a search for fewer would have
        found.
        """
        if not 1 <= num_neighbors <= self.values.shape[1]:
            raise ValueError(
                f"num_neighbors: given {num_neighbors}, allowed: 1 to {self.values.shape[1]}, as were found"
            )
        return CachedNeighbors(**{name: array[:, :num_neighbors] for name, array in vars(self).items()})

    def annotations(self, numbers: np.ndarray, num_tokens: int) -> dict[str, np.ndarray]:
        """Arranges distances and tokens of the neighbours as arrays over all tokens of the split, by name, for
        `AnnotatedDocuments`. `numbers` are those of the targets among the tokens.

        Tokens that were not scored have no neighbours.

        Args:
          numbers: Numbers of the targets among the tokens, `ScoredTargets.numbers`.
          num_tokens: Number of tokens of the split.
        """
        shape = (num_tokens, self.values.shape[1])
        distances, values = np.zeros(shape, np.float32), np.full(shape, -1, np.int32)
        distances[numbers], values[numbers] = self.distances, self.values
        return {DISTANCES: distances, VALUES: values}

    def save(self, path: Path | str) -> None:
        """Writes the neighbours to an .npz file."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path | str) -> CachedNeighbors:
        """Reads neighbours that `save` has written."""
        form = "a .npz of `CachedNeighbors.save`"
        with reading(path, form):
            arrays = read_arrays(path, form)
            return cls(**{field.name: arrays[field.name] for field in dataclasses.fields(cls)})


def score_targets(evaluator: Evaluator, variables: Mapping[str, Any]) -> tuple[EvaluationResult, ScoredTargets]:
    """Evaluates a model. Returns the result, and the log-probability of every target as `ScoredTargets`.

    Args:
      evaluator: Evaluator of documents with token numbers, `AnnotatedDocuments(..., numbers=True)`, on one host.
      variables: Variables of the evaluator's model.

    Returns:
      The result of the evaluation, and its targets.
    """
    batches: list[tuple[np.ndarray, ...]] = []
    result = evaluator(variables, observe=lambda batch, scored: batches.append(_targets_of_batch(batch, scored)))
    return result, _sort_targets(batches)[0]


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
) -> tuple[EvaluationResult, ScoredTargets, CachedNeighbors]:
    """Evaluates a model without neighbours, and searches for the neighbours of every scored target by the inner tensor
    `feature`. Returns the result, `ScoredTargets` and `CachedNeighbors`.

    The query of a target is an inner tensor of the model.

    Args:
      evaluator: Evaluator as for `score_targets`, with `feature` among its features.
      variables: Variables of the evaluator's model.
      search: Function that searches an index. See `search_neighbors`.
      values: Function from ids of entries to their tokens.
      num_neighbors: Number of neighbours of each target.
      feature: Name of the inner tensor that the keys of the store are.
      metric: Metric of the scores that `search` returns, 'squared_l2' or 'inner_product'.
      queries_at_once: Smallest number of queries that are searched at once, except for the last ones.

    Returns:
      The result of the evaluation without neighbours, its targets, and their neighbours.

    Raises:
      ValueError: The documents have no token numbers, nothing is scored, or `search` returns another number of rows.
    """
    batches: list[tuple[np.ndarray, ...]] = []
    queries: list[np.ndarray] = []
    results: list[BatchNeighbors] = []

    def search_waiting() -> None:
        results.append(search_neighbors(np.concatenate(queries), search, values, num_neighbors, metric=metric))
        queries.clear()

    def observe(batch: Batch, scored: BatchScore) -> None:
        batches.append(_targets_of_batch(batch, scored))
        if feature not in scored.features:
            raise ValueError(f"feature: given {feature!r}, the evaluator shows {sorted(scored.features)}")
        queries.append(scored.features[feature][batch.weights > 0].astype(np.float32))
        if sum(map(len, queries)) >= queries_at_once:
            search_waiting()

    result = evaluator(variables, observe=observe)
    if not result.targets:
        raise ValueError("evaluation.max_segments: nothing is scored in what is read of the split, allowed: more")
    if queries:
        search_waiting()
    targets, order = _sort_targets(batches)
    return result, targets, CachedNeighbors(*(np.concatenate(part)[order] for part in zip(*results, strict=True)))


def neighbor_log_probs(targets: ScoredTargets, neighbors: CachedNeighbors, temperatures: Sequence[float]) -> np.ndarray:
    """Computes `log p_kNN` of every target at each temperature, float64 `[temperatures, targets]`. Of a target without
    neighbours it is the log-probability under the model.

    A target without neighbours gets its log-probability under the model, so that mixing does not change it.

    Args:
      targets: Scored targets.
      neighbors: Neighbours of the targets.
      temperatures: Numbers above 0 that distances are divided by.
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
    """Mean negative log-likelihoods of a mixture for all combinations of interpolation weights and temperatures.

    Attributes:
      weights: Interpolation weights that were tried.
      temperatures: Temperatures of the distances that were tried.
      nats_per_token: float64 `[temperatures, weights]`, mean negative log-likelihood of the targets.
    """

    weights: tuple[float, ...]
    temperatures: tuple[float, ...]
    nats_per_token: Float[np.ndarray, "temperatures weights"]

    @property
    def interpolation_weight(self) -> float:
        """The interpolation weight of the best combination, with the lowest perplexity."""
        return self.weights[self._best()[1]]

    @property
    def temperature(self) -> float:
        """The temperature of the best combination, with the lowest perplexity."""
        return self.temperatures[self._best()[0]]

    @property
    def perplexity(self) -> float:
        """The perplexity of the best combination, the lowest one."""
        return perplexity(float(self.nats_per_token[self._best()]))

    def rows(self) -> list[dict[str, float]]:
        """Returns a list of dictionaries, one for every combination of weight and temperature, with its perplexity, the
        lowest perplexity first.
        """
        settings = [
            {"interpolation_weight": weight, "temperature": temperature, "perplexity": perplexity(float(nats))}
            for temperature, row in zip(self.temperatures, self.nats_per_token, strict=True)
            for weight, nats in zip(self.weights, row, strict=True)
        ]
        return sorted(settings, key=lambda setting: setting["perplexity"])

    def _best(self) -> tuple[int, int]:
        """Returns the indices of the best temperature and the best weight."""
        place = np.unravel_index(int(np.argmin(self.nats_per_token)), self.nats_per_token.shape)
        return int(place[0]), int(place[1])


def tune_interpolation(
    targets: ScoredTargets,
    neighbors: CachedNeighbors,
    *,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
) -> Tuning:
    """Tries every interpolation weight with every temperature on neighbours that were already found, and returns the
    `Tuning`.

    Args:
      targets: Scored targets. Neighbours are mixed with `targets.log_probs`. For a model with a continuous cache this
        is the mixture of both.
      neighbors: Neighbours of the targets.
      weights: Interpolation weights to try.
      temperatures: Temperatures of the distances to try.
    """
    if not len(weights) or not len(temperatures):
        raise ValueError(f"weights, temperatures: given {weights!r}, {temperatures!r}, allowed: at least one of each")
    for weight in weights:
        require(0 <= weight <= 1, "interpolation_weight", weight, "0 to 1")
    neighbor_probs = neighbor_log_probs(targets, neighbors, temperatures)
    nats = mixture_nats(targets.log_probs, neighbor_probs, weights) / max(len(targets), 1)
    return Tuning(tuple(weights), tuple(temperatures), nats)


def tune_with_memory(
    targets: ScoredTargets,
    neighbors: CachedNeighbors,
    part: int = 1,
    *,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
) -> tuple[float, Tuning]:
    """Tunes the weight of an output memory, number `part` from 1, together with weight and temperature of neighbours.
    Returns the memory's best weight, and the `Tuning` of the neighbours with it.

    Args:
      targets: Scored targets with `parts`.
      neighbors: Neighbours of the targets.
      part: Number of the memory in `parts`, from 1. See `ScoredTargets.mixed`.
      weights: Interpolation weights to try for the memory and for the neighbours.
      temperatures: Temperatures of the distances to try.

    Returns:
      The best weight of the memory, and the tuning of the neighbours with it.
    """
    neighbor_probs = neighbor_log_probs(targets, neighbors, temperatures)
    present = (neighbors.values >= 0).any(axis=1)
    tunings = []
    for weight in weights:
        mixed = targets.mixed(weight, part).log_probs
        nats = mixture_nats(mixed, np.where(present, neighbor_probs, mixed), weights) / max(len(targets), 1)
        tunings.append((weight, Tuning(tuple(weights), tuple(temperatures), nats)))
    return min(tunings, key=lambda weight_and_tuning: weight_and_tuning[1].nats_per_token.min())


def score_mixture(
    targets: ScoredTargets, neighbors: CachedNeighbors, interpolation_weight: float, temperature: float
) -> tuple[Score, np.ndarray]:
    """Mixes model and neighbours with one weight and temperature. Returns the score, and the log-probability of every
    target.

    Args:
      targets: Scored targets.
      neighbors: Neighbours of the targets.
      interpolation_weight: Weight of the neighbours, 0 to 1.
      temperature: Number above 0 that distances are divided by.

    Returns:
      The score, and the log-probability of every target under the mixture, `[targets]`.
    """
    neighbor_probs = neighbor_log_probs(targets, neighbors, [temperature])
    mixed = _interpolate(targets.log_probs.astype(np.float64), neighbor_probs[0], interpolation_weight)
    return Score(nats=-float(mixed.sum()), targets=len(targets)), mixed


def mixture_nats(
    log_probs: Float[np.ndarray, " targets"], others: Float[np.ndarray, "options targets"], weights: Sequence[float]
) -> np.ndarray:
    """Sums the nats of all targets for mixtures of a model with each distribution of `others` (log-probabilities) at
    each weight: float64 `[others, weights]`.

    It also applies to the parts of a continuous cache: `mixture_nats(targets.parts[0], targets.parts[1:], weights)`.

    Args:
      log_probs: `[targets]`, log-probabilities of the targets under the model.
      others: `[options, targets]`, log-probabilities of the targets under each other distribution.
      weights: Weights of the other distribution to try.

    Returns:
      float64 `[options, weights]`.

    Example:
      >>> mixture_nats(np.log([0.5]), np.log([[0.25]]), [0.0, 1.0]).round(4).tolist()
      [[0.6931, 1.3863]]
    """
    model_log_probs = log_probs.astype(np.float64)
    return np.array(
        [[-_interpolate(model_log_probs, other.astype(np.float64), w).sum() for w in weights] for other in others]
    )


def _interpolate(model_log_probs: np.ndarray, other_log_probs: np.ndarray, weight: float) -> np.ndarray:
    """Interpolates two distributions, given as log-probabilities, with `weight` for the second."""
    if not 0 <= weight <= 1:
        raise ValueError(f"interpolation_weight: given {weight}, allowed: 0 to 1")
    with np.errstate(divide="ignore"):
        return (
            np.logaddexp(model_log_probs + np.log1p(-weight), other_log_probs + np.log(weight))
            if weight
            else model_log_probs
        )


@jax.jit
def _log_probs_at(temperatures: Any, distances: Any, values: Any, tokens: Any) -> Any:
    """Computes `log p_kNN` of some targets at each temperature."""
    return jax.lax.map(lambda t: neighbor_log_prob(distances, values, tokens, t), temperatures)


def _targets_of_batch(batch: Batch, scored: BatchScore) -> tuple[np.ndarray, ...]:
    """Returns the arrays of `ScoredTargets` for one batch."""
    if NUMBER not in batch.extras:
        raise ValueError("documents: given without numbers, allowed: AnnotatedDocuments(..., numbers=True)")
    is_scored = batch.weights > 0
    parts = () if scored.parts is None else (scored.parts[:, is_scored],)
    return batch.extras[NUMBER][is_scored], batch.targets[is_scored], -scored.nats[is_scored], *parts


def _sort_targets(batches: Sequence[tuple[np.ndarray, ...]]) -> tuple[ScoredTargets, np.ndarray]:
    """Joins the targets of all batches in the order of the documents.

    Returns:
      The targets, and the order of their rows.
    """
    numbers, tokens, log_probs, *part_log_probs = (
        np.concatenate(arrays, axis=-1) for arrays in zip(*batches, strict=True)
    )
    order = np.argsort(numbers, kind="stable")
    if (np.diff(numbers[order]) == 0).any():
        raise ValueError("documents: a target was scored twice; the numbers of their tokens are not unique")
    ordered_parts = part_log_probs[0][:, order] if part_log_probs else None
    return ScoredTargets(numbers[order].astype(np.int64), tokens[order], log_probs[order], ordered_parts), order
