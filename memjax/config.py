"""The configuration of one experiment, and the names of all settings (see `memjax.settings`).

A config is built by `configs/NAME.py:get_config(variant)`; the type of a part is its kind, so there is no `kind` field:
`config.model.attention = Memorizing(memory_length=4096)`. Only the model factory and the command line unpack these;
modules and functions take plain arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memjax.settings.attention import *
from memjax.settings.compatibility import CLASSES, renamed_names
from memjax.settings.data import *
from memjax.settings.evaluation import *
from memjax.settings.examples import *
from memjax.settings.feed_forward import *
from memjax.settings.generation import *
from memjax.settings.growth import *
from memjax.settings.instructions import *
from memjax.settings.lifelong import *
from memjax.settings.meta import *
from memjax.settings.methods import *
from memjax.settings.model import *
from memjax.settings.output import *
from memjax.settings.pairs import *
from memjax.settings.questions import *
from memjax.settings.relation_methods import *
from memjax.settings.relation_sources import *
from memjax.settings.relations import Settings, require, validate
from memjax.settings.sources import *
from memjax.settings.task import *
from memjax.settings.tokenizers import *
from memjax.settings.training import *

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__ = renamed_names(__name__, CLASSES)

Model = ModelSettings
"""as configs name it"""


@dataclass(slots=True, kw_only=True)
class Config(Settings):
    """One experiment: one row of the results table."""

    name: str = "unnamed"
    """name of the experiment; its runs go to workdir/name"""
    workdir: str = "runs"
    """folder of run directories"""
    task: TaskKind = field(default_factory=LanguageModeling)
    """what is learned"""
    model: ModelKind = field(default_factory=ModelSettings)
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    evaluations: tuple[Evaluation, ...] = ()
    """others beside it, each with a name"""
    lifelong: Lifelong | None = None
    """tasks that are learned one after the other; None = one task, data.source"""
    sharding: Sharding = field(default_factory=Sharding)

    def check(self, field: str, config: Config) -> None:
        tasks = [task.name for task in self.lifelong.tasks] if self.lifelong else []
        names = [evaluation.name for evaluation in self.evaluations]
        for where, given in (("lifelong.tasks", tasks), ("evaluations", names)):
            require("" not in given and len(set(given)) == len(given), where, given, "a name of its own for each")
        require(not self.evaluation.name, "evaluation.name", self.evaluation.name, "'' (evaluations have names)")
        for one in (self.evaluation, *self.evaluations):
            require(one.task in ("", *tasks), "evaluation.task", one.task, f"'' or one of {tasks}")
            others = ("none", *tasks) if one.task and self.task.prompt != "none" else ()
            allowed = f"'' or one of {[*others]}" if others else "'' without task.prompt, and without evaluation.task"
            require(one.prompt in ("", *others), "evaluation.prompt", one.prompt, allowed)
        for one in self.evaluations:
            validate(replace(self, evaluation=replace(one, name=""), evaluations=()))

    def with_memory(self, length: int | None) -> Config:
        """The same with a memory of so many slots, valid; None = as it is.

        Raises:
          ValueError: the model has no memory whose size can change, or not to this one.
        """
        if length is None:
            return self
        config = replace(self, model=self.model.with_memory(length))
        validate(config)
        return config

    def with_task(self, task: TaskData) -> Config:
        """The same stream with a task more at its end, for a run of it that goes on; the others keep their updates."""
        stream = self._stream()
        number, one = len(stream.tasks), replace(self.evaluation, name=task.name, task=task.name)
        longer = replace(stream, tasks=(*stream.tasks, task), order=(*stream.order, number) if stream.order else ())
        scored = (*self.evaluations, one) if self.evaluations else ()
        return replace(self._with_steps(number + 1), lifelong=longer, evaluations=scored)

    def of_first_tasks(self, count: int) -> Config:
        """The same stream as it was before it took the tasks after the first ones."""
        first = self._stream().first(count)
        names = ("", *(task.name for task in first.tasks))
        scored = tuple(one for one in self.evaluations if one.task in names)
        return replace(self._with_steps(count), lifelong=first, evaluations=scored)

    @property
    def num_columns(self) -> int:
        """Columns of the model, above 1 in a progressive network alone."""
        return self.lifelong.method.columns if self.lifelong else 1

    def takes_tasks_of(self, other: Config) -> bool:
        """Whether it is of a stream, and has more tasks than another one."""
        own, others = self.lifelong, other.lifelong
        return own is not None and others is not None and len(own.tasks) > len(others.tasks)

    def _stream(self) -> Lifelong:
        require(self.lifelong is not None, "lifelong", None, "tasks one after the other")
        assert self.lifelong is not None
        return self.lifelong

    def _with_steps(self, tasks: int) -> Config:
        """With the updates of so many tasks, where each has a share of them."""
        stream, training = self._stream(), self.training
        steps = training.steps if stream.epochs else training.steps // len(stream.tasks) * tasks
        return replace(self, training=replace(training, steps=steps))
