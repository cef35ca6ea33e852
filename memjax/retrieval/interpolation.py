"""kNN-LM for a trained run: mixes neighbours from a datastore into the scores of a split, with tuned weights.

    source = make_key_extractor(load_run(run))
    scored = evaluate_with_store(source, build_datastore(source, path), "test")
    scored.without_store.perplexity, scored.with_store.perplexity, scored.mixing

A store holds texts that the model may look up. So a store that holds the split to be scored or tuned on is refused.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.data.annotations import NUMBER
from memjax.datastore.artefacts import artefact_names, open_artefact, save_artefact
from memjax.datastore.index import Index
from memjax.datastore.opening import choose_backend, open_index
from memjax.datastore.store import Store
from memjax.durable_files import checksum
from memjax.inference.decoding import Recall
from memjax.memory.knn_lm import KNNMemory
from memjax.models.factory import make_mixtures
from memjax.models.feature_taps import add_mixtures, regroup_layers
from memjax.retrieval.building import check_not_in_store, check_store
from memjax.retrieval.generation import knn_retriever
from memjax.retrieval.keys import KeyExtractor
from memjax.retrieval.tuning import (
    TEMPERATURES,
    WEIGHTS,
    CachedNeighbors,
    ScoredTargets,
    find_neighbors,
    score_mixture,
    tune_interpolation,
)
from memjax.settings.checks import require
from memjax.settings.compatibility import in_saved_names
from memjax.training.evaluation import Evaluator
from memjax.training.runs import config_to_dict
from memjax.training.scores import BatchScore, EvaluationResult, Score

__all__ = [
    "StoreNeighbors",
    "InterpolationWeights",
    "ModelWithStore",
    "model_with_store",
    "evaluate_with_store",
    "load_interpolation",
    "neighbors_in_store",
]

NEIGHBORS = 32
"""Default number of neighbours of each token."""
TUNED = "tuning_"
"""Prefix of the names under which tuned weights are saved in the folder of a store."""


@dataclasses.dataclass(frozen=True)
class InterpolationWeights:
    """Weight, temperature and number of neighbours with which a model and the neighbours from a store are mixed.

    Attributes:
      weight: Share of the neighbours in the mixture, from 0 to 1.
      temperature: Number above 0 that distances are divided by.
      neighbors: Number of neighbours of each token.
      tuned_on: Name of the split on which weight and temperature were tuned. '' = they were given, not tuned.
    """

    weight: float
    temperature: float
    neighbors: int = NEIGHBORS
    tuned_on: str = ""


@dataclasses.dataclass(frozen=True)
class StoreNeighbors:
    """Scored tokens of a split with their neighbours in a store.

    Attributes:
      targets: The scored tokens, with their log-probabilities under the model alone, or under the model with a
        continuous cache.
      neighbors: Neighbours of the scored tokens.
    """

    targets: ScoredTargets
    neighbors: CachedNeighbors

    def first(self, count: int) -> StoreNeighbors:
        """Returns a copy with only the `count` nearest neighbours of each token."""
        return StoreNeighbors(self.targets, self.neighbors.first(count))


@dataclasses.dataclass(frozen=True)
class ModelWithStore:
    """Scores of a split with the neighbours of a datastore and without them, and the weights of the mixture.

    Attributes:
      with_store: Scores of the model mixed with the neighbours.
      without_store: Scores of the same model without neighbours.
      mixing: Weights of the mixture.
    """

    with_store: EvaluationResult
    without_store: EvaluationResult
    mixing: InterpolationWeights


def evaluate_with_store(
    source: KeyExtractor,
    store: Store,
    split: str = "",
    *,
    index: Index | None = None,
    num_neighbors: int = NEIGHBORS,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
    tune_on: str = "validation",
) -> ModelWithStore:
    """Scores a split with the neighbours from a store and without them, and returns both (`ModelWithStore`). Of several
    `weights` or `temperatures` the best on the split `tune_on` are used, and saved with the store.

    With a continuous cache in `config.evaluation`, model and cache are mixed first, and their mixture is then mixed
    with the neighbours. Where more than one weight or temperature is given, the best on `tune_on` are used. They are
    saved in the folder of the store, and used again under the same conditions.

    Args:
      source: Run to evaluate, with the inner tensor that the keys of the store are.
      store: Store built from the same run.
      split: Split of the run's data to score. '' = the split of `config.evaluation`.
      index: Index of the store. None = opened with the backend of `choose_backend`.
      num_neighbors: Number of neighbours of each token.
      weights: Shares of the neighbours to try. A single one is used as it is.
      temperatures: Temperatures of the distances to try. A single one is used as it is.
      tune_on: Split on which weights and temperatures are tried.

    Returns:
      The scores with and without neighbours. Accuracy with neighbours is not computed.

    Raises:
      ValueError: The store belongs to another run, tokenizer or reading protocol, or holds a split that is scored.
    """
    split = split or source.run.experiment.config.evaluation.split
    for weight in weights:
        check_weight(weight)
    is_given = len(weights) == len(temperatures) == 1
    check_store(source, store)
    for scored_split in (split,) if is_given else (split, tune_on):
        check_not_in_store(source, store, scored_split)
    check_neighbors(store.entries, num_neighbors)
    index = open_exact_index(store) if index is None else index
    grid = {"neighbors": num_neighbors, "weights": list(weights), "temperatures": list(temperatures)}
    conditions = {**_tuning_conditions(source, index), **_describe_text_read(source, tune_on), **grid}
    mixing = (
        InterpolationWeights(weights[0], temperatures[0], num_neighbors)
        if is_given
        else _load_tuned_weights(store, conditions)
    )
    evaluator = _make_evaluator(source, split)
    result_alone, scored = neighbors_in_store(source, store, index, evaluator, num_neighbors)
    if mixing is None:
        tuning_set = scored
        if tune_on != split:
            tuning_evaluator = _make_evaluator(source, tune_on)
            tuning_evaluator.share(evaluator)
            tuning_set = neighbors_in_store(source, store, index, tuning_evaluator, num_neighbors)[1]
        best = tune_interpolation(tuning_set.targets, tuning_set.neighbors, weights=weights, temperatures=temperatures)
        mixing = InterpolationWeights(best.interpolation_weight, best.temperature, num_neighbors, tune_on)
        _save_tuned_weights(store, mixing, conditions)
    score, mixed = score_mixture(scored.targets, scored.neighbors, mixing.weight, mixing.temperature)
    chosen = dataclasses.replace(source.run.experiment.config.evaluation, split=split)
    subsets = _rescore_subsets(evaluator, source.run.experiment.subsets(chosen), scored.targets, mixed)
    total = dataclasses.replace(score, bytes=result_alone.bytes)
    return ModelWithStore(dataclasses.replace(result_alone, **vars(total), subsets=subsets), result_alone, mixing)


def neighbors_in_store(
    source: KeyExtractor, store: Store, index: Index, evaluator: Evaluator, num_neighbors: int
) -> tuple[EvaluationResult, StoreNeighbors]:
    """Evaluates a run without neighbours, and finds the neighbours of every scored target in a store. Returns the
    result of the evaluation and `StoreNeighbors`.

    Args:
      source: Run to evaluate.
      store: Store to search.
      index: Index of the store.
      evaluator: Evaluator of the source, from `KeyExtractor.evaluator`.
      num_neighbors: Number of neighbours of each token.

    Returns:
      The result of the evaluation, and its targets with their neighbours.
    """
    arguments = evaluator, source.variables, index.search, store.values, num_neighbors
    result, targets, neighbors = find_neighbors(*arguments, feature=source.feature, metric=index.metric)
    return result, StoreNeighbors(targets, neighbors)


def model_with_store(
    source: KeyExtractor, store: Store, mixing: InterpolationWeights, *, index: Index | None = None
) -> tuple[Any, dict[str, Any], Recall]:
    """Prepares generation that searches a store before every token. Returns the model with the neighbours mixed in, its
    variables, and the function `recall` for `stream_tokens`.

    Args:
      source: Run that generates, with the inner tensor that the keys of the store are.
      store: Store built from the same run. It may hold any text.
      mixing: Weights with which the neighbours are mixed with the model, or with the model and its continuous cache
        where `config.evaluation` has one.
      index: Index of the store. None = opened with the backend of `choose_backend`.

    Returns:
      The model, its variables, and the `recall` function for `stream_tokens`.

    Raises:
      ValueError: The store belongs to another run, tokenizer or reading protocol.
    """
    check_store(source, store)
    check_neighbors(store.entries, mixing.neighbors)
    index = open_exact_index(store) if index is None else index
    knn = KNNMemory(
        num_neighbors=mixing.neighbors,
        interpolation_weight=mixing.weight,
        temperature=mixing.temperature,
        query_feature=source.tap,
    )
    model = add_mixtures(source.model, *_make_mixtures(source), knn)
    variables = regroup_layers(source.variables, source.model, model)
    return model, variables, knn_retriever(model, index.search, store.values, metric=index.metric)


def load_interpolation(
    source: KeyExtractor, store: Store, index: Index, num_neighbors: int = 0
) -> InterpolationWeights:
    """Loads the `InterpolationWeights` that were tuned last with this store, the same continuous cache, and
    `num_neighbors` unless it is 0.

    Args:
      source: Run whose weights were tuned.
      store: Store built from the same run.
      index: Index of the store.
      num_neighbors: Number of neighbours with which they were tuned. 0 = any number.

    Raises:
      ValueError: No weights were tuned under these conditions.
    """
    wanted = _tuning_conditions(source, index) | ({"neighbors": num_neighbors} if num_neighbors else {})
    matches = lambda conditions: all(conditions.get(name) == value for name, value in wanted.items())
    tunings = [about for about in _load_tunings(store) if matches(about["conditions"])]
    if not tunings:
        allowed = "given ones, or a store with which `memjax eval --datastore` has tuned them under the same settings"
        raise ValueError(f"datastore: no weight and temperature are known for {store.path}, allowed: {allowed}")
    return InterpolationWeights(**max(tunings, key=lambda about: about["seconds"])["mixing"])


def check_neighbors(entries: int, num_neighbors: int) -> None:
    """Raises an error if `num_neighbors` is below 1 or above `entries`, the number of entries of a store, before
    anything is read.

    Raises:
      ValueError: `num_neighbors` is below 1, or above the number of entries.
    """
    require(
        1 <= num_neighbors <= entries, "num_neighbors", num_neighbors, f"1 to {entries:,}, the entries of the store"
    )


def check_weight(weight: float) -> None:
    """Raises an error unless `weight`, the share of the neighbours in a mixture, is at least 0 and below 1, so that the
    model keeps some probability.

    Raises:
      ValueError: `weight` is not in [0, 1). With 1, a target that no neighbour has would have probability 0.
    """
    allowed = "0 to below 1: with 1, a target that no neighbour has would have no probability"
    require(0 <= weight < 1, "interpolation_weight", weight, allowed)


def open_exact_index(store: Store, backend: str = "") -> Index:
    """Opens an `Index` of a store that returns exact distances, also if its search is approximate. '' takes the backend
    of `choose_backend`.
    """
    backend = backend or choose_backend(store)
    return open_index(store, backend, exact_scores=backend in ("scann", "faiss"))


def _make_mixtures(source: KeyExtractor) -> tuple[Any, ...]:
    """Makes the output memories that the evaluation settings add to the model, such as a continuous cache."""
    config = source.run.experiment.config
    return make_mixtures(config.evaluation, config.model)


def _make_evaluator(source: KeyExtractor, split: str) -> Evaluator:
    """Makes the evaluator of a split, with the output memories of the evaluation settings."""
    return source.evaluator(split, *_make_mixtures(source))


def _rescore_subsets(
    evaluator: Evaluator, subsets: Mapping[str, Callable[..., np.ndarray]], targets: ScoredTargets, mixed: np.ndarray
) -> dict[str, Score]:
    """Scores subsets of the targets with other log-probabilities, reading the split again without a model."""
    nats, scores = np.zeros(int(targets.numbers.max(initial=-1)) + 1), dict.fromkeys(subsets, Score())
    nats[targets.numbers] = -mixed
    batches = evaluator.reading.batches(evaluator.documents) if subsets else ()
    for batch in itertools.islice(batches, evaluator.max_segments or None):
        is_scored = batch.weights > 0
        scored = BatchScore(nats[np.where(is_scored, batch.extras[NUMBER], targets.numbers[0])])
        for name, subset in subsets.items():
            scores[name] = scores[name].plus(scored.score(is_scored & subset(batch.extras), batch.extras))
    return scores


def _tuning_conditions(source: KeyExtractor, index: Index) -> dict[str, Any]:
    """Returns the conditions that tuned weights depend on besides the store and the tuning split, as JSON."""
    cache = source.run.experiment.config.evaluation.cache
    saved_cache = in_saved_names(config_to_dict(cache)) if cache.memory_length else {}
    saved_cache.pop("type", None)
    return {"cache": checksum(saved_cache)[:16], "index": type(index).__name__, "metric": index.metric}


def _describe_text_read(source: KeyExtractor, split: str) -> dict[str, Any]:
    """Returns which part of a split an evaluation reads, as JSON."""
    evaluation = source.run.experiment.config.evaluation
    text = str(source.run.experiment.documents(split).fingerprint)
    return {"split": split, "text": text, "rows": evaluation.batch_size, "max_segments": evaluation.max_segments}


def _load_tunings(store: Store) -> list[Mapping[str, Any]]:
    """Loads all weights that were tuned with a store, with their conditions."""
    return [open_artefact(store, name)[1] for name in artefact_names(store) if name.startswith(TUNED)]


def _load_tuned_weights(store: Store, conditions: Mapping[str, Any]) -> InterpolationWeights | None:
    """Loads the weights that were tuned under the same conditions. None where there are none."""
    for about in _load_tunings(store):
        if about["conditions"] == conditions:
            return InterpolationWeights(**about["mixing"])
    return None


def _save_tuned_weights(store: Store, mixing: InterpolationWeights, conditions: Mapping[str, Any]) -> None:
    """Saves tuned weights in the folder of a store. Does nothing where the folder is read-only."""
    about = {"mixing": dataclasses.asdict(mixing), "conditions": conditions, "seconds": time.time()}
    try:
        save_artefact(store, f"{TUNED}{checksum(conditions)[:8]}", about, lambda folder: None)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
