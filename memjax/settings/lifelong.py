"""Tasks that are learned one after the other, and what is done against forgetting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from memjax.settings.data import KeyValueRecall, SourceKind
from memjax.settings.ranges import Count, Share, zero_or_more
from memjax.settings.relations import Settings, require

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Sequential", "EWC", "MethodKind", "TaskData", "Lifelong"]


@dataclass(slots=True, kw_only=True)
class Sequential(Settings):
    """Plain training on one task after the other: the lower bound of every method."""

    made_by = "sequential.sequential"  # file of memjax/lifelong and its function: fields -> the method


@dataclass(slots=True, kw_only=True)
class EWC(Settings):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): a quadratic penalty around what earlier tasks left."""

    made_by = "ewc.ewc"
    weight: Annotated[float, zero_or_more()] = 1.0
    """of the penalty (the paper's lambda)"""
    fisher: Literal["example", "batch"] = "example"
    """squared gradients of single rows, the empirical Fisher information, or of whole batches, as Avalanche has it"""
    batches: Count = 32
    """batches of a task's data that the Fisher information is the mean of"""
    form: Literal["separate", "online"] = "separate"
    """a penalty around each earlier task, or one around the last with the information of all"""
    decay: Share = 1.0
    """online: share of the earlier information that stays at each task (the gamma of Schwarz et al. 2018)"""


MethodKind = Sequential | EWC


@dataclass(slots=True, kw_only=True)
class TaskData(Settings):
    """One task of several."""

    name: str = ""
    """in evaluations and metrics"""
    source: SourceKind = field(default_factory=KeyValueRecall)
    """where its documents come from"""


@dataclass(slots=True, kw_only=True)
class Lifelong(Settings):
    """Tasks one after the other: each gets an equal share of training.steps, and is evaluated after each of them."""

    method: MethodKind = field(default_factory=Sequential)
    """what is done against forgetting"""
    tasks: tuple[TaskData, ...] = ()
    """in their order, of one vocabulary: that of data.source"""

    def check(self, field: str, config: Config) -> None:
        number, steps = len(self.tasks), config.training.steps
        require(number > 0, f"{field}tasks", self.tasks, "at least one task")
        require(steps % number == 0, "training.steps", steps, f"a multiple of the {number} tasks")
