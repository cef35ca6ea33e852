"""Tasks that are learned one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    Replay,
    Sequential,
    SingleTask,
)
from memjax.settings.ranges import Count, Number
from memjax.settings.relation_methods import EAEMR, EMAR, EMR
from memjax.settings.relations import Settings, require
from memjax.settings.sources import KeyValueRecall

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Lifelong", "MethodKind", "TaskData"]

BaselineKind = Sequential | SingleTask | Joint | Replay | AGEM | GEM | EWC | MAS | SI | LwF | LogitKD
MethodKind = BaselineKind | MbPA | OML | ANML | MAML | MetaMbPA | EMAR | EMR | EAEMR | ELLE | ProgressiveNetwork | LAMOL


@dataclass(slots=True, kw_only=True)
class TaskData(Settings):
    """One task of several."""

    name: str = ""
    """in evaluations and metrics"""
    source: SourceKind = field(default_factory=KeyValueRecall)
    """where its documents or examples come from"""


@dataclass(slots=True, kw_only=True)
class Lifelong(Settings):
    """Tasks one after the other, each evaluated after each of them."""

    method: MethodKind = field(default_factory=Sequential)
    """what is done against forgetting"""
    tasks: tuple[TaskData, ...] = ()
    """of one vocabulary: that of data.source"""
    order: tuple[int, ...] = ()
    """numbers of the tasks, from 0, as they are learned; () = as they stand"""
    folder: str = ""
    """in which the paths of the tasks' sources, and that of data.source, lie; '' = they stand alone"""
    vocabulary: Literal["source", "tasks"] = "source"
    """texts that the tokenizer is trained on: those of data.source, or of all tasks that the run begins with"""
    epochs: Number = 0
    """how often the examples of a task are read, and training.steps then follows from them; 0 = each task gets an
    equal share of training.steps"""
    limits: tuple[Count, ...] = ()
    """examples that each stage reads of its task, in the order of the stream, drawn by data.seed; () = all"""
    borders: Literal["known", "sharp", "blurred", "mixed"] = "known"
    """between tasks: known to the method, or one stream that tells nothing, in which a task ends at once, goes over
    into the next within border_width examples, or all are mixed"""
    evaluate_before: bool = False
    """every task is also evaluated before the first one is learned, for forward transfer"""
    border_width: Number = 0
    """examples over which blurred borders extend"""
    last_batch: Literal["share", "mean"] = "share"
    """a batch with fewer examples counts by its share of a full one, or as a full one (published codes)"""
    least_updates: Number = 0
    """updates of a task, at least: one with few examples is read more than `epochs` times; 0 = never"""
    growths: Number = 0
    """how often the model has grown: 0 where a run begins, which grows it"""

    @property
    def in_order(self) -> tuple[TaskData, ...]:
        """The tasks as they are learned."""
        return tuple(self.tasks[number] for number in self.order) or self.tasks

    def passes(self, examples: int, rows: int) -> int:
        """Counts the passes over the examples of a stage: `epochs`, or more for `least_updates`.

        Args:
          examples: Number of examples.
          rows: Number of rows of a batch.

        Example:
          >>> stream = Lifelong(epochs=4, least_updates=192)
          >>> stream.passes(2000, 32), stream.passes(512, 32), stream.passes(0, 32)
          (4, 12, 4)
        """
        batches = -(-examples // rows)
        return max(self.epochs, -(-self.least_updates // batches)) if batches else self.epochs

    def source_of(self, name: str) -> SourceKind:
        """The source of a task as one of the stream: some depend on what was learned before."""
        sources: list[Any] = [task.source for task in self.in_order]
        place = [task.name for task in self.in_order].index(name)
        return sources[place].after(sources if self.method.joins else sources[:place])

    def first(self, count: int) -> Lifelong:
        """The first tasks alone."""
        return replace(self, tasks=self.in_order[:count], order=(), limits=self.limits[:count])

    def located(self, source: SourceKind) -> SourceKind:
        """A source whose path, where it has one, lies in the folder."""
        has_path = any(field.name == "path" for field in fields(source))
        if not has_path or not self.folder or (source.path and Path(source.path).is_relative_to(self.folder)):
            return source
        return replace(source, path=str(Path(self.folder, source.path)))

    def check(self, field: str, config: Config) -> None:
        number, training = len(self.tasks), config.training
        require(number > 0, f"{field}tasks", self.tasks, "at least one task")
        every = tuple(range(number))
        require(tuple(sorted(self.order)) in ((), every), f"{field}order", self.order, f"each of {every} once")
        if not self.epochs:
            require(not self.least_updates, f"{field}least_updates", self.least_updates, f"0 with {field}epochs 0")
            require(training.steps % number == 0, "training.steps", training.steps, f"a multiple of the {number} tasks")
        else:
            one = training.segments_per_update
            require(one == 1, "training.segments_per_update", one, "1 where examples are read")
        limits = "() where documents are read for ever" if not self.epochs else f"(), or {number} numbers, one a task"
        require(len(self.limits) in (0, number if self.epochs else 0), f"{field}limits", self.limits, limits)
        blurred = self.borders == "blurred"
        require(blurred == (self.border_width > 0), f"{field}border_width", self.border_width, "0 unless blurred")
        every, rows = self.method.every, config.data.rows
        require(not every or every >= rows, f"{field}method.every", every, f"0, or the {rows} rows of a batch and more")
