"""Transformer-XL learns to find keys and values of earlier segments."""

from pathlib import Path

from memjax.config import Config, Data, Evaluation, KeyValueRecall, Model, Schedule, Training, TransformerXL
from tests.learns.task import Task, accuracies


def recall(memory_length: int) -> Config:
    """Makes the configuration of a small Transformer-XL that recalls keys and values.

    They stand three segments or more before the question, and half of the practice crosses a border of segments.
    """
    attention = TransformerXL(memory_length=memory_length, norm="pre")
    source = KeyValueRecall(num_pairs=4, num_keys=4, num_values=8, filler_length=24)
    return Config(
        model=Model(dim=64, num_layers=1, num_heads=2, attention=attention),
        data=Data(source=source, batch_size=32, segment_length=8),
        training=Training(steps=1300, schedule=Schedule(learning_rate=4e-3, warmup_steps=50)),
        evaluation=Evaluation(batch_size=32),
    )


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the accuracies of a model with a memory and of its parent without. See `accuracies`."""
    return accuracies(seed, workdir, memory=recall(48), parent=recall(0))


TASK = Task(measure, "keys and values of three segments before and more")
