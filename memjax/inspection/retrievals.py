"""What tokens retrieve from a long memory, as arrays (Wu et al. 2022, https://arxiv.org/abs/2203.08913)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.inspection.attention_ages import read_tracked
from memjax.memory.contract import Absent
from memjax.memory.projections import RETRIEVED, SOURCES, WEIGHTS
from memjax.models.contract import Model
from memjax.typing import Batch

__all__ = ["Retrieval", "Retrievals", "retrievals"]

POSITIONS = "neighbor_positions"


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """What one token retrieved.

    Attributes:
      row: of the batch.
      position: of the token in its document.
      token: its id.
      positions: of the retrieved tokens, each once, the one with the largest weight first.
      weights: of each, a share of the output of the layer: mean over its heads.
    """

    row: int
    position: int
    token: int
    positions: Int[np.ndarray, " retrieved"]
    weights: Float[np.ndarray, " retrieved"]


@dataclasses.dataclass(frozen=True)
class Retrievals:
    """What the tokens of consecutive segments retrieve, in every layer with a long memory.

    Attributes:
      layers: 0-based: axis 0 of the arrays.
      tokens: int `[batch, length]`, of all segments.
      places: int `[batch, length]`, the position of each in its document; -1 = padding.
      document: int `[batch, length]`, 0, 1, ...: which document of its row it is in.
      positions: int `[layers, batch, heads, length, neighbors]`, of what was retrieved, in the same document; -1 =
        none.
      weights: `[layers, batch, heads, length, neighbors]`, what each adds to the output of its head, in parts of 1.
      reach: tokens from which on nothing is in the segment or the cache of these layers.
    """

    layers: tuple[int, ...]
    tokens: Int[np.ndarray, "batch length"]
    places: Int[np.ndarray, "batch length"]
    document: Int[np.ndarray, "batch length"]
    positions: Int[np.ndarray, "layers batch heads length neighbors"]
    weights: Float[np.ndarray, "layers batch heads length neighbors"]
    reach: int

    def of_token(self, layer: int, row: int, index: int) -> Retrieval:
        """What one token retrieved.

        Args:
          layer: index into `layers`.
          row: of the batch.
          index: into `tokens[row]`.
        """
        heads = self.positions.shape[2]
        positions, weights = (values[layer, row, :, index].ravel() for values in (self.positions, self.weights))
        found, which = np.unique(positions[positions >= 0], return_inverse=True)
        sums = np.bincount(which, weights[positions >= 0], minlength=len(found)) / heads
        order = np.argsort(-sums, kind="stable")
        where = int(self.places[row, index])
        return Retrieval(row, where, int(self.tokens[row, index]), found[order], sums[order])

    def text(self, row: int, index: int, position: int, around: int) -> Int[np.ndarray, " tokens"]:
        """Ids around a position of the document that a token is in.

        Args:
          row: of the batch.
          index: of that token, into `tokens[row]`.
          position: in the document.
          around: tokens at each side, fewer at the ends of what was read of the document.
        """
        same = (self.document[row] == self.document[row, index]) & (self.places[row] >= 0)
        return self.tokens[row, same & (np.abs(self.places[row] - position) <= around)]

    def same_token(self, layer: int) -> tuple[float, float]:
        """The share of what is retrieved that lies on tokens of the id of the one that asks, and that of such tokens
        in what was read of the document before it.

        Args:
          layer: index into `layers`.
        """
        rows, length = self.tokens.shape
        back = self.places[:, None, :, None] - self.positions[layer]  # [batch, heads, length, neighbors], tokens ago
        index = np.clip(np.arange(length)[None, None, :, None] - back, 0, length - 1)
        asked = self.tokens[:, None, :, None]
        found = self.tokens[np.arange(rows)[:, None, None, None], index]
        weights = np.where((self.positions[layer] >= 0) & (self.places >= 0)[:, None, :, None], self.weights[layer], 0)
        reads, chances = self._reads(layer), []
        for row in range(rows):
            seen: dict[int, int] = {}
            for place in range(length):
                where, token = int(self.places[row, place]), int(self.tokens[row, place])
                seen = {} if where == 0 else seen
                if reads[row, place]:
                    chances.append(seen.get(token, 0) / where)
                seen[token] = seen.get(token, 0) + int(where >= 0)
        total = float(weights.sum())
        return float(weights[found == asked].sum()) / total if total else 0.0, float(np.mean(chances or [0.0]))

    def sharpest(self, layer: int, count: int, since: int = 0) -> list[tuple[int, int]]:
        """Row and index of tokens whose attention is most on one retrieved position, each id once.

        Positions that only the memory reaches (`reach`) come first.

        Args:
          layer: index into `layers`.
          count: how many.
          since: index of the first token of each row that counts.
        """
        best: dict[int, tuple[bool, float, int, int]] = {}
        for row, index in np.argwhere(self._reads(layer) & (np.arange(self.tokens.shape[1]) >= since)).tolist():
            found = self.of_token(layer, row, index)
            far = found.position - int(found.positions[0]) >= self.reach
            mine = far, float(found.weights[0]), row, index
            if found.token not in best or mine[:2] > best[found.token][:2]:
                best[found.token] = mine
        return [
            (row, index) for _, _, row, index in sorted(best.values(), key=lambda one: one[:2], reverse=True)[:count]
        ]

    def _reads(self, layer: int) -> Bool[np.ndarray, "batch length"]:
        """Tokens that retrieve anything."""
        return (self.positions[layer] >= 0).any(axis=(1, 3)) & (self.places >= 0)


def retrievals(model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]) -> Retrievals:
    """Reads consecutive segments from an empty memory and keeps what their tokens retrieve.

    Args:
      model: a language model with a long memory in some layer.
      variables: of the model.
      segments: consecutive.

    Raises:
      ValueError: layers that cannot be tracked, or none that retrieves.
    """
    found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    reach = 0
    for _, layers in read_tracked(model, variables, segments):
        for layer, arrays in layers.items():
            if POSITIONS in arrays:
                chosen = np.flatnonzero(arrays[SOURCES] == RETRIEVED)
                reach = len(arrays[SOURCES]) - len(chosen)
                found.setdefault(layer, []).append((arrays[POSITIONS], arrays[WEIGHTS][..., chosen]))
    if not found:
        raise Absent("retrievals: given a model without a long memory, allowed: one that retrieves in some layer")
    joined = lambda part: np.stack([np.concatenate([one[part] for one in each], axis=2) for each in found.values()])
    places, document = _places(segments)
    tokens = np.concatenate([np.asarray(batch.inputs) for batch in segments], axis=1)
    return Retrievals(tuple(found), tokens, places, document, joined(0), joined(1), reach)


def _places(segments: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Position of every token in its document, -1 for padding, and the number of the document in its row."""
    rows = len(segments[0].mask)
    position, number = np.zeros((rows, 1), np.int64), np.full((rows, 1), -1)
    places, document = [], []
    for batch in segments:
        start, mask = np.asarray(batch.start_of_document)[:, None], np.asarray(batch.mask)
        position, number = np.where(start, 0, position), number + start
        places.append(np.where(mask, position + np.arange(mask.shape[1]), -1))
        document.append(np.broadcast_to(number, mask.shape))
        position = position + mask.sum(axis=1, keepdims=True)
    return np.concatenate(places, axis=1), np.concatenate(document, axis=1)
