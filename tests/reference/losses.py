"""Cross-entropy by the definition, token by token."""

import numpy as np


def cross_entropy(logits: np.ndarray, target: int, label_smoothing: float) -> float:
    """`-sum_v wanted(v) log p(v)` of one token; `wanted` is the smoothed one-hot of the target."""
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    wanted = [(v == target) * (1 - label_smoothing) + label_smoothing / len(logits) for v in range(len(logits))]
    return -sum(w * np.log(p) for w, p in zip(wanted, probabilities, strict=True))
