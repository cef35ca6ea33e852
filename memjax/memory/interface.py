"""Base classes of all memories, the interface that they have in common, and operations on the states of memories.

A memory is a Linen module whose state the caller owns:

    state = memory.init_state(batch_size)
    y, state, aux = memory.apply(variables, x, state, start_of_document=..., mask=..., deterministic=True)

* `x` is one segment, `[batch, length, dim]`.
* `start_of_document` `[batch]` is True for rows that begin a new document. Their old state has no effect, now or later.
* `mask` `[batch, length]` is True on real tokens, a prefix of each row. A row without a real token keeps its state bit
  for bit. Tokens behind padding are either read like those of a prefix or refused (`memjax.memory.checks`).
* Arguments with different numbers of rows, and segments without tokens, are refused.
* The class of a memory says in a sentence what `y` is, with or without the residual and the norm. Most memories own
  both.
* The new state has the structure, shapes, dtypes and sharding of the old one. Every leaf has the batch at axis 0,
  inside a scanned group of layers at axis 1.
* `aux` holds sums only, so that layers, segments, microbatches and hosts can be added up.

A decoder memory also decodes token by token: `decode_state = memory.init_decode_state(state, segment_length,
batch_size)`, then `y, decode_state = memory.apply(variables, x, decode_state, active=..., method="decode")` with `x`
`[batch, 1, dim]`. An inactive row changes nothing.

A memory has one of four places in a model: the attention part of a layer (`LayerMemory`), a whole stack of layers
(`StackMemory`), the attention of a decoder's layer to a source (`CrossMemory`), or behind the last hidden state
(`OutputMemory`). A part that remembers in its parameters alone is `StatelessMemory`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeVar, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.fifo import ring_append
from memjax.functional.named_operations import operation
from memjax.memory.checks import CheckedModule
from memjax.memory.state_trees import DecodeState, LayerState, StackState, num_rows, state_axes
from memjax.settings.compatibility import warn_of_renamed_members
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, register_with_flax

__all__ = [
    "NotProvided",
    "CrossMemory",
    "DecodeState",
    "LayerMemory",
    "LayerState",
    "Memory",
    "OutputMemory",
    "StackMemory",
    "StackState",
    "StatelessMemory",
    "num_rows",
    "restore_state",
    "save_state",
    "select_state",
    "state_axes",
    "take_rows",
    "where_rows",
]

State = TypeVar("State")

register_with_flax()


class NotProvided(ValueError):
    """An error that is raised where a model does not have what is asked of it, such as attention weights, ages of keys
    or a signal.
    """


class Memory(CheckedModule):
    """Base class of all memories, in every place of a model. It has no fields of its own.

    A subclass defines `__call__` with the arguments of the module's docstring. A memory of a decoder also has
    `init_decode_state` and `decode`, which a `LayerMemory` need not define. The defaults are those of a memory that
    remembers nothing between segments.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        warn_of_renamed_members(cls)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> Any:
        """Makes the state in which a document starts in every row. Needs no parameters. By default it is empty."""
        return EmptyState()

    @nn.nowrap
    def excluded_from_scan(self) -> bool:
        """Returns whether the layer of this memory stays outside scanned groups of layers, so that its arrays get no
        layer axis. False by default.
        """
        return False

    @property
    def decodes_segments(self) -> bool:
        """Whether the memory has `decode_segment`, which reads the beginning of a segment at once. False by default:
        decoding then reads it token by token.
        """
        return False

    @property
    def gate_description(self) -> str:
        """Text that says what the learned gate of this memory lets through, for reports. Empty for a memory without
        such a gate.
        """
        return ""

    def gate_values(self, hidden: Activations) -> Float[Array, "#batch #length gates"]:
        """Returns how far the learned gate is open at every position, 0 to 1, `[#batch, #length, gates]`. `hidden` is
        the input of the memory's first matrix. By default it raises an error.

        It is called for memories with a `gate_description`.

        Args:
          hidden: `[batch, length, dim]`, input of the memory's first matrix: `apply_norm(x)` in a
            layer, `x` at the output.
        """
        allowed = "a memory with a gate_description"
        raise NotImplementedError(f"gate_values: given {type(self).__name__}, allowed: {allowed}")


