"""Transformer-XL learns to find what segments before have said."""

import pytest

from memjax.config import Config, Data, Evaluation, KeyValueRecall, Model, Schedule, Training, TransformerXL
from tests.learns.harness import SEEDS, Learns, check, measure


def recall(memory_length: int) -> Config:
    """Keys and values stand three segments or more before the question, and half of the practice crosses a border."""
    attention = TransformerXL(memory_length=memory_length, norm="pre")
    source = KeyValueRecall(num_pairs=4, num_keys=4, num_values=8, filler_length=24)
    return Config(
        model=Model(dim=64, num_layers=1, num_heads=2, attention=attention),
        data=Data(source=source, rows=32, segment_length=8),
        training=Training(steps=1300, schedule=Schedule(learning_rate=4e-3, warmup_steps=50)),
        evaluation=Evaluation(rows=32),
    )


# Measured, chance is 0.125:
#   kept 1.000, 1.000, 0.843; cleared 0.130, 0.128, 0.114; shuffled 0.123, 0.123, 0.130; parent 0.135, 0.129, 0.124
ROW = Learns(
    config=lambda: recall(48),
    parent=lambda: recall(0),
    at_least={"kept": 0.766},
    at_most={"cleared": 0.15, "shuffled": 0.15, "parent": 0.15},
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_recall_over_segments(seed, tmp_path):
    check(ROW, measure(ROW, seed, tmp_path))
