"""Transformer-XL: attention over the hidden states of earlier segments, with relative positions.

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
from memjax.functional.positions import relative_shift, sinusoids
from memjax.functional.scopes import operation
from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.contract import DecodeState, LayerMemory, broadcast_mask, next_position, where_rows
from memjax.memory.projections import SHORT, Keys, Residual, matrix_init, project, tracked_weights, weight_dropout
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, Sum, tree_dataclass

__all__ = ["TransformerXLAttention", "TransformerXLState"]


@tree_dataclass
class TransformerXLState:
    """The inputs of one layer at the last `memory` positions, oldest first.

    Attributes:
      hidden: `[batch, memory, dim]`.
      valid: bool `[batch, memory]`, the slot holds a token of the running document.
    """

    hidden: Leaf
    valid: Leaf


@tree_dataclass
class TransformerXLSegment:
    """Buffers of the running segment while decoding.

    Attributes:
      hidden: `[batch, segment_length, dim]`, what will be written.
      keys: `[batch, memory + segment_length, heads, head_dim]`, projected once per token; the memory's at the segment's
        first token.
      values: as `keys`.
      attended: what the slots of the memory received of the segment's attention so far, where the memory notes it;
        `EmptyState` in Transformer-XL.
      further: what a memory beside the slots keeps of the running segment; `EmptyState` in Transformer-XL.
    """

    hidden: Leaf
    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    attended: Leaf = EmptyState()
    further: Any = EmptyState()


class Reading(NamedTuple):
    """What one segment read, for what is done with the memory afterwards.

    Attributes:
      queries: `[batch, length, heads, head_dim]`, without biases and scale.
      keys: `[batch, slots + length, heads, head_dim]`, of memory and segment.
      values: as `keys`.
    """

    queries: Array
    keys: Array
    values: Array


@operation
def reset(state: Any, start_of_document: Rows, *, empty_memory: str = "mask") -> Any:
    """The state that rows with `start_of_document` read: empty, or valid zeros for `empty_memory="zeros"`."""
    state = jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)
    if isinstance(state, EmptyState) or empty_memory != "zeros":
        return state
    return dataclasses.replace(state, valid=state.valid | start_of_document[:, None])


@operation
def write(state: Any, hidden: Activations, mask: Mask) -> Any:
    """Appends a segment: `m' = SG([m; h])[-memory:]`. Rows without a real token keep their state.

    Args:
      state: `TransformerXLState`, or `EmptyState` for a memory of length 0.
      hidden: the layer's input.
      mask: real tokens; padding takes slots that are marked invalid.
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
    """Scores by relative position, `(q_i + v) r_{i-j} / sqrt(head_dim)`; those of later keys are to be masked.

    Args:
      queries: of the segment, the last query at the last key.
      relative_keys: projected sinusoids, distance `total - 1` first.
      position_bias: v.
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
      queries: of the segment.
      keys: of memory and segment, oldest first.
      values: as `keys`.
      position_scores: `(q_i + v) r_{i-j} / sqrt(head_dim)`.
      content_bias: u.
      visible: which keys a query sees.
      **dropout: `dropout_rate` and `dropout_key` of `memjax.functional.attention`.
    """
    scale, queries = queries.shape[-1] ** -0.5, queries + content_bias[None, None]
    return attention_with_weights(queries, keys, values, mask=visible, bias=position_scores, scale=scale, **dropout)


