"""A file of another run in a run directory is damage, and lost lines of a log are told."""

import json
import shutil

import pytest

from memjax.config import Config
from memjax.durable_files import DamagedError, DamageWarning, read_json, write_json
from memjax.training.metrics import MetricsFile, describe_damaged_lines, read_metrics
from memjax.training.run_data import read_record
from memjax.training.run_identity import NAME, read_identity, read_run_file, write_run_file
from memjax.training.run_versions import read_attempts
from memjax.training.runs import RunDirectory, load_config, read_finished, request_run

LINES = 4


def make_run(folder, name, *, steps=10):
    config = Config(name=name, workdir=str(folder))
    config.training.steps = steps
    directory = RunDirectory(request_run(config))
    directory.record_attempt(0)
    write_run_file(directory.path / "data.json", {"version": 1, "tasks": {}})
    log = MetricsFile(directory.path / "metrics.jsonl")
    for step in range(LINES):
        log.write("train", step, {"nats_per_token": 2.5})
    directory.finish(10, {"evaluation": {"nats_per_token": 1.5}}, log_lines=LINES)
    directory.close()
    return directory.path


@pytest.fixture
def runs(tmp_path):
    return [make_run(tmp_path, name) for name in ("a", "b")]


READERS = {"finished.json": read_finished, "versions.json": read_attempts, "data.json": read_record}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_another_run_is_damage(runs, name):
    run, other = runs
    assert READERS[name](run) is not None
    shutil.copy(other / name, run / name)
    with pytest.raises(DamagedError, match=f"{name}: damaged .it is of another run than config.json"):
        READERS[name](run)
    (run / "config.json").write_bytes((other / "config.json").read_bytes())  # now it fits
    assert READERS[name](run) is not None


def test_the_log_of_another_run_has_damaged_lines(runs):
    run, other = runs
    shutil.copy(other / "metrics.jsonl", run / "metrics.jsonl")
    with pytest.warns(DamageWarning, match="lines 1, 2, 3, 4 damaged"):
        assert read_metrics(run / "metrics.jsonl") == []


def test_a_run_keeps_its_identity(runs, tmp_path):
    run = runs[0]
    identity = read_identity(run)
    assert len(identity) == 16 != read_identity(runs[1])
    make_run(tmp_path, "a", steps=20)  # goes on, with another configuration
    assert read_identity(run) == identity and load_config(run).training.steps == 20
    moved = run.rename(tmp_path / "moved")
    assert read_finished(moved) is not None and read_attempts(moved)


def test_runs_of_earlier_versions_have_none(runs):
    run = runs[0]
    for name in ("config.json", "finished.json"):
        write_json(run / name, {key: value for key, value in read_json(run / name).items() if key != NAME})
    assert read_identity(run) == "" and read_finished(run) is not None and load_config(run)
    (run / "metrics.jsonl").unlink()
    log = MetricsFile(run / "metrics.jsonl")
    for step in range(LINES):
        log.write("train", step, {})
    assert [line["step"] for line in log.read()] == [*range(LINES)]
    shutil.copy(runs[1] / "finished.json", run / "finished.json")
    with pytest.raises(DamagedError, match="another run"):
        read_run_file(run / "finished.json")


@pytest.mark.parametrize("left", [0, 1, 3])
def test_lost_lines_are_told(runs, left):
    file = runs[0] / "metrics.jsonl"
    assert describe_damaged_lines(file) == ""
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:left]))
    with pytest.warns(DamageWarning, match=f"metrics.jsonl: {LINES - left} of its {LINES} lines are missing"):
        assert len(read_metrics(file)) == left
    assert "missing" in describe_damaged_lines(file)


def test_a_deleted_log_is_told(runs):
    (runs[0] / "metrics.jsonl").unlink()
    with pytest.warns(DamageWarning, match=f"{LINES} of its {LINES} lines are missing"):
        assert read_metrics(runs[0] / "metrics.jsonl") == []
    assert json.loads((runs[0] / "finished.json").read_text())["log_lines"] == LINES
