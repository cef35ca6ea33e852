"""The configuration of an experiment, `Config`, and the classes of all settings (see `memjax.settings`).

`get_config(variant)` in `configs/NAME.py` makes a config. The class of a setting is its kind, so there is no field
`kind`: `config.model.attention = Memorizing(memory_length=4096)`. Only the model factory and the command line unpack
settings; modules and functions take plain arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memjax.settings.adapter_methods import *
from memjax.settings.attention import *
from memjax.settings.attention_bases import *
from memjax.settings.checks import Settings, require, validate
from memjax.settings.compatibility import renamed_names
from memjax.settings.data import *
from memjax.settings.earlier_names import CLASSES
from memjax.settings.evaluation import *
from memjax.settings.examples import *
from memjax.settings.feed_forward import *
from memjax.settings.generation import *
from memjax.settings.grafts import *
from memjax.settings.growth import *
from memjax.settings.instructions import *
from memjax.settings.lifelong import *
from memjax.settings.long_memory import *
from memjax.settings.lora import *
from memjax.settings.meta import *
from memjax.settings.methods import *
from memjax.settings.model import *
from memjax.settings.output import *
from memjax.settings.pairs import *
from memjax.settings.questions import *
from memjax.settings.rehearsal_methods import *
from memjax.settings.relation_data import *
from memjax.settings.rotary import *
from memjax.settings.sources import *
from memjax.settings.task import *
from memjax.settings.tokenizers import *
from memjax.settings.training import *

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__ = renamed_names(__name__, CLASSES)

Model = ModelSettings
"""short name of `ModelSettings` for configs"""


@dataclass(slots=True, kw_only=True)
class Config(Settings):
    """The configuration of an experiment: task, model, data, training and evaluation."""

    name: str = "unnamed"
    """name of the experiment; the run directory is workdir/name"""
    workdir: str = "runs"
    """folder of run directories"""
    task: TaskKind = field(default_factory=LanguageModeling)
    """kind of task that is learned"""
    model: ModelKind = field(default_factory=ModelSettings)
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    evaluations: tuple[Evaluation, ...] = ()
    """further evaluations besides `evaluation`, each with a name"""
    lifelong: Lifelong | None = None
    """stream of tasks that are learned one after the other; None = a single task on `data.source`"""
    sharding: Sharding = field(default_factory=Sharding)

    def check(self, field: str, config: Config) -> None:
        allowed = "a name of a folder, without /, \\ and control characters"
        is_name = self.name not in ("", ".", "..") and not re.search(r"[/\\\x00-\x1f\x7f]", self.name)
        require(is_name, f"{field}name", self.name, allowed)
        tasks = [task.name for task in self.lifelong.tasks] if self.lifelong else []
        names = [evaluation.name for evaluation in self.evaluations]
        for where, of_each in (("lifelong.tasks", tasks), ("evaluations", names)):
            is_unique = "" not in of_each and len(set(of_each)) == len(of_each)
            require(is_unique, where, of_each, "a name of its own for each")
        require(not self.evaluation.name, "evaluation.name", self.evaluation.name, "'' (evaluations have names)")
        for evaluation in (self.evaluation, *self.evaluations):
            require(evaluation.task in ("", *tasks), "evaluation.task", evaluation.task, f"'' or one of {tasks}")
            others = ("none", *tasks) if evaluation.task and self.task.prompt != "none" else ()
            allowed = f"'' or one of {[*others]}" if others else "'' without task.prompt, and without evaluation.task"
            require(
                evaluation.prompt_of_task in ("", *others),
                "evaluation.prompt_of_task",
                evaluation.prompt_of_task,
                allowed,
            )
        for evaluation in self.evaluations:
            validate(replace(self, evaluation=replace(evaluation, name=""), evaluations=()))

    def with_memory(self, length: int | None) -> Config:
        """Returns a copy of this config whose memory has `length` slots and which differs in nothing else. None returns
        this config itself.

        Raises:
          ValueError: The model has no memory whose size can change, or cannot have this size.
        """
        if length is None:
            return self
        config = replace(self, model=self.model.with_memory(length))
        validate(config)
        return config

    def with_parts(self, *, method: Any = None, memory: Any = None, source: Any = None) -> Config:
        """Returns a copy of this config with another method, memory (the attention of the layers) or source of data,
        such as those of your own. None keeps the part.

        Args:
          method: Settings of the learning method, a `Method`.
          memory: Settings of the memory, an `Attention`.
          source: Settings of the source of the data, a `Source`.

        Raises:
          ValueError: The config has no such part, or a value is none of its kinds.
        """
        parts = {
            "method": (method, Method, "; a name for memjax.settings.named_methods.with_method"),
            "memory": (memory, Attention, "; a name for memjax.settings.named_memories.with_memory_kind"),
            "source": (source, Source, ""),
        }
        for name, (part, kind, for_names) in parts.items():
            part_name = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
            allowed = f"settings, an instance of {kind.__name__}{for_names if isinstance(part, str) else ''}"
            require(part is None or isinstance(part, kind), name, part_name, allowed)
        config = self
        if method is not None:
            config = replace(config, lifelong=replace(config._stream(), method=method))
        if memory is not None:
            kind = type(config.model).__name__
            require(isinstance(config.model, ModelSettings), "memory", memory.__class__.__name__, f"None with {kind}")
            config = replace(config, model=replace(config.model, attention=memory))
        if source is not None:
            allowed = "None for a stream, whose tasks have sources of their own"
            require(config.lifelong is None, "source", type(source).__name__, allowed)
            config = replace(config, data=replace(config.data, source=source))
        if config is not self:
            validate(config)
        return config

    def with_task(self, task: TaskData) -> Config:
        """Returns a copy of this config with one more task at the end of its stream. Earlier tasks keep their number of
        updates.
        """
        stream = self._stream()
        number, evaluation = len(stream.tasks), replace(self.evaluation, name=task.name, task=task.name)
        longer = replace(
            stream, tasks=(*stream.tasks, task), task_order=(*stream.task_order, number) if stream.task_order else ()
        )
        scored = (*self.evaluations, evaluation) if self.evaluations else ()
        return replace(self._with_steps(number + 1), lifelong=longer, evaluations=scored)

    def of_first_tasks(self, count: int) -> Config:
        """Returns a copy of this config with only the first `count` tasks of its stream, as before the later tasks were
        added.
        """
        first = self._stream().first_tasks(count)
        names = ("", *(task.name for task in first.tasks))
        scored = tuple(evaluation for evaluation in self.evaluations if evaluation.task in names)
        return replace(self._with_steps(count), lifelong=first, evaluations=scored)

    @property
    def num_columns(self) -> int:
        """Number of columns of the model. It is above 1 only with the method ProgressiveNetwork, which adds one for
        each task.
        """
        return self.lifelong.method.num_columns if self.lifelong else 1

    @property
    def num_earlier_adapters(self) -> int:
        """Number of adapters of earlier tasks beside every adapter that is trained: all tasks but one with the method
        OLoRA, and 0 with others.
        """
        return len(self.lifelong.tasks) - 1 if self.lifelong and self.lifelong.method.keeps_adapters else 0

    def takes_tasks_of(self, other: Config) -> bool:
        """Whether this config and `other` have streams of tasks, and this one has more tasks than `other`. Only their
        numbers are compared.
        """
        stream, other_stream = self.lifelong, other.lifelong
        return stream is not None and other_stream is not None and len(stream.tasks) > len(other_stream.tasks)

    def _stream(self) -> Lifelong:
        require(self.lifelong is not None, "lifelong", None, "tasks one after the other")
        assert self.lifelong is not None
        return self.lifelong

    def _with_steps(self, tasks: int) -> Config:
        """Returns this config with the training steps of so many tasks, where every task has an equal share of them."""
        stream, training = self._stream(), self.training
        steps = training.steps if stream.epochs else training.steps // len(stream.tasks) * tasks
        return replace(self, training=replace(training, steps=steps))
