"""Adapters in runs over tasks."""

import jax
import numpy as np
import pytest

from memjax.config import EWC, Adam, LoRA, MbPA, Replay, Sequential
from memjax.lifelong import train
from memjax.models.adapters import is_trained_with_adapters
from memjax.training.named_arrays import flatten
from tests.lifelong.questions_test import tiny


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Sequential(), EWC(), Replay(), MbPA(key_source="first")], ids=lambda method: type(method).__name__
)
def test_methods_train_adapters_and_the_head_alone(method, tmp_path):
    config = tiny(tmp_path, method)
    config.training.lora, config.training.optimizer = LoRA(rank=2), Adam(weight_decay=0.5)
    seen = []
    keep = lambda info: seen.append(jax.device_get(flatten(info.state.params)))
    train(config, hooks=[keep], on_event=lambda event: None)
    first, last = seen[0], seen[-1]
    changed = {name for name in last if not np.array_equal(last[name], first[name])}
    assert changed == {name for name in last if is_trained_with_adapters(name, config.training.lora)} != set()
