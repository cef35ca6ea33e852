"""Rotary attention of Llama and its kin, with a memory of the keys and values of the last tokens.

Su et al. 2021 (rotary positions), https://arxiv.org/abs/2104.09864; Ainslie et al. 2023 (grouped keys and values),
https://arxiv.org/abs/2305.13245; Touvron et al. 2023 (Llama), https://arxiv.org/abs/2302.13971; Xiao et al. 2023
(attention sinks), https://arxiv.org/abs/2309.17453.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from memjax.axes import axes_of
from memjax.functional.fifo import reset_rows, ring_append, shift_append
from memjax.functional.named_operations import operation
from memjax.functional.rotary import rotate
from memjax.memory.attention_implementations import AttentionWeights, attention_shares, read_segment
from memjax.memory.checks import MUST_BE_GIVEN
from memjax.memory.grafts import GraftedMemory, GraftReading, HostQueries, HostTokens
from memjax.memory.interface import DecodeState, broadcast_mask, next_position, where_rows
from memjax.memory.layer_parts import SHORT, NormKind, NormPlace, TrackedKeys, tracked_weights, weight_dropout
from memjax.memory.projector import ProjectedAttention, Weights
from memjax.memory.rotary_projector import RotaryProjector
from memjax.settings.checks import require
from memjax.settings.ranges import HeadDim, Slots
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, tree_dataclass

__all__ = ["GraftedState", "RotaryAttention", "RotaryState"]


@tree_dataclass
class RotaryState:
    """Keys and values of earlier tokens in one layer, without positions, oldest first: a memory, or one segment.

    Attributes:
      keys: `[batch, slots, key_heads, head_dim]`, keys before their rotation. The first slots are those of sinks.
      values: `[batch, slots, key_heads, head_dim]`.
      valid: bool `[batch, slots]`, slots that hold a token of the running document.
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", "memory", "memory_heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", "memory", "memory_heads", None))
    valid: Leaf = dataclasses.field(metadata=axes_of("batch", "memory"))


