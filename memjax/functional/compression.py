"""Compression of old memories, and the losses that train it (Rae et al. 2019, https://arxiv.org/abs/1911.05507).

A compression maps `rate` old slots to one, `[batch, length, dim]` to `[batch, length // rate, dim]`, oldest first.
Where `rate` does not divide the length, the oldest remainder is dropped.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from memjax.functional.attention import attention
from memjax.functional.named_operations import operation
from memjax.typing import WeightedSum

__all__ = [
    "attention_reconstruction",
    "auto_encoding",
    "dilated_convolutions",
    "keep_most_used",
    "max_pool",
    "mean_pool",
    "strided_convolution",
    "transposed_convolution",
    "window_validity",
]


@operation
def max_pool(x: Float[Array, "batch length dim"], rate: int) -> Float[Array, "batch slots dim"]:
    """Compresses by the largest entry of each feature over windows of `rate` slots. Returns `[batch, length // rate,
    dim]`.

    Args:
      x: `[batch, length, dim]`, oldest first.
      rate: Number of slots of a window.

    Returns:
      `[batch, length // rate, dim]` in the dtype of `x`.

    Raises:
      ValueError: `rate` is below 1 or above the length.

    Example:
      >>> import jax.numpy as jnp
      >>> print(max_pool(jnp.array([[[9.0], [1.0], [2.0], [4.0], [3.0]]]), 2)[0, :, 0])
      [2. 4.]
    """
    return jnp.max(_windows(x, rate), axis=2)


@operation
def mean_pool(x: Float[Array, "batch length dim"], rate: int) -> Float[Array, "batch slots dim"]:
    """Compresses by the mean of each feature over windows of `rate` slots, summed in at least float32. Returns `[batch,
    length // rate, dim]`.

    Args:
      x: `[batch, length, dim]`, oldest first.
      rate: Number of slots of a window.

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
    """Compresses by a convolution whose width and stride are the rate, the first size of `kernel`, without padding and,
    as published, without bias. Returns `[batch, length // rate, out]`.

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
    """Applies causal convolutions of width 2 with ReLU one after the other, `y_t = relu(x_{t-r} K_0 + x_t K_1)` for
    each dilation r. The length stays.

    Entries before the first slot count as 0, so that the length stays (the published code lets it shrink by the sum of
    the dilations). Compress the result with `strided_convolution`.

    Args:
      x: `[batch, length, dim]`, oldest first.
      kernels: `[layers, 2, dim, dim]`, the matrix of the older slot first.
      dilations: Distance in slots to the older slot, one number for each layer.

    Returns:
      `[batch, length, dim]` in the dtype of `x`.

    Raises:
      ValueError: The number of dilations is not the number of layers.

    Example:
      >>> import jax.numpy as jnp
      >>> kernels = jnp.array([10.0, 1.0]).reshape(1, 2, 1, 1)
      >>> print(dilated_convolutions(jnp.array([[[1.0], [2.0], [3.0]]]), kernels, (2,))[0, :, 0])
      [ 1.  2. 13.]
    """
    if len(dilations) != kernels.shape[0]:
        raise ValueError(f"dilations: given {dilations}, allowed: one for each of the {kernels.shape[0]} layers")
    length = x.shape[1]
    for kernel, dilation in zip(kernels, dilations, strict=True):
        earlier = jnp.pad(x, [(0, 0), (dilation, 0), (0, 0)])[:, :length]
        x = jax.nn.relu(_matmul(earlier, kernel[0]) + _matmul(x, kernel[1]))
    return x


@operation
def keep_most_used(
    x: Float[Array, "batch length dim"],
    usage: Float[Array, "batch length"],
    valid: Bool[Array, "batch length"],
    rate: int,
) -> tuple[Float[Array, "batch slots dim"], Bool[Array, "batch slots"]]:
    """Compresses by keeping the `length // rate` slots of largest usage, in their order. Returns them and which of them
    are valid.

    Args:
      x: `[batch, length, dim]`, oldest first.
      usage: `[batch, length]`, attention that each slot received, 0 or more. Of equal slots the older one is kept.
      valid: bool `[batch, length]`, slots that hold something. The others are kept last.
      rate: Number of slots for each one that is kept.

    Returns:
      The kept slots, and which of them are valid. The choice has no gradient.

    Example:
      >>> import jax.numpy as jnp
      >>> x, usage = jnp.array([[[1.0], [2.0], [3.0], [4.0]]]), jnp.array([[0.9, 0.1, 0.2, 0.8]])
      >>> kept, valid = keep_most_used(x, usage, jnp.ones((1, 4), bool), 2)
      >>> print(kept[0, :, 0], valid[0])
      [1. 4.] [ True  True]
    """
    num_slots = _windows(x, rate).shape[1]
    # Empty slots score below any usage, so that their contents do not decide which slots are kept.
    scores = lax.stop_gradient(jnp.where(valid, usage, -1))
    indices = jnp.sort(lax.top_k(scores, num_slots)[1], axis=1)
    return jnp.take_along_axis(x, indices[..., None], axis=1), jnp.take_along_axis(valid, indices, axis=1)


@operation
def window_validity(valid: Bool[Array, "batch length"], rate: int) -> Bool[Array, "batch slots"]:
    """Returns which windows of `rate` slots have valid slots only, bool `[batch, length // rate]`. A slot of another
    document or an empty one is not valid.

    Args:
      valid: bool `[batch, length]`, oldest first.
      rate: Number of slots of a window.

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
    """Decodes compressed slots for the auto-encoding loss: one slot becomes `rate` slots, `y_{s rate + r} = x_s K_r`.

    Args:
      x: `[batch, slots, dim]`, compressed slots.
      kernel: `[rate, dim, out]`, one matrix for each of the `rate` slots.

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
    reduction: Literal["mean_square", "norm"] = "mean_square",
) -> WeightedSum:
    """Loss of a compression: returns the sum of the differences between attention to compressed slots (new) and to the
    slots before (old), over queries or for `reduction='norm'` rows, and their number.

    `|| attn(h, old) - attn(h, f_c(old)) ||` by content alone: no positions, no content bias, no causal mask, no output
    projection (algorithm 2 of the paper). Queries and the old keys and values have no gradient. If the new ones shall
    have a gradient to the compression only, project them with matrices of stopped gradient.

    Args:
      queries: `[batch, length, heads, head_dim]`, queries of the segment, not scaled (this function scales them by
        `head_dim ** -0.5`).
      old_keys: `[batch, old, heads, head_dim]`, keys of the slots that leave the memory.
      old_values: `[batch, old, heads, head_dim]`, values of the slots that leave the memory.
      new_keys: `[batch, new, heads, head_dim]`, keys of the compressed slots.
      new_values: `[batch, new, heads, head_dim]`, values of the compressed slots.
      query_mask: bool `[batch, length]`, real tokens of the segment.
      old_mask: bool `[batch, old]`, old slots to attend to: those that a valid new slot stands for.
      new_mask: bool `[batch, new]`, valid new slots. A row without any is left out.
      reduction: 'mean_square' over features, averaged over queries (as the authors' code), or 'norm', the L2 norm over
        queries, heads and features of a row (as the paper writes it), averaged over rows.

    Returns:
      The sum over queries (over rows for 'norm') and their number, in at least float32.

    Raises:
      ValueError: Unknown reduction.

    Example:
      >>> import jax.numpy as jnp
      >>> x, some = jnp.ones((1, 2, 1, 4)), jnp.ones((1, 2), bool)
      >>> masks = {"query_mask": some, "old_mask": some, "new_mask": some}
      >>> print(attention_reconstruction(x, x, x, x, 3 * x, **masks).mean())
      4.0
    """
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
        return WeightedSum(jnp.sum(norms), jnp.sum(rows).astype(dtype))
    return WeightedSum(jnp.sum(jnp.mean(squares, axis=(2, 3))), jnp.sum(counted).astype(dtype))


@operation
def auto_encoding(
    decoded: Float[Array, "batch length dim"], old: Float[Array, "batch length dim"], mask: Bool[Array, "batch length"]
) -> WeightedSum:
    """Loss of a compression: returns the sum over slots of the squared difference of `old` slots and their decoded
    compression (a mean over features), and the number of slots.

    Args:
      decoded: `[batch, length, dim]`, `g(f_c(old))`, see `transposed_convolution`.
      old: `[batch, length, dim]`, slots that were compressed. No gradient goes to them.
      mask: bool `[batch, length]`, slots that count: those that a valid compressed slot stands for.

    Returns:
      The sum over slots and their number, in at least float32.

    Example:
      >>> import jax.numpy as jnp
      >>> old, mask = jnp.ones((1, 2, 4)), jnp.array([[True, False]])
      >>> print(auto_encoding(3 * old, old, mask))
      WeightedSum(total=Array(4., dtype=float32), weight=Array(1., dtype=float32))
    """
    dtype = _wide(old)
    squares = jnp.square(decoded.astype(dtype) - lax.stop_gradient(old).astype(dtype))
    return WeightedSum(jnp.sum(jnp.where(mask, jnp.mean(squares, axis=2), 0)), jnp.sum(mask).astype(dtype))


def _windows(x: Array, rate: int) -> Array:
    """Reshapes `[batch, length, ...]` to windows `[batch, length // rate, rate, ...]`, without the oldest remainder."""
    batch, length = x.shape[:2]
    if not 1 <= rate <= length:
        raise ValueError(f"rate: given {rate}, allowed: 1 to {length}, the slots that are compressed")
    return x[:, length % rate :].reshape(batch, length // rate, rate, *x.shape[2:])


def _for_each_query(mask: Array, queries: Array) -> Array:
    """Broadcasts a mask `[batch, slots]` to `[batch, 1, length, slots]`."""
    return jnp.broadcast_to(mask[:, None, None, :], (mask.shape[0], 1, queries.shape[1], mask.shape[1]))


def _matmul(x: Array, matrix: Array) -> Array:
    """Multiplies `[..., inner]` with `[inner, outer]` in the dtype of `x`, as one product of plain matrices."""
    flat = jnp.dot(x.reshape(-1, x.shape[-1]), matrix.astype(x.dtype))
    return flat.reshape(*x.shape[:-1], matrix.shape[-1])


def _safe_root(x: Array) -> Array:
    """Computes the square root, with gradient 0 at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def _wide(x: Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)
