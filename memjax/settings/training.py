"""How parameters are fitted, and over which devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.ranges import Count, Decay, Number, Positive, Seed, Share, zero_or_more
from memjax.settings.relations import Settings, require

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Adam", "Adafactor", "SGD", "Schedule", "TableAdam", "Training", "Sharding"]


@dataclass(slots=True, kw_only=True)
class Adam(Settings):
    """Adam, or AdamW where weight_decay is positive."""

    b1: Decay = 0.9
    """decay of the first moment"""
    b2: Decay = 0.999
    """decay of the second moment"""
    eps: Positive = 1e-8
    """added to the root of the second moment"""
    weight_decay: Annotated[float, zero_or_more("none")] = 0.0
    """decoupled decay of matrices; vectors and scalars are never decayed"""


@dataclass(slots=True, kw_only=True)
class Adafactor(Settings):
    """Adafactor as T5X and the Memorizing Transformer use it."""

    decay_rate: Positive = 0.8
    """exponent of the second-moment decay"""
    momentum: Decay = 0.0
    """decay of the first moment; 0 = none"""
    multiply_by_parameter_scale: bool = True
    """relative step sizes"""


@dataclass(slots=True, kw_only=True)
class SGD(Settings):
    """Stochastic gradient descent."""

    momentum: Decay = 0.0
    """decay of the sum of earlier gradients; 0 = none"""
    nesterov: bool = False
    """Nesterov's momentum"""


