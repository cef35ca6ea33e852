"""Small tasks beside TF-IDF: the table of the records, and the configurations."""

import dataclasses
from typing import Any

import pytest

from memjax.config import Replay, TextClasses, TokenBag
from tools.measurements import few_texts
from tools.results import streams
from tools.results.ledger import Measurement


def record(row, draw, final, **more):
    return {"row": row, "draw": draw, "final": dict(zip("ab", final, strict=True)), "stored": 9, "seconds": 2.0} | more


def configs_of(variant, folder, *draws) -> list[Any]:
    return [few_texts.config_of(variant, folder, draw, folder) for draw in draws]


def test_rows_stand_beside_the_first_draw_by_draw():
    records = [record("TF-IDF, words", draw, (0.5 + 0.01 * draw, 0.5), cpu_seconds=1.0) for draw in range(3)]
    learned = {"learned": {"a": 0.75, "b": 0.25}, "cpu_seconds": 3.0}
    records += [record("bag", draw, (0.6 + 0.011 * draw, 0.6), **learned) for draw in range(3)]
    facts = {"tasks": ["a", "b"], "records": records}
    shown = streams.few_texts(Measurement("few_texts", "five", "", "", "", "", "", facts))
    assert "| TF-IDF, words | 3 | 9 | 51.0 | 50.0 | 50.5 (50.0 to 51.0) | 2 | 1 |" in shown
    assert "| bag | 75.0 | 25.0 | 50.0 |" in shown
    assert "| bag | TF-IDF, words | +10.05 ± 0.03 | 3 draws |  | not searched |" in shown


@pytest.mark.parametrize("variant", few_texts.STREAMS)
def test_a_draw_has_texts_and_an_order_of_its_own(variant, tmp_path):
    first, second = configs_of(variant, tmp_path, 0, 1)
    assert [task.name for task in first.lifelong.tasks] != [task.name for task in second.lifelong.tasks]
    seeds = [{task.source.sampling_seed for task in config.lifelong.tasks} for config in (first, second)]
    assert seeds == [{0}, {1}] and first.lifelong.vocabulary == "tasks"
    assert all(isinstance(task.source, TextClasses) and task.source.num_train == 500 for task in first.lifelong.tasks)


@pytest.mark.parametrize(("variant", "stored"), [("bag_mixed", 10_000), ("bag_tenth", 250)])
def test_replayed_rows_are_summed_as_new_ones_are(variant, stored, tmp_path):
    (config,) = configs_of(variant, tmp_path, 0)
    method = config.lifelong.method
    assert isinstance(method, Replay) and method.memory.capacity == stored
    assert isinstance(config.model, TokenBag) and config.model.weighs_errors
    assert config.training.schedule.learning_rate == config.data.batch_size + method.replay_batch_size
    assert dataclasses.replace(config.model, weighs_errors=False) == TokenBag()
