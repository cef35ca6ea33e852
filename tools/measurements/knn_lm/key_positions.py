"""Compares kNN-LM with six inner tensors of the model as keys.

    python -m tools.measurements.knn_lm.key_positions RUN --data.source.path DIR --evaluation.max-segments 10

The positions are those of the paper's table of key functions: input of the last layer's self-attention and of its
feed-forward part, before and after the norm, and the model's output before and after its last norm. One pass over a
text computes all six tensors. The keys stay in memory, as float32, and search is exact.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from memjax.data.annotations import NUMBER, AnnotatedDocuments
from memjax.data.documents import ArrayDocuments, Documents
from memjax.datastore.exact import ExactIndex
from memjax.memory.knn_lm import search_neighbors
from memjax.models.feature_taps import add_features, regroup_layers
from memjax.retrieval.interpolation import StoreNeighbors
from memjax.retrieval.tuning import CachedNeighbors, ScoredTargets
from memjax.training.loaded_runs import LoadedRun, load_run
from memjax.training.scores import BatchScore
from memjax.typing import Batch
from tools.measurements.knn_lm import experiment

POSITIONS = {
    "layer_-1/attention_input": "input of self-attention",
    "layer_-1/attention_input_normed": "input of self-attention after its norm",
    "layer_-1/feed_forward_input": "input of the feed-forward part",
    "layer_-1/feed_forward_input_normed": "input of the feed-forward part after its norm",
    "output": "output of the model",
    "output_normed": "output of the model after its norm",
}


QUERIES_AT_ONCE = 1024
TEMPERATURES = tuple(float(2**n) for n in range(-2, 15))
"""Temperatures to try. They reach higher than the default, because tensors before a norm have larger distances."""


def read(run: LoadedRun, documents: Documents, max_segments: int) -> tuple[ScoredTargets, dict[str, np.ndarray]]:
    """Scores every token of some documents, and returns it with the inner tensors it was predicted from.

    Args:
      run: Run whose evaluation reads the documents.
      documents: Documents in the tokens of the run.
      max_segments: Largest number of segments of every row. 0 = all.

    Returns:
      The targets, and position -> float32 `[targets, dim]`, both in the order in which they were read.
    """
    model = add_features(run.experiment.model, *POSITIONS)
    names = {tap: next(n for n in (*model.stack.features, *model.features) if _same(n, tap)) for tap in POSITIONS}
    parts: list[tuple[np.ndarray, ...]] = []

    def observe(batch: Batch, scored: BatchScore) -> None:
        chosen = batch.weights > 0
        arrays = (
            batch.extras[NUMBER],
            batch.targets,
            -scored.nats,
            *(scored.features[names[tap]] for tap in POSITIONS),
        )
        parts.append(tuple(array[chosen] for array in arrays))

    evaluator = run.experiment.evaluator(
        dataclasses.replace(run.experiment.config.evaluation, max_segments=max_segments),
        model=model,
        documents=AnnotatedDocuments(documents, numbers=True),
        feature_names=tuple(names.values()),
    )
    evaluator(regroup_layers(run.variables, run.experiment.model, model), observe=observe)
    numbers, tokens, log_probs, *tensors = (np.concatenate(part) for part in zip(*parts, strict=True))
    return ScoredTargets(numbers, tokens, log_probs), dict(zip(POSITIONS, tensors, strict=True))


def search(index: ExactIndex, values: np.ndarray, queries: np.ndarray) -> CachedNeighbors:
    """Searches the neighbours of all queries. `values` are the tokens of the entries."""
    parts = [
        search_neighbors(queries[i : i + QUERIES_AT_ONCE], index.search, values.__getitem__, experiment.NEIGHBORS)
        for i in range(0, len(queries), QUERIES_AT_ONCE)
    ]
    return CachedNeighbors(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def measure(run: LoadedRun, tokens: int) -> dict[str, Any]:
    """Searches and tunes every position, and returns all numbers of the table.

    Args:
      run: Loaded run.
      tokens: Number of tokens of the training split in the store.
    """
    documents, first = run.experiment.documents, run.experiment.config.evaluation.max_segments
    train = ArrayDocuments([experiment.all_tokens(documents("train"))[:tokens]])
    entries, keys = read(run, train, 0)
    splits = {split: read(run, documents(split), first) for split in experiment.SPLITS}
    rows, retrievals = [], {}
    for tap in POSITIONS:
        index = ExactIndex(keys[tap])
        retrievals = {
            s: StoreNeighbors(targets, search(index, entries.tokens, q[tap])) for s, (targets, q) in splits.items()
        }
        rows.append(
            {"key": tap, "label": POSITIONS[tap], **experiment.tuned(*retrievals.values(), temperatures=TEMPERATURES)}
        )
        print(rows[-1], file=sys.stderr, flush=True)
    evaluation, data = run.experiment.config.evaluation, run.experiment.config.data
    protocol = {
        "documents": evaluation.protocol or data.protocol,
        "segment_length": evaluation.segment_length or data.segment_length,
    }
    return {"entries": len(entries), **experiment.facts_of(retrievals, rows, protocol)}


def _same(name: str, tap: str) -> bool:
    """Whether a tensor's name in the model is that of a position, which counts layers from the last one."""
    return name.partition("/")[2] == tap.partition("/")[2] if "/" in tap else name == tap


def main() -> None:
    tokens = ("--tokens", {"type": int, "default": 250_000, "help": "of the training split, in the store"})
    options, config = experiment.parse("key_positions", __doc__, tokens)
    facts = measure(load_run(options.run, config), options.tokens)
    experiment.record(
        "key_positions",
        facts,
        "kNN-LM: positions of the keys",
        f"The first {facts['entries']:,} tokens of the training split as the store of each position, exact "
        f"search, {experiment.NEIGHBORS} neighbours; {experiment.protocol_text(facts, config)}",
    )


if __name__ == "__main__":
    main()
