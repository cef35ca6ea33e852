"""Nearest entries by sorting, query by query, in float64."""

import numpy as np


def scores(queries, keys, metric) -> np.ndarray:
    """`[queries, entries]`: squared distances or products."""
    queries, keys = np.asarray(queries, np.float64), np.asarray(keys, np.float64)
    out = np.empty((len(queries), len(keys)))
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            out[i, j] = np.sum((query - key) ** 2) if metric == "squared_l2" else np.sum(query * key)
    return out


def nearest(queries, keys, num_neighbors, metric) -> list[list[tuple[float, int]]]:
    """`[query]` -> (score, entry), best first, of equals the first entry; fewer where there are fewer entries."""
    sign = 1 if metric == "squared_l2" else -1
    found = []
    for row in scores(queries, keys, metric):
        order = sorted(range(len(row)), key=lambda j: (sign * row[j], j))
        found.append([(float(row[j]), j) for j in order[:num_neighbors]])
    return found
