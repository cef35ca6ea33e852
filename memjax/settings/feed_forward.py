"""Kinds of feed-forward parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "FeedForward",
    "Dense",
    "ProductKey",
    "FeedForwardKind",
]


@dataclass(slots=True, kw_only=True)
class FeedForward:
    """What every kind of feed-forward part says of itself."""


@dataclass(slots=True, kw_only=True)
class Dense(FeedForward):
    """The ordinary feed-forward network."""

    dim: int = 0
    """width of the hidden layer; 0 = 4 * model.dim"""
    activation: Literal["relu", "gelu", "gelu_exact", "swiglu"] = "relu"
    """'gelu' is the tanh form"""
    bias: bool = True
    """biases in both layers"""


@dataclass(slots=True, kw_only=True)
class ProductKey(Dense):
    """Product keys (Lample et al. 2019) in the place of the feed-forward network, or beside it (Kim & Jung 2020).

    In some layers; `dim`, `activation` and `bias` are those of the ordinary network.
    """

    layers: tuple[int, ...] = (-2,)
    """layers with a memory, 0-based, negative from the end; () = all"""
    num_keys: int = 512
    """sub-keys of each half; num_keys ** 2 slots"""
    memory_heads: int = 4
    """heads of the memory, each with sub-keys of its own; all share the values"""
    num_neighbors: int = 32
    """slots read per token and head"""
    key_dim: int = 256
    """width of one head's query, two halves"""
    query_hidden: tuple[int, ...] = ()
    """widths of hidden layers of the query network; () = a linear one"""
    query_norm: Literal["batch", "layer", "none"] = "batch"
    """of queries; 'batch' raises the share of slots in use"""
    key_dropout: float = 0.0
    """rate on sub-keys"""
    dense_scale: float = 0.0
    """weight of the ordinary network in layers with a memory (the paper's alpha); 0 = the memory replaces it"""
    memory_scale: float = 1.0
    """weight of the memory (the paper's beta); 0 = none"""


FeedForwardKind = Dense | ProductKey
