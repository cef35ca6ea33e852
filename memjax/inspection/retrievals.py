"""Records which earlier tokens are retrieved from a long memory (Wu et al. 2022, https://arxiv.org/abs/2203.08913)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.inspection.attention_ages import read_with_attention
from memjax.memory.interface import NotProvided
from memjax.memory.layer_parts import RETRIEVED, SOURCES, WEIGHTS
from memjax.models.interface import Model
from memjax.typing import Batch

__all__ = ["Retrieval", "Retrievals", "retrievals"]

POSITIONS = "neighbor_positions"


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """A token and the earlier tokens of its document that it retrieved in one layer.

    Attributes:
      row: Row of the token in the batch.
      position: Position of the token in its document.
      token: Id of the token.
      positions: Positions of the retrieved tokens in the document, each once, the largest weight first `[retrieved]`.
      weights: Weight of each retrieved token, its share of the layer's output, mean over heads `[retrieved]`.
    """

    row: int
    position: int
    token: int
    positions: Int[np.ndarray, " retrieved"]
    weights: Float[np.ndarray, " retrieved"]


@dataclasses.dataclass(frozen=True)
class Retrievals:
    """Positions and weights of the earlier tokens that every token of consecutive segments retrieves, in every layer
    with a long memory.

    Attributes:
      layers: Numbers of the layers with a long memory, from 0, along axis 0 of `positions` and `weights`.
      tokens: Ids of the tokens of all segments, int `[batch, length]`.
      places: Position of each token in its document, int `[batch, length]`. -1 for padding.
      document: Number of each token's document in its row, from 0, int `[batch, length]`.
      positions: Positions of the retrieved tokens in the same document, int `[layers, batch, heads, length,
        neighbors]`. -1 for none.
      weights: Share of each retrieved token in the output of its head, `[layers, batch, heads, length, neighbors]`.
      reach: Distance in tokens from which on a token is neither in the segment nor in the cache of these layers, so
        that only the long memory holds it.
    """

    layers: tuple[int, ...]
    tokens: Int[np.ndarray, "batch length"]
    places: Int[np.ndarray, "batch length"]
    document: Int[np.ndarray, "batch length"]
    positions: Int[np.ndarray, "layers batch heads length neighbors"]
    weights: Float[np.ndarray, "layers batch heads length neighbors"]
    reach: int

    def of_token(self, layer: int, row: int, index: int) -> Retrieval:
        """Returns the `Retrieval` of the token `tokens[row, index]` in one layer: the positions that it retrieved, each
        once, with its mean weight over heads. `layer` is an index into `layers`.

        Args:
          layer: Index into `layers`.
          row: Row of the batch.
          index: Index of the token in `tokens[row]`.
        """
        heads = self.positions.shape[2]
        positions, weights = (values[layer, row, :, index].ravel() for values in (self.positions, self.weights))
        distinct, which = np.unique(positions[positions >= 0], return_inverse=True)
        sums = np.bincount(which, weights[positions >= 0], minlength=len(distinct)) / heads
        order = np.argsort(-sums, kind="stable")
        position = int(self.places[row, index])
        return Retrieval(row, position, int(self.tokens[row, index]), distinct[order], sums[order])

    def text(self, row: int, index: int, position: int, around: int) -> Int[np.ndarray, " tokens"]:
        """Returns the token ids around a position of the document that contains the token `tokens[row, index]`: those
        at most `around` tokens away.

        Args:
          row: Row of the batch.
          index: Index of the given token in `tokens[row]`.
          position: Position in its document.
          around: Number of tokens at each side. There are fewer at the ends of the part that was read.
        """
        same = (self.document[row] == self.document[row, index]) & (self.places[row] >= 0)
        return self.tokens[row, same & (np.abs(self.places[row] - position) <= around)]

    def same_token(self, layer: int) -> tuple[float, float]:
        """Measures how much of the retrieved weight in a layer falls on earlier tokens with the id of the token that
        retrieves. Returns this share, and the share that retrieval at random would have. `layer` is an index into
        `layers`.

        Args:
          layer: Index into `layers`.

        Returns:
          That share, and the share of such occurrences among all earlier tokens of the document, mean over the tokens
          that retrieve: the share that retrieval at random would have.
        """
        rows, length = self.tokens.shape
        back = self.places[:, None, :, None] - self.positions[layer]  # [batch, heads, length, neighbors], tokens ago
        index = np.clip(np.arange(length)[None, None, :, None] - back, 0, length - 1)
        query_ids = self.tokens[:, None, :, None]
        retrieved_ids = self.tokens[np.arange(rows)[:, None, None, None], index]
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
        share = float(weights[retrieved_ids == query_ids].sum()) / total if total else 0.0
        return share, float(np.mean(chances or [0.0]))

    def sharpest(self, layer: int, count: int, since: int = 0) -> list[tuple[int, int]]:
        """Finds the tokens, at most `count`, with the largest weight on a single retrieved position, each token id
        once. Returns their rows and indices. Tokens before index `since` of a row are left out. `layer` is an index
        into `layers`.

        Tokens whose position only the long memory reaches (`reach`) come first.

        Args:
          layer: Index into `layers`.
          count: Largest number of tokens.
          since: Index of the first token of each row that is considered.

        Returns:
          Row and index of each token.
        """
        best: dict[int, tuple[bool, float, int, int]] = {}
        for row, index in np.argwhere(self._reads(layer) & (np.arange(self.tokens.shape[1]) >= since)).tolist():
            retrieval = self.of_token(layer, row, index)
            is_far = retrieval.position - int(retrieval.positions[0]) >= self.reach
            candidate = is_far, float(retrieval.weights[0]), row, index
            if retrieval.token not in best or candidate[:2] > best[retrieval.token][:2]:
                best[retrieval.token] = candidate
        ranked = sorted(best.values(), key=lambda candidate: candidate[:2], reverse=True)
        return [(row, index) for _, _, row, index in ranked[:count]]

    def _reads(self, layer: int) -> Bool[np.ndarray, "batch length"]:
        """Marks the tokens that retrieve something."""
        return (self.positions[layer] >= 0).any(axis=(1, 3)) & (self.places >= 0)


def retrievals(model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]) -> Retrievals:
    """Reads consecutive segments from an empty memory and returns which earlier tokens every token retrieves from the
    long memories of a model, as `Retrievals`.

    Args:
      model: Language model with a long memory in at least one layer.
      variables: Variables of the model.
      segments: Consecutive segments.

    Raises:
      ValueError: The layers cannot record their attention, or no layer retrieves.
    """
    by_layer: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    reach = 0
    for _, layers in read_with_attention(model, variables, segments):
        for layer, arrays in layers.items():
            if POSITIONS in arrays:
                chosen = np.flatnonzero(arrays[SOURCES] == RETRIEVED)
                reach = len(arrays[SOURCES]) - len(chosen)
                by_layer.setdefault(layer, []).append((arrays[POSITIONS], arrays[WEIGHTS][..., chosen]))
    if not by_layer:
        raise NotProvided("retrievals: given a model without a long memory, allowed: one that retrieves in some layer")
    joined = lambda part: np.stack(
        [np.concatenate([arrays[part] for arrays in batches], axis=2) for batches in by_layer.values()]
    )
    places, document = _token_positions(segments)
    tokens = np.concatenate([np.asarray(batch.inputs) for batch in segments], axis=1)
    return Retrievals(tuple(by_layer), tokens, places, document, joined(0), joined(1), reach)


def _token_positions(segments: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Returns each token's position in its document, -1 for padding, and its document's number in the row."""
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
