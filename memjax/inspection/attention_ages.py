"""Measures how far back a model attends: its attention by the age of the tokens that it reads, as arrays.

Rae et al. 2019 show the mean attention over compressed memory, memory and sequence (https://arxiv.org/abs/1911.05507).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from memjax.inspection.attention_maps import make_attention_tracking_model
from memjax.memory.interface import NotProvided
from memjax.memory.layer_parts import AGES, COMPRESSED, RETRIEVED, ROW, SEGMENT, SHORT, SOURCES, SPANS, WEIGHTS
from memjax.models.interface import Model
from memjax.training.objective import model_collections, read_segment
from memjax.typing import Batch

__all__ = ["AttentionAges", "attention_by_age", "read_with_attention"]

NAMES = {
    ROW: "memory tokens",
    SEGMENT: "own segment",
    SHORT: "tokens before it",
    COMPRESSED: "compressed",
    RETRIEVED: "retrieved",
}
"""Source of a key -> its description."""
MEMORIES = (SHORT, COMPRESSED, RETRIEVED)
"""Sources of keys that hold tokens of earlier segments."""


@dataclasses.dataclass(frozen=True)
class AttentionAges:
    """Mean attention of a token on earlier tokens in each layer, by the source of their keys (learned rows, the own
    segment or a memory) and by their age in tokens.

    Attributes:
      layers: Numbers of the layers, from 0, along axis 0 of `mass`.
      mass: Attention by source of the key (`memjax.memory.layer_parts.ROW` to `RETRIEVED`) and by its age in tokens,
        mean over heads and tokens, `[layers, sources, ages]`. The attention on a compressed slot is spread evenly over
        the tokens that it stands for. Learned rows have the age 0.
      tokens: Number of tokens that attended, summed over rows.
    """

    layers: tuple[int, ...]
    mass: Float[np.ndarray, "layers sources ages"]
    tokens: int

    def by_source(self) -> Float[np.ndarray, "layers sources"]:
        """Returns the attention of each layer on each source, summed over ages, `[layers, sources]`."""
        return self.mass.sum(axis=2)

    def memory_share(self) -> Float[np.ndarray, " layers"]:
        """Returns the attention of each layer on all memories of earlier segments together, `[layers]`."""
        return self.by_source()[:, list(MEMORIES)].sum(axis=1)

    def binned(self, edges: Sequence[int], sources: Sequence[int] = MEMORIES) -> Float[np.ndarray, "layers bins"]:
        """Sums the attention of each layer over ranges of ages, each from one of `edges` up to but without the next,
        `[layers, ranges]`. By default only memories of earlier segments are included.

        Args:
          edges: Ages in ascending order, one more than the ranges.
          sources: Sources of keys that are included.

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
    """Reads consecutive segments from an empty memory and measures the attention of a model by the age of the tokens
    that it reads, as `AttentionAges`. The first `skip` segments only fill the memory and are not counted.

    Args:
      model: Language model whose layers can all record their attention (`LayerMemory.with_attention_tracking`) and the
        ages of their keys.
      variables: Variables of the model.
      segments: Consecutive segments. They are read in evaluation mode, from an empty memory.
      skip: Number of leading segments that fill the memory and are not counted.

    Raises:
      ValueError: The model has no layers, a layer cannot record its attention or the ages of its keys, or `skip` leaves
        no tokens to count.
    """
    sums: dict[int, np.ndarray] = {}
    tokens = 0
    for number, (batch, layers) in enumerate(read_with_attention(model, variables, segments)):
        if number < skip:
            continue
        tokens += int(batch.mask.sum())
        for layer, arrays in layers.items():
            if AGES not in arrays:
                raise NotProvided(
                    f"attention by age: given a layer {layer} without ages of its keys, allowed: with them"
                )
            attention_mass = _sum_by_source_and_age(arrays, np.asarray(batch.mask))
            sums[layer] = _add_padded(sums[layer], attention_mass) if layer in sums else attention_mass
    if not tokens:
        raise ValueError(f"skip: given {skip} of {len(segments)} segments, allowed: fewer, with real tokens after them")
    used = 1 + max(int(np.flatnonzero(total.any(axis=0)).max(initial=0)) for total in sums.values())
    mass = np.stack([_add_padded(total, np.zeros((len(NAMES), used)))[:, :used] for total in sums.values()])
    return AttentionAges(tuple(sums), mass / tokens, tokens)


def read_with_attention(
    model: Model, variables: Mapping[str, Any], segments: Sequence[Batch]
) -> Iterator[tuple[Batch, dict[int, dict[str, np.ndarray]]]]:
    """Reads consecutive segments from an empty memory. Yields each segment with the arrays that its layers recorded,
    such as attention weights: by the number of the layer, then by name.

    Args:
      model: Language model.
      variables: Variables of the model.
      segments: Consecutive segments.

    Yields:
      Each segment, and for each layer number the recorded arrays by name (`Aux.arrays`).
    """
    tracking = make_attention_tracking_model(model)
    stack = tracking.stack

    @jax.jit
    def read(variables: Any, state: Any, batch: Batch) -> Any:
        return read_segment(tracking, variables, state, batch, deterministic=True)[1:]

    variables = model_collections(variables)
    state = tracking.init_state(len(segments[0].mask)) if segments else None
    for batch in segments:
        state, aux = read(variables, state, batch)
        layers = {}
        for layer in range(stack.first, len(stack.layers)):
            prefix = f"layer_{layer:02d}/"
            arrays = {name.removeprefix(prefix): leaf for name, leaf in aux.arrays.items() if name.startswith(prefix)}
            layers[layer] = {name: np.asarray(leaf) for name, leaf in arrays.items()}
        yield batch, layers


def _sum_by_source_and_age(arrays: Mapping[str, np.ndarray], mask: np.ndarray) -> Float[np.ndarray, "sources ages"]:
    """Sums the attention of one segment over tokens by source and age, averaged over heads."""
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


def _add_padded(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Adds two arrays `[sources, ages]` after padding the shorter one with zeros."""
    num_ages = max(first.shape[1], second.shape[1])
    first, second = (np.pad(mass, [(0, 0), (0, num_ages - mass.shape[1])]) for mass in (first, second))
    return first + second
