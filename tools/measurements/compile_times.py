"""Measures the phases of the compilation of a training step on a CPU, with unrolled and with scanned layers.

    python -m tools.measurements.compile_times [--layers 4] [--repeats 3]

The numbers are CPU seconds of all threads of this process, the median of the repeats: tracing, lowering, and the
compilation by XLA without a cache. The phases of XLA are those of its profiler. The time that threads spend in a phase,
without waiting, gives its share of the CPU seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from memjax.config import Bytes, Config, Data, Model, TransformerXL
from memjax.planning.programs import Program, make_programs
from memjax.training.sharding import Layout, make_mesh
from tools.results import pages
from tools.results.ledger import measured, together

SIZES: dict[str, Any] = {"dim": 128, "num_heads": 4}
ROWS, SEGMENT, VOCAB = 4, 128, 256
TITLE = "Compilation of a training step of Transformer-XL"
WHOLE = "PjRtCpuClient::Compile"
WAITING = ("ThunkEmitter::ConsumeKernels", "JitCompiler::Compile")
"""Parts of the compilation in which its own thread waits for others."""
PHASES = {
    "HLO passes": ("HLO passes through layout assignment", "HLO passes after layout assignment"),
    "kernels of fusions": ("FusionCompiler::Compile",),
    "machine code": ("TaskDispatcher::dispatch",),
}
"""Phase -> beginnings of the names of its events in a profile of XLA."""


def thread_seconds(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sums the seconds that threads spend in each phase of a compilation.

    The phase 'other' is the rest of the time of the thread that compiles.

    Args:
      events: Complete events of a profile, with `name` and `dur` in microseconds.
    """

    def seconds(names: tuple[str, ...]) -> float:
        return sum(event["dur"] for event in events if event["name"].startswith(names)) / 1e6

    phases = {phase: seconds(names) for phase, names in PHASES.items()}
    phases["other"] = max(seconds((WHOLE,)) - phases["HLO passes"] - seconds(WAITING), 0.0)
    return phases


def make_step(layers: int, *, scanned: bool) -> Program:
    """Returns the training step of a Transformer-XL on one device, from shapes alone.

    Args:
      layers: Number of layers.
      scanned: Whether the layers are one scanned layer.
    """
    attention = TransformerXL(memory_length=SEGMENT)
    config = Config(
        name="compile_times",
        model=Model(**SIZES, num_layers=layers, scan_layers=scanned, attention=attention),
        data=Data(tokenizer=Bytes(), batch_size=ROWS, segment_length=SEGMENT),
    )
    return make_programs(config, "train", VOCAB, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))["stream"]


def measure_once(step: Program) -> dict[str, float]:
    """Compiles a step from the beginning, and returns the CPU seconds of every part."""
    jax.clear_caches()

    def measure_cpu(do: Callable[[], Any]) -> tuple[Any, float]:
        start = time.process_time()
        return do(), time.process_time() - start

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    function = jax.jit(step.function, donate_argnums=step.donated)
    traced, tracing = measure_cpu(lambda: function.trace(*step.arguments.values()))
    lowered, lowering = measure_cpu(traced.lower)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            _, compiling = measure_cpu(lowered.compile)
        (path,) = Path(folder).glob("**/*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    phases = thread_seconds([event for event in events if event.get("ph") == "X"])
    shares = {phase: compiling * value / sum(phases.values()) for phase, value in phases.items()}
    return {"tracing": tracing, "lowering": lowering, **shares}


def measure(layers: int, repeats: int) -> list[dict[str, Any]]:
    """Measures a step with unrolled and with scanned layers in alternation, after one round that is not counted.

    Args:
      layers: Number of layers.
      repeats: Number of compilations of each.
    """
    steps = {name: make_step(layers, scanned=name == "scanned") for name in ("unrolled", "scanned")}
    rounds = [{name: measure_once(step) for name, step in steps.items()} for _ in range(repeats + 1)][1:]
    return [
        {
            "layers": name,
            "equations": len(jax.make_jaxpr(step.function)(*step.arguments.values()).eqns),
            "cpu_seconds": {part: statistics.median(r[name][part] for r in rounds) for part in rounds[0][name]},
        }
        for name, step in steps.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measures the compilation and records it."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.compile_times", description="Times of a compilation."
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_compilation_cache", False)
    layers, repeats = options.layers, options.repeats
    facts = {**together(measure(layers, repeats)), "jax": jax.__version__, "sizes": SIZES}
    command = f"python -m tools.measurements.compile_times --layers {layers} --repeats {repeats}"
    about = (
        f"{layers} layers, {SIZES['dim']} wide, {SIZES['num_heads']} heads, memory and segment {SEGMENT}, {ROWS} rows. "
        f"CPU seconds of all threads, median of {repeats} compilations of each in alternation, nothing in a cache. "
        "Phases of XLA: shares of the time that its threads work in them."
    )
    pages.record(measured("compile_times", "transformer_xl", facts, command=command, title=TITLE, about=about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
