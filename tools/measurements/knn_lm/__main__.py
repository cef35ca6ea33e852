"""Compares kNN-LM with its base model: one table of a trained run, tuned on validation, read off on test.

    memjax train --config knn_lm_wikitext --data.source.path DIR
    python -m tools.measurements.knn_lm RUN --data.source.path DIR

The store of the training split is built once, and an interrupted build goes on. The neighbours of validation and test
are searched once and stored. Everything else is arithmetic on them.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax.datastore.verification import measure_recall
from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import KeyExtractor
from tools.measurements.knn_lm import experiment

SWEEP = (1, 4, 16, 64, 256)


def measure(source: KeyExtractor, workdir: Path) -> dict[str, Any]:
    """Builds the store, searches the neighbours, tunes their weight, and returns all numbers of the table."""
    start = time.monotonic()
    store = build_datastore(source, workdir / "store")
    built = time.monotonic() - start
    start = time.monotonic()
    index = experiment.scann_index(store)
    indexed = time.monotonic() - start
    queries = np.concatenate([part.keys for part in itertools.islice(source.reader("validation"), 1)])[:500]
    recall = measure_recall(index, store, queries, 32)
    retrievals = {split: experiment.find(source, store, index, split, workdir) for split in experiment.SPLITS}
    rows = [
        {"neighbors": count, **experiment.tuned(*(retrieval.first(count) for retrieval in retrievals.values()))}
        for count in SWEEP
    ]
    return {
        "entries": store.entries,
        "recall@32": recall,
        "build_seconds": built,
        "index_seconds": indexed,
        "targets": {split: len(retrieval.targets) for split, retrieval in retrievals.items()},
        "base": experiment.base(retrievals),
        "knn_lm": rows,
        "protocol": source.protocol(),
        "devices": len(jax.devices()),
    }


def main() -> None:
    options, config = experiment.parse("", __doc__)
    facts = measure(experiment.open_source(options.run, config), options.workdir)
    targets, protocol = facts["targets"], facts["protocol"]
    experiment.record(
        "knn_lm",
        facts,
        f"kNN-LM: {Path(options.run).name}",
        f"Store of the training split, {facts['entries']:,} entries, key `{protocol['key']}`; ScaNN with exact "
        f"re-scoring, recall@32 of validation queries {facts['recall@32']:.3f}. Protocol: {protocol['documents']}, "
        f"segments of {protocol['segment_length']}; perplexity per token of {targets['validation']:,} validation and "
        f"{targets['test']:,} test tokens. Weight and temperature tuned on validation.",
    )


if __name__ == "__main__":
    main()
