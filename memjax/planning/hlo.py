"""Counts the collectives of a compiled program and the bytes that it moves through the HBM, from its HLO text.

`compiled.cost_analysis()` counts the body of a loop once and a gather as a read of its whole table. Here the body of a
loop counts as often as it runs, if its condition is `counter < constant`, as for scans. Slices, gathers and updates in
place count only the bytes that they touch. A collective that runs in parallel with computation appears several times in
the text, in the fusions that start, continue and end it, but counts once. Both counts are per device.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
"""Kinds of collectives. Asynchronous ones (`all-gather-start`) count as their kind."""

ITEM_BITS = {"pred": 8, "token": 0, "opaque": 0}
"""Name of a dtype -> bits of an element, for names without a number of bits."""

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call after-all partition-id replica-id "
    "opt-barrier add-dependency".split()
)
"""Operations that move no data themselves."""

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,]*)\](\{[^{}]*\})?")
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([^\s=]+) = ")
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of an HLO computation, parsed from one line of text: its name, shape, opcode, operands and
    attributes.

    Attributes:
      name: Name of the instruction, without `%`.
      shape: Shape of the result as written, with layouts.
      opcode: Name of the operation.
      operands: Names of the operands.
      text: Text after the operands, with the attributes.
      is_root: Whether the value of the instruction is the value of the computation.
      argument: Text in the parentheses, such as the value of a constant or the number of a parameter.
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
        """Path of the operation in the traced program that the instruction comes from. '' if it is not known."""
        match = re.search(r'op_name="([^"]*)"', self.text)
        return match[1] if match else ""

    def attribute(self, name: str) -> str:
        """Returns the name that the attribute `name`, such as `body` or `calls`, holds. '' if the attribute is missing.

        Args:
          name: Name of the attribute, such as `body`, `condition` or `calls`.
        """
        match = re.search(rf"\b{name}=\{{?%?([\w.\-]+)", self.text)
        return match[1] if match else ""

    def called(self) -> list[str]:
        """Returns a list of the names of all computations that the instruction runs."""
        branches = _BRANCHES.search(self.text)
        names = [part.strip().lstrip("%") for part in branches[1].split(",")] if branches else []
        return names + _CALLED.findall(self.text)


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled HLO program: the instructions of all its computations by name, and the name of the one that starts it.

    Attributes:
      computations: Name of a computation -> its instructions by name, in order.
      entry: Name of the computation that starts the program.
    """

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


@dataclasses.dataclass(frozen=True)
class Collective:
    """The number and the bytes of all collectives of one kind on one device in one execution of a program.

    Attributes:
      kind: Kind of the collectives, one of `COLLECTIVES`.
      count: Number of times that such a collective runs.
      bytes: Bytes of the gathered, reduced or sent arrays.
      sent_bytes: Bytes that a device sends with the algorithm that sends least (a ring).
    """

    kind: str
    count: int
    bytes: int
    sent_bytes: float


def parse_hlo(text: str) -> Module:
    """Parses the HLO text of a compiled program into a `Module`.

    Args:
      text: Result of `compiled.as_text()`, or a dump of the compiler.

    Raises:
      ValueError: The text has no entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            match = _COMPUTATION.match(line)
            if match:
                current = computations.setdefault(match[2], {})
                entry = match[2] if match[1] else entry
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
    """Counts the collectives of a program by kind. Returns two lists: a `Collective` for each kind, most bytes first,
    and the names of loops that count once because their number of iterations is not known.

    Args:
      module: Compiled program (`parse_hlo`).
      num_devices: Number of devices that run the program. It is the group size of collectives that do not name a group.

    Returns:
      One `Collective` for each kind, and the names of loops that are counted once because their number of iterations is
      not known.
    """
    by_kind: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    runs, unknown = _count_runs(module)
    for computation, times in runs.items():
        for inside, instruction in _collectives_in(module, computation):
            kind = _kind(instruction)
            size = _collective_bytes(instruction, kind)
            # The compiler writes a reduce-scatter as a fusion of an all-reduce and a slice.
            kind = "reduce-scatter" if inside.startswith("all-reduce-scatter") else kind
            group = group_size(instruction.text, num_devices)
            by_kind[kind].append((times, times * size, times * size * _sent_share(kind, group)))
    totals = [
        Collective(kind, sum(c for c, _, _ in parts), sum(b for _, b, _ in parts), sum(s for _, _, s in parts))
        for kind, parts in by_kind.items()
    ]
    return sorted(totals, key=lambda total: -total.bytes), unknown


def hbm_bytes(module: Module) -> int:
    """Estimates the bytes that a device reads from and writes to its HBM in one execution of a program, as a lower
    bound.

    This is a lower bound, since every instruction is assumed to read its operands once.

    Args:
      module: Compiled program (`parse_hlo`).
    """
    runs, _ = _count_runs(module)
    traffic = _Traffic(module, {i.name for computation in runs for _, i in _collectives_in(module, computation)})
    return sum(
        times * sum(traffic.count(computation, i) for i in module.computations[computation].values())
        for computation, times in runs.items()
    )


def shape_bytes(shape: str, *, hbm_only: bool = False) -> int:
    """Returns the bytes of the arrays in the text of an HLO shape, such as `f32[8,128]{1,0}`, without padding.
    `hbm_only` ignores arrays in other memories.

    Args:
      shape: Text of a shape, such as `f32[8,128]{1,0}`, or of a tuple of shapes.
      hbm_only: Whether to ignore arrays whose layout names another memory than the HBM, as `S(1)` does.

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
    """Returns the number of devices in one group of a collective. `text` has its attributes, and `num_devices` is the
    result if they name no groups.

    Args:
      text: Text with the attributes of the collective.
      num_devices: Number of devices that run the program, the result if the text names no groups.

    Example:
      >>> group_size("replica_groups={{0,1},{2,3}}, channel_id=1", 4), group_size("replica_groups=[2,8]<=[16]", 16)
      (2, 8)
      >>> group_size("replica_groups=mesh['a'=4,'b'=2] {'b'}", 8)
      2
    """
    match = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text)
    if match:
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2])  # 'a':(2)4 is a part of an axis, of size 4
        return math.prod(int(part) if part else sizes.get(axis, 1) for axis, part in parts) or num_devices
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", text)
    if iota:
        return int(iota[2])
    listed = re.search(r"replica_groups=\{\{([^}]*)\}", text)
    return len(listed[1].split(",")) if listed else num_devices


