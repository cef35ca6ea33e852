"""Shared vocabulary of shapes and the few containers that every part of memjax speaks.

Axis glossary (full words in signatures, one letter in einsums):

===========  ======  ==========================================================
axis         einsum  meaning
===========  ======  ==========================================================
`batch`      b       rows: one document stream each
`length`     l       tokens of one segment
`dim`                width of the residual stream
`heads`      h       attention heads
`head_dim`   d       width of one head
`vocab`      v       entries of the vocabulary
`memory`     m       slots of a memory state
`neighbors`  k       retrieved slots per query and head
`segments`           consecutive segments of one update
`layers`             layers of one scanned group
===========  ======  ==========================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.export
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Class = TypeVar("Class", bound=type)
Leaf = Any
"""A leaf of a state: an array, a `jax.ShapeDtypeStruct` or a sharding, depending on who maps over the tree."""
Activations = Float[Array, "batch length dim"]
Mask = Bool[Array, "batch length"]
"""True = a real token"""
Rows = Bool[Array, " batch"]
"""True = of this row"""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def tree_dataclass(cls: Class) -> Class:
    """A frozen dataclass whose fields JAX sees as a tree, also in programs that `jax.export` writes (by flatbuffers).

    Fields with `metadata={"static": True}` are part of the structure: numbers, strings and tuples of them.

    Example:
      >>> @tree_dataclass
      ... class Pair:
      ...     first: Leaf
      ...     second: Leaf
      >>> double = jax.export.export(jax.jit(lambda pair: Pair(pair.second, 2 * pair.first)))(Pair(1.0, 2.0))
      >>> print(jax.export.deserialize(double.serialize()).call(Pair(3.0, 4.0)).second)
      6.0
    """
    cls = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
    with contextlib.suppress(ValueError):  # a module that is loaded again: the name stands for the class of before
        jax.export.register_pytree_node_serialization(
            cls,
            serialized_name=f"{cls.__module__}.{cls.__qualname__}",
            serialize_auxdata=lambda static: json.dumps(static).encode(),
            deserialize_auxdata=lambda text: _tuples(json.loads(bytes(text))),
        )
    return cls


@tree_dataclass
class EmptyState:
    """The state of a part that remembers nothing between segments (memories held in parameters, feed-forward)."""


@tree_dataclass
class Sum:
    """A total with the weight it was summed over, so that layers, segments and hosts only ever add.

    Attributes:
      total: scalar, the unweighted sum of a quantity over valid positions.
      weight: scalar, how many positions were summed.
    """

    total: Leaf
    weight: Leaf

    @classmethod
    def zero(cls) -> Sum:
        """The neutral element of addition (float32 scalars in two buffers of their own)."""
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.total + other.total, self.weight + other.weight)

    def mean(self) -> Leaf:
        """`total / weight`, and 0 where nothing was summed."""
        return jnp.where(self.weight > 0, self.total / jnp.where(self.weight > 0, self.weight, 1), 0)


@tree_dataclass
class Aux:
    """What a memory reports beside its output.

    Attributes:
      losses: name -> `Sum`, unweighted; coefficients are applied once, in the last line of the objective.
      metrics: name -> `Sum`, logged only.
      arrays: name -> ids, int32 counts or requested inner tensors; names are disjoint between layers.
    """

    losses: dict[str, Sum] = dataclasses.field(default_factory=dict)
    metrics: dict[str, Sum] = dataclasses.field(default_factory=dict)
    arrays: dict[str, Leaf] = dataclasses.field(default_factory=dict)

    def __add__(self, other: Aux) -> Aux:
        """Adds sums of equal name and unites the rest; two arrays of one name are an error."""
        twice = self.arrays.keys() & other.arrays.keys()
        if twice:
            raise ValueError(f"Aux.arrays: {sorted(twice)} given by both sides; give each array a name of its own")
        return Aux(
            _add_by_name(self.losses, other.losses),
            _add_by_name(self.metrics, other.metrics),
            {**self.arrays, **other.arrays},
        )

    def prefixed(self, prefix: str) -> Aux:
        """The same values under `prefix/name`."""
        return Aux(*({f"{prefix}/{name}": value for name, value in part.items()} for part in _parts(self)))


@tree_dataclass
class Batch:
    """One segment of every row, or with a leading `segments` axis one update's worth of them.

    Attributes:
      inputs: int32 `[batch, length]`, the tokens read; or float32, a vector of numbers a row.
      targets: int32 `[batch, length]`, the tokens to predict; they cross segment borders.
      mask: bool `[batch, length]`, True = a real token; a prefix of each row.
      weights: float32 `[batch, length]`, 1 = the target is scored.
      start_of_document: bool `[batch]`, the row begins a new document in this segment.
      extras: name -> array with leading `[batch]` (neighbour ids, source tokens, byte counts of targets).
    """

    inputs: Leaf
    targets: Leaf
    mask: Leaf
    weights: Leaf
    start_of_document: Leaf
    extras: dict[str, Leaf] = dataclasses.field(default_factory=dict)


SegmentLoss = Callable[[Mapping[str, Any], Any, Batch, Any], tuple[Any, Any, Sum, Aux]]
"""`loss(variables, memory, segment, key) -> (memory, batch_stats, negative log likelihood, aux)`, what a model has to
say about one segment. `variables` has the collections params, tables, batch_stats, constants and sinks, and `method`,
what a learner keeps in `TrainState.method`, where it keeps something."""


def _add_by_name(a: dict[str, Sum], b: dict[str, Sum]) -> dict[str, Sum]:
    return {name: a[name] + b[name] if name in a and name in b else a.get(name, b.get(name)) for name in {**a, **b}}  # type: ignore[misc]


def _tuples(value: Any) -> Any:
    """What JSON holds, with tuples for lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _parts(aux: Aux) -> tuple[dict[str, Any], ...]:
    return aux.losses, aux.metrics, aux.arrays
