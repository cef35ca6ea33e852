"""The memory contract: what every memory module is.

A memory is a Linen module whose state the caller owns:

    state = memory.init_state(batch_size)
    y, state, aux = memory.apply(variables, x, state, start_of_document=..., mask=..., deterministic=True)

* `x` is one segment, `[batch, length, dim]`; `start_of_document` `[batch]` says which rows begin a new document: their
  old state has no effect, now or later. `mask` `[batch, length]` is True on real tokens, a prefix of each row; a row
  without a real token keeps its state bit for bit. Tokens behind padding are read as those of a prefix are, or refused
  (`memjax.memory.checks`): no memory reads them wrongly. Rows that differ and segments without tokens are refused.
* What `y` is, with or without the residual and the norm, its class says in a sentence; most own both.
* The new state has the structure, shapes, dtypes and sharding of the old one. Every leaf has the batch at axis 0,
  inside a scanned group of layers at axis 1.
* `aux` holds sums only: layers, segments, microbatches and hosts add.

A decoder memory also decodes token by token: `decode_state = memory.init_decode_state(state, segment_length,
batch_size)`, then `y, decode_state = memory.apply(variables, x, decode_state, active=..., method="decode")` with `x`
`[batch, 1, dim]`; an inactive row changes nothing.

A memory stands at one of four sites: the attention part of a layer (`LayerMemory`), a whole stack of layers
(`StackMemory`), a decoder's view of a source (`CrossMemory`), or after the last hidden state (`OutputMemory`); what is
in parameters alone is `Stateless`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.scopes import operation
from memjax.memory.checks import check_calls
from memjax.memory.state_trees import DecodeState, LayerState, StackState, num_rows, state_axes
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = [
    "Absent",
    "CrossMemory",
    "DecodeState",
    "LayerMemory",
    "LayerState",
    "Memory",
    "OutputMemory",
    "StackMemory",
    "StackState",
    "Stateless",
    "num_rows",
    "restore_state",
    "save_state",
    "select_state",
    "state_axes",
    "take_rows",
    "where_rows",
]

State = TypeVar("State")


class Absent(ValueError):
    """A model has nothing of what it is asked for: weights of attention, ages of keys, a signal, retrieved tokens."""


class Memory(nn.Module):
    """What a memory is, wherever it stands; it has no fields of its own.

    A subclass has `__call__` as the module's docstring says, and where it stands in a decoder `init_decode_state` and
    `decode`. The defaults are those of a memory that remembers nothing between segments.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        check_calls(cls)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> Any:
        """The state in which a document starts in every row; needs no parameters."""
        return EmptyState()

    @nn.nowrap
    def stands_alone(self) -> bool:
        """Whether it wants no layer axis before its own, so that its layer leaves the scanned group."""
        return False

    @property
    def gated(self) -> str:
        """What its learned gate lets through, in words; '' = it has no such gate."""
        return ""

    def gates(self, hidden: Activations) -> Float[Array, "#batch #length gates"]:
        """How far its learned gate is open at every position, 0 to 1, where `gated` names one.

        Args:
          hidden: what its first matrix sees: of a layer `normed(x)`, at the output site `x`.
        """
        raise NotImplementedError(f"gates: given {type(self).__name__}, allowed: a memory whose `gated` names one")


class LayerMemory(Memory):
    """The attention part of a layer: it owns its norm and residual connection.

    `normed(x)` is what its first matrix sees of the residual stream `x`. Where the stack has something to share, its
    `__call__` and `decode` take it as `shared`.
    """

    @nn.nowrap
    def shared_module(self) -> nn.Module | None:
        """The module whose parameters all layers of a stack share, if any."""
        return None

    @nn.nowrap
    def tracked(self) -> LayerMemory:
        """The part that also gives the weights of its attention (`memjax.inspection.attention_maps`).

        Raises:
          Absent: it has none to give.
        """
        raise Absent(f"attention maps: given {type(self).__name__}, allowed: attention with track_attention")


class StackMemory(Memory):
    """Stands in the place of a whole stack of layers, of an encoder: the memory passes through all of them.

    `encode` gives what a decoder reads of it.
    """