def trip_count(module: Module, scope: Mapping[str, Instruction], loop: Instruction) -> int | None:
    """Returns the number of iterations of the `while` loop in the instruction `loop`, or None if its text does not
    tell. `scope` has the instructions of the computation around it, by name.

    Args:
      module: Compiled program.
      scope: Instructions of the computation that contains the loop.
      loop: Instruction of the loop.
    """
    known = re.search(r'known_trip_count[\\"]*:\s*\{[\\"]*n[\\"]*:\s*[\\"]*(\d+)', loop.text)
    if known:
        return int(known[1])
    condition = module.computations.get(loop.attribute("condition"), {})
    root = next((i for i in condition.values() if i.is_root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.text:
        return None
    counter, limit = (condition.get(name) for name in root.operands[:2])
    stop = _constant_value(condition, limit)
    if counter is None or counter.opcode != "get-tuple-element" or stop is None:
        return None
    index = int(counter.text.partition("index=")[2].partition(",")[0] or 0)
    start, init = 0, scope.get(loop.operands[0])
    if init is not None and init.opcode == "tuple":
        start = _constant_value(scope, scope.get(init.operands[index])) or 0
    return max(stop - start, 0)


def _parse_instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    rest = line[match.end() :]
    end = _find_closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, parenthesis, _ = rest.partition("(")
    if not parenthesis or " " in opcode:
        return None
    close = _find_closing(rest, len(opcode))
    argument = rest[len(opcode) + 1 : close]
    names = tuple(re.findall(r"%([^\s,()]+)", argument))
    return Instruction(match[2], shape, opcode, names, rest[close + 1 :], bool(match[1]), argument)


def _find_closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for bracket in re.compile(r"[()]").finditer(text, start):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return bracket.start()
    return len(text) - 1


def _count_runs(module: Module) -> tuple[dict[str, int], list[str]]:
    """Counts how often each computation outside of fusions runs, and lists loops of unknown length."""
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
    """Yields each collective of a computation and of its fusions once, with the computation that contains it.

    The instructions that start, continue and end an asynchronous collective share one channel.
    """
    seen: set[str] = set()

    def visit(name: str) -> Iterator[tuple[str, Instruction]]:
        for instruction in module.computations.get(name, {}).values():
            if _kind(instruction):
                channel = instruction.attribute("channel_id") or instruction.name
                if channel not in seen:
                    seen.add(channel)
                    yield name, instruction
            # A computation that this one calls is counted by itself.
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
    size = shape_bytes(_result_shape(instruction))
    # The reduced array is larger than the part that arrives on a device.
    return size * group_size(instruction.text, 1) if kind == "reduce-scatter" else size


def _result_shape(instruction: Instruction) -> str:
    """Returns the shape of an instruction's results. A starting instruction holds (operands, results, ...)."""
    shape = instruction.shape
    if instruction.opcode not in ("all-gather-start", "collective-permute-start"):
        return shape
    inner = shape[1:-1]
    rest = inner[_find_first_comma(inner) + 1 :].lstrip()
    rest = re.sub(r"^/\*.*?\*/\s*", "", rest)
    return rest[: _find_first_comma(rest)]


def _find_first_comma(text: str) -> int:
    """Returns the index of the first comma outside of brackets."""
    depth = 0
    for index, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            return index
    return len(text)


def _sent_share(kind: str, group: int) -> float:
    """Returns the share of a collective's bytes that a device sends."""
    share = (group - 1) / group
    return {"all-reduce": 2 * share, "collective-permute": 1.0 if group > 1 else 0.0}.get(kind, share)


def _constant_value(scope: Mapping[str, Instruction], instruction: Instruction | None) -> int | None:
    """Returns the integer value of a constant, also through copies. None if the instruction is no constant."""
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = scope.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "constant" or not instruction.argument.lstrip("-").isdigit():
        return None
    return int(instruction.argument)


class _Traffic:
    """Counts the bytes that instructions outside of fusions move from and to the HBM."""

    def __init__(self, module: Module, started: Collection[str]):
        """Stores the program and its collectives.

        Args:
          module: Compiled program.
          started: Names of the instructions that start a collective. Others in a fusion only continue or end one.
        """
        self._computations, self._started = module.computations, started

    def count(self, computation: str, instruction: Instruction) -> int:
        """Returns the bytes that one execution of an instruction moves from and to the HBM."""
        opcode, scope = instruction.opcode, self._computations[computation]
        if opcode in FREE or "AllocateBuffer" in instruction.text:
            return 0
        part = opcode.rpartition("-")[2]
        if part in ("start", "update", "done") and not _kind(instruction):
            collective = opcode.removesuffix("-done") in COLLECTIVES  # counted where it starts
            return 0 if part != "done" or collective else self._count_copied(scope, instruction)
        operands = [scope[name] for name in instruction.operands if name in scope]
        if opcode == "fusion":
            return self._count_fusion(instruction, operands)
        # An operand that is used twice is read once, by its first use.
        uses = {name: (instruction, position) for position, name in reversed([*enumerate(instruction.operands)])}
        read = sum(self._count_read(scope[name], [use]) for name, use in uses.items() if name in scope)
        return read + self._count_written(scope, instruction, _result_shape(instruction))

    def _count_copied(self, scope: Mapping[str, Instruction], done: Instruction) -> int:
        """Counts the bytes of an asynchronous copy, slice or gather. Its operands stand in an earlier instruction."""
        sources: list[str] = []
        part: Instruction | None = done
        while part is not None and part.opcode.endswith(("-done", "-update", "-start")):
            sources += [scope[name].shape for name in part.operands if name in scope]
            part = scope.get(part.operands[0]) if part.operands else None
        read = any(shape_bytes(shape, hbm_only=True) for shape in sources if not shape.startswith("("))
        return shape_bytes(done.shape) * read + shape_bytes(done.shape, hbm_only=True)

    def _count_fusion(self, fusion: Instruction, operands: Sequence[Instruction]) -> int:
        inner = self._computations.get(fusion.attribute("calls"), {})
        total = 0
        for index, operand in enumerate(operands):
            parameter = _parameter(inner, index)
            if shape_bytes(operand.shape, hbm_only=True) and parameter is not None:
                total += self._count_read(parameter, self._uses(inner, parameter.name))
        root = next((i for i in inner.values() if i.is_root), None)
        shapes = [match[0] for match in _ARRAY.finditer(fusion.shape)]
        if root is None:
            return total + shape_bytes(fusion.shape, hbm_only=True)
        if "AsyncCollectiveStart" in root.text:  # (source, destination, ...)
            return total + shape_bytes(shapes[1], hbm_only=True)
        results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return total + sum(self._count_written(inner, i, shape) for i, shape in zip(results, shapes, strict=False))

    def _uses(self, scope: Mapping[str, Instruction], name: str) -> Iterator[tuple[Instruction, int]]:
        """Yields the instructions of a fusion that use a value, and its operand number, also through bitcasts."""
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

    def _moves_nothing(self, instruction: Instruction) -> bool:
        """Returns whether an instruction moves no data in a fusion."""
        if _kind(instruction):
            return instruction.name not in self._started
        return instruction.opcode in ("parameter", "tuple") or "AsyncCollective" in instruction.text

    def _count_read(self, source: Instruction, uses: Iterable[tuple[Instruction, int]]) -> int:
        """Counts the bytes that are read of `source`, which is in the HBM unless its layout names another memory."""
        whole = shape_bytes(source.shape, hbm_only=True)
        total = 0
        for user, position in uses:
            if position == 0 and user.opcode in ("dynamic-slice", "slice", "gather"):
                total += shape_bytes(user.shape)
            elif not self._moves_nothing(user) and not (
                position == 0 and user.opcode in ("dynamic-update-slice", "scatter")
            ):
                return whole
        return min(total, whole)

    def _count_written(self, scope: Mapping[str, Instruction], result: Instruction, shape: str) -> int:
        """Counts the bytes that are written to an array of `shape`. An update in place writes only the new part."""
        whole = shape_bytes(shape, hbm_only=True)
        while True:
            inner = self._computations.get(result.attribute("calls"), {}) if result.opcode == "fusion" else {}
            if result.opcode in ("bitcast", "reshape") and result.operands and result.operands[0] in scope:
                result = scope[result.operands[0]]
            elif inner and (root := next(i for i in inner.values() if i.is_root)).opcode != "tuple":
                scope, result = inner, root
            else:
                break
        if self._moves_nothing(result):
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