@operation
def attention_share(
    weights: Float[Array, "batch heads rows total"], mask: Mask, start: int = 0, stop: int | None = None
) -> Sum:
    """The share of attention that the slots from `start` to `stop` receive, summed over the real tokens.

    Args:
      weights: of slots and segment, oldest first; what stands before the slots in either axis is no slot and no token.
      mask: real tokens.
      start: first slot, counted from the oldest.
      stop: the slot after the last; None = all slots from `start` on.

    Example:
      >>> weights = jnp.array([[[[0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5]]]])  # two slots, two tokens
      >>> print(attention_share(weights, jnp.array([[True, True]])).mean())
      0.375
    """
    length, slots = mask.shape[1], weights.shape[-1] - mask.shape[1]
    first = weights.shape[-2] - length  # memory rows in front, of queries and of keys alike
    of_slots = weights[:, :, first:, first + start : slots if stop is None else first + stop]
    by_token = jax.lax.stop_gradient(of_slots).sum(axis=-1).mean(axis=1)  # [b, l]
    return Sum(jnp.where(mask, by_token, 0).sum(), mask.sum().astype(by_token.dtype))


class RelativeBiases(nn.Module):
    """The biases u and v, shared by all layers (`tied_biases`).

    Attributes:
      num_heads: heads.
      head_dim: width of a head.
    """

    num_heads: int
    head_dim: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "heads head_dim"], Float[Array, "heads head_dim"]]:
        """The content bias u and the position bias v."""
        shape, init = (self.num_heads, self.head_dim), named(nn.initializers.normal(0.02), "heads", None)
        return self.param("content", init, shape), self.param("position", init, shape)


