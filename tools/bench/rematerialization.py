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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from memjax import config
from memjax.models.factory import make_language_model
from memjax.planning.aot import out_of_memory
from memjax.planning.cases import ENVIRONMENT
from memjax.planning.topologies import parse_topology
from memjax.training.costs import jaxpr_flops
from memjax.training.segments import loss_over_segments, segment_keys
from memjax.training.step import init_variables, language_model_loss
from memjax.typing import Batch
from tools.bench import harness, replay
from tools.bench.slots import SlotModel

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
SLOTS, TRANSFORMER_XL, MEMFORMER = MODELS = ("slots", "transformer_xl", "memformer")
POLICIES = ("none", "per_layer", "segment", "segment_nested", "offload")
OF_MEMFORMER = (*replay.FORMS, "segment_nested")
"""policies, and with "mrbp" the second form of memory replay"""
SETTINGS: dict[str, Any] = {"dim": 512, "layers": 12, "heads": 8, "vocab": 8192, "length": 512, "batch": 8}
SETTINGS |= {"slots": 64, "memory_length": 512, "dtype": "bfloat16", "topology": "v5p:2x2x1"}
SETTINGS |= {"encoder_layers": 4, "decoder_layers": 8}
BYTES = ("temp_size", "peak_memory", "argument_size", "output_size", "host_temp_size", "generated_code_size")
"""what is kept of the compiler's analysis, as it names them before `_in_bytes`"""
PUBLISHED = (("BPTT", 16177), ("gradient checkpointing", 9885), ("MRBP", 7229))
"""megabytes of a GPU in the table of Wu et al. 2022"""
GOAL = {"memory_ratio": 0.03, "growth": 1.3, "flops_ratio": 1.6}
"""at most, of the slot memory under "segment_nested" (`with_ratios`)"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One program: a model, a policy and a number of segments."""

    model: str
    policy: str
    segments: int
    segments_per_checkpoint: int = 0

    def __str__(self) -> str:
        return f"{self.model}, {_row_name(self.policy, self.segments_per_checkpoint)}, {self.segments} segments"


def cells(model: str, numbers: Sequence[int]) -> list[Cell]:
    """What the table of a model holds, row by row."""
    found = [Cell(model, policy, n) for policy in (OF_MEMFORMER if model == MEMFORMER else POLICIES) for n in numbers]
    if model == MEMFORMER:
        return found
    # The divisor next to the root: what is saved is one memory per part and one per segment of a part.
    most = max(numbers)
    root = next(divisor for divisor in range(math.isqrt(most), 0, -1) if most % divisor == 0)
    return [*found, Cell(model, "segment_nested", most, root)] if root > 1 else found


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
    """Makers of the parameters and of the memory, and the step over one segment."""
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
    """As `_slots`."""
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
    loss = language_model_loss(model)

    def step(params: Any, memory: Any, segment: Any) -> Any:
        memory, _, nll, _ = loss({"params": params}, memory, *segment)
        return memory, nll

    init = lambda: init_variables(model, jax.random.key(0), settings["length"])["params"]
    return init, lambda: model.init_state(settings["batch"]), step


def compile_cell(cell: Cell, settings: dict[str, Any]) -> dict[str, Any]:
    """What the compiler says of a cell: bytes, or how many it wants where it does not fit; and its operations."""
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
    """`compile_cell` in a process of its own, which has the environment that libtpu needs.

    Raises:
      BenchError: the process failed; its last line says why.
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
    """The records of cells, in their order: from the file, or compiled and added to it one by one.

    Args:
      wanted: the cells.
      frame: of a record; one in the file counts where its settings and versions are the same.
      file: JSON lines.
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
        print(f"{cell}: {_size_text(known[cell])} MiB, {known[cell]['compile_seconds']} s", file=sys.stderr, flush=True)
    return [known[cell] for cell in wanted]


def cell_of(record: dict[str, Any]) -> Cell:
    """The cell that a record is about."""
    return Cell(**{field.name: record[field.name] for field in dataclasses.fields(Cell)})


