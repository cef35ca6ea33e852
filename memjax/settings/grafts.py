"""Settings of memories beside rotary attention, which change nothing before they are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import Settings, require, require_layers
from memjax.settings.long_memory import RECONSTRUCTION, ContinuousSignal
from memjax.settings.ranges import Count, Range, Weight

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["CompressiveGraft", "Graft", "GraftKind", "InfinityFormerGraft", "MemorizingGraft"]


@dataclass(slots=True, kw_only=True)
class Graft(Settings):
    """Base class of the settings of memories that some layers read beside their rotary attention. Before it is trained,
    such a memory changes nothing.

    Attributes:
      kl_over_layers: Reduction of an auxiliary loss over the layers that have it: 'sum' or 'mean'.
      sorts_all_scores: Whether a TPU sorts the scores of all slots to find the nearest ones.
    """

    # Facts have no annotation: with one they would be fields, options and keys of config.json.
    kl_over_layers = "mean"
    sorts_all_scores = False

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers with the memory, negative ones from the end. () stands for all layers."""
        raise NotImplementedError

    def auxiliary_loss_weights(self) -> dict[str, float]:
        """Returns a dictionary from the name of each auxiliary loss of the memory to its coefficient in the
        objective.
        """
        return {}


@dataclass(slots=True, kw_only=True)
class GatedGraft(Graft):
    """Common settings of memories that a gate for each head mixes with attention."""

    gate_kind: Literal["tanh", "sigmoid"] = "tanh"
    """function of the gate: 'tanh' = exactly closed at 0; 'sigmoid' = as in the Memorizing Transformer"""
    gate_init: float | None = None
    """initial parameter of the gate; None = 0 with 'tanh', and -7 with 'sigmoid', a share of 0.001"""


@dataclass(slots=True, kw_only=True)
class MemorizingGraft(GatedGraft):
    """The long memory of a Memorizing Transformer (Wu et al. 2022): for each query the k nearest (key, value) pairs of
    many tokens, mixed with attention by a gate for each head.
    """

    layers: tuple[int, ...] | None = None
    """layers with the long memory, from 0, negative from the end; () = all; None = the fourth from the end (the first
    of a model with fewer layers)"""
    memory_length: Count = 8192
    """number of slots (tokens) of the long memory for each row and head"""
    num_neighbors: Count = 32
    """number of slots retrieved for each query and head"""
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] = "exact"
    """search in the long memory: 'exact'; 'approximate'; 'bucket' = the best of each bucket, about 63 % recall;
    'threshold' = exact without a gather"""
    recall_target: Annotated[float, Range(words="above 0, up to 1", above=0, most=1)] = 0.95
    """expected recall where `retrieval` is 'approximate', on a TPU; on other devices that search is exact"""

    @property
    def sorts_all_scores(self) -> bool:
        return self.retrieval == "exact"

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers with the long memory, negative ones from the end. See `Graft`."""
        return (max(-4, -num_layers),) if self.layers is None else self.layers

    def check(self, field: str, config: Config) -> None:
        require_layers(f"{field}layers", self.layers or (), config.model.num_layers)
        fits, slots = self.num_neighbors <= self.memory_length, self.memory_length
        require(fits, f"{field}num_neighbors", self.num_neighbors, f"1 to {field}memory_length = {slots}")


@dataclass(slots=True, kw_only=True)
class CompressiveGraft(GatedGraft):
    """The compressed memory of a Compressive Transformer (Rae et al. 2019): keys and values that leave the memory of
    the attention, several compressed to a slot, mixed with attention by a gate for each head.
    """

    layers: tuple[int, ...] = ()
    """layers with the compressed memory, from 0, negative from the end; () = all"""
    compressed_memory_length: Count = 512
    """number of slots of the compressed memory in each layer"""
    compression_rate: Count = 4
    """number of tokens that one compressed slot stands for; a divisor of `data.segment_length` and of the
    `memory_length` of the attention"""
    compression: Literal["convolution", "max", "mean"] = "convolution"
    """compression of keys and values: 'convolution' is learned and begins as the mean; 'max' and 'mean' pool"""
    loss_weight: Weight = 1.0
    """coefficient of the attention-reconstruction loss, which trains the compression only; 0 = it is only logged"""

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers with the compressed memory, negative ones from the end. See `Graft`."""
        return self.layers

    def auxiliary_loss_weights(self) -> dict[str, float]:
        return {RECONSTRUCTION["attention"]: self.loss_weight}

    def check(self, field: str, config: Config) -> None:
        require_layers(f"{field}layers", self.layers, config.model.num_layers)
        length, slots = config.data.segment_length, config.model.attention.memory_length
        rate, allowed = self.compression_rate, f"a divisor of data.segment_length = {length}"
        allowed += f" and of model.attention.memory_length = {slots}"
        require(length % rate == slots % rate == 0, f"{field}compression_rate", rate, allowed)
        scored = config.evaluation.segment_length
        allowed = f"0, or a multiple of {field}compression_rate = {rate}"
        require(scored % rate == 0, "evaluation.segment_length", scored, allowed)


@dataclass(slots=True, kw_only=True)
class InfinityFormerGraft(ContinuousSignal, Graft):
    """The long-term memory of infinity-former (Martins et al. 2022): the whole past as a continuous signal of constant
    size, added to the output of attention by a matrix that begins with zeros.
    """

    layers: tuple[int, ...] = ()
    """layers with the long-term memory, from 0, negative from the end; () = all"""
    num_basis: Count = 512
    """number of basis functions of the signal, a multiple of the number of `widths`"""
    kl_weight: Weight = 1e-5
    """coefficient of the KL regulariser"""

    def chosen_layers(self, num_layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers with the long-term memory, negative ones from the end. See `Graft`."""
        return self.layers

    def check(self, field: str, config: Config) -> None:
        require_layers(f"{field}layers", self.layers, config.model.num_layers)
        basis, widths = self.num_basis, len(self.widths)
        require(basis % widths == 0, f"{field}num_basis", basis, f"a multiple of the {widths} widths")
        ContinuousSignal.check(self, field, config)


GraftKind = MemorizingGraft | CompressiveGraft | InfinityFormerGraft
