"""Settings of methods whose model grows from task to task."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.checks import require
from memjax.settings.methods import EpisodicMemory, Method
from memjax.settings.ranges import Count, Number, Range, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config
    from memjax.settings.lifelong import Lifelong

__all__ = ["ELLE", "ProgressiveNetwork"]


@dataclass(slots=True, kw_only=True)
class ELLE(Method):
    """ELLE (Qin et al. 2022): the model replays stored rows of earlier tasks, and grows in width or depth before every
    task but the first where `dim_per_task` or `num_layers_per_task` is given.

    After a growth the model recovers in updates on the memory alone, and then learns the task and replayed rows
    together. Unless `optimizer_moments` is 'mapped', the optimiser and the learning rate start again with every task.
    The schedule is that of the updates of all tasks together, so that its warm-up is repeated and its decay hardly
    begins.
    """

    made_by = "memjax.lifelong.elle:elle"

    dim_per_task: tuple[Count, ...] = ()
    """widths of the residual stream from the second task on, one for each task; heads keep their width, the
    feed-forward part grows in proportion; () = the width stays"""
    num_layers_per_task: tuple[Count, ...] = ()
    """numbers of layers from the second task on, one for each task; () = the number stays"""
    copy_rule: Literal["random", "cyclic"] = "random"
    """old entries that new entries of the residual stream are copies of: drawn at 'random', or in turn ('cyclic')"""
    norm_expansion: Literal["weighted", "plain"] = "weighted"
    """norms of a model that has grown in width: 'weighted' = they count the copies of an entry, so that it computes the
    same at any width; 'plain' (the paper) = ordinary norms, which compute the same only where all entries have equally
    many copies"""
    copy_noise: Literal["zero_sum", "paper", "code", "none"] = "zero_sum"
    """noise on rows of matrices that read copied entries, so that copies become different: 'zero_sum' = it adds up to 0
    over the copies of an entry; 'paper' = on all of these rows; 'code' = on the copies only; 'none'"""
    noise_stddev: Annotated[float, zero_or_more("none")] = 0.01
    """standard deviation of the noise on copies; 0 = no noise"""
    new_layer_init: Literal["identity", "copy"] = "identity"
    """initial values of new layers: 'identity' = copies of old layers that return their input at first (pre-norm models
    only); 'copy' = plain copies (the paper)"""
    optimizer_moments: Literal["fresh", "mapped"] = "fresh"
    """moments of the optimiser after a growth: 'fresh' = the optimiser starts again; 'mapped' = they are copied with
    the parameters"""
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """memory of rows of earlier tasks"""
    replay_batch_size: Number = 3
    """number of replayed rows beside every batch; one for nine of the stream in the paper; 0 = no memory"""
    recovery_steps: Number = 0
    """number of updates on the memory alone after a growth (function-recovering warm-up); 0 = none"""
    recovery_batch_size: Count = 32
    """number of rows in each update of the warm-up after a growth"""
    anneal_norms: bool = False
    """let 'weighted' norms become ordinary ones, which count every entry once, in the course of the warm-up"""
    memory_fraction: Annotated[
        float, Range(words="a share of 0 (as the memory's policy writes) to 1", least=0, most=1)
    ] = 0.0
    """share of the examples of a task stored at its end, drawn at random (6 % of a domain in the paper); 0 = rows are
    stored while the task is learned, by the write policy of the memory"""
    replay_sampling: Literal["uniform", "progress"] = "uniform"
    """choice of the replayed rows: 'uniform' = all rows of the memory are equally likely, including those of the
    current task if it writes them meanwhile (the paper draws from earlier tasks alone, each equally often); 'progress'
    = rows of one task, drawn by how much its loss falls (published code)"""

    @classmethod
    def as_published(cls, *, batch: int = 0, **fields: Any) -> ELLE:
        """Returns settings as in the paper, whose expansion changes what the model computes. `batch` is the number of
        rows of an update, from which the rows of replay follow. Other fields are given as keywords.

        They have 5,000 recovery updates with a new optimiser, and uniform replay. Sizes, capacity and
        `memory_fraction` keep their values.

        Args:
          batch: Number of rows of the stream in an update (`data.batch_size`), from which `replay_batch_size` (one for
            nine) and `recovery_batch_size` (both together) follow. 0 for their ordinary values.
          **fields: Other fields, which take precedence over those of the paper.

        Example:
          >>> paper = ELLE.as_published(batch=28, dim_per_task=(96, 128))
          >>> paper.norm_expansion, paper.copy_noise, paper.recovery_steps
          ('plain', 'paper', 5000)
          >>> paper.replay_batch_size, paper.recovery_batch_size
          (3, 31)
        """
        rows = max(1, round(batch / 9))
        mixed = {"replay_batch_size": rows, "recovery_batch_size": batch + rows} if batch else {}
        expanded = {
            "norm_expansion": "plain",
            "copy_noise": "paper",
            "noise_stddev": 0.01,
            "new_layer_init": "copy",
            "copy_rule": "random",
        }
        recovers = {
            "recovery_steps": 5000,
            "optimizer_moments": "fresh",
            "anneal_norms": False,
            "replay_sampling": "uniform",
        }
        return cls(**{**expanded, **recovers, **mixed, **fields})

    def check(self, field: str, config: Config) -> None:
        self._check_replay(field)
        if not self.dim_per_task and not self.num_layers_per_task:
            return
        self._check_model(field, config.model)
        rank, kind = config.training.lora.rank, type(self).__name__
        require(not rank, "training.lora.rank", rank, f"0 with {kind}, whose model grows")
        if config.lifelong is not None:
            self._check_sizes(field, config.model, config.lifelong)

    def _check_replay(self, field: str) -> None:
        """Checks the fields about the memory of earlier tasks and the recovery with it."""
        place, allowed = self.memory.storage, "'device' with ELLE, whose models each have a learner of their own"
        require(place == "device" or not self.replay_batch_size, f"{field}memory.storage", place, allowed)
        has_memory, without = self.replay_batch_size > 0, f"without a memory ({field}replay_batch_size = 0)"
        allowed = f"0 {without}"
        require(has_memory or not self.recovery_steps, f"{field}recovery_steps", self.recovery_steps, allowed)
        allowed = f"0.0 {without}"
        require(has_memory or not self.memory_fraction, f"{field}memory_fraction", self.memory_fraction, allowed)
        fits, allowed = has_memory or self.replay_sampling == "uniform", f"'uniform' {without}"
        require(fits, f"{field}replay_sampling", self.replay_sampling, allowed)
        anneals = self.recovery_steps > 0 and self.norm_expansion == "weighted" and bool(self.dim_per_task)
        allowed = "False without a warm-up of a model that becomes wider with weighted norms"
        require(anneals or not self.anneal_norms, f"{field}anneal_norms", self.anneal_norms, allowed)

    def _check_model(self, field: str, model: Any) -> None:
        """Checks that a model is of a kind that can grow."""
        grows = model.memory_facts.can_grow and model.memory_tokens is None
        allowed = f"() with {model.attention_kind}; GPT2, Bidirectional and FullAttention grow"
        require(grows, f"{field}dim_per_task", self.dim_per_task, allowed)
        require(model.positions == "none", "model.positions", model.positions, "'none' in a model that grows")
        model.feed_forward.require_dense("in a model that grows")
        output, first_trained = model.output, model.first_trained_layer
        require(not output.needs_neighbors, "model.output", type(output).__name__, "Softmax in a model that grows")
        require(output.div_val == 1, "model.output.div_val", output.div_val, "1 in a model that grows")
        require(not first_trained, "model.first_trained_layer", first_trained, "0 in a model that grows")

    def _check_sizes(self, field: str, model: Any, stream: Lifelong) -> None:
        """Checks that the sizes of the model increase from task to task, one size for each task but the first."""
        require(stream.epochs > 0, "lifelong.epochs", stream.epochs, "at least 1, a model that grows counts examples")
        later = len(stream.tasks) - 1
        for name, sizes, now in (
            ("dim_per_task", self.dim_per_task, model.dim),
            ("num_layers_per_task", self.num_layers_per_task, model.num_layers),
        ):
            fits = len(sizes) in (0, later)
            require(fits, f"{field}{name}", sizes, f"(), or {later} numbers, one for every task but the first")
            # A model that has grown, whose configuration is checked too, has one of the sizes.
            for before, after in pairwise(sizes if stream.num_growths else (now, *sizes)):
                deeper = name == "num_layers_per_task"
                most = 2 * before if deeper else after
                allowed = f"from {before} to {most} after {before}" if deeper else f"at least {before} after {before}"
                require(before <= after <= most, f"{field}{name}", sizes, allowed)
        head, mlp = model.head_dim or model.dim // model.num_heads, model.feed_forward.dim
        for dim in self.dim_per_task:
            allowed = f"multiples of {head}, the width of a head"
            require(dim % head == 0, f"{field}dim_per_task", self.dim_per_task, allowed)
            allowed = f"widths of which {mlp} / {model.dim} feed-forward units each make whole numbers"
            require(mlp * dim % model.dim == 0, f"{field}dim_per_task", self.dim_per_task, allowed)
        fits = self.new_layer_init == "copy" or not self.num_layers_per_task or model.attention.norm_place == "pre"
        allowed = f"'copy' with {model.attention_kind}: post-norm layers cannot be identities"
        require(fits, f"{field}new_layer_init", self.new_layer_init, allowed)


@dataclass(slots=True, kw_only=True)
class ProgressiveNetwork(Method):
    """A progressive network (Rusu et al. 2016): every task gets a new column of layers, and earlier ones are frozen.

    A column also reads the layers of all earlier columns. The task must be known when it is evaluated.
    """

    made_by = "memjax.lifelong.progressive:progressive"

    num_columns: Count = 1
    """number of columns of the model: 1 at the start of a run, which adds one before every task but the first"""

    def check(self, field: str, config: Config) -> None:
        model, kind = config.model, type(config.model.memory_facts).__name__
        rank = config.training.lora.rank
        require(not rank, "training.lora.rank", rank, "0 with ProgressiveNetwork, whose model grows")
        most = len(config.lifelong.tasks) if config.lifelong else 1
        require(self.num_columns <= most, f"{field}num_columns", self.num_columns, f"up to {most}, one a task")
        task = type(config.task).__name__
        require(
            not config.task.is_generative,
            "task",
            task,
            "a task that is not written, columns do not go on from a prompt",
        )
        vectors = model.reads in ("vectors", "bags")
        serves = vectors or model.memory_facts.can_grow and not model.translates
        allowed = "GPT2, Bidirectional, FullAttention, a Perceptron or a TokenBag in columns"
        require(serves, "model.attention", kind, allowed)
        if vectors:
            require(bool(model.widths), "model.widths", model.widths, "one and more in columns")
            require(not model.gate_dim, "model.gate_dim", model.gate_dim, "0 in columns")
            return
        require(model.memory_tokens is None, "model.memory_tokens", "MemoryTokens", "None in columns")
        require(not model.scans, "model.scan_layers", model.scan_layers, "False in columns, whose layers stand alone")
        below = config.training.num_trainable_layers
        require(below is None, "training.num_trainable_layers", below, "None in columns")
        model.feed_forward.require_dense("in columns")
        require(not model.first_trained_layer, "model.first_trained_layer", model.first_trained_layer, "0 in columns")
