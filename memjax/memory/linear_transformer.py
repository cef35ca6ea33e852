"""Linear Transformer, whose attention reads sums over all past tokens, and the base of all linear attentions.

Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
https://arxiv.org/abs/2006.16236.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import named
from memjax.functional.linear_attention import (
    LinearState,
    Normalizer,
    causal_linear_attention,
    effective_rank,
    elu_features,
    init_linear_state,
    read_linear_state,
    reset_linear_state,
    summarize_source,
)
from memjax.memory.interface import (
    CrossMemory,
    DecodeState,
    LayerMemory,
    broadcast_mask,
    token_decode_state,
    where_rows,
)
from memjax.memory.layer_parts import NormKind, Residual, project, project_biased, xavier_init
from memjax.settings.ranges import Count, HeadDim
from memjax.typing import Activations, Aux, EmptyState, Leaf, Mask, Rows, WeightedSum, tree_dataclass

__all__ = ["LinearCrossAttention", "LinearCrossState", "LinearTransformerAttention"]


class LinearTransformerAttention(Residual, LayerMemory):
    """Attention of a Linear Transformer layer, which reads sums over all past tokens instead of their keys and values.

    Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236.

    What is stored: the sums of `phi(k) v^T` and `phi(k)` over all tokens of the document, in at least float32. The
    state has a fixed size. When written: every token. What is differentiable: all of it, from segment to segment. When
    reset: at `start_of_document`.

    Symbols: `S_i -> state.products`, `Z_i -> state.normalizer`, `phi(x) = elu(x) + 1 -> elu_features`,
    `W_Q, W_K, W_V -> query, key, value`.

    Differs from the paper or its code: `elu(x) + 1` is evaluated so that it stays above 0 in bfloat16.

    `Aux.metrics` has `linear_state/effective_rank`: the number of directions in which the sums of a head lie after the
    segment, as a share of all directions (`memjax.functional.effective_rank`).

    Other linear attentions are subclasses that override `_maps`, `_queries`, `_keys_values` and `_log_decay`.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      dim: Width of the residual stream.
      num_heads: Number of attention heads.
      head_dim: Width of an attention head. 0 for `dim / num_heads`.
      chunk_length: Number of tokens that are multiplied with each other at once. Longer segments carry the sums from
        chunk to chunk.
      bias: Whether all projections have biases.
      norm: Place of the norm: 'pre' or 'post'.
      norm_kind: Kind of norm: 'layer' or 'rms'.
      dropout: Dropout rate of the output.
      init_gain: Gain of Xavier's uniform initial matrices. None for matrices scaled by fan-in.
      dtype: Dtype of the computation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory, x = LinearTransformerAttention(dim=8, num_heads=2, head_dim=4), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.products.shape
      ((1, 4, 8), (1, 2, 4, 4))
    """

    normalizer: ClassVar[Normalizer] = "add"
    eps: ClassVar[float] = 1e-6
    figure: ClassVar[str] = "linear_state/effective_rank"

    dim: Count
    num_heads: Count
    head_dim: HeadDim = 0
    chunk_length: int = 128
    bias: bool = True
    norm: Literal["post", "pre"] = "pre"
    norm_kind: NormKind = "layer"
    dropout: float = 0.0
    init_gain: float | None = None
    dtype: Any = jnp.float32

    def setup(self) -> None:
        super().setup()
        heads = (self.num_heads, self.head_dim)
        self.query, self.query_bias = self._projection("query")
        self.key, self.key_bias = self._projection("key")
        self.value, self.value_bias = self._projection("value")
        output = named(self._matrix((0, 1)), "heads", None, "embed")
        self.output = self.param("output", output, (*heads, self.dim))
        if self.bias:
            self.output_bias = self.param("output_bias", named(nn.initializers.zeros, "embed"), (self.dim,))

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LinearState:
        """Makes an empty memory, in which a document starts, with sums of 0 in at least float32."""
        return init_linear_state(batch_size, *self._state_sizes, normalizer=self.normalizer, dtype=dtype)

    @nn.nowrap
    def init_decode_state(self, state: LinearState, segment_length: int, batch_size: int) -> DecodeState:
        """Returns the decode state after `state`. Every token is written at once, so there is no buffer, and
        `segment_length` is not used.
        """
        return token_decode_state(state, batch_size)

    def __call__(
        self,
        x: Activations,
        state: LinearState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, LinearState, Aux]:
        """Adds every token to the sums and reads them."""
        mask = broadcast_mask(mask, *x.shape[:2])
        start = jnp.ones_like(start_of_document) if self._renews(deterministic) else start_of_document
        z, new = self._read_write(x, reset_linear_state(state, start), mask, self.chunk_length, deterministic)
        new = where_rows(mask.any(axis=1), new, state)
        return self._finish(x, z, deterministic), new, Aux(metrics={self.figure: self._rank(new, mask)})

    @property
    def decodes_segments(self) -> bool:
        """True: every token is written at once."""
        return True

    def decode(
        self, x: Float[Array, "batch 1 dim"], decode_state: DecodeState, *, active: Rows
    ) -> tuple[Float[Array, "batch 1 dim"], DecodeState]:
        """Reads and writes one token of every active row. Returns the new residual stream and the decode state."""
        old = decode_state.memory
        z, new = self._read_write(x, old, active[:, None], 1, deterministic=True)
        position = decode_state.position + active.astype(jnp.int32)
        return self._finish(x, z, True), DecodeState(where_rows(active, new, old), EmptyState(), position)

    def _read_write(
        self, x: Array, state: LinearState, mask: Array, chunk_length: int, deterministic: bool
    ) -> tuple[Array, LinearState]:
        y, maps = self.apply_norm(x), self._maps(deterministic)
        keys, values = self._keys_values(y, maps)
        decay = self._log_decay(y)
        if decay is not None:  # an average: the old sums have the weight g, the new token 1 - g
            keys = keys * (-jnp.expm1(decay)).astype(keys.dtype)[..., None]
        return causal_linear_attention(
            self._queries(y, maps, deterministic),
            keys,
            values,
            state,
            mask=mask,
            log_decay=decay,
            normalizer=self.normalizer,
            eps=self.eps,
            chunk_length=chunk_length,
        )

    # Methods that linear attentions with other features override

    @property
    def _state_sizes(self) -> tuple[int, int, int]:
        """Returns the number of heads, the number of features of a head, and the width of a value."""
        return self.num_heads, self.head_dim, self.head_dim

    def _maps(self, deterministic: bool) -> Any:
        """Returns what the feature maps of queries and keys share in one call, such as random directions."""
        return None

    @nn.nowrap
    def _renews(self, deterministic: bool) -> bool:
        """Whether the feature maps of this call are new, so that sums of earlier features must be dropped."""
        return False

    def _queries(self, y: Array, maps: Any, deterministic: bool) -> Array:
        """Computes the features of queries, `[batch, length, heads, features]`."""
        return elu_features(project_biased(y, self.query, self.query_bias))

    def _keys_values(self, y: Array, maps: Any) -> tuple[Array, Array]:
        """Computes the features of keys, `[batch, length, heads, features]`, and the values."""
        return elu_features(project_biased(y, self.key, self.key_bias)), project_biased(y, self.value, self.value_bias)

    def _log_decay(self, y: Array) -> Array | None:
        """Returns the log share of the sums that each token keeps, `[batch, length, heads]`. None for all."""
        return None

    def _combine(self, z: Array) -> Array:
        """Merges the heads: from `[batch, length, heads, value_dim]` to `[batch, length, dim]`."""
        y = project(z, self.output, axes=2)
        return y + self.output_bias.astype(y.dtype)[None, None] if self.bias else y

    # Parts

    @nn.nowrap
    def _rank(self, state: LinearState, mask: Array) -> WeightedSum:
        """Sums `effective_rank` over the rows that have read a token."""
        rank, read = effective_rank(jax.lax.stop_gradient(state.products)), mask.any(axis=1)
        return WeightedSum(jnp.where(read, rank, 0).sum(), read.sum().astype(rank.dtype))

    def _finish(self, x: Array, z: Array, deterministic: bool) -> Array:
        return self.add_residual(x, self._combine(z), deterministic)

    def _projection(self, name: str, width: int = 0) -> tuple[Array, Array | None]:
        """Makes a matrix from the residual stream to all heads, and its bias."""
        shape = (self.num_heads, width or self.head_dim)
        matrix = self.param(name, named(self._matrix(0, (1, 2)), "embed", "heads", None), (self.dim, *shape))
        if not self.bias:
            return matrix, None
        return matrix, self.param(f"{name}_bias", named(nn.initializers.zeros, "heads", None), shape)

    @nn.nowrap
    def _matrix(self, in_axis: int | tuple[int, ...] = 0, out_axis: int | tuple[int, ...] = -1) -> Callable[..., Array]:
        return xavier_init(self.init_gain, in_axis, out_axis)


@tree_dataclass
class LinearCrossState:
    """Sums over a source by a linear attention, of the same size for every source, and which rows have read their
    source.

    Attributes:
      source: Sums over the source's tokens.
      ready: bool `[batch]`, rows that have read their source.
    """

    source: LinearState
    ready: Leaf


class LinearCrossAttention(CrossMemory):
    """Linear attention to a source: cross-attention with a state of fixed size, computed once per source.

    What is stored: the sums over the source. When written: by the first segment of a document. What is differentiable:
    all of it, back to the source. When reset: at `start_of_document`, where the row reads its source.

    `y` is the new residual stream, with the residual and with the norm: `x + read(norm(x))` for `norm="pre"`, `norm(x +
    read(x))` for `norm="post"`.

    Attributes:
      attention: Linear attention. Its norm is applied to the queries and not to the source. Sums of a gated one do not
        decay.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = LinearCrossAttention(LinearTransformerAttention(dim=8, num_heads=2, head_dim=4))
      >>> x = jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool), "source": jnp.ones((1, 3, 8))}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, state.source.products.shape
      ((1, 4, 8), (1, 2, 4, 4))
    """

    attention: LinearTransformerAttention

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LinearCrossState:
        """Makes the state of rows that have read no source, with sums of 0 in at least float32."""
        return LinearCrossState(self.attention.init_state(batch_size, dtype), jnp.zeros((batch_size,), bool))

    def _maps(self, deterministic: bool) -> Any:
        return self.attention._maps(deterministic)

    @nn.nowrap
    def _renews(self, deterministic: bool) -> bool:
        return self.attention._renews(deterministic)

    def _read_source(
        self, source: Array, source_mask: Array | None, state: LinearCrossState | None, maps: Any
    ) -> LinearCrossState:
        keys, values = self.attention._keys_values(source, maps)
        sums = summarize_source(keys, values, mask=source_mask, normalizer=self.attention.normalizer)
        if state is not None:
            sums = jax.tree.map(lambda new, old: new.astype(old.dtype), sums, state.source)
        return LinearCrossState(sums, jnp.ones(source.shape[0], bool))

    def _read(self, x: Array, state: LinearCrossState, maps: Any, deterministic: bool) -> Array:
        part = self.attention
        queries = part._queries(part.apply_norm(x), maps, deterministic)
        z = read_linear_state(queries, state.source, normalizer=part.normalizer, eps=part.eps)
        return part._finish(x, z, deterministic)
