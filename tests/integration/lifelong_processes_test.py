"""Two processes train a stream of tasks, are stopped in a stage, and go on as one; and on other numbers of devices."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

from memjax.data.vectors import write_features
from tests.integration.processes_test import assert_same_run, copy_of, end, start, start_both, wait_for

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).with_name("lifelong_config.py")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One process with one device."""
    workdir = tmp_path_factory.mktemp("one") / "runs"
    ((code, text),) = end([start(workdir, devices=1, config=CONFIG)])
    assert code == 0, text
    return workdir


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Two processes with two devices each, of which the second got SIGTERM in the second stage."""
    workdir = tmp_path_factory.mktemp("stopped") / "runs"
    processes = start_both(workdir, config=CONFIG)
    wait_for(processes[0], "step 8/")  # five of the stream and two replays in the first
    processes[1].send_signal(signal.SIGTERM)
    (first, told), (second, silence) = end(processes)
    assert (first, second) == (128 + signal.SIGTERM,) * 2, told + silence
    assert re.search(r"stopped by SIGTERM after step \d+, saved", told), told
    return workdir


@pytest.mark.parametrize("devices", [1, 8])
def test_one_process_goes_on_with_a_stream_where_two_were_stopped(reference, stopped, tmp_path, devices):
    workdir = copy_of(stopped, tmp_path / "runs")
    ((code, told),) = end([start(workdir, devices=devices, config=CONFIG)])
    assert code == 0 and "going on after step" in told, told
    assert_same_run(workdir, reference)


def test_two_processes_adapt_as_one_does(tmp_path):
    variant = ("--variant", "mbpa_pp")
    (first, told), (second, silence) = end(start_both(tmp_path / "two" / "runs", (variant, variant), config=CONFIG))
    assert (first, second) == (0, 0), told + silence
    ((code, told),) = end([start(tmp_path / "one" / "runs", devices=1, arguments=variant, config=CONFIG)])
    assert code == 0, told
    assert_same_run(tmp_path / "two" / "runs", tmp_path / "one" / "runs")


def another_task(workdir):
    """The arguments with which the run there takes another task."""
    rng, folder = np.random.default_rng(0), workdir.parent / "third"
    labels = {split: rng.integers(4, size=size) for split, size in (("train", 40), ("test", 16))}
    vectors = {split: rng.normal(size=(len(own), 8)) + own[:, None] for split, own in labels.items()}
    write_features(folder, {split: (vectors[split], own) for split, own in labels.items()}, {})
    return ("--run", workdir / "run", "--add-task", folder)


def test_two_processes_take_another_task_as_one_does(reference, tmp_path):
    one, two = (copy_of(reference, tmp_path / name) for name in ("one", "two"))
    arguments = [another_task(workdir) for workdir in (one, two)]
    (first, told), (second, silence) = end(start_both(two, (arguments[1],) * 2, config=None))
    assert (first, second) == (0, 0) and "3 tasks (task_0, task_1, third)" in told, told + silence
    assert "3 tasks" not in silence  # only the first process speaks
    ((code, told),) = end([start(one, devices=1, arguments=arguments[0], config=None)])
    assert code == 0, told
    assert_same_run(two, one)


def test_a_memory_of_the_host_takes_another_task_in_one_process_alone(tmp_path):
    workdir = tmp_path / "runs"
    ((code, told),) = end([start(workdir, devices=1, arguments=("--variant", "host"), config=CONFIG)])
    assert code == 0, told
    arguments = another_task(workdir)
    (first, told), (second, _) = end(start_both(workdir, (arguments, arguments), config=None))
    line = "lifelong.method.memory.storage: given 'host' in a run of 2 processes, allowed: 'device', or one process"
    assert (first, second) == (2, 2) and f"memjax train: {line}" in told, told
    assert (workdir / "run" / "finished.json").exists()
    ((code, told),) = end([start(workdir, devices=1, arguments=arguments, config=None)])
    assert code == 0 and "going on after step" in told, told
