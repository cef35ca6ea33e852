"""The parts of a run, built from a configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memjax import config as configs
from memjax.config import Config
from memjax.data.annotations import open_neighbors
from memjax.data.documents import Documents
from memjax.data.examples import Examples
from memjax.data.identifiers import ANNOTATION
from memjax.data.opening import make_datasets
from memjax.data.reading import Reading
from memjax.data.rows import RowStream
from memjax.models.factory import (
    make_mixtures,
    make_model,
)
from memjax.settings.relations import validate
from memjax.training.evaluation import Evaluator, Subset
from memjax.training.runs import grown
from memjax.training.sharding import Layout
from memjax.training.variables import fitting


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A configuration with the objects it describes.

    Attributes:
      config: the configuration.
      model: a Linen language model, or a text encoder with the head of its task.
      documents: split -> its documents.
      begin_token: id read before the first token of a document.
      tokenizer: of the documents, or None where they have none.
    """

    config: Config
    model: Any
    documents: Callable[[str], Any]
    begin_token: int
    tokenizer: Any = None

    def stream(self, position: Mapping[str, Any] | None = None, host_rows: tuple[int, int] | None = None) -> RowStream:
        """The training batches from a position on; of the rows `(start, stop)` only, where given."""
        data = self.config.data
        reading = Reading(
            rows=data.rows,
            segment_length=data.segment_length,
            protocol=stream_protocol(self.config),
            begin_token=self.begin_token,
        )
        return reading.stream(
            self.documents("train"),
            segments_per_update=self.config.training.segments_per_update,
            seed=data.seed,
            host_rows=host_rows,
            position=position,
        )

    def reading(self, evaluation: configs.Evaluation | None = None) -> Reading:
        """How an evaluation reads its split."""
        evaluation, data = evaluation or self.config.evaluation, self.config.data
        return Reading(
            rows=evaluation.rows,
            segment_length=evaluation.segment_length or data.segment_length,
            protocol=evaluation.protocol or stream_protocol(self.config),
            stride=evaluation.stride,
            begin_token=self.begin_token,
            score_first=evaluation.score_first,
        )

    def subsets(self, evaluation: configs.Evaluation) -> dict[str, Subset]:
        """The targets that are scored apart: those where a boolean annotation holds, and distant identifiers of code.

        A distant identifier was last seen in the document more than `evaluation.distance` tokens before.
        """
        documents = self.documents(evaluation.split)
        annotations = {} if isinstance(documents, Examples) else documents.annotate(0)
        names = [name for name, array in annotations.items() if array.dtype == bool]
        subsets: dict[str, Subset] = {name: lambda extras, name=name: extras[name] for name in names}
        if ANNOTATION in annotations:
            distance = evaluation.distance or self.config.model.local_window(self.config.data.segment_length)
            subsets["distant_identifier"] = lambda extras: extras[ANNOTATION] > distance
        return subsets

    def grown(self, lineage: Sequence[Mapping[str, Any]]) -> Experiment:
        """The same with the model that it has become (see `memjax.training.runs.grown`)."""
        if not lineage:
            return self
        config = grown(self.config, lineage)
        return dataclasses.replace(self, config=config, model=make_model(config, self.model.vocabulary.vocab_size))

    def of_task(self, name: str) -> Experiment:
        """The same with the documents of one of several tasks.

        Raises:
          ValueError: there is no such task, or its documents have another vocabulary.
        """
        tasks = {task.name: task for task in (self.config.lifelong.tasks if self.config.lifelong else ())}
        if name not in tasks:
            raise ValueError(f"evaluation.task: given {name!r}, allowed: one of {list(tasks)}")
        data = dataclasses.replace(self.config.data, source=tasks[name].source)
        theirs, ours = make_datasets(data, task=self.config.task), self.model.vocabulary.vocab_size
        if theirs.vocab_size != ours:
            raise ValueError(
                f"lifelong.tasks: {name} has {theirs.vocab_size} ids, allowed: {ours}, those of data.source"
            )
        config = dataclasses.replace(self.config, data=data)
        return dataclasses.replace(self, config=config, documents=functools.cache(theirs.documents))

    def evaluators(self, layout: Layout | None = None) -> dict[str, Evaluator]:
        """'' and every named evaluation; those of one model and shape share one compiled score."""
        found: dict[str, Evaluator] = {}
        for evaluation in (self.config.evaluation, *self.config.evaluations):
            made = self.evaluator(evaluation, layout=layout)
            for other in found.values():
                made.share(other)
            found[evaluation.name] = made
        return found

    def evaluator(
        self,
        evaluation: configs.Evaluation | None = None,
        *,
        model: Any = None,
        documents: Documents | None = None,
        layout: Layout | None = None,
        **shown: Any,
    ) -> Evaluator:
        """The evaluation that the configuration describes, or another one.

        It takes the variables of `model` here, also where the model with the memory size of the evaluation has its
        layers in other groups.

        Args:
          evaluation: another one.
          model: another one, with variables of its own.
          documents: instead of those of the split, such as the same with annotations.
          layout: on a mesh.
          **shown: `parts` and `features` of `Evaluator`.
        """
        evaluation = evaluation or self.config.evaluation
        if evaluation.task:
            other, own = self.of_task(evaluation.task), dataclasses.replace(evaluation, task="")
            return other.evaluator(own, model=model, documents=documents, layout=layout, **shown)
        fit = lambda variables: variables
        if model is None:
            model = make_evaluation_model(self, evaluation)
            if evaluation.memory_length is not None:
                what = f"evaluation.memory_length: given {evaluation.memory_length}, the trained variables do not fit"
                length = self.config.data.segment_length
                fit = fitting(self.model, model, length, added=self.config.model.added_parameters, what=what)
        return Evaluator(
            model,
            documents or self.documents(evaluation.split),
            self.reading(evaluation),
            make_measure=getattr(documents or self.documents(evaluation.split), "make_measure", None),
            max_segments=evaluation.max_segments,
            subsets=self.subsets(evaluation),
            accuracy=evaluation.accuracy,
            layout=layout,
            fit=fit,
            **shown,
        )


