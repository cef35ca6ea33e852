"""Traces of steps."""

import gzip
import json
import shutil

import pytest

from memjax.training.profiles import check_steps, read_steps
from tests.training.loop_test import Crash, assert_same_run, crash_at, make_experiment, run

STEPS = {"steps": 6, "log_every": 1, "checkpoint_every": 4, "evaluate_every": 0}


def traced_steps(path) -> list[set[int]]:
    """The steps in each trace of a run."""
    found = []
    for file in path.glob("profile/plugins/profile/*/*.trace.json.gz"):
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        found.append({int(event["args"]["step_num"]) for event in events if event.get("name") == "train"})
        assert any("hlo_op" in event.get("args", {}) for event in events)  # what the device did
    return found


def notes(events) -> list[str]:
    return [event.text for event in events if event.kind == "note" and "profile" in event.text]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(make_experiment(tmp_path_factory.mktemp("plain"), **STEPS))[0]


def test_the_steps_are_traced_and_nothing_else_changes(plain, tmp_path):
    result, events = run(make_experiment(tmp_path, **STEPS), profile=(3, 5))
    assert traced_steps(result.path) == [{3, 4, 5}]
    (line,) = notes(events)
    assert line.startswith(f"{result.path}/profile: trace of steps 3 to 5; ") and "\n" not in line
    assert_same_run(result.path, plain.path)


@pytest.mark.slow
def test_an_attempt_traces_what_is_left_but_not_its_first_step(tmp_path):
    experiment = make_experiment(tmp_path, **STEPS)
    with pytest.raises(Crash):
        run(experiment, profile=(2, 6), hooks=[crash_at(3)])
    assert traced_steps(tmp_path / "run") == [{2, 3}]
    shutil.rmtree(tmp_path / "run" / "profile")  # traces of the same second have the same name
    with pytest.raises(Crash):  # from the start again, now past a checkpoint
        run(experiment, hooks=[crash_at(5)])
    result, events = run(experiment, profile=(2, 6))
    assert traced_steps(result.path) == [{6}]
    assert "trace of steps 6 to 6" in notes(events)[0]


@pytest.mark.laws
def test_steps_that_are_over_are_told(tmp_path):
    experiment = make_experiment(tmp_path, **STEPS)
    with pytest.raises(Crash):
        run(experiment, hooks=[crash_at(5)])
    result, events = run(experiment, profile=(2, 4))
    assert notes(events) == ["profile: steps 2 to 4 are over, nothing is traced"]
    assert not (result.path / "profile").exists()


@pytest.mark.parametrize("text", ["", "10", "10:", "a:b", "-1:3", "3:4:5"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="profile: given .*, allowed: FIRST:LAST"):
        read_steps(text)


@pytest.mark.parametrize("steps", [(1, 3), (0, 0), (5, 4), (3, 7)])
def test_steps_that_a_run_does_not_have_are_refused_before_it_begins(tmp_path, steps):
    with pytest.raises(ValueError, match=f"profile: given {steps[0]}:{steps[1]}, allowed: .* training.steps = 6"):
        run(make_experiment(tmp_path, **STEPS), profile=steps)
    assert not list(tmp_path.iterdir())
    check_steps((2, 6), 6)
