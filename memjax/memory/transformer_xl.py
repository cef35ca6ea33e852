"""Transformer-XL, whose layers attend to the hidden states of earlier segments, with relative positions.

Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
https://arxiv.org/abs/1901.02860.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from memjax.axes import axes_of, named
from memjax.functional.attention import attention_with_weights, visibility
from memjax.functional.fifo import reset_rows, ring_append, shift_append
from memjax.functional.named_operations import operation
from memjax.functional.positions import relative_shift, sinusoids
from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.interface import DecodeState, LayerMemory, broadcast_mask, next_position, where_rows
from memjax.memory.layer_parts import (
    SHORT,
    Residual,
    TrackedKeys,
    matrix_init,
    project,
    tracked_weights,
    weight_dropout,
)
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, WeightedSum, tree_dataclass

__all__ = ["TransformerXLAttention", "TransformerXLState"]


@tree_dataclass
class TransformerXLState:
    """Memory of one Transformer-XL layer: its inputs at the last `memory` positions, oldest first.

    Attributes:
      hidden: `[batch, memory, dim]`, remembered hidden states.
      valid: bool `[batch, memory]`, slots that hold a token of the running document.
    """

    hidden: Leaf
    valid: Leaf


@tree_dataclass
class TransformerXLSegment:
    """Buffers of the running segment of a Transformer-XL layer during decoding.

    Attributes:
      hidden: `[batch, segment_length, dim]`, hidden states to write to the memory at the end of the segment.
      keys: `[batch, memory + segment_length, heads, head_dim]`, keys of memory and segment. Every token is projected
        once, the memory at the first token of the segment.
      values: `[batch, memory + segment_length, heads, head_dim]`, values of memory and segment.
      attended: `[batch, slots]`, attention that the slots of the memory received from the segment so far, for memories
        that record it. `EmptyState` in Transformer-XL.
      further: Buffer of a second memory beside the slots. `EmptyState` in Transformer-XL.
    """

    hidden: Leaf
    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    attended: Leaf = EmptyState()
    further: Any = EmptyState()


class SegmentAttention(NamedTuple):
    """Queries, keys and values of a segment's attention, with which a memory can compute further losses.

    Attributes:
      queries: `[batch, length, heads, head_dim]`, queries of the segment, without biases and scale.
      keys: `[batch, slots + length, heads, head_dim]`, keys of memory and segment.
      values: `[batch, slots + length, heads, head_dim]`, values of memory and segment.
    """

    queries: Array
    keys: Array
    values: Array


@operation
def reset(state: Any, start_of_document: Rows, *, empty_memory: str = "mask") -> Any:
    """Empties the memory of rows that start a document. `empty_memory='zeros'` marks their zero slots as valid."""
    state = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)
    if isinstance(state, EmptyState) or empty_memory != "zeros":
        return state
    return dataclasses.replace(state, valid=state.valid | start_of_document[:, None])


@operation
def write(state: Any, hidden: Activations, mask: Mask) -> Any:
    """Appends the hidden states of a segment to the memory: `m' = SG([m; h])[-memory:]`.

    Rows without a real token keep their state.

    Args:
      state: `TransformerXLState`, or `EmptyState` for a memory of length 0.
      hidden: `[batch, length, dim]`, input of the layer.
      mask: bool `[batch, length]`, real tokens. Padding takes slots that are marked invalid.
    """
    if isinstance(state, EmptyState):
        return state
    new = TransformerXLState(shift_append(state.hidden, jax.lax.stop_gradient(hidden)), shift_append(state.valid, mask))
    return where_rows(mask.any(axis=1), new, state)


@operation
def score_positions(
    queries: Float[Array, "batch length heads head_dim"],
    relative_keys: Float[Array, "total heads head_dim"],
    position_bias: Float[Array, "heads head_dim"],
) -> Float[Array, "batch heads length total"]:
    """Attention scores by relative position, `(q_i + v) r_{i-j} / sqrt(head_dim)`. Mask those of later keys.

    Args:
      queries: `[batch, length, heads, head_dim]`, queries of the segment. The last query is at the position of the last
        key.
      relative_keys: Projected sinusoids of the distances, the longest distance `total - 1` first.
      position_bias: `[heads, head_dim]`, the bias v.
    """
    scaled = (queries + position_bias[None, None]) * queries.shape[-1] ** -0.5
    return relative_shift(jnp.einsum("blhd,mhd->bhlm", scaled, relative_keys))


@operation
def read(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch total heads head_dim"],
    values: Float[Array, "batch total heads head_dim"],
    position_scores: Float[Array, "batch heads length total"],
    content_bias: Float[Array, "heads head_dim"],
    visible: Bool[Array, "#batch 1 length total"],
    **dropout: Any,
) -> tuple[Float[Array, "batch length heads head_dim"], Float[Array, "batch heads length total"]]:
    """Relative attention: `softmax(((q_i + u) k_j + (q_i + v) r_{i-j}) / sqrt(head_dim)) values`, and its weights.

    Args:
      queries: `[batch, length, heads, head_dim]`, queries of the segment.
      keys: `[batch, total, heads, head_dim]`, keys of memory and segment, oldest first.
      values: `[batch, total, heads, head_dim]`, values of memory and segment, oldest first.
      position_scores: `(q_i + v) r_{i-j} / sqrt(head_dim)`.
      content_bias: `[heads, head_dim]`, the bias u.
      visible: bool `[batch, 1, length, total]`, keys that each query may read. The batch axis may be 1.
      **dropout: `dropout_rate` and `dropout_key` of `memjax.functional.attention`.
    """
    scale, queries = queries.shape[-1] ** -0.5, queries + content_bias[None, None]
    return attention_with_weights(queries, keys, values, mask=visible, bias=position_scores, scale=scale, **dropout)


@operation
def attention_share(
    weights: Float[Array, "batch heads rows total"], mask: Mask, start: int = 0, stop: int | None = None
) -> WeightedSum:
    """Share of the attention that goes to the slots from `start` to `stop`, summed over the real tokens.

    Args:
      weights: `[batch, heads, rows, total]`, attention weights over slots and segment, oldest first. Rows and columns
        in front of the slots belong to learned memory rows and are not counted.
      mask: bool `[batch, length]`, real tokens.
      start: First slot, counted from the oldest.
      stop: Slot after the last one. None for all slots from `start` on.

    Example:
      >>> weights = jnp.array([[[[0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5]]]])  # two slots, two tokens
      >>> print(attention_share(weights, jnp.array([[True, True]])).mean())
      0.375
    """
    length, slots = mask.shape[1], weights.shape[-1] - mask.shape[1]
    first = weights.shape[-2] - length  # number of memory rows in front of queries and keys
    of_slots = weights[:, :, first:, first + start : slots if stop is None else first + stop]
    by_token = jax.lax.stop_gradient(of_slots).sum(axis=-1).mean(axis=1)  # [b, l]
    return WeightedSum(jnp.where(mask, by_token, 0).sum(), mask.sum().astype(by_token.dtype))


class RelativeBiases(nn.Module):
    """The biases u and v of relative attention, as one module that all layers share (`tied_biases`).

    Attributes:
      num_heads: Number of attention heads.
      head_dim: Width of an attention head.
    """

    num_heads: int
    head_dim: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "heads head_dim"], Float[Array, "heads head_dim"]]:
        """Returns the content bias u and the position bias v."""
        shape, init = (self.num_heads, self.head_dim), named(nn.initializers.normal(0.02), "heads", None)
        return self.param("content", init, shape), self.param("position", init, shape)


class TransformerXLAttention(Residual, LayerMemory):
    """Attention of a Transformer-XL layer, which also reads the hidden states of earlier segments.

    Dai et al. 2019, https://arxiv.org/abs/1901.02860.

    What is stored: the part's input of the last `memory_length` positions. When written: after each segment, with the
    dropout already applied. What is differentiable: nothing through the memory (stopped gradient), but the projections
    of remembered states do train. When reset: at `start_of_document`.

    Symbols: `m^n -> state.hidden`, `h~^{n-1} -> [state.hidden; x]`, `W_q, W_{k,E}, W_v -> query, key_value`,
    `W_{k,R} -> relative`, `R -> sinusoids(distance)`, `u, v -> biases`.

    Differs from the paper or its code:

    * An empty memory is masked. The published TensorFlow code attends to zero vectors (`empty_memory="zeros"`).
    * Documents are separate streams.
    * Hidden states are kept per layer. The output of the last layer is not kept, because nothing reads it.
    * Queries are projected for the segment only.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head.
      memory_length: Number of slots. 0 for no memory.
      norm: Place of the norm: 'post' (as published) or 'pre' (applied to memory and segment when they are read).
      norm_kind: Kind of norm: 'layer' or 'rms'.
      tied_biases: Whether all layers of a stack share the biases u and v (`shared_module`).
      clamp_length: Largest distance between a query and a key. Longer distances count as this one. 0 for no limit.
      same_length: Whether every query sees exactly `memory_length` keys including itself.
      empty_memory: Effect of empty slots: 'mask' hides them, 'zeros' lets queries attend to zero vectors.
      dropout: Dropout rate of the output and of the relative positions.
      attention_dropout: Dropout rate of the attention weights.
      init_stddev: Standard deviation of all initial matrices and biases.
      dtype: Dtype of the computation.
      track_attention: Whether `Aux.arrays` has the arrays for `memjax.inspection.attention_maps`: `attention/weights`
        `[batch, heads, length, slots + length]`, and `attention/visible`, the keys that a query may read. Also the
        arrays for `memjax.inspection.attention_by_age` (`memjax.memory.layer_parts.TrackedKeys`).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = TransformerXLAttention(dim=8, num_heads=2, head_dim=4, memory_length=4)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.hidden.shape
      ((1, 4, 8), (1, 4, 8))
    """

    dim: int
    num_heads: int
    head_dim: int
    memory_length: int
    norm: str = "post"
    norm_kind: str = "layer"
    tied_biases: bool = False
    clamp_length: int = 0
    same_length: bool = False
    empty_memory: str = "mask"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_stddev: float = 0.02
    dtype: Any = jnp.float32
    track_attention: bool = False

    def setup(self) -> None:
        super().setup()
        self._setup_projections()

    def _setup_projections(self) -> None:
        init, heads = matrix_init(self.init_stddev), (self.num_heads, self.head_dim)
        inner = named(init, "embed", "heads", None)
        self.query = self.param("query", inner, (self.dim, *heads))
        self.key_value = self.param("key_value", named(init, "embed", None, "heads", None), (self.dim, 2, *heads))
        self.relative = self.param("relative", inner, (self.dim, *heads))
        self.output = self.param("output", named(init, "heads", None, "embed"), (*heads, self.dim))
        if not self.tied_biases:
            self.biases = RelativeBiases(self.num_heads, self.head_dim)

    @nn.nowrap
    def shared_module(self) -> nn.Module | None:
        """Returns the module with the biases u and v that all layers share. None if every layer has its own."""
        return RelativeBiases(self.num_heads, self.head_dim) if self.tied_biases else None

    @nn.nowrap
    def with_attention_tracking(self) -> Any:
        """Returns a copy that also outputs its attention weights."""
        return self.clone(track_attention=True)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> TransformerXLState | EmptyState:
        """Makes a memory in which a document starts, with hidden states of `dtype`."""
        if not self.memory_length:
            return EmptyState()
        hidden = jnp.zeros((batch_size, self.memory_length, self.dim), dtype)
        return TransformerXLState(hidden, jnp.full((batch_size, self.memory_length), self.empty_memory == "zeros"))

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Starts decoding at the start of a segment, with `state` as the memory."""
        shape = (batch_size, self._num_slots + segment_length, self.num_heads, self.head_dim)
        dtype = self.dtype if isinstance(state, EmptyState) else state.hidden.dtype
        hidden = jnp.zeros((batch_size, segment_length, self.dim), dtype)
        keys, values = jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)
        segment = TransformerXLSegment(hidden, keys, values, self._no_attention(state))
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
        y, u_v = self.apply_norm(x), self._biases(shared)
        queries, (keys, values) = self._queries(y), self._keys_values(y)
        stored_parts, valid = self._slots(state)
        key_facts = self._known_keys(state, mask.shape[1]) if self.track_attention else None
        if stored_parts:
            # Separate from the segment: in one product, the backward pass would compute the gradient to the memory too.
            remembered = self._keys_values(self._join_recalled(stored_parts, x.dtype))
            join = lambda old, new: self._behind(new, jnp.concatenate([old, self._tokens(new)], axis=1))
            keys, values = join(remembered[0], keys), join(remembered[1], values)
        window = self.memory_length if self.same_length else None
        scores = self._position_scores(self._tokens(queries), u_v[1], deterministic)
        scores, visible = self._seen(scores, visibility(mask.shape[1], valid, mask, window=window))
        z, weights = read(queries, keys, values, scores, u_v[0], visible, **weight_dropout(self, deterministic))
        further, state, more = self._read_further(queries, state, mask, deterministic)
        z = self._finish(x, z, deterministic, further)
        if self.empty_memory == "zeros":  # zero slots have distances, which padding in front would change
            z = refuse_padding_in_front(z, read_mask)
        attended, reading = self._attended(weights, mask), SegmentAttention(queries, keys, values)
        state, aux = self._write(state, self._stored(x, y), mask, attended, reading)
        tracked = tracked_weights(self, weights, visible, key_facts)
        return z, state, more + aux + self._figures(weights, mask) + tracked

    def decode(
        self, x: Float[Array, "batch rows dim"], decode_state: DecodeState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch rows dim"], DecodeState]:
        """Reads one token of every active row, behind memory rows if any, and writes every segment that is full."""
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        batch, segment_length, _ = segment.hidden.shape
        segment = self._enter_segment(memory, segment, active & (position == 0))
        y = self.apply_norm(x)
        key, value = self._keys_values(y)
        segment = dataclasses.replace(
            segment,
            hidden=ring_append(segment.hidden, self._stored(x, y).astype(segment.hidden.dtype), position, active),
            keys=ring_append(segment.keys, self._tokens(key), position + self._num_slots, active),
            values=ring_append(segment.values, self._tokens(value), position + self._num_slots, active),
        )
        query = self._queries(y)
        u_v = self._biases(shared)
        scores, visible = self._seen(*self._token_scores(self._tokens(query), segment, memory, position, u_v[1]))
        keys, values = self._behind(key, segment.keys), self._behind(value, segment.values)
        z, weights = read(query, keys, values, scores, u_v[0], visible)
        add = lambda sums, more: sums + more.astype(sums.dtype)
        attended = jax.tree.map(add, segment.attended, self._attended(weights, active[:, None]))
        segment = dataclasses.replace(segment, attended=attended)
        further, segment = self._read_token_further(query, segment, active)
        z = self._finish(x, z, deterministic=True, further=further)

        full = active & (position + 1 == segment_length)
        rows = jnp.broadcast_to(full[:, None], (batch, segment_length))
        write_full = lambda m: self._write_segment(m, segment, rows)
        memory = jax.lax.cond(full.any(), write_full, lambda m: m, memory)
        return z, DecodeState(memory, segment, next_position(position, active, segment_length))

    # Methods that memories made of the same attention override

    @property
    def _num_slots(self) -> int:
        """Slots of the memory."""
        return self.memory_length

    def _reset(self, state: Any, start_of_document: Array) -> Any:
        return reset(state, start_of_document, empty_memory=self.empty_memory)

    def _slots(self, state: Any) -> tuple[tuple[Array, ...], Array | None]:
        """Returns the stored hidden states in parts, oldest first, and which slots are valid."""
        return ((), None) if isinstance(state, EmptyState) else ((state.hidden,), state.valid)

    def _tokens(self, rows: Array) -> Array:
        """Selects the tokens among `rows`, `[batch, rows, ...]`: all but memory rows in front of them."""
        return rows

    def _behind(self, rows: Array, others: Array) -> Array:
        """Concatenates the memory rows among `rows` and, behind them, `others`."""
        return others

    def _seen(self, scores: Array, visible: Array) -> tuple[Array, Array]:
        """Extends position scores and visibility, `[batch, heads, length, total]`, by memory rows."""
        return scores, visible

    def _stored(self, x: Array, normed: Array) -> Array:
        """Selects the hidden states to store, from the input `x` of the part or its norm, without memory rows."""
        return self._tokens(x)

    def _recall(self, stored: Array) -> Array:
        """Prepares stored hidden states for the projections to keys and values."""
        return self.apply_norm(stored)

    def _relative_runs(self, position_bias: Array) -> tuple[tuple[int, Array, Array], ...]:
        """Runs of slots with relative positions of their own, oldest first: (number of slots, W_R, v).

        Distances of a run count as if its last slot stood right before the segment. The segment belongs to the last
        run.
        """
        return ((self._num_slots, self.relative, position_bias),)

    def _attended(self, weights: Array, mask: Array) -> Any:
        """Sums the attention of real tokens to each slot, for a memory that records it. Empty in Transformer-XL."""
        return EmptyState()

    def _figures(self, weights: Array, mask: Array) -> Aux:
        """Measures the share of the attention of a segment's real tokens that goes to the memory."""
        if not self._num_slots:
            return Aux()
        return Aux(metrics={"transformer_xl/memory_share": attention_share(weights, mask)})

    def _known_keys(self, state: Any, length: int) -> TrackedKeys:
        """Describes the age, extent and source of the keys of memory and segment."""
        slots = self._num_slots
        places = jnp.arange(slots, 0, -1, dtype=jnp.int32)[None]
        return TrackedKeys.of_slots(places, jnp.ones(slots, jnp.int32), jnp.full(slots, SHORT), length)

    @nn.nowrap
    def _no_attention(self, state: Any) -> Any:
        """Makes the value of `_attended` before the first token."""
        return EmptyState()

    def _write(
        self, state: Any, stored: Array, mask: Array, attended: Any, reading: SegmentAttention | None = None
    ) -> tuple[Any, Aux]:
        """Returns the state after a segment, and auxiliary losses of the memory if `reading` is given."""
        return write(state, stored, mask), Aux()

    def _write_segment(self, state: Any, segment: TransformerXLSegment, mask: Array) -> Any:
        """Writes a segment that was decoded token by token to the memory. `mask` is True in the rows to write."""
        return self._write(state, segment.hidden, mask, segment.attended)[0]

    def _read_further(
        self, queries: Array, state: Any, mask: Array, deterministic: bool
    ) -> tuple[Array | None, Any, Aux]:
        """Reads a second memory beside the slots: what it adds to the output before dropout, its new state, metrics."""
        return None, state, Aux()

    def _read_token_further(
        self, query: Array, segment: TransformerXLSegment, active: Array
    ) -> tuple[Array | None, TransformerXLSegment]:
        """Reads a second memory beside the slots (`_read_further`) with one token per row."""
        return None, segment

    # The attention

    def _join_recalled(self, parts: tuple[Array, ...], dtype: Any) -> Array:
        return jnp.concatenate([self._recall(part.astype(dtype)) for part in parts], axis=1)

    def _positions(self, total: int) -> Float[Array, "total dim"]:
        distances = np.arange(total - 1, -1, -1)
        if self.clamp_length:
            distances = np.minimum(distances, self.clamp_length)
        return sinusoids(distances, self.dim).astype(jnp.promote_types(self.dtype, self.relative.dtype))

    def _position_scores(self, queries: Array, position_bias: Array, deterministic: bool) -> Array:
        """Computes scores `[batch, heads, length, slots + length]` with relative positions, for every run of slots."""
        length, scores = queries.shape[1], []
        runs = self._relative_runs(position_bias)
        for index, (slots, matrix, bias) in enumerate(runs):
            positions = self.drop(self._positions(slots + length), deterministic=deterministic)
            by_key = score_positions(queries, project(positions, matrix), bias)
            scores.append(by_key if index == len(runs) - 1 else by_key[..., :slots])
        return scores[0] if len(scores) == 1 else jnp.concatenate(scores, axis=-1)

    def _enter_segment(self, memory: Any, segment: TransformerXLSegment, entering: Array) -> TransformerXLSegment:
        """Projects the memory of rows that are at the first token of their segment, once per segment."""
        parts, _ = self._slots(memory)
        if not parts:
            return segment

        def project_memory(segment: TransformerXLSegment) -> TransformerXLSegment:
            keys, values = self._keys_values(jnp.concatenate(recalled, axis=1))
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

    def _token_scores(
        self, query: Array, segment: TransformerXLSegment, memory: Any, position: Array, position_bias: Array
    ) -> tuple[Array, Array]:
        """Computes the position scores `[batch, heads, 1, total]` of one token per row, and the keys that it sees."""
        batch, total = segment.keys.shape[:2]
        distance = position[:, None] + self._num_slots - jnp.arange(total)[None, :]  # [b, m]
        visible = jnp.broadcast_to(distance >= 0, (batch, total))
        _, valid = self._slots(memory)
        if valid is not None:
            visible = visible & jnp.pad(valid, [(0, 0), (0, total - self._num_slots)], constant_values=True)
        if self.same_length:
            visible = visible & (distance < self.memory_length)
        segment_length, scores = total - self._num_slots, []
        runs = self._relative_runs(position_bias)
        for index, run in enumerate(runs):
            columns = run[0] + segment_length if index == len(runs) - 1 else run[0]
            scores.append(self._score_token(query, run, columns, run[0] + segment_length, position))
        bias = scores[0] if len(scores) == 1 else jnp.concatenate(scores, axis=-1)
        return bias, visible[:, None, None, :]

    def _score_token(
        self, query: Array, run: tuple[int, Array, Array], columns: int, total: int, position: Array
    ) -> Array:
        """Computes position scores `[batch, heads, 1, columns]` of one token per row to the first keys of a run."""
        slots, matrix, bias = run
        distance = position[:, None] + slots - jnp.arange(columns)[None, :]  # [b, m]
        # (q + v) W_R^T first: one vector per head instead of projecting every distance for one token.
        folded = jnp.einsum(
            "blhd,ehd->blhe", (query + bias[None, None]) * self.head_dim**-0.5, matrix.astype(query.dtype)
        )
        by_distance = jnp.einsum("blhe,me->bhlm", folded, self._positions(total).astype(query.dtype))
        column = jnp.clip(total - 1 - distance, 0, total - 1)[:, None, None, :]
        return jnp.take_along_axis(by_distance, jnp.broadcast_to(column, (*by_distance.shape[:3], columns)), axis=-1)

    def _queries(self, hidden: Array) -> Array:
        return project(hidden, self.query)

    def _keys_values(self, hidden: Array) -> tuple[Array, Array]:
        keys_values = project(hidden, self.key_value)
        return keys_values[:, :, 0], keys_values[:, :, 1]

    def _biases(self, shared: Any) -> tuple[Array, Array]:
        u, v = shared if self.tied_biases else self.biases()
        return u.astype(self.dtype), v.astype(self.dtype)

    def _finish(self, x: Array, y: Array, deterministic: bool, further: Array | None = None) -> Array:
        y = project(y, self.output, axes=2)
        return self.add_residual(x, y if further is None else y + further, deterministic)
