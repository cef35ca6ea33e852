"""Softmax attention over a source. The state holds the keys and values of the source, so it is as large as the source.

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from memjax.axes import axes_of, named
from memjax.functional.attention import attention, attention_with_weights
from memjax.memory.interface import CrossMemory, broadcast_mask
from memjax.memory.layer_parts import NormKind, Residual, matrix_init, project, project_biased, weight_dropout
from memjax.settings.checks import require
from memjax.settings.ranges import Count, HeadDim
from memjax.typing import Activations, Leaf, tree_dataclass

__all__ = ["CrossAttention", "CrossAttentionState"]


@tree_dataclass
class CrossAttentionState:
    """Keys, values and mask of a source that cross-attention has read, and which rows have read theirs.

    Attributes:
      keys: `[batch, source, heads, head_dim]`, keys of the source's tokens.
      values: `[batch, source, heads, head_dim]`, values of the source's tokens.
      mask: bool `[batch, source]`, real tokens of the source.
      ready: bool `[batch]`, rows that have read their source.
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    mask: Leaf
    ready: Leaf


class CrossAttention(Residual, CrossMemory):
    """Softmax attention of a decoder to a source, whose keys and values are the state. Its method `attend` is the
    attention of an encoder, without a state.

    What is stored: keys and values of the source. When written: by the first segment of a document. What is
    differentiable: all of it. When reset: at `start_of_document`, where the row reads its source.

    Differs from the paper or its code: no biases in the projections (`bias` adds them).

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream and of the source.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      source_length: Number of tokens that a state holds. Shorter sources are padded. 0 if states are only made by
        `read_source`, each as long as its source.
      bias: Whether all projections have biases.
      norm: Place of the norm of the queries, 'pre' or 'post'. The source is not normed, except by
        `attend`.
      norm_kind: Kind of norm: 'layer' or 'rms'.
      dropout: Dropout rate of the output.
      attention_dropout: Dropout rate of the attention weights.
      dtype: Dtype of the computation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = CrossAttention(dim=8, num_heads=2, head_dim=4, source_length=3), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool), "source": jnp.ones((1, 3, 8))}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.keys.shape
      ((1, 4, 8), (1, 3, 2, 4))
    """

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    source_length: int = 0
    bias: bool = False
    norm: Literal["post", "pre"] = "pre"
    norm_kind: NormKind = "layer"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self) -> None:
        super().setup()
        heads, zeros = (self.num_heads, self.head_dim), nn.initializers.zeros
        inner = named(matrix_init(None, out_axis=(1, 2)), "embed", "heads", None)
        bias = lambda name: self.param(f"{name}_bias", named(zeros, "heads", None), heads) if self.bias else None
        self.query, self.query_bias = self.param("query", inner, (self.dim, *heads)), bias("query")
        self.key, self.key_bias = self.param("key", inner, (self.dim, *heads)), bias("key")
        self.value, self.value_bias = self.param("value", inner, (self.dim, *heads)), bias("value")
        outer = named(matrix_init(None, (0, 1)), "heads", None, "embed")
        self.output = self.param("output", outer, (*heads, self.dim))
        self.output_bias = self.param("output_bias", named(zeros, "embed"), (self.dim,)) if self.bias else None

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> CrossAttentionState:
        """Makes the state of rows that have read no source, with room for keys and values of `source_length` tokens in
        `dtype`.
        """
        require(self.source_length >= 1, "source_length", self.source_length, "1 or more tokens for a state")
        shape = (batch_size, self.source_length, self.num_heads, self.head_dim)
        mask = jnp.zeros(shape[:2], bool)
        return CrossAttentionState(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), mask, jnp.zeros(shape[0], bool))

    def _read_source(
        self, source: Array, source_mask: Array | None, state: CrossAttentionState | None = None, maps: Any = None
    ) -> CrossAttentionState:
        batch, length, _ = source.shape
        total = self.source_length or length
        if length > total:
            raise ValueError(f"source: given {length} tokens, allowed: up to source_length = {total}")
        pad = lambda leaf: jnp.pad(leaf, [(0, 0), (0, total - length)] + [(0, 0)] * (leaf.ndim - 2))
        keys = pad(project_biased(source, self.key, self.key_bias))
        values = pad(project_biased(source, self.value, self.value_bias))
        if state is not None:
            keys, values = keys.astype(state.keys.dtype), values.astype(state.values.dtype)
        mask = pad(broadcast_mask(source_mask, batch, length))
        return CrossAttentionState(keys, values, mask, jnp.ones((batch,), bool))

    def attend(
        self,
        x: Activations,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"] | None,
        deterministic: bool = True,
    ) -> Activations:
        """Lets every position of `x` attend to all real tokens of `source`, as in an encoder. Both are normed before,
        unless `norm` is 'post'. Returns the new residual stream.
        """
        same = source is x
        y = self.apply_norm(x)
        source_state = self._read_source(y if same else self.apply_norm(source), source_mask)
        return self._read(x, source_state, None, deterministic, y)

    def weights(
        self, x: Activations, source: Float[Array, "batch source dim"], source_mask: Bool[Array, "batch source"] | None
    ) -> Float[Array, "batch heads length source"]:
        """Returns the attention weights of `attend`, `[batch, heads, length, source]`, without dropout."""
        source_state = self._read_source(self.apply_norm(source), source_mask)
        queries = project_biased(self.apply_norm(x), self.query, self.query_bias)
        return attention_with_weights(
            queries, source_state.keys, source_state.values, mask=self._visible(queries, source_state)
        )[1]

    def _read(
        self, x: Array, state: CrossAttentionState, maps: Any, deterministic: bool, normed: Array | None = None
    ) -> Array:
        """Returns the residual stream after attention to the source of `state`. `normed` may be given as `norm(x)`."""
        queries = project_biased(self.apply_norm(x) if normed is None else normed, self.query, self.query_bias)
        keys, values = state.keys.astype(queries.dtype), state.values.astype(queries.dtype)
        z = attention(queries, keys, values, mask=self._visible(queries, state), **weight_dropout(self, deterministic))
        y = project(z, self.output, axes=2)
        y = y if self.output_bias is None else y + self.output_bias.astype(y.dtype)[None, None]
        return self.add_residual(x, y, deterministic)

    def _visible(self, queries: Array, state: CrossAttentionState) -> Array:
        """Broadcasts the mask of the source to `[batch, 1, length, source]`."""
        batch, source = state.mask.shape
        return jnp.broadcast_to(state.mask[:, None, None], (batch, 1, queries.shape[1], source))
