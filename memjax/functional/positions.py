"""Relative positions: sinusoids, the shift of Transformer-XL, and the distance buckets of T5.

Everywhere the last query is aligned to the last key, so a distance is `i + total - length - j`: 0 for the token itself,
positive for the past.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from memjax.functional.named_operations import operation

__all__ = ["bidirectional_bias", "bucket_bias", "relative_buckets", "relative_distances", "relative_shift", "sinusoids"]


@operation
def sinusoids(
    positions: Shaped[Array, "*positions"] | Shaped[np.ndarray, "*positions"], dim: int
) -> Float[Array, "*positions dim"]:
    """Computes sine and cosine of positions at `dim / 2` frequencies, in the layout of Transformer-XL, `[..., dim]`.

    `concatenate(sin(p w), cos(p w))` with `w_i = 10000 ** (-2 i / dim)`: halves side by side, not interleaved
    (arXiv:1901.02860 and its code).

    Args:
      positions: Integers or floats in any shape. A NumPy array gives constants computed once in float64.
      dim: Width of the result, even.

    Returns:
      `[*positions.shape, dim]` in the default float dtype (that of `positions` where it is a traced float array).

    Raises:
      ValueError: `dim` is odd.

    Example:
      >>> import numpy as np
      >>> print(sinusoids(np.array([0, 1]), 2))
      [[0.         1.        ]
       [0.84147096 0.5403023 ]]
    """
    if dim % 2 or dim < 2:
        raise ValueError(f"dim: given {dim}, allowed: a positive even number (one sine and one cosine per frequency)")
    frequencies = 10000.0 ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    default = jax.dtypes.canonicalize_dtype(np.float64)
    if isinstance(positions, np.ndarray):
        angles = positions[..., None].astype(np.float64) * frequencies
        return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1), default)
    dtype = positions.dtype if jnp.issubdtype(positions.dtype, jnp.floating) else default
    dtype = jnp.promote_types(dtype, jnp.float32)
    shape = (1,) * positions.ndim + frequencies.shape
    angles = positions[..., None].astype(dtype) * jnp.asarray(frequencies.reshape(shape), dtype)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


@operation
def relative_shift(scores: Shaped[Array, "*lead length total"]) -> Shaped[Array, "*lead length total"]:
    """Turns scores by distance, the longest first, into scores by key: row i moves left by `length - 1 - i`.

    The left shift of Transformer-XL (arXiv:1901.02860, appendix B) as pad, reshape and slice, without a gather. Column
    t of the input belongs to distance `total - 1 - t`. Column j of the output belongs to key j. Entries of keys after
    the query (`j > i + total - length`) hold values of other rows and must be masked.

    Args:
      scores: `[..., length, total]`, scores by distance, distance `total - 1` first, `total >= length`.

    Returns:
      `[..., length, total]`.

    Example:
      >>> import jax.numpy as jnp
      >>> by_distance = jnp.array([[3, 2, 1, 0], [3, 2, 1, 0]])
      >>> print(relative_shift(by_distance))  # the last entry of row 0 is to be masked
      [[2 1 0 0]
       [3 2 1 0]]
    """
    *lead, length, total = scores.shape
    padded = jnp.pad(scores, [(0, 0)] * len(lead) + [(0, 0), (1, 0)])
    return padded.reshape(*lead, total + 1, length)[..., 1:, :].reshape(*lead, length, total)


def relative_distances(length: int, total: int) -> Int[np.ndarray, "length total"]:
    """Computes the distances in tokens from each of `total` keys to each of the last `length` tokens, int32 `[length,
    total]`. Negative for later keys.

    Args:
      length: Number of queries.
      total: Number of keys (memory and segment). The last key is that of the last query.

    Returns:
      NumPy int32 `[length, total]`, `i + total - length - j`. Negative for keys after the query.

    Example:
      >>> print(relative_distances(2, 4))
      [[ 2  1  0 -1]
       [ 3  2  1  0]]
    """
    queries = np.arange(length, dtype=np.int32)[:, None] + np.int32(total - length)
    return queries - np.arange(total, dtype=np.int32)[None, :]


@operation
def relative_buckets(
    distances: Array | np.ndarray, num_buckets: int = 32, max_distance: int = 128
) -> Int[Array, "..."] | Int[np.ndarray, "..."]:
    """Returns the number of the unidirectional bucket of T5 (arXiv:1910.10683) of each distance. Negative distances
    count as 0.

    With `half = num_buckets // 2`, distances below `half` have a bucket each. A larger distance n has bucket
    `half + floor(log(n / half) / log(max_distance / half) * (num_buckets - half))`, at most `num_buckets - 1`.

    Args:
      distances: Integers of any shape, NumPy or JAX. Negative distances (the future) count as 0.
      num_buckets: Number of buckets, at least 2.
      max_distance: Distance from which on all distances share the last bucket.

    Returns:
      int32 bucket numbers in the shape and kind (NumPy or JAX) of `distances`.

    Raises:
      ValueError: Fewer than 2 buckets, or `max_distance` not above `num_buckets // 2`.

    Example:
      >>> import numpy as np
      >>> print(relative_buckets(np.array([-3, 0, 15, 16, 40, 128, 10_000])))
      [ 0  0 15 16 23 31 31]
    """
    table = _bucket_table(num_buckets, max_distance)
    if isinstance(distances, np.ndarray):
        return table[np.clip(distances, 0, max_distance)]
    return jnp.asarray(table)[jnp.clip(distances, 0, max_distance)]


@operation
def bucket_bias(
    table: Float[Array, "heads buckets"], distances: Array | np.ndarray, *, max_distance: int = 128
) -> Float[Array, "..."]:
    """Looks up T5's position bias for each distance in `table`, one learned number per head and bucket: `[heads,
    length, total]`, to be added to scores.

    Args:
      table: `[heads, buckets]`, learned bias of each bucket.
      distances: `[length, total]`, NumPy (static) or traced, or `[batch, length, total]` traced. The static result of
        `relative_distances` costs `length + total` look-ups, and its gradient needs no scatter.
      max_distance: Distance from which on all distances share the last bucket.

    Returns:
      `[heads, length, total]`, or `[batch, heads, length, total]` for batched distances, in the dtype of `table`.

    Example:
      >>> import jax.numpy as jnp
      >>> table = jnp.arange(32.0)[None]
      >>> print(bucket_bias(table, relative_distances(2, 3)))
      [[[1. 0. 0.]
        [2. 1. 0.]]]
    """
    num_buckets = table.shape[-1]
    if isinstance(distances, np.ndarray) and _is_diagonal(distances):
        length, total = distances.shape
        along = distances[-1, 0] - np.arange(length + total - 1)
        buckets = np.asarray(relative_buckets(along, num_buckets, max_distance))
        pick = jnp.asarray(buckets[:, None] == np.arange(num_buckets)[None, :], table.dtype)
        by_distance = jnp.einsum("hn,tn->ht", table, pick, precision="highest")
        rows = jnp.broadcast_to(by_distance[:, None, :], (table.shape[0], length, length + total - 1))
        return relative_shift(rows)[..., :total]
    buckets = jnp.asarray(relative_buckets(distances, num_buckets, max_distance))
    picked = jnp.take(table, buckets, axis=1)  # [heads, ..., length, total]
    return picked if distances.ndim == 2 else jnp.moveaxis(picked, 0, 1)


@operation
def bidirectional_bias(
    table: Float[Array, "heads buckets"], length: int, *, max_distance: int = 128
) -> Float[Array, "heads length length"]:
    """Looks up the position bias of T5's encoder for `length` tokens in `table`, with half of the buckets for later
    tokens: `[heads, length, length]`.

    The first half is for earlier tokens and the token itself.

    Args:
      table: `[heads, buckets]`, learned bias of each bucket, an even number of buckets.
      length: Number of tokens, each of which sees all.
      max_distance: Distance from which on all distances share the last bucket of their half.

    Raises:
      ValueError: An odd number of buckets.

    Example:
      >>> import jax.numpy as jnp
      >>> print(bidirectional_bias(jnp.arange(32.0)[None], 3))
      [[[ 0. 17. 18.]
        [ 1.  0. 17.]
        [ 2.  1.  0.]]]
    """
    buckets = table.shape[-1]
    if buckets % 2:
        raise ValueError(f"table: given {buckets} buckets, allowed: an even number, half of them for later tokens")
    half, distances = buckets // 2, relative_distances(length, length)
    past = bucket_bias(table[:, :half], distances, max_distance=max_distance)
    # Distances to later tokens are those to earlier ones with rows and columns exchanged.
    future = jnp.swapaxes(bucket_bias(table[:, half:], distances, max_distance=max_distance), 1, 2)
    return jnp.where(jnp.asarray(distances >= 0)[None], past, future)


@functools.lru_cache(maxsize=32)
def _bucket_table(num_buckets: int, max_distance: int) -> np.ndarray:
    """Computes the bucket of each distance 0 .. max_distance, by the formula in float64."""
    half = num_buckets // 2
    if num_buckets < 2:
        raise ValueError(f"num_buckets: given {num_buckets}, allowed: at least 2")
    if max_distance <= half:
        raise ValueError(
            f"max_distance: given {max_distance}, allowed: above num_buckets // 2 = {half}; or use fewer buckets"
        )
    distances = np.arange(max_distance + 1)
    octaves = np.log(np.maximum(distances, half) / half) / np.log(max_distance / half)
    # the epsilon keeps powers that are exact in the formula (8 = 4 * 2) from falling below their integer
    far = half + np.floor(octaves * (num_buckets - half) + 1e-9).astype(np.int32)
    table = np.where(distances < half, distances, np.minimum(far, num_buckets - 1)).astype(np.int32)
    table.flags.writeable = False
    return table


def _is_diagonal(distances: np.ndarray) -> bool:
    """Whether entry (i, j) is a constant + i - j."""
    if distances.ndim != 2 or 0 in distances.shape:
        return False
    rows, columns = np.arange(distances.shape[0])[:, None], np.arange(distances.shape[1])[None, :]
    return bool(np.array_equal(distances, distances[0, 0] + rows - columns))
