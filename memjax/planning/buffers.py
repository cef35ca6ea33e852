"""Where the HBM of a device goes: what the compiler has written down about its buffers (`--xla_dump_to`)."""

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
"""operations whose name says little about what a buffer holds"""
_PATH_NOISE = re.compile(
    r"jit\(\w+\)|jvp\(.*\)|transpose\(.*\)|vmap\(.*\)|while|body|closed_call|checkpoint|rematted_computation|stack|"
    r"stack\._run|\w+\.body"
)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A piece of the temporary memory of a device.

    Attributes:
      bytes: with padding.
      shape: of what it holds at the moment of the greatest need.
      where: the part of the model that made it, '' where that is not known.
    """

    bytes: int
    shape: str
    where: str


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM that a program needs on one device, with padding.

    Attributes:
      arguments: what it is given.
      outputs: what it returns, `aliased` included.
      aliased: arguments that it may overwrite with outputs.
      temporaries: everything else while it runs.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def total(self) -> int:
        """What is taken while the program runs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclasses.dataclass(frozen=True)
class _Value:
    name: str
    bytes: int
    offset: int
    shape: str


def parse_memory(assignment: str) -> Memory:
    """The sums of a buffer assignment.

    Args:
      assignment: text of the dump `*buffer-assignment.txt`.
    """
    arguments = outputs = aliased = temporaries = 0
    for line in assignment.splitlines():
        found = _ALLOCATION.match(line)
        if not found or found[2]:  # other memories have a color
            continue
        size, kind = int(found[1]), found[3]
        is_argument, leaves = kind.startswith("parameter"), "maybe-live-out" in kind or kind.startswith("output shape")
        arguments += size * is_argument
        outputs += size * leaves
        aliased += size * (is_argument and leaves)
        temporaries += size * (kind.startswith(("preallocated-temp", "constant")))
    return Memory(arguments, outputs, aliased, temporaries)


def largest_temporaries(assignment: str, live_ranges: str, module: Module, limit: int = 6) -> list[Buffer]:
    """The largest temporary buffers at the moment when they need most together.

    Args:
      assignment: text of the dump `*buffer-assignment.txt`.
      live_ranges: text of the dump `*live-range.txt`.
      module: the program.
      limit: how many.
    """
    values = list(_temporaries(assignment))
    alive = _alive_at_peak(values, _live_ranges(live_ranges))
    instructions = {i.name: (scope, i) for scope in module.computations.values() for i in scope.values()}
    sharing: dict[tuple[int, int, str], list[str]] = defaultdict(list)
    for value in values:  # What is updated in place, or passed through a loop, has many names.
        sharing[value.offset, value.bytes, value.shape].append(value.name)
    buffers = []
    for value in sorted(alive, key=lambda value: -value.bytes)[:limit]:
        names = sharing[value.offset, value.bytes, value.shape]
        places = [place for name in names if (place := _origin(module, instructions, name))]
        buffers.append(Buffer(value.bytes, value.shape.partition("{")[0], max(places, key=_detail, default="")))
    return buffers


def describe_place(op_name: str) -> str:
    """A place in a traced program in a few words.

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
    """The values that share the temporary memory of the HBM."""
    inside = False
    for line in assignment.splitlines():
        if line.startswith("allocation"):
            found = _ALLOCATION.match(line)
            inside = bool(found and not found[2] and found[3].startswith("preallocated-temp"))
        elif inside and (found := _VALUE.match(line)):
            yield _Value(found[1], int(found[3]), int(found[4]), found[5])


def _live_ranges(text: str) -> dict[str, tuple[int, int]]:
    ranges = {}
    for line in text.partition("BufferLiveRange:")[2].splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            break
        if found := _RANGE.match(line):
            ranges[found[1].removesuffix("{}")] = (int(found[2]), int(found[3]))
    return ranges


def _alive_at_peak(values: Sequence[_Value], ranges: Mapping[str, tuple[int, int]]) -> list[_Value]:
    """The values alive when most bytes are, one for each place in memory."""
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
    """Where the contents of a value come from: its own place in the program, or that of what is put into it."""
    if name.partition("{")[0] not in instructions:
        return ""
    scope, instruction = instructions[name.partition("{")[0]]
    own = instruction.op_name
    if own and own.rpartition("/")[2] not in _COARSE:
        return describe_place(own)
    called = instruction.attribute("calls") or instruction.attribute("called_computations")
    inner = module.computations.get(called, {})
    sources = [i.op_name for i in inner.values() if i.opcode != "parameter"]
    sources += [scope[operand].op_name for operand in instruction.operands if operand in scope]
    telling = [source for source in sources if source and source.rpartition("/")[2] not in _COARSE]
    return describe_place(max(telling, key=lambda source: source.count("/"), default=own))


def _detail(place: str) -> tuple[bool, int]:
    return place.rpartition("/")[2] not in _COARSE, place.count("/")
