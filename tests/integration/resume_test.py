"""kill -9 at a random moment, and on as if nothing had happened: bit for bit on the CPU."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.loop_test import STEPS, assert_same_run, make_experiment, run

ROOT = Path(__file__).parent.parent.parent


def train_until_signal(workdir, step, seconds, number=signal.SIGKILL):
    # Short compilations, as that of the evaluation, are not taken from the cache: the signal comes before they end.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1"}
    command = [sys.executable, "-m", "tests.integration.train_toy", str(workdir), str(step), str(seconds)]
    command.append(str(int(number)))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, -signal.SIGKILL, 128 + number), done.stderr
    return done.returncode


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return run(make_experiment(tmp_path_factory.mktemp("reference")))[0]


@pytest.mark.laws
def test_killed_once_and_resumed(reference, tmp_path):
    # The first evaluation compiles after step 6, so that the signal cannot come too late.
    code = train_until_signal(tmp_path, random.randrange(1, 7), 0.0)
    assert code == -signal.SIGKILL
    result, _ = run(make_experiment(tmp_path))
    assert_same_run(result.path, reference.path)


@pytest.mark.slow
def test_terminated_and_resumed(reference, tmp_path):
    assert train_until_signal(tmp_path, 5, 0.01, signal.SIGTERM) == 128 + signal.SIGTERM
    result, _ = run(make_experiment(tmp_path))
    assert_same_run(result.path, reference.path)


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(3))
def test_killed_again_and_again(reference, tmp_path, repeat):
    codes = [train_until_signal(tmp_path, random.randrange(1, STEPS), random.uniform(0.0, 0.3)) for _ in range(3)]
    assert -signal.SIGKILL in codes
    result, _ = run(make_experiment(tmp_path))
    assert_same_run(result.path, reference.path)
