"""The parts of a run, built from a configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from memjax import config as configs
from memjax.config import Config
from memjax.data.annotations import open_neighbors, unlike_neighbors
from memjax.data.documents import Documents, Split
from memjax.data.opening import Datasets
from memjax.data.readers import source_notes
from memjax.data.reading import Reading
from memjax.data.rows import RowStream
from memjax.data.saved_tokenizers import fingerprint_of
from memjax.data.source_files import hold_sources
from memjax.models.contract import Model
from memjax.models.factory import make_mixtures
from memjax.settings.relations import validate
from memjax.settings.sizes import check_sizes
from memjax.tasks.contract import Asked, Subset, Task, task_of
from memjax.training.capacity import available_bytes
from memjax.training.evaluation import EvaluationResult, Evaluator, PerRowAdaptation, make_read
from memjax.training.interventions import make_memory_intervention
from memjax.training.run_data import RunData
from memjax.training.runs import config_after_growth
from memjax.training.sharding import Layout
from memjax.training.variables import fitting
from memjax.typing import Batch

__all__ = ["Experiment", "make_experiment"]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A configuration with the objects it describes.

    Attributes:
      config: the configuration.
      model: a Linen language model, or a text encoder with the head of its task.
      documents: split -> what is read of it.
      begin_token: id read before the first token of a document.
      tokenizer: of the documents, or None where they have none.
      num_words: split -> words of its text, where perplexity is one of words (`memjax.data.opening.Datasets`).
      adapt_rows: evaluations score every row with parameters of its own (`memjax.training.evaluation.make_score`).
      run_data: The record of the run's data, to which every split that is opened is compared.
    """

    config: Config
    model: Any
    documents: Callable[[str], Any]
    begin_token: int
    tokenizer: Any = None
    num_words: Callable[[str], int] | None = None
    adapt_rows: PerRowAdaptation | None = None
    run_data: RunData = dataclasses.field(default_factory=RunData)

    @property
    def fingerprint(self) -> str | None:
        """Of the tokenizer: its ids, and the parameters that were trained with them, mean nothing under another one."""
        return fingerprint_of(self.tokenizer)

    @property
    def task(self) -> Task:
        """What is learned."""
        return task_of(self.config)

    def stream(
        self,
        position: Mapping[str, Any] | None = None,
        host_rows: tuple[int, int] | None = None,
        *,
        split: Split | None = None,
        **arguments: Any,
    ) -> RowStream:
        """The training batches from a position on; of the rows `(start, stop)` only, where given.

        Args:
          position: of an earlier one.
          host_rows: of this host.
          split: instead of the training split.
          **arguments: `epochs` and `shuffle`, as in `memjax.data.rows.RowStream`.
        """
        named = {"segments_per_update": self.config.training.segments_per_update, "seed": self.config.data.seed}
        given: Split = self.documents("train") if split is None else split
        return self._reading(self.config.data).stream(
            given, host_rows=host_rows, position=position, **named, **arguments
        )

    def example(self, split: Split | None = None) -> Batch:
        """A batch of the training stream, or of such a stream of another split: its shapes are those of all."""
        read = self.stream() if split is None else self.stream(split=split, epochs=1)
        return jax.tree.map(jnp.asarray, next(read))

    def reading(self, evaluation: configs.Evaluation | None = None) -> Reading:
        """How an evaluation reads its split."""
        one = evaluation or self.config.evaluation
        return self._reading(one, one.protocol, stride=one.stride, score_first=one.score_first)

    def _reading(self, part: configs.Data | configs.Evaluation, protocol: str = "", **fields: Any) -> Reading:
        """Rows of a part of the configuration; what it leaves open is as in training."""
        length, protocol = part.segment_length or self.config.data.segment_length, protocol or self.task.protocol
        named = {"segment_length": length, "protocol": protocol, "begin_token": self.begin_token}
        return Reading(rows=part.rows, **named, **fields)

    def notes(self) -> list[str]:
        """Lines about its data that are allowed but rarely meant."""
        folder, output = self.config.data.neighbors, self.config.model.output
        line = unlike_neighbors(folder, output.num_neighbors) if folder and output.needs_neighbors else ""
        stream = self.config.lifelong
        tasks = {f"{task.name}: ": stream.located(task.source) for task in stream.tasks} if stream else {}
        left_out = tasks or {"": self.config.data.source}
        with hold_sources(self.run_data.held):
            lines = [f"{name}{note}" for name, source in left_out.items() for note in source_notes(source)]
        # Stages say it of every task whose answers are written (`memjax.lifelong.contract`).
        said = stream is not None and stream.epochs and self.task.writes_answers
        return ([line] if line else []) + lines + ([] if said else self.task.notes(self.documents("train")))

    def reopened(self, split: str, **fields: Any) -> Documents:
        """A split of the same data with other settings of it, in the same tokens."""
        config = dataclasses.replace(self.config, data=dataclasses.replace(self.config.data, **fields))
        read = task_of(config).data(tokenizer=self.tokenizer).documents
        return self.run_data.open(config, "", split, read, same_settings=False)

    def subsets(self, evaluation: configs.Evaluation) -> dict[str, Subset]:
        """The targets of the evaluation's split that are scored apart."""
        return self.task.subsets(self.documents(evaluation.split), evaluation)

    def with_growth(self, lineage: Sequence[Mapping[str, Any]]) -> Experiment:
        """The same with the model that it has become (see `memjax.training.runs.config_after_growth`)."""
        if not lineage:
            return self
        config = config_after_growth(self.config, lineage)
        return dataclasses.replace(self, config=config, model=task_of(config).model(self.model.vocabulary.vocab_size))

    def of_task(self, name: str, prompt: str = "") -> Experiment:
        """The same with the documents of one of several tasks.

        Args:
          name: of the task.
          prompt: as in `Evaluation`.

        Raises:
          ValueError: there is no such task, or its documents have another vocabulary.
        """
        settings = self.config.lifelong
        names = [one.name for one in (settings.tasks if settings else ())]
        if settings is None or name not in names:
            raise ValueError(f"evaluation.task: given {name!r}, allowed: one of {names}")
        places = {one.name: place for place, one in enumerate(settings.in_order)}
        config = with_task_source(self.config, settings.source_of(name))
        places |= {"none": -1}
        if prompt and prompt not in places:
            raise ValueError(f"evaluation.prompt: given {prompt!r}, allowed: '' or one of {[*places]}")
        config = dataclasses.replace(config, task=config.task.of_task(places[prompt or name]))
        theirs, ours = task_of(config).data(tokenizer=self.tokenizer), self.model.vocabulary.vocab_size
        if theirs.vocab_size != ours:
            raise ValueError(
                f"lifelong.tasks: {name} has {theirs.vocab_size} ids, allowed: {ours}, those of data.source"
            )
        of_own = {"same_settings": prompt in ("", name)}
        documents = functools.cache(lambda split: self.run_data.open(config, name, split, theirs.documents, **of_own))
        model = self.model.of_task([one.name for one in settings.in_order].index(name))
        named = {"documents": documents, "num_words": theirs.num_words}
        return dataclasses.replace(self, config=config, model=model, **named)

    def told(self, evaluation: configs.Evaluation) -> configs.Evaluation:
        """An evaluation with its task, where the model asks for one.

        Raises:
          ValueError: it names none, and reads the data of none.
        """
        if not self.model.asks_task or evaluation.task:
            return evaluation
        return dataclasses.replace(evaluation, task=task_of_evaluation(self.config, evaluation))

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
        **shown: Any,
    ) -> Evaluator:
        """The evaluation that the configuration describes, or another one.

        It takes the variables of `model` here, also where the model with the memory size of the evaluation has its
        layers in other groups.

        Args:
          evaluation: another one.
          model: another one, with variables of its own.
          documents: instead of those of the split, such as the same with annotations.
          **shown: `layout`, `parts` and `features` of `Evaluator`.
        """
        evaluation = self.told(evaluation or self.config.evaluation)
        if evaluation.task:
            other = self.of_task(evaluation.task, evaluation.prompt)
            own = dataclasses.replace(evaluation, task="", prompt="")
            return other.evaluator(own, model=model, documents=documents, **shown)
        fit = lambda variables: variables
        if model is None:
            model = make_evaluation_model(self, evaluation)
            if evaluation.memory_length is not None:
                what = f"evaluation.memory_length: given {evaluation.memory_length}, the trained variables do not fit"
                length = self.config.data.segment_length
                fit = fitting(self.model, model, length, added=self.config.model.carrier.added_parameters, what=what)
        change = make_memory_intervention(
            evaluation.memory_state, model, part=evaluation.memory_part, rows=evaluation.rows
        )
        split, counted = documents or self.documents(evaluation.split), self.num_words
        answer = None
        if self.task.writes_answers and evaluation.answers:
            how = {"adapt_rows": self.adapt_rows} if self.adapt_rows else {}
            answer = lambda variables: self.task.answers(model, variables, split, self.datasets, evaluation, **how)
        return Evaluator(
            model,
            split,
            self.reading(evaluation),
            change=change,
            make_measure=self.task.make_measure(split),
            max_segments=evaluation.max_segments,
            subsets=self.subsets(evaluation),
            accuracy=evaluation.accuracy,
            fit=fit,
            num_words=functools.partial(counted, evaluation.split) if counted and documents is None else None,
            # Where answers are written, those are what is adapted; the nats are the model's own.
            adapt_rows=None if self.task.writes_answers else self.adapt_rows,
            answer=answer,
            **shown,
        )

    @property
    def datasets(self) -> Datasets:
        """What is read, with its tokenizer."""
        return Datasets(self.documents, self.tokenizer, self.model.vocabulary.vocab_size, self.begin_token)

    def predict(self, variables: Mapping[str, Any], asked: Sequence[Asked], **how: Any) -> list[dict[str, Any]]:
        """What the model answers to a user, see `memjax.tasks.contract.Task.predict`; adapted as it is for evaluations.

        Args:
          variables: of `model`.
          asked: one or more.
          **how: what the task takes.
        """
        if self.config.data.source.names_relations:
            self.run_data.check_files(self.config)
        if self.adapt_rows is not None and self.task.writes_answers:
            how["adapt_rows"] = self.adapt_rows
        elif self.adapt_rows is not None:
            how["read"] = make_read(self.model, self.adapt_rows)
        return self.task.predict(self.model, variables, asked, self.datasets, **how)

    def evaluate(
        self, variables: Mapping[str, Any], evaluation: configs.Evaluation | None = None, **asked: Any
    ) -> EvaluationResult:
        """Scores a split, then measures what the model answers to it by generating, as far as the task does.

        Where the evaluation changes the memory between segments, nothing is generated.

        Args:
          variables: of `model`.
          evaluation: another one than the configuration describes.
          **asked: `observe` and `stop` of `Evaluator`.
        """
        evaluation = self.told(evaluation or self.config.evaluation)
        if evaluation.task:
            of_one_task = dataclasses.replace(evaluation, task="", prompt="")
            return self.of_task(evaluation.task, evaluation.prompt).evaluate(variables, of_one_task, **asked)
        evaluator = self.evaluator(evaluation)
        result = evaluator(variables, **asked)
        if not evaluation.answers or evaluation.memory_state != "kept" or self.task.writes_answers:
            return result
        split = self.documents(evaluation.split)
        answers = self.task.answers(evaluator.model, evaluator.fit(variables), split, self.datasets, evaluation)
        measures = {**result.measures, **answers.measures}
        return dataclasses.replace(result, measures=measures, notes=(*result.notes, *answers.notes))


