"""Reads how a compiled program uses the HBM of a device from the compiler's dumps of its buffers (`--xla_dump_to`)."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from memjax.planning.hlo import Instruction, Module

_ALLOCATION = re.compile(r"allocation \d+: size (\d+)(?:, color (\d+))?, page \d+, (.*)")
_VALUE = re.compile(r"\s*value: <\d+ (\S+)(?: \(phi\))? @(\d+)> \(size=(\d+),offset=(\d+)\): (\S+)")
_RANGE = re.compile(r"    (\S+):(\d+)-(\d+)$")

_COARSE = frozenset(
    "while broadcast_in_dim dynamic_update_slice dynamic_slice select_n copy reshape transpose squeeze concatenate "
    "convert_element_type".split()
)
"""Operations whose name says little about the contents of a buffer."""
_PATH_NOISE = re.compile(
    r"jit\(\w+\)|jvp\(.*\)|transpose\(.*\)|vmap\(.*\)|while|body|closed_call|checkpoint|rematted_computation|stack|"
    r"stack\._run|\w+\.body"
)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A temporary buffer in the memory of a device: its size in bytes, its shape, and the part of the model that fills
    it.

    Attributes:
      bytes: Size in bytes, with padding.
      shape: Shape of the array that it holds when the program needs most memory.
      where: Part of the model that computes the array. '' if it is not known.
    """

    bytes: int
    shape: str
    where: str


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Bytes of HBM that a program needs on one device, with padding.

    Attributes:
      arguments: Bytes of the arguments.
      outputs: Bytes of the results, including those in `aliased`.
      aliased: Bytes of arguments that the program may overwrite with results.
      temporaries: Bytes of all other arrays while the program runs.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def total(self) -> int:
        """Bytes that are in use while the program runs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclasses.dataclass(frozen=True)
class _Value:
    name: str
    bytes: int
    offset: int
    shape: str


def parse_memory(assignment: str) -> MemoryUse:
    """Sums the bytes of the buffers of a program by kind (`MemoryUse`). `assignment` is the text of the compiler's dump
    of its buffers.

    Args:
      assignment: Text of the compiler's dump `*buffer-assignment.txt`.
    """
    arguments = outputs = aliased = temporaries = 0
    for line in assignment.splitlines():
        match = _ALLOCATION.match(line)
        if not match or match[2]:  # buffers outside the HBM have a color
            continue
        size, kind = int(match[1]), match[3]
        is_argument, leaves = kind.startswith("parameter"), "maybe-live-out" in kind or kind.startswith("output shape")
        arguments += size * is_argument
        outputs += size * leaves
        aliased += size * (is_argument and leaves)
        temporaries += size * (kind.startswith(("preallocated-temp", "constant")))
    return MemoryUse(arguments, outputs, aliased, temporaries)


def largest_temporaries(assignment: str, live_ranges: str, module: Module, limit: int = 6) -> list[Buffer]:
    """Returns a list of the `limit` largest temporary buffers (`Buffer`) at the moment when all together need most
    memory. `assignment` and `live_ranges` are texts of the compiler's dumps.

    Args:
      assignment: Text of the compiler's dump `*buffer-assignment.txt`.
      live_ranges: Text of the compiler's dump `*live-range.txt`.
      module: Compiled program.
      limit: Largest number of buffers.
    """
    values = list(_temporaries(assignment))
    alive = _alive_at_peak(values, _live_ranges(live_ranges))
    instructions = {i.name: (scope, i) for scope in module.computations.values() for i in scope.values()}
    sharing: dict[tuple[int, int, str], list[str]] = defaultdict(list)
    for value in values:  # An array that is updated in place, or passed through a loop, has many names.
        sharing[value.offset, value.bytes, value.shape].append(value.name)
    buffers = []
    for value in sorted(alive, key=lambda value: -value.bytes)[:limit]:
        names = sharing[value.offset, value.bytes, value.shape]
        places = [place for name in names if (place := _origin(module, instructions, name))]
        buffers.append(Buffer(value.bytes, value.shape.partition("{")[0], max(places, key=_detail, default="")))
    return buffers


def describe_place(op_name: str) -> str:
    """Shortens the path of an operation in a traced program, such as `op_name` in HLO text, to a string with the part
    of the model and the operation.

    Example:
      >>> describe_place("jit(step)/transpose(jvp(Model))/stack/stack._run/while/body/layers_0/attention/add")
      'backward layers_0/attention/add'
    """
    parts: list[str] = []
    for part in op_name.split("/"):
        if _PATH_NOISE.fullmatch(part):
            continue
        if parts and part.partition(".")[0] == parts[-1].partition(".")[0]:
            parts.pop()  # attention/attention._read
        parts.append(part)
    parts = [part.replace("\\'", "'") for part in parts]
    backward = "backward " if "transpose(" in op_name else "recomputed " if "rematted_computation" in op_name else ""
    return backward + "/".join(parts[-5:]) if parts else ""


def _temporaries(assignment: str) -> Iterator[_Value]:
    """Yields the values in the temporary memory of the HBM."""
    inside = False
    for line in assignment.splitlines():
        if line.startswith("allocation"):
            match = _ALLOCATION.match(line)
            inside = bool(match and not match[2] and match[3].startswith("preallocated-temp"))
        elif inside and (match := _VALUE.match(line)):
            yield _Value(match[1], int(match[3]), int(match[4]), match[5])


def _live_ranges(text: str) -> dict[str, tuple[int, int]]:
    ranges = {}
    for line in text.partition("BufferLiveRange:")[2].splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            break
        if match := _RANGE.match(line):
            ranges[match[1].removesuffix("{}")] = (int(match[2]), int(match[3]))
    return ranges


def _alive_at_peak(values: Sequence[_Value], ranges: Mapping[str, tuple[int, int]]) -> list[_Value]:
    """Returns the values that are alive when most bytes are in use, one for each position in memory."""
    moments = sorted({ranges[value.name][0] for value in values if value.name in ranges})
    starts: dict[int, list[_Value]] = defaultdict(list)
    stops: dict[int, list[_Value]] = defaultdict(list)
    for value in values:
        if value.name in ranges:
            start, stop = ranges[value.name]
            starts[start].append(value)
            stops[stop].append(value)
    best, best_bytes = [], -1
    alive: dict[str, _Value] = {}
    ends = sorted(stops)
    position = 0
    for moment in moments:
        while position < len(ends) and ends[position] < moment:
            for value in stops[ends[position]]:
                alive.pop(value.name, None)
            position += 1
        alive.update({value.name: value for value in starts[moment]})
        places = {value.offset: value for value in sorted(alive.values(), key=lambda value: value.bytes)}
        total = sum(value.bytes for value in places.values())
        if total > best_bytes:
            best, best_bytes = list(places.values()), total
    return best


def _origin(
    module: Module, instructions: Mapping[str, tuple[Mapping[str, Instruction], Instruction]], name: str
) -> str:
    """Describes where a value is computed: its own operation, or if that says little, the operations of its inputs."""
    if name.partition("{")[0] not in instructions:
        return ""
    scope, instruction = instructions[name.partition("{")[0]]
    op_name = instruction.op_name
    if op_name and op_name.rpartition("/")[2] not in _COARSE:
        return describe_place(op_name)
    called = instruction.attribute("calls") or instruction.attribute("called_computations")
    inner = module.computations.get(called, {})
    sources = [i.op_name for i in inner.values() if i.opcode != "parameter"]
    sources += [scope[operand].op_name for operand in instruction.operands if operand in scope]
    telling = [source for source in sources if source and source.rpartition("/")[2] not in _COARSE]
    return describe_place(max(telling, key=lambda source: source.count("/"), default=op_name))


def _detail(place: str) -> tuple[bool, int]:
    return place.rpartition("/")[2] not in _COARSE, place.count("/")
