"""`python -m tools.bench.profile [SUITE ...]`: where the time of memjax's contenders goes, by kind of operation.

Traces a few steps with `jax.profiler` and adds up the time of each compiled operation under its kind, and under the JAX
primitive it came from with the part of the model it belongs to. Operations of different threads are added. Each
contender has a process of its own. Beside those of the suites stands the encoder without memory.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from memjax.allocation import keep_freed_memory
from tools.bench import worker
from tools.bench.harness import Entry, Suite, contender_modules, select_entries
from tools.bench.suites import SIZES, SUITES
from tools.results import pages
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book, measured
from tools.results.timed_code import fingerprint, timed_with

PRODUCTS, SOFTMAX, NORMS = "products", "softmax", "norms"
GATHERS, COPIES = "gathers and sorts", "copies and transposes"
OPTIMISER, OTHER, NO_OPERATION = "optimiser", "other operations", "no operation"
KINDS = (PRODUCTS, SOFTMAX, NORMS, GATHERS, COPIES, OPTIMISER, OTHER, NO_OPERATION)
"""kinds of operations, in the order of the table, and the wall time in which no operation runs"""
PRIMITIVES = {
    **dict.fromkeys(("dot_general", "conv_general_dilated"), PRODUCTS),
    **dict.fromkeys(("gather", "scatter", "scatter-add", "sort", "top_k", "argmax", "argmin", "cumsum"), GATHERS),
    **dict.fromkeys(("dynamic_slice", "take_along_axis", "partial_reduce"), GATHERS),
    **dict.fromkeys(("copy", "transpose", "concatenate", "slice", "split", "pad", "reshape", "squeeze"), COPIES),
    **dict.fromkeys(("broadcast_in_dim", "dynamic_update_slice", "convert_element_type"), COPIES),
}
"""JAX primitive -> kind"""
SCOPES = {"softmax": SOFTMAX, "cross_entropy": SOFTMAX, "logsumexp": SOFTMAX, "log_probs": SOFTMAX, "norm": NORMS}
"""part of a scope's name -> kind of everything in it but products, gathers and copies"""
ENCODER = Suite(
    "encoder",
    [Entry("memjax encoder without memory", ["-m", "tools.bench.models", "encoder", json.dumps(SIZES)])],
    baseline="",
)
"""the encoder that every memory is added to"""

_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{.*?op_name="([^"]*)"', re.MULTILINE)


class Operation(NamedTuple):
    """One compiled operation of a trace.

    Attributes:
      thread: Name of the thread.
      begin: Begin, in nanoseconds.
      length: Duration, in nanoseconds.
      program: Name of the compiled program.
      instruction: Name of the instruction in it.
    """

    thread: str
    begin: float
    length: float
    program: str
    instruction: str


def kind_of(instruction: str, path: str) -> str:
    """Returns the kind of an instruction, one of `KINDS`.

    Args:
      instruction: Its name in the compiled program. XLA calls products on a CPU `dot` and `ynn_fusion`.
      path: Its `op_name`: scopes and, last, the primitive. '' where XLA made it.

    Example:
      >>> kind_of("ynn_fusion.3", ""), kind_of("multiply_add_fusion", "jit(train_step)/add")
      ('products', 'optimiser')
    """
    scopes, primitive = path.split("/")[:-1], path.rpartition("/")[2]
    if instruction.startswith(("dot", "ynn")) or primitive == "dot_general":
        return PRODUCTS
    if scopes == ["jit(train_step)"]:  # no scope of the model
        return OPTIMISER
    if PRIMITIVES.get(primitive) == GATHERS or "gather" in instruction or "scatter" in instruction:
        return GATHERS
    for part, kind in SCOPES.items():
        if any(part in scope for scope in scopes):
            return kind
    if instruction.startswith(("copy", "transpose")):
        return COPIES
    return PRIMITIVES.get(primitive, OTHER)


def label(instruction: str, path: str) -> str:
    """Returns the part of the model and the primitive that an instruction belongs to.

    Example:
      >>> label("dot.3", "jit(f)/transpose(jvp(M))/stack/layers_1/attention/bhld,bhmd->bhlm/dot_general")
      'attention: dot_general'
    """
    scopes = path.split("/")
    parts = [part for part in ("attention", "feed_forward", "vocabulary") if any(part in scope for scope in scopes)]
    return f"{parts[0] if parts else 'rest'}: {scopes[-1] or re.sub(r'[.0-9]+$', '', instruction)}"


def own_times(operations: Sequence[Operation]) -> list[float]:
    """Returns each operation's duration without that of the operations inside it, on its thread.

    Example:
      >>> own_times([Operation("1", 0, 10, "f", "while"), Operation("1", 2, 3, "f", "dot")])
      [7, 3]
    """
    durations = [operation.length for operation in operations]
    order = sorted(
        range(len(durations)), key=lambda i: (operations[i].thread, operations[i].begin, -operations[i].length)
    )
    outer: list[int] = []
    for i in order:
        operation = operations[i]
        while outer:
            last = operations[outer[-1]]
            if last.thread == operation.thread and operation.begin < last.begin + last.length:
                break
            outer.pop()
        if outer:
            durations[outer[-1]] -= operation.length
        outer.append(i)
    return durations


