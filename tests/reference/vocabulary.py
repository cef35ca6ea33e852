"""Adaptive embeddings and softmax in float64 loops over tokens and clusters, from the papers (arXiv:1609.04309 and
1809.10853) and the layout of Transformer-XL: the head scores the short list, then one column per tail cluster."""

import numpy as np


def clusters(cutoffs: tuple[int, ...], vocab_size: int) -> list[range]:
    edges = [0, *cutoffs, vocab_size]
    return [range(first, last) for first, last in zip(edges[:-1], edges[1:], strict=True)]


def embed(token: int, params: dict, cutoffs: tuple[int, ...], vocab_size: int, *, output: bool = False) -> np.ndarray:
    """Embedding of one token in the width of the model, unscaled; with `output` its output weights."""
    for index, ids in enumerate(clusters(cutoffs, vocab_size)):
        if token in ids:
            row = params[f"embedding_{index}"][token - ids.start]
            return row if f"projection_{index}" not in params else row @ _projection(params, index, output)
    raise ValueError(token)


def log_probs(hidden: np.ndarray, params: dict, cutoffs: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Log-probabilities of every token after one hidden state."""
    result = np.zeros(vocab_size)
    ranges = clusters(cutoffs, vocab_size)
    head = list(np.concatenate([params["embedding_0"], params["cluster_weight"]]))
    biases = list(np.concatenate([params["bias_0"], params["cluster_bias"]]))
    head_log_probs = _log_softmax(
        [row @ _down(hidden, params, 0) + bias for row, bias in zip(head, biases, strict=True)]
    )
    result[: len(ranges[0])] = head_log_probs[: len(ranges[0])]
    for index, ids in enumerate(ranges[1:], start=1):
        rows, bias = params[f"embedding_{index}"], params[f"bias_{index}"]
        scores = [row @ _down(hidden, params, index) + b for row, b in zip(rows, bias, strict=True)]
        result[ids.start : ids.stop] = head_log_probs[len(ranges[0]) + index - 1] + np.array(_log_softmax(scores))
    return result


def _projection(params: dict, index: int, output: bool) -> np.ndarray:
    own = f"output_projection_{index}"
    return params[own] if output and own in params else params[f"projection_{index}"]


def _down(hidden: np.ndarray, params: dict, index: int) -> np.ndarray:
    return hidden @ _projection(params, index, True).T if f"projection_{index}" in params else hidden


def _log_softmax(scores: list[float]) -> list[float]:
    total = np.log(sum(np.exp(score) for score in scores))
    return [score - total for score in scores]
