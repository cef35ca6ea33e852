"""Rotary positions: queries and keys are rotated by angles that grow with their position (RoPE).

Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", https://arxiv.org/abs/2104.09864. The
product of a rotated query and a rotated key depends on their distance only, so positions may be counted from anywhere.

Frequencies are NumPy arrays in float64, in radians for each token, the highest first. `rotary_frequencies` makes them,
and the functions `interpolate_*` change them for texts longer than those of the pre-training.

The two entries of a pair are half the rotated width apart, entry i with entry i + width / 2, as in the models of
Hugging Face's `transformers`. The paper, and llama.cpp for the models of its kind `llama`, pair entries 2 i and 2 i + 1
instead: the rows of their matrices of queries and keys are in another order.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from memjax.functional.named_operations import operation
from memjax.functional.precision import at_least_float32

__all__ = [
    "interpolate_linearly",
    "interpolate_llama3",
    "interpolate_longrope",
    "interpolate_yarn",
    "longrope_attention_factor",
    "rotary_frequencies",
    "rotary_waves",
    "rotate",
    "yarn_attention_factor",
]

Frequencies = Float[np.ndarray, " pairs"]


def rotary_frequencies(width: int, theta: float = 10_000.0) -> Frequencies:
    """Computes the frequencies of rotary positions, `theta ** (-2 i / width)` for the pairs i = 0 .. width / 2 - 1, in
    radians for each token, float64 `[width / 2]`.

    Args:
      width: Number of entries of a head that are rotated, even. Less than the width of the head for partial rotation. 0
        for none.
      theta: Base of the wavelengths, which reach `2 pi theta` tokens. 10,000 in the paper.

    Returns:
      float64 `[width / 2]`, the highest frequency, 1, first.

    Raises:
      ValueError: `width` is odd or negative, or `theta` is not above 0.

    Example:
      >>> print(rotary_frequencies(4, theta=100.0))
      [1.  0.1]
    """
    if width < 0 or width % 2:
        raise ValueError(f"width: given {width}, allowed: an even number of entries (pairs), 0 or more")
    if theta <= 0:
        raise ValueError(f"theta: given {theta}, allowed: above 0")
    return theta ** (-np.arange(0, width, 2, dtype=np.float64) / max(width, 1))


def interpolate_linearly(frequencies: Frequencies, factor: float) -> Frequencies:
    """Divides all frequencies by `factor`, so that texts of `factor` times the length have the angles of the
    pre-training.

    Position interpolation, Chen et al. 2023, https://arxiv.org/abs/2306.15595.

    Args:
      frequencies: float64 `[pairs]`, radians for each token.
      factor: Ratio of the new length to the old one, above 0.

    Returns:
      float64 `[pairs]`.

    Example:
      >>> print(interpolate_linearly(rotary_frequencies(4, theta=100.0), factor=2.0))
      [0.5  0.05]
    """
    _require_factor(factor)
    return frequencies / factor


def interpolate_llama3(
    frequencies: Frequencies,
    *,
    factor: float,
    low_frequency_factor: float,
    high_frequency_factor: float,
    original_length: int,
) -> Frequencies:
    """Divides low frequencies by `factor`, keeps high ones, and blends those between, as Llama 3.1 does.

    A frequency with fewer than `low_frequency_factor` periods in `original_length` tokens is divided, one with more
    than `high_frequency_factor` periods is kept. Between them the share that is kept grows linearly with the number of
    periods. Dubey et al. 2024, "The Llama 3 Herd of Models", https://arxiv.org/abs/2407.21783, and its code.

    Args:
      frequencies: float64 `[pairs]`, radians for each token.
      factor: Divisor of low frequencies, above 0.
      low_frequency_factor: Number of periods below which a frequency is divided.
      high_frequency_factor: Number of periods above which a frequency is kept, above `low_frequency_factor`.
      original_length: Number of tokens of the texts of the pre-training.

    Returns:
      float64 `[pairs]`.

    Raises:
      ValueError: `factor` is not above 0, or the two numbers of periods are not in ascending order.

    Example:
      >>> limits = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_length": 100}
      >>> print(interpolate_llama3(np.array([1.0, 0.01]), factor=8.0, **limits))
      [1.      0.00125]
    """
    _require_factor(factor)
    low, high = low_frequency_factor, high_frequency_factor
    if not low < high:
        raise ValueError(f"high_frequency_factor: given {high}, allowed: above low_frequency_factor = {low}")
    periods = original_length * frequencies / (2 * np.pi)
    kept_share = np.clip((periods - low) / (high - low), 0, 1)
    return frequencies * (kept_share + (1 - kept_share) / factor)


def interpolate_yarn(
    frequencies: Frequencies,
    *,
    factor: float,
    original_length: int,
    theta: float = 10_000.0,
    fast_periods: float = 32.0,
    slow_periods: float = 1.0,
    whole_pairs: bool = True,
) -> Frequencies:
    """Divides low frequencies by `factor`, keeps high ones, and blends the pairs between by their number, as YaRN does.

    The pair with `fast_periods` periods in `original_length` tokens is the last that is kept, the pair with
    `slow_periods` the first that is divided. Between them the share that is kept falls linearly with the number of the
    pair. Peng et al. 2023, https://arxiv.org/abs/2309.00071. Scores are scaled too (`yarn_attention_factor`).

    Args:
      frequencies: float64 `[pairs]` of `rotary_frequencies`, radians for each token.
      factor: Divisor of low frequencies, above 0.
      original_length: Number of tokens of the texts of the pre-training.
      theta: Base with which the frequencies were made.
      fast_periods: Number of periods of the last pair that is kept (beta in the paper).
      slow_periods: Number of periods of the first pair that is divided (alpha in the paper).
      whole_pairs: Whether these two pairs are rounded to whole numbers, outwards. The published code does so.

    Returns:
      float64 `[pairs]`.

    Raises:
      ValueError: `factor` is not above 0.

    Example:
      >>> frequencies = rotary_frequencies(8)
      >>> print(interpolate_yarn(frequencies, factor=4.0, original_length=256) / frequencies)
      [1.    0.625 0.25  0.25 ]
    """
    _require_factor(factor)
    pairs = len(frequencies)
    pair_of = lambda periods: pairs * math.log(original_length / (periods * 2 * math.pi)) / math.log(theta)
    first, last = pair_of(fast_periods), pair_of(slow_periods)
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)  # the published limit is the width, not the pairs
    divided = np.clip((np.arange(pairs) - first) / (last - first or 0.001), 0, 1)
    return frequencies * (1 - divided + divided / factor)


def yarn_attention_factor(factor: float, scale: float | None = None, scale_of_all: float | None = None) -> float:
    """Returns the number by which YaRN multiplies rotated queries and rotated keys, `0.1 log(factor) + 1`, or the ratio
    of `0.1 scale log(factor) + 1` to that of `scale_of_all` where both are given. 1 for a factor up to 1.

    Args:
      factor: Divisor of low frequencies.
      scale: Weight of the logarithm (`mscale` of the published code). None or 0 for 1.
      scale_of_all: Weight of the logarithm in the divisor (`mscale_all_dim`). None or 0 for no divisor.

    Example:
      >>> round(yarn_attention_factor(4.0), 4), yarn_attention_factor(4.0, 1.0, 1.0), yarn_attention_factor(0.5)
      (1.1386, 1.0, 1.0)
    """
    part = lambda weight: 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
    return part(scale) / part(scale_of_all) if scale and scale_of_all else part(1.0)


def interpolate_longrope(frequencies: Frequencies, divisors: Sequence[float]) -> Frequencies:
    """Divides every frequency by its own number, found by a search, as LongRoPE does. `divisors` has one number for
    each pair.

    Ding et al. 2024, https://arxiv.org/abs/2402.13753. Models have two lists, for texts up to the length of the
    pre-training and for longer ones. Scores are scaled too (`longrope_attention_factor`).

    Args:
      frequencies: float64 `[pairs]`, radians for each token.
      divisors: `[pairs]`, divisor of each frequency, above 0.

    Returns:
      float64 `[pairs]`.

    Raises:
      ValueError: Another number of divisors, or a divisor that is not above 0.

    Example:
      >>> print(interpolate_longrope(rotary_frequencies(4, theta=100.0), [1.0, 4.0]))
      [1.    0.025]
    """
    if len(divisors) != len(frequencies):
        raise ValueError(f"divisors: given {len(divisors)}, allowed: {len(frequencies)}, one for each pair")
    if min(divisors, default=1) <= 0:
        raise ValueError(f"divisors: given {min(divisors)}, allowed: above 0")
    return frequencies / np.asarray(divisors, np.float64)


def longrope_attention_factor(factor: float, original_length: int) -> float:
    """Returns the number by which LongRoPE multiplies rotated queries and rotated keys, `sqrt(1 + log(factor) /
    log(original_length))`, 1 for a factor up to 1. `factor` is the ratio of the new length to the old one.

    Example:
      >>> round(longrope_attention_factor(16.0, 4096) ** 2, 4), longrope_attention_factor(1.0, 4096)
      (1.3333, 1.0)
    """
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_length))


@operation
def rotary_waves(
    positions: Shaped[Array, "*positions"] | Shaped[np.ndarray, "*positions"],
    frequencies: Frequencies,
    attention_factor: float = 1.0,
) -> tuple[Float[Array, "*positions pairs"], Float[Array, "*positions pairs"]]:
    """Computes cosine and sine of the angles of positions, both `[*positions, pairs]`, times `attention_factor`, by
    which queries and keys are then multiplied too.

    Args:
      positions: Integers in any shape. A NumPy array gives constants computed once in float64. The angles of a traced
        array are computed in the default float dtype, which for float32 is off by 4e-3 radians at position 65,536.
      frequencies: float64 `[pairs]`, radians for each token.
      attention_factor: Factor of rotated queries and keys, as some kinds of interpolation have one.

    Returns:
      Cosines and sines, in the default float dtype.

    Example:
      >>> cosines, sines = rotary_waves(np.array([0, 1]), np.array([np.pi / 2, 0.0]))
      >>> print(cosines.round(3) + 0.0, sines, sep="\\n")
      [[1. 1.]
       [0. 1.]]
      [[0. 0.]
       [1. 0.]]
    """
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    if isinstance(positions, np.ndarray):
        angles = positions[..., None].astype(np.float64) * frequencies
        cosines, sines = (jnp.asarray(attention_factor * wave(angles), dtype) for wave in (np.cos, np.sin))
        return cosines, sines
    shape = (1,) * positions.ndim + frequencies.shape
    angles = positions[..., None].astype(dtype) * jnp.asarray(frequencies.reshape(shape), dtype)
    return attention_factor * jnp.cos(angles), attention_factor * jnp.sin(angles)


@operation
def rotate(
    x: Float[Array, "batch length heads head_dim"],
    cosines: Float[Array, "#batch length pairs"],
    sines: Float[Array, "#batch length pairs"],
) -> Float[Array, "batch length heads head_dim"]:
    """Rotates queries or keys, `[batch, length, heads, head_dim]`, at their positions. Entries i and `pairs + i` of a
    head form a pair, and entries from `2 pairs` on stay as they are (partial rotation).

    `cosines` and `sines` are those of `rotary_waves`. The product of a query and a key that were both rotated depends
    on the distance of their positions only.

    Args:
      x: `[batch, length, heads, head_dim]`, queries or keys.
      cosines: `[batch or 1, length, pairs]`, cosines of the angles at the positions of the tokens.
      sines: `[batch or 1, length, pairs]`, their sines.

    Returns:
      `[batch, length, heads, head_dim]` in the dtype of `x`, computed in at least float32.

    Raises:
      ValueError: More than `head_dim / 2` pairs.

    Example:
      >>> quarter = rotary_waves(np.array([[1]]), np.array([np.pi / 2]))
      >>> print(rotate(jnp.array([[[[1.0, 0.0, 5.0]]]]), *quarter).round(3).ravel() + 0.0)
      [0. 1. 5.]
    """
    pairs, head_dim = cosines.shape[-1], x.shape[-1]
    if 2 * pairs > head_dim:
        raise ValueError(f"cosines: given {pairs} pairs, allowed: up to {head_dim // 2}, half of head_dim = {head_dim}")
    if not pairs:
        return x
    dtype = at_least_float32(x.dtype)
    cosines, sines = (wave.astype(dtype)[:, :, None] for wave in (cosines, sines))  # [b, l, 1, pairs]
    first, second = x[..., :pairs].astype(dtype), x[..., pairs : 2 * pairs].astype(dtype)
    parts = (first * cosines - second * sines, second * cosines + first * sines)
    rotated = [part.astype(x.dtype) for part in parts]
    return jnp.concatenate([*rotated, x[..., 2 * pairs :]], axis=-1)


def _require_factor(factor: float) -> None:
    if factor <= 0:
        raise ValueError(f"factor: given {factor}, allowed: above 0")
