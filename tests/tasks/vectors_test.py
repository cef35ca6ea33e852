"""Runs on vectors: plain, resumed, and of several tasks with one head."""

import json

import pytest

from memjax.cli import main
from memjax.config import (
    Blobs,
    Classification,
    Config,
    Data,
    Evaluation,
    Lifelong,
    Perceptron,
    Schedule,
    TaskData,
    Training,
)
from memjax.lifelong import train
from memjax.training import read_metrics
from tests.training.loop_test import Crash, assert_same_run, crash_at

STEPS = 24


def config_of(workdir, *, masked=False, tasks=1) -> Config:
    sizes = {"num_classes": 6, "dim": 8, "spread": 0.3, "num_train": 64, "num_test": 30}
    sources = [Blobs(classes=(2 * i, 2 * i + 1), mask_classes=masked, **sizes) for i in range(tasks)]
    named = tuple(TaskData(name=f"task_{i}", source=source) for i, source in enumerate(sources))
    return Config(
        name="run",
        workdir=str(workdir),
        task=Classification(num_classes=6),
        model=Perceptron(widths=(16,)),
        data=Data(source=sources[0] if tasks > 1 else Blobs(**sizes), batch_size=16, segment_length=8),
        training=Training(
            steps=STEPS * tasks,
            log_every=STEPS,
            checkpoint_every=5,
            schedule=Schedule(learning_rate=0.05, warmup_steps=1, decay="constant"),
        ),
        evaluation=Evaluation(batch_size=15),
        lifelong=Lifelong(tasks=named) if tasks > 1 else None,
    )


def run(config, **arguments):
    return train(config, on_event=lambda event: None, **arguments)


def accuracies(path) -> list[list[float]]:
    """A row for each task that has been learned, a column for each that is scored."""
    lines = [line for line in read_metrics(path / "metrics.jsonl") if line["kind"] == "evaluation" and line.get("name")]
    rows: dict[int, list[float]] = {}
    for line in lines:
        rows.setdefault(line.get("stage", 0), []).append(line["accuracy"])
    return list(rows.values())


def test_clouds_are_learned_and_a_run_is_evaluated_from_its_directory(tmp_path, capsys):
    result = run(config_of(tmp_path))
    found = result.results["evaluation"]
    assert found["accuracy"] > 0.9 and found["targets"] == 30
    assert main(["eval", "--run", str(result.path), "--evaluation.split", "test"]) == 0
    assert "30 vectors of the test split" in capsys.readouterr().out
    assert main(["eval", "--run", str(result.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == found["accuracy"]
    assert main(["predict", "--run", str(result.path), "--text", "one"]) == 2
    assert "given with VectorClassification, allowed: a FILE" in capsys.readouterr().err


@pytest.mark.laws
def test_tasks_one_after_the_other_killed_in_the_second(tmp_path):
    whole = run(config_of(tmp_path / "whole", tasks=2))
    config = config_of(tmp_path / "again", tasks=2)
    with pytest.raises(Crash):
        run(config, hooks=[crash_at(STEPS + 8)])
    again = run(config)
    assert_same_run(again.path, whole.path)
    (first, unseen), (left, second) = accuracies(whole.path)
    assert first > 0.9 and second > 0.9
    assert unseen == 0 and left < first - 0.3  # classes of the first task are taken for those of the second


@pytest.mark.laws
def test_a_head_that_knows_its_task_keeps_the_first(tmp_path):
    (first, unseen), (left, second) = accuracies(run(config_of(tmp_path, masked=True, tasks=2)).path)
    assert min(first, second, left) > 0.9 and unseen > 0
