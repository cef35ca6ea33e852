"""Embeddings and softmax of a model, and memories at its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.ranges import Count, Range, Rate, zero_or_more
from memjax.settings.relations import Settings, require

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Output", "Softmax", "AdaptiveSoftmax", "Spalm", "OutputKind"]


@dataclass(slots=True, kw_only=True)
class Output(Settings):
    """What every kind of output says of itself.

    Attributes:
      is_one_softmax: whether a row of scores, one for each entry, is what it normalises.
      needs_neighbors: whether it reads the neighbours of `data.neighbors`, found with a model that stands elsewhere.
      num_neighbors: of each position that it reads.
      tied: whether the output weights are the input embeddings.
      div_val: each further cluster's embedding is this factor narrower, where there are clusters.
    """

    is_one_softmax = True
    needs_neighbors = False
    num_neighbors = 0
    tied = True
    div_val = 1

    @property
    def softmax(self) -> Any:
        """Embeddings and softmax without the memory, where the output has one."""
        return self


@dataclass(slots=True, kw_only=True)
class Softmax(Output):
    """One softmax over the whole vocabulary."""

    tied: bool = True
    """output weights are the input embeddings"""
    bias: bool = False
    """an output bias per vocabulary entry"""


@dataclass(slots=True, kw_only=True)
class AdaptiveSoftmax(Output):
    """Adaptive embeddings and softmax (Grave et al. 2017; Baevski & Auli 2019), tied."""

    cutoffs: tuple[int, ...] = (20000, 40000, 200000)
    """first ids of the tail clusters, ascending"""
    div_val: Count = 1
    """each further cluster's embedding is this factor narrower"""
    tie_projections: tuple[bool, ...] = ()
    """per cluster, whether the output projection is the input's; () = none"""
    bias: bool = True
    """an output bias per vocabulary entry"""

    is_one_softmax = False

    def check(self, field: str, config: Config) -> None:
        cutoffs, ties, tails, dim = self.cutoffs, self.tie_projections, len(self.cutoffs), config.model.dim
        ascending = list(cutoffs) == sorted(set(cutoffs)) and all(cutoff > 0 for cutoff in cutoffs)
        require(ascending and tails > 0, f"{field}cutoffs", cutoffs, "positive ids in ascending order, at least one")
        allowed = f"model.dim = {dim} divided {tails} times is at least 1"
        require(dim // self.div_val**tails >= 1, f"{field}div_val", self.div_val, allowed)
        allowed = f"() or one entry for each of the {tails + 1} clusters"
        require(len(ties) in (0, tails + 1), f"{field}tie_projections", ties, allowed)
        require(not any(ties) or self.div_val > 1, f"{field}tie_projections", ties, "() where div_val is 1")


@dataclass(slots=True, kw_only=True)
class Spalm(Output):
    """SPALM (Yogatama et al. 2021): the tokens after similar contexts, gated into the last hidden state."""

    softmax: Softmax | AdaptiveSoftmax = field(default_factory=Softmax)
    """embeddings and softmax"""
    num_neighbors: Annotated[int, Range(words="1 or more", least=1)] = 4
    """similar contexts of each position; they come with the data (data.neighbors)"""
    gate: Literal["scalar", "vector"] = "scalar"
    """one gate per position, as published, or one per dimension"""
    gate_bias: float | None = None
    """initial value of a learned bias of the gate; None = no bias, as published (the gate begins at 1/2); 2 or 3 where
    a trained model goes on with neighbours"""
    scale_neighbors: bool = True
    """multiply what the neighbours add by sqrt(dim), about the length of a hidden state; False = as published"""
    neighbor_dropout: Rate = 0.0
    """rate at which a neighbour is left out in training, each by itself"""
    gate_bins: Annotated[int, zero_or_more("the mean only")] = 0
    """report the share of tokens whose gate lies in each of so many equal bins; 0 = the mean only"""

    needs_neighbors = True


OutputKind = Softmax | AdaptiveSoftmax | Spalm
