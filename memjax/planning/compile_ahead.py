"""Compiles the steps of a configuration ahead of time, from shapes alone, for devices that are not here.

`python -m memjax.planning.compile_ahead` reads a request as JSON from standard input and prints the result of
`measure` as one
line of JSON for each step. `memjax.planning.plan_cases` runs it with the environment that libtpu needs.
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
from memjax.data.opening import vocab_size_from_settings
from memjax.models.adapters import count_trained
from memjax.planning.buffers import MemoryUse, largest_temporaries, parse_memory
from memjax.planning.hlo import collectives, hbm_bytes, parse_hlo
from memjax.planning.programs import EpisodicMemoryBytes, PerRowParameterCopies, Program, What, itemsize, make_programs
from memjax.planning.topologies import GIB, Topology, parse_topology
from memjax.settings.lora import LoRA
from memjax.settings.overrides import apply_overrides
from memjax.settings.pointers import import_files, import_kinds
from memjax.training.costs import jaxpr_flops
from memjax.training.metrics import count_parameters
from memjax.training.runs import config_from_dict
from memjax.training.sharding import Layout, make_layout, make_mesh, row_shards
from memjax.training.train_state import TrainState, model_variables

DUMP = "MEMJAX_DUMP"
"""Environment variable with the folder into which the compiler dumps its programs (also set in XLA_FLAGS)."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Facts about a step that was compiled for one TPU slice: whether it fits, its memory by kind, FLOPs, traffic and
    collectives.

    Bytes are per device. FLOPs are those of all devices together.

    Attributes:
      program: Name of the step: a kind of update or a part of one, `adapt`, `eval` or `decode`.
      mesh: Axis of the mesh -> number of devices along it.
      parameters: Number of parameters of the model, without padding of its vocabulary.
      trained: Number of parameters that training changes.
      tokens: Number of tokens that one execution reads.
      fits: Whether the program fits into the memory of a device.
      memory: Bytes by kind (`memjax.planning.buffers.MemoryUse`) and their `total`. None if the compiler gave up early.
      required: Bytes that the program needs, as the compiler reports them if it does not fit. 0 if it fits.
      limit: Bytes that a program may use.
      peak: Largest number of bytes in use at one time, as the compiler reports it. 0 if it is not known.
      code: Bytes of machine code. 0 if they are not known.
      flops: Multiplications and additions of all matrix products.
      model_flops: Multiplications and additions of all matrix products, without recomputation.
      hbm_bytes: Bytes read from and written to the HBM in one execution, a lower bound.
      collectives: Fields of each `memjax.planning.hlo.Collective`.
      parts: Part of the arguments, such as "parameters" or "optimizer" -> its bytes without padding.
      arguments: Largest arguments as (name, shape on a device, bytes).
      temporaries: Largest temporary arrays as (part of the model, shape, bytes).
      skipped: Sharding rules that were not applied because the devices do not divide the axis.
      notes: Reasons why some numbers are not exact.
      kept: Fields of `memjax.planning.programs.EpisodicMemoryBytes` for a learner with an episodic memory, otherwise
        None.
      copies: Facts about copies of the parameters for rows that are adapted one by one, otherwise None: the setting
        `field` for the number of rows that a device scores at once, that number `at_once`, the `bytes` of a copy, and
        `widest`, the largest number that fits, if it was asked for.
      seconds: Seconds of compilation.
    """

    program: str
    mesh: dict[str, int]
    parameters: int
    trained: int
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
    """Compiles the steps of a configuration for a TPU slice, one after the other, and yields a `Measurement` of each.
    `what` is 'train', 'eval' or 'decode'. `widest` also finds how many rows with parameters of their own fit.

    Args:
      config: Configuration of the steps.
      what: Kind of steps: 'train', 'eval' or 'decode'. See `make_programs`.
      vocab_size: Size of the vocabulary.
      topology: Slice to compile for.
      widest: Whether to find how many rows with their own parameters fit at once. This takes several compilations.

    Raises:
      ValueError: The configuration cannot be run on the slice, such as rows that do not divide over its devices. A
        program that needs too much memory is no error.
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
        lora = config.training.lora
        measurement = _collect(name, program, lora, layout, topology, outcome, flops, model_flops, seconds)
        if program.copies is not None:
            measurement = _add_copies(measurement, program.copies, config, what, vocab_size, topology, widest=widest)
        yield measurement


