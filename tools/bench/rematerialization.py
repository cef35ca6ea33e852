"""`python -m tools.bench.rematerialization`: memory of the segment scan by policy, as the TPU compiler plans it.

The value and gradient of `loss_over_segments` are compiled ahead of time, without the hardware, for a model whose small
slot memory carries gradients between segments (`tools.bench.slots`), for Transformer-XL, and for Memformer, there with
both forms of memory replay. Nothing runs: bytes are the compiler's, operations are counted from the jaxpr. Each program
is compiled in a process of its own, which takes seconds on idle cores, and leaves a line behind: started again, only
what has no line yet is compiled. libtpu has to be installed (`pip install 'memjax[plan]'`).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from memjax import config
from memjax.models.factory import make_language_model
from memjax.planning.compile_ahead import out_of_memory
from memjax.planning.plan_cases import ENVIRONMENT
from memjax.planning.topologies import parse_topology
from memjax.training.costs import jaxpr_flops
from memjax.training.objective import model_loss
from memjax.training.segment_loop import loss_over_segments, segment_keys
from memjax.training.train_state import init_variables
from memjax.typing import Batch
from tools.bench import harness, replay
from tools.bench.slots import SlotModel
from tools.results import pages
from tools.results.backward_tables import policy_name, size_text
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book, Measurement, together

ROOT = Path(__file__).resolve().parents[2]
SLOTS, TRANSFORMER_XL, MEMFORMER = MODELS = ("slots", "transformer_xl", "memformer")
POLICIES = ("none", "per_layer", "segment", "segment_nested", "offload")
OF_MEMFORMER = (*replay.FORMS, "segment_nested")
"""policies, and with "mrbp" the second form of memory replay"""
SETTINGS: dict[str, Any] = {"dim": 512, "layers": 12, "heads": 8, "vocab": 8192, "length": 512, "batch": 8}
SETTINGS |= {"slots": 64, "memory_length": 512, "dtype": "bfloat16", "topology": "v5p:2x2x1"}
SETTINGS |= {"encoder_layers": 4, "decoder_layers": 8}
BYTES = ("temp_size", "peak_memory", "argument_size", "output_size", "host_temp_size", "generated_code_size")
"""Sizes in the records, by their names in the compiler's analysis without `_in_bytes`."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One program: a model, a policy and a number of segments."""

    model: str
    policy: str
    segments: int
    segments_per_checkpoint: int = 0

    def __str__(self) -> str:
        return f"{self.model}, {policy_name(self.policy, self.segments_per_checkpoint)}, {self.segments} segments"


def cells(model: str, numbers: Sequence[int]) -> list[Cell]:
    """Returns the cells of the table of a model, row by row."""
    plain_cells = [
        Cell(model, policy, n) for policy in (OF_MEMFORMER if model == MEMFORMER else POLICIES) for n in numbers
    ]
    if model == MEMFORMER:
        return plain_cells
    # The divisor next to the root: what is saved is one memory per part and one per segment of a part.
    most = max(numbers)
    root = next(divisor for divisor in range(math.isqrt(most), 0, -1) if most % divisor == 0)
    return [*plain_cells, Cell(model, "segment_nested", most, root)] if root > 1 else plain_cells


