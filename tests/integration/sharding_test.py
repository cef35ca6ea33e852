"""Runs on eight virtual devices, in one process of their own."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MESHES = ("(8, 1, 1)", "(1, 8, 1)", "(4, 2, 1)", "(2, 2, 2)", "(1, 1, 8)")
ATTENTION = ("memorizing", "transformer_xl", "compressive")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
    }
    command = [sys.executable, "-m", "tests.integration.sharding_worker", str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("mesh", MESHES)
def test_twenty_steps_equal_those_of_one_device(found, attention, mesh):
    run = found[attention]["meshes"][mesh]
    assert max(run["params"], run["moments"], run["memory"]) < 1e-9
    assert run["nll"] < 1e-6  # totals are float32
    assert run["sharding_kept"]
    assert run["traces"] == 1


@pytest.mark.parametrize("attention", ATTENTION)
def test_an_eighth_of_the_work_and_of_the_state_on_each_of_eight_devices(found, attention):
    shares = found[attention]["shares"]
    assert shares["flops"] == pytest.approx(1 / 8, rel=0.1)
    assert shares["state"] == pytest.approx(1 / 8, rel=0.1)


def test_a_run_goes_on_on_another_mesh(found):
    run = found["train"]
    assert run["targets"] > 0
    assert run["nats"][1] == pytest.approx(run["nats"][0], rel=1e-3)
    assert run["parameters"][0] == run["parameters"][1]
    assert run["logged"] == [1, 2, 3, 4, 5, 6]
