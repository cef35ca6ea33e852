"""Bidirectional self-attention of BERT's layers, in which every token attends to every other token of its text."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from memjax.axes import named
from memjax.functional.attention import attention_with_weights
from memjax.memory.adapters import AdaptableMatrix
from memjax.memory.interface import LayerMemory
from memjax.memory.layer_parts import Residual, matrix_init, project, tracked_weights, weight_dropout
from memjax.settings.ranges import Count, HeadDim
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = ["BidirectionalAttention"]


class BidirectionalAttention(Residual, LayerMemory):
    """Self-attention of every token over its whole segment, without memory, with residual and post-norm (Devlin et al.
    2019, Vaswani et al. 2017).

    It remembers nothing: a segment is a text. It has the signature of a memory in a layer, so that it can be used in a
    `Layer` with any feed-forward part. It cannot decode token by token.

    `y` is the new residual stream, with the residual and with the norm: `norm(x + read(x))`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      dropout: Dropout rate of the output.
      attention_dropout: Dropout rate of the attention weights.
      init_stddev: Standard deviation of initial matrices.
      dtype: Dtype of the computation.
      track_attention: Whether `Aux.arrays` has the attention weights, `[batch, heads, length, length]`. See
        `TransformerXLAttention`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = BidirectionalAttention(dim=8, num_heads=2, head_dim=4), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape
      (1, 4, 8)
    """

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_stddev: float = 0.02
    dtype: Any = jnp.float32
    track_attention: bool = False

    norm = "post"
    norm_kind = "layer_exact"

    def setup(self) -> None:
        super().setup()
        init, zeros = matrix_init(self.init_stddev), nn.initializers.zeros
        heads = (self.num_heads, self.head_dim)
        inner = named(init, "embed", None, "heads", None)
        self.query_key_value = self.param("query_key_value", inner, (self.dim, 3, *heads))
        # One axis, like every other bias: optimisers treat arrays with two or more axes as matrices.
        self.biases = self.param("biases", named(zeros, "flat_heads"), (3 * self.num_heads * self.head_dim,))
        self.output = self.param("output", named(init, "heads", None, "embed"), (*heads, self.dim))
        self.output_bias = self.param("output_bias", named(zeros, "embed"), (self.dim,))

    @nn.nowrap
    def adaptable_matrices(self) -> tuple[AdaptableMatrix, ...]:
        """Returns the parameters whose matrices can have adapters: those of query, key and value, and of the output."""
        embed, heads = ((self.dim, "embed"),), ((self.num_heads, "heads"), (self.head_dim, None))
        inner = AdaptableMatrix("query_key_value", ("query", "key", "value"), embed, heads)
        return inner, AdaptableMatrix("output", ("output",), heads, embed)

    @nn.nowrap
    def with_attention_tracking(self) -> Any:
        """Returns a copy of this module that also puts its attention weights into `Aux.arrays`."""
        return self.clone(track_attention=True)

    def __call__(
        self,
        x: Activations,
        state: EmptyState,
        *,
        start_of_document: Rows | None = None,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, EmptyState, Aux]:
        """Attends to the whole text at once. `mask` is True on real tokens."""
        x = x.astype(self.dtype)
        matrices = {"query_key_value": self.query_key_value, "output": self.output}
        matrices = self.adapt(matrices, deterministic)
        inner = project(x, matrices["query_key_value"])  # [batch, length, 3, heads, head_dim]
        inner += self.biases.reshape(1, 1, *inner.shape[2:]).astype(inner.dtype)
        visible = None if mask is None else jnp.broadcast_to(mask[:, None, None], (x.shape[0], 1, *[x.shape[1]] * 2))
        queries, keys, values = (inner[:, :, index] for index in range(3))
        dropout = weight_dropout(self, deterministic)
        y, weights = attention_with_weights(queries, keys, values, mask=visible, **dropout)
        y = project(y, matrices["output"], axes=2) + self.output_bias.reshape(1, 1, -1).astype(x.dtype)
        return self.add_residual(x, y, deterministic), EmptyState(), tracked_weights(self, weights, visible)
