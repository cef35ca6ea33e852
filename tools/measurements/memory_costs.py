"""Counts state and FLOPs of every memory in one decoder, and of the same decoder without memory, for the README.

    python -m tools.measurements.memory_costs   # counts; seconds

Nothing is run: programs are traced.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jax

from memjax import config as settings
from memjax.config import Config, Data, Evaluation
from memjax.memory import KNNMemory
from memjax.models.feature_taps import add_mixtures
from memjax.training.costs import count_flops
from memjax.training.evaluation import make_score
from memjax.training.experiment import evaluation_model
from memjax.training.metrics import count_bytes
from memjax.training.train_state import init_variables
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured

SIZES: dict[str, int] = {"dim": 512, "layers": 12, "heads": 8, "hidden": 2048, "vocab": 32_000, "length": 256}
ROWS = 2
"""Number of rows of the traced program. The record has the numbers of one row."""
NONE = "no memory"
SLOTS = 512
"""Number of slots of a memory whose length can be chosen, unless its row names another number."""


def memories() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the rows of the table: name of a memory -> a description of its form, and its changes.

    The changes are to the decoder without memory. Most are fields of the model. 'kind' is another class of model,
    'cache' the length of a continuous cache in the evaluation, and 'neighbors' the number of neighbours of kNN-LM.
    """
    xl = settings.TransformerXL(memory_length=SLOTS)
    half = SLOTS // 2
    memory, table = (
        settings.Memorizing(layers_with_memory=(-4,), memory_length=8192, cache_length=SLOTS),
        settings.ProductKey,
    )
    return {
        NONE: ("a segment sees itself", {"attention": settings.TransformerXL(memory_length=0)}),
        "Transformer-XL": (f"{SLOTS} positions a layer", {"attention": xl}),
        "Compressive": (
            f"{half} positions and {half} slots of 4 each a layer",
            {"attention": settings.Compressive(memory_length=half, compressed_memory_length=half)},
        ),
        "Memorizing": (
            f"8,192 slots in one layer, 32 of them found; a cache of {SLOTS} a layer",
            {"attention": memory},
        ),
        "infinity-former": (f"{SLOTS} basis functions a layer", {"attention": settings.InfinityFormer()}),
        "Linear Transformer": ("sums a head", {"attention": settings.LinearTransformer()}),
        "RFA": ("64 random directions", {"attention": settings.RFA()}),
        "T2R": ("32 learned features", {"attention": settings.T2R()}),
        "MemSizer": ("32 slots", {"attention": settings.MemSizer()}),
        "memory tokens": (
            f"10 tokens before a segment of Transformer-XL ({SLOTS})",
            {"attention": xl, "memory_tokens": settings.MemoryTokens(num_tokens=10)},
        ),
        "Memformer": ("64 slots; four layers of encoder", {"kind": settings.Memformer, "num_slots": 64}),
        "product keys": ("262,144 values beside no network, in one layer", {"feed_forward": table(layers=(-4,))}),
        "ResM": (
            "262,144 values beside the network of one layer",
            {"feed_forward": table(layers=(-4,), dense_scale=1)},
        ),
        "SPALM": (
            f"4 neighbours of a token, found before; Transformer-XL ({SLOTS})",
            {"attention": xl, "output": settings.Spalm()},
        ),
        "continuous cache": ("2,000 tokens, over a trained model", {"cache": 2000}),
        "kNN-LM": ("1,024 neighbours of a token, found outside, over a trained model", {"neighbors": 1024}),
    }


def make_config(changes: dict[str, Any], sizes: dict[str, int]) -> Config:
    """Returns the configuration of a row, from its changes and the sizes of the decoder."""
    fields = {"dim": sizes["dim"], "num_layers": sizes["layers"], "num_heads": sizes["heads"], "scan_layers": True}
    fields |= {"attention": settings.TransformerXL(memory_length=0), "feed_forward": settings.Dense()}
    fields |= {name: value for name, value in changes.items() if name not in ("kind", "cache", "neighbors")}
    fields["feed_forward"].dim = sizes["hidden"]
    kind = changes.get("kind", settings.Model)
    if kind is settings.Memformer:
        fields.pop("attention")
    evaluation = Evaluation(batch_size=ROWS)
    evaluation.cache.memory_length = changes.get("cache", 0)
    return Config(model=kind(**fields), data=Data(segment_length=sizes["length"]), evaluation=evaluation)


def measure(changes: dict[str, Any], sizes: dict[str, int]) -> dict[str, int]:
    """Traces the program of a memory, and returns bytes of state, FLOPs of a scored token and bytes of parameters."""
    config = make_config(changes, sizes)
    model: Any = evaluation_model(config, sizes["vocab"])
    if "neighbors" in changes:
        model = add_mixtures(model, KNNMemory(num_neighbors=changes["neighbors"]))
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), sizes["length"]))
    state = jax.eval_shape(lambda: model.init_state(ROWS))
    batch = model.example(ROWS, sizes["length"])
    read = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, batch.extras)
    return {
        "state_bytes": count_bytes(state) // ROWS,
        "flops_per_token": count_flops(make_score(model), variables, state, *read) // (ROWS * sizes["length"]),
        "parameter_bytes": count_bytes(variables["params"]) + count_bytes(variables.get("tables", {})),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.memory_costs", description="State and FLOPs of every memory."
    )
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the measurements")
    args = parser.parse_args(arguments)
    records = [
        {"memory": name, "form": form, **measure(changes, SIZES)} for name, (form, changes) in memories().items()
    ]
    sizes = ", ".join(f"{name} {value:,}" for name, value in SIZES.items())
    about = (
        f"Sizes: {sizes}; float32. State of a row, FLOPs of scoring one token in a segment, softmax layer included, "
        "counted from the traced program: 2 for each multiplication and addition of products of matrices, everything "
        "else 0 (a table is read, not multiplied). What is searched outside of the program (kNN-LM, SPALM) is not in."
    )
    measurement = measured(
        "memory_costs",
        "decoder",
        {"sizes": SIZES, "records": records},
        command="python -m tools.measurements.memory_costs",
        title="FLOPs and state: every memory in one decoder",
        about=about,
    )
    pages.record(measurement, Book(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
