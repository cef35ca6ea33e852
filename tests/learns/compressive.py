"""The Compressive Transformer learns to find what only its compressed memory still holds."""

from pathlib import Path

from memjax.config import Compressive, Config, Data, Evaluation, KeyValueRecall, Model, Schedule, Training
from tests.learns.task import Task, accuracies


def recall(compressed_memory_length: int) -> Config:
    """Makes the configuration of a small Compressive Transformer that recalls keys and values.

    Values are asked for 24 tokens after the last practice, where the only layer sees 16 that are not compressed.
    """
    sizes = {"memory_length": 8, "compressed_memory_length": compressed_memory_length, "compression_rate": 2}
    source = KeyValueRecall(num_pairs=4, num_keys=4, num_values=8, filler_length=24)
    evaluation = Evaluation(batch_size=32)
    without = Evaluation(
        name="not_compressed", batch_size=32, memory_intervention="cleared", intervention_path="compressed"
    )
    return Config(
        model=Model(dim=64, num_layers=1, num_heads=2, attention=Compressive(**sizes, norm="pre")),
        data=Data(source=source, batch_size=32, segment_length=8),
        training=Training(steps=2000, schedule=Schedule(learning_rate=4e-3, warmup_steps=50)),
        evaluation=evaluation,
        evaluations=(without,) if compressed_memory_length else (),
    )


def measure(seed: int, workdir: Path) -> dict[str, float]:
    """Returns the accuracies of a model with a compressed memory and of its parent without. See `accuracies`."""
    return accuracies(seed, workdir, memory=recall(16), parent=recall(0))


# The seeds differ by how far they have come, from 0.30 to 0.69, and by the processor. After 1,300 updates two of six
# were below 0.27. On another processor seed 0 then had 0.509, and 0.135 with `loss_weight=0`, so that the compression
# stays as it began.
TASK = Task(measure, "keys and values that only compressed slots still hold")
