"""The continuous cache in float64, token by token, from the equations of Grave et al. 2017 (arXiv:1612.04426)."""

import math
from collections import deque

import numpy as np


class Cache:
    """One document stream: the last pairs of a hidden state and the token that came after it."""

    def __init__(self, memory_length: int, *, similarity: str = "dot", scale: float = 1.0, across_documents=False):
        self.pairs: deque = deque(maxlen=memory_length)
        self.similarity, self.scale, self.across_documents = similarity, scale, across_documents
        self.last = None

    def start(self) -> None:
        """A new document."""
        self.last = None
        if not self.across_documents:
            self.pairs.clear()

    def read(self, token: int, hidden: np.ndarray) -> list[tuple[float, int]]:
        """Reads a token, after which the model's state is `hidden`: (theta times similarity, token) of every pair."""
        if self.last is not None:
            self.pairs.append((self.last, token))
        self.last = np.asarray(hidden, np.float64)
        return [(self.scale * self.compare(self.last, old), after) for old, after in self.pairs]

    def compare(self, a: np.ndarray, b: np.ndarray) -> float:
        product = sum(x * y for x, y in zip(a, b, strict=True))
        if self.similarity == "dot":
            return product
        if self.similarity == "cosine":
            return product / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))
        return -sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def cache_probs(scored: list[tuple[float, int]], vocab_size: int) -> np.ndarray:
    """`p_cache(w)`, proportional to the sum over pairs of token w of `exp(score)`; all 0 without pairs."""
    probs = np.zeros(vocab_size)
    for score, token in scored:
        probs[token] += math.exp(score - max(s for s, _ in scored))
    return probs / probs.sum() if scored else probs


def linear(logits: np.ndarray, scored: list[tuple[float, int]], weight: float) -> np.ndarray:
    """`(1 - lambda) p_vocab + lambda p_cache`; the model alone while the cache is empty."""
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    return (1 - weight) * probs + weight * cache_probs(scored, len(logits)) if scored else probs


def joint(logits: np.ndarray, scored: list[tuple[float, int]], offset: float) -> np.ndarray:
    """`p(w)` proportional to `exp(logit_w)` plus the sum over pairs of token w of `exp(score + alpha)`."""
    masses = np.exp(logits)
    for score, token in scored:
        masses[token] += math.exp(score + offset)
    return masses / masses.sum()