class LayerMemory(Memory):
    """Base class of memories in the attention part of a layer. The memory applies the norm and the residual connection
    of this part itself.

    `apply_norm(x)` is the input of its first matrix, made from the residual stream `x`. Where `shared_module` gives a
    module, `__call__` and `decode` take it as `shared`.
    """

    @nn.nowrap
    def shared_module(self) -> nn.Module | None:
        """Makes the module whose parameters all layers of a stack share, such as position biases. None if they share
        none.
        """
        return None

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state at the start of a segment, with an empty buffer of its `segment_length` tokens. By
        default the buffer is `[batch, segment_length, dim]` for a memory with the field `dim`.
        """
        buffer = jnp.zeros((batch_size, segment_length, self.dim), getattr(self, "dtype", jnp.float32))
        return DecodeState(state, buffer, jnp.zeros((batch_size,), jnp.int32))

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows, **shared: Any
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads one token of every active row. By default it reads the whole segment so far again, which is right for
        every memory whose tokens see no later ones, and takes the time of a segment.

        Args:
          x: Residual stream of the token.
          decode_state: Decode state before the token.
          active: Rows to read. Others keep their state.
          **shared: `shared`, the parameters that all layers share, of a memory that has them.
        """
        position, length = decode_state.position, decode_state.segment.shape[1]
        segment = ring_append(decode_state.segment, x.astype(decode_state.segment.dtype), position, active)
        options = {"start_of_document": jnp.zeros_like(active), "mask": jnp.arange(length)[None] <= position[:, None]}
        y, new, _ = self(segment, decode_state.memory, **options, deterministic=True, **shared)
        memory = where_rows(active & (position == length - 1), new, decode_state.memory)
        token = jnp.take_along_axis(y, position[:, None, None], axis=1).astype(x.dtype)
        return token, DecodeState(memory, segment, next_position(position, active, length))

    def decode_segment(
        self, x: Activations, decode_state: DecodeState, *, lengths: Int[Array, " batch"], **shared: Any
    ) -> tuple[Activations, DecodeState]:
        """Reads the first `lengths` tokens of a segment in every row at once, and returns the new residual stream and
        the decode state after them: what `decode` gives token by token. It is called for memories that say so by
        `decodes_segments`. By default it is that of a memory that writes every token at once and buffers none.

        Args:
          x: Residual stream of a whole segment. What stands behind `lengths` is not read.
          decode_state: Decode state at the start of a segment in every row.
          lengths: `[batch]`, 1 to the length of the segment.
          **shared: `shared`, the parameters that all layers share, of a memory that has them.
        """
        mask = jnp.arange(x.shape[1])[None] < lengths[:, None]
        options = {"start_of_document": jnp.zeros(len(x), bool), "mask": mask}
        y, new, _ = self(x, decode_state.memory, **options, deterministic=True, **shared)
        position = decode_state.position + lengths.astype(jnp.int32)
        return y, dataclasses.replace(decode_state, memory=new, position=position)

    @nn.nowrap
    def with_attention_tracking(self) -> LayerMemory:
        """Returns a copy of this memory that puts its attention weights into `Aux.arrays`, for
        `memjax.inspection.attention_maps`. By default it raises `NotProvided`.

        Raises:
          NotProvided: The memory cannot give attention weights.
        """
        raise NotProvided(f"attention maps: given {type(self).__name__}, allowed: attention with track_attention")


class StackMemory(Memory):
    """Base class of memories that pass through all layers of an encoder, in the place of a whole stack of layers.

    Its method `encode` returns what a decoder reads.
    """


