"""Compares the continuous cache and kNN-LM over one model: alone and together, tuned on validation, read off on test.

    python -m tools.measurements.knn_lm.both RUN --data.source.path DIR

The model is interpolated with the cache, and the result with the neighbours (`memjax.memory.next_token_candidates`).
One evaluation with both memories laid over the model computes the number on test once more, from cached neighbours.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn

from memjax.config import ContinuousCache
from memjax.data.annotations import AnnotatedDocuments
from memjax.memory.knn_lm import KNNMemory
from memjax.models.factory import make_mixtures
from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import StoreNeighbors
from memjax.retrieval.keys import KeyExtractor
from memjax.retrieval.tuning import (
    WEIGHTS,
    mixture_nats,
    score_mixture,
    score_targets,
    tune_with_memory,
)
from tools.measurements.knn_lm import experiment
from tools.results.tables import perplexity

CACHE = ContinuousCache(memory_length=2000, similarity="cosine", similarity_scale=20.0)
"""Settings of the cache that the measurement `continuous_cache` found best on validation."""


def evaluate_in_one_pass(
    source: KeyExtractor, retrieval: StoreNeighbors, split: str, cache: ContinuousCache, row: dict[str, float]
) -> float:
    """Evaluates the model with both memories laid over it, and returns the nats per token.

    Args:
      source: Run that reads the split.
      retrieval: Neighbours of the split.
      split: Split of the run's data.
      cache: Settings of the cache.
      row: Weight of the cache, and weight and temperature of the neighbours.
    """
    documents = source.run.experiment.documents(split)
    tokens = len(experiment.all_tokens(documents))
    annotations = retrieval.neighbors.annotations(retrieval.targets.numbers, tokens)
    evaluator = source.evaluator(
        split,
        make_cache(source, dataclasses.replace(cache, interpolation_weight=row["cache_weight"])),
        KNNMemory(interpolation_weight=row["weight"], temperature=row["temperature"]),
        documents=AnnotatedDocuments(documents, annotations, numbers=True),
    )
    result = evaluator(source.variables)
    return result.nats / result.targets


def make_cache(source: KeyExtractor, cache: ContinuousCache) -> nn.Module:
    """Makes the memory of a continuous cache for the model of a source."""
    config = source.run.experiment.config
    (memory,) = make_mixtures(dataclasses.replace(config.evaluation, cache=cache), config.model)
    return memory


def measure(source: KeyExtractor, workdir: Path, cache: ContinuousCache) -> dict[str, Any]:
    """Scores and tunes both memories, alone and together, and returns all numbers of the table."""
    store = build_datastore(source, workdir / "store")
    index = experiment.scann_index(store)
    retrievals = {split: experiment.find(source, store, index, split, workdir) for split in experiment.SPLITS}
    base, alone = experiment.base(retrievals), experiment.tuned(*retrievals.values())
    with_cache = {}
    for split, retrieval in retrievals.items():
        evaluator = source.evaluator(split, make_cache(source, cache))
        targets = score_targets(evaluator, source.variables)[1]
        if (targets.numbers != retrieval.targets.numbers).any():
            raise ValueError(f"{split}: neighbours are of other targets than were scored; delete them")
        with_cache[split] = StoreNeighbors(targets, retrieval.neighbors)

    parts = with_cache["validation"].targets.parts
    nats = mixture_nats(parts[0], parts[1:], WEIGHTS)[0] / parts.shape[1]
    cache_row = {"cache_weight": WEIGHTS[int(nats.argmin())], "validation": float(nats.min())}
    test = with_cache["test"]
    cache_row["test"] = -float(test.targets.mixed(cache_row["cache_weight"]).log_probs.mean())
    weight, best = tune_with_memory(with_cache["validation"].targets, with_cache["validation"].neighbors)
    row = {"validation": float(best.nats_per_token.min()), "cache_weight": weight}
    row |= {"weight": best.interpolation_weight, "temperature": best.temperature}
    mixed = test.targets.mixed(weight)
    score, _ = score_mixture(mixed, test.neighbors, row["weight"], row["temperature"])
    row["test"] = score.nats / score.targets
    row["test_in_one_pass"] = evaluate_in_one_pass(source, retrievals["test"], "test", cache, row)
    return {
        "entries": store.entries,
        "targets": {split: len(retrieval.targets) for split, retrieval in retrievals.items()},
        "cache": dataclasses.asdict(cache),
        "rows": {"base": base, "cache": cache_row, "knn_lm": alone, "both": row},
        "protocol": source.protocol(),
    }


def main() -> None:
    options, config = experiment.parse("both", __doc__)
    facts = measure(experiment.open_source(options.run, config), options.workdir, CACHE)
    rows, targets, protocol = facts["rows"], facts["targets"], facts["protocol"]
    experiment.record(
        "both",
        facts,
        f"Continuous cache and kNN-LM together: {Path(options.run).name}",
        f"Cache of the last {CACHE.memory_length:,} tokens of each row, {CACHE.similarity}, scale "
        f"{CACHE.similarity_scale:g}, "
        f"never cleared; {experiment.NEIGHBORS} neighbours from the store of the training split, {facts['entries']:,} "
        f"entries, ScaNN with exact re-scoring. Protocol: {protocol['documents']}, {config.evaluation.batch_size} "
        f"rows, "
        f"segments of {protocol['segment_length']}; {targets['validation']:,} validation and {targets['test']:,} test "
        "tokens. The model and the cache are interpolated, then the neighbours with both; all weights and the "
        "temperature tuned on validation (steps of 0.05, powers of 2), test read off once. One evaluation of the test "
        f"split with both memories laid over the model gives {perplexity(rows['both']['test_in_one_pass'])}.",
    )


if __name__ == "__main__":
    main()
