"""States of layers, stacks and decoding as trees, and the batch axis of their leaves.

Every leaf has the batch at axis 0, inside a scanned group of layers at axis 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax

from memjax.axes import Names
from memjax.typing import Leaf, tree_dataclass

__all__ = [
    "DecodeState",
    "LayerState",
    "StackState",
    "leaves_and_axes",
    "num_rows",
    "state_axes",
    "state_names",
]

State = TypeVar("State")


@tree_dataclass
class LayerState:
    """State of one layer: the states of its attention part and its feed-forward part."""

    attention: Any
    feed_forward: Any


@tree_dataclass
class StackState:
    """State of a stack of layers, in groups of equal neighbouring layers.

    Attributes:
      groups: One state per group of equal neighbouring layers. The leaves of a scanned group have layers at axis 0 and
        the batch at axis 1.
      sizes: Number of layers of each scanned group. 0 for a layer outside scanned groups (static).
    """

    groups: tuple[Any, ...]
    sizes: tuple[int, ...] = dataclasses.field(metadata={"static": True})


@tree_dataclass
class DecodeState:
    """State of a memory between two tokens that are decoded one by one: its state before the segment, buffers of the
    segment, and the position in it.

    Attributes:
      memory: State of the memory at the start of the running segment.
      segment: Buffers of the tokens of the running segment, `[batch, segment_length, ...]`.
      position: int32 `[batch]`, number of tokens of the running segment that were read. Rows may differ.
    """

    memory: Any
    segment: Any
    position: Leaf


def state_axes(state: State) -> State:
    """Returns the number of the batch axis of every leaf of a state, as a tree of its structure: 1 in a scanned group
    of layers, else 0.

    Example:
      >>> import jax.numpy as jnp
      >>> state_axes(StackState((jnp.zeros((3, 2, 5)), jnp.zeros((2, 5))), sizes=(3, 0))).groups
      (1, 0)
    """

    def axes(node: Any) -> Any:
        if not isinstance(node, StackState):
            return 0
        groups = zip(node.groups, node.sizes, strict=True)
        return StackState(tuple(jax.tree.map(lambda _, axis=int(n > 0): axis, g) for g, n in groups), node.sizes)

    return jax.tree.map(axes, state, is_leaf=lambda node: isinstance(node, StackState))


def state_names(state: Any) -> Any:
    """Returns the names of the axes of every leaf of a state, one for each axis or None, as a tree of its structure.

    A leaf's first axis is `batch` unless its field says otherwise (`memjax.axes.axes_of`). In a scanned
    group the axis of layers comes before it.

    Args:
      state: State of a memory or a decode state, or its shapes.
    """
    return _state_names(state, layers=0, axes=None)


def kind_of(node: Any) -> type:
    """Returns the class of a node of a tree: `jax.Array` for an array, or the shape and dtype of one."""
    return jax.Array if is_array_like(node) else type(node)


def describe_kind(node: Any) -> str:
    """Returns the words for the class of a node in messages: 'an array', 'None', or the name of its class."""
    return "an array" if is_array_like(node) else "None" if node is None else type(node).__name__


def is_array_like(node: Any) -> bool:
    """Returns whether a node of a tree is an array, or the shape and dtype of one."""
    return hasattr(node, "shape") and hasattr(node, "dtype")


def _state_names(node: Any, layers: int, axes: tuple[str | None, ...] | None) -> Any:
    if is_array_like(node):
        return Names((None,) * layers + (axes or ("batch",) + (None,) * (node.ndim - layers - 1)))
    if isinstance(node, StackState):
        groups = (_state_names(g, layers + int(n > 0), None) for g, n in zip(node.groups, node.sizes, strict=True))
        return StackState(tuple(groups), node.sizes)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = [field for field in dataclasses.fields(node) if not field.metadata.get("static")]
        parts = {field.name: field.metadata.get("axes") for field in fields}
        return dataclasses.replace(
            node, **{name: _state_names(getattr(node, name), layers, axes) for name, axes in parts.items()}
        )
    return jax.tree.map(lambda child: _state_names(child, layers, axes), node, is_leaf=lambda child: child is not node)


def num_rows(state: Any) -> int | None:
    """Returns the number of batch rows of a state. None for a state without leaves."""
    sizes = [leaf.shape[axis] for leaf, axis in leaves_and_axes(state)]
    return sizes[0] if sizes else None


def leaves_and_axes(state: Any) -> list[tuple[Any, int]]:
    """Returns a list of all leaves of a state, each with the number of its batch axis."""
    return list(zip(jax.tree.leaves(state), jax.tree.leaves(state_axes(state)), strict=True))
