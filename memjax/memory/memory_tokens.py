"""Memory tokens: learned rows in front of the sequence, which the layers of a stack read and write by attention.

Burtsev et al. 2020, "Memory Transformer", https://arxiv.org/abs/2006.11527.
"""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from memjax.axes import named
from memjax.functional.named_operations import operation
from memjax.memory.checks import MUST_BE_GIVEN, CheckedModule
from memjax.memory.interface import StackMemory, broadcast_mask
from memjax.settings.checks import require
from memjax.settings.ranges import Count, Slots
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, WeightedSum

__all__ = [
    "EncoderLayer",
    "MemoryTokenEncoder",
]

MEMORY = "memory"
"""Name of the memory rows in `Aux.arrays`."""
COSINE = "memory_tokens/cosine"
"""Name of the mean cosine between two memory rows in `Aux.metrics`."""


class EncoderLayer(CheckedModule):
    """An encoder layer: attention of one sequence to another or itself, and a feed-forward part.

    Attributes:
      attention: Attention with the method `attend(x, source, source_mask, deterministic)`.
      feed_forward: Feed-forward part, without state.
    """

    attention: nn.Module
    feed_forward: nn.Module

    def __call__(
        self,
        x: Activations,
        source: Float[Array, "batch source dim"],
        source_mask: Bool[Array, "batch source"],
        deterministic: bool = True,
    ) -> Activations:
        """Lets the rows of `x` read `source`, and applies the feed-forward part to them."""
        x = self.attention.attend(x, source, source_mask, deterministic)
        return self.feed_forward(x, EmptyState(), deterministic=deterministic)[0]


