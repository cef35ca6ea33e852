"""Compares the attention heads of a grown model with the heads that they are copies of.

Qin et al. 2022, "ELLE: Efficient Lifelong Pre-training for Emerging Data", https://arxiv.org/abs/2203.06311, whose
figures of attention patterns show that heads of a grown model continue to attend as those of its ancestors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.lifelong.growth_sources import Growth


class HeadCorrelations(NamedTuple):
    """Correlations of each head of a descendant with heads of an ancestor, arrays `[layers, heads]`: with its source,
    with unrelated heads in the layer of the source, and with unrelated heads in all layers. NaN where there are none.

    Heads of the ancestor that are copies of one earlier head form a family. A head of the descendant belongs to the
    family of its source.

    Attributes:
      relatives: Correlation with the head that it is a copy of.
      beside: Mean correlation with heads of other families in the layer of that head.
      others: Mean correlation with heads of other families in all layers.
    """

    relatives: Float[np.ndarray, "layers heads"]
    beside: Float[np.ndarray, "layers heads"]
    others: Float[np.ndarray, "layers heads"]


def head_sources(growths: Sequence[Growth], num_layers: int, num_heads: int) -> Int[np.ndarray, "layers heads 2"]:
    """Returns the layer and the head of an ancestor that each head of a descendant is or copies, `[layers, heads, 2]`.
    `growths` lie between the two, `num_layers` and `num_heads` are sizes of the ancestor.

    Args:
      growths: Growths from the ancestor to the descendant, in order. Empty for the ancestor itself.
      num_layers: Number of layers of the ancestor.
      num_heads: Number of heads in each layer of the ancestor.

    Example:
      >>> growth = Growth(np.array([0, 1, 0]), (np.array([0, 1, 1]),), (np.array([0]),), (0, 0))
      >>> head_sources([growth], 1, 2)[..., 1].tolist()
      [[0, 1, 1], [0, 1, 1]]
    """
    sources = np.moveaxis(np.indices((num_layers, num_heads)), 0, -1)
    for growth in growths:
        sources = np.stack([sources[old, growth.heads[old]] for old in growth.layers])
    return sources


def subtract_uniform_attention(
    maps: Float[np.ndarray, "layers batch heads queries keys"], seen: Bool[np.ndarray, "batch queries keys"]
) -> Float[np.ndarray, "layers batch heads queries keys"]:
    """Subtracts from the attention weights `maps` those of a head that attends to all visible keys equally. `seen` is a
    mask `[batch, queries, keys]` of the keys that each query sees.

    Early queries of a causal model see few keys, so all heads have large weights there. That alone makes the maps of
    any two heads similar. The result sums to 0 for each query.

    Args:
      maps: Attention weights.
      seen: Whether a query sees a key, bool `[batch, queries, keys]`.

    Example:
      >>> seen = np.array([[[True, False], [True, True]]])
      >>> print(subtract_uniform_attention(np.array([[[[[1.0, 0.0], [0.75, 0.25]]]]]), seen)[0, 0, 0])
      [[ 0.    0.  ]
       [ 0.25 -0.25]]
    """
    count = seen.sum(axis=-1, keepdims=True)
    return maps - np.where(seen, 1 / np.maximum(count, 1), 0).astype(maps.dtype)[:, None]


def map_correlations(
    ancestor: Float[np.ndarray, "old_layers batch old_heads queries keys"],
    descendant: Float[np.ndarray, "layers batch heads queries keys"],
    seen: Bool[np.ndarray, "_ _ _"],  # Checked below.
) -> Float[np.ndarray, "layers heads old_layers old_heads"]:
    """Computes Pearson's correlation of every attention map of one model with every map of another on the same text,
    `[layers, heads, old_layers, old_heads]`. Only the queries and keys in the mask `seen` count.

    Args:
      ancestor: Attention weights (`memjax.inspection.attention_maps`), or the result of `subtract_uniform_attention`.
      descendant: Attention weights of the other model, in the same form.
      seen: Entries that count, bool `[batch, queries, keys]`: those of real tokens, and causal ones for causal models.

    Returns:
      Correlations. They are NaN for maps with equal entries.

    Raises:
      ValueError: the maps are of different texts.
    """
    for maps in (ancestor, descendant):
        if (maps.shape[1], *maps.shape[3:]) != seen.shape:
            text = f"{maps.shape[1]} rows of {maps.shape[3]} x {maps.shape[4]}"
            raise ValueError(f"maps: given {text}, allowed: those of the same text, {seen.shape}")

    def standardize(maps: np.ndarray) -> np.ndarray:
        chosen = np.moveaxis(maps, 2, 1)[:, :, seen].astype(np.float64)  # [layers, heads, entries]
        chosen -= chosen.mean(axis=-1, keepdims=True)
        length = np.linalg.norm(chosen, axis=-1, keepdims=True)
        return np.divide(chosen, length, out=np.full_like(chosen, np.nan), where=length > 0)

    return np.tensordot(standardize(descendant), standardize(ancestor), axes=(-1, -1))


def correlate_heads(
    correlations: Float[np.ndarray, "layers heads old_layers old_heads"],
    sources: Int[np.ndarray, "layers heads 2"],
    founders: Int[np.ndarray, "old_layers old_heads 2"] | None = None,
) -> HeadCorrelations:
    """Extracts from the result of `map_correlations` the correlation of each head with the head that it copies
    (`sources`), and mean correlations with unrelated heads (`HeadCorrelations`). Heads with equal `founders` are
    related.

    Args:
      correlations: Result of `map_correlations`.
      sources: Heads of the ancestor that heads of the descendant copy, from `head_sources`.
      founders: Heads of the first model of the growth history that heads of the ancestor copy, from `head_sources`.
        They define families. None if the ancestor is the first model.

    Raises:
      ValueError: shapes do not fit, or `sources` has heads that the ancestor does not have.
    """
    layers, heads, *old = correlations.shape
    founders = head_sources((), *old) if founders is None else founders
    if sources.shape != (layers, heads, 2) or founders.shape != (*old, 2) or (sources >= old).any():
        shapes = f"sources {sources.shape[:2]} and founders {founders.shape[:2]}"
        raise ValueError(f"lineage: given {shapes} of heads, allowed: ({layers}, {heads}) and {tuple(old)}")
    layer, head = sources[..., 0], sources[..., 1]
    relatives = np.take_along_axis(
        correlations.reshape(layers, heads, -1), (layer * old[1] + head)[..., None], axis=-1
    )[..., 0]
    strangers = (founders[layer, head][:, :, None, None] != founders).any(axis=-1)
    beside = strangers & (np.arange(old[0]) == layer[..., None])[..., None]
    return HeadCorrelations(relatives, _means(correlations, beside), _means(correlations, strangers))


def _means(
    correlations: np.ndarray, chosen: Bool[np.ndarray, "layers heads old_layers old_heads"]
) -> Float[np.ndarray, "layers heads"]:
    """Computes the mean over the chosen heads of the ancestor, or NaN if none is chosen."""
    chosen = chosen & np.isfinite(correlations)
    count = chosen.sum(axis=(2, 3))
    total = np.where(chosen, correlations, 0).sum(axis=(2, 3))
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
