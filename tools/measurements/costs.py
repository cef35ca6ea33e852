"""Counts FLOPs and state of Memformer, Transformer-XL and a plain Transformer at the sizes for WikiText-103.

    python -m tools.measurements.costs             # counts; seconds
    python -m tools.measurements.costs --compile   # also temporaries, as the compiler plans them; minutes

Nothing is run: programs are traced, and with `--compile` compiled.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from memjax import config
from memjax.memory.interface import state_axes
from memjax.models.factory import make_model
from memjax.training.costs import count_flops
from memjax.training.metrics import count_bytes
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured
from tools.results.speed_tables import MEMORY_OF_LENGTHS, TEMPORARIES

SIZES: dict[str, Any] = {"dim": 512, "heads": 8, "hidden": 2048, "encoder_layers": 4, "layers": 16, "vocab": 32_000}
SIZES |= {"length": 128, "batch": 16}
MEMORIES = (64, 128, 256, 512, 1024, 2048)
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
COMPILED = (1024, 2048)


def model_config(kind: str, memory: int, sizes: dict[str, Any]) -> config.ModelBase:
    """Returns the settings of the model of a row.

    Args:
      kind: 'memformer', 'transformer_xl' or 'transformer'.
      memory: Number of slots of Memformer, or of positions of Transformer-XL's memory. Not read for 'transformer'.
      sizes: Sizes of the model, with the keys of `SIZES`.
    """
    common = {"dim": sizes["dim"], "num_layers": sizes["layers"], "num_heads": sizes["heads"], "scan_layers": True}
    common["feed_forward"] = config.Dense(dim=sizes["hidden"])
    if kind == "memformer":
        return config.Memformer(**common, encoder_layers=sizes["encoder_layers"], num_slots=memory)
    attention = config.TransformerXL(memory_length=memory if kind == "transformer_xl" else 0)
    return config.Model(**common, attention=attention)


def program(model_config: config.ModelBase, vocab: int, rows: int, length: int) -> tuple[Any, tuple[Any, ...]]:
    """Returns a function `loss(params, state, tokens) -> (nats, state)`, and the shapes of its arguments.

    The function reads one segment of all rows. `nats` is the sum over all tokens.
    """
    described = config.Config(model=model_config, data=config.Data(segment_length=length))
    model = make_model(described, vocab, vocab_multiple=1)
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def init() -> Any:
        ids = jnp.zeros(tokens.shape, jnp.int32)
        state, start = model.init_state(rows), jnp.zeros(rows, bool)
        return model.init(jax.random.key(0), ids, state, start_of_document=start)["params"]

    def loss(params: Any, state: Any, tokens: Any) -> Any:
        start = jnp.zeros(tokens.shape[0], bool)
        hidden, state, _ = model.apply({"params": params}, tokens, state, start_of_document=start)
        weights = jnp.ones(tokens.shape, jnp.float32)
        return model.apply({"params": params}, hidden, tokens, weights, method="nll").total, state

    state = jax.eval_shape(lambda: model.init_state(rows))
    return loss, (jax.eval_shape(init), state, tokens)


def row_by_row(loss: Any, rows: int) -> Any:
    """Returns a function like `loss` that reads one row after the other, and updates the state of all rows in place."""

    def all_rows(params: Any, state: Any, tokens: Any) -> Any:
        axes = state_axes(state)

        def read(row: Any, carry: Any) -> Any:
            total, state = carry
            part = jax.tree.map(lambda leaf, axis: jax.lax.dynamic_slice_in_dim(leaf, row, 1, axis), state, axes)
            nats, part = loss(params, part, jax.lax.dynamic_slice_in_dim(tokens, row, 1))
            update = jax.lax.dynamic_update_slice_in_dim
            state = jax.tree.map(lambda leaf, new, axis: update(leaf, new, row, axis), state, part, axes)
            return total + nats, state

        return jax.lax.fori_loop(0, rows, read, (jnp.zeros(()), state))

    return all_rows


def measure(kind: str, memory: int, length: int, sizes: dict[str, Any], *, compiled: bool = False) -> dict[str, Any]:
    """Returns the record of a model: operations and state of a row, and with `compiled` the temporaries of all rows."""
    loss, shapes = program(model_config(kind, memory, sizes), sizes["vocab"], sizes["batch"], length)
    flops = count_flops(loss, *shapes)
    record = {"kind": kind, "memory": memory, "length": length, "rows": sizes["batch"]}
    record["flops"] = flops // sizes["batch"]
    record["state_bytes"] = count_bytes(shapes[1]) // sizes["batch"]
    record["parameter_bytes"] = count_bytes(shapes[0])
    if compiled:
        record["temp_bytes"] = _temporaries(loss, shapes)
        record["row_temp_bytes"] = _temporaries(row_by_row(loss, sizes["batch"]), shapes)
    return record


def measure_all(sizes: dict[str, Any], *, compiled: bool = False) -> list[dict[str, Any]]:
    """Returns all records: first by size of the memory, then by length of the text."""
    with_memory = ("memformer", "transformer_xl")
    by_memory = [
        measure(kind, memory, sizes["length"], sizes, compiled=compiled and memory in COMPILED)
        for kind in with_memory
        for memory in MEMORIES
    ]
    return [*by_memory, *(measure("transformer", 0, length, sizes) for length in LENGTHS)]


def ratios(records: list[dict[str, Any]]) -> dict[str, float]:
    """Computes the ratios that the paper claims: slopes in the memory, state, and memory beyond the weights."""
    at = {(record["kind"], record["memory"]): record for record in records if record["memory"]}
    slope = lambda kind: (
        (at[kind, MEMORIES[-1]]["flops"] - at[kind, MEMORIES[0]]["flops"]) / (MEMORIES[-1] - MEMORIES[0])
    )
    values = {"slope of FLOPs in slots, Memformer to Transformer-XL": slope("memformer") / slope("transformer_xl")}
    for memory in COMPILED:
        ours, other = at["memformer", memory], at["transformer_xl", memory]
        values[f"FLOPs at {memory:,}, Transformer-XL to Memformer"] = other["flops"] / ours["flops"]
        values[f"state at {memory:,}, Transformer-XL to Memformer"] = other["state_bytes"] / ours["state_bytes"]
        for key, how in TEMPORARIES.items():
            if key in ours:
                name = f"state and temporaries{how} at {memory:,}, Transformer-XL to Memformer"
                values[name] = _beyond(other, key) / _beyond(ours, key)
    return values


def _temporaries(program: Any, shapes: tuple[Any, ...]) -> int:
    """Returns the bytes of temporary arrays of a program, as the compiler plans them."""
    analysis: Any = jax.jit(program).lower(*shapes).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def _beyond(record: dict[str, Any], key: str) -> float:
    """Returns the bytes of the state of all rows and of the temporaries that `key` of the record counts."""
    return record["state_bytes"] * record["rows"] + record[key]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.costs", description="FLOPs and state of Memformer and Transformer-XL."
    )
    parser.add_argument("--compile", action="store_true", help="also the temporaries of the compiled programs")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the measurements")
    args = parser.parse_args(arguments)
    records = measure_all(SIZES, compiled=args.compile)
    command = shlex.join(["python", "-m", "tools.measurements.costs", *(["--compile"] if args.compile else [])])
    sizes = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in SIZES.items())
    rule = (
        "FLOPs of a forward pass of one row, counted from the traced program: 2 for each multiplication and addition "
        "of products of matrices, softmax layer included, everything else 0. Transformer-XL projects keys and values "
        "of its memory anew in every segment. Temporaries are those of all rows in one forward pass, as the compiler "
        "plans them: all rows at once, and one row after the other, with the state of all. By length of the text: both "
        f"memories have {MEMORY_OF_LENGTHS:,} slots and read it in segments, the Transformer reads it whole."
    )
    content = {"sizes": SIZES, "records": records, "ratios": ratios(records)}
    title, about = "FLOPs and state: Memformer beside Transformer-XL", f"Sizes: {sizes}. {rule}"
    pages.record(measured("costs", "memformer", content, command=command, title=title, about=about), Book(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