class CrossMemory(Memory):
    """Base class of memories through which a layer of a decoder reads a source.

    A subclass defines two methods. `_read_source(source, source_mask, state, maps)` returns the state of rows that have
    read a source, in the dtypes of `state` where one is given. `_read(x, state, maps, deterministic)` returns the
    residual stream after it has read that state. The field `ready` of a state says which rows have read their source.
    """

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state of rows that have read their source in `state`. `segment_length` is not used."""
        return token_decode_state(state, batch_size)

    def read_source(
        self,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"] | None,
        state: Any = None,
    ) -> Any:
        """Returns the state of rows that have read `source`. If `state` is given, the result has its dtypes."""
        return self._read_source(source, source_mask, state, self._maps(True))

    def attend_source(
        self,
        x: Activations,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"] | None,
        deterministic: bool = True,
    ) -> Activations:
        """Lets every position of `x` read the whole source, without a state in between. Returns the new residual
        stream.
        """
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
        """Lets rows that start a document read their source, and every token read the resulting state."""
        maps, mask = self._maps(deterministic), broadcast_mask(mask, *x.shape[:2])
        start = start_of_document | ~state.ready | self._renews(deterministic)
        current = where_rows(start, self._read_source(source, source_mask, state, maps), state)
        return self._read(x, current, maps, deterministic), where_rows(mask.any(axis=1), current, state), Aux()

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads the source with one token of every row. Returns the new residual stream, and the decode state with one
        more token of every active row.
        """
        y = self._read(x, decode_state.memory, self._maps(True), True)
        return y, dataclasses.replace(decode_state, position=decode_state.position + active.astype(jnp.int32))

    def _maps(self, deterministic: bool) -> Any:
        """Returns what `_read_source` and `_read` share in one call, such as random feature maps."""
        return None

    @nn.nowrap
    def _renews(self, deterministic: bool) -> bool:
        """Whether `_maps` returned new maps, so that rows have to read their source again."""
        return False


class OutputMemory(Memory):
    """Base class of memories behind the last hidden state, which return another hidden state, or candidates for the
    next token.

    Candidates are returned as `NextTokenCandidates`. Class attributes name the further arguments of `__call__` and
    `decode`:

    * `input_names`: Names of all further arguments. The model gives `tokens`, `features` and `embed_output`, the extras
      of a batch give the others.
    * `required_extras`: Names of the arguments that must be among the extras of a batch.
    * `query_feature`: Name of the inner tensor of the model with which a datastore is queried. Empty for none.
    """

    input_names = ()
    required_extras = ()
    query_feature = ""

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state at position 0 with `state` as the memory, without a buffer of the running segment.
        `segment_length` is not used.
        """
        return token_decode_state(state, batch_size)

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shape and dtype of the extras that a batch must have, by name. Empty by default."""
        return {}


