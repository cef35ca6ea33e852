"""What is done against forgetting: the methods of lifelong learning, and the memory of those that keep rows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.ranges import Count, Number, Positive, Share, zero_or_more
from memjax.settings.relations import Settings, require

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
    """What is done against forgetting; base of all methods."""

    made_by = ""  # file of memjax/lifelong and its function: fields -> the method
    every = 0  # examples from one replay, or projection, to the next; 0 = none is counted
    aligns = False  # a linear map stands before the similarities of the head
    batches = 1  # of the stream, that an update reads
    joins = False  # the examples of all tasks are read in one stage
    columns = 1  # of the model
    adapts = False  # every row is scored with parameters that have been adapted to it

    def arguments(self) -> dict[str, Any]:
        """Of the function that makes it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(slots=True, kw_only=True)
class EpisodicMemory(Settings):
    """What is kept of the stream, as the rows that training has read."""

    capacity: Count = 1000
    """rows"""
    policy: Literal["all", "random", "reservoir", "priority", "balanced", "diversity", "uncertainty", "forgettable"] = (
        "reservoir"
    )
    """which rows are written: each, each with `probability`, by algorithm R, the best of random priorities, an equal
    share of each of `groups`, those unlike what is kept, those that the model is least sure of, or those that were
    answered rightly and then wrongly most often, each time they were replayed"""
    probability: Share = 1.0
    """'random': of being written"""
    full: Literal["drop", "ring"] = "drop"
    """'all' and 'random': a full memory takes nothing more, or overwrites its oldest rows"""
    groups: Literal["class", "task"] = "class"
    """'balanced': what shares the memory equally"""
    temperature: Positive = 0.1
    """'diversity': divides the squared distance to the nearest key (beta)"""
    unit: Literal["median", "one"] = "median"
    """'diversity': of the temperature, the median squared distance between the first 256 keys, or 1; published is 10
    times 1, for keys of BERT as they are: with keys of length 1 that is a uniform choice"""
    sign: Literal["unlike", "like"] = "unlike"
    """'diversity': rows unlike what is kept are written rather (the paper's words), or rows like it (its formula)"""
    place: Literal["device", "host"] = "device"
    """in the train state, on the devices; or in the memory of the host: for more rows, and every update waits for it"""
    index: Literal["exact", "scann"] = "exact"
    """how a memory on the host looks up keys: exactly, or with ScaNN, whose index is built anew as the memory grows"""

    def check(self, field: str, config: Config) -> None:
        del config
        fits = self.place == "host" or self.index == "exact"
        require(fits, f"{field}index", self.index, "'exact' unless place is 'host'")
        fits = self.place == "device" or self.policy != "forgettable"
        require(fits, f"{field}place", self.place, "'device' with policy 'forgettable'")


@dataclass(slots=True, kw_only=True)
class Sequential(Method):
    """Plain training on one task after the other: the lower bound of every method (ENC-DEC, naive, fine-tuning)."""

    made_by = "methods.sequential"


@dataclass(slots=True, kw_only=True)
class SingleTask(Method):
    """Every task from the first parameters again: what each can reach alone, on the diagonal of the accuracies.

    The learning rate begins anew too, and a decay is laid out over the updates of all tasks: take `decay` 'constant'.
    """

    made_by = "methods.single_task"


@dataclass(slots=True, kw_only=True)
class Joint(Method):
    """Training on the examples of several tasks at once: the upper bounds."""

    made_by = "methods.joint"
    stages: Literal["one", "cumulative", "anew"] = "one"
    """all tasks shuffled in one stage (multi-task); all up to each task, going on (cumulative), or from the first
    parameters again (joint re-training at every step)"""

    @property
    def joins(self) -> bool:
        return self.stages == "one"


@dataclass(slots=True, kw_only=True)
class Replay(Method):
    """Experience replay: rows of an episodic memory are learned again."""

    made_by = "methods.replay"
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """what is kept"""
    mode: Literal["sparse", "mixed"] = "mixed"
    """an update of its own now and then (de Masson d'Autume et al. 2019), or rows in every update"""
    every: Count = 10_000
    """'sparse': examples of the stream from one replay to the next"""
    rows: Count = 32
    """replayed at once"""
    replace: bool = True
    """drawn with replacement"""
    compared: Literal["seen", "batch"] = "seen"
    """classes that rows of the stream are compared with: all that were seen, or those of the batch alone, so that new
    classes do not push old ones away (ER-ACE, Caccia et al. 2022)"""


@dataclass(slots=True, kw_only=True)
class AGEM(Method):
    """A-GEM (Chaudhry et al. 2019): no update against the gradient of rows from the memory."""

    made_by = "methods.agem"
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """what is kept"""
    rows: Count = 32
    """whose gradient is the reference"""
    every: Number = 0
    """examples from one projected update to the next; 0 = every update is projected"""


@dataclass(slots=True, kw_only=True)
class GEM(Method):
    """GEM (Lopez-Paz and Ranzato 2017): no update against the gradient of the rows of any earlier task."""

    made_by = "methods.gem"
    rows: Count = 100
    """kept of each task, all of which a gradient is of"""
    margin: Annotated[float, zero_or_more()] = 0.5
    """least weight of each earlier gradient once one is violated (the memory strength of the authors' code); 0 = as in
    the paper's program"""
    epsilon: Annotated[float, zero_or_more()] = 1e-3
    """added to the diagonal of the dual program"""
    stored: bool = False
    """hold the gradients of all tasks at once: less arithmetic, and as many gradients in memory as tasks"""