def make_experiment(
    config: Config,
    *,
    tokenizer: Any = None,
    progress: Callable[[str, int, int | None], None] | None = None,
    run_data: RunData | None = None,
) -> Experiment:
    """Builds the documents, tokenizer and model of a configuration.

    Args:
      config: the configuration.
      tokenizer: instead of the one that it describes, such as that of a run; documents are then read when asked for.
      progress: told what is prepared.
      run_data: The record of the data of a run that is opened, or trained.

    Raises:
      ValueError: the configuration is not valid or cannot fit into memory, or its data cannot be read.
    """
    validate(config)
    check_sizes(config, available_bytes())
    if config.model.output.needs_neighbors and not config.data.neighbors:
        raise ValueError("data.neighbors: given '', allowed: a folder from `memjax datastore neighbors` for Spalm")
    run_data = run_data or RunData()
    config = run_data.with_existing_paths(config)
    located = with_task_source(config, config.data.source)
    task = task_of(located)
    with hold_sources(run_data.held):
        data = task.data(progress, tokenizer=tokenizer)
    model = task.model(data.vocab_size)

    def documents(split: str) -> Split:
        plain = data.documents(split)
        return open_neighbors(config.data.neighbors, split, plain) if config.data.neighbors else plain

    opened = functools.cache(lambda split: run_data.open(located, "", split, documents))
    words = data.num_words
    return Experiment(config, model, opened, data.begin_token, data.tokenizer, words, run_data=run_data)


