"""Compressive Transformer in float64 loops, from the paper (arXiv:1911.05507, algorithms 1 and 2).

Parameters are those of `memjax.memory.compressive`. Every function is for one row; `None` is an empty slot.
"""

import collections

import numpy as np

from tests.reference.attention import softmax_over
from tests.reference.transformer_xl import layer_norm, sinusoid


def windows(old: list, rate: int) -> list[list]:
    """Runs of `rate` slots that end at the newest one."""
    first = len(old) % rate
    return [old[begin : begin + rate] for begin in range(first, len(old), rate)]


def max_pool(old, rate) -> np.ndarray:
    return np.array([[max(slot[f] for slot in window) for f in range(len(old[0]))] for window in windows(old, rate)])


def mean_pool(old, rate) -> np.ndarray:
    return np.array([sum(window) / rate for window in windows(old, rate)])


def strided_convolution(old, kernel) -> np.ndarray:
    rate = len(kernel)
    return np.array([sum(slot @ matrix for slot, matrix in zip(w, kernel, strict=True)) for w in windows(old, rate)])


def dilated_convolutions(old, kernels, dilations) -> np.ndarray:
    for kernel, dilation in zip(kernels, dilations, strict=True):
        nothing = np.zeros(len(old[0]))
        old = [
            np.maximum((old[t - dilation] if t >= dilation else nothing) @ kernel[0] + old[t] @ kernel[1], 0)
            for t in range(len(old))
        ]
    return np.array(old)


