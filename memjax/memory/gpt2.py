"""The projections of GPT-2, and the memory of compressed segments that was added to it.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners",
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf. The model is a
`memjax.models.language_model.LanguageModel` with learned positions inside the segment (`num_positions`). Weights come
from `memjax.interop.hf_gpt2`.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from memjax.axes import named
from memjax.functional.compression import attention_reconstruction, strided_convolution, window_validity
from memjax.functional.fifo import reset_rows, shift_append
from memjax.functional.named_operations import operation
from memjax.memory.attention_implementations import AttentionWeights, attention_shares
from memjax.memory.compressive import LOSSES
from memjax.memory.hidden_state_attention import HiddenStateAttention, SegmentAttention
from memjax.memory.interface import where_rows
from memjax.memory.layer_parts import COMPRESSED, NormKind, TrackedKeys, matrix_init
from memjax.memory.projector import Projector
from memjax.settings.ranges import Count, HeadDim
from memjax.typing import Aux, Leaf, tree_dataclass

__all__ = ["CompressedSegmentsAttention", "GPT2Projector"]


@dataclasses.dataclass(frozen=True)
class GPT2Projector(Projector):
    """GPT-2's projections, all with biases and without positions. Positions are added by the model
    (`LanguageModel.num_positions`).

    Every segment begins at position 0. GPT-2 alone is an attention without memory and with the norm in front.

    Example:
      >>> from memjax.memory.transformer_xl import TransformerXLAttention
      >>> memory = TransformerXLAttention(8, 2, 4, memory_length=0, norm="pre", projector=GPT2Projector())
      >>> x, arguments = jnp.ones((1, 4, 8)), {"start_of_document": jnp.ones(1, bool)}
      >>> sorted(jax.jit(memory.init)(jax.random.key(0), x, memory.init_state(1), **arguments)["params"])
      ['key_value', 'key_value_bias', 'layer_norm', 'output', 'output_bias', 'query', 'query_bias']
    """

    def declare(self, part: nn.Module, prefixes: tuple[str, ...] = ()) -> dict[str, Array]:
        """Declares the matrices `query`, `key_value` and `output` and their biases in the attention module `part`.
        Returns these arrays by name. `prefixes` is not used.
        """
        init, dim, heads = matrix_init(part.init_stddev), part.dim, (part.num_heads, part.head_dim)
        zeros = nn.initializers.zeros
        return {
            "query": part.param("query", named(init, "embed", "heads", None), (dim, *heads)),
            "key_value": part.param("key_value", named(init, "embed", None, "heads", None), (dim, 2, *heads)),
            "output": part.param("output", named(init, "heads", None, "embed"), (*heads, dim)),
            "query_bias": part.param("query_bias", named(zeros, "heads", None), heads),
            "key_value_bias": part.param("key_value_bias", named(zeros, None, "heads", None), (2, *heads)),
            "output_bias": part.param("output_bias", named(zeros, "embed"), (dim,)),
        }


@tree_dataclass
class CompressedState:
    """Slots of compressed earlier segments, oldest first, and which of them are valid.

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
    """Returns the state with the compressed windows of a segment appended. Rows where `rows` is False, which have no
    real token, keep their slots.
    """
    new = CompressedState(
        shift_append(state.slots, jax.lax.stop_gradient(compressed)), shift_append(state.valid, valid)
    )
    return where_rows(rows, new, state)


@operation
def slopes(num_heads: int) -> Float[np.ndarray, " heads"]:
    """Returns the slope of the positional bias of each head, `2 ** (-8 h / heads)` for head h = 1 .. heads (Press et
    al. 2022, ALiBi).

    Example:
      >>> print(slopes(4))
      [0.25       0.0625     0.015625   0.00390625]
    """
    return 2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads)


class CompressedSegmentsAttention(HiddenStateAttention):
    """Attention to the segment and to a memory of compressed earlier segments, without uncompressed ones (Rae et al.
    2019, Martins et al. 2022).

    What is stored: slots that each stand for `compression_rate` tokens. When written: after each segment, which is
    compressed whole. What is differentiable: the compression learns from its attention-reconstruction loss only.
    When reset: at `start_of_document`.

    The loss compares the attention of all queries to the whole segment, also to the tokens after each query. Only the
    last query comes after everything that is compressed.

    Slots have none of GPT-2's positions. Their scores get `-slope_h * distance` (ALiBi) with the distance
    `i + 1 + compression_rate * later`, for token i of the segment and a slot after which `later` others were written.
    Inside the segment there is no such bias. A projector with positions adds its own, as if each slot were one token.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      compressed_memory_length: Number of slots.
      compression_rate: Number of tokens of a slot, a divisor of the segment's length.
      projector: Projections and positions. By default those of GPT-2.
      norm: Place of the norm: 'pre' or 'post'.
      norm_kind: Kind of norm: 'layer' or 'rms'.
      dropout: Dropout rate of the output.
      attention_dropout: Dropout rate of the attention weights.
      init_stddev: Standard deviation of the projector's initial matrices.
      dtype: Dtype of the computation.
      track_attention: Whether `Aux.arrays` has the attention weights. See `TransformerXLAttention`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> slots = {"compressed_memory_length": 4, "compression_rate": 2}
      >>> memory = CompressedSegmentsAttention(dim=8, num_heads=2, head_dim=4, **slots)
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.slots.shape
      ((1, 4, 8), (1, 4, 8))
    """

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    compressed_memory_length: int = 512
    compression_rate: int = 4
    projector: Projector = GPT2Projector()
    norm: Literal["post", "pre"] = "pre"
    norm_kind: NormKind = "layer"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_stddev: float = 0.02
    dtype: Any = jnp.float32
    track_attention: bool = False

    def setup(self) -> None:
        super().setup()
        kernel = named(matrix_init(None, in_axis=(0, 1)), None, "embed", None)
        shape = (self.compression_rate, self.dim, self.dim)
        self.compression_kernel = self.param("compression_kernel", kernel, shape)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> CompressedState:
        """Makes an empty memory, in which a document starts, with slots of `dtype`."""
        shape = (batch_size, self.compressed_memory_length)
        return CompressedState(jnp.zeros((*shape, self.dim), dtype), jnp.zeros(shape, bool))

    @property
    def _num_slots(self) -> int:
        return self.compressed_memory_length

    def _reset(self, state: CompressedState, start_of_document: Array) -> CompressedState:
        return jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)

    @nn.nowrap
    def _slots(self, state: CompressedState) -> tuple[tuple[Array, ...], Array]:
        return (state.slots,), state.valid

    def _known_keys(self, state: CompressedState, length: int) -> TrackedKeys:
        slots, rate = self._num_slots, self.compression_rate
        positions = 1 + rate * jnp.arange(slots - 1, -1, -1, dtype=jnp.int32)[None]
        return TrackedKeys.of_slots(positions, jnp.full(slots, rate), jnp.full(slots, COMPRESSED), length)

    def _figures(self, attention: AttentionWeights, mask: Array) -> Aux:
        return attention_shares(attention, mask, {"compressive/compressed_share": (0, self._num_slots)})

    def _slot_scores(self, positions: Array, batch: int) -> Array:
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
        new_keys, new_values = self._detached_keys_values(compressed.astype(self.dtype))
        loss = attention_reconstruction(
            reading.queries,
            reading.keys[:, slots:],
            reading.values[:, slots:],
            new_keys,
            new_values,
            query_mask=mask,
            old_mask=stands_for,
            new_mask=valid,
        )
        return Aux(losses={LOSSES["attention"]: loss})
