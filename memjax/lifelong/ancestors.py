"""Heads of a model that has grown beside the heads that they are copies of: sources through a lineage, correlations.

Qin et al. 2022, "ELLE: Efficient Lifelong Pre-training for Emerging Data", https://arxiv.org/abs/2203.06311, whose
figures of attention patterns show that heads of a grown model go on reading as those of its ancestors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from memjax.lifelong.expansion import Growth

__all__ = ["HeadCorrelations", "subtract_uniform_attention", "correlate_heads", "head_sources", "map_correlations"]


class HeadCorrelations(NamedTuple):
    """Correlations of each head of a descendant with heads of an ancestor; NaN where there is none.

    Heads of the ancestor that are themselves copies of one head are of one family, and the descendant's head is of the
    family of its source.

    Attributes:
      relatives: with the head that it is a copy of.
      beside: with those of other families in the layer of that head, their mean.
      others: with those of other families in all layers, their mean.
    """

    relatives: Float[np.ndarray, "layers heads"]
    beside: Float[np.ndarray, "layers heads"]
    others: Float[np.ndarray, "layers heads"]


def head_sources(growths: Sequence[Growth], num_layers: int, num_heads: int) -> Int[np.ndarray, "layers heads 2"]:
    """Layer and head of an ancestor that each head of a descendant is, or is a copy of.

    Args:
      growths: from the ancestor to the descendant, in order; () = the ancestor itself.
      num_layers: of the ancestor.
      num_heads: of it, in each layer.

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
    """Attention weights less those of a head that reads all keys alike.

    Early queries of a causal model have few keys and so large weights in every head, whatever it reads: that alone
    makes whole maps of any two heads alike. What is left here adds up to 0 for each query.

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
    seen: Bool[np.ndarray, "_ _ _"],  # checked below, in a line of its own
) -> Float[np.ndarray, "layers heads old_layers old_heads"]:
    """Pearson's correlation of every attention map of one model with every one of another, on the same text.

    Args:
      ancestor: Weights of `memjax.inspection.attention_maps`, or `subtract_uniform_attention` of them.
      descendant: of the other model.
      seen: `[batch, queries, keys]`, entries that count: of real tokens, and causal where the models are.

    Returns:
      Correlations; NaN with a map all of whose entries are equal.

    Raises:
      ValueError: maps of other text.
    """
    for maps in (ancestor, descendant):
        if (maps.shape[1], *maps.shape[3:]) != seen.shape:
            given = f"{maps.shape[1]} rows of {maps.shape[3]} x {maps.shape[4]}"
            raise ValueError(f"maps: given {given}, allowed: those of the same text, {seen.shape}")

    def standardized(maps: np.ndarray) -> np.ndarray:
        chosen = np.moveaxis(maps, 2, 1)[:, :, seen].astype(np.float64)  # [layers, heads, entries]
        chosen -= chosen.mean(axis=-1, keepdims=True)
        length = np.linalg.norm(chosen, axis=-1, keepdims=True)
        return np.divide(chosen, length, out=np.full_like(chosen, np.nan), where=length > 0)

    return np.tensordot(standardized(descendant), standardized(ancestor), axes=(-1, -1))


def correlate_heads(
    correlations: Float[np.ndarray, "layers heads old_layers old_heads"],
    sources: Int[np.ndarray, "layers heads 2"],
    founders: Int[np.ndarray, "old_layers old_heads 2"] | None = None,
) -> HeadCorrelations:
    """Correlations of each head with the head that it is a copy of, and with those that it is not related to.

    Args:
      correlations: from `map_correlations`.
      sources: from `head_sources`, of the descendant in the ancestor.
      founders: likewise of the ancestor in the first of the lineage, which says what its families are; None = it is
        the first itself.

    Raises:
      ValueError: a map of heads that the models do not have.
    """
    layers, heads, *old = correlations.shape
    founders = head_sources((), *old) if founders is None else founders
    if sources.shape != (layers, heads, 2) or founders.shape != (*old, 2) or (sources >= old).any():
        given = f"sources {sources.shape[:2]} and founders {founders.shape[:2]}"
        raise ValueError(f"lineage: given {given} of heads, allowed: ({layers}, {heads}) and {tuple(old)}")
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
    """Over the old heads that are chosen; NaN where there are none."""
    chosen = chosen & np.isfinite(correlations)
    count = chosen.sum(axis=(2, 3))
    total = np.where(chosen, correlations, 0).sum(axis=(2, 3))
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
