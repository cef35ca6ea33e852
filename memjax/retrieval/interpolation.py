"""kNN-LM around a trained run: a store's neighbours mixed in where a split is scored, tuned on another split.

    source = make_key_source(load_run(run))
    scored = evaluate_with_store(source, build_datastore(source, path), "test")
    scored.alone.perplexity, scored.result.perplexity, scored.mixing

A store holds texts that have been read: one that holds the split to be scored, or the one to tune on, is refused.
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
from memjax.datastore.files import checksum
from memjax.datastore.index import Index
from memjax.datastore.opening import choose_backend, open_index
from memjax.datastore.store import Store
from memjax.inference.decoding import Recall
from memjax.memory.knn_lm import KNNMemory
from memjax.models.factory import make_mixtures
from memjax.models.features import add_mixtures, regroup
from memjax.retrieval.building import check_store, check_unread
from memjax.retrieval.generation import knn_recall
from memjax.retrieval.keys import KeySource
from memjax.retrieval.tuning import (
    TEMPERATURES,
    WEIGHTS,
    CachedNeighbors,
    Targets,
    find_neighbors,
    score_mixture,
    tune,
)
from memjax.settings.relations import require
from memjax.training.evaluation import EvaluationResult, Evaluator, Score, Scored

__all__ = ["Found", "Mixing", "WithStore", "add_store", "evaluate_with_store", "kept_mixing", "neighbors_in_store"]

NEIGHBORS = 32
"""of each token"""
TUNED = "tuning_"
"""beginning of the names of what is kept beside a store"""


@dataclasses.dataclass(frozen=True)
class Mixing:
    """How neighbours are mixed with a model.

    Attributes:
      weight: share of the neighbours, 0 to 1.
      temperature: of distances, above 0.
      neighbors: of each token.
      tuned_on: the split where weight and temperature were best; '' = both were given.
    """

    weight: float
    temperature: float
    neighbors: int = NEIGHBORS
    tuned_on: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """Scored tokens of a split with their neighbours.

    Attributes:
      targets: with what the model alone, or with a cache over it, says of them.
      neighbors: theirs.
    """

    targets: Targets
    neighbors: CachedNeighbors

    def first(self, count: int) -> Found:
        """With fewer neighbours."""
        return Found(self.targets, self.neighbors.first(count))


@dataclasses.dataclass(frozen=True)
class WithStore:
    """The scores of a split with a store and without it.

    Attributes:
      result: of the model with the neighbours.
      alone: of the same model without them.
      mixing: how they were mixed.
    """

    result: EvaluationResult
    alone: EvaluationResult
    mixing: Mixing


def evaluate_with_store(
    source: KeySource,
    store: Store,
    split: str = "",
    *,
    index: Index | None = None,
    num_neighbors: int = NEIGHBORS,
    weights: Sequence[float] = WEIGHTS,
    temperatures: Sequence[float] = TEMPERATURES,
    tune_on: str = "validation",
) -> WithStore:
    """Scores a split as the run's evaluation reads it, with the neighbours of a store and without them.

    With a continuous cache in `config.evaluation`, model and cache are mixed first, and both together with the
    neighbours. Where there is more than one weight or temperature, those that are best on `tune_on` are taken; they are
    kept beside the store, and not looked for again under the same conditions.

    Args:
      source: the run; its key is the store's.
      store: of the same run.
      split: of the run's data; '' = that of `config.evaluation`.
      index: of the store; None = as `choose_backend` says.
      num_neighbors: of each token.
      weights: shares of the neighbours that are tried; one = given.
      temperatures: of distances, that are tried; one = given.
      tune_on: the split where they are tried.

    Returns:
      The scores with and without neighbours; accuracy is not counted with them.

    Raises:
      ValueError: a store of another run, tokenizer or protocol, or one that holds a split that is scored.
    """
    split = split or source.run.experiment.config.evaluation.split
    for weight in weights:
        check_weight(weight)
    given = len(weights) == len(temperatures) == 1
    check_store(source, store)
    for one in (split,) if given else (split, tune_on):
        check_unread(source, store, one)
    check_neighbors(store.entries, num_neighbors)
    index = open_searched(store) if index is None else index
    grid = {"neighbors": num_neighbors, "weights": list(weights), "temperatures": list(temperatures)}
    conditions = {**_conditions(source, index), **_read(source, tune_on), **grid}
    mixing = Mixing(weights[0], temperatures[0], num_neighbors) if given else _kept(store, conditions)
    evaluator = _evaluator(source, split)
    alone, found = neighbors_in_store(source, store, index, evaluator, num_neighbors)
    if mixing is None:
        there = found
        if tune_on != split:
            other = _evaluator(source, tune_on)
            other.share(evaluator)
            there = neighbors_in_store(source, store, index, other, num_neighbors)[1]
        best = tune(there.targets, there.neighbors, weights=weights, temperatures=temperatures)
        mixing = Mixing(best.interpolation_weight, best.temperature, num_neighbors, tune_on)
        _keep(store, mixing, conditions)
    score, mixed = score_mixture(found.targets, found.neighbors, mixing.weight, mixing.temperature)
    chosen = dataclasses.replace(source.run.experiment.config.evaluation, split=split)
    subsets = _rescored(evaluator, source.run.experiment.subsets(chosen), found.targets, mixed)
    total = dataclasses.replace(score, bytes=alone.bytes)
    return WithStore(dataclasses.replace(alone, **vars(total), subsets=subsets), alone, mixing)


def neighbors_in_store(
    source: KeySource, store: Store, index: Index, evaluator: Evaluator, num_neighbors: int
) -> tuple[EvaluationResult, Found]:
    """What an evaluation of a run says without neighbours, its targets, and their neighbours.

    Args:
      source: the run.
      store: searched in.
      index: of the store.
      evaluator: of the source (`KeySource.evaluator`).
      num_neighbors: of each token.
    """
    arguments = evaluator, source.variables, index.search, store.values, num_neighbors
    result, targets, neighbors = find_neighbors(*arguments, feature=source.feature, metric=index.metric)
    return result, Found(targets, neighbors)


def add_store(
    source: KeySource, store: Store, mixing: Mixing, *, index: Index | None = None
) -> tuple[Any, dict[str, Any], Recall]:
    """A run that searches a store before every token that it generates.

    Args:
      source: the run; its key is the store's.
      store: of the same run; it may hold anything.
      mixing: of the neighbours with the model, and the cache of `config.evaluation` where there is one.
      index: of the store; None = as `choose_backend` says.

    Returns:
      The model, its variables, and the `recall` of `stream_tokens`.

    Raises:
      ValueError: a store of another run, tokenizer or protocol.
    """
    check_store(source, store)
    check_neighbors(store.entries, mixing.neighbors)
    index = open_searched(store) if index is None else index
    knn = KNNMemory(
        num_neighbors=mixing.neighbors,
        interpolation_weight=mixing.weight,
        temperature=mixing.temperature,
        feature=source.tap,
    )
    model = add_mixtures(source.model, *_mixtures(source), knn)
    variables = regroup(source.variables, source.model, model)
    return model, variables, knn_recall(model, index.search, store.values, metric=index.metric)


def kept_mixing(source: KeySource, store: Store, index: Index, num_neighbors: int = 0) -> Mixing:
    """The weight and temperature that an evaluation with this store, and the same cache, has found last.

    Args:
      source: the run.
      store: of the same run.
      index: of the store.
      num_neighbors: with which they were found; 0 = any.

    Raises:
      ValueError: there was none.
    """
    wanted = _conditions(source, index) | ({"neighbors": num_neighbors} if num_neighbors else {})
    matches = lambda conditions: all(conditions.get(name) == value for name, value in wanted.items())
    found = [about for about in _all_kept(store) if matches(about["conditions"])]
    if not found:
        allowed = "given ones, or a store with which `memjax eval --datastore` has tuned them under the same settings"
        raise ValueError(f"datastore: no weight and temperature are known for {store.path}, allowed: {allowed}")
    return Mixing(**max(found, key=lambda about: about["seconds"])["mixing"])


def check_neighbors(entries: int, num_neighbors: int) -> None:
    """Refuses more neighbours than a store has entries, before anything is read.

    Raises:
      ValueError: fewer than 1, or more than there are entries.
    """
    require(
        1 <= num_neighbors <= entries, "num_neighbors", num_neighbors, f"1 to {entries:,}, the entries of the store"
    )


def check_weight(weight: float) -> None:
    """Refuses a share of the neighbours that leaves nothing to the model where targets are scored.

    Raises:
      ValueError: it is not in [0, 1): with 1, a target that no neighbour has would have no probability at all.
    """
    allowed = "0 to below 1: with 1, a target that no neighbour has would have no probability"
    require(0 <= weight < 1, "interpolation_weight", weight, allowed)


def open_searched(store: Store, backend: str = "") -> Index:
    """An index whose distances are exact, as `choose_backend` says where none is named."""
    backend = backend or choose_backend(store)
    return open_index(store, backend, exact_scores=backend in ("scann", "faiss"))


def _mixtures(source: KeySource) -> tuple[Any, ...]:
    config = source.run.experiment.config
    return make_mixtures(config.evaluation, config.model)


def _evaluator(source: KeySource, split: str) -> Evaluator:
    return source.evaluator(split, *_mixtures(source))


def _rescored(
    evaluator: Evaluator, subsets: Mapping[str, Callable[..., np.ndarray]], targets: Targets, mixed: np.ndarray
) -> dict[str, Score]:
    """The scores of subsets of the targets with other log-probabilities; the split is read again, by no model."""
    nats, found = np.zeros(int(targets.numbers.max(initial=-1)) + 1), dict.fromkeys(subsets, Score())
    nats[targets.numbers] = -mixed
    batches = evaluator.reading.batches(evaluator.documents) if subsets else ()
    for batch in itertools.islice(batches, evaluator.max_segments or None):
        where = batch.weights > 0
        scored = Scored(nats[np.where(where, batch.extras[NUMBER], targets.numbers[0])])
        for name, subset in subsets.items():
            found[name] = found[name].plus(scored.score(where & subset(batch.extras), batch.extras))
    return found


def _conditions(source: KeySource, index: Index) -> dict[str, Any]:
    """What a mixing depends on beside the store, as JSON, whatever it was tuned on."""
    cache = source.run.experiment.config.evaluation.cache
    laid_over = dataclasses.asdict(cache) if cache.memory_length else {}
    return {"cache": checksum(laid_over)[:16], "index": type(index).__name__, "metric": index.metric}


def _read(source: KeySource, split: str) -> dict[str, Any]:
    """What of a split an evaluation reads, as JSON."""
    evaluation = source.run.experiment.config.evaluation
    text = str(source.run.experiment.documents(split).fingerprint)
    return {"split": split, "text": text, "rows": evaluation.rows, "max_segments": evaluation.max_segments}


def _all_kept(store: Store) -> list[Mapping[str, Any]]:
    return [open_artefact(store, name)[1] for name in artefact_names(store) if name.startswith(TUNED)]


def _kept(store: Store, conditions: Mapping[str, Any]) -> Mixing | None:
    """What was found under the same conditions."""
    for about in _all_kept(store):
        if about["conditions"] == conditions:
            return Mixing(**about["mixing"])
    return None


def _keep(store: Store, mixing: Mixing, conditions: Mapping[str, Any]) -> None:
    """Writes it beside the store; one that may not be written to is left as it is."""
    about = {"mixing": dataclasses.asdict(mixing), "conditions": conditions, "seconds": time.time()}
    try:
        save_artefact(store, f"{TUNED}{checksum(conditions)[:8]}", about, lambda folder: None)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
