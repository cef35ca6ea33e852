"""What the text of a compiled program says: which collectives it has, and how many bytes go through the HBM.

`compiled.cost_analysis()` counts the body of a loop once and a gather as a read of its whole table. Here the bodies of
loops count as often as they run (a condition `counter < constant`, which is what scans become), and what is sliced,
gathered or updated in place counts what is touched. A collective that runs beside computation is written several times,
in the fusions that start it, go on with it and end it; it counts once. Both counts are of one device.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
"""kinds; asynchronous ones (`all-gather-start`) count as their kind"""

ITEM_BITS = {"pred": 8, "token": 0, "opaque": 0}
"""dtype -> bits of an element, where its name does not say"""

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call after-all partition-id replica-id "
    "opt-barrier add-dependency".split()
)
"""operations that move nothing themselves"""

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,]*)\](\{[^{}]*\})?")
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([^\s=]+) = ")
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: without `%`.
      shape: with layouts, as written.
      opcode: of the operation.
      operands: names.
      text: everything behind the operands.
      is_root: its value is that of the computation.
      argument: what stands in the parentheses, as written (the value of a constant, the number of a parameter).
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str
    is_root: bool
    argument: str

    @property
    def op_name(self) -> str:
        """Where in the traced program it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found else ""

    def attribute(self, name: str) -> str:
        """A name that an attribute gives (`body`, `condition`, `calls`), '' where it is absent."""
        found = re.search(rf"\b{name}=\{{?%?([\w.\-]+)", self.text)
        return found[1] if found else ""

    def called(self) -> list[str]:
        """Names of all computations that it runs."""
        branches = _BRANCHES.search(self.text)
        names = [part.strip().lstrip("%") for part in branches[1].split(",")] if branches else []
        return names + _CALLED.findall(self.text)


@dataclasses.dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
      computations: name -> its instructions by name, in order.
      entry: name of the computation that is run.
    """

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind on one device in one run of the program.

    Attributes:
      kind: one of `COLLECTIVES`.
      count: how often one runs.
      bytes: of what is gathered (all-gather), reduced, or sent.
      sent_bytes: that a device sends with the algorithm that sends least (a ring).
    """

    kind: str
    count: int
    bytes: int
    sent_bytes: float