def with_ratios(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds to each record its `memory_ratio` and `flops_ratio` to plain over as many segments, and its growth.

    Growth, of memory and of machine code (`code_growth`, where it fits), is from the row's record of the fewest
    segments. Of what does not fit counts what the compiler wants.
    """
    plain = {record["segments"]: record for record in records if record["policy"] == "none"}
    first: dict[tuple[str, int], dict[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["segments"]):
        first.setdefault(_row(record), record)
    return [
        {
            **record,
            "memory_ratio": _size(record) / _size(plain[record["segments"]]),
            "flops_ratio": record["flops"] / plain[record["segments"]]["flops"],
            "growth": _size(record) / _size(first[_row(record)]),
            **_code_growth(record, first[_row(record)]),
        }
        for record in records
    ]


def _code_growth(record: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    key = "generated_code_size"
    return {"code_growth": record[key] / first[key]} if key in record and key in first else {}


def _row(record: dict[str, Any]) -> tuple[str, int]:
    return record["policy"], record["segments_per_checkpoint"]


def _row_name(policy: str, segments_per_checkpoint: int) -> str:
    return f"{policy}, {segments_per_checkpoint} segments per checkpoint" if segments_per_checkpoint else policy


def _size(record: dict[str, Any]) -> int:
    return record["wanted"] if "wanted" in record else record["temp_size"]


def _size_text(record: dict[str, Any]) -> str:
    if "wanted" in record:
        return f"wants {record['wanted'] / MIB:.0f}"
    host = f" + {record['host_temp_size'] / MIB:.0f} host" if record["host_temp_size"] else ""
    return f"{record['temp_size'] / MIB:.0f}{host}"


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown of records with ratios: one row per policy, three columns per number of segments."""
    numbers = sorted({record["segments"] for record in records})
    found = {(_row(record), record["segments"]): record for record in records}
    heads = [f"{n} segments: MiB | x plain | FLOPs x plain" for n in numbers]
    lines = [f"| policy | {' | '.join(heads)} | growth |", f"|---|{'---|---|---|' * len(numbers)}---|"]
    for row in dict.fromkeys(_row(record) for record in records):
        some = [found.get((row, number)) for number in numbers]
        last = some[-1]
        grown = f"{last['growth']:.2f}" if last and some[0] and len(some) > 1 else "-"
        lines.append(f"| {_row_name(*row)} | {' | '.join(map(_columns, some))} | {grown} |")
    return "\n".join(lines)


def _columns(record: dict[str, Any] | None) -> str:
    if record is None:
        return "- | - | -"
    return f"{_size_text(record)} | {record['memory_ratio']:.3f} | {record['flops_ratio']:.2f}"


def goal(records: Sequence[dict[str, Any]]) -> str:
    """What the slot memory should reach under "segment_nested", and what it reaches, the worst of all columns."""
    nested = [record for record in records if _row(record) == ("segment_nested", 0)]
    words = {"memory_ratio": "of plain's memory", "growth": "growth", "flops_ratio": "of plain's FLOPs"}
    shown = []
    for key, bound in GOAL.items():
        worst = max(record[key] for record in nested)
        shown.append(f"{worst:.3f} {words[key]} (at most {bound}: {'met' if worst <= bound else 'missed'})")
    return f"Goal of segment_nested, in the worst column: {', '.join(shown)}."


def section(model: str, settings: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """The table of a model, its sizes, and what it should show."""
    memory = {
        SLOTS: f"{settings['slots']} slots, read by every layer and written once per segment; gradients cross segments",
        MEMFORMER: f"{settings['encoder_layers']} of them encode and share {settings['slots']} slots, "
        f"{settings['decoder_layers']} decode; gradients cross segments",
        TRANSFORMER_XL: f"memory of {settings['memory_length']} tokens in every layer; gradients stop between segments",
    }[model]
    parts = [
        f"### {model}",
        f"{_num_layers(model, settings)} scanned layers of width {settings['dim']} with {settings['heads']} heads, "
        f"vocabulary {settings['vocab']}, {records[0]['parameters'] / 1e6:.1f} M parameters; {memory}. "
        f"{settings['batch']} rows, segments of {settings['length']} tokens, computed in {settings['dtype']}.",
        table(records),
        "Machine code, from the fewest segments to more of them: "
        f"at most {max(record.get('code_growth', 1) for record in records):.2f} times as much.",
    ]
    if model == SLOTS:
        published = ", ".join(f"{name} {size} ({size / PUBLISHED[0][1]:.2f})" for name, size in PUBLISHED)
        parts += [
            goal(records),
            f"Published (Memformer, Wu et al. 2022), MB of a GPU in all, as none, per_layer, segment: {published}.",
        ]
    elif model == MEMFORMER:
        parts.append("'mrbp' is memory replay that walks forward through encoder and writer only.")
    else:
        parts.append("No goal: every segment saves a whole memory, so what is saved grows with their number.")
    return "\n\n".join(parts)


def _num_layers(model: str, settings: dict[str, Any]) -> int:
    return settings["encoder_layers"] + settings["decoder_layers"] if model == MEMFORMER else settings["layers"]


def text(tables: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """All tables, with what they were made from: model -> records."""
    records = [record for some in tables.values() for record in some]
    first = records[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    listed = lambda key: ", ".join(f"`{value}`" for value in sorted({record[key] for record in records}))
    limits = sorted({record["limit"] / 2**30 for record in records if "limit" in record})
    heading = [
        "# Memory of the segment scan by policy",
        f"Value and gradient of `loss_over_segments`, compiled for one chip of {first['settings']['topology']} without "
        f"the hardware; nothing was run. {versions}; commit {listed('commit')}; {listed('command')}.",
        "MiB: the compiler's temporaries, so without parameters and the gradients returned (*host*: what is in the "
        "host's memory); *wants*: it does not fit"
        + "".join(f" into {limit:.2f} GiB" for limit in limits)
        + ", and this is what the compiler says it wants in all, which ratios take for it. FLOPs: counted from the "
        "jaxpr, loops multiplied out. Growth: from the fewest to the most segments. Policies are those of "
        "`training.rematerialize`.",
    ]
    sections = [section(model, first["settings"], with_ratios(some)) for model, some in tables.items()]
    return "\n\n".join(heading + sections) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Makes the table of each model; exit code 2 for a bad argument, 1 where a program does not compile."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.rematerialization", description="Memory of the segment scan by policy."
    )
    parser.add_argument("--segments", type=int, nargs="+", default=[8, 32, 64], help="numbers of segments")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="tables to make")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "bench", help="folder of records and tables")
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
    arguments.out.mkdir(parents=True, exist_ok=True)
    numbers = sorted(set(arguments.segments))
    try:
        tables = {
            model: measure(cells(model, numbers), frame, arguments.out / f"rematerialization_{model}.jsonl")
            for model in arguments.models
        }
    except harness.BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    shown = text(tables)
    (arguments.out / "rematerialization.md").write_text(shown)
    print(shown, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
