"""Settings of training: optimisers, schedule, updates, checkpoints, and the mesh of devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.checks import Settings, require
from memjax.settings.lora import LoRA
from memjax.settings.ranges import Count, Decay, Number, Positive, Seed, Share, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Adam", "Adafactor", "SGD", "Schedule", "TableAdam", "Training", "Sharding"]


@dataclass(slots=True, kw_only=True)
class Adam(Settings):
    """The optimiser Adam, or AdamW where `weight_decay` is positive."""

    b1: Decay = 0.9
    """decay rate of the first moment"""
    b2: Decay = 0.999
    """decay rate of the second moment"""
    eps: Positive = 1e-8
    """number added to the root of the second moment"""
    weight_decay: Annotated[float, zero_or_more("none")] = 0.0
    """decoupled weight decay of matrices, not of vectors and scalars; 0 = none"""


@dataclass(slots=True, kw_only=True)
class Adafactor(Settings):
    """The optimiser Adafactor as T5X and the Memorizing Transformer use it."""

    decay_rate: Positive = 0.8
    """exponent of the decay of the second moment"""
    momentum: Decay = 0.0
    """decay rate of the first moment; 0 = no momentum"""
    multiply_by_parameter_scale: bool = True
    """multiply updates by the scale of each parameter (relative step sizes)"""


@dataclass(slots=True, kw_only=True)
class SGD(Settings):
    """Stochastic gradient descent, with momentum or without."""

    momentum: Decay = 0.0
    """decay rate of the sum of earlier gradients; 0 = no momentum"""
    nesterov: bool = False
    """use Nesterov's momentum"""