def busy_time(operations: Iterable[Operation]) -> float:
    """Returns the time, in nanoseconds, in which at least one operation runs.

    Example:
      >>> busy_time([Operation("1", 0, 10, "f", "a"), Operation("2", 5, 10, "f", "b"), Operation("1", 20, 1, "f", "c")])
      16
    """
    total = end = 0
    for operation in sorted(operations, key=lambda operation: operation.begin):
        until = operation.begin + operation.length
        total += max(0, until - max(end, operation.begin))
        end = max(end, until)
    return total


def instruction_names(program: str) -> dict[str, str]:
    """Returns instruction -> `op_name` of a compiled program's text."""
    return dict(_INSTRUCTION.findall(program))


def summarise(
    operations: Sequence[Operation], names: Mapping[tuple[str, str], str], wall: float, steps: int, rows: int
) -> dict[str, Any]:
    """Adds up a trace.

    Args:
      operations: All operations of the trace.
      names: (program, instruction) -> `op_name`.
      wall: Seconds of all steps together.
      steps: Number of traced steps.
      rows: Number of labels to return.

    Returns:
      Milliseconds of a step: `wall_milliseconds`, `kinds` (kind -> milliseconds), and `shown`, the longest labels with
      `operations`, `milliseconds` and `percent` of all operations.
    """
    kinds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    labels: dict[str, float] = collections.defaultdict(float)
    for operation, nanoseconds in zip(operations, own_times(operations), strict=True):
        path = names.get((operation.program, operation.instruction), "")
        kinds[kind_of(operation.instruction, path)] += nanoseconds / 1e6 / steps
        labels[label(operation.instruction, path)] += nanoseconds / 1e6 / steps
    total, wall_milliseconds = sum(kinds.values()), 1e3 * wall / steps
    kinds[NO_OPERATION] = max(0.0, wall_milliseconds - busy_time(operations) / 1e6 / steps)
    first = sorted(labels.items(), key=lambda item: -item[1])[:rows]
    first.append(("everything else", total - sum(value for _, value in first)))
    shown = [{"operations": name, "milliseconds": ms, "percent": 100 * ms / total} for name, ms in first]
    return {"wall_milliseconds": wall_milliseconds, "milliseconds": total, "kinds": kinds, "shown": shown}


def profile(module: str, kind: str, settings: dict[str, Any], modes: Sequence[str], steps: int, rows: int) -> list[Any]:
    """Profiles a contender of a module of `tools.bench`, in this process.

    Returns:
      A record for each mode: `mode` and what `summarise` returns.
    """
    keep_freed_memory()
    import jax
    from jax.extend import backend

    contender: worker.Contender = import_module(module).make_contender(kind, settings)
    records, programs = [], []
    names: dict[tuple[str, str], str] = {}
    for mode in modes:
        for _ in range(3):
            contender.prepare(mode)
            contender.step(mode)
        with tempfile.TemporaryDirectory() as folder:
            wall = 0.0
            with jax.profiler.trace(folder):
                for _ in range(steps):
                    contender.prepare(mode)
                    begin = time.perf_counter()
                    contender.step(mode)
                    wall += time.perf_counter() - begin
            (file,) = Path(folder).glob("**/*.xplane.pb")
            operations = read_operations(jax.profiler.ProfileData.from_file(str(file)))
        # Programs of two modes may have one name: those of this mode come last.
        new = [program for program in backend.get_backend().live_executables() if program not in programs]
        programs += new
        modules = [module for program in new for module in program.hlo_modules()]
        names |= {(m.name, i): path for m in modules for i, path in instruction_names(m.to_string()).items()}
        records.append({"mode": mode, **summarise(operations, names, wall, steps, rows)})
    return records


def read_operations(trace: Any) -> list[Operation]:
    """Returns the compiled operations of a `jax.profiler.ProfileData`."""
    operations = []
    for line in (line for plane in trace.planes for line in plane.lines):
        for event in line.events:
            facts = dict(event.stats)
            if "hlo_op" in facts:
                place = (str(facts.get("hlo_module", "")), str(facts["hlo_op"]))
                operations.append(Operation(line.name, event.start_ns, event.duration_ns, *place))
    return operations


def main(argv: list[str] | None = None) -> int:
    """Profiles the memjax contenders of the named suites; none = of all that race with others, and the encoder."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.profile", description=(__doc__ or "").splitlines()[0])
    suites = {suite.name: suite for suite in (ENCODER, *(make() for make in SUITES.values())) if select_entries(suite)}
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(suites)}; none = all")
    parser.add_argument("--steps", type=int, default=5, help="traced steps")
    parser.add_argument("--rows", type=int, default=12, help="rows of the table of a contender")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    arguments = parser.parse_args(argv)
    for name in arguments.suites:
        if name not in suites:
            parser.error(f"SUITE: given {name!r}, allowed: {', '.join(suites)}")
    os.environ.update({"JAX_PLATFORMS": "cpu", **worker.WAIT_PASSIVELY})
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.suites or suites:
        records = []
        for entry in select_entries(suites[name]):
            module, kind, settings = entry.command[-3:]
            contender = (module, kind, json.loads(settings), suites[name].modes, arguments.steps, arguments.rows)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                records += [{"contender": entry.name, **record} for record in pool.submit(profile, *contender).result()]
        modules = contender_modules(suites[name].entries)
        code = {"timed_modules": modules, "timed_code": fingerprint(timed=timed_with(modules))}
        facts = {"steps": arguments.steps, **code, "records": records}
        words = {"command": f"python -m tools.bench.profile {name}", "title": f"{name}: where the time goes"}
        pages.record(measured("profile", name, facts, **words), Book(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