def most_used(old, usage, rate) -> list[int]:
    """Places of the slots that are kept; an empty slot has usage None."""
    ranked = sorted(range(len(old)), key=lambda i: (usage[i] is None, -(usage[i] or 0), i))
    return sorted(ranked[: len(old) // rate])


def content_attention(queries, keys, values) -> np.ndarray:
    """`[length, heads, head_dim]`, every query sees every key."""
    out = np.zeros(queries.shape)
    for i, h in np.ndindex(*queries.shape[:2]):
        weights = softmax_over([queries[i, h] @ key[h] / np.sqrt(queries.shape[2]) for key in keys])
        out[i, h] = sum(weight * value[h] for weight, value in zip(weights, values, strict=True))
    return out


def attention_reconstruction(queries, old_keys, old_values, new_keys, new_values) -> np.ndarray:
    """Squared differences `[length, heads, head_dim]`."""
    old = content_attention(queries, old_keys, old_values)
    return (old - content_attention(queries, new_keys, new_values)) ** 2


class Layer:
    """One attention part that reads a document segment by segment.

    Attributes:
      memory: (stored input, attention received, queries that could attend) of the last tokens, oldest first.
      compressed: the compressed slots, oldest first; None where a window held an empty slot.
      losses: (total, weight) of the auxiliary loss of each segment.
    """

    def __init__(
        self,
        params,
        *,
        memory_length,
        compressed_length,
        rate,
        compression,
        compression_loss="attention",
        compressed_positions="separate",
        norm="post",
        dilations=(),
        clamp_length=0,
    ):
        self.params, self.rate, self.compression, self.loss = params, rate, compression, compression_loss
        self.positions, self.norm, self.dilations, self.clamp_length = (
            compressed_positions,
            norm,
            dilations,
            clamp_length,
        )
        self.memory = collections.deque([None] * memory_length, maxlen=memory_length)
        self.compressed = collections.deque([None] * compressed_length, maxlen=compressed_length)
        self.losses = []

    def read(self, hidden: np.ndarray) -> np.ndarray:
        """Output of one segment; the segment then enters the memory."""
        p, norm = self.params, lambda x: layer_norm(x, self.params["layer_norm"])
        normed = norm(hidden) if self.norm != "post" else hidden
        recall = (lambda x: norm(x[None])[0]) if self.norm == "pre" else (lambda x: x)
        key = lambda x: np.stack([x @ p["key_value"][:, 0, h] for h in range(heads)])
        value = lambda x: np.stack([x @ p["key_value"][:, 1, h] for h in range(heads)])
        u, v = p["biases"]["content"], p["biases"]["position"]
        heads, head_dim = u.shape
        queries = np.einsum("ld,dhe->lhe", normed, p["query"])
        length, before, compressed = len(hidden), len(self.memory), len(self.compressed)

        output = np.zeros(hidden.shape)
        for i in range(length):
            for h in range(heads):
                scores, values, sources = [], [], []
                for j in range(compressed + before + i + 1):
                    v_here, matrix = v[h], p["relative"][:, h]
                    if j < compressed:
                        slot, source = self.compressed[j], None
                        distance = compressed + before + i - j
                        if self.positions == "separate":  # as if the compressed memory ended at the segment
                            distance = compressed + i - j
                            v_here, matrix = p["compressed_position"][h], p["compressed_relative"][:, h]
                    else:
                        distance = compressed + before + i - j
                        source = self.memory[j - compressed] if j < compressed + before else None
                        slot = normed[j - compressed - before] if j >= compressed + before else source and source["x"]
                    if slot is None:
                        continue
                    content = recall(slot) if j < compressed + before else slot
                    position = sinusoid(min(distance, self.clamp_length or distance), hidden.shape[1]) @ matrix
                    score = (queries[i, h] + u[h]) @ key(content)[h] + (queries[i, h] + v_here) @ position
                    scores.append(score / np.sqrt(head_dim))
                    values.append(value(content)[h])
                    sources.append(source)
                weights = softmax_over(scores)
                for weight, content, source in zip(weights, values, sources, strict=True):
                    output[i] += weight * content @ p["output"][h]
                    if source is not None:
                        source["usage"] += weight / heads
        for entry in self.memory:
            if entry is not None:
                entry["queries"] += length
        self.write(normed if self.norm == "pre_sonnet" else hidden, queries, key, value, recall)
        output = hidden + output
        return norm(output) if self.norm == "post" else output

    def write(self, stored, queries, key, value, recall) -> None:
        """Compresses the oldest entries, then appends the segment."""
        entries = [{"x": x, "usage": 0.0, "queries": 0} for x in stored]
        before, old = len(self.memory), (list(self.memory) + entries)[: len(stored)]
        new, stands_for = self.compress(old)
        self.memory.extend(entries)
        self.compressed.extend(new)
        pairs = [(n, window) for n, window in zip(new, stands_for, strict=True) if n is not None]
        total, weight = 0.0, 0
        if pairs and self.loss == "attention":
            covered = [recall(x) for _, window in pairs for x in window]
            if self.compression == "most_used":
                covered = [recall(entry["x"]) for entry in old if entry is not None]
            kept = [recall(n) for n, _ in pairs]
            of = lambda slots: ([key(x) for x in slots], [value(x) for x in slots])
            # Query i stands at place `before + i` of memory and segment: at the last compressed token, or behind it.
            if self.compression == "most_used":
                last = max(place for place, entry in enumerate(old) if entry is not None)
            else:
                runs = zip(new, windows(range(len(old)), self.rate), strict=True)
                last = max(places[-1] for n, places in runs if n is not None)
            queries = queries[max(0, last - before) :]
            squares = attention_reconstruction(queries, *of(covered), *of(kept))
            total, weight = squares.mean(axis=(1, 2)).sum(), len(queries)
        if self.loss == "auto_encoding":
            for n, window in pairs:
                for matrix, x in zip(self.params["decompression_kernel"], window, strict=True):
                    total, weight = total + ((n @ matrix - x) ** 2).mean(), weight + 1
        self.losses.append((total, weight))

    def compress(self, old) -> tuple[list, list]:
        """The new slots (None = invalid), and the old ones that each stands for."""
        p = self.params
        if self.compression == "most_used":
            usage = [None if e is None else e["usage"] / max(e["queries"], 1) for e in old]
            kept = [old[place] for place in most_used(old, usage, self.rate)]
            return [e and e["x"] for e in kept], [[e and e["x"]] for e in kept]
        dim = len(next(e["x"] for e in old if e is not None)) if any(e is not None for e in old) else 1
        filled = [np.zeros(dim) if e is None else e["x"] for e in old]
        if not any(e is not None for e in old):
            return [None] * (len(old) // self.rate), [[]] * (len(old) // self.rate)
        match self.compression:
            case "max":
                new = max_pool(filled, self.rate)
            case "mean":
                new = mean_pool(filled, self.rate)
            case "convolution":
                new = strided_convolution(filled, p["compression_kernel"])
            case "dilated":
                deep = dilated_convolutions(filled, p["dilated_kernels"], self.dilations)
                new = strided_convolution(deep, p["compression_kernel"])
        whole = [all(e is not None for e in window) for window in windows(old, self.rate)]
        stands_for = [[e["x"] for e in window if e is not None] for window in windows(old, self.rate)]
        return [n if ok else None for n, ok in zip(new, whole, strict=True)], stands_for