class TransformerXLAttention(Residual, LayerMemory):
    """Attention part of Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860).

    What is stored: the part's input of the last `memory_length` positions. When written: after each segment, with the
    dropout already applied. What is differentiable: nothing through the memory (stopped gradient); the projections of
    remembered states do train. When reset: at `start_of_document`.

    Symbols: `m^n -> state.hidden`, `h~^{n-1} -> [state.hidden; x]`, `W_q, W_{k,E}, W_v -> query, key_value`,
    `W_{k,R} -> relative`, `R -> sinusoids(distance)`, `u, v -> biases`.

    Differs from the paper or its code: an empty memory is masked, while the published TensorFlow code attends to zero
    vectors (`empty_memory="zeros"` does so); documents are separate streams; M states are kept per layer and not those
    of the last layer's output, which nothing reads; queries are projected for the segment only.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: width of the residual stream.
      num_heads: heads.
      head_dim: width of a head.
      memory_length: slots; 0 = no memory.
      norm: 'post' (as published) or 'pre' (applied to memory and segment when they are read).
      norm_kind: 'layer' or 'rms'.
      tied_biases: take u and v from the stack (`shared_module`).
      clamp_length: distances beyond it count as it; 0 = off.
      same_length: every query sees exactly `memory_length` keys including itself.
      empty_memory: 'mask' or 'zeros'.
      dropout: rate on the output and on the relative positions.
      attention_dropout: rate on attention weights.
      init_stddev: of all matrices and biases.
      dtype: of the computation.
      track_attention: `Aux.arrays` has what `memjax.inspection.attention_maps` reads: `attention/weights` `[batch,
        heads, length, slots + length]`, and `attention/visible`, which of them a query may read; also what
        `memjax.inspection.attention_by_age` reads (`memjax.memory.projections.Keys`).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = TransformerXLAttention(dim=8, num_heads=2, head_dim=4, memory_length=4)
      >>> x = jnp.ones((1, 4, 8))
      >>> given = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **given)
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
        """The module whose parameters all layers of a stack share, if any."""
        return RelativeBiases(self.num_heads, self.head_dim) if self.tied_biases else None

    @nn.nowrap
    def tracked(self) -> Any:
        """The part that also gives the weights of its attention."""
        return self.clone(track_attention=True)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> TransformerXLState | EmptyState:
        """A memory in which a document starts; `dtype` is that of the stored hidden states."""
        if not self.memory_length:
            return EmptyState()
        hidden = jnp.zeros((batch_size, self.memory_length, self.dim), dtype)
        return TransformerXLState(hidden, jnp.full((batch_size, self.memory_length), self.empty_memory == "zeros"))

    @nn.nowrap
    def init_decode_state(self, state: Any, segment_length: int, batch_size: int) -> DecodeState:
        """Decoding from the start of a segment, with `state` as the memory."""
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
        y, u_v = self.normed(x), self._biases(shared)
        queries, (keys, values) = self._queries(y), self._keys_values(y)
        parts, valid = self._slots(state)
        known = self._known_keys(state, mask.shape[1]) if self.track_attention else None
        if parts:
            # Apart from the segment: as one product, the backward pass would also work out the gradient to the memory.
            remembered = self._keys_values(self._recalled(parts, x.dtype))
            join = lambda old, new: self._behind(new, jnp.concatenate([old, self._tokens(new)], axis=1))
            keys, values = join(remembered[0], keys), join(remembered[1], values)
        window = self.memory_length if self.same_length else None
        scores = self._position_scores(self._tokens(queries), u_v[1], deterministic)
        scores, visible = self._seen(scores, visibility(mask.shape[1], valid, mask, window=window))
        z, weights = read(queries, keys, values, scores, u_v[0], visible, **weight_dropout(self, deterministic))
        further, state, more = self._read_further(queries, state, mask, deterministic)
        z = self._finish(x, z, deterministic, further)
        if self.empty_memory == "zeros":  # zeros stand at distances, which padding in front would change
            z = refuse_padding_in_front(z, read_mask)
        attended, reading = self._attended(weights, mask), Reading(queries, keys, values)
        state, aux = self._write(state, self._stored(x, y), mask, attended, reading)
        tracked = tracked_weights(self, weights, visible, known)
        return z, state, more + aux + self._figures(weights, mask) + tracked

    def decode(
        self, x: Float[Array, "batch rows dim"], decode_state: DecodeState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch rows dim"], DecodeState]:
        """One token of every active row, behind memory rows if any; where a row's segment is full, it is written."""
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        batch, segment_length, _ = segment.hidden.shape
        segment = self._enter_segment(memory, segment, active & (position == 0))
        y = self.normed(x)
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

    # What a memory that is made of the same attention does in a way of its own

    @property
    def _num_slots(self) -> int:
        """Slots of the memory."""
        return self.memory_length

    def _reset(self, state: Any, start_of_document: Array) -> Any:
        return reset(state, start_of_document, empty_memory=self.empty_memory)

    def _slots(self, state: Any) -> tuple[tuple[Array, ...], Array | None]:
        """What is remembered, in parts, oldest first, and which slots are valid."""
        return ((), None) if isinstance(state, EmptyState) else ((state.hidden,), state.valid)

    def _tokens(self, rows: Array) -> Array:
        """Those of the rows `[batch, rows, ...]` that are tokens: all but memory rows in front of them."""
        return rows

    def _behind(self, rows: Array, others: Array) -> Array:
        """`others` behind the memory rows among `rows`."""
        return others

    def _seen(self, scores: Array, visible: Array) -> tuple[Array, Array]:
        """Position scores, and what is visible, of memory rows too."""
        return scores, visible

    def _stored(self, x: Array, normed: Array) -> Array:
        """What the memory keeps of the part's input."""
        return self._tokens(x)

    def _recall(self, stored: Array) -> Array:
        """What the projections see of what the memory keeps."""
        return self.normed(stored)

    def _relative_runs(self, position_bias: Array) -> tuple[tuple[int, Array, Array], ...]:
        """Runs of slots that have relative positions of their own, oldest first: (slots, W_R, v).

        Distances of a run count as if its last slot stood right before the segment; the segment belongs to the last
        run.
        """
        return ((self._num_slots, self.relative, position_bias),)

    def _attended(self, weights: Array, mask: Array) -> Any:
        """What the memory notes of the attention of a segment's real tokens, as `TransformerXLSegment.attended`."""
        return EmptyState()

    def _figures(self, weights: Array, mask: Array) -> Aux:
        """How much of the attention of a segment's real tokens the memory receives."""
        if not self._num_slots:
            return Aux()
        return Aux(metrics={"transformer_xl/memory_share": attention_share(weights, mask)})

    def _known_keys(self, state: Any, length: int) -> Keys:
        """What is known of slots and segment."""
        slots = self._num_slots
        places = jnp.arange(slots, 0, -1, dtype=jnp.int32)[None]
        return Keys.of_slots(places, jnp.ones(slots, jnp.int32), jnp.full(slots, SHORT), length)

    @nn.nowrap
    def _no_attention(self, state: Any) -> Any:
        """`_attended` before the first token."""
        return EmptyState()

    def _write(
        self, state: Any, stored: Array, mask: Array, attended: Any, reading: Reading | None = None
    ) -> tuple[Any, Aux]:
        """The state after a segment, and what there is to add to the loss where `reading` is given."""
        return write(state, stored, mask), Aux()

    def _write_segment(self, state: Any, segment: TransformerXLSegment, mask: Array) -> Any:
        """The state after a segment that was decoded token by token; `mask` is True in the rows to write."""
        return self._write(state, segment.hidden, mask, segment.attended)[0]

    def _read_further(
        self, queries: Array, state: Any, mask: Array, deterministic: bool
    ) -> tuple[Array | None, Any, Aux]:
        """What a memory beside the slots adds to the output, before dropout and residual, and the state it leaves."""
        return None, state, Aux()

    def _read_token_further(
        self, query: Array, segment: TransformerXLSegment, active: Array
    ) -> tuple[Array | None, TransformerXLSegment]:
        """`_read_further` for one token per row."""
        return None, segment

    # The attention

    def _recalled(self, parts: tuple[Array, ...], dtype: Any) -> Array:
        return jnp.concatenate([self._recall(part.astype(dtype)) for part in parts], axis=1)

    def _positions(self, total: int) -> Float[Array, "total dim"]:
        distances = np.arange(total - 1, -1, -1)
        if self.clamp_length:
            distances = np.minimum(distances, self.clamp_length)
        return sinusoids(distances, self.dim).astype(jnp.promote_types(self.dtype, self.relative.dtype))

    def _position_scores(self, queries: Array, position_bias: Array, deterministic: bool) -> Array:
        """`[batch, heads, length, slots + length]`, each run of slots with its own positions."""
        length, scores = queries.shape[1], []
        runs = self._relative_runs(position_bias)
        for index, (slots, matrix, bias) in enumerate(runs):
            positions = self.drop(self._positions(slots + length), deterministic=deterministic)
            by_key = score_positions(queries, project(positions, matrix), bias)
            scores.append(by_key if index == len(runs) - 1 else by_key[..., :slots])
        return scores[0] if len(scores) == 1 else jnp.concatenate(scores, axis=-1)

    def _enter_segment(self, memory: Any, segment: TransformerXLSegment, entering: Array) -> TransformerXLSegment:
        """Projects the memory of rows at the first token of their segment; other rows keep what they projected."""
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

        # Flax modules cannot be called inside lax.cond: the norm stands outside, the products inside are plain arrays.
        recalled = [self._recall(part.astype(self.dtype)) for part in parts]
        return jax.lax.cond(entering.any(), project_memory, lambda segment: segment, segment)

    def _token_scores(
        self, query: Array, segment: TransformerXLSegment, memory: Any, position: Array, position_bias: Array
    ) -> tuple[Array, Array]:
        """Position scores of one token per row `[batch, heads, 1, total]`, and what it sees `[batch, 1, 1, total]`."""
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
        """Position scores `[batch, heads, 1, columns]` of one token per row, for the first keys of a run of slots."""
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
        both = project(hidden, self.key_value)
        return both[:, :, 0], both[:, :, 1]

    def _biases(self, shared: Any) -> tuple[Array, Array]:
        u, v = shared if self.tied_biases else self.biases()
        return u.astype(self.dtype), v.astype(self.dtype)

    def _finish(self, x: Array, y: Array, deterministic: bool, further: Array | None = None) -> Array:
        y = project(y, self.output, axes=2)
        return self.added(x, y if further is None else y + further, deterministic)
