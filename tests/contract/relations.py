"""Law 10: a memory in a degenerate setting equals another one that is simpler."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.models.transformer import join_layers, split_layers
from tests.contract.cases import compressive, language_model, memorizing, rotary, toy, transformer_xl
from tests.contract.harness import ROWS, SEGMENTS, Case, Run, Segments, full_mask, prefix_mask, starts
from tests.contract.toys import OutputMemory

PLAIN = {"query_key_norm": False, "num_buckets": 0}
"""Without what local attention has and retrieved neighbours have not."""
ALL = 8
"""All slots as neighbours."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relation:
    """Two memories that must give the same outputs.

    Attributes:
      name: what is claimed.
      child: the degenerate memory.
      parent: what it equals.
      site: of both.
      change: the variables that the child gets (a closed gate, no positions).
      adapt: the parent's variables, from the child's.
      restart_parent: the parent starts a document in every segment.
    """

    name: str
    child: Callable[[Any], Any]
    parent: Callable[[Any], Any]
    site: str = "layer"
    change: Callable[[Any], Any] = lambda params: params
    adapt: Callable[[Any], Any] = lambda params: params
    restart_parent: bool = False


def check(relation: Relation) -> None:
    """Compares the outputs of real tokens over segments with documents that start and end, in float64."""
    child, parent = (cached_run(make, relation.site) for make in (relation.child, relation.parent))
    with child.precision():
        child.variables = {"params": relation.change(child.random_variables()["params"])}
        parent_params = relation.adapt(child.variables["params"])
        assert jax.tree.structure(parent_params) == jax.tree.structure(parent.random_variables()["params"])
        start = jnp.stack([starts(True, True, True), starts(), starts(False, True, False)])
        mask = jnp.stack([full_mask(), prefix_mask(4, 2, 4), prefix_mask(4, 4, 3)])
        segments = Segments(child.init_state(), child.xs(SEGMENTS), start, mask, jnp.ones((SEGMENTS,)))
        ys = np.asarray(child.scan(segments)[0])
        parent.variables = {"params": parent_params}
        everywhere = jnp.ones((SEGMENTS, ROWS), bool)
        start = everywhere if relation.restart_parent else start
        others = np.asarray(parent.scan(segments.replace(state=parent.init_state(), start=start))[0])
        np.testing.assert_allclose(ys[mask], others[mask], rtol=0, atol=1e-10)


@functools.cache
def cached_run(make: Callable[[Any], Any], site: str) -> Run:
    return Run(Case(name="relation", make=make, site=site), "float64")


def without(*names: str) -> Callable[[Any], Any]:
    return lambda params: {name: value for name, value in params.items() if name not in names}


def with_value(name: str, value: float) -> Callable[[Any], Any]:
    return lambda params: {**params, name: jnp.full_like(params[name], value)}


def no_positions(params: Any) -> Any:
    """Transformer-XL's parameters, and those of memories made like it, with every term of positions 0."""
    zero = lambda tree: jax.tree.map(jnp.zeros_like, tree)
    terms = ("relative", "biases", "compressed_relative", "compressed_position")
    return {name: zero(value) if name in terms else value for name, value in params.items()}


def kernel_of(weight: float) -> Callable[[Any], Any]:
    """A compression whose matrices are all `weight` times the identity."""

    def change(params: Any) -> Any:
        rate, dim, _ = (kernel := params["compression_kernel"]).shape
        eye = jnp.broadcast_to(weight * jnp.eye(dim, dtype=kernel.dtype)[None], (rate, dim, dim))
        return {**params, "compression_kernel": eye}

    return change


def separate_projections(params: Any) -> Any:
    both = {"key": params["key_value"][:, 0], "value": params["key_value"][:, 1]}
    return {**{name: params[name] for name in ("query", "output", "layer_norm")}, **both}


def regroup(params: Any) -> Any:
    """Parameters of three scanned layers, for the stack that runs them one by one."""
    scanned, alone = ((0, 3),), ((0, 0), (1, 0), (2, 0))
    return {**params, "stack": join_layers(split_layers(params["stack"], scanned), alone)}


TRANSFORMER_XL, MEMORIZING, CACHED = transformer_xl(), memorizing(), memorizing(cache_length=4)
ALL_NEIGHBORS, OUTPUT = memorizing(num_neighbors=ALL), toy(OutputMemory)

COMPRESSION = ("compressed_relative", "compressed_position", "compression_kernel")

