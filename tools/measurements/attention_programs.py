"""Compiles programs of attention for TPUs: memory and traffic of one layer's attention, forward and backward.

    python -m tools.measurements.attention_programs

Nothing is run. Every program is compiled for a chip that need not be there. This needs the extra `plan`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from memjax.planning.plan_cases import ENVIRONMENT

os.environ.update(ENVIRONMENT)  # before JAX is imported

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402

from memjax.functional.attention import visibility  # noqa: E402
from memjax.functional.linear_attention import causal_linear_attention  # noqa: E402
from memjax.functional.positions import relative_shift  # noqa: E402
from memjax.memory.attention_implementations import read_segment  # noqa: E402
from memjax.memory.bucket_projector import BucketProjector  # noqa: E402
from memjax.planning.hlo import hbm_bytes, parse_hlo  # noqa: E402
from memjax.planning.topologies import Topology, parse_topology  # noqa: E402
from memjax.training.costs import jaxpr_flops  # noqa: E402
from tools.results import pages  # noqa: E402
from tools.results.ledger import measured, together  # noqa: E402

CHIPS = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")
SIZES: dict[str, dict[str, int]] = {
    "rotary": {"rows": 1, "length": 512, "slots": 65536, "heads": 32, "key_heads": 8, "head_dim": 128},
    "relative positions": {"rows": 4, "length": 512, "slots": 2048, "heads": 16, "key_heads": 16, "head_dim": 64},
    "distance buckets": {"rows": 4, "length": 512, "slots": 512, "heads": 16, "key_heads": 16, "head_dim": 128},
    "none, linear attention": {
        **{"rows": 4, "length": 2048, "slots": 0, "heads": 16, "key_heads": 16, "head_dim": 64},
        "chunk_length": 128,
    },
}
"""Kind of positions -> sizes of the attention on one device."""
BUCKETS = BucketProjector(query_key_norm=False)
PROGRAMS = {
    "rotary": ("reference", "blocks", "fused"),
    "relative positions": ("reference", "blocks"),
    "distance buckets": ("reference", "blocks"),
    "none, linear attention": ("reference", "chunks"),
}


def arrays_of(positions: str, device: Any) -> dict[str, Any]:
    """Returns the shapes of the arrays that an attention reads, bfloat16 on one device, by their names."""
    sizes = SIZES[positions]
    shape = lambda *axes, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(axes, dtype, sharding=SingleDeviceSharding(device))
    rows, length, total = sizes["rows"], sizes["length"], sizes["slots"] + sizes["length"]
    heads, width, keys = sizes["heads"], sizes["head_dim"], (rows, total, sizes["key_heads"], sizes["head_dim"])
    arrays = {"queries": shape(rows, length, heads, width), "keys": shape(*keys), "values": shape(*keys)}
    if positions == "relative positions":
        arrays |= {"position_queries": shape(rows, length, heads, width), "relative_keys": shape(total, heads, width)}
    if positions == "distance buckets":
        arrays["buckets"] = shape(heads, BUCKETS.num_buckets, dtype=jnp.float32)
    return arrays


def make_program(program: str, slots: int) -> Callable[..., Any]:
    """Makes a function `(arrays, valid)`, the gradient of an attention with respect to all its arrays.

    `valid` says which slots of the memory and which tokens of the segment are there, in this order.
    """

    def total(arrays: dict[str, Any], valid: jax.Array) -> jax.Array:
        queries, keys, values = (arrays[name] for name in ("queries", "keys", "values"))
        options: dict[str, Any] = {"valid": valid}
        options["visible"] = visibility(queries.shape[1], valid[:, :slots], valid[:, slots:])
        if "buckets" in arrays:
            weights = {"position_bias": arrays["buckets"]}
            options["distance_bias"] = BUCKETS.distance_bias(weights, queries.shape[-1])
            options["bias"] = BUCKETS.place(weights, queries, keys, (("", slots),))[2]
        if "relative_keys" in arrays:
            factors = arrays["position_queries"], arrays["relative_keys"]
            if program == "reference":
                options["bias"] = relative_shift(jnp.einsum("blhd,mhd->bhlm", *factors))
            else:
                options["position_factors"] = factors
        output, _ = read_segment(program, queries, keys, values, **options)
        return jnp.square(output.astype(jnp.float32)).sum()

    return jax.grad(total)


def make_linear_program(program: str, chunk_length: int) -> Callable[..., Any]:
    """Makes a function `(arrays, valid)`, the gradient of a linear attention with respect to all its arrays.

    The program "reference" makes one product of all queries and keys, any other works in chunks of `chunk_length`.
    """

    def total(arrays: dict[str, Any], valid: jax.Array) -> jax.Array:
        length = 0 if program == "reference" else chunk_length
        output, _ = causal_linear_attention(**arrays, mask=valid, chunk_length=length)
        return jnp.square(output.astype(jnp.float32)).sum()

    return jax.grad(total)


def measure(positions: str, program: str, topology: Topology) -> dict[str, Any]:
    """Compiles one program for one chip, and returns its memory, traffic, operations and estimated time."""
    device = topology.devices()[0]
    arrays, sizes = arrays_of(positions, device), SIZES[positions]
    valid = jax.ShapeDtypeStruct(
        (sizes["rows"], sizes["slots"] + sizes["length"]), jnp.bool_, sharding=SingleDeviceSharding(device)
    )
    linear = sizes.get("chunk_length")
    gradient = make_linear_program(program, linear) if linear else make_program(program, sizes["slots"])
    mesh = jax.sharding.Mesh([device], ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        traced = jax.jit(gradient).trace(arrays, valid)
        compiled = traced.lower().compile()
    flops, moved = jaxpr_flops(traced.jaxpr), hbm_bytes(parse_hlo(compiled.as_text()))
    return {
        "positions": positions,
        "sizes": sizes,
        "program": program,
        "chip": topology.generation.name,
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "hbm_bytes": moved,
        "flops": flops,
        "milliseconds": 1e3 * max(flops / topology.peak_flops, moved / topology.hbm_bandwidth),
    }


def measure_all() -> Iterator[dict[str, Any]]:
    """Measures every program on every chip, and prints each record."""
    for chip in CHIPS:
        for positions, programs in PROGRAMS.items():
            for program in programs:
                record = measure(positions, program, parse_topology(chip))
                print({key: value for key, value in record.items() if key != "sizes"}, flush=True)
                yield record


def main(arguments: list[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m tools.measurements.attention_programs", description=__doc__).parse_args(
        arguments
    )
    about = (
        "One layer's attention, forward and backward, bfloat16, on one chip that is not there: nothing was run. The "
        "traffic is what the program reads from and writes to the HBM, every operand of an operation once. The "
        "estimate is the longer of that and of the products at the chip's peak."
    )
    facts, title = together([*measure_all()]), "Programs of attention"
    command = "python -m tools.measurements.attention_programs"
    pages.record(measured("attention_programs", "layer", facts, command=command, title=title, about=about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