@dataclass(slots=True, kw_only=True)
class EWC(Method):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): a quadratic penalty around what earlier tasks left."""

    made_by = "methods.ewc"
    weight: Penalty = 1.0
    """of the penalty (the paper's lambda)"""
    fisher: Literal["example", "batch", "true"] = "example"
    """squared gradients of single rows, the empirical Fisher information; of whole batches, as Avalanche has it,
    smaller by about the rows of a batch; or of single rows with labels that the model draws"""
    batches: Count = 32
    """batches of a task's data that the Fisher information is the mean of"""
    form: Literal["separate", "online"] = "separate"
    """a penalty around each earlier task, or one around the last with the information of all"""
    decay: Share = 1.0
    """online: share of the earlier information that stays at each task (the gamma of Schwarz et al. 2018)"""


@dataclass(slots=True, kw_only=True)
class MAS(Method):
    """Memory aware synapses (Aljundi et al. 2018): importance is how much the outputs depend on a parameter."""

    made_by = "methods.mas"
    weight: Penalty = 1.0
    """of the penalty (lambda)"""
    flavour: Literal["example", "batch"] = "example"
    """absolute gradients of single rows, or of whole batches, where they cancel"""
    batches: Count = 32
    """batches of a task's data"""
    alpha: Share | None = None
    """None = the sum over tasks; else the share of the earlier importance (Avalanche: 0.5)"""


@dataclass(slots=True, kw_only=True)
class SI(Method):
    """Synaptic intelligence (Zenke et al. 2017): importance is what a parameter has contributed along the way."""

    made_by = "methods.si"
    weight: Penalty = 1.0
    """of the penalty (the paper's c)"""
    damping: Positive = 0.1
    """added to the squared distance of each parameter (the paper's xi)"""


@dataclass(slots=True, kw_only=True)
class LwF(Method):
    """Learning without forgetting (Li and Hoiem 2016): the model before the task teaches on the task's inputs."""

    made_by = "methods.lwf"
    weight: Penalty = 1.0
    """of the divergence from the teacher"""
    temperature: Positive = 2.0
    """divides the scores of both"""


@dataclass(slots=True, kw_only=True)
class LogitKD(Method):
    """Experience replay whose rows the model before the task teaches too."""

    made_by = "methods.logit_kd"
    memory: EpisodicMemory = field(default_factory=EpisodicMemory)
    """what is kept"""
    rows: Count = 32
    """replayed beside every batch"""
    weight: Penalty = 1.0
    """of the divergence from the teacher"""
    temperature: Positive = 2.0
    """divides the scores of both"""
    annealed: bool = False
    """the weight falls from all to nothing while a task is learned (published code of ELLE)"""


@dataclass(slots=True, kw_only=True)
class Neighborly(Method):
    """What MbPA, MbPA++ and Meta-MbPA share: a memory that is replayed now and then, and read by its keys."""

    memory: EpisodicMemory = field(default_factory=lambda: EpisodicMemory(policy="all", capacity=10_000))
    """what is kept"""
    every: Number = 10_000
    """examples of the stream from one replay to the next; 0 = no replay"""
    rows: Count = 100
    """replayed at once"""
    num_neighbors: Count = 32
    """of an adaptation (K); of questions, windows of their texts"""
    weights: Literal["uniform", "inverse_distance", "softmax"] = "uniform"
    """of the neighbours: MbPA++ has them uniform, MbPA by their inverse distance"""
    metric: Literal["squared_l2", "inner_product"] = "squared_l2"
    """of keys"""
    key: Literal["inputs", "first", "question", "mean", "prompt"] = "inputs"
    """of a row: its inputs where they are vectors, or what the frozen encoder gives for its first token, for the first
    token of a question, the mean, or the mean up to the first token that is asked for (of Instructions)"""
    steps: Number = 30
    """of the adaptation before answers (L); 0 = none"""
    learning_rate: Annotated[float, zero_or_more()] = 5e-3
    """of the adaptation before answers"""
    momentum: Share = 0.0
    """of the adaptation before answers"""
    penalty: Penalty = 1e-3
    """of the squared distance to the trained parameters (lambda)"""
    adapted: tuple[str, ...] = ()
    """parts of the paths of the parameters that are adapted; () = all"""
    queries: Count = 16
    """adapted side by side on a device, where each row is for itself: each has its own copy of what is adapted"""

    def check(self, field: str, config: Config) -> None:
        del config
        fits = self.metric == "squared_l2" or self.weights != "inverse_distance"
        require(fits, f"{field}weights", self.weights, "'uniform' or 'softmax' with metric 'inner_product'")


@dataclass(slots=True, kw_only=True)
class MbPA(Neighborly):
    """MbPA++ (de Masson d'Autume et al. 2019), and MbPA: sparse replay, and adaptation to the neighbours of a query."""

    made_by = "mbpa.mbpa"
    neighbors: Literal["nearest", "random"] = "nearest"
    """whom a query is adapted to; random ones need no keys"""

    def check(self, field: str, config: Config) -> None:
        super(MbPA, self).check(field, config)  # slots=True makes the class anew, which a bare super() does not see
        fits = self.neighbors == "nearest" or self.weights == "uniform"
        require(fits, f"{field}weights", self.weights, "'uniform' with neighbors 'random', which have no distances")

    @property
    def adapts(self) -> bool:
        """Unless there are no steps."""
        return self.steps > 0