class MemoryTokenEncoder(StackMemory):
    """Encoder with memory tokens, learned rows that its layers read and write together with the sequence.

    Burtsev et al. 2020, https://arxiv.org/abs/2006.11527.

    What is stored: nothing between segments. The memory is `num_tokens` learned rows that pass through all layers. When
    written: in every layer, by attention. What is differentiable: all of it. When reset: every segment begins with the
    learned rows.

    * 'transformer' (MemTransformer): ordinary layers over memory and sequence together.
    * 'control' (MemCtrl): the memory has its own layers, which read memory and sequence. The sequence reads both.
    * 'bottleneck' (MemBottleneck): like 'control', but the sequence reads the updated memory only, so that tokens
      exchange information through the memory alone.

    Symbols: `X^mem -> memory_tokens`, `H^mem -> Aux.arrays["memory"]`, `MH^mem, FF^mem -> memory_layers`.

    Differs from the paper or its code: memory rows have no positions (the paper does not say), and start as different
    random rows. No code of the authors is published.

    `y` is the output of the stack, with the residual and with the norm of its layers. It replaces `x` and is not added
    to it. The memory rows after the last layer are in `Aux.arrays`.

    Attributes:
      layers: Layers of the sequence (for 'transformer' of sequence and memory).
      memory_layers: Layers of the memory, one per layer of the sequence, or one that is used at every layer. Empty for
        'transformer'.
      dim: Width of the residual stream.
      num_tokens: Number of memory tokens. 0 for an ordinary encoder.
      kind: Architecture: 'transformer', 'control' or 'bottleneck'.
      init_stddev: Standard deviation of the initial memory tokens, at best that of `x`. Rows 50 times shorter become
        equal in the first layer.
      dtype: Dtype of the computation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from memjax.memory.cross_attention import CrossAttention
      >>> from memjax.models.feed_forward import FeedForwardLayer
      >>> attention = CrossAttention(dim=8, num_heads=2, head_dim=4, norm="post")
      >>> layer = EncoderLayer(attention, FeedForwardLayer(8, 16, norm="post"))
      >>> memory, x = MemoryTokenEncoder((layer,), dim=8, num_tokens=2), jnp.ones((1, 4, 8))
      >>> arguments = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **arguments)
      >>> y.shape, aux.arrays["memory"].shape
      ((1, 4, 8), (1, 2, 8))
    """

    layers: tuple[EncoderLayer, ...]
    dim: Count
    memory_layers: tuple[EncoderLayer, ...] = ()
    num_tokens: Slots = MUST_BE_GIVEN
    kind: Literal["transformer", "control", "bottleneck"] = "transformer"
    init_stddev: float = 1.0
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self._check()
        if self.num_tokens:
            init = named(nn.initializers.normal(self.init_stddev), None, "embed")
            self.memory_tokens = self.param("memory_tokens", init, (self.num_tokens, self.dim))

    def __call__(
        self,
        x: Activations,
        state: EmptyState,
        *,
        start_of_document: Rows | None = None,
        mask: Mask | None = None,
        memory_mask: Bool[Array, "batch memory"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Activations, EmptyState, Aux]:
        """Encodes a sequence. The memory rows are returned as `Aux.arrays["memory"]`, `[batch, memory, dim]`.

        Args:
          x: Embedded tokens, with their positions.
          state: Empty state.
          start_of_document: Has no effect.
          mask: bool `[batch, length]`, real tokens.
          memory_mask: bool `[batch, memory]`, memory rows that take part. None for all.
          deterministic: Whether to leave out dropout.
        """
        memory, y = self.encode(x, mask, memory_mask, deterministic)
        rows = broadcast_mask(mask, *x.shape[:2]).any(axis=1)
        return y, EmptyState(), memory_aux(memory, rows) if self.num_tokens else Aux()

    def encode(
        self,
        x: Activations,
        mask: Mask | None = None,
        memory_mask: Bool[Array, "batch memory"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "batch memory dim"], Activations]:
        """Runs all layers. Returns the memory rows, `[batch, memory, dim]`, and the sequence. Memory rows where
        `memory_mask` is False, and padding, are not read.
        """
        memory, memory_mask, mask = self._start(x, mask, memory_mask)
        for index, layer in enumerate(self.layers):
            memory, x = self._step(index, layer, memory, x, memory_mask, mask, deterministic)
        return memory, x

    def attention_maps(
        self, x: Activations, mask: Mask | None = None
    ) -> tuple[Float[Array, "batch heads rows rows"], ...]:
        """Returns one attention map for each layer, `[batch, heads, rows, rows]`, from rows to columns, memory rows
        first, then tokens. Rows sum to 1.

        Tokens of a bottleneck read the updated memory. Their weights on it are in the columns of memory, and those of
        tokens are 0.
        """
        memory, memory_mask, mask = self._start(x, mask, None)
        all_mask, maps = jnp.concatenate([memory_mask, mask], axis=1), []
        for index, layer in enumerate(self.layers):
            all_rows = jnp.concatenate([memory, x], axis=1)
            new, y = self._step(index, layer, memory, x, memory_mask, mask, deterministic=True)
            if self.kind == "transformer":
                maps.append(layer.attention.weights(all_rows, all_rows, all_mask))
            else:
                memory_map = self._memory_layer(index).attention.weights(memory, all_rows, all_mask)
                source, source_mask = (all_rows, all_mask) if self.kind == "control" else (new, memory_mask)
                token_map = layer.attention.weights(x, source, source_mask)
                unread = memory_map.shape[-1] - token_map.shape[-1]
                maps.append(jnp.concatenate([memory_map, jnp.pad(token_map, [(0, 0)] * 3 + [(0, unread)])], axis=2))
            memory, x = new, y
        return tuple(maps)

    def _start(self, x: Array, mask: Array | None, memory_mask: Array | None) -> tuple[Array, Array, Array]:
        """Returns the learned memory rows, and the masks of memory rows and tokens that take part."""
        batch, length, _ = x.shape
        memory = jnp.zeros((batch, 0, self.dim), x.dtype)
        if self.num_tokens:
            memory = jnp.broadcast_to(self.memory_tokens.astype(x.dtype)[None], (batch, self.num_tokens, self.dim))
        return memory, broadcast_mask(memory_mask, batch, self.num_tokens), broadcast_mask(mask, batch, length)

    def _step(
        self,
        index: int,
        layer: EncoderLayer,
        memory: Array,
        x: Array,
        memory_mask: Array,
        mask: Array,
        deterministic: bool,
    ) -> tuple[Array, Array]:
        """Applies one layer to memory rows and sequence."""
        all_rows = jnp.concatenate([memory, x], axis=1) if self.num_tokens else x
        all_mask = jnp.concatenate([memory_mask, mask], axis=1)
        if self.kind == "transformer":
            all_rows = layer(all_rows, all_rows, all_mask, deterministic)
            return all_rows[:, : self.num_tokens], all_rows[:, self.num_tokens :]
        new = self._memory_layer(index)(memory, all_rows, all_mask, deterministic)
        if self.kind == "control":
            return new, layer(x, all_rows, all_mask, deterministic)
        return new, layer(x, new, memory_mask, deterministic)

    def _memory_layer(self, index: int) -> EncoderLayer:
        return self.memory_layers[index % len(self.memory_layers)]

    @nn.nowrap
    def _check(self) -> None:
        minimum, num_memory_layers = int(self.kind != "transformer"), len(self.memory_layers)
        require(self.num_tokens >= minimum, "num_tokens", self.num_tokens, f"{minimum} or more for {self.kind!r}")
        counts = (0,) if self.kind == "transformer" else (1, len(self.layers))
        allowed = f"{' or '.join(map(str, counts))} for {self.kind!r} with {len(self.layers)} layers"
        require(num_memory_layers in counts, "memory_layers", num_memory_layers, allowed)


@operation
def prepend_memory(
    memory_tokens: Float[Array, "memory dim"], x: Activations, mask: Mask | None = None
) -> tuple[Float[Array, "batch rows dim"], Bool[Array, "batch rows"] | None]:
    """Returns `x` with the memory rows `memory_tokens` in front of every sequence, and the mask with True in front. The
    mask None stays None.

    Example:
      >>> prepend_memory(jnp.ones((2, 4)), jnp.zeros((1, 3, 4)))[0].shape
      (1, 5, 4)
    """
    rows = jnp.broadcast_to(memory_tokens.astype(x.dtype)[None], (x.shape[0], *memory_tokens.shape))
    if mask is not None:
        mask = jnp.pad(mask, [(0, 0), (len(memory_tokens), 0)], constant_values=True)
    return jnp.concatenate([rows, x], axis=1), mask


@operation
def mean_cosine(rows: Float[Array, "batch memory dim"]) -> Float[Array, " batch"]:
    """Computes the mean cosine between two memory rows of every batch row, `[batch]`. `rows` are two or more memory
    rows. 1 if all are equal.

    Example:
      >>> print(mean_cosine(jnp.array([[[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]])).round(3))
      [0.333]
    """
    rows, count = rows.astype(jnp.promote_types(rows.dtype, jnp.float32)), rows.shape[1]
    unit = rows / jnp.maximum(jnp.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return (jnp.square(unit.sum(axis=1)).sum(axis=-1) - count) / (count * (count - 1))


@operation
def memory_aux(memory: Float[Array, "batch memory dim"], rows: Rows) -> Aux:
    """Returns an `Aux` with the memory rows of a model as an array, and the mean cosine between two of them as a metric
    over the batch rows where `rows` is True.
    """
    metrics = {}
    if memory.shape[1] > 1:
        cosine = mean_cosine(jax.lax.stop_gradient(memory))
        metrics[COSINE] = WeightedSum(jnp.where(rows, cosine, 0).sum(), rows.sum().astype(cosine.dtype))
    return Aux(metrics=metrics, arrays={MEMORY: memory})