@dataclass(slots=True, kw_only=True)
class Schedule(Settings):
    """Learning rate over optimiser steps: linear warm-up from 0, then `decay`."""

    learning_rate: Positive = 1e-3
    """peak"""
    warmup_steps: Number = 100
    """steps of linear warm-up"""
    decay: Literal["constant", "cosine", "linear", "rsqrt"] = "cosine"
    """rsqrt is learning_rate * sqrt(warmup_steps / step) after the warm-up"""
    final_fraction: Share = 0.0
    """of the peak, where cosine and linear decay end"""

    def warnings(self, field: str, config: Config) -> list[str]:
        # The updates of a stream that is read in passes are counted when its tasks are open.
        if config.lifelong is not None and config.lifelong.epochs:
            return []
        return self.length_warnings(field, config.training.steps, config.training.apply_every)

    def length_warnings(self, field: str, steps: int, apply_every: int) -> list[str]:
        """Lines about a run of so many steps that ends before the learning rate has reached its peak.

        Example:
          >>> print(*Schedule(learning_rate=0.01).length_warnings("", 50, 1))
          warmup_steps: given 100, the run has 50 optimiser updates and ends at a rate of 0.0049 instead of 0.01
        """
        updates = -(-steps // apply_every)
        if self.warmup_steps < updates or not updates:
            return []
        last = self.learning_rate * (updates - 1) / self.warmup_steps
        return [
            f"{field}warmup_steps: given {self.warmup_steps}, the run has {updates} optimiser updates and ends at a "
            f"rate of {last:.4g} instead of {self.learning_rate:g}"
        ]


@dataclass(slots=True, kw_only=True)
class TableAdam(Settings):
    """Adam of value tables (product keys), updated in every step: no decay, outside the global gradient norm."""

    learning_rate: Positive = 1e-3
    """constant"""
    b1: Decay = 0.9
    """decay of the first moment"""
    b2: Decay = 0.999
    """decay of the second moment"""
    eps: Positive = 1e-8
    """added to the root of the second moment"""
    form: Literal["auto", "lazy", "dense"] = "auto"
    """'lazy' updates the rows that a step reads, 'dense' all; 'auto' = dense for a table of at most 4 rows a lookup"""


@dataclass(slots=True, kw_only=True)
class Training(Settings):
    """How the parameters are fitted."""

    steps: Count = 1000
    """updates"""
    segments_per_update: Count = 1
    """time horizon in segments; more than 1 only where gradients cross segments"""
    segments_without_gradient: int = 0
    """the first segments of every update that are only read: neither scored nor differentiated"""
    rematerialize: Literal["none", "per_layer", "segment", "segment_nested", "offload"] = "none"
    """what is recomputed in the backward pass: layers, segments (only memories are saved), both, or segments with the
    saved memories in the host's memory"""
    segments_per_checkpoint: Number = 0
    """of very many segments, save the memory before every so many only; 0 = before each"""
    accumulate: Count = 1
    """row groups computed one after the other inside a step"""
    apply_every: Count = 1
    """steps whose gradients are averaged before one optimiser update; memory advances every step"""
    optimizer: Adam | Adafactor | SGD = field(default_factory=Adam)
    """update rule"""
    tables: TableAdam = field(default_factory=TableAdam)
    """update rule of value tables"""
    schedule: Schedule = field(default_factory=Schedule)
    """learning rate"""
    memory_learning_rate: Annotated[float, zero_or_more("that of all others")] = 0.0
    """peak for the parameters that a memory adds to its host, on the same schedule; 0 = that of all others"""
    train_layers: Number | None = None
    """of a text encoder: the last layers that are trained, with pooler and head; 0 = these alone, None = everything.
    Layers of a scan are one array, so that it needs `model.scan_layers` False"""
    frozen: tuple[str, ...] = ()
    """parts of the paths of parameters and tables that stay as they are, such as feed_forward/memory/"""
    clip_norm: Annotated[float, zero_or_more("off")] = 1.0
    """global gradient norm; 0 = no clipping"""
    seed: Seed = 0
    """parameters and dropout"""
    init_from: str = ""
    """run directory whose newest parameters are the start; parts it lacks keep their initialisation and are listed"""
    reinitialized: tuple[str, ...] = ()
    """parts of the paths of parameters that keep their initialisation with init_from although the run has them"""
    log_every: Number = 20
    """steps between lines of metrics"""
    checkpoint_every: Number = 200
    """steps between checkpoints; 0 = only at the end and on a signal"""
    keep_checkpoints: Count = 2
    """newest checkpoints that stay"""
    max_skipped: Number = 100
    """steps in a row that were not finite and changed nothing, after which the run ends; 0 = it never does"""
    evaluate_every: Number = 0
    """steps between evaluations; 0 = only at the end"""
    tensorboard: bool = False
    """also write TensorBoard event files (needs the extra `tb`)"""
    wandb: str = ""
    """project of Weights & Biases that the metrics are also sent to (needs the extra `wandb`); '' = none"""

    def check(self, field: str, config: Config) -> None:
        segments, skipped, rows = self.segments_per_update, self.segments_without_gradient, config.data.rows
        allowed = f"from 0 to {field}segments_per_update - 1 = {segments - 1}"
        require(0 <= skipped < segments, f"{field}segments_without_gradient", skipped, allowed)
        fits = rows % self.accumulate == 0
        require(fits, f"{field}accumulate", self.accumulate, f"a divisor of data.rows = {rows}")
        fits = bool(self.init_from) or not self.reinitialized
        require(fits, f"{field}reinitialized", self.reinitialized, f"() without {field}init_from")
        if self.train_layers is not None:
            encodes = config.task.encodes and config.model.reads == "tokens"
            require(encodes, f"{field}train_layers", self.train_layers, "None but for a text encoder")
            most, scans = config.model.num_layers, config.model.scans
            allowed = f"0 to {most} with model.scan_layers False: layers of a scan are one array"
            require(self.train_layers <= most and not scans, f"{field}train_layers", self.train_layers, allowed)


@dataclass(slots=True, kw_only=True)
class Sharding(Settings):
    """The mesh of devices, and what is split over it."""

    data: int = 0
    """devices that share nothing but gradients; batch rows are split; 0 = what is left"""
    fsdp: int = 1
    """devices that split parameters and optimiser state, and batch rows; 0 = what is left"""
    model: int = 1
    """devices that split heads, feed-forward width and vocabulary; 0 = what is left"""
    memory: Literal["heads", "slots"] = "heads"
    """what `model` splits of a long memory: 'slots' for one too large for a device"""
    tables: Literal["rows", "columns"] = "rows"
    """what `model` splits of a value table (product keys)"""
    vocab_multiple: Count = 128
    """rows of the vocabulary's tables are padded to a multiple of it, to divide over `model`; 1 = no padding"""
    timeout: Positive = 300.0
    """seconds that the processes of a pod wait for each other; one that is silent for longer ends the others"""
