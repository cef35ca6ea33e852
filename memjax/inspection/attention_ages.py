"""How old the tokens are that a model attends to, as arrays.

Rae et al. 2019 show the mean attention over compressed memory, memory and sequence (https://arxiv.org/abs/1911.05507).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from memjax.inspection.attention_maps import tracked
from memjax.memory.contract import Absent
from memjax.memory.projections import AGES, COMPRESSED, RETRIEVED, ROW, SEGMENT, SHORT, SOURCES, SPANS, WEIGHTS
from memjax.models.contract import Model
from memjax.training.objective import model_collections, read_segment
from memjax.typing import Batch

__all__ = ["AttentionAges", "attention_by_age", "read_tracked"]

NAMES = {
    ROW: "memory tokens",
    SEGMENT: "own segment",
    SHORT: "tokens before it",
    COMPRESSED: "compressed",
    RETRIEVED: "retrieved",
}
"""where a key is from -> in words"""
MEMORIES = (SHORT, COMPRESSED, RETRIEVED)
"""those that hold tokens of segments before"""


@dataclasses.dataclass(frozen=True)
class AttentionAges:
    """Mean attention of a token on what was read so many tokens before it.

    Attributes:
      layers: 0-based: axis 0 of `mass`.
      mass: `[layers, sources, ages]`, by where a key is from (`memjax.memory.projections.ROW` to `RETRIEVED`) and by
        its age in tokens, mean over heads and tokens. What a compressed slot gets is spread evenly over its tokens.
        Learned rows have the age 0.
      tokens: that attended, summed over rows.
    """

    layers: tuple[int, ...]
    mass: Float[np.ndarray, "layers sources ages"]
    tokens: int

    def by_source(self) -> Float[np.ndarray, "layers sources"]:
        """What each source gets, whatever its age."""
        return self.mass.sum(axis=2)

    def memory_share(self) -> Float[np.ndarray, " layers"]:
        """What all memories of segments before get."""
        return self.by_source()[:, list(MEMORIES)].sum(axis=1)

    def binned(self, edges: Sequence[int], sources: Sequence[int] = MEMORIES) -> Float[np.ndarray, "layers bins"]:
        """Attention on ages from each edge up to the next one, which is left out.

        Args:
          edges: ascending ages.
          sources: that count.

        Example:
          >>> mass = np.zeros((1, 5, 4))
          >>> mass[0, SHORT, 1:] = [0.5, 0.25, 0.25]
          >>> print(AttentionAges((0,), mass, 1).binned([1, 2, 4]))
          [[0.5 0.5]]
        """
        total = self.mass[:, list(sources)].sum(axis=1)
        before = np.pad(np.cumsum(total, axis=1), [(0, 0), (1, 0)])
        return np.diff(before[:, np.clip(edges, 0, total.shape[1])], axis=1)


def attention_by_age(
    model: Model, variables: Mapping[str, Any], segments: Sequence[Batch], *, skip: int = 0
) -> AttentionAges:
    """The attention of a model over consecutive segments, by the age of what it reads.

    Args:
      model: a language model whose layers all can be tracked (`LayerMemory.tracked`) and know how old their keys are.
      variables: of the model.
      segments: consecutive, read in evaluation mode from an empty memory.
      skip: segments that are read and not counted, while memories fill.

    Raises:
      ValueError: a model without layers, layers that cannot be tracked or do not know how old their keys are, or
        nothing left to count.
    """
    sums: dict[int, np.ndarray] = {}
    tokens = 0
    for number, (batch, layers) in enumerate(read_tracked(model, variables, segments)):
        if number < skip:
            continue
        tokens += int(batch.mask.sum())
        for layer, arrays in layers.items():
            if AGES not in arrays:
                raise Absent(f"attention by age: given a layer {layer} without ages of its keys, allowed: with them")
            found = _mass(arrays, np.asarray(batch.mask))
            sums[layer] = _added(sums[layer], found) if layer in sums else found
    if not tokens:
        raise ValueError(f"skip: given {skip} of {len(segments)} segments, allowed: fewer, with real tokens after them")
    used = 1 + max(int(np.flatnonzero(total.any(axis=0)).max(initial=0)) for total in sums.values())
    mass = np.stack([_added(total, np.zeros((len(NAMES), used)))[:, :used] for total in sums.values()])
    return AttentionAges(tuple(sums), mass / tokens, tokens)


def read_tracked(
    model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]
) -> Iterator[tuple[Batch, dict[int, dict[str, np.ndarray]]]]:
    """Reads consecutive segments from an empty memory with layers that track their attention.

    Args:
      model: a language model.
      variables: of the model.
      segments: consecutive.

    Yields:
      Each segment, and layer -> name -> array of `Aux.arrays`.
    """
    tracking = tracked(model)
    stack = tracking.stack

    @jax.jit
    def read(variables: Any, state: Any, batch: Batch) -> Any:
        return read_segment(tracking, variables, state, batch, deterministic=True)[1:]

    variables = model_collections(variables)
    state = tracking.init_state(len(segments[0].mask)) if segments else None
    for batch in segments:
        state, aux = read(variables, state, batch)
        found = {}
        for layer in range(stack.first, len(stack.layers)):
            prefix = f"layer_{layer:02d}/"
            own = {name.removeprefix(prefix): leaf for name, leaf in aux.arrays.items() if name.startswith(prefix)}
            found[layer] = {name: np.asarray(leaf) for name, leaf in own.items()}
        yield batch, found


def _mass(arrays: Mapping[str, np.ndarray], mask: np.ndarray) -> Float[np.ndarray, "sources ages"]:
    """What sources and ages get of one segment, summed over tokens and averaged over heads."""
    length = mask.shape[1]
    weights = arrays[WEIGHTS][:, :, -length:].astype(np.float64)  # without queries of learned rows
    ages = np.broadcast_to(arrays[AGES], weights.shape)
    weights = np.where(mask[:, None, :, None] & (ages >= 0), weights, 0) / weights.shape[1]
    oldest = int(ages.max()) + int(arrays[SPANS].max())
    total = np.zeros((len(NAMES), oldest))
    for source in NAMES:
        for span in np.unique(arrays[SPANS][arrays[SOURCES] == source]):
            keys = (arrays[SOURCES] == source) & (arrays[SPANS] == span)
            at, shares = ages[..., keys].ravel(), weights[..., keys].ravel() / span
            for later in range(span):  # the tokens that a key stands for
                total[source] += np.bincount(at[shares > 0] + later, shares[shares > 0], minlength=oldest)
    return total


def _added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The sum of two `[sources, ages]`, the shorter one with zeros behind it."""
    wide = max(first.shape[1], second.shape[1])
    first, second = (np.pad(one, [(0, 0), (0, wide - one.shape[1])]) for one in (first, second))
    return first + second
