"""Settings of the methods of lifelong learning, and of the episodic memory of stored examples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.checks import Settings, require
from memjax.settings.ranges import Count, Number, Positive, Share, zero_or_more

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "AGEM",
    "EWC",
    "GEM",
    "MAS",
    "SI",
    "EpisodicMemory",
    "Joint",
    "LogitKD",
    "LwF",
    "MbPA",
    "Method",
    "Replay",
    "Sequential",
    "SingleTask",
]

Penalty = Annotated[float, zero_or_more()]


@dataclass(slots=True, kw_only=True)
class Method(Settings):
    """Base class of the settings of all methods against forgetting, with facts that a method may override."""

    made_by = ""  # function that makes the method of its settings, as 'module:function'
    replay_interval = 0  # examples from one replay, or projection, to the next; 0 = none is counted
    aligns = False  # a linear map stands before the similarities of the head
    batches_per_update = 1  # of the stream, that an update reads
    joins = False  # the examples of all tasks are read in one stage
    num_columns = 1  # of the model
    keeps_adapters = False  # those of earlier tasks stay in the model beside the ones that are trained
    adapts = False  # every row is scored with parameters that have been adapted to it

    def make(self) -> Any:
        """Returns the method that these settings describe, a `memjax.lifelong.Method`. Settings without `made_by`, such
        as those of a user's own, define it.
        """
        raise ValueError(f"lifelong.method: given {type(self).__name__}, allowed: a class that defines make()")

    def for_boundaries(self, boundaries: str) -> Method:
        """Returns the settings for a stream with these `lifelong.task_boundaries`. They differ where the default of a
        field depends on whether the method is told the boundaries.
        """
        del boundaries
        return self


@dataclass(slots=True, kw_only=True)
class EpisodicMemory(Settings):
    """An episodic memory: rows of earlier batches, stored by a write policy, to be learned again or looked up by their
    keys.
    """

    capacity: Count = 1000
    """number of rows that the memory can hold"""
    write_policy: Literal[
        "all", "random", "reservoir", "priority", "balanced", "diversity", "uncertainty", "forgettable"
    ] = "reservoir"
    """rule by which rows are written: 'all' = every row; 'random' = each with `write_probability`; 'reservoir' = a
    uniform
    sample of all rows so far (algorithm R); 'priority' = those with the highest random priorities; 'balanced' = an
    equal share of each class or task (`balance_by`); 'diversity' = rows unlike the stored ones; 'uncertainty' = rows of
    which the model is least sure; 'forgettable' = rows whose answers changed most often from right to wrong when they
    were replayed"""
    write_probability: Share = 1.0
    """probability that a row is written where `write_policy` is 'random', share of the rows that are written where it
    is 'diversity'"""
    when_full: Literal["drop", "ring"] = "drop"
    """behaviour of a full memory where `write_policy` is 'all', 'random' or 'diversity': 'drop' = nothing more is
    written; 'ring' = the oldest rows are overwritten"""
    balance_by: Literal["class", "task"] = "class"
    """groups that share the memory equally where `write_policy` is 'balanced'"""
    diversity_temperature: Positive = 0.1
    """divisor of the squared distance to the nearest stored key where `write_policy` is 'diversity' (beta)"""
    distance_scale: Literal["median", "one"] = "median"
    """unit of `diversity_temperature` where `write_policy` is 'diversity': 'median' = the median squared distance
    between the first 256
    keys; 'one' = 1. Published is a temperature of 10 with 'one', for BERT's keys as they are; for keys of length 1 that
    amounts to a uniform choice"""
    prefer: Literal["dissimilar", "similar"] = "dissimilar"
    """rows that are preferred where `write_policy` is 'diversity': 'dissimilar' = rows far from the stored ones (the
    paper's text); 'similar' = rows near to them (the paper's formula)"""
    storage: Literal["device", "host"] = "device"
    """storage of the rows: 'device' = in the train state, on the devices; 'host' = in the memory of the host, which has
    room for more rows, but every update waits for it"""
    key_search: Literal["exact", "scann"] = "exact"
    """search for the nearest keys where `storage` is 'host': 'exact', or 'scann' = an approximate ScaNN index, which is
    rebuilt as the memory grows"""

    def check(self, field: str, config: Config) -> None:
        del config
        fits = self.storage == "host" or self.key_search == "exact"
        require(fits, f"{field}key_search", self.key_search, "'exact' unless storage is 'host'")
        fits = self.storage == "device" or self.write_policy != "forgettable"
        require(fits, f"{field}storage", self.storage, "'device' with write_policy 'forgettable'")


@dataclass(slots=True, kw_only=True)
class Sequential(Method):
    """Plain training on one task after the other (ENC-DEC, naive, fine-tuning). Papers call it the lower bound."""

    made_by = "memjax.lifelong.basic_methods:sequential"


@dataclass(slots=True, kw_only=True)
class SingleTask(Method):
    """Training on each task alone, from the initial parameters: what every task can reach without the others.

    The learning rate also starts again with every task, but its schedule is that of the updates of all tasks together.
    Therefore set `training.schedule.decay` to 'constant'.
    """

    made_by = "memjax.lifelong.basic_methods:single_task"


@dataclass(slots=True, kw_only=True)
class Joint(Method):
    """Training on the examples of several tasks at once. Papers call it the upper bound."""

    made_by = "memjax.lifelong.basic_methods:joint"
    schedule: Literal["one", "cumulative", "anew"] = "one"
    """'one' = all tasks shuffled in one stage (multi-task learning); 'cumulative' = a stage for each task with all
    tasks so far, going on from the stage before; 'anew' = such stages, each from the initial parameters (joint
    re-training at every step)"""

    @property
    def joins(self) -> bool:
        return self.schedule == "one"


@dataclass(slots=True, kw_only=True)
class Replay(Method):
    """Experience replay: rows of an episodic memory are learned again, in updates of their own or in every batch."""

    made_by = "memjax.lifelong.basic_methods:replay"
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """memory of earlier rows"""
    mode: Literal["sparse", "mixed"] = "mixed"
    """'sparse' = replayed rows get an update of their own now and then (de Masson d'Autume et al. 2019); 'mixed' = they
    are added to every batch"""
    replay_interval: Count = 10_000
    """number of examples of the stream between two replays where `mode` is 'sparse'"""
    replay_batch_size: Count = 32
    """number of rows of a replay"""
    with_replacement: bool = True
    """draw the rows of a replay with replacement"""
    softmax_classes: Literal["seen", "batch"] = "seen"
    """classes in the softmax over rows of the stream: 'seen' = all classes; 'batch' = the classes of the batch alone,
    so that new classes do not push old ones away (ER-ACE, Caccia et al. 2022)"""


@dataclass(slots=True, kw_only=True)
class AGEM(Method):
    """A-GEM (Chaudhry et al. 2019): gradients are projected so that updates do not increase the loss on rows that are
    drawn from an episodic memory.

    As in the paper, the rows are of earlier tasks alone where the stream tells the boundaries between tasks. Where it
    does not, they are of all tasks so far.
    """

    made_by = "memjax.lifelong.basic_methods:agem"
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """memory of earlier rows"""
    reference_batch_size: Count = 32
    """number of rows of the memory whose gradient is the reference for a projection"""
    reference_tasks: Literal["earlier", "all"] | None = None
    """tasks whose stored rows can be drawn for the reference: 'earlier' = those before the task that is learned, as in
    the paper; 'all' = also the task that is learned; None = 'earlier' where `lifelong.task_boundaries` is 'known', else
    'all'"""
    projection_interval: Number = 0
    """number of examples of the stream between two projected updates; 0 = every update is projected"""

    @property
    def replay_interval(self) -> int:
        """Number of examples between two readings of the memory, which is `projection_interval`. 0 = it is read in
        every update.
        """
        return self.projection_interval

    def for_boundaries(self, boundaries: str) -> Method:
        tasks = self.reference_tasks or ("earlier" if boundaries == "known" else "all")
        return replace(self, reference_tasks=tasks)

    def check(self, field: str, config: Config) -> None:
        boundaries = config.lifelong.task_boundaries if config.lifelong else "known"
        fits = boundaries == "known" or self.reference_tasks != "earlier"
        require(fits, "lifelong.task_boundaries", boundaries, f"'known' with {field}reference_tasks 'earlier'")


@dataclass(slots=True, kw_only=True)
class GEM(Method):
    """GEM (Lopez-Paz and Ranzato 2017): updates are projected so that they increase no earlier task's loss on its
    stored rows.
    """

    made_by = "memjax.lifelong.basic_methods:gem"
    examples_per_task: Count = 100
    """number of stored rows of each task, over all of which its gradient is computed"""
    memory_strength: Annotated[float, zero_or_more()] = 0.5
    """minimum weight of every earlier task's gradient once one of them is violated (memory strength in the authors'
    code); 0 = as in the paper's program"""
    epsilon: Annotated[float, zero_or_more()] = 1e-3
    """number added to the diagonal of the dual quadratic program"""
    cache_gradients: bool = False
    """hold the gradients of all tasks in memory at once, which takes less computation and one gradient per task of
    memory"""


