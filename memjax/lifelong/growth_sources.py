"""The growth of a model: the old entries and layers that the entries and layers of the bigger model copy.

`memjax.lifelong.expansion` makes the arrays of the bigger model from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Sources = np.ndarray
"""Integers `[new width]`: the old index that each new index copies."""
EMBED, HEADS, MLP, FLAT_HEADS = "embed", "heads", "mlp", "flat_heads"
"""Names of the axes that grow. `flat_heads` is an axis of heads times head dimension."""


def copy_sources(old: int, new: int, how: Literal["random", "cyclic"] = "random", seed: Any = 0) -> Sources:
    """Returns the old index that each of `new` indices copies, integers `[new]`. The first `old` indices copy
    themselves, the others random ones or each in turn, as `how` says.

    Args:
      old: Width before the growth.
      new: Width after the growth, at least `old`.
      how: Choice for the added indices: "random" draws old indices uniformly, "cyclic" takes them in turn.
      seed: Seed of the random choice, anything that `numpy.random.default_rng` takes.

    Returns:
      Integers `[new]`.

    Raises:
      ValueError: `new` is smaller than `old`.

    Example:
      >>> copy_sources(2, 5, "cyclic").tolist()
      [0, 1, 0, 1, 0]
    """
    if new < old:
        raise ValueError(f"width: given {new}, allowed: at least {old}, what it is already")
    added = np.random.default_rng(seed).integers(old, size=new - old) if how == "random" else np.arange(old, new) % old
    return np.concatenate([np.arange(old), added])


def copy_counts(sources: Sources) -> np.ndarray:
    """Returns, for every new index, how many new indices copy the same old index. `sources` has the old index that each
    copies.

    Args:
      sources: Integers `[new width]`, the old index that each new index copies.

    Returns:
      Integers `[new width]`.

    Example:
      >>> copy_counts(np.array([0, 1, 2, 0, 0])).tolist()
      [3, 1, 1, 3, 3]
    """
    return np.bincount(sources)[sources]


def copied_layers(
    num_layers: int, more: int, left: Sequence[int] = (), seed: Any = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Chooses `more` layers that a deeper model copies, each copy right behind its source, preferably from the numbers
    `left`. Returns the old number of every layer, and the new numbers of layers that are left for the next growth.

    Layers are drawn without repetition until all of them were copied. Then all may be copied again.

    Args:
      num_layers: Number of layers before the growth.
      more: Number of layers to add, 0 to `num_layers`.
      left: Numbers of the layers that no earlier growth has copied yet. Empty for all layers.
      seed: Seed of the random choice, anything that `numpy.random.default_rng` takes.

    Returns:
      The old layer that each layer of the deeper model copies, and the numbers of the layers of the deeper model that
      are left to copy by the next growth.

    Raises:
      ValueError: `more` is negative or above `num_layers`.

    Example:
      >>> sources, left = copied_layers(3, 2)
      >>> len(sources), len(set(sources)), len(left)
      (5, 3, 1)
    """
    if not 0 <= more <= num_layers:
        raise ValueError(f"layers: given {num_layers + more}, allowed: {num_layers} to {2 * num_layers}")
    random, chosen = np.random.default_rng(seed), []
    candidates = list(left) or list(range(num_layers))
    for _ in range(more):
        if not candidates:
            candidates = [layer for layer in range(num_layers) if layer not in chosen]
        chosen.append(candidates.pop(int(random.integers(len(candidates)))))
    sources = tuple(layer for old in range(num_layers) for layer in [old] * (1 + (old in chosen)))
    firsts = {old: place for place, old in reversed(list(enumerate(sources)))}
    return sources, tuple(firsts[old] for old in sorted(candidates))


class Growth(NamedTuple):
    """One enlargement of a model: for every entry and layer of the bigger model, the number of the old one that it is
    or copies.

    `to_json` and `from_json` convert it to and from the form that checkpoints store.

    Attributes:
      embed: Sources of the residual stream.
      heads: Sources of the attention heads, one array for each old layer.
      mlp: Sources of the feed-forward width, one array for each old layer.
      layers: Number of the old layer that each layer of the bigger model is or copies.
    """

    embed: Sources
    heads: tuple[Sources, ...]
    mlp: tuple[Sources, ...]
    layers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Converts the growth to a dict of lists of integers that can be written as JSON."""
        lists = lambda maps: [sources.tolist() for sources in maps]
        return {
            "embed": self.embed.tolist(),
            "heads": lists(self.heads),
            "mlp": lists(self.mlp),
            "layers": list(self.layers),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Growth:
        """Makes a growth from the dict `value` that `to_json` has returned."""
        arrays = lambda maps: tuple(np.array(sources, np.int64) for sources in maps)
        return cls(
            np.array(value["embed"], np.int64), arrays(value["heads"]), arrays(value["mlp"]), tuple(value["layers"])
        )

    @property
    def added(self) -> tuple[int, ...]:
        """Numbers of the layers of the bigger model that are copies of the layer in front of them, a tuple."""
        return tuple(place for place, old in enumerate(self.layers) if place and self.layers[place - 1] == old)

    def widths(self, layer: int | None) -> dict[str, Sources]:
        """Returns the sources of every axis that grows, in a dict by the name of the axis. `layer` is the number of the
        old layer, None for parameters outside of layers.

        Args:
          layer: Number of the old layer whose parameters grow. None for parameters that are of no layer.
        """
        if layer is None:
            return {EMBED: self.embed}
        return {EMBED: self.embed, HEADS: self.heads[layer], FLAT_HEADS: self.heads[layer], MLP: self.mlp[layer]}
