"""Settings of the low-rank adapters of a model (LoRA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memjax.settings.checks import Settings, has_field, require, require_layers
from memjax.settings.ranges import Number, Positive, Share

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["ALL_LINEAR", "LoRA"]

ALL_LINEAR = "all-linear"
"""Target that stands for every matrix of the layers that can have an adapter."""


@dataclass(slots=True, kw_only=True)
class LoRA(Settings):
    """Low-rank adapters of the matrices in the layers of a model, LoRA (Hu et al. 2022). Only the adapters, and what
    `fully_trained` names, are trained.
    """

    rank: Number = 0
    """rank of the adapters; 0 = no adapters, and the whole model is trained"""
    alpha: Positive = 16.0
    """number whose ratio to the rank is the factor of the adapters' output"""
    rank_stabilized: bool = False
    """divide `alpha` by the root of the rank instead of the rank (Kalajdzievski 2023)"""
    dropout: Share = 0.0
    """dropout rate of the input of the adapters"""
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """parts of the paths of the matrices that have an adapter, such as attention/query, attention/value or
    feed_forward/; 'all-linear' = every matrix of the layers"""
    layers: tuple[int, ...] = ()
    """layers that have adapters; negative numbers count from the end; () = all"""
    fully_trained: tuple[str, ...] = ()
    """parts of the paths of other parameters that are trained, too, such as those of a memory; / at the front stands
    for the beginning of a path; the head of a task is always trained"""

    @property
    def scale(self) -> float:
        """Factor of the adapters' output, `alpha / rank`, or `alpha / sqrt(rank)` where it is stabilized."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank)

    def check(self, field: str, config: Config) -> None:
        if not self.rank:
            return
        kind, model = type(config.model).__name__, config.model
        has_layers = model.reads == "tokens" and has_field(model, "attention") and not model.translates
        allowed = f"0 with {kind}; adapters need a language model or a text encoder made of layers"
        require(has_layers, f"{field}rank", self.rank, allowed)
        require(bool(self.targets), f"{field}targets", self.targets, "one part of a path or more")
        require(self.dropout < 1, f"{field}dropout", self.dropout, "0 or more and below 1")
        require_layers(f"{field}layers", self.layers, model.num_layers)
        training = config.training
        others = {
            "frozen_parameters": (training.frozen_parameters, ()),
            "num_trainable_layers": (training.num_trainable_layers, None),
        }
        for name, (value, neutral) in others.items():
            path = f"{field.removesuffix('lora.')}{name}"
            require(value == neutral, path, value, f"{neutral} with {field}rank, which freezes all but the adapters")