def parse_hlo(text: str) -> Module:
    """The computations of a program, from `compiled.as_text()` or a dump.

    Raises:
      ValueError: text without an entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            found = _COMPUTATION.match(line)
            if found:
                current = computations.setdefault(found[2], {})
                entry = found[2] if found[1] else entry
        elif line.startswith("}"):
            current = None
        else:
            instruction = _parse_instruction(line)
            if instruction is not None:
                current[instruction.name] = instruction
    if not entry:
        raise ValueError("hlo: given a text without `ENTRY`, allowed: the text of a compiled program")
    return Module(computations, entry)


def collectives(module: Module, num_devices: int) -> tuple[list[Collective], list[str]]:
    """The collectives of a program by kind, most bytes first.

    Args:
      module: from `parse_hlo`.
      num_devices: that run the program; the group of a collective that names none.

    Returns:
      One `Collective` for each kind, and the names of loops that count once because nobody knows how often they run.
    """
    found: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    runs, unknown = _runs(module)
    for computation, times in runs.items():
        for inside, instruction in _collectives_in(module, computation):
            kind = _kind(instruction)
            size = _collective_bytes(instruction, kind)
            # The compiler writes a reduce-scatter as a fusion of an all-reduce and a slice.
            kind = "reduce-scatter" if inside.startswith("all-reduce-scatter") else kind
            group = group_size(instruction.text, num_devices)
            found[kind].append((times, times * size, times * size * _sent_share(kind, group)))
    totals = [
        Collective(kind, sum(c for c, _, _ in parts), sum(b for _, b, _ in parts), sum(s for _, _, s in parts))
        for kind, parts in found.items()
    ]
    return sorted(totals, key=lambda total: -total.bytes), unknown


def hbm_bytes(module: Module) -> int:
    """Bytes that a device reads from and writes to its HBM in one run: a lower bound, each operand read once."""
    runs, _ = _runs(module)
    traffic = _Traffic(module, {i.name for computation in runs for _, i in _collectives_in(module, computation)})
    return sum(
        times * sum(traffic.of(computation, i) for i in module.computations[computation].values())
        for computation, times in runs.items()
    )


def shape_bytes(shape: str, *, hbm_only: bool = False) -> int:
    """Bytes of the arrays in a shape, without padding.

    Args:
      shape: `f32[8,128]{1,0}`, or a tuple of such.
      hbm_only: leave out arrays whose layout names another memory, as `S(1)`.

    Example:
      >>> shape_bytes("(f32[2,3]{1,0}, bf16[4]{0:T(8)S(1)})"), shape_bytes("bf16[4]{0:T(8)S(1)}", hbm_only=True)
      (32, 0)
    """
    total = 0
    for dtype, sizes, layout in _ARRAY.findall(shape):
        if hbm_only and "S(" in layout:
            continue
        total += _item_bits(dtype) * math.prod(int(size) for size in sizes.split(",") if size) // 8
    return total


def group_size(text: str, num_devices: int) -> int:
    """Devices in one group of a collective, from its attributes.

    Example:
      >>> group_size("replica_groups={{0,1},{2,3}}, channel_id=1", 4), group_size("replica_groups=[2,8]<=[16]", 16)
      (2, 8)
      >>> group_size("replica_groups=mesh['a'=4,'b'=2] {'b'}", 8)
      2
    """
    named = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text)
    if named:
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
        parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])  # 'a':(2)4 is a part of an axis, of size 4
        return math.prod(int(part) if part else sizes.get(axis, 1) for axis, part in parts) or num_devices
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", text)
    if iota:
        return int(iota[2])
    listed = re.search(r"replica_groups=\{\{([^}]*)\}", text)
    return len(listed[1].split(",")) if listed else num_devices


def trip_count(module: Module, scope: Mapping[str, Instruction], loop: Instruction) -> int | None:
    """How often the body of a `while` runs; None where its text does not say.

    Args:
      module: the program.
      scope: the computation with the loop.
      loop: the loop.
    """
    known = re.search(r'known_trip_count[\\"]*:\s*\{[\\"]*n[\\"]*:\s*[\\"]*(\d+)', loop.text)
    if known:
        return int(known[1])
    condition = module.computations.get(loop.attribute("condition"), {})
    root = next((i for i in condition.values() if i.is_root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.text:
        return None
    counter, limit = (condition.get(name) for name in root.operands[:2])
    stop = _constant(condition, limit)
    if counter is None or counter.opcode != "get-tuple-element" or stop is None:
        return None
    index = int(counter.text.partition("index=")[2].partition(",")[0] or 0)
    start, init = 0, scope.get(loop.operands[0])
    if init is not None and init.opcode == "tuple":
        start = _constant(scope, scope.get(init.operands[index])) or 0
    return max(stop - start, 0)


def _parse_instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    rest = line[found.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, parenthesis, _ = rest.partition("(")
    if not parenthesis or " " in opcode:
        return None
    close = _closing(rest, len(opcode))
    argument = rest[len(opcode) + 1 : close]
    names = tuple(re.findall(r"%([^\s,()]+)", argument))
    return Instruction(found[2], shape, opcode, names, rest[close + 1 :], bool(found[1]), argument)


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    return len(text) - 1


def _runs(module: Module) -> tuple[dict[str, int], list[str]]:
    """Computation outside of fusions -> how often it runs, and loops of which nobody knows."""
    runs: dict[str, int] = defaultdict(int)
    unknown: list[str] = []

    def visit(computation: str, times: int) -> None:
        scope = module.computations.get(computation)
        if scope is None:
            return
        runs[computation] += times
        for instruction in scope.values():
            if instruction.opcode == "while":
                trips = trip_count(module, scope, instruction)
                if trips is None:
                    unknown.append(instruction.name)
                visit(instruction.attribute("body"), times * (1 if trips is None else trips))
            elif instruction.opcode in ("call", "conditional"):
                for name in instruction.called():
                    visit(name, times)

    visit(module.entry, 1)
    return dict(runs), unknown


def _collectives_in(module: Module, computation: str) -> Iterator[tuple[str, Instruction]]:
    """The collectives of a computation and of its fusions, with the computation where each stands, once each.

    The pieces of one that runs beside computation have one channel.
    """
    seen: set[str] = set()

    def visit(name: str) -> Iterator[tuple[str, Instruction]]:
        for instruction in module.computations.get(name, {}).values():
            if _kind(instruction):
                channel = instruction.attribute("channel_id") or instruction.name
                if channel not in seen:
                    seen.add(channel)
                    yield name, instruction
            # What is called from here runs as a computation of its own.
            elif instruction.opcode in ("fusion", "async-start") or (
                instruction.opcode == "call" and name != computation
            ):
                for called in instruction.called():
                    yield from visit(called)

    yield from visit(computation)


def _kind(instruction: Instruction) -> str:
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else ""


def _collective_bytes(instruction: Instruction, kind: str) -> int:
    size = shape_bytes(_arriving(instruction))
    # What is reduced is larger than what arrives.
    return size * group_size(instruction.text, 1) if kind == "reduce-scatter" else size


def _arriving(instruction: Instruction) -> str:
    """The shape of the results; where an operation that starts is (operands, results, ...), of its second part."""
    shape = instruction.shape
    if instruction.opcode not in ("all-gather-start", "collective-permute-start"):
        return shape
    inner = shape[1:-1]
    rest = inner[_first_comma(inner) + 1 :].lstrip()
    rest = re.sub(r"^/\*.*?\*/\s*", "", rest)
    return rest[: _first_comma(rest)]


def _first_comma(text: str) -> int:
    """Index of the first comma outside of brackets."""
    depth = 0
    for index, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            return index
    return len(text)


def _sent_share(kind: str, group: int) -> float:
    """What a device sends of the bytes of a collective."""
    share = (group - 1) / group
    return {"all-reduce": 2 * share, "collective-permute": 1.0 if group > 1 else 0.0}.get(kind, share)


def _constant(scope: Mapping[str, Instruction], instruction: Instruction | None) -> int | None:
    """The integer that an instruction is, through copies."""
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = scope.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "constant" or not instruction.argument.lstrip("-").isdigit():
        return None
    return int(instruction.argument)


class _Traffic:
    """Bytes that instructions outside of fusions move between HBM and the rest."""

    def __init__(self, module: Module, started: Collection[str]):
        """Prepares to count.

        Args:
          module: the program.
          started: names of collectives; others in a fusion only go on with, or end, one of them.
        """
        self._computations, self._started = module.computations, started

    def of(self, computation: str, instruction: Instruction) -> int:
        opcode, scope = instruction.opcode, self._computations[computation]
        if opcode in FREE or "AllocateBuffer" in instruction.text:
            return 0
        part = opcode.rpartition("-")[2]
        if part in ("start", "update", "done") and not _kind(instruction):
            collective = opcode.removesuffix("-done") in COLLECTIVES  # counted where it starts
            return 0 if part != "done" or collective else self._copied(scope, instruction)
        operands = [scope[name] for name in instruction.operands if name in scope]
        if opcode == "fusion":
            return self._fusion(instruction, operands)
        # An operand that is used twice is read once, by its first use.
        uses = {name: (instruction, position) for position, name in reversed([*enumerate(instruction.operands)])}
        read = sum(self._read(scope[name], [use]) for name, use in uses.items() if name in scope)
        return read + self._written(scope, instruction, _arriving(instruction))

    def _copied(self, scope: Mapping[str, Instruction], done: Instruction) -> int:
        """What has been copied, sliced or gathered beside computation; the operands are those of an earlier part."""
        sources: list[str] = []
        part: Instruction | None = done
        while part is not None and part.opcode.endswith(("-done", "-update", "-start")):
            sources += [scope[name].shape for name in part.operands if name in scope]
            part = scope.get(part.operands[0]) if part.operands else None
        read = any(shape_bytes(shape, hbm_only=True) for shape in sources if not shape.startswith("("))
        return shape_bytes(done.shape) * read + shape_bytes(done.shape, hbm_only=True)

    def _fusion(self, fusion: Instruction, operands: Sequence[Instruction]) -> int:
        inner = self._computations.get(fusion.attribute("calls"), {})
        total = 0
        for index, operand in enumerate(operands):
            parameter = _parameter(inner, index)
            if shape_bytes(operand.shape, hbm_only=True) and parameter is not None:
                total += self._read(parameter, self._uses(inner, parameter.name))
        root = next((i for i in inner.values() if i.is_root), None)
        shapes = [match[0] for match in _ARRAY.finditer(fusion.shape)]
        if root is None:
            return total + shape_bytes(fusion.shape, hbm_only=True)
        if "AsyncCollectiveStart" in root.text:  # (source, destination, ...)
            return total + shape_bytes(shapes[1], hbm_only=True)
        results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return total + sum(self._written(inner, i, shape) for i, shape in zip(results, shapes, strict=False))

    def _uses(self, scope: Mapping[str, Instruction], name: str) -> Iterator[tuple[Instruction, int]]:
        """Who uses a value in a fusion, as which operand; seen through bitcasts and inner fusions."""
        for user in scope.values():
            for position, operand in enumerate(user.operands):
                if operand != name:
                    continue
                inner = self._computations.get(user.attribute("calls"), {}) if user.opcode == "fusion" else {}
                parameter = _parameter(inner, position)
                if user.opcode in ("bitcast", "reshape"):
                    yield from self._uses(scope, user.name)
                elif parameter is not None:
                    yield from self._uses(inner, parameter.name)
                else:
                    yield user, position

    def _passes(self, instruction: Instruction) -> bool:
        """Moves nothing in a fusion."""
        if _kind(instruction):
            return instruction.name not in self._started
        return instruction.opcode in ("parameter", "tuple") or "AsyncCollective" in instruction.text

    def _read(self, source: Instruction, uses: Iterable[tuple[Instruction, int]]) -> int:
        """Bytes that are read of `source`, an array in the HBM unless its own layout says otherwise."""
        whole = shape_bytes(source.shape, hbm_only=True)
        total = 0
        for user, position in uses:
            if position == 0 and user.opcode in ("dynamic-slice", "slice", "gather"):
                total += shape_bytes(user.shape)
            elif not self._passes(user) and not (position == 0 and user.opcode in ("dynamic-update-slice", "scatter")):
                return whole
        return min(total, whole)

    def _written(self, scope: Mapping[str, Instruction], result: Instruction, shape: str) -> int:
        """Bytes that arrive in an array of `shape`; an update in place writes what is new."""
        whole = shape_bytes(shape, hbm_only=True)
        while True:
            inner = self._computations.get(result.attribute("calls"), {}) if result.opcode == "fusion" else {}
            if result.opcode in ("bitcast", "reshape") and result.operands and result.operands[0] in scope:
                result = scope[result.operands[0]]
            elif inner and (root := next(i for i in inner.values() if i.is_root)).opcode != "tuple":
                scope, result = inner, root
            else:
                break
        if self._passes(result):
            return 0
        update: Any = {"dynamic-update-slice": 1, "scatter": -1}.get(result.opcode)
        if whole and update is not None and len(result.operands) > 1:
            new = scope.get(result.operands[update])
            size = shape_bytes(new.shape) if new is not None else whole
            return min(size * (2 if result.opcode == "scatter" else 1), whole)
        return whole


def _parameter(scope: Mapping[str, Instruction], index: int) -> Instruction | None:
    return next((i for i in scope.values() if i.opcode == "parameter" and i.argument == str(index)), None)


def _item_bits(dtype: str) -> int:
    if dtype in ITEM_BITS:
        return ITEM_BITS[dtype]
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 0
