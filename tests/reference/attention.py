"""Attention in float64 loops over rows, heads, queries and keys, from the papers.

Softmax attention: arXiv:1706.03762, equation 1. Windows: arXiv:1901.02860, section 4.1 (`same_length`).
Joint merge of retrieved and local keys: first version of arXiv:2203.08913.
"""

import numpy as np


def softmax_over(scores: list[float]) -> list[float]:
    """Softmax of a possibly empty list."""
    if not scores:
        return []
    exponentials = [np.exp(score - max(scores)) for score in scores]
    return [e / sum(exponentials) for e in exponentials]


def masked_softmax(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Over the last axis; the sum runs over allowed entries only."""
    weights = np.zeros(scores.shape)
    for row in np.ndindex(*scores.shape[:-1]):
        allowed = [j for j in range(scores.shape[-1]) if mask[row][j]]
        for j, weight in zip(allowed, softmax_over([scores[row][j] for j in allowed]), strict=True):
            weights[row][j] = weight
    return weights


def attention(queries, keys, values, mask, bias, scale) -> np.ndarray:
    """`mask [b, h, l, m]`, `bias [b, h, l, m]`, `scale [h]`."""
    batch, length, heads, _ = queries.shape
    out = np.zeros((batch, length, heads, values.shape[-1]))
    for b, i, h in np.ndindex(batch, length, heads):
        seen = [j for j in range(keys.shape[1]) if mask[b, h, i, j]]
        scores = [scale[h] * (queries[b, i, h] @ keys[b, j, h]) + bias[b, h, i, j] for j in seen]
        for j, weight in zip(seen, softmax_over(scores), strict=True):
            out[b, i, h] += weight * values[b, j, h]
    return out


def joint_attention(queries, keys, values, neighbor_keys, neighbor_values, mask, neighbor_valid, bias, scale):
    """Every query attends to the list of its real neighbours followed by the shared keys that it sees."""
    batch, length, heads, _ = queries.shape
    out = np.zeros((batch, length, heads, values.shape[-1]))
    for b, i, h in np.ndindex(batch, length, heads):
        scores, contents = [], []
        for n in range(neighbor_keys.shape[3]):
            if neighbor_valid[b, h, i, n]:
                scores.append(scale[h] * (queries[b, i, h] @ neighbor_keys[b, h, i, n]))
                contents.append(neighbor_values[b, h, i, n])
        for j in range(keys.shape[1]):
            if mask[b, h, i, j]:
                scores.append(scale[h] * (queries[b, i, h] @ keys[b, j, h]) + bias[b, h, i, j])
                contents.append(values[b, j, h])
        for weight, content in zip(softmax_over(scores), contents, strict=True):
            out[b, i, h] += weight * content
    return out


def visibility(length, memory_valid, mask, window) -> np.ndarray:
    """bool `[batch, 1, length, memory + length]`, key by key."""
    batch, memory = memory_valid.shape
    seen = np.zeros((batch, 1, length, memory + length), bool)
    for b, i in np.ndindex(batch, length):
        position = memory + i  # of the query in memory ++ segment
        for j in range(position + 1):
            real = memory_valid[b, j] if j < memory else mask[b, j - memory]
            seen[b, 0, i, j] = real and (window is None or position - j < window)
    return seen
