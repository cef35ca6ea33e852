"""Product-key memory (Lample et al. 2019) in float64 with loops: every key of the product is written out."""

import numpy as np


def product_keys(first, second):
    """All `keys ** 2` keys of one head, slot `i * keys + j` = (first[i], second[j])."""
    return np.stack([np.concatenate([a, b]) for a in first for b in second])


def scores(queries, keys):
    """`[tokens, heads, slots]`.

    Args:
      queries: `[tokens, heads, 2, half]`.
      keys: `[heads, 2, keys, half]`.
    """
    tokens, heads = queries.shape[:2]
    return np.stack(
        [np.stack([product_keys(*keys[h]) @ queries[n, h].reshape(-1) for h in range(heads)]) for n in range(tokens)]
    )


def best_slots(queries, keys, num_neighbors):
    """Slots of the largest scores, best first, and their scores: `[tokens, heads, neighbors]` each."""
    every = scores(queries, keys)
    ids = np.argsort(-every, axis=-1, kind="stable")[..., :num_neighbors]
    return ids, np.take_along_axis(every, ids, axis=-1)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def memory(queries, keys, values, num_neighbors):
    """`sum_h sum_{i best of h} softmax(scores)_i values_i` for every token."""
    ids, found = best_slots(queries, keys, num_neighbors)
    y = np.zeros((len(queries), values.shape[1]))
    for n, h in np.ndindex(*ids.shape[:2]):
        for slot, weight in zip(ids[n, h], softmax(found[n, h]), strict=True):
            y[n] += weight * values[slot]
    return y


def table_gradient(rows, ids, weights, gradients):
    """The dense gradient of a table: every lookup adds its weight times the gradient of its bag."""
    total = np.zeros((rows, gradients.shape[1]))
    for n, slots in enumerate(ids):
        for slot, weight in zip(slots, weights[n], strict=True):
            if slot < rows:
                total[slot] += weight * gradients[n]
    return total


def lazy_adam(table, mu, nu, gradient, step, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    """Dense-mask form: rows whose gradient is zero keep value and moments; bias correction by the global step."""
    table, mu, nu = table.copy(), mu.copy(), nu.copy()
    for r in range(len(table)):
        if not gradient[r].any():
            continue
        mu[r] = b1 * mu[r] + (1 - b1) * gradient[r]
        nu[r] = b2 * nu[r] + (1 - b2) * gradient[r] ** 2
        table[r] -= rate * (mu[r] / (1 - b1**step)) / (np.sqrt(nu[r] / (1 - b2**step)) + eps)
    return table, mu, nu
