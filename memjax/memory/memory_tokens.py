"""Memory tokens: learned rows before the sequence that attention reads and writes within a stack of layers.

Burtsev et al. 2020, "Memory Transformer", https://arxiv.org/abs/2006.11527.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from memjax.axes import named
from memjax.functional.scopes import operation
from memjax.memory.contract import StackMemory, broadcast_mask
from memjax.settings.relations import require
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, Sum

__all__ = ["EncoderLayer", "MemoryTokens", "resize_memory"]

KINDS = ("transformer", "control", "bottleneck")
MEMORY = "memory"
"""name of the memory rows in `Aux.arrays`"""
COSINE = "memory_tokens/cosine"
"""name of the mean cosine between two of them in `Aux.metrics`"""


class EncoderLayer(nn.Module):
    """Attention of a sequence over a sequence, and a feed-forward part.

    Attributes:
      attention: With `attend(x, source, source_mask, deterministic)`.
      feed_forward: A part without state.
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
        """Rows of `x` after they have read `source`."""
        x = self.attention.attend(x, source, source_mask, deterministic)
        return self.feed_forward(x, EmptyState(), deterministic=deterministic)[0]


class MemoryTokens(StackMemory):
    """An encoder with memory tokens (Burtsev et al. 2020, https://arxiv.org/abs/2006.11527).

    What is stored: nothing between segments; the memory is `num_tokens` learned rows that pass through all layers. When
    written: in every layer, by attention. What is differentiable: all of it. When reset: every segment begins with the
    learned rows.

    * 'transformer' (MemTransformer): ordinary layers over memory and sequence together.
    * 'control' (MemCtrl): the memory has layers of its own, which read memory and sequence; the sequence reads both.
    * 'bottleneck' (MemBottleneck): as 'control', but the sequence reads the updated memory only, so that tokens
      exchange information through it alone.

    Symbols: `X^mem -> memory_tokens`, `H^mem -> Aux.arrays["memory"]`, `MH^mem, FF^mem -> memory_layers`.

    Differs from the paper or its code: memory rows have no positions (the paper does not say), and start as different
    random rows. No code of the authors is published.

    `y` is what the stack puts out, with the residual and with the norm of its layers: in the place of `x`, not to be
    added to it. The memory rows after the last layer are in `Aux.arrays`.

    Attributes:
      layers: Those of the sequence (and of both, for 'transformer').
      memory_layers: Those of the memory, as many, or one that all share; () for 'transformer'.
      dim: Width of the stream.
      num_tokens: Memory tokens; 0 = an ordinary encoder.
      kind: 'transformer', 'control' or 'bottleneck'.
      init_stddev: Of the memory tokens, best that of `x`: rows 50 times shorter are one row after the first layer.
      dtype: Dtype of the computation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from memjax.memory.cross_attention import CrossAttention
      >>> from memjax.models.transformer import FeedForward
      >>> attention = CrossAttention(dim=8, num_heads=2, head_dim=4, norm="post")
      >>> layer = EncoderLayer(attention, FeedForward(8, 16, norm="post"))
      >>> memory, x = MemoryTokens((layer,), dim=8, num_tokens=2), jnp.ones((1, 4, 8))
      >>> given = {"start_of_document": jnp.ones(1, bool)}
      >>> init = jax.jit(memory.init_with_output)
      >>> (y, state, aux), variables = init(jax.random.key(0), x, memory.init_state(1), **given)
      >>> y.shape, aux.arrays["memory"].shape
      ((1, 4, 8), (1, 2, 8))
    """

    layers: tuple[EncoderLayer, ...]
    dim: int
    memory_layers: tuple[EncoderLayer, ...] = ()
    num_tokens: int = 0
    kind: str = "transformer"
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
        """The sequence after all layers; the memory rows are `Aux.arrays["memory"]`, `[batch, memory, dim]`.

        Args:
          x: Embedded tokens, with their positions.
          state: Empty.
          start_of_document: Has no effect.
          mask: Real tokens.
          memory_mask: Memory rows that take part; None = all.
          deterministic: Without dropout.
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
        """Memory rows and sequence after all layers."""
        memory, memory_mask, mask = self._start(x, mask, memory_mask)
        for index, layer in enumerate(self.layers):
            memory, x = self._step(index, layer, memory, x, memory_mask, mask, deterministic)
        return memory, x

    def attention_maps(
        self, x: Activations, mask: Mask | None = None
    ) -> tuple[Float[Array, "batch heads rows rows"], ...]:
        """For every layer, what each row reads of each column: memory rows first, then tokens; every row sums to 1.

        Tokens of a bottleneck read the updated memory: their columns of memory mean that, and those of tokens are 0.
        """
        memory, memory_mask, mask = self._start(x, mask, None)
        both_mask, maps = jnp.concatenate([memory_mask, mask], axis=1), []
        for index, layer in enumerate(self.layers):
            both = jnp.concatenate([memory, x], axis=1)
            new, y = self._step(index, layer, memory, x, memory_mask, mask, deterministic=True)
            if self.kind == "transformer":
                maps.append(layer.attention.weights(both, both, both_mask))
            else:
                own = self._memory_layer(index).attention.weights(memory, both, both_mask)
                source, seen = (both, both_mask) if self.kind == "control" else (new, memory_mask)
                others = layer.attention.weights(x, source, seen)
                unread = own.shape[-1] - others.shape[-1]
                maps.append(jnp.concatenate([own, jnp.pad(others, [(0, 0)] * 3 + [(0, unread)])], axis=2))
            memory, x = new, y
        return tuple(maps)

    def _start(self, x: Array, mask: Array | None, memory_mask: Array | None) -> tuple[Array, Array, Array]:
        """The learned rows, and which rows and tokens take part."""
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
        """Memory rows and sequence after one layer."""
        both = jnp.concatenate([memory, x], axis=1) if self.num_tokens else x
        both_mask = jnp.concatenate([memory_mask, mask], axis=1)
        if self.kind == "transformer":
            both = layer(both, both, both_mask, deterministic)
            return both[:, : self.num_tokens], both[:, self.num_tokens :]
        new = self._memory_layer(index)(memory, both, both_mask, deterministic)
        if self.kind == "control":
            return new, layer(x, both, both_mask, deterministic)
        return new, layer(x, new, memory_mask, deterministic)

    def _memory_layer(self, index: int) -> EncoderLayer:
        return self.memory_layers[index % len(self.memory_layers)]

    @nn.nowrap
    def _check(self) -> None:
        require(self.kind in KINDS, "kind", self.kind, ", ".join(KINDS))
        least, given = int(self.kind != "transformer"), len(self.memory_layers)
        require(self.num_tokens >= least, "num_tokens", self.num_tokens, f"{least} or more for {self.kind!r}")
        counts = (0,) if self.kind == "transformer" else (1, len(self.layers))
        allowed = f"{' or '.join(map(str, counts))} for {self.kind!r} with {len(self.layers)} layers"
        require(given in counts, "memory_layers", given, allowed)


@operation
def prepend_memory(
    memory_tokens: Float[Array, "memory dim"], x: Activations, mask: Mask | None = None
) -> tuple[Float[Array, "batch rows dim"], Bool[Array, "batch rows"] | None]:
    """The memory rows and then the sequence, and which of both are real; no mask stays none.

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
    """The mean cosine between two of the rows, which are two or more: 1 where all are one.

    Example:
      >>> print(mean_cosine(jnp.array([[[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]])).round(3))
      [0.333]
    """
    rows, count = rows.astype(jnp.promote_types(rows.dtype, jnp.float32)), rows.shape[1]
    unit = rows / jnp.maximum(jnp.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return (jnp.square(unit.sum(axis=1)).sum(axis=-1) - count) / (count * (count - 1))


@operation
def memory_aux(memory: Float[Array, "batch memory dim"], rows: Rows) -> Aux:
    """What models report of their memory rows: these, and the mean cosine between two, over `rows` with real tokens."""
    metrics = {}
    if memory.shape[1] > 1:
        cosine = mean_cosine(jax.lax.stop_gradient(memory))
        metrics[COSINE] = Sum(jnp.where(rows, cosine, 0).sum(), rows.sum().astype(cosine.dtype))
    return Aux(metrics=metrics, arrays={MEMORY: memory})


def resize_memory(
    params: Mapping[str, Any], num_tokens: int, key: PRNGKeyArray, *, stddev: float | None = None
) -> dict[str, Any]:
    """Parameters with another number of memory tokens: the first ones stay, new ones are drawn.

    Fewer or more tokens than in training hurt until the model is trained on (Burtsev et al. 2020).

    Args:
      params: Of a `MemoryTokens`, or of a model that holds one.
      num_tokens: Memory tokens afterwards.
      key: Of new tokens.
      stddev: Of new tokens; None = that of those there are.

    Raises:
      ValueError: No memory tokens in `params`, or fewer than 1 wanted.

    Example:
      >>> resize_memory({"memory_tokens": jnp.ones((2, 4))}, 3, jax.random.key(0))["memory_tokens"].shape
      (3, 4)
    """
    require(num_tokens >= 1, "num_tokens", num_tokens, "1 or more")
    found = 0

    def resize(tree: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal found
        new = {}
        for name, value in tree.items():
            if name == "memory_tokens":
                found += 1
                scale = jnp.std(value) if stddev is None else stddev
                drawn = scale * jax.random.normal(
                    key, (max(num_tokens - value.shape[0], 0), value.shape[1]), value.dtype
                )
                value = jnp.concatenate([value[:num_tokens], drawn])
            new[name] = resize(value) if isinstance(value, Mapping) else value
        return new

    resized = resize(params)
    if not found:
        raise ValueError("params: given without memory_tokens, allowed: those of a model with memory tokens")
    return resized
