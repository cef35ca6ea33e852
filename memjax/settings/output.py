"""Embeddings and softmax of a model, and memories at its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Output",
    "Softmax",
    "AdaptiveSoftmax",
    "Spalm",
    "OutputKind",
    "softmax_of",
]


@dataclass(slots=True, kw_only=True)
class Output:
    """What every kind of output says of itself."""


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
    div_val: int = 1
    """each further cluster's embedding is this factor narrower"""
    tie_projections: tuple[bool, ...] = ()
    """per cluster, whether the output projection is the input's; () = none"""
    bias: bool = True
    """an output bias per vocabulary entry"""


@dataclass(slots=True, kw_only=True)
class Spalm(Output):
    """SPALM (Yogatama et al. 2021): the tokens after similar contexts, gated into the last hidden state."""

    softmax: Softmax | AdaptiveSoftmax = field(default_factory=Softmax)
    """embeddings and softmax"""
    num_neighbors: int = 4
    """similar contexts of each position; they come with the data (data.neighbors)"""
    gate: Literal["scalar", "vector"] = "scalar"
    """one gate per position, as published, or one per dimension"""
    gate_bias: float | None = None
    """initial value of a learned bias of the gate; None = no bias, as published (the gate begins at 1/2)"""
    gate_bins: int = 0
    """report the share of tokens whose gate lies in each of so many equal bins; 0 = the mean only"""


OutputKind = Softmax | AdaptiveSoftmax | Spalm


def softmax_of(output: Any) -> Any:
    """The softmax of an output, with a memory or without; what is neither is given back for the caller to refuse."""
    return output.softmax if isinstance(output, Spalm) else output
