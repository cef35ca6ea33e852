"""The attention of GPT-2, alone, with a long-term memory, and with a compressed memory.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners",
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf. The model is a
`memjax.models.language_model.LanguageModel` with learned positions inside the segment (`num_positions`). Weights come
from `memjax.interop.hf_gpt2`.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from memjax.axes import named
from memjax.functional.compression import attention_reconstruction, strided_convolution, window_validity
from memjax.functional.fifo import reset_rows, shift_append
from memjax.functional.named_operations import operation
from memjax.memory.compressive import LOSSES
from memjax.memory.infinity_former import AttentionWithLongTermMemory, LongTermMemory
from memjax.memory.interface import DecodeState, where_rows
from memjax.memory.layer_parts import COMPRESSED, TrackedKeys, matrix_init, project
from memjax.memory.transformer_xl import SegmentAttention, TransformerXLAttention, attention_share
from memjax.typing import Aux, EmptyState, Leaf, tree_dataclass

__all__ = ["GPT2Attention", "GPT2CompressiveAttention", "GPT2InfinityFormerAttention"]


class GPT2Attention(TransformerXLAttention):
    """GPT-2's causal attention inside the segment, with biases in all projections, pre-norm and no memory.

    Nothing is stored. Positions are the model's (`LanguageModel.num_positions`), so that every segment begins at 0.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head.
      memory_length: Always 0: GPT-2 has no memory of hidden states.
      norm: Place of the norm, always 'pre'.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = GPT2Attention(dim=8, num_heads=2, head_dim=4), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape
      (1, 4, 8)
    """

    memory_length: int = 0
    norm: str = "pre"

    def _setup_projections(self) -> None:
        init, heads = matrix_init(self.init_stddev), (self.num_heads, self.head_dim)
        zeros = nn.initializers.zeros
        self.query = self.param("query", named(init, "embed", "heads", None), (self.dim, *heads))
        self.key_value = self.param("key_value", named(init, "embed", None, "heads", None), (self.dim, 2, *heads))
        self.output = self.param("output", named(init, "heads", None, "embed"), (*heads, self.dim))
        self.query_bias = self.param("query_bias", named(zeros, "heads", None), heads)
        self.key_value_bias = self.param("key_value_bias", named(zeros, None, "heads", None), (2, *heads))
        self.output_bias = self.param("output_bias", named(zeros, "embed"), (self.dim,))

    def _queries(self, hidden: Array) -> Array:
        return project(hidden, self.query) + self.query_bias.astype(hidden.dtype)[None, None]

    def _keys_values(self, hidden: Array) -> tuple[Array, Array]:
        keys_values = project(hidden, self.key_value) + self.key_value_bias.astype(hidden.dtype)[None, None]
        return keys_values[:, :, 0], keys_values[:, :, 1]

    def _finish(self, x: Array, y: Array, deterministic: bool, further: Array | None = None) -> Array:
        bias = self.output_bias.astype(y.dtype)[None, None]
        return super()._finish(x, y, deterministic, bias if further is None else further + bias)

    # No relative positions

    def _biases(self, shared: Any) -> tuple[Array, Array]:
        zeros = jnp.zeros((self.num_heads, self.head_dim), self.dtype)
        return zeros, zeros

    def _position_scores(self, queries: Array, position_bias: Array, deterministic: bool) -> Array:
        batch, length = queries.shape[:2]
        shape = (batch, self.num_heads, length, self._num_slots + length)
        return jnp.zeros(shape, jnp.promote_types(queries.dtype, jnp.float32))

    def _relative_runs(self, position_bias: Array) -> tuple[tuple[int, Any, Any], ...]:
        return ((self._num_slots, None, None),)

    def _score_token(self, query: Array, run: Any, columns: int, total: int, position: Array) -> Array:
        shape = (query.shape[0], self.num_heads, 1, columns)
        return jnp.zeros(shape, jnp.promote_types(query.dtype, jnp.float32))


class GPT2InfinityFormerAttention(AttentionWithLongTermMemory, GPT2Attention):
    """GPT-2's attention with the long-term memory of infinity-former.

    Each segment enters the signal before the next one is read. There is no short-term memory. What is stored, written
    and differentiable is as in `memjax.memory.infinity_former.InfinityFormerAttention`.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))`.

    Attributes:
      long_term: Long-term memory. Every call has its `segment_length` tokens.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from memjax.memory.infinity_former import LongTermMemory
      >>> sizes = {"dim": 8, "num_heads": 2, "head_dim": 4}
      >>> signal = LongTermMemory(**sizes, segment_length=4, num_basis=6, widths=(0.1, 0.2), num_samples=5, num_bins=4)
      >>> memory, x = GPT2InfinityFormerAttention(**sizes, long_term=signal), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.long.coefficients.shape
      ((1, 4, 8), (1, 6, 8))
    """

    long_term: LongTermMemory = None  # type: ignore[assignment]


@tree_dataclass
class CompressedState:
    """Compressed earlier segments, oldest first.

    Attributes:
      slots: `[batch, compressed, dim]`, compressed hidden states.
      valid: bool `[batch, compressed]`, slots that stand for tokens of the running document only.
    """

    slots: Leaf
    valid: Leaf


@operation
def write(
    state: CompressedState,
    compressed: Float[Array, "batch windows dim"],
    valid: Bool[Array, "batch windows"],
    rows: Array,
) -> CompressedState:
    """Appends the compressed windows of a segment. Rows without a real token keep their slots."""
    new = CompressedState(
        shift_append(state.slots, jax.lax.stop_gradient(compressed)), shift_append(state.valid, valid)
    )
    return where_rows(rows, new, state)


@operation
def slopes(num_heads: int) -> Float[np.ndarray, " heads"]:
    """Slopes of the positional bias, `2 ** (-8 h / heads)` for head h = 1 .. heads (Press et al. 2022, ALiBi).

    Example:
      >>> print(slopes(4))
      [0.25       0.0625     0.015625   0.00390625]
    """
    return 2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads)


class GPT2CompressiveAttention(GPT2Attention):
    """GPT-2's attention with a memory of compressed earlier segments (Rae et al. 2019, Martins et al. 2022).

    What is stored: slots that each stand for `compression_rate` tokens. When written: after each segment, which is
    compressed whole. What is differentiable: the compression learns from its attention-reconstruction loss only.
    When reset: at `start_of_document`.

    The loss compares the attention of all queries to the whole segment, also to the tokens after each query. Only the
    last query comes after everything that is compressed.

    Slots have none of GPT-2's positions. Their scores get `-slope_h * distance` (ALiBi) with the distance
    `i + 1 + compression_rate * later`, for token i of the segment and a slot after which `later` others were written.
    Inside the segment there is no such bias.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))`.

    Attributes:
      compressed_memory_length: Number of slots.
      compression_rate: Number of tokens of a slot, a divisor of the segment's length.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> slots = {"compressed_memory_length": 4, "compression_rate": 2}
      >>> memory = GPT2CompressiveAttention(dim=8, num_heads=2, head_dim=4, **slots)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.slots.shape
      ((1, 4, 8), (1, 4, 8))
    """

    compressed_memory_length: int = 512
    compression_rate: int = 4

    def _setup_projections(self) -> None:
        super()._setup_projections()
        kernel = named(matrix_init(None, in_axis=(0, 1)), None, "embed", None)
        shape = (self.compression_rate, self.dim, self.dim)
        self.compression_kernel = self.param("compression_kernel", kernel, shape)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> CompressedState:
        """Makes a memory in which a document starts, with slots of `dtype`."""
        shape = (batch_size, self.compressed_memory_length)
        return CompressedState(jnp.zeros((*shape, self.dim), dtype), jnp.zeros(shape, bool))

    @nn.nowrap
    def init_decode_state(self, state: CompressedState, segment_length: int, batch_size: int) -> DecodeState:
        """Starts decoding at the start of a segment, with `state` as the memory."""
        decode_state = super().init_decode_state(EmptyState(), segment_length, batch_size)
        hidden = decode_state.segment.hidden.astype(state.slots.dtype)
        segment = dataclasses.replace(decode_state.segment, hidden=hidden)
        return dataclasses.replace(decode_state, memory=state, segment=segment)

    @property
    def _num_slots(self) -> int:
        return self.compressed_memory_length

    def _reset(self, state: CompressedState, start_of_document: Array) -> CompressedState:
        return jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)

    def _slots(self, state: CompressedState) -> tuple[tuple[Array, ...], Array]:
        return (state.slots,), state.valid

    def _position_scores(self, queries: Array, position_bias: Array, deterministic: bool) -> Array:
        length = queries.shape[1]
        scores = self._slot_scores(jnp.arange(length)[None], queries.shape[0])
        return jnp.pad(scores, [(0, 0)] * 3 + [(0, length)])

    def _score_token(self, query: Array, run: Any, columns: int, total: int, position: Array) -> Array:
        scores = self._slot_scores(position[:, None], query.shape[0])
        return jnp.pad(scores, [(0, 0)] * 3 + [(0, columns - self._num_slots)])

    def _known_keys(self, state: CompressedState, length: int) -> TrackedKeys:
        slots, rate = self._num_slots, self.compression_rate
        positions = 1 + rate * jnp.arange(slots - 1, -1, -1, dtype=jnp.int32)[None]
        return TrackedKeys.of_slots(positions, jnp.full(slots, rate), jnp.full(slots, COMPRESSED), length)

    def _figures(self, weights: Array, mask: Array) -> Aux:
        return Aux(metrics={"compressive/compressed_share": attention_share(weights, mask)})

    def _slot_scores(self, positions: Array, batch: int) -> Array:
        """Computes ALiBi scores `[batch, heads, length, compressed]` of tokens at these positions of the segment."""
        dtype = jnp.promote_types(self.dtype, jnp.float32)
        later = jnp.arange(self._num_slots - 1, -1, -1)
        distance = positions[:, None, :, None] + 1 + self.compression_rate * later[None, None, None]
        scores = -jnp.asarray(slopes(self.num_heads), dtype)[None, :, None, None] * distance.astype(dtype)
        return jnp.broadcast_to(scores, (batch, *scores.shape[1:]))

    def _write(
        self, state: CompressedState, stored: Array, mask: Array, attended: Any, reading: SegmentAttention | None = None
    ) -> tuple[CompressedState, Aux]:
        rate, length = self.compression_rate, mask.shape[1]
        if length % rate:
            raise ValueError(f"compression_rate: given {rate}, allowed: a divisor of the segment's {length} tokens")
        # In the dtype of decoding. The convolution must not see padding.
        hidden = jax.lax.stop_gradient(jnp.where(mask[..., None], stored, 0)).astype(state.slots.dtype)
        compressed = strided_convolution(hidden.astype(self.dtype), self.compression_kernel)
        valid, rows = window_validity(mask, rate), mask.any(axis=1)
        aux = Aux() if reading is None else self._reconstruction(compressed, valid, mask, reading)
        return write(state, compressed, valid, rows), aux

    def _reconstruction(self, compressed: Array, valid: Array, mask: Array, reading: SegmentAttention) -> Aux:
        slots, stands_for = self._num_slots, jnp.repeat(valid, self.compression_rate, axis=1)
        norm = jax.lax.stop_gradient(self.layer_norm.variables["params"])
        normed = self.layer_norm.clone(parent=None).apply({"params": norm}, compressed.astype(self.dtype))
        keys_values = project(normed, jax.lax.stop_gradient(self.key_value))  # type: ignore[arg-type]
        keys_values = keys_values + jax.lax.stop_gradient(self.key_value_bias).astype(keys_values.dtype)[None, None]
        loss = attention_reconstruction(
            reading.queries,
            reading.keys[:, slots:],
            reading.values[:, slots:],
            keys_values[:, :, 0],
            keys_values[:, :, 1],
            query_mask=mask,
            old_mask=stands_for,
            new_mask=valid,
        )
        return Aux(losses={LOSSES["attention"]: loss})