class CrossMemory(Memory):
    """What a decoder's layer knows of a source.

    A subclass has `_read_source(source, source_mask, state, maps)`, the state of rows that have read a source, in the
    dtypes of `state` where one is given, and `_read(x, state, maps, deterministic)`, the residual stream after it has
    read that state. A state says of its rows whether they are `ready`: whether they have read their source.
    """

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Decoding with the source of `state`."""
        return token_decode_state(state, batch_size)

    def read_source(
        self,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"] | None,
        state: Any = None,
    ) -> Any:
        """The state of rows that have read this source, in the dtypes of `state` where one is given."""
        return self._read_source(source, source_mask, state, self._maps(True))

    def attend_source(
        self,
        x: Activations,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"] | None,
        deterministic: bool = True,
    ) -> Activations:
        """Every position of `x` reads the whole source as it is, without a state."""
        maps = self._maps(deterministic)
        return self._read(x, self._read_source(source, source_mask, None, maps), maps, deterministic)

    def __call__(
        self,
        x: Activations,
        state: Any,
        *,
        start_of_document: Rows,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"] | None = None,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, Any, Aux]:
        """Rows that start a document read their source; every token reads what they know of it."""
        maps, mask = self._maps(deterministic), broadcast_mask(mask, *x.shape[:2])
        start = start_of_document | ~state.ready | self._renews(deterministic)
        current = where_rows(start, self._read_source(source, source_mask, state, maps), state)
        return self._read(x, current, maps, deterministic), where_rows(mask.any(axis=1), current, state), Aux()

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """One token of every active row."""
        y = self._read(x, decode_state.memory, self._maps(True), True)
        return y, dataclasses.replace(decode_state, position=decode_state.position + active.astype(jnp.int32))

    def _maps(self, deterministic: bool) -> Any:
        """What reading a source and reading what is known of it have in common in one call."""
        return None

    @nn.nowrap
    def _renews(self, deterministic: bool) -> bool:
        """Whether the maps of this call are new, so that what rows know of their source means nothing."""
        return False


class OutputMemory(Memory):
    """Stands after the last hidden state: it gives another one, or candidates for the next token (`Recalled`).

    Class attributes say what `__call__` and `decode` take beside the contract's arguments, by name:

    * `inputs`: all of it; `tokens`, `features` and `embed_output` are the model's, the rest is in a batch's extras.
    * `needs`: those of the batch's extras that must be there.
    * `feature`: the inner tensor of the model that a store is asked with; '' = none.
    """

    inputs = ()
    needs = ()
    feature = ""

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Decoding from `state`, without a buffer."""
        return token_decode_state(state, batch_size)

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of what a batch must have."""
        return {}


class Stateless(Memory):
    """A part without state, such as a feed-forward network; what it remembers is in its parameters.

    A subclass has `read(x, mask, deterministic)`, which gives the new `x` and `Aux`.
    """

    def __call__(
        self,
        x: Activations,
        state: EmptyState,
        *,
        start_of_document: Rows | None = None,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, EmptyState, Aux]:
        """Applies the part to every position alone."""
        y, aux = self.read(x, mask, deterministic)
        return y, EmptyState(), aux

    @nn.nowrap
    def replaced(self) -> tuple[str, ...]:
        """Parameters of an ordinary part that it has something else in place of."""
        return ()

    @nn.nowrap
    def init_decode_state(self, state: EmptyState, segment_length: int, batch_size: int) -> EmptyState:
        """Nothing is remembered."""
        return EmptyState()

    def decode(self, x: Array, state: EmptyState, *, active: Array) -> tuple[Array, EmptyState]:
        """One token: the same as a segment of length 1."""
        return self(x, state)[0], EmptyState()


def token_decode_state(state: Any, batch_size: int) -> DecodeState:
    """The decode state of a memory that has none, or that is written token by token: its state, without a buffer.

    Args:
      state: after the tokens before, or empty; any shapes with the rows first.
      batch_size: rows; each is at the start of a segment.
    """
    return DecodeState(state, EmptyState(), jnp.zeros((batch_size,), jnp.int32))


@operation
def take_rows(state: State, rows: Int[Array, " rows"]) -> State:
    """The state of the given rows, in their order (a row may be taken twice or not at all)."""
    return jax.tree.map(lambda leaf, axis: jnp.take(leaf, rows, axis=axis), state, state_axes(state))


@operation
def where_rows(condition: Rows, a: State, b: State) -> State:
    """Row by row the state `a` where `condition` holds, else `b`."""

    def select(x: Array, y: Array, axis: int) -> Array:
        shape = [1] * x.ndim
        shape[axis] = condition.shape[0]
        return jnp.where(condition.reshape(shape), x, y)

    return jax.tree.map(select, a, b, state_axes(a))


@operation
def select_state(ok: Bool[Array, ""], new: State, old: State) -> State:
    """`new` if `ok` else `old`, leaf by leaf. After a single segment `save_state` and `restore_state` copy less."""
    return jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)


@operation
def save_state(state: State, start_of_document: Rows, length: int) -> tuple[State, Any]:
    """Keeps what one segment may change, so that `restore_state` can take it back.

    A part of a state with the methods `save` and `restore` says itself what to keep: a long first-in-first-out memory
    keeps the window that is about to be overwritten, and can then be written in place where the state is donated.
    Everything else is kept whole.

    Args:
      state: the state that the segment will read.
      start_of_document: as the memory will be called with.
      length: tokens of the segment.

    Returns:
      The state to call the memory with (equal to `state`), and what was kept.
    """
    leaves, structure = jax.tree.flatten(state, is_leaf=_has_own_way)
    pairs = []
    for leaf in leaves:
        if isinstance(leaf, StackState):
            save_group = lambda group: save_state(group, start_of_document, length)
            groups = [
                (jax.vmap(save_group, axis_size=size) if size else save_group)(group)
                for group, size in zip(leaf.groups, leaf.sizes, strict=True)
            ]
            pairs.append(tuple(StackState(tuple(part), leaf.sizes) for part in zip(*groups, strict=True)))
        else:
            pairs.append(leaf.save(start_of_document, length) if hasattr(leaf, "save") else (leaf, leaf))
    return structure.unflatten([pair[0] for pair in pairs]), structure.unflatten([pair[1] for pair in pairs])


@operation
def restore_state(ok: Bool[Array, ""], new: State, saved: Any) -> State:
    """`new` if `ok`, else the state that `save_state` kept.

    Args:
      ok: whether `new` stays.
      new: the state after one call of the memory.
      saved: the second result of `save_state`.
    """

    def restore(n: Any, old: Any) -> Any:
        if isinstance(n, StackState):
            restore_group = lambda a, b: restore_state(ok, a, b)
            groups = [
                (jax.vmap(restore_group, axis_size=size) if size else restore_group)(group, old_group)
                for group, old_group, size in zip(n.groups, old.groups, n.sizes, strict=True)
            ]
            return StackState(tuple(groups), n.sizes)
        return n.restore(ok, old) if hasattr(n, "restore") else jnp.where(ok, n, old)

    return jax.tree.map(restore, new, saved, is_leaf=_has_own_way)


def _has_own_way(node: Any) -> bool:
    return isinstance(node, StackState) or hasattr(node, "restore")


def next_position(position: Int[Array, " batch"], active: Rows, segment_length: int) -> Int[Array, " batch"]:
    """Position after one more token of every active row; a full segment starts again at 0."""
    return (position + active.astype(position.dtype)) % segment_length


def broadcast_mask(mask: Array | None, batch: int, length: int) -> Mask:
    """`mask`, or all True where None was given."""
    return jnp.ones((batch, length), bool) if mask is None else mask


def count_positions(mask: Mask) -> Int[Array, "batch length"]:
    """The place of every real token among the real tokens of its row, from 0, wherever padding stands.

    Example:
      >>> count_positions(jnp.array([[True, True, False], [False, True, True]])).tolist()
      [[0, 1, 1], [-1, 0, 1]]
    """
    return jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
