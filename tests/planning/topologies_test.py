"""Names of TPU slices."""

import importlib.util
from pathlib import Path

import pytest

from memjax.planning.topologies import GENERATIONS, GIB, parse_topology


@pytest.mark.parametrize(
    "name, shape, chips, devices",
    [
        ("v5e:4x4", "v5e:4x4", 16, 16),
        ("v5e-16", "v5e:4x4", 16, 16),
        ("v5litepod-8", "v5e:2x4", 8, 8),
        ("V6E-256", "v6e:16x16", 256, 256),
        ("v5p-8", "v5p:2x2x1", 4, 4),
        ("v5p-128", "v5p:4x4x4", 64, 64),  # 128 TensorCores
        ("v4-32", "v4:2x2x4", 16, 16),
        ("v4:4x4x8", "v4:4x4x8", 128, 128),
        ("tpu7x-8", "tpu7x:2x2x1", 4, 8),
        ("v7x:4x4x4", "tpu7x:4x4x4", 64, 128),
        ("v5e-1", "v5e:1x1", 1, 1),
    ],
)
def test_names(name, shape, chips, devices):
    topology = parse_topology(name)
    assert (topology.name, topology.num_chips, topology.num_devices) == (shape, chips, devices)


@pytest.mark.parametrize(
    "name, parts",
    [
        ("v9:2x2", ["given 'v9:2x2'", "v4, v5e, v5p, v6e, tpu7x"]),
        ("v5", ["given 'v5'", "did you mean v5"]),
        ("v5e", ["given 'v5e'", "v5e:4x4"]),
        ("v5e:3x5", ["2 numbers of chips", "even or 1"]),
        ("v5e:2x2x2", ["2 numbers of chips for v5e"]),
        ("v5p:4x4", ["3 numbers of chips for v5p"]),
        ("v5e:32x32", ["up to 16"]),
        ("v5e-12", ["v5e-N with N chips, of 1, 4, 8, 16"]),
        ("v5p-7", ["TensorCores, 2 per chip", "8, 16, 32, 64, 128"]),
        ("v5e:4x", ["a shape or a size of v5e"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(name, parts):
    with pytest.raises(ValueError, match=r"^topology: given ") as caught:
        parse_topology(name)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_facts_are_of_a_device():
    chip, half = parse_topology("v5p:2x2x1"), parse_topology("tpu7x:2x2x1")
    assert chip.peak_flops == 459e12 and chip.hbm_bandwidth == 2765e9 and chip.ici_bandwidth == 600e9
    assert half.peak_flops * 2 == 2307e12 and half.hbm_bandwidth * 2 == 7380e9  # two devices make a chip
    assert parse_topology("v5e:4x4").hbm_limit == 15.75 * GIB
    assert GENERATIONS["v4"].options == {"chip_config_name": "megacore"}


def test_importing_names_loads_no_jax():
    spec = importlib.util.find_spec("memjax.planning.topologies")
    assert spec is not None and spec.origin is not None
    top = [line for line in Path(spec.origin).read_text().splitlines() if line.startswith(("import ", "from "))]
    assert not any("jax" in line for line in top)
