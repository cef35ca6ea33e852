"""Transformer-XL: attention over the hidden states of earlier segments, with relative positions.

Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
https://arxiv.org/abs/1901.02860.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from memjax.axes import axes_of, named
from memjax.functional.attention import attention, visibility
from memjax.functional.fifo import reset_rows, ring_append, shift_append
from memjax.functional.positions import relative_shift, sinusoids
from memjax.functional.scopes import operation
from memjax.memory.contract import DecodeState, broadcast_mask, next_position, where_rows
from memjax.memory.projections import make_norm, matrix_init, project
from memjax.typing import Aux, EmptyState, Leaf


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformerXLState:
    """The inputs of one layer at the last `memory` positions, oldest first.

    Attributes:
      hidden: `[batch, memory, dim]`.
      valid: bool `[batch, memory]`, the slot holds a token of the running document.
    """

    hidden: Leaf
    valid: Leaf


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformerXLSegment:
    """Buffers of the running segment while decoding.

    Attributes:
      hidden: `[batch, segment_length, dim]`, what will be written.
      keys: `[batch, memory + segment_length, heads, head_dim]`, projected once per token; the memory's at the segment's
        first token.
      values: as `keys`.
    """

    hidden: Leaf
    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))


@operation
def reset(state: Any, start_of_document: Bool[Array, " batch"], *, empty_memory: str = "mask") -> Any:
    """The state that rows with `start_of_document` read: nothing valid, or valid zeros for `empty_memory="zeros"`."""
    if isinstance(state, EmptyState):
        return state
    if empty_memory == "zeros":
        hidden = jnp.where(start_of_document[:, None, None], 0, state.hidden)
        return TransformerXLState(hidden, state.valid | start_of_document[:, None])
    return TransformerXLState(state.hidden, reset_rows(state.valid, start_of_document))


@operation
def write(state: Any, hidden: Float[Array, "batch length dim"], mask: Bool[Array, "batch length"]) -> Any:
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
def read(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch total heads head_dim"],
    values: Float[Array, "batch total heads head_dim"],
    relative_keys: Float[Array, "total heads head_dim"],
    biases: tuple[Float[Array, "heads head_dim"], Float[Array, "heads head_dim"]],
    visible: Bool[Array, "#batch 1 length total"],
    **dropout: Any,
) -> Float[Array, "batch length heads head_dim"]:
    """Relative attention: `softmax(((q_i + u) k_j + (q_i + v) r_{i-j}) / sqrt(head_dim)) values`.

    Args:
      queries: of the segment.
      keys: of memory and segment, oldest first.
      values: as `keys`.
      relative_keys: projected sinusoids, distance `total - 1` first.
      biases: u and v.
      visible: which keys a query sees.
      **dropout: `dropout_rate` and `dropout_key` of `memjax.functional.attention`.
    """
    u, v = biases
    scale = queries.shape[-1] ** -0.5
    by_distance = jnp.einsum("blhd,mhd->bhlm", (queries + v[None, None]) * scale, relative_keys)
    queries = queries + u[None, None]
    return attention(queries, keys, values, mask=visible, bias=relative_shift(by_distance), scale=scale, **dropout)


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


class TransformerXLAttention(nn.Module):
    """Attention part of Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860).

    What is stored: the part's input of the last `memory_length` positions. When written: after each segment, with the
    dropout already applied. What is differentiable: nothing through the memory (stopped gradient); the projections of
    remembered states do train. When reset: at `start_of_document`.

    Symbols: `m^n -> state.hidden`, `h~^{n-1} -> [state.hidden; x]`, `W_q, W_{k,E}, W_v -> query, key_value`,
    `W_{k,R} -> relative`, `R -> sinusoids(distance)`, `u, v -> biases`.

    Differs from the paper or its code: an empty memory is masked, while the published TensorFlow code attends to zero
    vectors (`empty_memory="zeros"` does so); documents are separate streams; M states are kept per layer and not those
    of the last layer's output, which nothing reads; queries are projected for the segment only.

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

    def setup(self) -> None:
        init, heads = matrix_init(self.init_stddev), (self.num_heads, self.head_dim)
        inner = named(init, "embed", "heads", None)
        self.query = self.param("query", inner, (self.dim, *heads))
        self.key_value = self.param("key_value", named(init, "embed", None, "heads", None), (self.dim, 2, *heads))
        self.relative = self.param("relative", inner, (self.dim, *heads))
        self.output = self.param("output", named(init, "heads", None, "embed"), (*heads, self.dim))
        if not self.tied_biases:
            self.biases = RelativeBiases(self.num_heads, self.head_dim)
        self.layer_norm = make_norm(self.norm_kind, self.dtype)
        self.drop = nn.Dropout(self.dropout)

    @nn.nowrap
    def shared_module(self) -> nn.Module | None:
        """The module whose parameters all layers of a stack share, if any."""
        return RelativeBiases(self.num_heads, self.head_dim) if self.tied_biases else None

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> TransformerXLState | EmptyState:
        """A memory in which a document starts; `dtype` is that of the stored hidden states."""
        if not self.memory_length:
            return EmptyState()
        hidden = jnp.zeros((batch_size, self.memory_length, self.dim), dtype)
        return TransformerXLState(hidden, jnp.full((batch_size, self.memory_length), self.empty_memory == "zeros"))

    @nn.nowrap
    def init_decode_state(
        self, state: TransformerXLState | EmptyState, segment_length: int, batch_size: int
    ) -> DecodeState:
        """Decoding from the start of a segment, with `state` as the memory."""
        shape = (batch_size, self.memory_length + segment_length, self.num_heads, self.head_dim)
        dtype = self.dtype if isinstance(state, EmptyState) else state.hidden.dtype
        hidden = jnp.zeros((batch_size, segment_length, self.dim), dtype)
        segment = TransformerXLSegment(hidden, jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
        return DecodeState(state, segment, jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self,
        x: Float[Array, "batch length dim"],
        state: TransformerXLState | EmptyState,
        *,
        start_of_document: Bool[Array, " batch"],
        mask: Bool[Array, "batch length"] | None = None,
        deterministic: bool = True,
        shared: Any = None,
    ) -> tuple[Float[Array, "batch length dim"], TransformerXLState | EmptyState, Aux]:
        """Attends to memory and segment, then appends the segment to the memory."""
        batch, length, _ = x.shape
        mask = broadcast_mask(mask, batch, length)
        state = reset(state, start_of_document, empty_memory=self.empty_memory)
        y, valid = self.normed(x), None
        keys, values = self._keys_values(y)
        if isinstance(state, TransformerXLState):
            # Apart from the segment: as one product, the backward pass would also work out the gradient to the memory.
            remembered = self._keys_values(self.normed(state.hidden.astype(x.dtype)))
            keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(remembered, (keys, values), strict=True))
            valid = state.valid
        window = self.memory_length if self.same_length else None
        positions = self.drop(self._positions(keys.shape[1]), deterministic=deterministic)
        y = read(
            project(y, self.query),
            keys,
            values,
            project(positions, self.relative),
            self._biases(shared),
            visibility(length, valid, mask, window=window),
            **self._attention_dropout(deterministic),
        )
        return self._finish(x, y, deterministic), write(state, x, mask), Aux()

    def decode(
        self,
        x: Float[Array, "batch 1 dim"],
        decode_state: DecodeState,
        *,
        active: Bool[Array, " batch"],
        shared: Any = None,
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """One token of every active row; where a row's segment is full, it is written."""
        memory, segment, position = decode_state.memory, decode_state.segment, decode_state.position
        batch, segment_length, _ = segment.hidden.shape
        segment = self._enter_segment(memory, segment, active & (position == 0))
        y = self.normed(x)
        key, value = self._keys_values(y)
        segment = TransformerXLSegment(
            ring_append(segment.hidden, x.astype(segment.hidden.dtype), position, active),
            ring_append(segment.keys, key, position + self.memory_length, active),
            ring_append(segment.values, value, position + self.memory_length, active),
        )
        y = self._read_token(project(y, self.query), segment, memory, position, self._biases(shared))
        y = self._finish(x, y, deterministic=True)

        full = active & (position + 1 == segment_length)
        rows = jnp.broadcast_to(full[:, None], (batch, segment_length))
        memory = jax.lax.cond(full.any(), lambda m: write(m, segment.hidden, rows), lambda m: m, memory)
        return y, DecodeState(memory, segment, next_position(position, active, segment_length))

    def normed(self, x: Float[Array, "batch length dim"]) -> Float[Array, "batch length dim"]:
        """What the projections see of the residual stream `x`."""
        return self.layer_norm(x) if self.norm == "pre" else x

    def _positions(self, total: int) -> Float[Array, "total dim"]:
        distances = np.arange(total - 1, -1, -1)
        if self.clamp_length:
            distances = np.minimum(distances, self.clamp_length)
        return sinusoids(distances, self.dim).astype(jnp.promote_types(self.dtype, self.relative.dtype))

    def _enter_segment(self, memory: Any, segment: TransformerXLSegment, entering: Array) -> TransformerXLSegment:
        """Projects the memory of rows at the first token of their segment; other rows keep what they projected."""
        if isinstance(memory, EmptyState):
            return segment

        def project_memory(segment: TransformerXLSegment) -> TransformerXLSegment:
            keys, values = self._keys_values(normed)
            rows = entering[:, None, None, None]
            set_memory = (
                lambda old, new: old.at[:, : self.memory_length].set(  # noqa: E731
                    jnp.where(rows, new.astype(old.dtype), old[:, : self.memory_length])
                )
            )
            return TransformerXLSegment(
                segment.hidden, set_memory(segment.keys, keys), set_memory(segment.values, values)
            )

        # Flax modules cannot be called inside lax.cond: the norm stands outside, the products inside are plain arrays.
        normed = self.normed(memory.hidden.astype(self.dtype))
        return jax.lax.cond(entering.any(), project_memory, lambda segment: segment, segment)

    def _read_token(
        self, query: Array, segment: TransformerXLSegment, memory: Any, position: Array, biases: tuple[Array, Array]
    ) -> Array:
        """Attention of one token per row over memory and its segment so far, rows out of phase."""
        u, v = biases
        batch, total = segment.keys.shape[:2]
        slots = jnp.arange(total)[None, :]
        here = position[:, None] + self.memory_length
        distance = here - slots  # [b, m]
        visible = jnp.broadcast_to(distance >= 0, (batch, total))
        if isinstance(memory, TransformerXLState):
            visible = visible & jnp.pad(memory.valid, [(0, 0), (0, total - self.memory_length)], constant_values=True)
        if self.same_length:
            visible = visible & (distance < self.memory_length)
        # (q + v) W_R^T first: one vector per head instead of projecting every distance for one token.
        scale = self.head_dim**-0.5
        folded = jnp.einsum("blhd,ehd->blhe", (query + v[None, None]) * scale, self.relative.astype(query.dtype))
        by_distance = jnp.einsum("blhe,me->bhlm", folded, self._positions(total).astype(query.dtype))
        column = jnp.clip(total - 1 - distance, 0, total - 1)[:, None, None, :]
        bias = jnp.take_along_axis(by_distance, jnp.broadcast_to(column, by_distance.shape), axis=-1)
        return attention(
            query + u[None, None], segment.keys, segment.values, mask=visible[:, None, None, :], bias=bias, scale=scale
        )

    def _keys_values(self, hidden: Array) -> tuple[Array, Array]:
        both = project(hidden, self.key_value)
        return both[:, :, 0], both[:, :, 1]

    def _biases(self, shared: Any) -> tuple[Array, Array]:
        u, v = shared if self.tied_biases else self.biases()
        return u.astype(self.dtype), v.astype(self.dtype)

    def _attention_dropout(self, deterministic: bool) -> dict[str, Any]:
        if deterministic or not self.attention_dropout:
            return {}
        return {"dropout_rate": self.attention_dropout, "dropout_key": self.make_rng("dropout")}

    def _finish(self, x: Array, y: Array, deterministic: bool) -> Array:
        y = project(y, self.output, axes=2)
        y = x + self.drop(y, deterministic=deterministic)
        return self.layer_norm(y) if self.norm == "post" else y
