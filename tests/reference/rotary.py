"""Rotary positions, written from the papers with loops: RoPE (arXiv:2104.09864), its interpolations, and attention."""

import cmath
import math
from collections.abc import Sequence

import numpy as np


def frequency(pair: int, width: int, theta: float) -> float:
    """Radians for each token of a pair (RoPE, equation 15)."""
    return 1 / theta ** (2 * pair / width)


def rotated(vector: np.ndarray, position: float, frequencies: Sequence[float]) -> np.ndarray:
    """A vector at a position: pairs, half the rotated width apart, are complex numbers (equation 12)."""
    pairs, result = len(frequencies), vector.astype(np.float64).copy()
    for pair, radians in enumerate(frequencies):
        value = complex(vector[pair], vector[pair + pairs]) * cmath.exp(1j * position * radians)
        result[pair], result[pair + pairs] = value.real, value.imag
    return result


def llama3(radians: float, factor: float, low: float, high: float, original_length: int) -> float:
    """A frequency of Llama 3.1, from its published code: by wavelength, in three cases."""
    wavelength = 2 * math.pi / radians
    if wavelength < original_length / high:
        return radians
    if wavelength > original_length / low:
        return radians / factor
    smooth = (original_length / wavelength - low) / (high - low)
    return (1 - smooth) * radians / factor + smooth * radians


def yarn(
    pair: int, width: int, theta: float, factor: float, original_length: int, fast: float, slow: float, whole: bool
) -> float:
    """A frequency of YaRN, from its published code: a ramp over the numbers of pairs."""

    def pair_with(periods: float) -> float:
        return width * math.log(original_length / (periods * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with(fast), pair_with(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp = min(max((pair - low) / (high - low), 0), 1)
    kept = frequency(pair, width, theta)
    return kept / factor * ramp + kept * (1 - ramp)


def attention_in_segments(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    frequencies: Sequence[float],
    *,
    segment: int,
    memory: int,
    window: int | None = None,
    sinks: int = 0,
) -> np.ndarray:
    """Causal attention over one document `[length, heads, head_dim]`, keys `[length, key_heads, head_dim]`. A token
    reads its segment, the last `memory` tokens before it, at most `window` of both, and the first `sinks` tokens of the
    document: where they are, or right before the memory if others have left in between.
    """
    length, heads, head_dim = queries.shape
    share = heads // keys.shape[1]
    result = np.zeros((length, heads, values.shape[-1]))
    for i in range(length):
        oldest = max(i // segment * segment - memory, 0)
        placed = {j: j for j in range(oldest, i + 1) if window is None or i - j < window or j < sinks}
        placed |= {j: j + max(oldest - sinks, 0) for j in range(min(sinks, oldest))}
        for h in range(heads):
            query = rotated(queries[i, h], i, frequencies)
            scores = [
                query @ rotated(keys[j, h // share], place, frequencies) / math.sqrt(head_dim)
                for j, place in placed.items()
            ]
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            result[i, h] = sum(w * values[j, h // share] for w, j in zip(weights, placed, strict=True))
    return result
