"""A run that is through takes another task, and ends as one that knew all of them from the beginning."""

import copy
import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli import main
from memjax.config import GEM, Blobs, Joint, Schedule, Sequential, TaskData
from memjax.lifelong import load_run, train
from memjax.tasks import Query
from memjax.training import read_metrics
from memjax.training.metrics import COUNT
from memjax.training.runs import load_config
from memjax.typing import EmptyState
from tests.lifelong.learner_cases import CASE, DIM, SIZE, TASKS, assert_equal, config_of, play
from tests.training.loop_test import Crash, crash_at, final_arrays

METHODS = ("sequential", "replay", "agem", "ewc", "mbpa_pp, masked")


def stream(workdir, method, *, tasks=TASKS, masked=False, **fields):
    config = config_of(method, tasks=tasks, **fields)
    task = dataclasses.replace(config.task, mask_unseen_classes=masked)
    return dataclasses.replace(config, workdir=str(workdir), task=task)


def task(number):
    classes = (2 * number, 2 * number + 1)
    source = Blobs(classes=classes, num_classes=2 * TASKS, dim=DIM, num_train=SIZE, num_test=8)
    return TaskData(name=f"task {number}", source=source)


def run(config, **arguments):
    return train(config, on_event=lambda event: None, **arguments)


def assert_same_end(path, expected):
    """Bit for bit everything in the last checkpoint, and the scores of what both have scored."""
    (step, arrays, extra), (wanted_step, wanted, wanted_extra) = final_arrays(path), final_arrays(expected)
    lines = extra.pop(COUNT), wanted_extra.pop(COUNT)  # three tasks from the start are scored more often
    assert 0 < lines[0] <= lines[1]
    assert (step, extra) == (wanted_step, wanted_extra) and arrays.keys() == wanted.keys()
    assert [name for name, array in arrays.items() if array.tobytes() != wanted[name].tobytes()] == []
    matrix = lambda path: {
        (line["stage"] if "stage" in line else 0, line["name"]): line["nats"]
        for line in read_metrics(path / "metrics.jsonl")
        if line.get("phase") == "after" and line.get("name")
    }
    found, whole = matrix(path), matrix(expected)
    assert found.items() <= whole.items()
    assert {(stage, f"task {number}") for stage in range(TASKS) for number in range(min(stage + 1, TASKS))} <= set(
        found
    )


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.laws) for name in METHODS),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cumulative", "lwf", "replay_host", "mbpa_host")),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("oml", "anml", "meta_mbpa")),
    ],
)
def test_two_tasks_and_later_a_third_are_three_in_one_go(tmp_path, name):
    name, _, masked = name.partition(", ")
    method = CASE[name].method
    whole = run(stream(tmp_path / "whole", method, masked=bool(masked)))
    config = stream(tmp_path / "later", method, tasks=TASKS - 1, masked=bool(masked))
    first = run(config)
    assert not first.finished_before and (first.path / "finished.json").exists()
    longer = load_config(first.path).with_task(task(TASKS - 1))
    assert longer.lifelong == stream(tmp_path, method).lifelong
    with pytest.raises(Crash):  # in the middle of the third task
        run(longer, hooks=[crash_at(first.step + 2)])
    assert not (first.path / "finished.json").exists() and load_config(first.path) == longer
    later = run(longer)
    assert later.step == whole.step > first.step
    assert_same_end(later.path, whole.path)
    assert run(longer).finished_before
    # What a user is told is what is evaluated, adapted likewise.
    loaded = load_run(later.path)
    split = loaded.experiment.of_task("task 0").documents("test")
    examples = [split.example(number) for number in range(len(split))]
    found = loaded.experiment.predict(loaded.variables, [Query(example.inputs) for example in examples])
    right = [int(one["answer"]) == example.targets[0] for one, example in zip(found, examples, strict=True)]
    assert np.mean(right) == later.results["evaluations"]["task 0"]["accuracy"]
    assert all(set(one.get("neighbors", ())) <= set(range(SIZE * TASKS)) for one in found)
    assert [len(one.get("neighbors", ())) for one in found] == [4 if name.startswith("mbpa") else 0] * len(found)


