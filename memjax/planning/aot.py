"""The steps of a configuration, built from shapes alone and compiled for devices that are not here.

`python -m memjax.planning.aot` reads a request as JSON on standard input and prints what `measure` finds, a line of
JSON for each step; `memjax.planning.cases` runs it with the environment that libtpu needs.
"""

import dataclasses
import functools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from memjax.config import Config
from memjax.data.opening import vocab_size_of
from memjax.overrides import apply_overrides
from memjax.planning.buffers import Memory, largest_temporaries, parse_memory
from memjax.planning.hlo import collectives, hbm_bytes, parse_hlo
from memjax.planning.programs import Copies, Program, RowsKept, What, itemsize, make_programs
from memjax.planning.topologies import GIB, Topology, parse_topology
from memjax.training.costs import jaxpr_flops
from memjax.training.metrics import count_parameters
from memjax.training.runs import config_from_dict
from memjax.training.sharding import Layout, make_layout, make_mesh, row_shards
from memjax.training.step import TrainState, model_variables

DUMP = "MEMJAX_DUMP"
"""environment variable with the folder that XLA_FLAGS tells the compiler to write to"""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What is known of a program on one topology. Bytes are per device, operations of all devices together.

    Attributes:
      program: which step: a kind of update or a piece of one, `adapt`, `eval` or `decode`.
      mesh: axis -> devices.
      parameters: of the model, without padding of its vocabulary.
      tokens: read in one run.
      fits: the compiler found room.
      memory: bytes; None where the compiler gave up before it knew.
      required: bytes, as the compiler counts them where it does not fit.
      limit: bytes that a program may use.
      peak: bytes alive at once, as the compiler reports them; 0 = not known.
      code: bytes of machine code; 0 = not known.
      flops: multiplications and additions of all products of matrices.
      model_flops: the same without what is computed a second time.
      hbm_bytes: read and written in one run, at least.
      collectives: of `memjax.planning.hlo.Collective`, as dicts.
      parts: part of the arguments -> bytes, without padding.
      arguments: the largest, as (name, shape on a device, bytes).
      temporaries: the largest, as (where, shape, bytes).
      skipped: rules that do not divide their axis.
      notes: what is not exact.
      kept: of `memjax.planning.programs.RowsKept`, as a dict, where a learner keeps rows.
      copies: of parameters, where rows have their own: `field` says how many rows a device scores `at_once`, `bytes`
        of a copy, and the `widest` that fits where it was asked for.
      seconds: of compilation.
    """

    program: str
    mesh: dict[str, int]
    parameters: int
    tokens: int
    fits: bool
    memory: dict[str, int] | None
    required: int
    limit: int
    peak: int
    code: int
    flops: int
    model_flops: int
    hbm_bytes: int
    collectives: list[dict[str, Any]]
    parts: dict[str, int]
    arguments: list[tuple[str, str, int]]
    temporaries: list[tuple[str, str, int]]
    skipped: list[str]
    notes: list[str]
    kept: dict[str, Any] | None
    copies: dict[str, Any] | None
    seconds: float


def measure(
    config: Config, what: What, vocab_size: int, topology: Topology, *, widest: bool = False
) -> Iterator[Measurement]:
    """Compiles steps for a topology, one after the other, and says what the compiler says of each.

    Args:
      config: the configuration.
      what: as in `make_programs`.
      vocab_size: ids.
      topology: of the devices.
      widest: also find how many rows with parameters of their own fit side by side; several compilations.

    Raises:
      ValueError: the configuration does not fit the topology (a program that is too large is no error).
    """
    layout = _layout(config, topology)
    programs = make_programs(config, what, vocab_size, layout)
    for name, program in programs.items():
        check_kept(program.rows_kept, topology)
        start = time.perf_counter()
        with layout.active():
            traced = _trace(program, f"plan_{name}", layout)
            outcome = _compile(traced.lower())
        flops, model_flops = _count_flops(config, what, name, vocab_size, layout, traced)
        seconds = time.perf_counter() - start
        found = _collect(name, program, layout, topology, outcome, flops, model_flops, seconds)
        if program.copies is not None:
            found = _with_copies(found, program.copies, config, what, vocab_size, topology, widest=widest)
        yield found


def check_kept(kept: RowsKept | None, topology: Topology) -> None:
    """A memory of rows must fit a device beside the rest of what training holds.

    Raises:
      ValueError: it does not; the line says how many rows would.
    """
    if kept is None or kept.bytes + kept.beside <= topology.hbm_limit:
        return
    most = max((topology.hbm_limit - kept.beside) * kept.capacity // kept.bytes, 0)
    raise ValueError(
        f"{kept.field}: given {kept.capacity:,} rows in all, {kept.bytes / GIB:.2f} GiB on a device of {topology.name} "
        f"beside {kept.beside / GIB:.2f} GiB of the rest of the state, allowed: at most {most:,} rows, which fill its "
        f"{topology.hbm_limit / GIB:.2f} GiB"
    )


def _layout(config: Config, topology: Topology) -> Layout:
    devices = topology.devices()
    return make_layout(config.sharding, devices) or Layout(make_mesh((1, 1, 1), devices))


def _trace(program: Program, name: str, layout: Layout) -> Any:
    return jax.jit(
        _named(program.function, name),
        donate_argnums=program.donated,
        in_shardings=program.shardings,
        out_shardings=program.results,
        keep_unused=True,  # what a step does not read lies there all the same
    ).trace(*program.arguments.values())


def _with_copies(
    found: Measurement,
    copies: Copies,
    config: Config,
    what: What,
    vocab_size: int,
    topology: Topology,
    *,
    widest: bool,
) -> Measurement:
    """With the copies of parameters of rows that are scored at once, and with how many fit."""
    layout = _layout(config, topology)
    at_once = min(
        functools.reduce(getattr, copies.field.split("."), config), config.evaluation.rows // row_shards(layout.mesh)
    )
    known = {"field": copies.field, "bytes": copies.bytes, "at_once": at_once}
    if not widest:
        return dataclasses.replace(found, copies=known)

    def total(width: int) -> int | None:
        """Bytes that a device needs for so many at once, in one group; None = more than it has."""
        rows = width * row_shards(layout.mesh)
        changed = apply_overrides(config, [f"--{copies.field}", str(width), "--evaluation.rows", str(rows)])
        program = make_programs(changed, what, vocab_size, layout)["adapt"]
        with layout.active():
            outcome = _compile(_trace(program, f"plan_adapt_{width}", layout).lower())
        return None if outcome.required else outcome.peak

    return dataclasses.replace(found, copies={**known, "widest": largest_width(total, topology.hbm_limit)})


STRIDE = 64
"""times the width that fits is the most that is tried next, and the share of a width that is not searched for"""


def largest_width(total: Callable[[int], int | None], limit: int) -> int:
    """The largest number that fits, to a 64th of it, where what is needed grows about linearly.

    Args:
      total: `total(number)`, bytes that so many need; None = more than there are. Wide ones take minutes to compile.
      limit: bytes that there are.

    Example:
      >>> asked = []
      >>> total = lambda number: asked.append(number) or (None if number > 37 else 5 + 3 * number)
      >>> largest_width(total, 120), asked
      (37, [1, 2, 38, 37])
    """
    known: dict[int, int] = {}
    lower, upper, guess, back, strided = 0, None, 1, 1, False
    while upper is None or upper - lower > max(1, lower // STRIDE):
        needed = total(guess)
        if needed is None:  # the line promised too much: back from there, by more and more
            upper = guess
            back = max(back, upper // STRIDE)
            guess, back = ((lower + upper) // 2, back) if strided else (upper - back, 2 * back)
        else:
            lower, known[guess] = guess, needed
            guess = lower + 1 if upper is None else (lower + upper) // 2
            if upper is None and len(known) > 1:  # along the line through the first and the last
                (first, low), *_, (last, high) = known.items()
                line = first + (limit - low) * (last - first) // max(high - low, 1)
                guess, strided = max(guess, min(line, STRIDE * lower)), line > STRIDE * lower
        guess = max(guess, lower + 1)
    return lower


def _count_flops(
    config: Config, what: What, name: str, vocab_size: int, layout: Layout, traced: Any
) -> tuple[int, int]:
    """Operations of a step, and of one that computes nothing twice."""
    training = config.training
    if what != "train" or (training.rematerialize == "none" and training.accumulate == 1):
        flops = jaxpr_flops(traced.jaxpr)
        return flops, flops

    def count(**changes: Any) -> int:
        changed = dataclasses.replace(training, **changes)
        program = make_programs(dataclasses.replace(config, training=changed), what, vocab_size, layout)[name]
        with layout.active():  # a learner is made outside: its keys are arrays of this machine
            return jaxpr_flops(jax.make_jaxpr(program.function)(*program.arguments.values()))

    once = count(rematerialize="none", segments_per_checkpoint=0, accumulate=1)
    if training.rematerialize == "none":
        return once, once
    # Row groups do the same work together; of the pass that counts their targets the compiler keeps nothing else.
    return jaxpr_flops(traced.jaxpr) if training.accumulate == 1 else count(accumulate=1), once


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)  # the compiler calls arguments by their names
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = name
    return call


def _dumped(name: str, ending: str) -> str:
    """What the compiler has written about a program, '' where it gave up before that."""
    files = sorted(Path(os.environ[DUMP]).glob(f"*jit_plan_{name}.*{ending}"))
    return files[-1].read_text(errors="replace") if files else ""


@dataclasses.dataclass
class _Outcome:
    """What compilation came to.

    Attributes:
      required: bytes, where it does not fit.
      limit: bytes, where it does not fit.
      peak: bytes; 0 = not known.
      code: bytes; 0 = not known.
    """

    required: int = 0
    limit: int = 0
    peak: int = 0
    code: int = 0


def _compile(lowered: Any) -> _Outcome:
    try:
        stats = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        outcome = out_of_memory(str(error))
        if outcome is None:
            raise
        return outcome
    # The attribute is missing in some versions.
    return _Outcome(peak=getattr(stats, "peak_memory_in_bytes", 0), code=stats.generated_code_size_in_bytes)


def out_of_memory(message: str) -> _Outcome | None:
    """What the compiler says of a program that does not fit into the HBM; None for another message.

    Example:
      >>> out_of_memory("the total memory required for HLO temporaries (62.5G) exceeds available HBM (15.75G).").limit
      16911433728
    """
    found = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)", message)
    if not found:
        return None
    unit = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
    return _Outcome(required=int(float(found[1]) * unit[found[2]]), limit=int(float(found[3]) * unit[found[4]]))


def _collect(
    name: str,
    program: Program,
    layout: Layout,
    topology: Topology,
    outcome: _Outcome,
    flops: int,
    model_flops: int,
    seconds: float,
) -> Measurement:
    dumped = lambda ending: _dumped(name, ending)
    text, assignment = dumped("after_optimizations.txt"), dumped("buffer-assignment.txt")
    module = parse_hlo(text) if text else None
    found, unknown = collectives(module, topology.num_devices) if module else ([], [])
    memory: Memory | None = parse_memory(assignment) if assignment else None
    temporaries = largest_temporaries(assignment, dumped("live-range.txt"), module) if module and assignment else []
    notes = [f"the loop {name} counts once: how often it runs is not known" for name in unknown]
    if module and any(i.opcode == "conditional" for scope in module.computations.values() for i in scope.values()):
        notes.append("traffic and collectives are those of all branches of a condition together")
    parts, arguments = _arguments(program)
    shapes = next(iter(program.arguments.values()))
    variables = model_variables(shapes) if isinstance(shapes, TrainState) else shapes
    return Measurement(
        program=name,
        mesh=dict(layout.mesh.shape),
        parameters=count_parameters([variables.get(name, {}) for name in ("params", "tables")]) - program.padding,
        tokens=program.tokens,
        fits=not outcome.required,
        memory=None if memory is None else {**dataclasses.asdict(memory), "total": memory.total},
        required=outcome.required,
        limit=outcome.limit or topology.hbm_limit,
        peak=outcome.peak,
        code=outcome.code,
        flops=flops,
        model_flops=model_flops,
        hbm_bytes=hbm_bytes(module) if module else 0,
        collectives=[dataclasses.asdict(part) for part in found],
        parts=parts,
        arguments=arguments,
        temporaries=[(buffer.where, buffer.shape, buffer.bytes) for buffer in temporaries],
        skipped=layout.skipped(program.names, shapes),
        notes=notes,
        kept=None if program.rows_kept is None else program.rows_kept._asdict(),
        copies=None,
        seconds=round(seconds, 1),
    )


def _arguments(program: Program, limit: int = 6) -> tuple[dict[str, int], list[tuple[str, str, int]]]:
    """Bytes on a device of each part of the arguments, and the largest arrays with their shape there."""
    parts: dict[str, int] = {}
    arrays: list[tuple[str, str, int]] = []
    for (name, tree), places in zip(program.arguments.items(), program.shardings, strict=True):
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        shardings = jax.tree.leaves(jax.tree.broadcast(places, tree))
        for (path, leaf), sharding in zip(leaves, shardings, strict=True):
            shape = sharding.shard_shape(leaf.shape)
            dtype = leaf.dtype
            size = math.prod(shape) * itemsize(dtype)
            keys = jax.tree_util.keystr(path, simple=True, separator="/")
            part = _part(name, keys)
            parts[part] = parts.get(part, 0) + size
            arrays.append((f"{name}/{keys}" if keys else name, f"{dtype}{list(shape)}".replace(" ", ""), size))
    arrays.sort(key=lambda array: -array[2])
    return dict(sorted(parts.items(), key=lambda item: -item[1])), arrays[:limit]


PARTS = {
    "params": "parameters",
    "opt_state": "optimizer",
    "tables": "tables",
    "memory": "memory",
    "method/episodes/keys": "keys",
    "method/episodes": "episodic memory",
}
"""beginning of a path in a train state, or argument -> what people call it; of two that fit, the first"""


def _part(argument: str, keys: str) -> str:
    if argument not in ("state", "variables"):
        return PARTS.get(argument, "batch")
    for beginning, name in PARTS.items():
        if f"{keys}/".startswith(f"{beginning}/"):
            return name
    first, _, kept = keys.partition("/")
    return kept.partition("/")[0].replace("_", " ") if first == "method" else "other state"


def main() -> int:
    """Reads a request, prints a measurement, the devices of slices, or the line about a mistake."""
    request = json.loads(sys.stdin.read())
    try:
        if "topologies" in request:
            print(json.dumps({name: len(parse_topology(name).devices()) for name in request["topologies"]}))
            return 0
        config: Config = config_from_dict(request["config"])
        vocab_size, topology = request["vocab_size"] or vocab_size_of(config.data), parse_topology(request["topology"])
        for measurement in measure(config, request["what"], vocab_size, topology, widest=request["widest"]):
            print(json.dumps(dataclasses.asdict(measurement)), flush=True)
    except ValueError as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        own = frame is not None and frame.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent.parent))
        if not own:  # a fault of the program, not of what was asked
            raise
        print(json.dumps({"mistake": " ".join(str(error).split())}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
