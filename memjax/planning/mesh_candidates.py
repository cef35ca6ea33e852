"""Lists the meshes, numbers of rows and rematerialisations that a search for the fastest training step may choose."""

import dataclasses
from collections.abc import Sequence

from memjax.config import Config
from memjax.planning.topologies import Topology
from memjax.settings.checks import validate
from memjax.settings.overrides import UsageError, apply_overrides
from memjax.training.sharding import mesh_shape

RECOMPUTED = {"none": 0, "per_layer": 1, "segment": 1, "segment_nested": 2}
"""Setting of `training.remat` -> number of forward passes that are computed again. 'offload' is not searched, because
its memory of the host is not planned."""

MOST_ROWS = 64
"""Largest number of rows on a device that is tried."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mesh with a number of rows and a rematerialisation.

    Attributes:
      data: Number of devices along the axis `data`.
      fsdp: Number of devices along the axis `fsdp`.
      model: Number of devices along the axis `model`.
      rows: Number of rows on each group of devices along the axis `model`.
      remat: Value of `training.remat`.
    """

    data: int
    fsdp: int
    model: int
    rows: int
    remat: str

    @property
    def row_shards(self) -> int:
        """Number of parts into which the mesh splits the rows of a batch."""
        return self.data * self.fsdp

    @property
    def batch_size(self) -> int:
        """Number of rows on all devices together."""
        return self.rows * self.row_shards

    @property
    def mesh(self) -> str:
        """Sizes of the mesh as text, such as '4x16x1'."""
        return f"{self.data}x{self.fsdp}x{self.model}"


def describe(candidate: Candidate) -> str:
    """Describes a candidate in a piece of text.

    Example:
      >>> describe(Candidate(4, 16, 1, 8, "per_layer"))
      'mesh 4x16x1, 512 rows, remat per_layer'
    """
    return f"mesh {candidate.mesh}, {candidate.batch_size:,} rows, remat {candidate.remat}"


def with_mesh(config: Config, text: str) -> Config:
    """Returns a configuration with the mesh that a text such as '4x2x1' names.

    Args:
      config: Configuration that is copied.
      text: Three numbers of devices, data x fsdp x model.

    Raises:
      UsageError: Another text.

    Example:
      >>> with_mesh(Config(), "4x2x1").sharding.fsdp
      2
    """
    sizes = text.split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
        raise UsageError(f"--mesh: given {text!r}, allowed: auto, or data x fsdp x model devices, as 4x2x1")
    data, fsdp, model = map(int, sizes)
    sharding = dataclasses.replace(config.sharding, data=data, fsdp=fsdp, model=model)
    return dataclasses.replace(config, sharding=sharding)


def list_candidates(
    num_devices: int, *, num_heads: int, microbatches: int = 1, remats: Sequence[str] = ("none", "per_layer")
) -> list[Candidate]:
    """Returns a list of all candidates for a number of devices. The axis `model` divides the number of heads, and rows
    on a device are powers of two up to `MOST_ROWS`, times the number of groups that a step computes in turn.

    Args:
      num_devices: Number of devices of the slice.
      num_heads: Number of attention heads. 1 for a model without heads, which is not split.
      microbatches: Number of groups of rows that a step computes in turn.
      remats: Values of `training.remat`.

    Example:
      >>> [candidate.mesh for candidate in list_candidates(4, num_heads=2, remats=["none"]) if candidate.rows == 1]
      ['4x1x1', '2x2x1', '1x4x1', '2x1x2', '1x2x2']
    """
    divisors = [number for number in range(1, num_devices + 1) if num_devices % number == 0]
    rows = [2**power for power in range(MOST_ROWS.bit_length())]
    return [
        Candidate(num_devices // (fsdp * model), fsdp, model, microbatches * number, remat)
        for model in divisors
        if num_heads % model == 0
        for fsdp in divisors
        if num_devices % (fsdp * model) == 0
        for number in rows
        for remat in remats
    ]


def candidates_of(config: Config, topology: Topology) -> list[Candidate]:
    """Returns a list of the candidates for a configuration on a slice, first the one that the configuration itself has.
    If its rows do not divide over its mesh, the first has the rows on each device that come nearest.

    Args:
      config: Configuration to train.
      topology: TPU slice.

    Raises:
      UsageError: A configuration over tasks, whose updates are several programs.
      ValueError: The sizes of its mesh do not fit the number of devices.
    """
    if config.lifelong is not None:
        raise UsageError("--mesh: given auto with a config over tasks, allowed: a config without lifelong, or a mesh")
    sharding, training = config.sharding, config.training
    shape = mesh_shape(topology.num_devices, data=sharding.data, fsdp=sharding.fsdp, model=sharding.model)
    groups = training.num_microbatches
    rows = groups * max(config.data.batch_size // (shape[0] * shape[1] * groups), 1)
    configured = Candidate(*shape, rows, training.remat)
    heads = config.model.num_heads
    # Within a single segment, recomputing all of it saves nothing.
    remats = [remat for remat in RECOMPUTED if training.segments_per_update > 1 or not remat.startswith("segment")]
    remats = [
        remat for remat in remats if _is_valid(apply_candidate(config, dataclasses.replace(configured, remat=remat)))
    ]
    others = list_candidates(topology.num_devices, num_heads=heads, microbatches=groups, remats=remats)
    return [configured, *(candidate for candidate in others if candidate != configured)]


def _is_valid(config: Config) -> bool:
    try:
        validate(config)
    except ValueError:
        return False
    return True


def candidate_options(config: Config, candidate: Candidate) -> list[str]:
    """Returns the options of the command line that give a configuration the mesh, rows and rematerialisation of a
    candidate, as a list of words.

    Args:
      config: Configuration that is changed.
      candidate: The candidate.
    """
    options = {
        "sharding.data": candidate.data,
        "sharding.fsdp": candidate.fsdp,
        "sharding.model": candidate.model,
        "data.batch-size": candidate.batch_size,
        "training.remat": candidate.remat,
    }
    if config.evaluation.batch_size % candidate.row_shards:  # the same mesh evaluates
        options["evaluation.batch-size"] = candidate.batch_size
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def apply_candidate(config: Config, candidate: Candidate) -> Config:
    """Returns a configuration with the mesh, rows and rematerialisation of a candidate.

    Args:
      config: Configuration that is copied.
      candidate: The candidate.
    """
    return apply_overrides(config, candidate_options(config, candidate))


def needs_at_least(candidate: Candidate, other: Candidate) -> bool:
    """Returns whether a candidate needs at least as much memory of a device as another one: no fewer rows, no more
    recomputation, and parameters, heads and rows that are split no further.

    Args:
      candidate: The candidate in question.
      other: A candidate that was compiled.

    Example:
      >>> needs_at_least(Candidate(2, 2, 1, 8, "none"), Candidate(1, 4, 1, 4, "per_layer"))
      True
    """
    return (
        candidate.rows >= other.rows
        and RECOMPUTED[candidate.remat] <= RECOMPUTED.get(other.remat, 0)
        and (candidate.remat == "none" or candidate.remat == other.remat)
        and candidate.fsdp * candidate.model <= other.fsdp * other.model
        and candidate.model <= other.model
    )
