"""Transformer-XL in float64 loops over rows, heads, queries and keys, from the paper (arXiv:1901.02860, section 3.3).

Parameters are those of `memjax.models`, one dictionary per layer (`layers_of`). Every function is for one row.
"""

from collections.abc import Callable

import numpy as np


def float64(tree):
    if isinstance(tree, dict):
        return {name: float64(value) for name, value in tree.items()}
    return np.asarray(tree, np.float64)


def layers_of(params) -> list[dict]:
    """Layers in order from the parameters of a language model without scanned layers."""
    stack = {name: value for name, value in float64(params["stack"]).items() if name.startswith("layers_")}
    return [stack[f"layers_{index}"] for index in range(len(stack))]


def sinusoid(distance: float, dim: int) -> np.ndarray:
    angles = [distance / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return np.array([np.sin(a) for a in angles] + [np.cos(a) for a in angles])


def layer_norm(x: np.ndarray, params: dict) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * params["scale"] + params["bias"]


def attention_part(
    hidden: np.ndarray,
    memory: np.ndarray,
    params: dict,
    *,
    biases: dict | None = None,
    norm: str = "post",
    clamp_length: int = 0,
    sees: Callable[[int, int], bool] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output `[length, dim]` and weights `[heads, length, memory + length]`.

    Args:
      hidden: the part's input.
      memory: remembered inputs, oldest first.
      params: of the part.
      biases: u and v where the part has none of its own.
      norm: 'pre' or 'post'.
      clamp_length: largest distance; 0 = off.
      sees: (query, key) -> whether the query sees the key, indices in `memory ++ hidden`; None = all that precede.
    """
    length, dim = hidden.shape
    before = len(memory)
    context = np.concatenate([memory, hidden])
    read = layer_norm(context, params["layer_norm"]) if norm == "pre" else context
    biases = biases or params["biases"]
    heads, head_dim = biases["content"].shape
    weights = np.zeros((heads, length, before + length))
    output = np.zeros((length, dim))
    for h in range(heads):
        key_matrix, value_matrix = params["key_value"][:, 0, h], params["key_value"][:, 1, h]
        for i in range(length):
            query = read[before + i] @ params["query"][:, h]
            scores = {}
            for j in range(before + i + 1):
                if sees is not None and not sees(before + i, j):
                    continue
                distance = before + i - j
                if clamp_length:
                    distance = min(distance, clamp_length)
                position = sinusoid(distance, dim) @ params["relative"][:, h]
                content = (query + biases["content"][h]) @ (read[j] @ key_matrix)
                scores[j] = (content + (query + biases["position"][h]) @ position) / np.sqrt(head_dim)
            total = sum(np.exp(score) for score in scores.values())
            for j, score in scores.items():
                weights[h, i, j] = np.exp(score) / total
                output[i] += weights[h, i, j] * (read[j] @ value_matrix) @ params["output"][h]
    output = hidden + output
    return (layer_norm(output, params["layer_norm"]) if norm == "post" else output), weights


def feed_forward_part(hidden: np.ndarray, params: dict, *, norm: str = "post") -> np.ndarray:
    read = layer_norm(hidden, params["layer_norm"]) if norm == "pre" else hidden
    wide = np.maximum(read @ params["wide"]["kernel"] + params["wide"]["bias"], 0)
    output = hidden + wide @ params["narrow"]["kernel"] + params["narrow"]["bias"]
    return layer_norm(output, params["layer_norm"]) if norm == "post" else output


def segmented(
    x: np.ndarray, params: list[dict], *, segment_length: int, memory_length: int, window: int = 0, **options
) -> np.ndarray:
    """The document `x` `[tokens, dim]` through all layers, one segment after the other with memory.

    Args:
      x: embeddings of the document.
      params: of the layers; a layer without `feed_forward` has an attention part only.
      segment_length: tokens read at once.
      memory_length: remembered inputs of each layer.
      window: keys that a query sees, itself included; 0 = all.
      **options: of `attention_part`.
    """
    memories = [np.zeros((0, x.shape[1])) for _ in params]
    outputs = []
    for first in range(0, len(x), segment_length):
        hidden = x[first : first + segment_length]
        for index, layer in enumerate(params):
            sees = (lambda query, key: query - key < window) if window else None
            old, memory = hidden, memories[index]
            hidden, _ = attention_part(hidden, memory, layer["attention"], sees=sees, **options)
            if "feed_forward" in layer:
                hidden = feed_forward_part(hidden, layer["feed_forward"], norm=options.get("norm", "post"))
            both = np.concatenate([memory, old])
            memories[index] = both[len(both) - min(memory_length, len(both)) :]
        outputs.append(hidden)
    return np.concatenate(outputs)


def full(x: np.ndarray, params: list[dict], *, sees: Callable[[int, int], bool], **options) -> np.ndarray:
    """The whole document at once, without memory: every query sees the keys that `sees` allows, in every layer."""
    hidden = x
    for layer in params:
        hidden, _ = attention_part(hidden, hidden[:0], layer["attention"], sees=sees, **options)
        if "feed_forward" in layer:
            hidden = feed_forward_part(hidden, layer["feed_forward"], norm=options.get("norm", "post"))
    return hidden