def make_experiment(config: Config, *, progress: Callable[[str, int, int | None], None] | None = None) -> Experiment:
    """Builds the documents, tokenizer and model of a configuration; `progress` is told what is prepared.

    Raises:
      ValueError: the configuration is not valid, or its data cannot be read.
    """
    validate(config)
    if config.model.output.needs_neighbors and not config.data.neighbors:
        raise ValueError("data.neighbors: given '', allowed: a folder from `memjax datastore neighbors` for Spalm")
    data = make_datasets(config.data, task=config.task, progress=progress)
    model = make_model(config, data.vocab_size)

    def documents(split: str) -> Documents:
        plain = data.documents(split)
        return open_neighbors(config.data.neighbors, split, plain) if config.data.neighbors else plain

    return Experiment(config, model, functools.cache(documents), data.begin_token, data.tokenizer)


def stream_protocol(config: Config) -> str:
    """How documents are cut into rows: what a task asks about comes as one document a text."""
    return config.data.protocol if isinstance(config.task, configs.LanguageModeling) else "separate"


def make_evaluation_model(experiment: Experiment, evaluation: configs.Evaluation) -> Any:
    """The model with the memory size and the cache of an evaluation.

    Raises:
      ValueError: a memory size for a model without memory, or a cache over one that takes none.
    """
    mixtures = make_mixtures(evaluation, experiment.config.model)
    if mixtures:
        experiment.model.require("mixes")
    if evaluation.memory_length is None:
        return experiment.model.clone(mixtures=mixtures) if mixtures else experiment.model
    config = experiment.config.with_memory(evaluation.memory_length)
    made = make_model(config, experiment.model.vocabulary.vocab_size)
    return made.clone(mixtures=mixtures) if mixtures else made
