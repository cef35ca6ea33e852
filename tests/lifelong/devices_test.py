"""Streams with an episodic memory on eight virtual devices, in one process of their own."""

import json

import pytest

from tests.programs import found_on_eight_devices

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found():
    return found_on_eight_devices("tests.lifelong.devices_worker")


NAMES = ("replay", "replay_sparse", "agem", "agem_whole", "gem", "logit_kd", "mbpa_pp", "mbpa_random")
NAMES += ("logit_kd_annealed",)
NAMES += ("oml", "maml_second", "meta_mbpa")
RELATIONS = ("emar", "emr", "ea_emr")


@pytest.mark.parametrize("name", NAMES + RELATIONS)
def test_a_stream_on_eight_devices_equals_that_of_one(found, name):
    for mesh in found[name].values():
        assert mesh["params"] < 1e-9 and mesh["memory"] < 1e-9
        assert mesh["sums"] < 1e-5 and mesh["nats"] < 1e-5  # in float32


@pytest.mark.parametrize("name", NAMES)
def test_devices_share_a_memory_that_they_divide(found, name):
    whole = {"agem_whole": 1.0, "gem": 1.0}
    for mesh, run in found[name].items():
        wanted = whole.get(name, 1 / json.loads(mesh.replace("(", "[").replace(")", "]"))[0])
        assert run["held"] == pytest.approx(wanted, rel=0.15)  # counters are on every device
