"""Compression of old memories, and the losses that train it (Rae et al. 2019, https://arxiv.org/abs/1911.05507).

A compression maps `rate` old slots to one, `[batch, length, dim]` to `[batch, length // rate, dim]`, oldest first.
Where `rate` does not divide the length, the oldest remainder is dropped.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from memjax.functional.attention import attention
from memjax.functional.scopes import operation
from memjax.typing import Sum

__all__ = [
    "attention_reconstruction",
    "auto_encoding",
    "dilated_convolutions",
    "max_pool",
    "mean_pool",
    "most_used",
    "strided_convolution",
    "transposed_convolution",
    "window_validity",
]


@operation
def max_pool(x: Float[Array, "batch length dim"], rate: int) -> Float[Array, "batch slots dim"]:
    """The largest entry of each feature over windows of `rate` slots.

    Args:
      x: `[batch, length, dim]`, oldest first.
      rate: Slots of a window.

    Returns:
      `[batch, length // rate, dim]` in the dtype of `x`.

    Raises:
      ValueError: `rate` is below 1 or above the length (of all compressions).

    Example:
      >>> import jax.numpy as jnp
      >>> print(max_pool(jnp.array([[[9.0], [1.0], [2.0], [4.0], [3.0]]]), 2)[0, :, 0])
      [2. 4.]
    """
    return jnp.max(_windows(x, rate), axis=2)


@operation
def mean_pool(x: Float[Array, "batch length dim"], rate: int) -> Float[Array, "batch slots dim"]:
    """The mean of each feature over windows of `rate` slots, summed in at least float32.

    Args:
      x: `[batch, length, dim]`, oldest first.
      rate: Slots of a window.

    Returns:
      `[batch, length // rate, dim]` in the dtype of `x`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(mean_pool(jnp.array([[[1.0], [2.0], [4.0], [3.0]]]), 2)[0, :, 0])
      [1.5 3.5]
    """
    windows = _windows(x, rate)
    return jnp.mean(windows.astype(_wide(x)), axis=2).astype(x.dtype)


@operation
def strided_convolution(
    x: Float[Array, "batch length dim"], kernel: Float[Array, "rate dim out"]
) -> Float[Array, "batch slots out"]:
    """A convolution whose width and stride are the rate, without padding and, as published, without bias.

    Args:
      x: `[batch, length, dim]`, oldest first.
      kernel: `[rate, dim, out]`, the matrix of the oldest slot of a window first.

    Returns:
      `[batch, length // rate, out]` in the dtype of `x`.

    Example:
      >>> import jax.numpy as jnp
      >>> kernel = jnp.array([10.0, 1.0]).reshape(2, 1, 1)
      >>> print(strided_convolution(jnp.array([[[1.0], [2.0], [3.0], [4.0]]]), kernel)[0, :, 0])
      [12. 34.]
    """
    rate, dim, out = kernel.shape
    windows = _windows(x, rate)
    # One product of two plain matrices: windows do not overlap.
    return _matmul(windows.reshape(*windows.shape[:2], rate * dim), kernel.reshape(rate * dim, out))


@operation
def dilated_convolutions(
    x: Float[Array, "batch length dim"], kernels: Float[Array, "layers 2 dim dim"], dilations: tuple[int, ...]
) -> Float[Array, "batch length dim"]:
    """Causal convolutions of width 2, each followed by ReLU: `y_t = relu(x_{t-r} K_0 + x_t K_1)` for each dilation r.

    What stands before the first slot counts as 0, so that the length stays (the published code lets it shrink by the
    sum of the dilations); `strided_convolution` then compresses.

    Args:
      x: `[batch, length, dim]`, oldest first.
      kernels: `[layers, 2, dim, dim]`, the matrix of the older slot first.
      dilations: Slots back, one number for each layer.

    Returns:
      As `x`.

    Raises:
      ValueError: Not one dilation for each layer.

    Example:
      >>> import jax.numpy as jnp
      >>> kernels = jnp.array([10.0, 1.0]).reshape(1, 2, 1, 1)
      >>> print(dilated_convolutions(jnp.array([[[1.0], [2.0], [3.0]]]), kernels, (2,))[0, :, 0])
      [ 1.  2. 13.]
    """
    if len(dilations) != kernels.shape[0]:
        raise ValueError(f"dilations: {dilations} given, one for each of the {kernels.shape[0]} layers allowed")
    length = x.shape[1]
    for kernel, dilation in zip(kernels, dilations, strict=True):
        earlier = jnp.pad(x, [(0, 0), (dilation, 0), (0, 0)])[:, :length]
        x = jax.nn.relu(_matmul(earlier, kernel[0]) + _matmul(x, kernel[1]))
    return x


@operation
def most_used(
    x: Float[Array, "batch length dim"],
    usage: Float[Array, "batch length"],
    valid: Bool[Array, "batch length"],
    rate: int,
) -> tuple[Float[Array, "batch slots dim"], Bool[Array, "batch slots"]]:
    """Keeps the `length // rate` slots of largest usage, in their order.

    Args:
      x: `[batch, length, dim]`, oldest first.
      usage: `[batch, length]`, 0 or more: the attention that a slot received. Of equal ones the older slot is kept.
      valid: Slots that hold something; the others are kept last.
      rate: Slots for each one that is kept.

    Returns:
      The kept slots, and which of them are valid. The choice has no gradient.

    Example:
      >>> import jax.numpy as jnp
      >>> x, usage = jnp.array([[[1.0], [2.0], [3.0], [4.0]]]), jnp.array([[0.9, 0.1, 0.2, 0.8]])
      >>> kept, valid = most_used(x, usage, jnp.ones((1, 4), bool), 2)
      >>> print(kept[0, :, 0], valid[0])
      [1. 4.] [ True  True]
    """
    kept = _windows(x, rate).shape[1]
    # Whole numbers below any usage for slots that hold nothing: their contents must not decide what is kept.
    scores = lax.stop_gradient(jnp.where(valid, usage, -1))
    places = jnp.sort(lax.top_k(scores, kept)[1], axis=1)
    return jnp.take_along_axis(x, places[..., None], axis=1), jnp.take_along_axis(valid, places, axis=1)


@operation
def window_validity(valid: Bool[Array, "batch length"], rate: int) -> Bool[Array, "batch slots"]:
    """Which windows hold valid slots only: one that reaches into another document or an empty slot does not count.

    Args:
      valid: bool `[batch, length]`, oldest first.
      rate: Slots of a window.

    Returns:
      bool `[batch, length // rate]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(window_validity(jnp.array([[False, True, True, True]]), 2))
      [[False  True]]
    """
    return jnp.all(_windows(valid, rate), axis=2)


@operation
def transposed_convolution(
    x: Float[Array, "batch slots dim"], kernel: Float[Array, "rate dim out"]
) -> Float[Array, "batch length out"]:
    """The decoder of the auto-encoding loss: each slot becomes `rate` slots, `y_{s rate + r} = x_s K_r`.

    Args:
      x: `[batch, slots, dim]`.
      kernel: `[rate, dim, out]`.

    Returns:
      `[batch, slots * rate, out]` in the dtype of `x`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(transposed_convolution(jnp.ones((1, 2, 1)), jnp.array([3.0, 4.0]).reshape(2, 1, 1))[0, :, 0])
      [3. 4. 3. 4.]
    """
    (rate, dim, out), (batch, slots, _) = kernel.shape, x.shape
    flat = _matmul(x, jnp.swapaxes(kernel, 0, 1).reshape(dim, rate * out))  # [b, s, rate * out]
    return flat.reshape(batch, slots * rate, out)


@operation
def attention_reconstruction(
    queries: Float[Array, "batch length heads head_dim"],
    old_keys: Float[Array, "batch old heads head_dim"],
    old_values: Float[Array, "batch old heads head_dim"],
    new_keys: Float[Array, "batch new heads head_dim"],
    new_values: Float[Array, "batch new heads head_dim"],
    *,
    query_mask: Bool[Array, "batch length"],
    old_mask: Bool[Array, "batch old"],
    new_mask: Bool[Array, "batch new"],
    reduction: str = "mean_square",
) -> Sum:
    """How far attention to compressed slots is from attention to the slots that were compressed.

    `|| attn(h, old) - attn(h, f_c(old)) ||` by content alone: no positions, no content bias, no causal mask, no output
    projection (algorithm 2 of the paper). Queries and the old keys and values have no gradient; for the new ones
    to reach the compression only, the caller projects with matrices of stopped gradient.

    Args:
      queries: Of the segment, `[batch, length, heads, head_dim]`, not scaled (they are scaled by `head_dim ** -0.5`).
      old_keys: Of the slots that leave the memory.
      old_values: As `old_keys`.
      new_keys: Of what they are compressed to.
      new_values: As `new_keys`.
      query_mask: Real tokens of the segment.
      old_mask: Old slots to attend to: those that a valid new slot stands for.
      new_mask: Valid new slots; a row without any is left out.
      reduction: 'mean_square' over features, averaged over queries (as the authors' code), or 'norm', the L2 norm over
        queries, heads and features of a row (as the paper writes it), averaged over rows.

    Returns:
      The sum over queries (rows for 'norm') and how many there were, in at least float32.

    Raises:
      ValueError: Another reduction.

    Example:
      >>> import jax.numpy as jnp
      >>> x, some = jnp.ones((1, 2, 1, 4)), jnp.ones((1, 2), bool)
      >>> masks = {"query_mask": some, "old_mask": some, "new_mask": some}
      >>> print(attention_reconstruction(x, x, x, x, 3 * x, **masks).mean())
      4.0
    """
    if reduction not in ("mean_square", "norm"):
        raise ValueError(f"reduction: {reduction!r} given, 'mean_square' or 'norm' allowed")
    queries, old_keys, old_values = lax.stop_gradient((queries, old_keys, old_values))
    target = attention(queries, old_keys, old_values, mask=_for_each_query(old_mask, queries))
    reconstructed = attention(queries, new_keys, new_values, mask=_for_each_query(new_mask, queries))
    dtype = _wide(queries)
    rows = jnp.any(new_mask, axis=1) & jnp.any(query_mask, axis=1)
    counted = query_mask & rows[:, None]
    squares = jnp.square(reconstructed.astype(dtype) - target.astype(dtype))
    squares = jnp.where(counted[:, :, None, None], squares, 0)
    if reduction == "norm":
        norms = _safe_root(jnp.sum(squares, axis=(1, 2, 3)))
        return Sum(jnp.sum(norms), jnp.sum(rows).astype(dtype))
    return Sum(jnp.sum(jnp.mean(squares, axis=(2, 3))), jnp.sum(counted).astype(dtype))


@operation
def auto_encoding(
    decoded: Float[Array, "batch length dim"], old: Float[Array, "batch length dim"], mask: Bool[Array, "batch length"]
) -> Sum:
    """The squared difference of the old slots and what is decoded from their compression, averaged over features.

    Args:
      decoded: `[batch, length, dim]`, `g(f_c(old))`, see `transposed_convolution`.
      old: The slots that were compressed; no gradient.
      mask: Slots that count: those that a valid compressed slot stands for.

    Returns:
      The sum over slots and how many there were, in at least float32.

    Example:
      >>> import jax.numpy as jnp
      >>> old, mask = jnp.ones((1, 2, 4)), jnp.array([[True, False]])
      >>> print(auto_encoding(3 * old, old, mask))
      Sum(total=Array(4., dtype=float32), weight=Array(1., dtype=float32))
    """
    dtype = _wide(old)
    squares = jnp.square(decoded.astype(dtype) - lax.stop_gradient(old).astype(dtype))
    return Sum(jnp.sum(jnp.where(mask, jnp.mean(squares, axis=2), 0)), jnp.sum(mask).astype(dtype))


def _windows(x: Array, rate: int) -> Array:
    """`[batch, length, ...]` as `[batch, length // rate, rate, ...]`, without the oldest remainder."""
    batch, length = x.shape[:2]
    if not 1 <= rate <= length:
        raise ValueError(f"rate: {rate} given, 1 to the {length} slots that are compressed allowed")
    return x[:, length % rate :].reshape(batch, length // rate, rate, *x.shape[2:])


def _for_each_query(mask: Array, queries: Array) -> Array:
    """`[batch, slots]` as `[batch, 1, length, slots]`."""
    return jnp.broadcast_to(mask[:, None, None, :], (mask.shape[0], 1, queries.shape[1], mask.shape[1]))


def _matmul(x: Array, matrix: Array) -> Array:
    """`[..., inner]` times `[inner, outer]` in the dtype of `x`, as one product of plain matrices."""
    flat = jnp.dot(x.reshape(-1, x.shape[-1]), matrix.astype(x.dtype))
    return flat.reshape(*x.shape[:-1], matrix.shape[-1])


def _safe_root(x: Array) -> Array:
    """The square root, with gradient 0 at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def _wide(x: Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)