@dataclass(slots=True, kw_only=True)
class EWC(Method):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): a quadratic penalty, weighted by the Fisher information,
    holds parameters that matter to old tasks.
    """

    made_by = "memjax.lifelong.basic_methods:ewc"
    penalty_weight: Penalty = 1.0
    """weight of the penalty (lambda in the paper)"""
    fisher_estimate: Literal["example", "batch", "true"] = "example"
    """estimate of the Fisher information: 'example' = squared gradients of single rows (empirical Fisher information);
    'batch' = squared gradients of whole batches, as in Avalanche, smaller by about the number of rows of a batch;
    'true' = of single rows with labels drawn from the model"""
    fisher_batches: Count = 32
    """number of batches of a task over which the Fisher information is averaged"""
    consolidation: Literal["separate", "online"] = "separate"
    """'separate' = one penalty around the parameters after each earlier task; 'online' = a single penalty around those
    after the last task, with the information of all"""
    decay: Share = 1.0
    """factor on the information of earlier tasks at each new one where `consolidation` is 'online', from 0 to 1 (gamma
    in Schwarz et al. 2018)"""


@dataclass(slots=True, kw_only=True)
class MAS(Method):
    """Memory aware synapses (Aljundi et al. 2018): a quadratic penalty holds parameters on which the outputs of the
    model depend.
    """

    made_by = "memjax.lifelong.basic_methods:mas"
    penalty_weight: Penalty = 1.0
    """weight of the penalty (lambda in the paper)"""
    gradient_granularity: Literal["example", "batch"] = "example"
    """gradients whose absolute values are averaged: 'example' = of single rows; 'batch' = of whole batches, where
    opposite signs cancel"""
    importance_batches: Count = 32
    """number of batches of a task over which the importance is averaged"""
    old_importance_fraction: Share | None = None
    """weight of earlier tasks in the importance, from 0 to 1 (0.5 in Avalanche); the new task has the rest; None = the
    importances of all tasks are added up"""


@dataclass(slots=True, kw_only=True)
class SI(Method):
    """Synaptic intelligence (Zenke et al. 2017): a quadratic penalty holds parameters whose changes have reduced the
    loss of earlier tasks.
    """

    made_by = "memjax.lifelong.basic_methods:si"
    penalty_weight: Penalty = 1.0
    """weight of the penalty (c in the paper)"""
    damping: Positive = 0.1
    """number added to the squared distance that a parameter has moved (xi in the paper)"""


@dataclass(slots=True, kw_only=True)
class LwF(Method):
    """Learning without forgetting (Li and Hoiem 2016): the model from before a task is the teacher, whose outputs on
    the inputs of the new task the model learns to keep.
    """

    made_by = "memjax.lifelong.basic_methods:lwf"
    distillation_weight: Penalty = 1.0
    """weight of the divergence from the teacher's answers"""
    temperature: Positive = 2.0
    """divisor of the scores of model and teacher before their softmax"""


