"""Measurements of runs that adapt before an answer: their configurations fit the settings of today."""

import numpy as np
import pytest

from memjax.lifelong import train
from memjax.settings.overrides import load_config
from tools.measurements import episodes, neighbor_tasks


def test_a_search_and_its_steps_are_replaced(tmp_path):
    config = episodes.config_of(tmp_path, [tmp_path / "task_0", tmp_path / "task_1"])
    method = episodes.with_index(config, "scann", 3).lifelong.method
    assert (method.memory.key_search, method.adaptation_steps) == ("scann", 3)
    assert method.memory.capacity == config.lifelong.method.memory.capacity
    assert config.lifelong.method.memory.key_search == "exact"


@pytest.mark.laws
def test_shares_of_neighbors_are_those_of_each_tasks_test_texts(tmp_path):
    config = load_config("lifelong_text", "smoke")
    config.workdir = str(tmp_path)
    facts = neighbor_tasks.measure(train(config, on_event=lambda event: None).path)
    assert facts["tasks"] == [task.name for task in config.lifelong.ordered_tasks]
    np.testing.assert_allclose(np.sum(facts["shares"], axis=1), 1)
    assert 0 < facts["used"] <= config.lifelong.method.memory.capacity
