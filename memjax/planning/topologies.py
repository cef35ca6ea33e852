"""Parses the names of TPU slices, and lists public facts about their chips.

A name is `GENERATION:SHAPE` with the shape in chips (`v5e:4x4`, `v5p:4x4x4`), or what Google Cloud sells,
`GENERATION-NUMBER`. The number counts chips for v5e (also `v5litepod-16`) and v6e, and TensorCores, two per chip, for
v4, v5p and 7x: `v5e-16` is 16 chips, `v5p-128` is 64 chips, `v5p:4x4x4`. It means every shape of so many chips, of
which the cubest is taken. Whether a shape exists is for libtpu to say (`Topology.devices`).

A device, as JAX counts them, is a chip; a chip of TPU7x is two devices. The facts below are per chip and come from the
pages of each generation in Google's documentation (https://docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e, tpu7x):
peak bfloat16 FLOP/s, HBM bandwidth, and the bandwidth between chips (ICI), of which the pages give both directions
together and this table one (v4: six links of 50 GB/s, https://arxiv.org/abs/2304.01433). What the compiler allows of
the HBM of a device is from its own message when a program does not fit (libtpu 0.0.51).

Importing this file loads neither JAX nor libtpu.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Generation:
    """One generation of TPUs: speeds and memory of a chip, and the sizes of its slices.

    Attributes:
      name: Name of the generation in the names of slices, such as 'v5e'.
      peak_flops: Floating-point operations of a chip per second in bfloat16.
      hbm_bandwidth: Bytes per second that a chip can read from or write to its HBM.
      ici_bandwidth: Bytes per second that a chip can send to its neighbours over all links together.
      hbm_limit: Bytes of HBM on one device that a program may use.
      dimensions: Number of dimensions of the network between chips, 2 or 3.
      most_chips: Number of chips in the largest slice.
      devices_per_chip: Number of JAX devices on a chip.
      number_per_chip: Number that a chip contributes to the number in a slice's name: 1 for chips, 2 for TensorCores.
      options: Options for `jax.experimental.topologies.get_topology_desc`.
    """

    name: str
    peak_flops: float
    hbm_bandwidth: float
    ici_bandwidth: float
    hbm_limit: int
    dimensions: int
    most_chips: int
    devices_per_chip: int = 1
    number_per_chip: int = 1
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


GENERATIONS: dict[str, Generation] = {
    generation.name: generation
    for generation in (
        # Without the option a v4 chip is two devices of half the memory, as nobody uses it.
        Generation(
            "v4", 275e12, 1200e9, 300e9, int(30.75 * GIB), 3, 4096, number_per_chip=2,
            options={"chip_config_name": "megacore"},
        ),
        Generation("v5e", 197e12, 819e9, 200e9, int(15.75 * GIB), 2, 256),
        Generation("v5p", 459e12, 2765e9, 600e9, int(95.73 * GIB), 3, 8960, number_per_chip=2),
        Generation("v6e", 918e12, 1638e9, 400e9, int(31.24 * GIB), 2, 256),
        Generation("tpu7x", 2307e12, 7380e9, 600e9, int(94.74 * GIB), 3, 9216, devices_per_chip=2, number_per_chip=2),
    )
}  # fmt: skip
"""Name of a generation -> its facts."""

ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x", "7x": "tpu7x", "ironwood": "tpu7x", "trillium": "v6e"}
"""Other name of a generation -> its name here."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """A TPU slice: chips of one generation, connected in a grid.

    Attributes:
      generation: Generation of the chips.
      shape: Number of chips along each dimension of the grid.
    """

    generation: Generation
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the slice as the compiler expects it, such as `v5e:4x4`."""
        return f"{self.generation.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """Number of devices, as JAX counts them."""
        return self.num_chips * self.generation.devices_per_chip

    @property
    def peak_flops(self) -> float:
        """Floating-point operations of a device per second in bfloat16."""
        return self.generation.peak_flops / self.generation.devices_per_chip

    @property
    def hbm_bandwidth(self) -> float:
        """Bytes per second that a device can read from or write to its HBM."""
        return self.generation.hbm_bandwidth / self.generation.devices_per_chip

    @property
    def ici_bandwidth(self) -> float:
        """Bytes per second that a device can send to other devices, over all its links together."""
        return self.generation.ici_bandwidth / self.generation.devices_per_chip

    @property
    def hbm_limit(self) -> int:
        """Bytes of HBM on a device that a program may use."""
        return self.generation.hbm_limit

    def devices(self) -> list[Any]:
        """Returns a list of the devices of the slice, to compile for. This needs libtpu, but no TPU.

        Raises:
          ValueError: libtpu does not offer the slice.
        """
        import jax
        from jax.experimental import topologies

        try:
            return topologies.get_topology_desc(self.name, platform="tpu", **self.generation.options).devices
        except jax.errors.JaxRuntimeError as error:
            if "INVALID_ARGUMENT" not in str(error):
                raise
            reason = " ".join(str(error).split()).removeprefix("INVALID_ARGUMENT: ")
            raise ValueError(
                f"topology: given {self.name!r}, allowed: a slice that libtpu offers ({reason})"
            ) from error


def parse_topology(name: str) -> Topology:
    """Returns the `Topology` that a name such as `v5e:4x4` or `v5e-16` means. For a size, as in the second, it is the
    first of `parse_shapes`.

    Args:
      name: `v5e:4x4`, `v5e-16`, `v5p-128`; upper and lower case are the same.

    Raises:
      ValueError: An unknown generation, or a size that it does not have. What libtpu alone knows, it refuses later.

    Example:
      >>> parse_topology("v5e-16").name, parse_topology("v5p-128").name, parse_topology("v5p-1280").name
      ('v5e:4x4', 'v5p:4x4x4', 'v5p:4x8x20')
      >>> parse_topology("v5p-128").num_chips
      64
    """
    return parse_shapes(name)[0]


def parse_shapes(name: str) -> list[Topology]:
    """Returns a list of every slice (`Topology`) that a name such as `v5e-16` means, the cubest first. A shape, as in
    `v5e:4x4`, means itself alone.

    Args:
      name: See `parse_topology`. A shape means itself.

    Raises:
      ValueError: An unknown generation, or a size that it does not have.

    Example:
      >>> [topology.name for topology in parse_shapes("v5p-1280")]
      ['v5p:4x8x20', 'v5p:4x4x40']
    """
    parts = re.match(r"([^:-]*)([:-]?)(.*)", name.strip().lower())
    assert parts is not None  # every text has the three parts
    prefix, separator, size = parts.groups()
    generation = _generation(name, prefix)
    examples = ", ".join(Topology(generation, _shapes(generation, chips)[0]).name for chips in (4, 8, 16, 32, 64))
    refused = f"topology: given {name!r}, allowed:"
    largest = f"at most {generation.most_chips:,} chips, the largest slice of {generation.name}"
    if separator == ":" and re.fullmatch(r"\d+(x\d+)*", size):
        shape = tuple(int(side) for side in size.split("x"))
        if len(shape) != generation.dimensions or 0 in shape:  # libtpu ends the process where a side is 0
            raise ValueError(
                f"{refused} {generation.dimensions} numbers of chips for {generation.name}, each 1 or more, as "
                f"{examples}"
            )
        if math.prod(shape) > generation.most_chips:
            raise ValueError(f"{refused} {largest}; given {math.prod(shape):,}")
        return [Topology(generation, shape)]
    if separator == "-" and size.isdecimal():
        chips, rest = divmod(int(size), generation.number_per_chip)
        if chips > generation.most_chips:
            raise ValueError(f"{refused} {largest}; given {chips:,}")
        if shapes := [] if rest else _shapes(generation, chips):
            return [Topology(generation, shape) for shape in shapes]
        cores = generation.number_per_chip
        counted = f"TensorCores, {cores} per chip" if cores > 1 else "chips"
        known = ", ".join(str(chips * cores) for chips in (4, 8, 16, 32, 64, 128, 256))
        raise ValueError(
            f"{refused} {generation.name}-N with N {counted}, in hosts of 2 x 2 chips, such as {known}; or a shape in "
            f"chips, as {examples}"
        )
    raise ValueError(f"{refused} a shape or a size of {generation.name}, as {examples}")


def _generation(name: str, prefix: str) -> Generation:
    prefix = ALIASES.get(prefix, prefix)
    if prefix in GENERATIONS:
        return GENERATIONS[prefix]
    near = difflib.get_close_matches(prefix, GENERATIONS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"topology: given {name!r}, allowed: a slice of {', '.join(GENERATIONS)}, as v5e:4x4 or v5p-128{hint}"
    )


def _shapes(generation: Generation, chips: int) -> list[tuple[int, ...]]:
    """Lists every shape of a number of chips that hosts of 2 x 2 chips allow, the most cubic first.

    For more than 64 chips in three dimensions, shapes made of cubes of 4 x 4 x 4 replace all others if there are any,
    since only these are sold. Shapes that differ only in the order of their sides count once, with sides in ascending
    order and sides of 1 last.
    """
    divisors = [side for side in range(1, chips + 1) if chips % side == 0]
    if generation.dimensions == 2:
        shapes = {tuple(sorted((side, chips // side))) for side in divisors}
    else:
        pairs = [
            (a, b) for a in divisors for b in divisors if a <= b and chips % (a * b) == 0 and b <= chips // (a * b)
        ]
        shapes = {(a, b, chips // (a * b)) for a, b in pairs}
    ordered = [tuple(sorted(shape, key=lambda side: (side == 1, side))) for shape in shapes]
    whole = [shape for shape in ordered if all(side == 1 or side % 2 == 0 for side in shape[:2])]
    cubes = [shape for shape in whole if len(shape) == 3 and chips > 64 and all(side % 4 == 0 for side in shape)]
    return sorted(cubes or whole, key=lambda shape: (sum(shape), shape))
