"""The tables of product keys in text encoders."""

import json

import numpy as np
import pytest

from memjax.config import Classification, ProductKey
from memjax.overrides import apply_overrides, load_config
from memjax.settings.relations import validate
from memjax.training.experiment import make_experiment
from tests.training.tasks_test import make_config, save_run
from tools.results.bert import fine_tuning, pretraining
from tools.results.runs import Run, measured, train, usage


def commands():
    return {**pretraining.runs(500), **fine_tuning.runs(fine_tuning.Path("runs"))}


@pytest.mark.parametrize("name", commands())
def test_commands_are_valid_and_begin_with_a_run_that_exists(name, monkeypatch):
    run = commands()[name]
    given = dict(zip(run.arguments[::2], run.arguments[1::2], strict=False))
    config = load_config(given["--config"], given["--variant"])
    config = apply_overrides(config, [*run.arguments[4:], "--training.init-from", run.after], prog="memjax train")
    validate(config)
    assert run.after in ("", fine_tuning.IMPORTED, *commands())
    part = config.model.feed_forward
    is_memory = isinstance(part, ProductKey)
    assert is_memory == ("resm" in name or "pkm" in name)
    if isinstance(part, ProductKey):  # what begins anew, or stays as it is, is in these layers
        layers = tuple(int(part.split("_")[1][:2]) for part in config.training.reinitialized)
        assert set(layers) in (set(), set(part.layers))


def test_a_finished_run_is_not_trained_again_and_what_was_measured_is_kept(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "finished.json").write_text("{}")
    kept = []
    monkeypatch.setattr("tools.results.records.keep_log", lambda directory, log: kept.append(log))
    assert train("bert", {"one": Run("row", ())}, "one", tmp_path) == tmp_path / "one" and kept == ["bert/one"]
    assert train("bert", {}, "imported", tmp_path) == tmp_path / "imported"
    assert [measured(tmp_path / "one", lambda answer=answer: {"answer": answer}) for answer in (1, 2)] == [
        {"answer": 1}
    ] * 2
    monkeypatch.delenv("MEMJAX_NOTHING", raising=False)
    with pytest.raises(SystemExit, match="MEMJAX_NOTHING: not set"):
        train("bert", {"two": Run("row", ("$MEMJAX_NOTHING",))}, "two", tmp_path)


def test_the_table_of_masked_tokens(tmp_path):
    lines = [
        {"step": 250, "kind": "train", "layer_01/top_usage": 0.25, "layer_02/top_usage": 0.75},
        {"step": 250, "kind": "evaluation", "perplexity": 30.0},
        {"step": 300, "kind": "evaluation", "perplexity": 20.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    points = pretraining.curve(tmp_path)
    assert points == [{"step": 250, "perplexity": 30.0, "top_usage": 0.5}]
    score = {"perplexity": 12.5, "accuracy": 0.5, "targets": 7}
    values = {"usage": 1.0, "top_usage": 0.5, "count_divergence": 0.25, "weight_divergence": 0.125}
    one = {"row": "PKM", "steps": 300, "parameters": 1000, "curve": points, "validation": score, "test": score}
    page = pretraining.as_markdown({"runs": {"pkm": {**one, "tables": {"layer_01/values": values}}}})
    assert "| PKM | 300 | 1,000 | 12.5000 | 12.5000 | 0.5000 |" in page
    assert "| PKM | layer_01/values | 1.0000 | 0.5000 | 0.2500 | 0.1250 |" in page and "| PKM | 30.00 |" in page


def test_usage_before_is_that_of_the_tables_a_run_begins_with(tmp_path):
    config = make_config(tmp_path, Classification(), "start")
    config.model.feed_forward = ProductKey(
        dim=8, layers=(1,), num_keys=4, memory_heads=2, num_neighbors=2, key_dim=4, dense_scale=1.0
    )
    start, variables = save_run(config)
    experiment = make_experiment(config)
    before = fine_tuning.usage_before(experiment, start)
    assert before == usage(experiment, variables) and set(before) == {"layer_01/values"}
    assert fine_tuning.usage(experiment, {}) == {} and np.isfinite(before["layer_01/values"]["usage"])
    one = {"row": "ResM", "scores": {"matthews": 0.5, "accuracy": 0.75}, "usage": {"before": before}}
    page = fine_tuning.as_markdown({"runs": {"bert_cola-resm": one}})
    assert "| cola, ResM | 01 | before | " in page and "| MiniLM, then MLM with ResM | 0.5000 | 0.7500 |" in page
