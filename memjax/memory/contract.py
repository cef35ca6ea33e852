"""The memory contract: what every memory module is, and the only code that knows where the batch axis of a state is.

A memory is a Linen module whose state the caller owns:

    state = memory.init_state(batch_size)
    y, state, aux = memory.apply(variables, x, state, start_of_document=..., mask=..., deterministic=True)

* `x` is one segment, `[batch, length, dim]`; `start_of_document` `[batch]` says which rows begin a new document: their
  old state has no effect, now or later. `mask` `[batch, length]` is True on real tokens, a prefix of each row; a row
  without a real token keeps its state bit for bit.
* The new state has the structure, shapes, dtypes and sharding of the old one. Every leaf has the batch at axis 0,
  inside a scanned group of layers at axis 1.
* `aux` holds sums only: layers, segments, microbatches and hosts add.

A decoder memory also decodes token by token: `decode_state = memory.init_decode_state(state, segment_length,
batch_size)`, then `y, decode_state = memory.apply(variables, x, decode_state, active=..., method="decode")` with `x`
`[batch, 1, dim]`; an inactive row changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.typing import Aux, Leaf

State = TypeVar("State")


@runtime_checkable
class MemoryModule(Protocol):
    """What a memory offers to the model that carries it (see the module's docstring)."""

    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> Any:
        """A state that means "a document starts here"; needs no parameters."""
        ...

    def __call__(
        self,
        x: Float[Array, "batch length dim"],
        state: Any,
        *,
        start_of_document: Bool[Array, " batch"],
        mask: Bool[Array, "batch length"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "batch length dim"], Any, Aux]:
        """Reads the state for one segment and returns the output, the new state and sums."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerState:
    """State of one layer: that of its attention part and that of its feed-forward part."""

    attention: Any
    feed_forward: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StackState:
    """State of a stack of layers.

    Attributes:
      groups: one state per group of equal neighbouring layers. The leaves of a scanned group have layers at axis 0 and
        the batch at axis 1.
      sizes: number of layers of each scanned group; 0 for a layer that stands alone (static).
    """

    groups: tuple[Any, ...]
    sizes: tuple[int, ...] = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """State of a memory between two tokens.

    Attributes:
      memory: the memory state at the start of the running segment.
      segment: buffers of the running segment's tokens, `[batch, segment_length, ...]`.
      position: int32 `[batch]`, tokens of the running segment already read; rows may be out of phase.
    """

    memory: Any
    segment: Any
    position: Leaf


def state_axes(state: State) -> State:
    """The batch axis of every leaf, as a tree of the state's structure.

    Example:
      >>> state_axes(StackState((jnp.zeros((3, 2, 5)), jnp.zeros((2, 5))), sizes=(3, 0))).groups
      (1, 0)
    """

    def axes(node: Any) -> Any:
        if not isinstance(node, StackState):
            return 0
        groups = zip(node.groups, node.sizes, strict=True)
        return StackState(tuple(jax.tree.map(lambda _, axis=int(n > 0): axis, g) for g, n in groups), node.sizes)

    return jax.tree.map(axes, state, is_leaf=lambda node: isinstance(node, StackState))


def num_rows(state: Any) -> int | None:
    """Batch rows of a state; None for a state without leaves."""
    sizes = jax.tree.leaves(jax.tree.map(lambda leaf, axis: leaf.shape[axis], state, state_axes(state)))
    return sizes[0] if sizes else None


def take_rows(state: State, rows: Int[Array, " rows"]) -> State:
    """The state of the given rows, in their order (a row may be taken twice or not at all)."""
    return jax.tree.map(lambda leaf, axis: jnp.take(leaf, rows, axis=axis), state, state_axes(state))


def where_rows(condition: Bool[Array, " batch"], a: State, b: State) -> State:
    """Row by row the state `a` where `condition` holds, else `b`."""

    def select(x: Array, y: Array, axis: int) -> Array:
        shape = [1] * x.ndim
        shape[axis] = condition.shape[0]
        return jnp.where(condition.reshape(shape), x, y)

    return jax.tree.map(select, a, b, state_axes(a))


def select_state(ok: Bool[Array, ""], new: State, old: State, *, length: int | None = None) -> State:
    """`new` if `ok` else `old`, without copying what a memory did not write.

    A state class with a method `select(ok, old, length)` says itself how it returns to `old`: a long FIFO restores the
    window that was written. All others are selected leaf by leaf.

    Args:
      ok: whether `new` is kept.
      new: the state after one call of the memory on `old` (after several where `length` is None).
      old: the state before.
      length: tokens of that one segment; None = anything may have changed.
    """

    def select(n: Any, o: Any) -> Any:
        if isinstance(n, StackState):
            groups = zip(n.groups, o.groups, n.sizes, strict=True)
            one: Callable[[Any, Any], Any] = lambda a, b: select_state(ok, a, b, length=length)  # noqa: E731
            return StackState(tuple((jax.vmap(one) if size else one)(g, h) for g, h, size in groups), n.sizes)
        if hasattr(n, "select"):
            return n.select(ok, o, length)
        return jnp.where(ok, n, o)

    return jax.tree.map(select, new, old, is_leaf=lambda n: isinstance(n, StackState) or hasattr(n, "select"))


def next_position(
    position: Int[Array, " batch"], active: Bool[Array, " batch"], segment_length: int
) -> Int[Array, " batch"]:
    """Position after one more token of every active row; a full segment starts again at 0."""
    return (position + active.astype(position.dtype)) % segment_length


def broadcast_mask(mask: Array | None, batch: int, length: int) -> Bool[Array, "batch length"]:
    """`mask`, or all True where None was given."""
    return jnp.ones((batch, length), bool) if mask is None else mask