def check_kept(kept: EpisodicMemoryBytes | None, topology: Topology) -> None:
    """Raises ValueError if the episodic memory of a learner does not fit on a device together with the rest of the
    training state. `kept` has both sizes, or is None without such a memory.

    Args:
      kept: Sizes of the episodic memory. None for a learner without one, which passes.
      topology: Slice with the devices.

    Raises:
      ValueError: The memory does not fit. The message says how many rows would.
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
        _rename_function(program.function, name),
        donate_argnums=program.donated,
        in_shardings=program.shardings,
        out_shardings=program.results,
        keep_unused=True,  # arguments that a step does not read take memory too
    ).trace(*program.arguments.values())


def _add_copies(
    measurement: Measurement,
    copies: PerRowParameterCopies,
    config: Config,
    what: What,
    vocab_size: int,
    topology: Topology,
    *,
    widest: bool,
) -> Measurement:
    """Adds facts about the copies of parameters for rows that are scored at once, and on request how many fit."""
    layout = _layout(config, topology)
    at_once = min(
        functools.reduce(getattr, copies.field.split("."), config),
        config.evaluation.batch_size // row_shards(layout.mesh),
    )
    known = {"field": copies.field, "bytes": copies.bytes, "at_once": at_once}
    if not widest:
        return dataclasses.replace(measurement, copies=known)

    def total(width: int) -> int | None:
        """Returns the bytes that a device needs for `width` rows at once, or None if it has fewer."""
        rows = width * row_shards(layout.mesh)
        changed = apply_overrides(config, [f"--{copies.field}", str(width), "--evaluation.batch-size", str(rows)])
        program = make_programs(changed, what, vocab_size, layout)["adapt"]
        with layout.active():
            outcome = _compile(_trace(program, f"plan_adapt_{width}", layout).lower())
        return None if outcome.required else outcome.peak

    return dataclasses.replace(measurement, copies={**known, "widest": largest_width(total, topology.hbm_limit)})


STRIDE = 64
"""Largest factor between two widths that are tried in turn, and the precision of the search: a 64th of the width."""


def largest_width(total: Callable[[int], int | None], limit: int) -> int:
    """Returns the largest number of rows that fits into `limit` bytes, to within a 64th. `total(number)` returns the
    bytes that rows need, or None if they do not fit, and should grow about linearly.

    Args:
      total: `total(number)` returns the bytes that a number of rows needs, or None if they do not fit.
      limit: Available bytes.

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
        if needed is None:  # the line promised too much: step back from there, by more and more
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
    """Counts the FLOPs of a step, and its FLOPs without recomputation."""
    training, model = config.training, config.model
    keeps_weights = model.attention_implementation == "reference"
    if keeps_weights and (what != "train" or (training.remat == "none" and training.num_microbatches == 1)):
        flops = jaxpr_flops(traced.jaxpr)
        return flops, flops

    def count(model: Any, **changes: Any) -> int:
        changed = dataclasses.replace(config, training=dataclasses.replace(training, **changes), model=model)
        program = make_programs(changed, what, vocab_size, layout)[name]
        with layout.active():  # make the learner outside of it: its random keys are arrays of this machine
            return jaxpr_flops(jax.make_jaxpr(program.function)(*program.arguments.values()))

    # Other programs than the reference compute the scores once more in the backward pass.
    plain = model if keeps_weights else dataclasses.replace(model, attention_implementation="reference")
    once = count(plain, remat="none", segments_per_remat=0, num_microbatches=1)
    if keeps_weights and training.remat == "none":
        return once, once
    # Row groups together do the same work. Of the extra pass that counts targets the compiler keeps only the count.
    return jaxpr_flops(traced.jaxpr) if training.num_microbatches == 1 else count(model, num_microbatches=1), once


def _rename_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)  # the compiler calls arguments by their names
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = name
    return call


def _read_dump(name: str, ending: str) -> str:
    """Reads a dump of the compiler about a program. '' if it gave up before writing it."""
    files = sorted(Path(os.environ[DUMP]).glob(f"*jit_plan_{name}.*{ending}"))
    return files[-1].read_text(errors="replace") if files else ""


