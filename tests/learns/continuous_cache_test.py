"""A continuous cache over a small trained model gives what followed a rare word where its document had it before."""

import dataclasses
from pathlib import Path

import pytest

from memjax.config import Config, ContinuousCache
from memjax.training import load_run, train
from tests.learns.harness import SEEDS, STATES, Learns, check
from tests.learns.rare_words import rare_words, write_texts

CACHE = ContinuousCache(memory_length=64)
"""more than a document; its scale and its share of the mixture are the defaults"""


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Nats that the cache saves on a token: `kept`, `cleared` before every segment, `shuffled` between rows."""
    config = rare_words(write_texts(workdir / "texts", seed, different=8), seed, "cache")
    loaded = load_run(train(config, on_event=lambda event: None).path)

    def nats(**fields: object) -> float:
        found = loaded.experiment.evaluate(loaded.variables, dataclasses.replace(config.evaluation, **fields))
        return float(found.nats_per_token)

    alone = nats()
    return {state: alone - nats(cache=CACHE, memory_state=state) for state in STATES} | {"alone": alone}


# Measured, of 4.601, 4.594, 4.677 nats without the cache (nothing is learned with it: that is the parent):
#   kept 0.407, 0.427, 0.495; cleared 0.069, 0.052, 0.095; shuffled 0.074, 0.042, 0.108
ROW = Learns(config=Config, parent=Config, at_least={"kept": 0.352}, at_most={"cleared": 0.116, "shuffled": 0.141})


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_followed_in_the_same_document(seed, tmp_path):
    check(ROW, measure(seed, tmp_path))
