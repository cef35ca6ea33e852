"""`python -m tools.bench.replay`: the gradient of Memformer over many segments, by the way it is taken.

Back-propagation through time, the same with checkpoints per layer, and memory replay back-propagation in both forms
(`scan_with_replay` and `mrbp_value_and_grad`), on the machine at hand and in one process: temporaries as the compiler
plans them, and the time of a step, taken in turns. What the TPU compiler says of the same programs is a table of
`tools.bench.rematerialization`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memjax import config
from memjax.functional.mrbp import mrbp_value_and_grad
from memjax.models.factory import make_memformer
from memjax.models.memformer import replay_parts
from memjax.training.costs import jaxpr_flops
from memjax.training.segment_loop import loss_over_segments
from memjax.typing import Batch
from tools.bench import harness
from tools.results import pages
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book, measured, together

FORMS = ("none", "per_layer", "segment", "mrbp")
SETTINGS: dict[str, Any] = {"dim": 64, "encoder_layers": 2, "decoder_layers": 6, "heads": 4, "vocab": 256}
SETTINGS |= {"length": 32, "batch": 4, "slots": 16, "dtype": "float32"}


def program(form: str, settings: dict[str, Any], segments: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`gradient(params, memory, batch) -> ((value, memory), gradients)`, and the shapes of its arguments.

    Args:
      form: of `FORMS`, or 'segment_nested': checkpoints of segments and, inside, of layers.
      settings: sizes.
      segments: of one update.
    """
    described = config.Memformer(
        dim=settings["dim"],
        num_layers=settings["decoder_layers"],
        num_heads=settings["heads"],
        encoder_layers=settings["encoder_layers"],
        num_slots=settings["slots"],
        scan_layers=True,
        compute_dtype=settings["dtype"],
    )
    model = make_memformer(described, settings["vocab"], segment_length=settings["length"], rematerialize=form)
    rows = (segments, settings["batch"])
    tokens = jax.ShapeDtypeStruct((*rows, settings["length"]), jnp.int32)
    shape = lambda dtype: jax.ShapeDtypeStruct(tokens.shape, dtype)
    batch = Batch(tokens, tokens, shape(bool), shape(jnp.float32), jax.ShapeDtypeStruct(rows, bool))
    encode, head = replay_parts(model, deterministic=True)
    with_keys = lambda batch: (batch, jnp.zeros(segments, jnp.int32))

    def init() -> Any:
        ids, start = jnp.zeros(tokens.shape[1:], jnp.int32), jnp.ones(rows[1], bool)
        return model.init(jax.random.key(0), ids, model.init_state(rows[1]), start_of_document=start)["params"]

    def replayed(params: Any, memory: Any, batch: Batch) -> Any:
        result = mrbp_value_and_grad(encode, head, params, memory, with_keys(batch))
        scored = result.aux.weight.sum()
        return (result.value / scored, result.memory), jax.tree.map(lambda leaf: leaf / scored, result.gradients)

    def step(params: Any, memory: Any, segment: Any) -> Any:
        memory, encoded = encode(params, memory, segment)
        return memory, head(params, encoded, segment)[1]

    def loss(params: Any, memory: Any, batch: Batch) -> Any:
        memory, nll = loss_over_segments(step, params, memory, with_keys(batch), rematerialize=form)  # type: ignore[arg-type]
        return nll.mean(), memory

    gradient = replayed if form == "mrbp" else jax.value_and_grad(loss, has_aux=True)
    return gradient, (jax.eval_shape(init), jax.eval_shape(lambda: model.init_state(rows[1])), batch)


def arguments_of(shapes: tuple[Any, ...], vocab: int, seed: int = 0) -> tuple[Any, ...]:
    """Random parameters, the memory in which a document starts, and random tokens."""
    params, memory, batch = shapes
    draw = np.random.default_rng(seed)
    matrix = lambda leaf: jnp.asarray(draw.normal(size=leaf.shape) * leaf.shape[-1] ** -0.5, leaf.dtype)
    ids = lambda: jnp.asarray(draw.integers(0, vocab, batch.inputs.shape), jnp.int32)
    mask = jnp.ones(batch.mask.shape, bool)
    filled = Batch(ids(), ids(), mask, mask.astype(jnp.float32), jnp.zeros(batch.start_of_document.shape, bool))
    zeros = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)
    return jax.tree.map(matrix, params), jax.tree.map(zeros, memory), filled


def measure(segments: int, settings: dict[str, Any], rounds: int, forms: Sequence[str] = FORMS) -> list[dict[str, Any]]:
    """One record of every form: temporaries, operations, and the median time of a step, the forms taking turns.

    Raises:
      BenchError: a form gives another value or gradient than the first one.
    """
    records, steps, first = [], [], None
    for form in forms:
        gradient, shapes = program(form, settings, segments)
        traced = jax.jit(gradient).trace(*shapes)
        compiled = traced.lower().compile()
        memory = compiled.memory_analysis()
        arguments = arguments_of(shapes, settings["vocab"])
        (value, _), gradients = compiled(*arguments)
        first = (value, gradients) if first is None else first
        difference = jax.tree.map(jnp.subtract, first, (value, gradients))
        apart = float(optax.tree.norm(difference) / optax.tree.norm(first))
        if not apart <= 1e-4:
            raise harness.BenchError(f"{form}: its gradient is {apart:.1e} of its norm from that of {forms[0]}")
        record = {"form": form, "segments": segments, "flops": jaxpr_flops(traced.jaxpr), "apart": apart}
        records.append({**record, "temp_size": memory.temp_size_in_bytes, "seconds": []})
        steps.append((compiled, arguments))
    for _ in range(rounds):
        for record, (compiled, arguments) in zip(records, steps, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            record["seconds"].append(time.perf_counter() - started)
    return records


def main(argv: list[str] | None = None) -> int:
    """Measures and writes records and a table; exit code 2 for a bad argument, 1 where a form is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.replay", description="The gradient of Memformer over segments, by its form."
    )
    parser.add_argument("--segments", type=int, nargs="+", default=[4, 16, 64], help="numbers of segments")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of every form")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help=f"sizes, of {', '.join(SETTINGS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    arguments = parser.parse_args(argv)
    settings = dict(SETTINGS)
    for pair in arguments.set:
        name, _, value = pair.partition("=")
        if name not in settings:
            parser.error(f"--set: given {name!r}, allowed: {', '.join(settings)}")
        settings[name] = type(settings[name])(value)
    if min(arguments.segments) < 1 or arguments.rounds < 1:
        parser.error("--segments, --rounds: allowed: at least 1")
    try:
        records = [r for n in sorted(set(arguments.segments)) for r in measure(n, settings, arguments.rounds)]
    except harness.BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    command = shlex.join(["python", "-m", "tools.bench.replay", *(sys.argv[1:] if argv is None else argv)])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "flax"))
    device = jax.devices()[0]
    hardware = f"{device.platform} ({device.device_kind}), {platform.machine()}; {versions}"
    about = (
        "Temporaries are the compiler's, without parameters and the gradients returned; FLOPs are counted from the "
        "jaxpr; speed is of the median of steps that took turns in one process. Shares are of the first row's."
    )
    facts, title = {"settings": settings, "platform": device.platform}, "Gradients of Memformer over segments"
    facts |= together(records)
    found = measured("replay", "memformer", facts, command=command, title=title, about=about, hardware=hardware)
    pages.record(found, Book(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
