"""Memory tokens learn to carry a text: a decoder that sees nothing but them copies the text."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from memjax import config as configs
from memjax.models.encoder_decoder import EncoderDecoder
from memjax.training import load_run
from tests.learns.task import Task, train_run


class Cleared(EncoderDecoder):
    """A model whose decoder reads zeros in the place of a source."""

    def encode(self, *arguments: Any) -> Any:
        rows, mask, aux = super().encode(*arguments)
        return jnp.zeros_like(rows), mask, aux


class Shuffled(EncoderDecoder):
    """A model whose decoder reads the memory rows of another source."""

    def encode(self, *arguments: Any) -> Any:
        rows, mask, aux = super().encode(*arguments)
        return jnp.roll(rows, 1, axis=0), mask, aux


def copying(init_stddev: float | None = None) -> configs.Config:
    """Makes the configuration of a model that copies texts of eight letters, of sixteen different ones.

    The decoder reads nothing of a text but ten memory tokens.
    """
    tokens = configs.MemoryTokens(kind="bottleneck", decoder_reads="memory", init_stddev=init_stddev)
    sizes = {"dim": 64, "num_layers": 1, "num_heads": 4, "feed_forward": configs.Dense(dim=128)}
    return configs.Config(
        model=configs.EncoderDecoder(**sizes, memory_tokens=tokens, label_smoothing=0.0),
        data=configs.Data(source=configs.CopiedLetters(), tokenizer=configs.Bytes(), batch_size=32, segment_length=9),
        training=configs.Training(steps=400, schedule=configs.Schedule(learning_rate=3e-3, warmup_steps=50)),
        evaluation=configs.Evaluation(batch_size=32, compute_accuracy=True),
    )


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the accuracies on held-out texts of nine tokens, with the memory rows kept, cleared or shuffled.

    The end of a text is right without any memory.
    """
    accuracies = {}
    loaded = load_run(train_run(copying(), f"copying_{seed}", seed, workdir))
    model = loaded.experiment.model
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)} | {"parent": None}
    for state, kind in {"kept": EncoderDecoder, "cleared": Cleared, "shuffled": Shuffled}.items():
        changed = dataclasses.replace(loaded.experiment, model=kind(**fields))
        accuracies[state] = changed.evaluate(loaded.variables).accuracy
    return accuracies


# Tokens of `init_stddev=0.02` are faster here, 0.998, 0.998 and 0.999 of three seeds; after 800 updates both are at
# 1.000 (one seed).
TASK = Task(measure, "a text that passes through ten tokens; the end of a text is always right", chance=0.167)