def program(cell: Cell, settings: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """`gradient(params, memory, batch) -> ((value, memory), gradients)`, and the shapes of its arguments."""
    if cell.model == MEMFORMER:
        return replay.program(cell.policy, settings, cell.segments)
    init, init_state, step = (_slots if cell.model == SLOTS else _transformer_xl)(cell.policy, settings)
    rows = (cell.segments, settings["batch"])
    tokens = (*rows, settings["length"])
    batch = Batch(
        inputs=jax.ShapeDtypeStruct(tokens, jnp.int32),
        targets=jax.ShapeDtypeStruct(tokens, jnp.int32),
        mask=jax.ShapeDtypeStruct(tokens, bool),
        weights=jax.ShapeDtypeStruct(tokens, jnp.float32),
        start_of_document=jax.ShapeDtypeStruct(rows, bool),
    )

    def objective(params: Any, memory: Any, batch: Any) -> Any:
        memory, nll = loss_over_segments(
            step,
            params,
            memory,
            (batch, segment_keys(jax.random.key(0), 0, cell.segments)),
            rematerialize=cell.policy,  # type: ignore[arg-type]
            segments_per_checkpoint=cell.segments_per_checkpoint,
        )
        return nll.mean(), memory

    gradient = jax.value_and_grad(objective, has_aux=True)
    return gradient, (jax.eval_shape(init), jax.eval_shape(init_state), batch)


def _slots(policy: str, settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Returns functions that make the parameters and the memory of a model with slots, and its step over a segment."""
    model = SlotModel(
        dim=settings["dim"],
        num_layers=settings["layers"],
        num_heads=settings["heads"],
        num_slots=settings["slots"],
        vocab_size=settings["vocab"],
        dtype=jnp.dtype(settings["dtype"]),
        rematerialize_layers=policy in ("per_layer", "segment_nested"),
    )
    step = lambda params, memory, segment: model(params, memory, segment[0])
    return lambda: model.init(jax.random.key(0)), lambda: model.init_state(settings["batch"]), step


def _transformer_xl(policy: str, settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Returns functions that make the parameters and the memory of a Transformer-XL, and its step over a segment."""
    described = config.Model(
        dim=settings["dim"],
        num_layers=settings["layers"],
        num_heads=settings["heads"],
        scan_layers=True,
        compute_dtype=settings["dtype"],
        memory_dtype=settings["dtype"],
        attention=config.TransformerXL(memory_length=settings["memory_length"]),
    )
    model = make_language_model(described, settings["vocab"], rematerialize=policy)
    loss = model_loss(model)

    def step(params: Any, memory: Any, segment: Any) -> Any:
        memory, _, nll, _ = loss({"params": params}, memory, *segment)
        return memory, nll

    init = lambda: init_variables(model, jax.random.key(0), settings["length"])["params"]
    return init, lambda: model.init_state(settings["batch"]), step


def compile_cell(cell: Cell, settings: dict[str, Any]) -> dict[str, Any]:
    """Compiles a cell, and returns its bytes, or the bytes that it wants where it does not fit, and its operations."""
    chip = SingleDeviceSharding(parse_topology(settings["topology"]).devices()[0])
    gradient, arguments = program(cell, settings)
    started = time.monotonic()
    traced = jax.jit(gradient, in_shardings=chip, out_shardings=chip).trace(*arguments)
    lowered = traced.lower()
    record = {
        **dataclasses.asdict(cell),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(arguments[0])),
        "flops": jaxpr_flops(traced.jaxpr),
        "lines": len(lowered.as_text().splitlines()),
    }
    try:
        memory = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        outcome = out_of_memory(str(error))
        if outcome is None:
            raise
        record |= {"wanted": outcome.required, "limit": outcome.limit}
    else:
        record |= {name: getattr(memory, f"{name}_in_bytes") for name in BYTES}
    return record | {"compile_seconds": round(time.monotonic() - started, 1)}


def compile_apart(cell: Cell, settings: dict[str, Any]) -> dict[str, Any]:
    """Calls `compile_cell` in a process of its own, which has the environment that libtpu needs.

    Raises:
      BenchError: The process failed. Its last line says why.
    """
    request = json.dumps({"cell": dataclasses.asdict(cell), "settings": settings})
    command = [sys.executable, "-m", "tools.bench.rematerialization", "--compile", request]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise harness.BenchError(f"{cell}: the process ended with code {done.returncode}: {last[:300]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(wanted: Sequence[Cell], frame: dict[str, Any], file: Path) -> list[dict[str, Any]]:
    """Returns the records of cells in their order. Cells that the file lacks are compiled and added to it one by one.

    Args:
      wanted: Cells to measure.
      frame: Settings and versions of all records. A record of the file is used if its own are the same.
      file: File of JSON lines.
    """
    same = lambda record: all(record[key] == frame[key] for key in ("settings", "versions"))
    lines = file.read_text().splitlines() if file.exists() else []
    known = {cell_of(record): record for record in map(json.loads, lines) if same(record)}
    for cell in wanted:
        if cell in known:
            continue
        known[cell] = frame | compile_apart(cell, frame["settings"])
        with file.open("a") as out:
            out.write(json.dumps(known[cell]) + "\n")
        print(f"{cell}: {size_text(known[cell])} MiB, {known[cell]['compile_seconds']} s", file=sys.stderr, flush=True)
    return [known[cell] for cell in wanted]


def cell_of(record: dict[str, Any]) -> Cell:
    """The cell that a record is about."""
    return Cell(**{field.name: record[field.name] for field in dataclasses.fields(Cell)})


def main(argv: list[str] | None = None) -> int:
    """Makes the table of each model; exit code 2 for a bad argument, 1 where a program does not compile."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.rematerialization", description="Memory of the segment scan by policy."
    )
    parser.add_argument("--segments", type=int, nargs="+", default=[8, 32, 64], help="numbers of segments")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="tables to make")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    parser.add_argument("--workdir", type=Path, default=ROOT / "reports" / "bench", help="folder of what is compiled")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.compile:
        request = json.loads(arguments.compile)
        print(json.dumps(compile_cell(Cell(**request["cell"]), request["settings"])), flush=True)
        return 0
    if min(arguments.segments) < 1:
        parser.error(f"--segments: given {min(arguments.segments)}, allowed: at least 1")
    command = ["python", "-m", "tools.bench.rematerialization", *(sys.argv[1:] if argv is None else argv)]
    frame = {
        "suite": "rematerialization",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": harness.commit(ROOT),
        "command": shlex.join(command),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu", "flax")},
        "settings": SETTINGS,
    }
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    numbers = sorted(set(arguments.segments))
    try:
        tables = {
            model: measure(cells(model, numbers), frame, arguments.workdir / f"rematerialization_{model}.jsonl")
            for model in arguments.models
        }
    except harness.BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    for model, records in tables.items():
        pages.record(measurement(model, records), Book(arguments.out))
    return 0


def measurement(model: str, records: Sequence[dict[str, Any]]) -> Measurement:
    """The records of a model as one of the results' measurements."""
    facts = together([{key: value for key, value in record.items() if key != "suite"} for record in records])
    command, made_at = (", ".join(dict.fromkeys(record[key] for record in records)) for key in ("command", "commit"))
    facts = {key: value for key, value in facts.items() if key not in ("command", "commit")}
    title = f"Memory of the segment scan by policy: {model}"
    return Measurement("rematerialization", model, command, made_at, "", title, "", facts)


if __name__ == "__main__":
    sys.exit(main())
