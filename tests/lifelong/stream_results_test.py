"""The result of a run over tasks: what it says while tasks are learned, at its end, and to a program."""

import dataclasses
import json

import numpy as np
import pytest

from memjax.cli import main
from memjax.cli.own_tasks import tasks_config
from memjax.lifelong.factory import train, with_task_evaluations
from memjax.lifelong.stream_results import describe_result, describe_unlearned, summarize_log, summarize_stream
from memjax.settings.overrides import apply_overrides, load_config
from memjax.tasks import make_task


def logged(scores, names, *, share=0.5):
    """Lines of a log with a row of scores for each finished stage."""
    line = {"kind": "evaluation", "phase": "after", "largest_class": share}
    return [
        {**line, "step": 10 * (stage + 1), "stage": stage, "name": name, "accuracy": score}
        for stage, row in enumerate(scores)
        for name, score in zip(names, row, strict=True)
    ]


def make_stream(*, boundaries="known"):
    config = load_config("lifelong_mnist", "smoke")
    stream = dataclasses.replace(config.lifelong, task_boundaries=boundaries)
    config = with_task_evaluations(dataclasses.replace(config, lifelong=stream))
    return make_task(config), [task.name for task in stream.ordered_tasks]


def test_results_are_those_of_the_tasks_learned_so_far():
    task, names = make_stream()
    assert summarize_stream(task, []) == {} and summarize_log(task, []) == ({}, [])
    first, texts = summarize_log(task, logged([[0.45, 0.0]], names))
    assert (first["num_tasks"], first["average"], len(first["scores"])) == (1, 0.45, 1)
    assert texts == [
        f"average accuracy 0.4500 over 1 of {len(names)} tasks",
        f"{names[0]}: 0.450, its largest class has 0.500; it was not learned",
    ]
    both, texts = summarize_log(task, logged([[0.75, 0.0], [0.25, 1.0]], names))
    assert (both["average"], both["forgetting"], both["num_tasks"]) == (0.625, 0.5, 2)
    assert texts == ["average accuracy 0.6250 over 2 tasks, forgetting 0.5000"]


def test_tasks_that_are_learned_at_once_are_all_read():
    task, names = make_stream(boundaries="mixed")
    facts, texts = summarize_log(task, logged([[0.75, 0.25]], names))
    assert (facts["num_tasks"], facts["average"]) == (2, 0.5) and describe_result(facts) == texts[0]
    assert texts[1:] == [f"{names[1]}: 0.250, its largest class has 0.500; it was not learned"]


def test_a_score_of_written_classes_stands_beside_the_largest_class_in_percent():
    facts = {"measure": "score", "tasks": ["a", "b", "c"], "num_tasks": 3, "largest_classes": [60.0, 100.0, None]}
    facts["scores"] = [[55.5, 0, 0], [0, 50.0, 0], [0, 0, 0]]
    assert describe_unlearned(facts) == {"a": "a: 55.500, its largest class has 60.000; it was not learned"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run over two of a user's files with classes of their own; no word tells those of the second apart."""
    folder = tmp_path_factory.mktemp("stream")
    files = {
        "news": {"weather": "rain snow wind", "sport": "goal team ball"},
        "noise": {"low": "one two", "high": "one two"},
    }
    for name, groups in files.items():
        classes = list(groups.items())
        rows = [f"{classes[n % 3 == 0][0]},{name} {classes[n % 3 == 0][1]} {n}" for n in range(90)]
        (folder / f"{name}.csv").write_text("class,text\n" + "\n".join(rows) + "\n")
    config = tasks_config([str(folder / "news.csv"), str(folder / "noise.csv")])[0]
    config = apply_overrides(config, ["--workdir", str(folder), "--name", "run"])
    events = []
    return train(config, on_event=events.append), config, events


@pytest.mark.laws
def test_a_run_ends_with_the_result_of_its_stream(trained, capsys):
    result, config, events = trained
    matrix, last = result.matrix, events[-1].text
    assert matrix.shape == (2, 2) and result.average == pytest.approx(matrix[-1].mean())
    assert f"finished, average accuracy {result.average:.4f} over 2 tasks, forgetting" in last
    texts = [event.text for event in events]
    assert any(f"average accuracy {matrix[0, 0]:.4f} over 1 of 2 tasks" in text for text in texts)
    assert any("noise test: not read yet" in text for text in texts)
    assert any("(largest class 0." in text for text in texts)
    stored = json.loads((result.path / "finished.json").read_text())["results"]
    assert stored["stream"]["average"] == result.average and stored["evaluation"] and stored["evaluations"]
    again = train(config, on_event=events.append)
    assert again.finished_before and np.array_equal(again.matrix, matrix) and "average accuracy" in events[-1].text
    assert main(["eval", "--run", str(result.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{result.path} at step {result.step:,}: average accuracy {result.average:.4f}")
    row = next(line for line in lines if line.startswith("news  "))
    assert len(row.split()) == 2 and any(line.startswith("largest class") for line in lines)
    assert main(["compare", str(result.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)[str(result.path)]
    assert (facts["tasks"], facts["average"]) == (2, result.average)
