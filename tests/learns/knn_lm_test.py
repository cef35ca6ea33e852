"""A store around a small trained model gives what followed a rare word, which the model has not learned."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from memjax.config import Config
from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import evaluate_with_store, neighbors_in_store, open_searched
from memjax.retrieval.keys import make_key_source
from memjax.retrieval.tuning import score_mixture
from memjax.training import load_run, train
from tests.learns.harness import SEEDS, Learns, check
from tests.learns.rare_words import rare_words, write_texts

NEIGHBORS = 8


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Nats that the store saves on a token of the test split: `kept`, and `shuffled`, with neighbours of others."""
    config = rare_words(write_texts(workdir / "texts", seed), seed, "knn_lm")
    source = make_key_source(load_run(train(config, on_event=lambda event: None).path))
    store = build_datastore(source, workdir / "store")
    scored = evaluate_with_store(source, store, num_neighbors=NEIGHBORS)
    _, found = neighbors_in_store(source, store, open_searched(store), source.evaluator("test"), NEIGHBORS)
    others = dataclasses.replace(found.neighbors, values=np.roll(found.neighbors.values, 2, axis=0))
    shuffled, _ = score_mixture(found.targets, others, scored.mixing.weight, scored.mixing.temperature)
    alone, targets = scored.alone.nats, len(found.targets)
    gains = {"kept": alone - scored.result.nats, "shuffled": alone - shuffled.nats}
    return {name: gain / targets for name, gain in gains.items()} | {"alone": alone / targets}


# Measured, of 4.586, 4.598, 4.605 nats without the store (nothing is learned with it: that is the parent):
#   kept 0.849, 0.878, 0.880; shuffled -0.532, -0.619, -0.615
ROW = Learns(config=Config, parent=Config, at_least={"kept": 0.834}, at_most={"shuffled": -0.49})


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_followed_rare_words(seed, tmp_path):
    check(ROW, measure(seed, tmp_path))
