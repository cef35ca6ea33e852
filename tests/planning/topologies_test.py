"""Names of TPU slices."""

import importlib.util
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from memjax.planning.plan_cases import check_topologies
from memjax.planning.topologies import GENERATIONS, GIB, Topology, parse_shapes, parse_topology

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")


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
        ("v5e-12", "v5e:2x6", 12, 12),
        # As sold: of more than 64 chips in cubes of 4 x 4 x 4, the cubest of them.
        ("v5p-640", "v5p:4x4x20", 320, 320),
        ("v5p-768", "v5p:4x8x12", 384, 384),
        ("v5p-896", "v5p:4x4x28", 448, 448),
        ("v5p-1152", "v5p:4x12x12", 576, 576),
        ("v5p-1280", "v5p:4x8x20", 640, 640),
        ("v5p-12160", "v5p:4x20x76", 6080, 6080),
        ("v5p-12288", "v5p:16x16x24", 6144, 6144),
        ("v5p-13824", "v5p:12x24x24", 6912, 6912),
        ("v5p-17920", "v5p:16x20x28", 8960, 8960),
        ("v4-8192", "v4:16x16x16", 4096, 4096),
        # As asked for: no rule of ours forbids a shape.
        ("v5p:16x20x28", "v5p:16x20x28", 8960, 8960),
        ("v5p:8x8x10", "v5p:8x8x10", 640, 640),
        ("v5e:3x5", "v5e:3x5", 15, 15),
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
        ("v5e:2x2x2", ["2 numbers of chips for v5e"]),
        ("v5p:4x4", ["3 numbers of chips for v5p"]),
        ("v5e:0x4", ["2 numbers of chips", "each 1 or more"]),
        ("v5e:32x32", ["at most 256 chips, the largest slice of v5e; given 1,024"]),
        ("v5e-512", ["at most 256 chips"]),
        ("v5p-17922", ["at most 8,960 chips", "given 8,961"]),
        ("v5e-7", ["v5e-N with N chips", "4, 8, 16", "v5e:2x2"]),
        ("v5e-0", ["v5e-N with N chips"]),
        ("v5p-7", ["TensorCores, 2 per chip", "8, 16, 32, 64, 128"]),
        ("v5e:4x", ["a shape or a size of v5e"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(name, parts):
    with pytest.raises(ValueError, match=r"^topology: given ") as caught:
        parse_topology(name)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


generations = st.sampled_from(list(GENERATIONS.values()))


@hypothesis.given(generations, st.data())
@hypothesis.settings(deadline=None, max_examples=100, derandomize=True)
def test_a_number_means_every_shape_of_so_many_chips(generation, data):
    even = st.sampled_from([2, 4, 6, 8, 12, 16])
    sides = sorted(data.draw(st.lists(even, min_size=generation.dimensions, max_size=generation.dimensions)))
    asked = Topology(generation, tuple(sides))
    hypothesis.assume(asked.num_chips <= generation.most_chips)
    assert parse_topology(asked.name) == asked
    shapes = parse_shapes(f"{generation.name}-{asked.num_chips * generation.number_per_chip}")
    assert {shape.num_chips for shape in shapes} == {asked.num_chips}
    assert len({tuple(sorted(shape.shape)) for shape in shapes}) == len(shapes)
    assert [sum(shape.shape) for shape in shapes] == sorted(sum(shape.shape) for shape in shapes)
    in_cubes = all(side % 4 == 0 for side in sides)
    assert (asked in shapes) == (
        generation.dimensions == 2
        or asked.num_chips <= 64
        or in_cubes
        or not any(all(side % 4 == 0 for side in shape.shape) for shape in shapes)
    )


@hypothesis.given(generations, st.integers(-5, 20000), st.sampled_from("-:x "))
@hypothesis.settings(deadline=None, max_examples=100, derandomize=True)
def test_any_number_is_a_slice_or_one_line(generation, number, separator):
    name = f"{generation.name}{separator}{number}"
    try:
        assert all(shape.num_chips * generation.number_per_chip == number for shape in parse_shapes(name))
        line = ""
    except ValueError as error:
        line = str(error)
    assert not line or (line.startswith(f"topology: given {name!r}, allowed: ") and "\n" not in line)


@needs_libtpu
def test_libtpu_says_which_shapes_exist():
    names = [
        *(
            "v5e:1x1",
            "v5e:2x6",
            "v5e:16x16",
            "v5p:2x2x1",
            "v5p:8x8x10",
            "v5p-1280",
            "v5p-12160",
            "v5p-17920",
            "v4-8192",
        ),
        *("v6e-8", "tpu7x-8", "tpu7x:2x4x1", "v5e-2", "v4-16"),
    ]
    check_topologies([parse_topology(name) for name in names])
    with pytest.raises(
        ValueError, match=r"^topology: given 'v5e:3x5', allowed: a slice that libtpu offers .*2x2x1"
    ) as e:
        check_topologies([parse_topology("v5e:4x4"), parse_topology("v5e:3x5")])
    assert "\n" not in str(e.value)


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
