"""Every method of lifelong learning on adapters: what it trains, what it stores, and what it refuses."""

import dataclasses

import numpy as np
import pytest

from memjax.config import (
    Adam,
    Bidirectional,
    Classification,
    Config,
    Data,
    Dense,
    Evaluation,
    Lifelong,
    LoRA,
    Model,
    Schedule,
    TaskData,
    Templates,
    Training,
    WordPiece,
)
from memjax.models.adapters import is_adapter, is_earlier_adapter, is_trained_with_adapters
from memjax.models.gate import GATE_ENCODER
from memjax.settings.checks import validate
from memjax.settings.named_methods import METHODS, with_method
from memjax.training.named_arrays import flatten
from tests.lifelong.learner_cases import CASE, config_of, play

GROWS, EPISODIC = ("elle", "progressive"), ("oml", "anml", "maml")
LORA = {"rank": 2, "layers": (-1,)}


def adapted(name: str) -> Config:
    """Two tasks of short sentences, and a text encoder of two layers with adapters in the last one."""
    training = Training(
        lora=LoRA(**LORA),
        optimizer=Adam(weight_decay=0.5),
        schedule=Schedule(learning_rate=1e-2, warmup_steps=0, decay="constant"),
        log_every=0,
    )
    if name == "lamol":
        config = config_of(CASE["lamol"].method, tasks=2)
        config.training = dataclasses.replace(training, schedule=config.training.schedule)
        return config
    tasks = tuple(
        TaskData(name=f"task {number}", source=Templates(num_examples=16 + 4 * number)) for number in range(2)
    )
    config = Config(
        model=Model(
            dim=8, num_layers=2, num_heads=2, attention=Bidirectional(num_positions=24), feed_forward=Dense(dim=16)
        ),
        task=Classification(num_classes=8),
        data=Data(source=tasks[0].source, tokenizer=WordPiece(vocab_size=200), batch_size=4, segment_length=24),
        training=training,
        evaluation=Evaluation(batch_size=2, split="test", max_segments=1),
        lifelong=Lifelong(tasks=tasks, epochs=1),
    )
    config = with_method(config, name)
    if name in EPISODIC:  # few examples fill no longer episode
        config.lifelong.method.inner_steps = 1
    return config


@pytest.mark.laws
@pytest.mark.parametrize("name", [name for name in METHODS if name not in GROWS])
def test_a_method_trains_and_stores_the_adapters_and_the_head_alone(name):
    config = adapted(name)
    validate(config)
    played = play(config)
    lora, start, end = config.training.lora, flatten(played.begun[0].params), flatten(played.state.params)
    changed = {path for path in end if not np.array_equal(start[path], end[path]) and not is_earlier_adapter(path)}
    trained = {path for path in end if is_trained_with_adapters(path, lora)}
    # The encoder of ANML's gate is frozen with its adapters.
    assert changed == {path for path in trained if not path.startswith(GATE_ENCODER)} != set()
    assert all(np.isfinite(leaf).all() for leaf in end.values())
    stored = [path for path in flatten(played.state.method) if "stack/" in path or "vocabulary/" in path]
    assert all(map(is_adapter, stored))
    if played.learner.adapt_rows is not None:
        copied = flatten(played.learner.adapt_rows.copied(played.state.params))
        assert 0 < sum(leaf.size for leaf in copied.values()) < sum(end[path].size for path in changed) + 1


@pytest.mark.parametrize("name", GROWS)
def test_methods_whose_model_grows_are_refused_in_one_line(name):
    config = adapted(name)
    with pytest.raises(ValueError, match=r"training.lora.rank: given 2, allowed: 0 with [^\n]+$"):
        validate(config)
