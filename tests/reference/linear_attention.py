"""Linear attention token by token, in float64, from the papers' equations."""

import numpy as np


def elu_plus_one(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def random_features(x: np.ndarray, directions: np.ndarray, scale: float = 0.1) -> np.ndarray:
    """One vector per row of `x`; `directions` `[D, head_dim]`."""
    features = []
    for vector in x:
        unit = vector / (np.sqrt((vector**2).sum()) + 1e-3)
        features.append([np.sin(w @ unit) for w in directions] + [np.cos(w @ unit) for w in directions])
    return scale * np.array(features)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale + bias


def attend(queries, keys, values, *, divide, decay=None, mask=None) -> np.ndarray:
    """One head of one row: `queries`, `keys` `[length, features]`, `values` `[length, value_dim]`.

    `divide(q, z, count)` is the normalizer; `decay` `[length]` multiplies the sums before each token.
    """
    products = np.zeros((keys.shape[1], values.shape[1]))
    total, count, outputs = np.zeros(keys.shape[1]), 0, []
    for t in range(len(keys)):
        if mask is None or mask[t]:
            gate = 1.0 if decay is None else decay[t]
            products = gate * products + np.outer(keys[t], values[t])
            total = gate * total + keys[t]
            count += 1
        outputs.append(queries[t] @ products / divide(queries[t], total, count))
    return np.array(outputs)


def memsizer(x: np.ndarray, params: dict[str, np.ndarray], source: np.ndarray | None = None) -> np.ndarray:
    """One row: `x` `[length, dim]`. Causal over `x` itself, or all of `source`; every head alone, then their mean."""
    source_rows = x if source is None else source
    written = []
    for row in source_rows:
        slots = layer_norm(
            row @ params["slot_kernel"] + params["slot_bias"], params["slot_scale"], params["slot_shift"]
        )
        value = row @ params["value_kernel"] + params["value_bias"]
        written.append(np.outer(slots, layer_norm(value, params["value_scale"], params["value_shift"])))
    outputs = []
    for t, row in enumerate(x):
        seen = written[: t + 1] if source is None else written
        memory = sum(seen) / np.sqrt(len(seen))
        heads = params["query"].shape[1]
        outputs.append(
            np.mean(
                [softmax(row @ params["query"][:, h] + params["query_bias"][h]) @ memory for h in range(heads)], axis=0
            )
        )
    return np.array(outputs)
