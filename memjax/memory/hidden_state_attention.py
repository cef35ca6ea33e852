"""Attention to the segment and to remembered hidden states, whose keys are projected anew for every segment."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import axes_of
from memjax.functional.attention import visibility
from memjax.functional.fifo import ring_append
from memjax.memory.attention_implementations import AttentionWeights, read_segment
from memjax.memory.interface import DecodeState, broadcast_mask, next_position
from memjax.memory.layer_parts import TrackedKeys, tracked_weights, weight_dropout
from memjax.memory.projector import ProjectedAttention, Runs, Weights, repeat_heads
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, tree_dataclass

__all__ = ["HiddenStateAttention", "HiddenStateSegment", "SegmentAttention"]


@tree_dataclass
class HiddenStateSegment:
    """Buffers of the running segment of a layer during decoding: its hidden states, and keys and values of memory and
    segment.

    Attributes:
      hidden: `[batch, segment_length, dim]`, hidden states to write to the memory at the end of the segment.
      keys: `[batch, slots + segment_length, key_heads, head_dim]`, keys of memory and segment, without positions. Every
        token is projected once, the memory at the first token of the segment.
      values: `[batch, slots + segment_length, key_heads, head_dim]`, values of memory and segment.
      attended: `[batch, slots]`, attention that the slots of the memory received from the segment so far, for memories
        that record it. `EmptyState` for all others.
      further: Buffer of a second memory beside the slots. `EmptyState` for none.
    """

    hidden: Leaf
    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    attended: Leaf = EmptyState()
    further: Any = EmptyState()


class SegmentAttention(NamedTuple):
    """Queries, keys and values of a segment's attention, with which a memory can compute further losses.

    Attributes:
      queries: `[batch, length, heads, head_dim]`, queries of the segment, without positions, biases and scale.
      keys: `[batch, slots + length, heads, head_dim]`, keys of memory and segment, without positions.
      values: `[batch, slots + length, heads, head_dim]`, values of memory and segment.
    """

    queries: Array
    keys: Array
    values: Array


class HiddenStateAttention(ProjectedAttention):
    """Base class of the attention of Transformer-XL and of compressed memories, which store hidden states. One
    attention reads their slots and the segment.

    A subclass has the fields `norm`, `norm_kind`, `dropout` and `attention_dropout` and those of `ProjectedAttention`.
    It defines `init_state`, `_num_slots`, `_reset`, `_slots`, `_write`, `_figures` and `_known_keys`, and overrides
    what it does in another way.
    """

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state at the start of a segment of `segment_length` tokens, with `state` as the memory and
        empty buffers.
        """
        shape = (batch_size, self._num_slots + segment_length, self._num_key_heads, self.head_dim)
        hidden = jnp.zeros((batch_size, segment_length, self.dim), self._stored_dtype(state))
        keys, values = jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)
        segment = HiddenStateSegment(hidden, keys, values, self._no_attention(state))
        return DecodeState(state, segment, jnp.zeros((batch_size,), jnp.int32))

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
        read_mask, mask = mask, self._tokens(broadcast_mask(mask, *x.shape[:2]))
        state = self._reset(state, start_of_document)
        y, weights = self.apply_norm(x), self._weights(shared, deterministic)
        queries, rows = self.projector.queries(weights, y), self.projector.keys_values(weights, y)
        stored_parts, valid = self._slots(state)
        key_facts = self._known_keys(state, mask.shape[1]) if self.track_attention else None
        keys, values = (self._tokens(projected) for projected in rows)
        if stored_parts:
            # Separate from the segment: in one product, the backward pass would compute the gradient to the memory too.
            older = self.projector.keys_values(weights, self._join_recalled(stored_parts, x.dtype))
            keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(older, (keys, values), strict=True))
        drop = lambda positions: self.drop(positions, deterministic=deterministic)
        visible = visibility(mask.shape[1], valid, mask, window=self._window)
        dropout = weight_dropout(self, deterministic)
        implementation = self._choose_implementation(queries, keys, deterministic)
        if implementation == "reference":
            placed = self._place(weights, queries, keys, None, drop)
            z, attention, visible = self._attend(weights, queries, rows, values, placed, visible, **dropout)
        else:
            filled = mask if valid is None else jnp.concatenate([valid, mask], axis=1)
            seen: dict[str, Any] = {"visible": visible, "valid": filled, "window": self._window}
            z, attention = self._attend_without_weights(
                implementation, weights, queries, keys, values, drop, **seen, **dropout
            )
        further, state, more = self._read_further(queries, state, mask, deterministic)
        z = self._refuse_padding(self._add_output(weights, x, z, deterministic, further), read_mask)
        keys, values = (repeat_heads(projected, self.num_heads) for projected in (keys, values))
        reading = SegmentAttention(self._tokens(queries), keys, values)
        state, aux = self._write(state, self._stored(x, y), mask, self._attended(attention, mask), reading)
        aux = more + aux + self._figures(attention, mask)
        if attention.weights is not None:
            aux = aux + tracked_weights(self, attention.weights, visible, key_facts)
        return z, state, aux

    @property
    def decodes_segments(self) -> bool:
        """True: a segment is read as by `__call__`, and its buffers are kept."""
        return True

    def decode_segment(
        self, x: Activations, decode_state: DecodeState, *, lengths: Int[Array, " batch"], shared: Any = None
    ) -> tuple[Activations, DecodeState]:
        """Reads the first `lengths` tokens of a segment in every row at once. See `LayerMemory.decode_segment`."""
        memory, segment = decode_state.memory, decode_state.segment
        weights, length = self._weights(shared), x.shape[1]
        mask = jnp.arange(length)[None] < lengths[:, None]
        segment = self._enter_segment(memory, segment, jnp.ones(len(x), bool), weights)
        y = self.apply_norm(x)
        queries, rows = self.projector.queries(weights, y), self.projector.keys_values(weights, y)
        put = lambda buffer, new: buffer.at[:, self._num_slots :].set(new.astype(buffer.dtype))
        segment = dataclasses.replace(
            segment,
            hidden=self._stored(x, y).astype(segment.hidden.dtype),
            keys=put(segment.keys, rows[0]),
            values=put(segment.values, rows[1]),
        )
        visible = visibility(length, self._slots(memory)[1], mask, window=self._window)
        placed = self._place(weights, queries, segment.keys, None, None)
        z, attention, _ = self._attend(weights, queries, rows, segment.values, placed, visible)
        add = lambda sums, more: sums + more.astype(sums.dtype)
        attended = jax.tree.map(add, segment.attended, self._attended(attention, mask))
        segment = dataclasses.replace(segment, attended=attended)
        z = self._add_output(weights, x, z, True, None)
        memory = self._write_full(memory, segment, lengths == length)
        return z, DecodeState(memory, segment, next_position(decode_state.position, lengths, length))

    def decode(
        self, x: Float[Array, "batch rows dim"], decode_state: DecodeState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch rows dim"], DecodeState]:
        """Reads one token of every active row, in `x` behind memory rows if any, and writes every segment that is full.
        `shared` are the biases that all layers share. Returns the new residual stream and the decode state.
        """
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        segment_length, weights = segment.hidden.shape[1], self._weights(shared)
        segment = self._enter_segment(memory, segment, active & (position == 0), weights)
        y = self.apply_norm(x)
        query, rows = self.projector.queries(weights, y), self.projector.keys_values(weights, y)
        key, token_value = (self._tokens(projected) for projected in rows)
        segment = dataclasses.replace(
            segment,
            hidden=ring_append(segment.hidden, self._stored(x, y).astype(segment.hidden.dtype), position, active),
            keys=ring_append(segment.keys, key, position + self._num_slots, active),
            values=ring_append(segment.values, token_value, position + self._num_slots, active),
        )
        visible = self._visible_to_token(memory, position, segment.keys.shape[1])
        placed = self._place(weights, query, segment.keys, position, None)
        z, attention, _ = self._attend(weights, query, rows, segment.values, placed, visible)
        add = lambda sums, more: sums + more.astype(sums.dtype)
        attended = jax.tree.map(add, segment.attended, self._attended(attention, active[:, None]))
        segment = dataclasses.replace(segment, attended=attended)
        further, segment = self._read_token_further(query, segment, active)
        z = self._add_output(weights, x, z, True, further)

        memory = self._write_full(memory, segment, active & (position + 1 == segment_length))
        return z, DecodeState(memory, segment, next_position(position, active, segment_length))

    def _write_full(self, memory: Any, segment: HiddenStateSegment, full: Rows) -> Any:
        """Returns the memory after the segments of the rows in `full` are written to it."""
        written = jnp.broadcast_to(full[:, None], segment.hidden.shape[:2])
        write_full = lambda m: self._write_segment(m, segment, written)
        return jax.lax.cond(full.any(), write_full, lambda m: m, memory)

    # What a memory defines

    @property
    def _num_slots(self) -> int:
        """Slots of the memory."""
        raise NotImplementedError

    def _reset(self, state: Any, start_of_document: Array) -> Any:
        """Empties the rows that start a document."""
        raise NotImplementedError

    @nn.nowrap
    def _slots(self, state: Any) -> tuple[tuple[Array, ...], Array | None]:
        """Returns the stored hidden states in parts, oldest first, and which slots are valid."""
        raise NotImplementedError

    def _write(
        self, state: Any, stored: Array, mask: Array, attended: Any, reading: SegmentAttention | None = None
    ) -> tuple[Any, Aux]:
        """Returns the state after a segment, and auxiliary losses of the memory if `reading` is given."""
        raise NotImplementedError

    def _figures(self, attention: AttentionWeights, mask: Array) -> Aux:
        """Measures what the attention of a segment's real tokens says of the memory."""
        raise NotImplementedError

    def _known_keys(self, state: Any, length: int) -> TrackedKeys:
        """Describes the age, extent and source of the keys of memory and segment."""
        raise NotImplementedError

    # What a memory may override

    @property
    def _window(self) -> int | None:
        """Number of keys that a query reads, itself included. None for all."""
        return None

    @property
    def _runs(self) -> Runs:
        """Runs of slots with positions of their own, as the projector places them."""
        return (("", self._num_slots),)

    def _slot_scores(self, positions: Array, batch: int) -> Array | None:
        """Computes scores of the slots beside those of the projector, `[batch, heads, length, slots]`. None for none.

        Args:
          positions: int32 `[#batch, length]`, index of every query in its segment.
          batch: Number of rows.
        """
        return None

    def _tokens(self, rows: Array) -> Array:
        """Selects the tokens among `rows`, `[batch, rows, ...]`: all but memory rows in front of them."""
        return rows

    def _behind(self, rows: Array, others: Array) -> Array:
        """Concatenates the memory rows among `rows` and, behind them, `others`."""
        return others

    def _seen(self, scores: Array | None, visible: Array) -> tuple[Array | None, Array]:
        """Extends position scores and visibility, `[batch, heads, length, total]`, by memory rows."""
        return scores, visible

    def _stored(self, x: Array, normed: Array) -> Array:
        """Selects the hidden states to store, from the input `x` of the part or its norm, without memory rows."""
        return self._tokens(x)

    @nn.nowrap
    def _stored_dtype(self, state: Any) -> Any:
        """Dtype of hidden states that wait to be written."""
        parts, _ = self._slots(state)
        return parts[-1].dtype if parts else self.dtype

    def _recall(self, stored: Array) -> Array:
        """Prepares stored hidden states for the projections to keys and values."""
        return self.apply_norm(stored)

    def _attended(self, attention: AttentionWeights, mask: Array) -> Any:
        """Sums the attention of real tokens to each slot, for a memory that records it."""
        return EmptyState()

    @nn.nowrap
    def _no_attention(self, state: Any) -> Any:
        """Makes the value of `_attended` before the first token."""
        return EmptyState()

    def _refuse_padding(self, y: Array, mask: Mask | None) -> Array:
        """Refuses rows with padding in front, for a memory in which it would change positions."""
        return y

    def _read_further(
        self, queries: Array, state: Any, mask: Array, deterministic: bool
    ) -> tuple[Array | None, Any, Aux]:
        """Reads a second memory beside the slots: what it adds to the output before dropout, its new state, metrics."""
        return None, state, Aux()

    def _read_token_further(
        self, query: Array, segment: HiddenStateSegment, active: Array
    ) -> tuple[Array | None, HiddenStateSegment]:
        """Reads a second memory beside the slots (`_read_further`) with one token per row."""
        return None, segment

    def _write_segment(self, state: Any, segment: HiddenStateSegment, mask: Array) -> Any:
        """Writes a segment that was decoded token by token to the memory. `mask` is True in the rows to write."""
        return self._write(state, segment.hidden, mask, segment.attended)[0]

    # The attention

    def _place(
        self, weights: Weights, queries: Array, keys: Array, position: Array | None, drop: Any
    ) -> tuple[Array, Array, Array | None]:
        """Places the tokens among the queries, and all keys of slots and segment (`Projector.place`)."""
        queries, (batch, total) = self._tokens(queries), keys.shape[:2]
        queries, keys, scores = self.projector.place(weights, queries, keys, self._runs, position=position, drop=drop)
        indices = jnp.arange(queries.shape[1])[None] if position is None else position[:, None]
        more = self._slot_scores(indices, batch)
        if more is not None:
            more = jnp.pad(more, [(0, 0)] * 3 + [(0, total - self._num_slots)])
            scores = more if scores is None else scores + more
        return queries, keys, scores

    def _attend(
        self,
        weights: Weights,
        queries: Array,
        rows: tuple[Array, Array],
        values: Array,
        placed: tuple[Array, Array, Array | None],
        visible: Array,
        **dropout: Any,
    ) -> tuple[Array, AttentionWeights, Array]:
        """Attends to memory rows, slots and segment: what was read, the attention weights, and the keys to be seen.

        Args:
          weights: Parameters of the projector.
          queries: `[batch, rows, heads, head_dim]`, queries of memory rows and tokens.
          rows: Keys and values of memory rows and tokens.
          values: `[batch, total, key_heads, head_dim]`, values of slots and segment.
          placed: Result of `_place`.
          visible: bool `[batch, 1, length, total]`, slots and tokens that every token may read.
          **dropout: Dropout of the attention weights.
        """
        tokens, keys, scores = placed
        scores, visible = self._seen(scores, visible)
        keys, values = self._behind(rows[0], keys), self._behind(rows[1], values)
        keys, values = (repeat_heads(projected, self.num_heads) for projected in (keys, values))
        queries = self._behind(queries, tokens)
        z, attention = self.projector.attend(weights, queries, keys, values, scores, visible, **dropout)
        return z, AttentionWeights(attention), visible

    def _attend_without_weights(
        self,
        implementation: Any,
        weights: Weights,
        queries: Array,
        keys: Array,
        values: Array,
        drop: Any,
        **options: Any,
    ) -> tuple[Array, AttentionWeights]:
        """Attends to slots and segment by a program that does not keep the attention weights. `options` are those of
        `read_segment`.
        """
        factors = self.projector.position_factors(weights, queries, keys.shape[1], drop)
        if factors is None:
            queries, keys, options["bias"] = self._place(weights, queries, keys, None, drop)
            options["distance_bias"] = self.projector.distance_bias(weights, self.head_dim)
        queries = self.projector.add_content_bias(weights, queries)
        options |= {"position_factors": factors, "counted": (self._num_slots,)}
        options |= {"scale": self.projector.scale(weights), "cap": self.projector.score_cap}
        return read_segment(implementation, queries, keys, values, **options)

    def _join_recalled(self, parts: tuple[Array, ...], dtype: Any) -> Array:
        return jnp.concatenate([self._recall(part.astype(dtype)) for part in parts], axis=1)

    def _detached_keys_values(self, stored: Array) -> tuple[Array, Array]:
        """Projects stored hidden states with parameters of stopped gradient, and as many heads as queries."""
        weights = jax.lax.stop_gradient(self.adapt(self.projections, deterministic=True))
        projected = self.projector.keys_values(weights, self._detached_recall(stored))
        keys, values = (repeat_heads(leaf, self.num_heads) for leaf in projected)
        return keys, values

    def _detached_recall(self, stored: Array) -> Array:
        """Applies `_recall` with parameters of stopped gradient."""
        if self.norm != "pre":
            return stored
        params = jax.lax.stop_gradient(self.layer_norm.variables["params"])
        normed: Any = self.layer_norm.clone(parent=None).apply({"params": params}, stored)
        return normed

    def _enter_segment(
        self, memory: Any, segment: HiddenStateSegment, entering: Array, weights: Weights
    ) -> HiddenStateSegment:
        """Projects the memory of rows that are at the first token of their segment, once per segment."""
        parts, _ = self._slots(memory)
        if not parts:
            return segment

        def project_memory(segment: HiddenStateSegment) -> HiddenStateSegment:
            keys, values = self.projector.keys_values(weights, jnp.concatenate(recalled, axis=1))
            rows = entering[:, None, None, None]
            set_memory = lambda old, new: old.at[:, : self._num_slots].set(
                jnp.where(rows, new.astype(old.dtype), old[:, : self._num_slots])
            )
            attended = jax.tree.map(lambda sums: jnp.where(entering[:, None], 0, sums), segment.attended)
            keys, values = set_memory(segment.keys, keys), set_memory(segment.values, values)
            return dataclasses.replace(segment, keys=keys, values=values, attended=attended)

        # Flax modules cannot be called inside lax.cond: the norm is outside, the products inside use plain arrays.
        recalled = [self._recall(part.astype(self.dtype)) for part in parts]
        return jax.lax.cond(entering.any(), project_memory, lambda segment: segment, segment)

    def _visible_to_token(self, memory: Any, position: Array, total: int) -> Array:
        """Returns the keys, bool `[batch, 1, 1, total]`, that the token at `position` of the segment may read."""
        distance = position[:, None] + self._num_slots - jnp.arange(total)[None, :]  # [b, m]
        visible = jnp.broadcast_to(distance >= 0, distance.shape)
        _, valid = self._slots(memory)
        if valid is not None:
            visible = visible & jnp.pad(valid, [(0, 0), (0, total - self._num_slots)], constant_values=True)
        if self._window is not None:
            visible = visible & (distance < self._window)
        return visible[:, None, None, :]
