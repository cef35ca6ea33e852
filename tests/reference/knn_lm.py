"""kNN-LM in float64 loops, from the equations of Khandelwal et al. 2020 (arXiv:1911.00172)."""

import math

import numpy as np


def knn_probs(distances, values, valid, vocab_size: int, temperature: float = 1.0) -> np.ndarray:
    """`p_kNN(y) = sum over neighbours of value y of softmax(-d / T)` at one position; all 0 without neighbours."""
    probs = np.zeros(vocab_size)
    found = [(float(d), int(v)) for d, v, there in zip(distances, values, valid, strict=True) if there]
    if not found:
        return probs
    nearest = min(d for d, _ in found)
    weights = [math.exp(-(d - nearest) / temperature) for d, _ in found]
    for weight, (_, value) in zip(weights, found, strict=True):
        probs[value] += weight / sum(weights)
    return probs


def interpolate(lm_probs: np.ndarray, knn: np.ndarray, weight: float) -> np.ndarray:
    """`lambda p_kNN + (1 - lambda) p_LM`; the language model alone where there is no neighbour."""
    return weight * knn + (1 - weight) * lm_probs if knn.any() else lm_probs


def nearest(keys: np.ndarray, query: np.ndarray, num_neighbors: int) -> tuple[list[int], list[float]]:
    """Entries with the smallest squared distance to the query, nearest first."""
    distances = [sum((float(a) - float(b)) ** 2 for a, b in zip(key, query, strict=True)) for key in keys]
    order = sorted(range(len(keys)), key=lambda i: (distances[i], i))[:num_neighbors]
    return order, [distances[i] for i in order]


class Store:
    """A datastore that compares every query with every key; fewer entries than neighbours are padded."""

    def __init__(self, keys: np.ndarray, values: np.ndarray):
        self.keys, self.tokens, self.searches = np.asarray(keys, np.float64), np.asarray(values, np.int32), 0

    def search(self, queries: np.ndarray, num_neighbors: int):
        self.searches += len(queries)
        distances = ((np.asarray(queries, np.float64)[:, None] - self.keys[None]) ** 2).sum(axis=-1)
        ids = np.argsort(distances, axis=1, kind="stable")[:, :num_neighbors]
        scores = np.take_along_axis(distances, ids, axis=1)
        missing = [(0, 0), (0, num_neighbors - ids.shape[1])]
        valid = np.pad(np.ones(ids.shape, bool), missing)
        return np.pad(scores, missing, constant_values=np.inf), np.pad(ids, missing, constant_values=-1), valid

    def values(self, ids: np.ndarray) -> np.ndarray:
        return self.tokens[ids]