class StatelessMemory(Memory):
    """Base class of parts of a layer without state, such as a feed-forward network. Such a part remembers in its
    parameters alone.

    A subclass defines `read(x, mask, deterministic)`, which returns the new `x` and `Aux`.
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
        """Applies the part to every position by itself."""
        y, aux = self.read(x, mask, deterministic)
        return y, EmptyState(), aux

    @nn.nowrap
    def replaced_parameter_names(self) -> tuple[str, ...]:
        """Returns the names of the parameters of an ordinary feed-forward part that this part replaces by others. Empty
        by default.
        """
        return ()

    @nn.nowrap
    def init_decode_state(self, state: EmptyState, segment_length: int, batch_size: int) -> EmptyState:
        """Returns the empty state whatever the arguments are: nothing is remembered between tokens."""
        return EmptyState()

    @property
    def decodes_segments(self) -> bool:
        """True: the part is applied to every position by itself."""
        return True

    def decode_segment(self, x: Array, state: EmptyState, *, lengths: Int[Array, " batch"]) -> tuple[Array, EmptyState]:
        """Applies the part to the first `lengths` tokens of every row. Returns the result and the empty state."""
        mask = jnp.arange(x.shape[1])[None] < lengths[:, None]
        return self(x, state, mask=mask)[0], EmptyState()

    def decode(self, x: Array, state: EmptyState, *, active: Array) -> tuple[Array, EmptyState]:
        """Applies the part to one token of every row, active or not, as to a segment of length 1. Returns the result
        and the empty state.
        """
        return self(x, state)[0], EmptyState()


def token_decode_state(state: Any, batch_size: int) -> DecodeState:
    """Makes the decode state, at position 0 with `state` as the memory, of a memory that needs no buffer of the running
    segment.

    Args:
      state: State of the memory after the tokens before, or an empty state. The batch is axis 0 of every
        leaf.
      batch_size: Number of rows. Every row is at the start of a segment.
    """
    return DecodeState(state, EmptyState(), jnp.zeros((batch_size,), jnp.int32))


@operation
def take_rows(state: State, rows: Int[Array, " rows"]) -> State:
    """Returns the state of the batch rows with the given numbers, in their order. A row may be selected twice or not at
    all.
    """
    return jax.tree.map(lambda leaf, axis: jnp.take(leaf, rows, axis=axis), state, state_axes(state))


@operation
def where_rows(condition: Rows, a: State, b: State) -> State:
    """Returns the state that has, for every batch row, the values of the state `a` where `condition` is True, else
    those of `b`.
    """

    def select(x: Array, y: Array, axis: int) -> Array:
        shape = [1] * x.ndim
        shape[axis] = condition.shape[0]
        return jnp.where(condition.reshape(shape), x, y)

    return jax.tree.map(select, a, b, state_axes(a))


@operation
def select_state(ok: Bool[Array, ""], new: State, old: State) -> State:
    """Returns the state `new` if the scalar `ok` is True, else `old`. After a single segment `save_state` and
    `restore_state` copy less.
    """
    return jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)


@runtime_checkable
class SavesItself(Protocol):
    """A part of a state that saves only what a segment changes, such as a window of a long memory."""

    def save(self, start_of_document: Rows, length: int) -> tuple[Any, Any]:
        """Returns the part to read a segment of `length` tokens with, and the values that `restore` needs."""
        ...

    def restore(self, ok: Bool[Array, ""], saved: Any) -> Any:
        """Returns the part itself if the scalar `ok` is True, else the part before the segment."""
        ...


@operation
def save_state(state: State, start_of_document: Rows, length: int) -> tuple[State, Any]:
    """Returns the state to read a segment of `length` tokens with, and saved values of all that the segment may change,
    from which `restore_state` can undo it.

    A part of a state with the methods of `SavesItself` saves itself: a long first-in-first-out memory saves only
    the window that is about to be overwritten, and can be written in place where the state is donated. Every other
    part is saved whole.

    Args:
      state: State that the segment will read.
      start_of_document: bool `[batch]`, rows that start a document. Pass the same array to the memory.
      length: Number of tokens of the segment.

    Returns:
      The state to call the memory with, equal to `state`, and the saved values for `restore_state`.
    """
    leaves, structure = jax.tree.flatten(state, is_leaf=_restores_itself)
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
            pairs.append(leaf.save(start_of_document, length) if isinstance(leaf, SavesItself) else (leaf, leaf))
    return structure.unflatten([pair[0] for pair in pairs]), structure.unflatten([pair[1] for pair in pairs])


@operation
def restore_state(ok: Bool[Array, ""], new: State, saved: Any) -> State:
    """Returns the state `new` if the scalar `ok` is True, else the state before the segment, from the values that
    `save_state` saved.

    Args:
      ok: bool scalar, whether the segment counts.
      new: State after one call of the memory.
      saved: Second result of `save_state`.
    """

    def restore(n: Any, old: Any) -> Any:
        if isinstance(n, StackState):
            restore_group = lambda a, b: restore_state(ok, a, b)
            groups = [
                (jax.vmap(restore_group, axis_size=size) if size else restore_group)(group, old_group)
                for group, old_group, size in zip(n.groups, old.groups, n.sizes, strict=True)
            ]
            return StackState(tuple(groups), n.sizes)
        return n.restore(ok, old) if isinstance(n, SavesItself) else jnp.where(ok, n, old)

    return jax.tree.map(restore, new, saved, is_leaf=_restores_itself)


def _restores_itself(node: Any) -> bool:
    return isinstance(node, StackState | SavesItself)


def next_position(
    position: Int[Array, " batch"], tokens: Rows | Int[Array, " batch"], segment_length: int
) -> Int[Array, " batch"]:
    """Returns the position of every row in its segment after `tokens` more of them, True for one. A full segment starts
    again at 0.
    """
    return (position + tokens.astype(position.dtype)) % segment_length


def broadcast_mask(mask: Array | None, batch: int, length: int) -> Mask:
    """Returns `mask`, or for None a mask `[batch, length]` that is True everywhere."""
    return jnp.ones((batch, length), bool) if mask is None else mask


def count_positions(mask: Mask) -> Int[Array, "batch length"]:
    """Numbers the real tokens of every row from 0, wherever its padding stands, `[batch, length]`. Padding has the
    number of the real token before it, or -1.

    Example:
      >>> count_positions(jnp.array([[True, True, False], [False, True, True]])).tolist()
      [[0, 1, 1], [-1, 0, 1]]
    """
    return jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