RELATIONS = [
    Relation(
        name="transformer_xl without memory is local attention",
        child=transformer_xl(memory_length=0),
        parent=TRANSFORMER_XL,
        restart_parent=True,
    ),
    Relation(
        name="transformer_xl with a clamp beyond its context has no clamp",
        child=transformer_xl(clamp_length=11),
        parent=TRANSFORMER_XL,
    ),
    Relation(
        name="transformer_xl with a same length beyond its context is the ordinary one",
        child=transformer_xl(memory_length=12, same_length=True),
        parent=transformer_xl(memory_length=12),
    ),
    Relation(
        name="transformer_xl without positions is attention over a cache of keys and values",
        child=TRANSFORMER_XL,
        parent=memorizing(memory_length=0, cache_length=8, norm="post", norm_kind="layer", **PLAIN),
        change=no_positions,
        adapt=separate_projections,
    ),
    Relation(
        name="rotary attention without memory is local attention",
        child=rotary(memory_length=0),
        parent=rotary(),
        restart_parent=True,
    ),
    Relation(
        name="rotary attention with a window and sinks beyond its context is the ordinary one",
        child=rotary(memory_length=12, same_length=True, sinks=3, window=20),
        parent=rotary(memory_length=12),
    ),
    Relation(
        name="rotary attention with sinks has a longer memory where nothing is forgotten",
        child=rotary(memory_length=4, sinks=4),
        parent=rotary(),
    ),
    Relation(
        name="rotary attention without positions is attention over a cache of keys and values",
        child=rotary({"key_heads": 2, "frequencies": ()}),
        parent=memorizing(memory_length=0, cache_length=8, **PLAIN),
        adapt=separate_projections,
    ),
    Relation(
        name="compressive without a compressed memory is transformer_xl",
        child=compressive(compressed_memory_length=0),
        parent=TRANSFORMER_XL,
    ),
    Relation(
        name="compressive without memory is local attention",
        child=compressive(memory_length=0),
        parent=transformer_xl(memory_length=0),
        adapt=without(*COMPRESSION),
    ),
    Relation(
        name="compressive that compresses nothing is transformer_xl with a longer memory",
        child=compressive(memory_length=3, compression_rate=1, compressed_positions="contiguous", norm="pre"),
        parent=transformer_xl(memory_length=7, norm="pre"),
        change=kernel_of(1.0),
        adapt=without(*COMPRESSION),
    ),
    Relation(
        name="compressive that compresses nothing and has no positions is transformer_xl with a longer memory",
        child=compressive(memory_length=4, compression_rate=1),
        parent=TRANSFORMER_XL,
        change=lambda params: no_positions(kernel_of(1.0)(params)),
        adapt=without(*COMPRESSION),
    ),
    Relation(
        name="compressive that keeps every slot is transformer_xl with a longer memory",
        child=compressive(
            memory_length=4, compression_rate=1, compression="most_used", compressed_positions="contiguous"
        ),
        parent=TRANSFORMER_XL,
    ),
    Relation(
        name="compressive with equal weights is compressive by the mean",
        child=compressive(memory_length=4),
        parent=compressive(memory_length=4, compression="mean"),
        change=kernel_of(0.5),
        adapt=without("compression_kernel"),
    ),
    Relation(
        name="memorizing with a closed gate is local attention",
        child=CACHED,
        parent=memorizing(cache_length=4, memory_length=0),
        change=with_value("gate", -1e4),
        adapt=without("gate"),
    ),
    Relation(
        name="memorizing with an empty memory is local attention",
        child=memorizing(memory_length=0),
        parent=MEMORIZING,
        adapt=lambda params: {**params, "gate": jnp.zeros((2,))},
        restart_parent=True,
    ),
    Relation(
        name="memorizing with all slots as neighbours, joined, is attention over a cache",
        child=memorizing(merge="joint", num_neighbors=ALL, **PLAIN),
        parent=memorizing(memory_length=0, cache_length=8, **PLAIN),
    ),
    Relation(
        name="memorizing with all slots as neighbours, joined and evicted, is attention over a longer cache",
        child=memorizing(merge="joint", num_neighbors=ALL, write_policy="evicted", cache_length=4, **PLAIN),
        parent=memorizing(memory_length=0, cache_length=12, **PLAIN),
    ),
    Relation(
        name="memorizing with all slots as neighbours attends to the whole memory",
        child=ALL_NEIGHBORS,
        parent=memorizing(num_neighbors=ALL, retrieval="threshold"),
    ),
    Relation(
        name="threshold retrieval is exact retrieval",
        child=memorizing(retrieval="threshold"),
        parent=MEMORIZING,
    ),
    Relation(
        name="joint threshold retrieval is joint exact retrieval",
        child=memorizing(retrieval="threshold", merge="joint", cache_length=4),
        parent=memorizing(merge="joint", cache_length=4),
    ),
    Relation(
        name="approximate retrieval is exact on a CPU",
        child=memorizing(retrieval="approximate"),
        parent=MEMORIZING,
    ),
    Relation(
        name="bucket retrieval of all slots is exact retrieval",
        child=memorizing(retrieval="bucket", num_neighbors=ALL),
        parent=ALL_NEIGHBORS,
    ),
    Relation(
        name="a memory that is larger than the document needs is the same memory",
        child=memorizing(memory_length=20),
        parent=memorizing(memory_length=12),
    ),
    Relation(
        name="a window as wide as cache and segment is no window",
        child=memorizing(cache_length=4, local_window=8),
        parent=CACHED,
    ),
    Relation(
        name="an output memory of no effect leaves the hidden states",
        child=OUTPUT,
        parent=OUTPUT,
        site="output",
        change=with_value("output", 0.0),
        restart_parent=True,
    ),
    Relation(
        name="scanned layers are the same layers one by one",
        child=language_model(config.TransformerXL(memory_length=8, tied_biases=True), num_layers=3),
        parent=language_model(config.TransformerXL(memory_length=8, tied_biases=True), num_layers=3, scan_layers=False),
        site="model",
        adapt=regroup,
    ),
]