def with_task_source(config: Config, source: Any) -> Config:
    """The configuration with a source of its tasks, which lies in their folder."""
    located = config.lifelong.located(source) if config.lifelong else source
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=located))


def task_of_evaluation(config: Config, evaluation: configs.Evaluation) -> str:
    """The task whose documents an evaluation reads: that it names, or that of data.source.

    Raises:
      ValueError: it names none, and data.source is that of none or of several.
    """
    stream = config.lifelong
    assert stream is not None
    names, read = [task.name for task in stream.in_order], stream.located(config.data.source)
    own = (
        [evaluation.task]
        if evaluation.task
        else [one for one in names if stream.located(stream.source_of(one)) == read]
    )
    if len(own) != 1:
        kind, where = type(stream.method).__name__, f"data.source is that of {len(own)} tasks"
        raise ValueError(f"evaluation.task: given '', allowed: one of {names}; {kind} must know the task, and {where}")
    return own[0]


def make_evaluation_model(experiment: Experiment, evaluation: configs.Evaluation) -> Model:
    """The model with the memory size and the cache of an evaluation; see `evaluation_model`."""
    if evaluation.memory_length is None and not evaluation.cache.memory_length:
        return experiment.model
    config = dataclasses.replace(experiment.config, evaluation=evaluation)
    return evaluation_model(config, experiment.model.vocabulary.vocab_size)


def evaluation_model(config: Config, vocab_size: int) -> Model:
    """The model that a configuration describes, with the memory size and the cache of its evaluation.

    Raises:
      ValueError: a memory size for a model without memory, or a cache over one that takes none.
    """
    length = config.evaluation.memory_length
    config = config.with_memory(length)
    model, mixtures = task_of(config).model(vocab_size), make_mixtures(config.evaluation, config.model)
    if length is not None:
        model.require("resizes")
    if mixtures:
        model.require("mixes")
    return model.clone(mixtures=mixtures) if mixtures else model