@tree_dataclass
class RotarySegment:
    """Buffers of the running segment of a layer during decoding.

    Attributes:
      keys: `[batch, segment_length, key_heads, head_dim]`, keys to write to the memory at the end of the segment.
      placed: `[batch, key_heads, slots + segment_length, head_dim]`, rotated keys of memory and segment. Every key is
        rotated once, those of the memory at the first token of the segment. Heads stand first, as products read them.
      values: `[batch, key_heads, slots + segment_length, head_dim]`, values of memory and segment.
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    placed: Leaf = dataclasses.field(metadata=axes_of("batch", "heads", None, None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", "heads", None, None))


@tree_dataclass
class GraftedState:
    """State, or buffers of the running segment, of a rotary attention with a graft.

    Attributes:
      host: State or buffers of the attention itself.
      graft: State or buffers of the graft.
    """

    host: Any
    graft: Any


@operation
def reset(state: Any, start_of_document: Rows) -> Any:
    """Empties the memory of rows that start a document. `state` is a `RotaryState`, or `EmptyState` for no memory."""
    return jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)


@operation
def write(state: Any, segment: RotaryState, *, sinks: int = 0) -> Any:
    """Returns the memory with a segment appended, without gradient. The oldest tokens leave, except the first `sinks`
    tokens of the document. Rows without a real token keep their state.

    Args:
      state: `RotaryState` that the segment read, or `EmptyState` for no memory.
      segment: Keys and values of the segment. Padding (`valid` False) takes slots that are marked invalid.
      sinks: Number of slots, the first ones, for the first tokens of a document. A token enters them when it leaves
        the others, so that the tokens in both stand one after the other.
    """
    if isinstance(state, EmptyState):
        return state
    segment, length = jax.lax.stop_gradient(segment), segment.valid.shape[1]

    def append(slots: Array, new: Array) -> Array:
        recent = shift_append(slots[:, sinks:], new)
        if not sinks:
            return recent
        oldest = jnp.concatenate([slots, new.astype(slots.dtype)], axis=1)[:, : sinks + length]
        index = places.reshape(*places.shape, *(1,) * (slots.ndim - 2))
        return jnp.concatenate([jnp.take_along_axis(oldest, index, axis=1), recent], axis=1)

    leaving = jnp.concatenate([state.valid, segment.valid], axis=1)[:, : sinks + length]
    places, filled = _first_valid(leaving, sinks)
    new = jax.tree.map(append, state, segment)
    if sinks:
        new = dataclasses.replace(new, valid=new.valid.at[:, :sinks].set(filled))
    return where_rows(segment.valid.any(axis=1), new, state)


def _swap_heads(array: Array) -> Array:
    """Swaps the axes of slots and heads."""
    return jnp.swapaxes(array, 1, 2)


def _first_valid(valid: Array, number: int) -> tuple[Array, Array]:
    """Returns the places of the first `number` valid entries of each row, aligned to the right, `[batch, number]`, and
    which of them there are.
    """
    rank = jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1
    missing = jnp.maximum(number - 1 - rank[:, -1:], 0)  # [b, 1]
    wanted = jnp.arange(number, dtype=jnp.int32)[None] - missing
    matches = valid[:, None, :] & (rank[:, None, :] == wanted[:, :, None])  # [b, number, entries]
    return matches.argmax(axis=-1), wanted >= 0


class RotaryAttention(ProjectedAttention):
    """Causal attention with rotary positions to the segment, and to the keys and values of the tokens before it.

    Touvron et al. 2023 (Llama), https://arxiv.org/abs/2302.13971, with the rotary positions of Su et al. 2021,
    https://arxiv.org/abs/2104.09864, and the attention sinks of Xiao et al. 2023, https://arxiv.org/abs/2309.17453.

    What is stored: keys before their rotation, and values, of the last `memory_length` tokens, and of the first `sinks`
    tokens of the document. When written: after each segment. What is differentiable: nothing stored. When reset: at
    `start_of_document`.

    Positions are counted inside the memory, whatever the length of the document before it, so that every segment is the
    same program. A document of at most `memory_length` + `sinks` tokens and one segment is read as by one attention to
    the whole of it. In a longer one, attention slides over the last `memory_length` tokens (`same_length`), or over
    these and the segment so far. Sinks then stand right before the memory.

    Symbols: `W_q, W_k, W_v, W_o -> query, key_value, output`, `theta_i -> frequencies` of `RotaryProjector`.

    Differs from the papers or their code: none known. A rotated cache of keys gives the same scores, since they depend
    on distances only.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of heads of the queries.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      memory_length: Number of slots for the last tokens. 0 for no memory.
      projector: Projections and positions. By default those of Llama, with as many key heads as query heads.
      sinks: Number of slots for the first tokens of a document.
      same_length: Whether every query sees exactly `memory_length` keys including itself, and the sinks.
      window: Largest number of keys that a query sees, itself included, besides the sinks. 0 for no limit.
      norm: Place of the norm: 'pre', 'post', 'after' or 'both' (`memjax.memory.layer_parts.Residual`).
      norm_kind: Kind of norm: 'rms', 'rms_offset' or 'layer'.
      dropout: Dropout rate of the output.
      attention_dropout: Dropout rate of the attention weights.
      init_stddev: Standard deviation of all initial matrices.
      dtype: Dtype of the computation.
      track_attention: Whether `Aux.arrays` has the attention weights. See `TransformerXLAttention`. Sinks count as if
        they had been read right before the memory. What a graft reads is not among them.
      graft: Memory that is read beside the attention (`memjax.memory.grafts`). None for none.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = RotaryAttention(dim=8, num_heads=2, memory_length=4)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.keys.shape
      ((1, 4, 8), (1, 4, 2, 4))
    """

    dim: int
    num_heads: int
    head_dim: HeadDim = 0
    memory_length: Slots = MUST_BE_GIVEN
    projector: RotaryProjector = RotaryProjector()
    sinks: Slots = 0
    same_length: bool = False
    window: Slots = 0
    norm: NormPlace = "pre"
    norm_kind: NormKind = "rms"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_stddev: float = 0.02
    dtype: Any = jnp.float32
    track_attention: bool = False
    graft: GraftedMemory | None = None

    @property
    def gate_description(self) -> str:
        """Text that says what the gate of the graft lets through. Empty without such a gate."""
        return "" if self.graft is None else self.graft.gate_description

    def gate_values(self, hidden: Activations) -> Float[Array, "#batch #length heads"]:
        """Returns how far the gate of the graft is open in every head, `[1, 1, heads]`, -1 to 1 where it is a tanh. It
        is the same at all positions, whatever `hidden` is.
        """
        return super().gate_values(hidden) if self.graft is None else self.graft.gate_values()[None, None]

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> RotaryState | GraftedState | EmptyState:
        """Makes an empty memory, in which a document starts, with keys and values of `dtype`. `EmptyState` for a memory
        of length 0, `GraftedState` with a graft.

        Raises:
          ValueError: Sinks or `same_length` without a memory.
        """
        for name in ("sinks", "same_length"):
            value = getattr(self, name)
            require(self.memory_length > 0 or not value, name, value, f"{type(value)(0)} where memory_length is 0")
        host = self._tokens(batch_size, self._num_slots, dtype) if self.memory_length else EmptyState()
        return host if self.graft is None else GraftedState(host, self.graft.init_state(batch_size, dtype))

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state at the start of a segment of `segment_length` tokens, with `state` as the memory and
        empty buffers.
        """
        # Not in the dtype of the memory: keys and values of the segment are rounded only when they are written.
        make = lambda slots: self._tokens(batch_size, slots, self.dtype)
        segment, whole = make(segment_length), make(self._num_slots + segment_length)
        buffers = RotarySegment(segment.keys, _swap_heads(whole.keys), _swap_heads(whole.values))
        if self.graft is not None:
            buffers = GraftedState(buffers, self.graft.init_segment(state.graft, segment_length))
        return DecodeState(state, buffers, jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self,
        x: Activations,
        state: Any,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        shared: Any = None,
    ) -> tuple[Activations, Any, Aux]:
        """Attends to memory and segment, then appends the segment to the memory."""
        mask, length = broadcast_mask(mask, *x.shape[:2]), x.shape[1]
        (state, graft), weights = self._reset(state, start_of_document), self._weights(shared, deterministic)
        y = self.apply_norm(x)
        queries = self.projector.queries(weights, y)
        segment = RotaryState(*self.projector.keys_values(weights, y), mask)
        tokens = self._join(state, segment)
        visible = self._visible(jnp.arange(length)[None], tokens.valid)
        runs = (("", self._num_slots),)
        placed, keys, _ = self.projector.place(weights, queries, tokens.keys, runs)
        z, attention = self._read(weights, placed, keys, tokens.values, visible, tokens.valid, deterministic)
        reading, aux = GraftReading(z, None), Aux()
        if self.graft is not None:
            options = {"scale": self.projector.scale(weights), **weight_dropout(self, deterministic)}
            asked, host = HostQueries(queries, z, options), self._host_tokens(tokens, y)
            reading, graft, aux = self.graft(asked, host, graft, mask=mask, deterministic=deterministic)
        y = self._add_output(weights, x, reading.z, deterministic, reading.further)
        if self.memory_length:
            aux = aux + attention_shares(attention, mask, {"rotary/memory_share": (0, self._num_slots)})
        if attention.weights is not None:
            aux = aux + tracked_weights(self, attention.weights, visible, self._known_keys(length))
        return y, self._with_graft(write(state, segment, sinks=self.sinks), graft), aux

    @property
    def decodes_segments(self) -> bool:
        """Whether there is no graft, which is read token by token."""
        return self.graft is None

    def decode_segment(
        self, x: Activations, decode_state: DecodeState, *, lengths: Int[Array, " batch"], shared: Any = None
    ) -> tuple[Activations, DecodeState]:
        """Reads the first `lengths` tokens of a segment in every row at once. See `LayerMemory.decode_segment`."""
        memory, segment, slots = decode_state.memory, decode_state.segment, self._num_slots
        length, total = x.shape[1], segment.placed.shape[2]
        mask = jnp.arange(length)[None] < lengths[:, None]
        weights, y = self._weights(shared), self.apply_norm(x)
        waves = self.projector.waves(self.head_dim, np.arange(total))
        segment = self._enter_segment(memory, segment, jnp.ones(len(x), bool), waves)
        here = [wave[None, slots:] for wave in waves]
        keys, values = self.projector.keys_values(weights, y)
        segment = RotarySegment(
            keys.astype(segment.keys.dtype),
            segment.placed.at[:, :, slots:].set(_swap_heads(rotate(keys, *here))),
            segment.values.at[:, :, slots:].set(_swap_heads(values)),
        )
        valid = self._valid(memory, mask)
        queries = rotate(self.projector.queries(weights, y), *here)
        z = self._read_segment(weights, queries, memory, segment, valid)
        y = self._add_output(weights, x, z, True, None)
        full = lengths == length
        memory, _ = self._write_full(memory, EmptyState(), segment, EmptyState(), full)
        return y, DecodeState(memory, segment, next_position(decode_state.position, lengths, length))

    def _read_segment(
        self, weights: Weights, queries: Array, memory: Any, segment: RotarySegment, valid: Array
    ) -> Array:
        """Attends to memory and segment, or where the memory is empty in every row, as at the beginning of a document,
        to the segment alone. Returns the result of every head.
        """
        keys, values = _swap_heads(segment.placed), _swap_heads(segment.values)
        visible = self._visible(jnp.arange(queries.shape[1])[None], valid)
        read_from = lambda first: self._read(
            weights, queries, keys[:, first:], values[:, first:], visible[..., first:], valid[:, first:], True
        )[0]
        if isinstance(memory, EmptyState):
            return read_from(0)
        return jax.lax.cond(memory.valid.any(), lambda: read_from(0), lambda: read_from(self._num_slots))

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads one token of every active row, and writes every segment that is full. `shared` are the biases that all
        layers share. Returns the new residual stream and the decode state.
        """
        (memory, graft), (segment, buffers) = map(self._split, (decode_state.memory, decode_state.segment))
        position, segment_length, total = decode_state.position, segment.keys.shape[1], segment.placed.shape[2]
        weights, slots, y = self._weights(shared), self._num_slots, self.apply_norm(x)
        waves = self.projector.waves(self.head_dim, np.arange(total))
        segment = self._enter_segment(memory, segment, active & (position == 0), waves)
        here = [jnp.take(wave, position + slots, axis=0, mode="clip")[:, None] for wave in waves]
        key, token_value = self.projector.keys_values(weights, y)
        segment = RotarySegment(
            ring_append(segment.keys, key, position, active),
            ring_append(segment.placed, _swap_heads(rotate(key, *here)), position + slots, active, axis=2),
            ring_append(segment.values, _swap_heads(token_value), position + slots, active, axis=2),
        )
        valid = self._valid(memory, jnp.ones((len(position), segment_length), bool))
        visible = self._visible(position[:, None], valid)
        query = self.projector.queries(weights, y)
        placed, values = _swap_heads(segment.placed), _swap_heads(segment.values)
        z, _ = self._read(weights, rotate(query, *here), placed, values, visible, valid, True)
        reading = GraftReading(z, None)
        if self.graft is not None:
            asked = HostQueries(query, z, {"scale": self.projector.scale(weights)})
            reading, buffers = self.graft.decode(asked, y, graft, buffers, at=(position, active))
        y = self._add_output(weights, x, reading.z, True, reading.further)

        full = active & (position + 1 == segment_length)
        memory, graft = self._write_full(memory, graft, segment, buffers, full)
        position = next_position(position, active, segment_length)
        return y, DecodeState(self._with_graft(memory, graft), self._with_graft(segment, buffers), position)

    def _write_full(self, memory: Any, graft: Any, segment: RotarySegment, buffers: Any, full: Rows) -> tuple[Any, Any]:
        """Writes the segments of the rows in `full`, to the memory and to the graft."""

        def write_full(states: tuple[Any, Any]) -> tuple[Any, Any]:
            memory, graft = states
            written = jnp.broadcast_to(full[:, None], (len(full), segment.keys.shape[1]))
            # Made here, since outside it would be copied for every token.
            finished = RotaryState(segment.keys, _swap_heads(segment.values)[:, self._num_slots :], written)
            if self.graft is not None:
                tokens = self._host_tokens(self._join(memory, finished), segment.keys)
                graft = self.graft.finish(graft, buffers, tokens)
            return write(memory, finished, sinks=self.sinks), graft

        return jax.lax.cond(full.any(), write_full, lambda states: states, (memory, graft))

    @nn.nowrap
    def _valid(self, memory: Any, mask: Array) -> Array:
        """Joins which slots of the memory hold something and which tokens are real."""
        return mask if isinstance(memory, EmptyState) else jnp.concatenate([memory.valid, mask], axis=1)

    def _split(self, state: Any) -> tuple[Any, Any]:
        """Splits a state or buffers into those of the attention and those of the graft."""
        return (state, EmptyState()) if self.graft is None else (state.host, state.graft)

    def _with_graft(self, host: Any, graft: Any) -> Any:
        """Joins states or buffers of the attention and of the graft."""
        return host if self.graft is None else GraftedState(host, graft)

    def _reset(self, state: Any, start_of_document: Rows) -> tuple[Any, Any]:
        """Empties the rows that start a document. Returns the states of the attention and of the graft."""
        host, graft = self._split(state)
        return reset(host, start_of_document), graft if self.graft is None else self.graft.reset(
            graft, start_of_document
        )

    @nn.nowrap
    def _join(self, memory: Any, segment: RotaryState) -> RotaryState:
        """Joins the keys and values of memory and segment, in the dtype of the segment."""
        join = lambda old, new: jnp.concatenate([old.astype(new.dtype), new], axis=1)
        return segment if isinstance(memory, EmptyState) else jax.tree.map(join, memory, segment)

    @nn.nowrap
    def _host_tokens(self, tokens: RotaryState, hidden: Array) -> HostTokens:
        """Selects what a graft may write: everything but the slots of sinks."""
        keys, values, valid = (leaf[:, self.sinks :] for leaf in (tokens.keys, tokens.values, tokens.valid))
        return HostTokens(keys, values, valid, hidden)

    @property
    def _num_slots(self) -> int:
        """Slots of the memory, those of sinks included."""
        return self.sinks + self.memory_length

    @nn.nowrap
    def _tokens(self, batch_size: int, slots: int, dtype: Any) -> RotaryState:
        """Makes empty slots."""
        shape = (batch_size, slots, self._num_key_heads, self.head_dim)
        return RotaryState(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(shape[:2], bool))

    def _visible(self, places: Array, valid: Array) -> Array:
        """Returns the keys, bool `[batch, 1, length, total]`, that tokens at `places` of the segment, `[#batch,
        length]`, may read. `valid` marks the slots and tokens that hold something.
        """
        distance = places[:, :, None] + self._num_slots - jnp.arange(valid.shape[1])[None, None]  # [b, l, m]
        near = distance < self._window if self._window else jnp.ones_like(distance, bool)
        if self._window and self.sinks:
            near = near | (jnp.cumsum(valid, axis=1) <= self.sinks)[:, None]
        return ((distance >= 0) & near & valid[:, None])[:, None]

    @property
    def _window(self) -> int:
        """Largest number of keys that a query sees besides the sinks, itself included. 0 for no limit."""
        windows = (self.window, self.memory_length if self.same_length else 0)
        return min((number for number in windows if number), default=0)

    @property
    def _why_reference(self) -> str:
        return ""

    def _read(
        self,
        weights: Weights,
        queries: Array,
        keys: Array,
        values: Array,
        visible: Array,
        valid: Array,
        deterministic: bool,
    ) -> tuple[Array, AttentionWeights]:
        """Attends to rotated keys. Returns the result of every head, and what is kept of the attention weights."""
        options: dict[str, Any] = {"scale": self.projector.scale(weights), "cap": self.projector.score_cap}
        options |= {"visible": visible, "valid": valid, "window": self._window or None, "counted": (self._num_slots,)}
        # Which token leaves the window and is a sink hangs on the padding, and the kernel's mask is fixed.
        sinks = (
            "sinks and a window, allowed: one of them, 'reference' or 'blocks'" if self._window and self.sinks else ""
        )
        implementation = self._choose_implementation(queries, keys, deterministic, sinks)
        return read_segment(implementation, queries, keys, values, **options, **weight_dropout(self, deterministic))

    def _enter_segment(
        self, memory: Any, segment: RotarySegment, entering: Array, waves: tuple[Array, Array]
    ) -> RotarySegment:
        """Rotates the keys of the memory of rows that are at the first token of their segment, once per segment."""
        if isinstance(memory, EmptyState):
            return segment
        slots = self._num_slots

        def place_memory(segment: RotarySegment) -> RotarySegment:
            def put(buffer: Array, new: Array) -> Array:
                new = jnp.where(entering[:, None, None, None], _swap_heads(new), buffer[:, :, :slots])
                return buffer.at[:, :, :slots].set(new)

            keys, values = (leaf.astype(self.dtype) for leaf in (memory.keys, memory.values))
            placed = rotate(keys, *(wave[None, :slots] for wave in waves))
            return dataclasses.replace(segment, placed=put(segment.placed, placed), values=put(segment.values, values))

        return jax.lax.cond(entering.any(), place_memory, lambda segment: segment, segment)

    def _known_keys(self, length: int) -> TrackedKeys:
        slots = self._num_slots
        ages = jnp.arange(slots, 0, -1, dtype=jnp.int32)[None]
        return TrackedKeys.of_slots(ages, jnp.ones(slots, jnp.int32), jnp.full(slots, SHORT), length)
