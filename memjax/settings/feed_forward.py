"""Settings of the kinds of feed-forward parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import Settings, require, require_layers
from memjax.settings.ranges import Count, Range, Rate, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["FeedForward", "Dense", "ProductKey", "ProductKeyGraft", "FeedForwardKind"]


@dataclass(slots=True, kw_only=True)
class FeedForward(Settings):
    """Base class of the settings of all feed-forward parts, with facts that a kind may override.

    Attributes:
      dense_scale: Weight of the ordinary network in layers that also have a memory. 0 where the memory replaces it.
      has_memory: Whether some layers have a product-key memory.
      zero_values: Whether the values of that memory begin as zeros.
    """

    dense_scale = 1.0
    has_memory = False
    zero_values = False

    def require_dense(self, where: str) -> None:
        """Raises `ValueError` if the feed-forward part has a memory (ProductKey). `where` is the end of the message,
        such as 'in a translation model'.

        Args:
          where: End of the message, which says where no memory is allowed, such as 'in a translation model'.
        """
        require(not self.has_memory, "model.feed_forward", type(self).__name__, f"Dense {where}")


@dataclass(slots=True, kw_only=True)
class Dense(FeedForward):
    """The ordinary feed-forward network of a layer: two matrices, or three where it is gated, and an activation."""

    dim: Annotated[int, zero_or_more("4 * dim")] = 0
    """width of the hidden layer; 0 = 4 * `model.dim`"""
    activation: Literal[
        "relu", "gelu", "gelu_exact", "silu", "quick_gelu", "tanh", "relu_squared", "swiglu", "geglu"
    ] = "relu"
    """activation of the hidden layer; 'gelu' is the tanh approximation; 'swiglu' and 'geglu' gate with a third matrix,
    through SiLU and tanh GELU"""
    bias: bool = True
    """add biases to both layers"""


@dataclass(slots=True, kw_only=True)
class ProductKey(Dense):
    """Product keys (Lample et al. 2019) in some layers, in the place of the feed-forward network or beside it (Kim &
    Jung 2020).

    `dim`, `activation` and `bias` describe the ordinary network.
    """

    has_memory = True
    layers: tuple[int, ...] | None = None
    """layers with a product-key memory, from 0, negative from the end; () = all; None = the second from the end (the
    first of a model with one layer)"""
    num_keys: Count = 512
    """number of sub-keys of each half of a key; the memory has num_keys ** 2 slots"""
    memory_heads: Count = 4
    """number of heads of the memory, each with its own sub-keys; all share the values"""
    num_neighbors: int = 32
    """number of slots read for each token and head"""
    key_dim: Count = 256
    """width of the query of one head, which is divided into two halves"""
    query_hidden: Annotated[tuple[int, ...], Range(words="widths from 1", least=1)] = ()
    """widths of the hidden layers of the query network; () = a linear one"""
    query_norm: Literal["batch", "layer", "none"] = "batch"
    """normalisation of queries; 'batch' raises the share of slots in use"""
    key_dropout: Rate = 0.0
    """dropout rate on sub-keys"""
    dense_scale: float = 0.0
    """weight of the ordinary network in layers with a memory (alpha in the paper); 0 = the memory replaces it"""
    memory_scale: float = 1.0
    """weight of the memory (beta in the paper); 0 = no contribution"""

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers with a product-key memory, negative ones from the end: `layers`, where ()
        stands for all layers, or the second from the end if that is None.
        """
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


@dataclass(slots=True, kw_only=True)
class ProductKeyGraft(ProductKey):
    """Product keys beside the feed-forward network of a trained model (Kim & Jung 2020), whose values begin as zeros:
    before they are trained they change nothing.
    """

    zero_values = True
    dense_scale: float = 1.0
    """weight of the ordinary network in layers with a memory (alpha in the paper)"""

    def check(self, field: str, config: Config) -> None:
        ProductKey.check(self, field, config)
        require(self.dense_scale != 0, f"{field}dense_scale", self.dense_scale, "another number than 0")


FeedForwardKind = Dense | ProductKey | ProductKeyGraft
