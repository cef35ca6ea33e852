"""A store for a small trained model tells the word that followed a rare word, which the model has not learned."""

import dataclasses
from pathlib import Path

import numpy as np

from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import evaluate_with_store, neighbors_in_store, open_exact_index
from memjax.retrieval.keys import make_key_extractor
from memjax.retrieval.tuning import score_mixture
from memjax.training import load_run, train
from tests.learns.rare_words import rare_words, write_texts
from tests.learns.task import Task

NEIGHBORS = 8


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the nats that the store saves on a token of the test split, and the nats of the model `alone`.

    `kept` is with the token's own neighbours, `shuffled` with the neighbours of other tokens.
    """
    config = rare_words(write_texts(workdir / "texts", seed), seed, "knn_lm")
    source = make_key_extractor(load_run(train(config, on_event=lambda event: None).path))
    store = build_datastore(source, workdir / "store")
    scored = evaluate_with_store(source, store, num_neighbors=NEIGHBORS)
    _, retrieval = neighbors_in_store(source, store, open_exact_index(store), source.evaluator("test"), NEIGHBORS)
    others = dataclasses.replace(retrieval.neighbors, values=np.roll(retrieval.neighbors.values, 2, axis=0))
    shuffled, _ = score_mixture(retrieval.targets, others, scored.mixing.weight, scored.mixing.temperature)
    alone, targets = scored.without_store.nats, len(retrieval.targets)
    gains = {"kept": alone - scored.with_store.nats, "shuffled": alone - shuffled.nats}
    return {name: gain / targets for name, gain in gains.items()} | {"alone": alone / targets}


# Nothing is learned with it: the model alone is the parent.
TASK = Task(measure, "what followed a rare word in other documents", "nats saved on a token", chance=0.0)
