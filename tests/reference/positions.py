"""Relative positions, written from Transformer-XL (arXiv:1901.02860) and T5 (arXiv:1910.10683)."""

import math

import numpy as np


def sinusoid(position: float, dim: int) -> list[float]:
    """Sines of all frequencies, then cosines."""
    angles = [position / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Unidirectional bucket of one distance; powers are compared as such, without a logarithm."""
    half = num_buckets // 2
    if distance < half:
        return max(distance, 0)
    bucket = half
    while bucket < num_buckets - 1:
        steps = bucket + 1 - half  # the next bucket begins at half * (max_distance / half) ** (steps / far)
        if distance * (1 + 1e-12) < half * (max_distance / half) ** (steps / (num_buckets - half)):
            break
        bucket += 1
    return bucket


def position_scores(queries: np.ndarray, by_distance: np.ndarray) -> np.ndarray:
    """`[length, total]` inner products of query i with the vector of the distance to key j (causal part; else NaN).

    Args:
      queries: `[length, dim]`.
      by_distance: `[total, dim]`, entry t belongs to distance t.
    """
    length, total = len(queries), len(by_distance)
    scores = np.full((length, total), np.nan)
    for i in range(length):
        for j in range(i + total - length + 1):
            scores[i, j] = queries[i] @ by_distance[i + total - length - j]
    return scores