@pytest.mark.laws
@pytest.mark.parametrize("name", ["replay", "lwf"])
def test_classes_of_later_tasks_are_neither_answered_nor_trained(tmp_path, name):
    played = play(stream(tmp_path, CASE[name].method, masked=True), stages=2)
    assert played.state.constants["head"]["seen"].tolist() == [True] * 4 + [False] * 2
    now, fresh = (
        played.state.params["head"]["classifier"],
        played.places.new_variables()["params"]["head"]["classifier"],
    )
    assert_equal(now["kernel"][:, 4:], fresh["kernel"][:, 4:])
    assert_equal(now["bias"][4:], fresh["bias"][4:])
    assert not np.any(now["bias"][:4] == fresh["bias"][:4])
    variables = played.learner.evaluation_variables(played.state, 0)
    output, *_ = played.learner.model.apply(variables, jnp.full((3, DIM), 9.0), EmptyState())
    log_probs = played.learner.model.apply(variables, output, method="log_probs")
    assert np.all(log_probs[..., 4:] < -1000) and np.all(np.isfinite(log_probs))


@pytest.mark.slow
def test_documents_get_the_same_share_of_updates_for_a_later_task(tmp_path):
    from tests.lifelong.stages_test import config_of as documents

    constant = {"schedule": Schedule(learning_rate=1e-2, warmup_steps=2, decay="constant")}
    two = documents(tmp_path / "later", Sequential(), **constant)
    third = TaskData(name="again", source=two.lifelong.tasks[0].source)
    whole = run(dataclasses.replace(two.with_task(third), workdir=str(tmp_path / "whole")))
    run(two)
    later = run(two.with_task(third))
    step, arrays, _ = final_arrays(later.path)
    wanted_step, wanted, _ = final_arrays(whole.path)
    assert step == wanted_step
    assert [name for name, array in arrays.items() if array.tobytes() != wanted[name].tobytes()] == []


def test_what_a_run_has_learned_comes_first(tmp_path, capsys):
    config = stream(tmp_path, Sequential(), tasks=2)
    first = run(config)
    other = dataclasses.replace(config.with_task(task(2)), evaluations=())
    other.lifelong.task_order = (2, 0, 1)
    with pytest.raises(
        ValueError, match=r"lifelong.task_order: given \['task 2', .*allowed: \['task 0', 'task 1'\] first"
    ):
        run(other)
    changed = copy.deepcopy(config.with_task(task(2)))
    changed.lifelong.tasks[0].source.num_train = 4
    with pytest.raises(
        ValueError, match="holds a run of another config, lifelong.tasks.0.source.num_train = 10 there and 4"
    ):
        run(changed)
    assert (first.path / "finished.json").exists() and run(config).finished_before
    later = run(config.with_task(task(2)))
    assert later.step > first.step
    # Every verb sees three tasks.
    np.save(tmp_path / "asked.npy", np.zeros((2, DIM), np.float32))
    capsys.readouterr()
    assert main(["predict", "--run", str(later.path), str(tmp_path / "asked.npy"), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == [0, 1] and all(row["answer"] in "012345" for row in rows)
    assert main(["predict", "--run", str(later.path), "--text", "x"]) == 2
    capsys.readouterr()
    assert main(["eval", "--run", str(later.path), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)["stream"]
    assert seen["tasks"] == ["task 0", "task 1", "task 2"] and [len(row) for row in seen["scores"]] == [3, 3, 3]
    assert seen["cost"]["seconds_per_test_example"] > 0 and not seen["cost"]["adapts"]
    assert main(["compare", str(later.path), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)[str(later.path)]
    assert {"average", "forgetting", "task 2.accuracy", "seconds_per_test_example", "kept_bytes"} <= compared.keys()


@pytest.mark.parametrize(
    "method, fields, line",
    [
        (
            GEM(examples_per_task=4),
            {},
            "lifelong.method: given GEM, allowed for a run that takes another task: one whose memory",
        ),
        (Joint(), {}, "lifelong.method: given Joint, allowed for a run that takes another task: a stage for each"),
        (
            Sequential(),
            {"task_boundaries": "sharp"},
            "lifelong.task_boundaries: given 'sharp', allowed for a run that takes another",
        ),
        (
            Sequential(),
            {"epochs": 0, "training": {"schedule": Schedule(warmup_steps=0)}},
            "training.schedule.decay: given 'cosine', allowed for a run that takes another task: 'constant' or 'rsqrt'",
        ),
    ],
    ids=["memory of tasks", "one stage", "no borders", "decay"],
)
def test_a_run_that_had_begun_otherwise_takes_no_other_task(tmp_path, method, fields, line):
    from memjax.durable_files import write_json
    from memjax.training.runs import config_to_dict

    config = stream(tmp_path, method, tasks=2, **fields)
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "config.json", config_to_dict(config))
    with pytest.raises(ValueError, match=line):
        run(config.with_task(task(2)))
