"""SPALM's output in float64 loops, from the equations of Yogatama et al. 2021 (arXiv:2102.02557)."""

import math

import numpy as np


def gate(hidden: np.ndarray, weight: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
    """`g = sigmoid(w_g h)`; a matrix of weights gives one gate per dimension."""
    columns = weight.reshape(len(hidden), -1)
    scores = np.array([sum(h * w for h, w in zip(hidden, column, strict=True)) for column in columns.T]) + bias
    return np.array([1 / (1 + math.exp(-score)) for score in scores])


def recall(hidden: np.ndarray, neighbors: list[np.ndarray]) -> np.ndarray:
    """`m = sum_k softmax_k(y_k h) y_k` over the neighbours' embeddings."""
    scores = [sum(y * h for y, h in zip(neighbor, hidden, strict=True)) for neighbor in neighbors]
    weights = [math.exp(score - max(scores)) for score in scores]
    return sum(weight / sum(weights) * neighbor for weight, neighbor in zip(weights, neighbors, strict=True))


def mix(hidden: np.ndarray, table: np.ndarray, values, weight: np.ndarray, bias: np.ndarray | float = 0.0, scale=1.0):
    """`z = (1 - g) scale m + g h`, and `h` where no value is a token (-1); as published, scale is 1."""
    neighbors = [table[value] for value in values if value >= 0]
    if not neighbors:
        return hidden
    g = gate(hidden, weight, bias)
    return (1 - g) * scale * recall(hidden, neighbors) + g * hidden