@dataclass(slots=True, kw_only=True)
class Schedule(Settings):
    """The learning rate of every optimiser update: a linear warm-up from 0, then a decay."""

    learning_rate: Positive = 1e-3
    """peak of the learning rate"""
    warmup_steps: Number = 100
    """number of optimiser updates of the linear warm-up"""
    decay: Literal["constant", "cosine", "linear", "rsqrt"] = "cosine"
    """course of the learning rate after the warm-up; 'rsqrt' = learning_rate * sqrt(warmup_steps / step)"""
    final_fraction: Share = 0.0
    """learning rate at the end of cosine and linear decay, as a share of the peak"""

    def warnings(self, field: str, config: Config) -> list[str]:
        # The updates of a stream that is read in passes are counted when its tasks are open.
        if config.lifelong is not None and config.lifelong.epochs:
            return []
        return self.length_warnings(field, config.training.steps, config.training.gradient_accumulation_steps)

    def length_warnings(self, field: str, steps: int, apply_every: int) -> list[str]:
        """Returns lines of text where a run of `steps` steps ends before the learning rate has reached its peak.
        `apply_every` is the number of steps for one update.

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
    """Adam for value tables (product keys), applied in every step: without weight decay, outside the global gradient
    norm.
    """

    learning_rate: Positive = 1e-3
    """constant learning rate of value tables"""
    b1: Decay = 0.9
    """decay rate of the first moment"""
    b2: Decay = 0.999
    """decay rate of the second moment"""
    eps: Positive = 1e-8
    """number added to the root of the second moment"""
    form: Literal["auto", "lazy", "dense"] = "auto"
    """rows that an update changes: 'lazy' = those that the step has read; 'dense' = all; 'auto' = dense for a table of
    at most 4 rows for each lookup"""


@dataclass(slots=True, kw_only=True)
class Training(Settings):
    """Optimisation and the run around it: steps, gradients, optimiser and schedule, checkpoints, evaluations and
    logging.
    """

    steps: Count = 1000
    """number of training steps, each of which reads one batch"""
    segments_per_update: Count = 1
    """number of segments of each row in a step; more than 1 only pays where gradients cross segments"""
    burn_in_segments: int = 0
    """number of segments at the start of every step that are only read into the memory, neither scored nor
    differentiated"""
    remat: Literal["none", "per_layer", "segment", "segment_nested", "offload"] = "none"
    """activations that are recomputed in the backward pass: 'per_layer' = inside each layer; 'segment' = inside each
    segment, only memories are saved; 'segment_nested' = both; 'offload' = as 'segment', with the saved memories in the
    host's memory; 'none'"""
    segments_per_remat: Number = 0
    """number of segments between two saved memories, for steps of very many segments; those in between are computed
    once more in the backward pass. A divisor of the number of segments, best about its square root; 0 = off"""
    num_microbatches: Count = 1
    """number of groups of rows that a step computes in turn, to save memory; a divisor of `data.batch_size`"""
    gradient_accumulation_steps: Count = 1
    """number of steps whose gradients are averaged for one optimiser update; the memory advances in every step"""
    optimizer: Adam | Adafactor | SGD = field(default_factory=Adam)
    """optimiser of all parameters but value tables"""
    value_table_optimizer: TableAdam = field(default_factory=TableAdam)
    """optimiser of value tables (product keys)"""
    schedule: Schedule = field(default_factory=Schedule)
    """schedule of the learning rate"""
    memory_learning_rate: Annotated[float, zero_or_more("that of all others")] = 0.0
    """peak of the learning rate of the parameters that a memory adds to its model, on the same schedule; 0 = that of
    the other parameters"""
    num_trainable_layers: Number | None = None
    """number of last layers of a text encoder that are trained, with pooler and head; 0 = only pooler and head; None =
    everything. It needs `model.scan_layers` False, because scanned layers are one array"""
    frozen_parameters: tuple[str, ...] = ()
    """parts of the paths of parameters and tables that are not trained, such as feed_forward/memory/"""
    lora: LoRA = field(default_factory=LoRA)
    """low-rank adapters, which are trained instead of the whole model"""
    clip_norm: Annotated[float, zero_or_more("off")] = 1.0
    """maximum of the global gradient norm, to which larger gradients are scaled; 0 = no clipping"""
    seed: Seed = 0
    """seed of parameters and dropout"""
    init_from: str = ""
    """run directory whose newest parameters are the initial ones; parameters that it lacks keep their initialisation
    and are listed; '' = none"""
    reinitialized_parameters: tuple[str, ...] = ()
    """parts of the paths of parameters that keep their initialisation although the run of `init_from` has them"""
    log_every: Number = 20
    """number of steps between lines of metrics"""
    checkpoint_every: Number = 200
    """number of steps between checkpoints; 0 = only at the end and on a signal"""
    keep_checkpoints: Count = 2
    """number of newest checkpoints that are kept"""
    save_in_background: bool = False
    """whether training goes on while a checkpoint is written, from a copy of all arrays in the memory of the host; it
    has no effect with several processes"""
    max_skipped_steps: Number = 100
    """number of successive skipped steps after which the run ends with an error; a step that is not finite is skipped
    and changes nothing; 0 = the run never ends for it"""
    evaluate_every: Number = 0
    """number of steps between evaluations; 0 = only at the end"""
    tensorboard: bool = False
    """also write TensorBoard event files (needs the extra `tb`)"""
    wandb_project: str = ""
    """Weights & Biases project to which metrics are also sent (needs the extra `wandb`); '' = none"""

    def check(self, field: str, config: Config) -> None:
        segments, skipped, rows = self.segments_per_update, self.burn_in_segments, config.data.batch_size
        allowed = f"from 0 to {field}segments_per_update - 1 = {segments - 1}"
        require(0 <= skipped < segments, f"{field}burn_in_segments", skipped, allowed)
        fits = rows % self.num_microbatches == 0
        require(fits, f"{field}num_microbatches", self.num_microbatches, f"a divisor of data.batch_size = {rows}")
        fits = bool(self.init_from) or not self.reinitialized_parameters
        require(fits, f"{field}reinitialized_parameters", self.reinitialized_parameters, f"() without {field}init_from")
        if self.num_trainable_layers is not None:
            encodes = config.task.needs_text_encoder and config.model.reads == "tokens"
            require(encodes, f"{field}num_trainable_layers", self.num_trainable_layers, "None but for a text encoder")
            most, scans = config.model.num_layers, config.model.scans
            allowed = f"0 to {most} with model.scan_layers False: layers of a scan are one array"
            require(
                self.num_trainable_layers <= most and not scans,
                f"{field}num_trainable_layers",
                self.num_trainable_layers,
                allowed,
            )


@dataclass(slots=True, kw_only=True)
class Sharding(Settings):
    """The sizes of the axes of the mesh of devices, and the axes of large arrays (memory, value tables) that are split
    over it.
    """

    data: int = 0
    """number of devices on the mesh axis `data`, which splits only the rows of a batch; 0 = all that the other axes
    leave"""
    fsdp: int = 1
    """number of devices on the mesh axis `fsdp`, which splits parameters, optimiser state and the rows of a batch; 0 =
    all that the other axes leave"""
    model: int = 1
    """number of devices on the mesh axis `model`, which splits heads, feed-forward width and vocabulary; 0 = all that
    the other axes leave"""
    split_memory_by: Literal["heads", "slots"] = "heads"
    """axis of a long memory that is split over the mesh axis `model`: 'heads', or 'slots' for a memory too large for
    one device"""
    split_tables_by: Literal["rows", "columns"] = "rows"
    """axis of a value table (product keys) that is split over the mesh axis `model`"""
    pad_vocab_to_multiple: Count = 128
    """multiple to which the rows of the vocabulary's tables are padded, so that they divide over the mesh axis `model`;
    1 = no padding"""
    process_timeout: Positive = 300.0
    """number of seconds that the processes of a run wait for each other; a process that is silent for longer ends the
    others"""
