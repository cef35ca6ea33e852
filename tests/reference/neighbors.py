"""Retrieval of the Memorizing Transformer (arXiv:2203.08913) by sorting, query by query."""

import numpy as np


def neighbors(queries, keys, valid, num_neighbors) -> list:
    """`[b][h][l]` -> the valid slots with the largest inner products, best first (fewer where fewer are valid)."""
    batch, heads, length, _ = queries.shape
    found = np.empty((batch, heads, length), object)
    for b, h, i in np.ndindex(batch, heads, length):
        scores = {j: float(queries[b, h, i] @ keys[b, h, j]) for j in range(keys.shape[2]) if valid[b, j]}
        found[b, h, i] = sorted(scores, key=lambda j: -scores[j])[:num_neighbors]
    return found


def bucket_winners(queries, keys, valid, num_neighbors) -> list:
    """`[b][h][l]` -> the best valid slot of each bucket of slots with equal number modulo `num_neighbors`, or None."""
    batch, heads, length, _ = queries.shape
    found = np.empty((batch, heads, length), object)
    for b, h, i in np.ndindex(batch, heads, length):
        winners = []
        for bucket in range(num_neighbors):
            scores = {
                j: float(queries[b, h, i] @ keys[b, h, j])
                for j in range(bucket, keys.shape[2], num_neighbors)
                if valid[b, j]
            }
            winners.append(max(scores, key=scores.get) if scores else None)
        found[b, h, i] = winners
    return found
