"""Kinds of feed-forward parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.ranges import Count, Range, Rate, zero_or_more
from memjax.settings.relations import Settings, require, require_layers

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["FeedForward", "Dense", "ProductKey", "FeedForwardKind"]


@dataclass(slots=True, kw_only=True)
class FeedForward(Settings):
    """What every kind of feed-forward part says of itself.

    Attributes:
      dense_scale: weight of the ordinary network, in layers where a memory stands beside it or in its place.
      has_memory: some layers have one.
    """

    dense_scale = 1.0
    has_memory = False

    def require_dense(self, where: str) -> None:
        """Refuses a memory, in one line that ends with `where` it cannot be."""
        require(not self.has_memory, "model.feed_forward", type(self).__name__, f"Dense {where}")


@dataclass(slots=True, kw_only=True)
class Dense(FeedForward):
    """The ordinary feed-forward network."""

    dim: Annotated[int, zero_or_more("4 * dim")] = 0
    """width of the hidden layer; 0 = 4 * model.dim"""
    activation: Literal["relu", "gelu", "gelu_exact", "silu", "quick_gelu", "tanh", "relu_squared", "swiglu"] = "relu"
    """activation of the hidden layer; 'gelu' is the tanh form, 'swiglu' gates with a third matrix"""
    bias: bool = True
    """biases in both layers"""


@dataclass(slots=True, kw_only=True)
class ProductKey(Dense):
    """Product keys (Lample et al. 2019) in the place of the feed-forward network, or beside it (Kim & Jung 2020).

    In some layers; `dim`, `activation` and `bias` are those of the ordinary network.
    """

    has_memory = True
    layers: tuple[int, ...] | None = None
    """layers with a memory, 0-based, negative from the end; () = all, None = the second from the end (the first of one
    layer)"""
    num_keys: Count = 512
    """sub-keys of each half; num_keys ** 2 slots"""
    memory_heads: Count = 4
    """heads of the memory, each with sub-keys of its own; all share the values"""
    num_neighbors: int = 32
    """slots read per token and head"""
    key_dim: Count = 256
    """width of one head's query, two halves"""
    query_hidden: Annotated[tuple[int, ...], Range(words="widths from 1", least=1)] = ()
    """widths of hidden layers of the query network; () = a linear one"""
    query_norm: Literal["batch", "layer", "none"] = "batch"
    """of queries; 'batch' raises the share of slots in use"""
    key_dropout: Rate = 0.0
    """rate on sub-keys"""
    dense_scale: float = 0.0
    """weight of the ordinary network in layers with a memory (the paper's alpha); 0 = the memory replaces it"""
    memory_scale: float = 1.0
    """weight of the memory (the paper's beta); 0 = none"""

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """`layers` of a model of so many."""
        return (max(-2, -num_layers),) if self.layers is None else self.layers

    def check(self, field: str, config: Config) -> None:
        keys = self.num_keys
        require(self.key_dim % 2 == 0, f"{field}key_dim", self.key_dim, "an even number (two halves)")
        fits = 1 <= self.num_neighbors <= keys
        require(fits, f"{field}num_neighbors", self.num_neighbors, f"1 to {field}num_keys = {keys}")
        require(keys**2 < 2**31, f"{field}num_keys", keys, "up to 46340 (slots have 32-bit numbers)")
        fits = self.dense_scale != 0 or self.memory_scale != 0
        allowed = f"another number than 0 where {field}dense_scale is 0"
        require(fits, f"{field}memory_scale", self.memory_scale, allowed)
        require_layers(f"{field}layers", self.layers or (), config.model.num_layers)


FeedForwardKind = Dense | ProductKey