@dataclass(slots=True, kw_only=True)
class LogitKD(Method):
    """Experience replay with distillation: the model from before a task is the teacher, whose outputs on the replayed
    rows the model learns to keep.
    """

    made_by = "memjax.lifelong.basic_methods:logit_kd"
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """memory of earlier rows"""
    replay_batch_size: Count = 32
    """number of replayed rows beside every batch"""
    distillation_weight: Penalty = 1.0
    """weight of the divergence from the teacher's answers on a replayed row; the loss is a mean over new and replayed
    rows, so that 32 replayed rows beside 32 new ones halve it"""
    temperature: Positive = 2.0
    """divisor of the scores of model and teacher before their softmax"""
    anneal_weight: bool = False
    """let `distillation_weight` fall to 0 while a task is learned (as the published code of ELLE does)"""


@dataclass(slots=True, kw_only=True)
class NeighborAdaptationMethod(Method):
    """Common settings of MbPA, MbPA++ and Meta-MbPA: sparse replay in training, and before each answer an adaptation to
    stored neighbours of the query.
    """

    memory: EpisodicMemory = field(default_factory=lambda: EpisodicMemory(write_policy="all", capacity=10_000))
    """memory of earlier rows"""
    replay_interval: Number = 10_000
    """number of examples of the stream between two replays; 0 = no replay"""
    replay_batch_size: Count = 100
    """number of rows of a replay"""
    num_neighbors: Count = 32
    """number of nearest stored rows that an adaptation uses (K); for question answering windows of texts"""
    neighbor_weighting: Literal["uniform", "inverse_distance", "softmax"] = "uniform"
    """weights of the neighbours in the loss of the adaptation: 'uniform' (MbPA++), 'inverse_distance' (MbPA), or
    'softmax' over negative distances or inner products"""
    key_distance: Literal["squared_l2", "inner_product"] = "squared_l2"
    """measure by which the keys of a query and of stored rows are compared"""
    key_source: Literal["inputs", "first", "question", "mean", "prompt"] = "inputs"
    """key of a row: 'inputs' = its vector of numbers; the others are states of the frozen encoder: 'first' = at the
    first token, 'question' = at the first token of the question, 'mean' = averaged over the text, 'prompt' = averaged
    up to the first token of the answer (task Instructions)"""
    adaptation_steps: Number = 30
    """number of gradient steps of the adaptation before answering (L); 0 = no adaptation"""
    adaptation_learning_rate: Annotated[float, zero_or_more()] = 5e-3
    """learning rate of the adaptation before answering"""
    adaptation_momentum: Share = 0.0
    """momentum of the adaptation before answering"""
    adaptation_l2: Penalty = 1e-3
    """weight of the squared distance to the trained parameters in the adaptation's loss (lambda)"""
    adapted_parameters: tuple[str, ...] = ()
    """parts of the paths of the parameters that are adapted; () = all parameters"""
    adaptation_batch_size: Count = 16
    """number of queries adapted side by side on a device, where every row is adapted to its own neighbours; each takes
    a copy of the adapted parameters"""

    def check(self, field: str, config: Config) -> None:
        del config
        fits = self.key_distance == "squared_l2" or self.neighbor_weighting != "inverse_distance"
        require(
            fits,
            f"{field}neighbor_weighting",
            self.neighbor_weighting,
            "'uniform' or 'softmax' with key_distance 'inner_product'",
        )


@dataclass(slots=True, kw_only=True)
class MbPA(NeighborAdaptationMethod):
    """MbPA++ (de Masson d'Autume et al. 2019), and MbPA: sparse replay in training, and before each answer an
    adaptation to stored neighbours of the query.
    """

    made_by = "memjax.lifelong.mbpa:mbpa"
    neighbor_choice: Literal["nearest", "random"] = "nearest"
    """stored rows that a query is adapted to: the 'nearest', or 'random' ones, which need no keys"""

    def check(self, field: str, config: Config) -> None:
        super(MbPA, self).check(field, config)  # slots=True makes the class anew, which a bare super() does not see
        fits = self.neighbor_choice == "nearest" or self.neighbor_weighting == "uniform"
        require(
            fits,
            f"{field}neighbor_weighting",
            self.neighbor_weighting,
            "'uniform' with neighbor_choice 'random', which have no distances",
        )

    @property
    def adapts(self) -> bool:
        """Whether every row is scored with parameters that have been adapted to it, which is so unless
        `adaptation_steps` is 0.
        """
        return self.adaptation_steps > 0