@dataclasses.dataclass
class _Outcome:
    """The result of a compilation.

    Attributes:
      required: Bytes that the program needs if it does not fit. 0 if it fits.
      limit: Bytes that a program may use if this one does not fit. 0 if it fits.
      peak: Largest number of bytes in use at one time. 0 if it is not known.
      code: Bytes of machine code. 0 if they are not known.
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
    """Reads the bytes that a program needs, and those available, from the compiler's message that it does not fit into
    the HBM. None for any other message.

    Args:
      message: Message of the error.

    Example:
      >>> out_of_memory("the total memory required for HLO temporaries (62.5G) exceeds available HBM (15.75G).").limit
      16911433728
    """
    match = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)", message)
    if not match:
        return None
    unit = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
    return _Outcome(required=int(float(match[1]) * unit[match[2]]), limit=int(float(match[3]) * unit[match[4]]))


def _collect(
    name: str,
    program: Program,
    lora: LoRA,
    layout: Layout,
    topology: Topology,
    outcome: _Outcome,
    flops: int,
    model_flops: int,
    seconds: float,
) -> Measurement:
    read_dump = lambda ending: _read_dump(name, ending)
    text, assignment = read_dump("after_optimizations.txt"), read_dump("buffer-assignment.txt")
    module = parse_hlo(text) if text else None
    totals, unknown = collectives(module, topology.num_devices) if module else ([], [])
    memory: MemoryUse | None = parse_memory(assignment) if assignment else None
    temporaries = largest_temporaries(assignment, read_dump("live-range.txt"), module) if module and assignment else []
    notes = [f"the loop {name} counts once: how often it runs is not known" for name in unknown]
    if module and any(i.opcode == "conditional" for scope in module.computations.values() for i in scope.values()):
        notes.append("traffic and collectives are those of all branches of a condition together")
    parts, arguments = _arguments(program)
    shapes = next(iter(program.arguments.values()))
    variables = model_variables(shapes) if isinstance(shapes, TrainState) else shapes
    parameters = count_parameters([variables.get(name, {}) for name in ("params", "tables")]) - program.padding
    return Measurement(
        program=name,
        mesh=dict(layout.mesh.shape),
        parameters=parameters,
        trained=count_trained(variables.get("params", {}), lora) if lora.rank else parameters,
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
        collectives=[dataclasses.asdict(part) for part in totals],
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
    """Returns the bytes of each part of the arguments on a device, and the largest arrays with their shapes there."""
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
            part = _name_of_part(name, keys)
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
"""Beginning of a path in a train state, or name of an argument -> name of the part. The first that matches is used."""


def _name_of_part(argument: str, keys: str) -> str:
    if argument not in ("state", "variables"):
        return PARTS.get(argument, "batch")
    for beginning, name in PARTS.items():
        if f"{keys}/".startswith(f"{beginning}/"):
            return name
    first, _, rest = keys.partition("/")
    return rest.partition("/")[0].replace("_", " ") if first == "method" else "other state"


def main() -> int:
    """Reads a request as JSON from standard input and prints lines of JSON: measurements, numbers of devices of slices,
    or a mistake in the request. Returns 0.
    """
    request = json.loads(sys.stdin.read())
    try:
        if "topologies" in request:
            print(json.dumps({name: len(parse_topology(name).devices()) for name in request["topologies"]}))
            return 0
        import_files(request["modules"])
        import_kinds(request["config"])
        config: Config = config_from_dict(request["config"])
        vocab_size, topology = (
            request["vocab_size"] or vocab_size_from_settings(config.data),
            parse_topology(request["topology"]),
        )
        for measurement in measure(config, request["what"], vocab_size, topology, widest=request["widest"]):
            print(json.dumps(dataclasses.asdict(measurement)), flush=True)
    except ValueError as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        raised_by_memjax = frame is not None and frame.tb_frame.f_code.co_filename.startswith(
            str(Path(__file__).parent.parent)
        )
        if not raised_by_memjax:  # a bug elsewhere, not a mistake in the request
            raise
        print(json.dumps({"mistake": " ".join(str(error).split())}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
