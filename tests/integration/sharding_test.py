"""Runs on eight virtual devices, in one process of their own."""

import pytest

from tests.programs import found_on_eight_devices

pytestmark = pytest.mark.slow

MESHES = ("(8, 1, 1)", "(1, 8, 1)", "(4, 2, 1)", "(2, 2, 2)", "(1, 1, 8)")
ATTENTION = ("memorizing", "transformer_xl", "compressive", "rotary", "rotary_slots")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return found_on_eight_devices("tests.integration.sharding_worker", tmp_path_factory.mktemp("runs"))


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


@pytest.mark.parametrize(
    "attention, mesh, parts",
    [
        ("rotary", "(2, 2, 2)", ["(2, 8)", "(2, 8, 2, 8)"]),  # rows over 4, 4 heads of keys over 2
        ("rotary", "(1, 1, 8)", ["(8, 8)", "(8, 8, 4, 8)"]),  # 4 heads do not divide over 8 devices
        ("rotary_slots", "(2, 2, 2)", ["(2, 5)", "(2, 5, 4, 8)"]),  # 10 slots over 2
    ],
)
def test_rotary_attention_splits_its_memory_by_rows_and_by_heads_or_slots(found, attention, mesh, parts):
    assert found[attention]["meshes"][mesh]["parts"] == parts


def test_a_run_goes_on_on_another_mesh(found):
    run = found["train"]
    assert run["targets"] > 0
    assert run["nats"][1] == pytest.approx(run["nats"][0], rel=1e-3)
    assert run["parameters"][0] == run["parameters"][1]
    assert run["logged"] == [1, 2, 3, 4, 5, 6]
