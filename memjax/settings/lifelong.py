"""Settings of lifelong learning: tasks that are learned one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memjax.settings.adapter_methods import OLoRA, TaskAdapters
from memjax.settings.checks import Settings, require
from memjax.settings.data import SourceKind
from memjax.settings.generation import LAMOL
from memjax.settings.growth import ELLE, ProgressiveNetwork
from memjax.settings.meta import ANML, MAML, OML, MetaMbPA
from memjax.settings.methods import (
    AGEM,
    EWC,
    GEM,
    MAS,
    SI,
    Joint,
    LogitKD,
    LwF,
    MbPA,
    Method,
    Replay,
    Sequential,
    SingleTask,
)
from memjax.settings.ranges import Count, Number
from memjax.settings.rehearsal_methods import EAEMR, EMAR, EMR
from memjax.settings.sources import KeyValueRecall, Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Lifelong", "MethodKind", "TaskData"]

BaselineKind = Sequential | SingleTask | Joint | Replay | AGEM | GEM | EWC | MAS | SI | LwF | LogitKD
GrowingKind = ELLE | ProgressiveNetwork | TaskAdapters | OLoRA
MethodKind = BaselineKind | MbPA | OML | ANML | MAML | MetaMbPA | EMAR | EMR | EAEMR | GrowingKind | LAMOL


@dataclass(slots=True, kw_only=True)
class TaskData(Settings):
    """One task of a stream: its name and its data."""

    name: str = ""
    """name of the task in evaluations and metrics"""
    source: SourceKind | Source = field(default_factory=KeyValueRecall)
    """source of the documents or examples of the task"""


@dataclass(slots=True, kw_only=True)
class Lifelong(Settings):
    """A stream of tasks that are learned one after the other, and the method against forgetting. All tasks are
    evaluated after each of them.
    """

    method: MethodKind | Method = field(default_factory=Sequential)
    """method against forgetting"""
    tasks: tuple[TaskData, ...] = ()
    """tasks of the stream; all use the vocabulary of `data.source`"""
    task_order: tuple[int, ...] = ()
    """numbers of the tasks, from 0, in the order in which they are learned; () = the order of `tasks`"""
    sources_dir: str = ""
    """folder to which the paths of the tasks' sources and of `data.source` are relative; '' = the paths are used as
    they are"""
    vocabulary: Literal["source", "tasks"] = "source"
    """texts on which the tokenizer is trained: those of `data.source`, or of all tasks that the run begins with"""
    epochs: Number = 0
    """number of passes over the examples of each task, from which `training.steps` follows; 0 = every task gets an
    equal share of `training.steps`"""
    max_examples_per_task: tuple[Count, ...] = ()
    """number of examples to read of each task, in the order of the stream, drawn by `data.seed`; () = all"""
    task_boundaries: Literal["known", "sharp", "blurred", "mixed"] = "known"
    """boundaries between tasks: 'known' = the method is told when a task begins and ends; the others are one stream
    that does not tell it: 'sharp' = a task ends at once; 'blurred' = it goes over into the next within `blur_width`
    examples; 'mixed' = the examples of all tasks are shuffled"""
    evaluate_before_training: bool = False
    """also evaluate every task before the first one is learned, to measure forward transfer"""
    blur_width: Number = 0
    """number of examples over which one task goes over into the next where `task_boundaries` is 'blurred'"""
    last_batch_weighting: Literal["share", "mean"] = "share"
    """weight of a batch with fewer rows than a full one: 'share' = the share of rows that it has; 'mean' = that of a
    full batch (published codes)"""
    min_updates_per_task: Number = 0
    """minimum number of updates of a task; a task with few examples is read more than `epochs` times; 0 = no minimum"""
    num_growths: Number = 0
    """number of times that the model has grown; 0 in a config, the run counts it"""

    @property
    def ordered_tasks(self) -> tuple[TaskData, ...]:
        """The tasks as a tuple, in the order in which they are learned (`task_order`)."""
        return tuple(self.tasks[number] for number in self.task_order) or self.tasks

    def passes(self, examples: int, rows: int) -> int:
        """Returns the number of passes over a stage with this number of examples, in batches of `rows` rows: `epochs`,
        or more if that gives fewer updates than `min_updates_per_task`.

        Args:
          examples: Number of examples.
          rows: Number of rows of a batch.

        Example:
          >>> stream = Lifelong(epochs=4, min_updates_per_task=192)
          >>> stream.passes(2000, 32), stream.passes(512, 32), stream.passes(0, 32)
          (4, 12, 4)
        """
        batches = -(-examples // rows)
        return max(self.epochs, -(-self.min_updates_per_task // batches)) if batches else self.epochs

    def source_of(self, name: str) -> SourceKind:
        """Returns the source of the task with this name, as the method reads it, which may depend on the sources of the
        tasks before it.
        """
        sources: list[Any] = [task.source for task in self.ordered_tasks]
        place = [task.name for task in self.ordered_tasks].index(name)
        return sources[place].following(sources if self.method.joins else sources[:place])

    def first_tasks(self, count: int) -> Lifelong:
        """Returns a copy of this stream with only its first `count` tasks, in the order in which they are learned."""
        return replace(
            self,
            tasks=self.ordered_tasks[:count],
            task_order=(),
            max_examples_per_task=self.max_examples_per_task[:count],
        )

    def with_sources_dir(self, source: SourceKind | Source) -> SourceKind | Source:
        """Returns a source with its path, if it has one, placed below the folder `sources_dir`. Without that folder it
        returns the source unchanged.
        """
        has_path = any(field.name == "path" for field in fields(source))
        if not has_path or not self.sources_dir or (source.path and Path(source.path).is_relative_to(self.sources_dir)):
            return source
        return replace(source, path=str(Path(self.sources_dir, source.path)))

    def check(self, field: str, config: Config) -> None:
        number, training = len(self.tasks), config.training
        require(number > 0, f"{field}tasks", self.tasks, "at least one task")
        every = tuple(range(number))
        require(
            tuple(sorted(self.task_order)) in ((), every),
            f"{field}task_order",
            self.task_order,
            f"each of {every} once",
        )
        if not self.epochs:
            require(
                not self.min_updates_per_task,
                f"{field}min_updates_per_task",
                self.min_updates_per_task,
                f"0 with {field}epochs 0",
            )
            require(training.steps % number == 0, "training.steps", training.steps, f"a multiple of the {number} tasks")
        else:
            segments = training.segments_per_update
            require(segments == 1, "training.segments_per_update", segments, "1 where examples are read")
        limits = "() where documents are read for ever" if not self.epochs else f"(), or {number} numbers, one a task"
        require(
            len(self.max_examples_per_task) in (0, number if self.epochs else 0),
            f"{field}max_examples_per_task",
            self.max_examples_per_task,
            limits,
        )
        blurred = self.task_boundaries == "blurred"
        require(blurred == (self.blur_width > 0), f"{field}blur_width", self.blur_width, "0 unless blurred")
        interval, rows = self.method.replay_interval, config.data.batch_size
        name = "projection_interval" if isinstance(self.method, AGEM) else "replay_interval"
        allowed = f"0, or the {rows} rows of a batch and more"
        require(not interval or interval >= rows, f"{field}method.{name}", interval, allowed)
