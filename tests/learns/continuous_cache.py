"""A continuous cache over a small trained model tells the word that followed a rare word earlier in its document."""

import dataclasses
from pathlib import Path

from memjax.config import ContinuousCache
from memjax.training import load_run, train
from tests.learns.rare_words import rare_words, write_texts
from tests.learns.task import STATES, Task

CACHE = ContinuousCache(memory_length=64)
"""A cache that holds more than a document. Its scale and its weight in the mixture are the defaults."""


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the nats that the cache saves on a token, for each state, and the nats of the model `alone`.

    The cache is `kept`, `cleared` before every segment, or `shuffled` between rows.
    """
    config = rare_words(write_texts(workdir / "texts", seed, different=8), seed, "cache")
    loaded = load_run(train(config, on_event=lambda event: None).path)

    def nats(**fields: object) -> float:
        result = loaded.experiment.evaluate(loaded.variables, dataclasses.replace(config.evaluation, **fields))
        return float(result.nats_per_token)

    alone = nats()
    return {state: alone - nats(cache=CACHE, memory_intervention=state) for state in STATES} | {"alone": alone}


# Nothing is learned with it: the model alone is the parent.
TASK = Task(measure, "what followed a rare word before, in the same document", "nats saved on a token", chance=0.0)
