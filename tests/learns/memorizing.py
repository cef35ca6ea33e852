"""The Memorizing Transformer learns to retrieve what its local cache no longer holds."""

from pathlib import Path

from memjax.config import Config, Data, Evaluation, KeyValueRecall, Memorizing, Model, Schedule, Training
from tests.learns.task import Task, accuracies


def recall(memory_length: int) -> Config:
    """Makes the configuration of a small Memorizing Transformer that recalls keys and values.

    Values are asked for 24 tokens after the last practice, where the only layer sees 16 of them without memory.
    """
    attention = Memorizing(layers_with_memory=(0,), memory_length=memory_length, num_neighbors=4, cache_length=8)
    source = KeyValueRecall(num_pairs=4, num_keys=4, num_values=8, filler_length=24)
    return Config(
        model=Model(dim=64, num_layers=1, num_heads=2, attention=attention),
        data=Data(source=source, batch_size=32, segment_length=8),
        training=Training(steps=250, schedule=Schedule(learning_rate=4e-3, warmup_steps=50)),
        evaluation=Evaluation(batch_size=32),
    )


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the accuracies of a model with a memory and of its parent without. See `accuracies`."""
    return accuracies(seed, workdir, memory=recall(64), parent=recall(0))


TASK = Task(measure, "keys and values beyond the reach of the local cache")
