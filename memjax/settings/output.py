"""Settings of the embeddings and the softmax of a model, and of memories at its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.checks import Settings, require
from memjax.settings.ranges import Count, Range, Rate, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Output", "Softmax", "AdaptiveSoftmax", "Spalm", "OutputKind"]


@dataclass(slots=True, kw_only=True)
class Output(Settings):
    """Base class of the settings of `Model.output`, which scores the vocabulary, with facts that a kind may override.

    Attributes:
      is_one_softmax: Whether one softmax normalises the scores of all vocabulary entries.
      needs_neighbors: Whether the output reads the neighbours in `data.neighbors_dir`, which another model has found.
      num_neighbors: Number of neighbours that are read for each position.
      tied: Whether the output weights are the input embeddings.
      div_val: Factor by which the embedding of each further cluster is narrower. 1 where there are no clusters.
    """

    is_one_softmax = True
    needs_neighbors = False
    num_neighbors = 0
    tied = True
    div_val = 1

    @property
    def softmax(self) -> Any:
        """The settings of embeddings and softmax, without the memory at the output if there is one."""
        return self


@dataclass(slots=True, kw_only=True)
class Softmax(Output):
    """Embeddings and one softmax over the whole vocabulary, without a memory."""

    tied: bool = True
    """use the input embeddings as output weights"""
    bias: bool = False
    """add an output bias for each vocabulary entry"""


@dataclass(slots=True, kw_only=True)
class AdaptiveSoftmax(Output):
    """Adaptive embeddings and adaptive softmax (Grave et al. 2017; Baevski & Auli 2019): clusters of the vocabulary
    with tied weights.
    """

    cutoffs: tuple[int, ...] = (20000, 40000, 200000)
    """first token ids of the tail clusters, in ascending order"""
    div_val: Count = 1
    """factor by which the embedding of each further cluster is narrower than the one before"""
    tie_projections: tuple[bool, ...] = ()
    """whether the output projection of a cluster is its input projection, one entry for each cluster; () = none is
    tied"""
    bias: bool = True
    """add an output bias for each vocabulary entry"""

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
    """SPALM (Yogatama et al. 2021): a gate mixes the output embeddings of tokens that followed similar contexts of a
    corpus into the last hidden state.
    """

    softmax: Softmax | AdaptiveSoftmax = field(default_factory=Softmax)
    """embeddings and softmax"""
    num_neighbors: Annotated[int, Range(words="1 or more", least=1)] = 4
    """number of similar contexts for each position, which are read from `data.neighbors_dir`"""
    gate: Literal["scalar", "vector"] = "scalar"
    """'scalar' = one gate for each position, as published; 'vector' = one for each dimension"""
    gate_bias: float | None = None
    """initial value of a learned bias of the gate, such as 2 or 3 where a trained model goes on with neighbours; None =
    no bias, as published, so that the gate begins at 1/2"""
    scale_neighbors: bool = True
    """multiply the neighbours' contribution by sqrt(dim), about the length of a hidden state; False = as published"""
    neighbor_dropout: Rate = 0.0
    """probability with which each neighbour is left out in training"""
    gate_bins: Annotated[int, zero_or_more("the mean only")] = 0
    """number of equal bins of gate values for which the share of tokens is reported; 0 = only the mean is reported"""

    needs_neighbors = True


OutputKind = Softmax | AdaptiveSoftmax | Spalm
