"""Names of array axes, and the containers that all parts of memjax share.

Axis glossary (full words in signatures, one letter in einsums):

===========  ======  ==========================================================
axis         einsum  meaning
===========  ======  ==========================================================
`batch`      b       rows, each with its own stream of documents
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
import sys
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
"""True = the row is chosen"""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def tree_dataclass(cls: Class) -> Class:
    """Class decorator that makes a class a frozen dataclass and a JAX pytree, which `jax.export` and
    `flax.serialization` can serialize. Its method `replace(**changes)` returns a copy with other values of some fields.

    Fields with `metadata={"static": True}` are part of the tree structure: numbers, strings and tuples of them. Flax
    does not save them, and takes them from the target.

    Example:
      >>> @tree_dataclass
      ... class Pair:
      ...     first: Leaf
      ...     second: Leaf
      >>> double = jax.export.export(jax.jit(lambda pair: Pair(pair.second, 2 * pair.first)))(Pair(1.0, 2.0))
      >>> print(jax.export.deserialize(double.serialize()).call(Pair(3.0, 4.0)).second)
      6.0
      >>> Pair(1.0, 2.0).replace(second=3.0)
      Pair(first=1.0, second=3.0)
    """
    cls = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
    cls.replace = lambda self, **changes: dataclasses.replace(self, **changes)
    with contextlib.suppress(ValueError):  # a module that is loaded again: the name stands for the class of before
        jax.export.register_pytree_node_serialization(
            cls,
            serialized_name=f"{cls.__module__}.{cls.__qualname__}",
            serialize_auxdata=lambda static: json.dumps(static).encode(),
            deserialize_auxdata=lambda text: _tuples(json.loads(bytes(text))),
        )
    _unknown_to_flax.append(cls)
    if "flax" in sys.modules:
        register_with_flax()
    return cls


_unknown_to_flax: list[type] = []
"""Classes of `tree_dataclass` that were made before Flax was imported"""


def register_with_flax() -> None:
    """Makes all classes of `tree_dataclass` known to `flax.serialization`. `import memjax.memory` calls it. Call it
    yourself where you import Flax after `memjax.functional`, which does not need Flax.
    """
    from flax import serialization

    while _unknown_to_flax:
        serialization.register_serialization_state(_unknown_to_flax.pop(), _to_state_dict, _from_state_dict)


def _to_state_dict(tree: Any) -> dict[str, Any]:
    """Returns the fields of an instance of a `tree_dataclass` by name, as `flax.serialization` saves them."""
    from flax import serialization

    return {name: serialization.to_state_dict(getattr(tree, name)) for name in _saved_fields(tree)}


def _from_state_dict(target: Any, saved: Mapping[str, Any]) -> Any:
    """Returns a copy of `target`, an instance of a `tree_dataclass`, with the fields that `_to_state_dict` has saved.

    Raises:
      ValueError: The saved fields are not those of the class.
    """
    from flax import serialization

    names = _saved_fields(target)
    if set(names) != set(saved):
        allowed = f"{', '.join(names) or 'none'}, the fields of {type(target).__name__}"
        raise ValueError(f"saved: given {', '.join(map(str, saved)) or 'no fields'}, allowed: {allowed}")
    restore = lambda name: serialization.from_state_dict(getattr(target, name), saved[name], name=name)
    return dataclasses.replace(target, **{name: restore(name) for name in names})


def _saved_fields(tree: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(tree) if not field.metadata.get("static")]


@tree_dataclass
class EmptyState:
    """The state of a layer without state, such as a feed-forward part or a memory that is held in parameters. It has no
    arrays.
    """


@tree_dataclass
class WeightedSum:
    """A sum of a quantity over positions, and the number of these positions. Sums over layers, segments and hosts are
    added before their mean is taken.

    Attributes:
      total: Scalar, the unweighted sum of a quantity over valid positions.
      weight: Scalar, the number of positions in the sum.
    """

    total: Leaf
    weight: Leaf

    @classmethod
    def zero(cls) -> WeightedSum:
        """Returns a sum over no positions, to which others are added: two float32 zeros in two separate buffers."""
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

    def __add__(self, other: WeightedSum) -> WeightedSum:
        return WeightedSum(self.total + other.total, self.weight + other.weight)

    def mean(self) -> Leaf:
        """Returns the mean over the positions, the scalar `total / weight`, or 0 where the weight is 0."""
        return jnp.where(self.weight > 0, self.total / jnp.where(self.weight > 0, self.weight, 1), 0)


@tree_dataclass
class Aux:
    """Auxiliary losses, metrics and other arrays that a memory returns beside its output, each by name.

    Attributes:
      losses: Name -> `WeightedSum` of an auxiliary loss. The objective multiplies it by its coefficient.
      metrics: Name -> `WeightedSum` of a metric, which is only logged.
      arrays: Name -> ids, int32 counts or requested inner tensors. No two layers use the same name.
    """

    losses: dict[str, WeightedSum] = dataclasses.field(default_factory=dict)
    metrics: dict[str, WeightedSum] = dataclasses.field(default_factory=dict)
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
        """Returns a copy in which each name is `prefix/name`, for all losses, metrics and arrays."""
        return Aux(*({f"{prefix}/{name}": value for name, value in part.items()} for part in _parts(self)))


@tree_dataclass
class Batch:
    """The arrays of one segment of every row: inputs, targets, masks and extras. With a leading axis `segments`, of all
    segments of a training step.

    Attributes:
      inputs: Tokens to read, int32 `[batch, length]`. Or vectors of numbers, float32 `[batch, width]`.
      targets: Tokens to predict, int32 `[batch, length]`. The last one of a segment is the first one of the next.
      mask: Valid tokens, bool `[batch, length]`. They are a prefix of each row.
      weights: Weights of the targets in the loss, float32 `[batch, length]`. 0 for a target that is not scored.
      start_of_document: Whether a row starts a new document in this segment, bool `[batch]`.
      extras: Name -> array with leading axis `batch`, such as neighbour ids, source tokens or byte counts of targets.
    """

    inputs: Leaf
    targets: Leaf
    mask: Leaf
    weights: Leaf
    start_of_document: Leaf
    extras: dict[str, Leaf] = dataclasses.field(default_factory=dict)


SegmentLoss = Callable[[Mapping[str, Any], Any, Batch, Any], tuple[Any, Any, WeightedSum, Aux]]
"""Loss of a model on one segment: `loss(variables, memory, segment, key) -> (memory, batch_stats, negative log
likelihood, aux)`. `variables` has the collections params, tables, batch_stats, constants and sinks, and the state of
the learning method as `method` (`TrainState.method`), if it has one."""


def _add_by_name(a: dict[str, WeightedSum], b: dict[str, WeightedSum]) -> dict[str, WeightedSum]:
    sums = {name: value + b[name] if name in b else value for name, value in a.items()}
    return {**sums, **{name: value for name, value in b.items() if name not in a}}


def _tuples(value: Any) -> Any:
    """Replaces the lists of a JSON value by tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _parts(aux: Aux) -> tuple[dict[str, Any], ...]:
    return aux.losses, aux.metrics, aux.arrays
