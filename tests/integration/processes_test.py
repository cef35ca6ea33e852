"""Two processes on one machine as one run: `memjax train`, as on the hosts of a pod."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from memjax.training.checkpoints import Checkpoints
from memjax.training.metrics import read_metrics
from memjax.training.run_versions import read_attempts

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).with_name("processes_config.py")
ROOT = CONFIG.parents[2]
TIMED = ("seconds", "first_step_seconds", "tokens_per_second", "examples_per_second", "attempt")


def start(
    workdir,
    index=0,
    address="",
    num_processes=1,
    devices=4,
    command=("-m", "memjax.cli", "train"),
    arguments=(),
    config=CONFIG,
):
    """One process; its output goes to a file beside the runs. Without a config, `arguments` name the run."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    whence = [] if config is None else ["--config", str(config), "--workdir", str(workdir)]
    line = [sys.executable, *command, *whence, *map(str, arguments)]
    if address:
        line += ["--coordinator", address, "--num-processes", str(num_processes), "--process-id", str(index)]
    workdir.mkdir(exist_ok=True, parents=True)
    output = (workdir.parent / f"{workdir.name}.{index}.txt").open("w")
    process = subprocess.Popen(line, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    process.output = Path(output.name)  # type: ignore[attr-defined]
    output.close()
    return process


def start_both(workdir, arguments=((), ()), config=CONFIG):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = {"num_processes": 2, "devices": 2, "config": config}
    return [start(workdir, i, address, arguments=arguments[i], **common) for i in range(2)]


def end(processes, seconds=300):
    """(exit code, output) of each."""
    try:
        codes = [process.wait(seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    texts = [process.output.read_text() for process in processes]
    own = ["\n".join(line for line in text.splitlines() if not line.startswith("[Gloo]")) for text in texts]
    return list(zip(codes, own, strict=True))


def wait_for(process, text, seconds=240):
    """Waits until the output of a process holds a text."""
    until = time.monotonic() + seconds
    while text not in process.output.read_text():
        assert process.poll() is None, process.output.read_text()[-3000:]
        assert time.monotonic() < until, process.output.read_text()[-3000:]
        time.sleep(0.02)


def assert_same_run(workdir, reference):
    """Every metric of every step and every saved array, but for the order of sums over devices."""
    found, expected = (read_metrics(path / "run" / "metrics.jsonl") for path in (workdir, reference))
    assert [(line["kind"], line["step"]) for line in found] == [(line["kind"], line["step"]) for line in expected]
    for line, other in zip(found, expected, strict=True):
        for name, value in other.items():
            if isinstance(value, float) and name not in TIMED:
                assert line[name] == pytest.approx(value, rel=1e-5), (line["step"], name)
    arrays, others = (
        Checkpoints(path / "run" / "checkpoints", read_only=True).load("") for path in (workdir, reference)
    )
    assert arrays[0] == others[0] and arrays[1].keys() == others[1].keys() and arrays[2] == others[2]
    for name, array in others[1].items():
        np.testing.assert_allclose(arrays[1][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One process with four devices."""
    workdir = tmp_path_factory.mktemp("one") / "runs"
    ((code, text),) = end([start(workdir)])
    assert code == 0, text
    return workdir


def test_two_processes_equal_one(reference, tmp_path):
    workdir = tmp_path / "runs"
    (first, told), (second, silence) = end(start_both(workdir))
    assert (first, second) == (0, 0), told + silence
    assert "finished" in told and silence == ""  # only the first process speaks
    assert_same_run(workdir, reference)
    assert len((workdir / "run" / "command.txt").read_text().splitlines()) == 1
    (versions,) = read_attempts(workdir / "run")
    assert versions["processes"] == 2 and versions["devices"] == "4 x cpu"


def stop_one(workdir, number, of, after):
    """A signal to one of two processes once a step is logged; returns the outcomes of both."""
    processes = start_both(workdir)
    wait_for(processes[0], f"step {after}/8")
    processes[of].send_signal(number)
    return end(processes)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of two processes of which the second got SIGTERM: both have saved the same step."""
    workdir = tmp_path_factory.mktemp("stopped") / "runs"
    (first, told), (second, _) = stop_one(workdir, signal.SIGTERM, of=1, after=1)
    assert (first, second) == (128 + signal.SIGTERM,) * 2, told
    assert re.search(r"stopped by SIGTERM after step [2-7], saved", told)
    return workdir


def copy_of(workdir, to):
    subprocess.run(["cp", "-r", str(workdir), str(to)], check=True)
    return to


def test_two_processes_go_on(reference, stopped, tmp_path):
    workdir = copy_of(stopped, tmp_path / "runs")
    (first, told), (second, silence) = end(start_both(workdir))
    assert (first, second) == (0, 0), told + silence
    assert "going on after step" in told
    assert_same_run(workdir, reference)


def test_one_process_goes_on_where_two_were(reference, stopped, tmp_path):
    workdir = copy_of(stopped, tmp_path / "runs")
    ((code, told),) = end([start(workdir)])
    assert code == 0 and "going on after step" in told, told
    assert_same_run(workdir, reference)


def test_two_processes_go_on_with_other_rows_and_empty_memories(stopped, tmp_path):
    workdir = copy_of(stopped, tmp_path / "runs")
    rows = ("--data.batch-size", 4)
    (first, told), (second, refused) = end(start_both(workdir, (rows, rows)))
    assert (first, second) == (2, 2)
    assert "data.batch_size = 8 there and 4 here" in told and "--reset-memory" in told and "--reset-memory" in refused
    reset = (*rows, "--reset-memory")
    (first, told), (second, silence) = end(start_both(workdir, (reset, reset)))
    assert (first, second) == (0, 0), told + silence
    assert "memories are empty" in told and "finished" in told


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_process_ends_the_other(reference, tmp_path, lost):
    workdir = tmp_path / "runs"
    processes = start_both(workdir, (("--training.steps", 100000), ("--training.steps", 100000)))
    wait_for(processes[0], "step 4/")
    processes[lost].kill()
    killed = time.monotonic()
    (code, text) = end(processes, seconds=60)[1 - lost]
    assert code != 0
    assert time.monotonic() - killed < 45  # its time-out is 15 s, noticed after a quarter more; the rest is slack
    if lost == 1:
        assert "process 1 of 2 did not come within 15 s" in text and "goes on from the last checkpoint" in text
    else:  # the coordinator: JAX itself may speak first
        assert "process 0" in text or "leader" in text or "coordinator" in text
    assert Checkpoints(workdir / "run" / "checkpoints", read_only=True).steps()[-1] % 3 == 0


def test_a_process_that_never_comes_is_named(tmp_path):
    workdir = tmp_path / "runs"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ((code, text),) = end(
        [start(workdir, 0, address, num_processes=2, devices=2, arguments=("--sharding.process-timeout", 3))]
    )
    assert code == 1
    assert re.search(r"memjax: processes: .* did not come within 3 s", text), text
    assert not (workdir / "run").exists()


def test_different_commands_end_both(tmp_path):
    workdir = tmp_path / "runs"
    outcomes = end(start_both(workdir, ((), ("--training.seed", 5))))
    assert [code for code, _ in outcomes] == [2, 2]
    assert all("process 1 was started with another one than process 0" in text for _, text in outcomes)


def test_a_mistake_in_one_process_ends_both(tmp_path):
    workdir, other = tmp_path / "runs", tmp_path / "other"
    (other / "run").mkdir(parents=True)
    (other / "run" / "thesis.txt").write_text("not a run")
    (first, told), (second, refused) = end(start_both(workdir, ((), ("--workdir", other))))
    assert (first, second) == (2, 2)
    assert "not empty (thesis.txt)" in refused and "process 1 of 2: " in told and "thesis.txt" in told
