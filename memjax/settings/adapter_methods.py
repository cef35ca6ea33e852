"""Settings of methods that are made of adapters, which need `training.lora`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memjax.settings.checks import require
from memjax.settings.methods import Method, Penalty

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["OLoRA", "TaskAdapters"]


@dataclass(slots=True, kw_only=True)
class AdapterMethod(Method):
    """Common settings of methods that are made of adapters.

    The optimiser and the learning rate start again with every task, whose schedule is that of the updates of all tasks
    together. Therefore set `training.schedule.decay` to 'constant'.
    """

    def check(self, field: str, config: Config) -> None:
        del field
        rank, kind = config.training.lora.rank, type(self).__name__
        require(rank > 0, "training.lora.rank", rank, f"1 or more with {kind}, which is made of adapters")


@dataclass(slots=True, kw_only=True)
class TaskAdapters(AdapterMethod):
    """One adapter a task: every task gets adapters and a head of its own, beside frozen weights that all tasks share.
    The task must be known when it is evaluated.
    """

    made_by = "memjax.lifelong.adapter_methods:task_adapters"


@dataclass(slots=True, kw_only=True)
class OLoRA(AdapterMethod):
    """Orthogonal low-rank adaptation (Wang et al. 2023): every task gets adapters of its own, whose inputs a penalty
    holds orthogonal to those of the adapters of earlier tasks. The model adds up all of them.
    """

    made_by = "memjax.lifelong.adapter_methods:o_lora"
    keeps_adapters = True

    penalty_weight: Penalty = 0.5
    """weight of the penalty (lambda in the paper)"""
    overlap: Literal["squared", "absolute"] = "squared"
    """penalty of the products of an input vector of a new and one of an earlier adapter: the sum of their 'squared'
    values (the paper), or of their 'absolute' values (its code)"""
