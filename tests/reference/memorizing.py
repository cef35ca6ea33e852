"""The Memorizing Transformer's attention in float64 loops, from the paper (arXiv:2203.08913, section 3) and, with
`meliad=True`, as the authors' published code behaves.

A document is read segment by segment for one row. The long memory is a list of slots with the number of the slot that
is overwritten next; the local cache is a queue.
"""

import collections
import dataclasses
import math

import numpy as np


@dataclasses.dataclass
class Entry:
    """Key and value of one token, `[heads, head_dim]`; `position` is its index in the document."""

    key: np.ndarray
    value: np.ndarray
    position: int
    valid: bool = True


@dataclasses.dataclass
class Retrieved:
    """What one head of one query took from memory: document positions, best first, and their softmax weights."""

    positions: list[int]
    weights: list[float]


class Row:
    """One row: reads segments, keeps cache and memory.

    Args:
      params: of the attention part.
      memory_length: slots; 0 = no long memory.
      num_neighbors: retrieved slots; None = all.
      cache_length: tokens of the local cache.
      local_window: keys of local attention, the query's own included; 0 = all. (The authors' code counts earlier keys
        only.)
      merge: 'gate', 'joint', 'add' or 'stop_forward' (the value of the forward pass).
      write: 'current' or 'evicted'.
      retrieval: 'exact' or 'bucket'.
      query_key_norm: whether queries and keys have unit length.
      max_distance: of the buckets.
      bias_scaling: 'learned' or 'always'.
      meliad: the authors' code.
    """

    def __init__(
        self,
        params: dict,
        *,
        memory_length: int = 0,
        num_neighbors: int | None = None,
        cache_length: int = 0,
        local_window: int = 0,
        merge: str = "gate",
        write: str = "current",
        retrieval: str = "exact",
        query_key_norm: bool = True,
        max_distance: int = 128,
        bias_scaling: str = "learned",
        meliad: bool = False,
    ) -> None:
        self.params, self.memory_length, self.num_neighbors = params, memory_length, num_neighbors
        self.local_window, self.merge, self.write, self.retrieval = local_window, merge, write, retrieval
        self.query_key_norm, self.max_distance, self.meliad = query_key_norm, max_distance, meliad
        self.bias_scaling = bias_scaling
        self.heads, self.head_dim = params["query"].shape[1:]
        self.cache_length = cache_length
        self.start()

    def start(self) -> None:
        """A document starts: nothing is remembered."""
        self.cache: collections.deque[Entry] = collections.deque()
        self.slots: list[Entry | None] = [None] * self.memory_length
        self.cursor, self.tokens = 0, 0
        if self.meliad:  # the cache holds zeros that take part
            zero = np.zeros((self.heads, self.head_dim))
            self.cache.extend(Entry(zero, zero, -1) for _ in range(self.cache_length))

    def read(self, x: np.ndarray, mask: np.ndarray | None = None) -> tuple[np.ndarray, list[list[Retrieved]]]:
        """Output `[length, dim]` of one segment, and what each query and head retrieved."""
        mask = np.ones(len(x), bool) if mask is None else mask
        normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * self.params["layer_norm"]["scale"]
        queries = np.einsum("ld,dhf->lhf", normed, self.params["query"])
        keys = np.einsum("ld,dhf->lhf", normed, self.params["key"])
        values = np.einsum("ld,dhf->lhf", normed, self.params["value"])
        if self.query_key_norm:
            queries, keys = (a / np.sqrt((a**2).sum(axis=-1, keepdims=True) + 1e-6) for a in (queries, keys))
        segment = [Entry(keys[i], values[i], self.tokens + i, bool(mask[i])) for i in range(len(x))]
        output, retrieved = x.copy(), []
        for i in range(len(x)):
            retrieved.append([])
            for h in range(self.heads):
                mixed, found = self._head(queries[i, h], h, i, [*self.cache, *segment])
                output[i] += mixed @ self.params["output"][h]
                retrieved[i].append(found)
        if mask.any():
            self._write(segment)
        return output, retrieved

    def _head(self, query: np.ndarray, h: int, i: int, local: list[Entry]) -> tuple[np.ndarray, Retrieved]:
        scale = abs(self.params["scale"][h]) if self.query_key_norm else 1 / math.sqrt(self.head_dim)
        here = len(self.cache) + i
        near = []  # (score, value) of local keys
        for j, entry in enumerate(local):
            distance = here - j
            if distance < (1 if self.meliad else 0) or not entry.valid:
                continue
            if self.local_window and distance >= self.local_window + (1 if self.meliad else 0):
                continue
            score = scale * (query @ entry.key[h])
            if "position_bias" in self.params:
                # T5 adds the bias to the scores as it is; the learned scale of normalised keys multiplies both.
                scaled = self.query_key_norm or self.bias_scaling == "always"
                score += (scale if scaled else 1.0) * self.params["position_bias"][h, self._bucket(distance)]
            near.append((score, entry.value[h]))
        if not self.memory_length:
            return _softmax_sum(near, self.head_dim), Retrieved([], [])

        chosen = self._neighbors(query, h)
        far = [(scale * (query @ e.key[h]), e.value[h]) if e else (0.0, np.zeros(self.head_dim)) for e in chosen]
        total = sum(math.exp(score) for score, _ in far)
        found = Retrieved([e.position if e else -1 for e in chosen], [math.exp(score) / total for score, _ in far])
        if self.merge == "joint":
            return _softmax_sum(far + near, self.head_dim), found
        from_memory, from_local = _softmax_sum(far, self.head_dim), _softmax_sum(near, self.head_dim)
        empty = not any(entry and entry.valid for entry in self.slots)
        match self.merge:
            case "add":
                return from_memory + from_local, found
            case "stop_forward":
                return (from_local if empty and not self.meliad else from_memory), found
            case _:
                gate = 1 / (1 + math.exp(-self.params["gate"][h]))
                if empty and not self.meliad:
                    gate = 0.0
                return gate * from_memory + (1 - gate) * from_local, found

    def _neighbors(self, query: np.ndarray, h: int) -> list[Entry | None]:
        """The chosen slots, best first; None stands for an empty slot that takes part as zeros (`meliad`)."""
        wanted = self.num_neighbors or self.memory_length
        scored = [(query @ e.key[h], number, e) for number, e in enumerate(self.slots) if e and e.valid]
        if self.retrieval == "bucket":
            best = {}
            for score, number, entry in scored:
                bucket = number % wanted
                if bucket not in best or score > best[bucket][0]:
                    best[bucket] = (score, number, entry)
            scored = list(best.values())
        chosen = [entry for _, _, entry in sorted(scored, key=lambda item: (-item[0], item[1]))][:wanted]
        return chosen + [None] * (wanted - len(chosen)) if self.meliad else chosen

    def _write(self, segment: list[Entry]) -> None:
        self.tokens += sum(entry.valid for entry in segment)
        self.cache.extend(segment)
        evicted = [self.cache.popleft() for _ in range(max(0, len(self.cache) - self.cache_length))]
        for entry in segment if self.write == "current" else evicted:
            if self.memory_length:
                self.slots[self.cursor] = entry
                self.cursor = (self.cursor + 1) % self.memory_length

    def _bucket(self, distance: int) -> int:
        """T5's unidirectional buckets."""
        buckets = self.params["position_bias"].shape[1]
        half = buckets // 2
        if distance < half:
            return distance
        octave = math.log(distance / half) / math.log(self.max_distance / half)
        return min(half + int(octave * (buckets - half) + 1e-9), buckets - 1)


def _softmax_sum(scored: list[tuple[float, np.ndarray]], width: int) -> np.ndarray:
    total = sum(math.exp(score) for score, _ in scored)
    return sum((math.exp(score) / total * value for score, value in scored), np.zeros(width))
