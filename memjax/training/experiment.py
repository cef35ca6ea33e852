"""Builds the model, data and evaluations of a run from its configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from memjax import config as configs
from memjax.config import Config
from memjax.data.annotations import compare_target_shares, open_neighbors
from memjax.data.batch_iterator import BatchIterator
from memjax.data.documents import Documents, Split
from memjax.data.opening import Datasets
from memjax.data.reading_plan import ReadingPlan
from memjax.data.saved_tokenizers import fingerprint_of
from memjax.data.source_files import keep_sources_cached
from memjax.data.source_readers import source_notes
from memjax.models.factory import make_mixtures
from memjax.models.interface import Model
from memjax.settings.checks import validate
from memjax.settings.minimum_memory import check_sizes
from memjax.tasks.interface import Query, TargetSelector, Task, make_task
from memjax.training.available_memory import available_bytes
from memjax.training.evaluation import Evaluator
from memjax.training.memory_interventions import make_memory_intervention
from memjax.training.row_adaptation import PerRowAdaptation, make_read
from memjax.training.run_data import RunData
from memjax.training.runs import config_after_growth
from memjax.training.scores import EvaluationResult
from memjax.training.sharding import Layout
from memjax.training.variables import fitting
from memjax.typing import Batch

__all__ = ["Experiment", "make_experiment"]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A configuration with the model, the data and the evaluations that it describes.

    Attributes:
      config: Configuration of the run.
      model: Linen language model, or a text encoder with the head of its task.
      documents: Function from the name of a split to its documents or examples.
      begin_token: Token id that is read before the first token of a document.
      tokenizer: Tokenizer of the documents. None if they have none.
      words_in_split: Function from the name of a split to the number of words of its text. None if perplexity is not
        measured per word. See `memjax.data.opening.Datasets`.
      adapt_rows: Test-time adaptation of the parameters to each row in evaluations. None evaluates all rows with the
        same parameters.
      variables_of_task: Function `variables_of_task(variables, number)` from the variables of an evaluation to those of
        the model that answer the task with this number, or the newest one for None. None if the same variables answer
        all tasks.
      task_number: Number of the task, in the order of the stream, that the documents belong to. None for no task.
      run_data: Record of the run's data. Every split that is opened is compared with it.
    """

    config: Config
    model: Any
    documents: Callable[[str], Any]
    begin_token: int
    tokenizer: Any = None
    words_in_split: Callable[[str], int] | None = None
    adapt_rows: PerRowAdaptation | None = None
    variables_of_task: Callable[[Mapping[str, Any], int | None], Mapping[str, Any]] | None = None
    task_number: int | None = None
    run_data: RunData = dataclasses.field(default_factory=RunData)

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the tokenizer. None without one. Parameters that were trained with one tokenizer do not fit
        another one.
        """
        return fingerprint_of(self.tokenizer)

    @property
    def task(self) -> Task:
        """The task that the run learns, an instance of a class of `memjax.tasks`."""
        return make_task(self.config)

    def stream(
        self,
        position: Mapping[str, Any] | None = None,
        host_rows: tuple[int, int] | None = None,
        *,
        split: Split | None = None,
        **arguments: Any,
    ) -> BatchIterator:
        """Opens an iterator over the training batches, at the `position` of an earlier one or at the beginning. `split`
        is an opened split to read instead of that of training, and `host_rows` is the range of rows to read.

        Args:
          position: Position to start at, from `BatchIterator.position` of an earlier stream. None for the beginning.
          host_rows: Rows of this host, `(start, stop)`. None for all rows.
          split: Split to read. None for the training split.
          **arguments: `epochs` and `shuffle`, passed to `memjax.data.batch_iterator.BatchIterator`.
        """
        options = {"segments_per_update": self.config.training.segments_per_update, "seed": self.config.data.seed}
        split_to_read: Split = self.documents("train") if split is None else split
        return self._reading(self.config.data).stream(
            split_to_read, host_rows=host_rows, position=position, **options, **arguments
        )

    def example(self, split: Split | None = None) -> Batch:
        """Returns the first batch of the training split, or of another opened split, as arrays
        `[segments, batch, ...]`. All batches have the same shapes.
        """
        stream = self.stream() if split is None else self.stream(split=split, epochs=1)
        return jax.tree.map(jnp.asarray, next(stream))

    def reading(self, evaluation: configs.Evaluation | None = None) -> ReadingPlan:
        """Makes the reading plan of an evaluation, which cuts documents into rows and segments, from its settings. None
        takes `config.evaluation`.
        """
        settings = evaluation or self.config.evaluation
        return self._reading(
            settings, settings.protocol, stride=settings.stride, score_first=settings.score_first_token
        )

    def _reading(self, part: configs.Data | configs.Evaluation, protocol: str = "", **fields: Any) -> ReadingPlan:
        """Makes the reading plan of the data or of an evaluation. Its defaults are the settings of training."""
        length, protocol = part.segment_length or self.config.data.segment_length, protocol or self.task.protocol
        options = {"segment_length": length, "protocol": protocol, "begin_token": self.begin_token}
        return ReadingPlan(rows=part.batch_size, **options, **fields)

    def notes(self) -> list[str]:
        """Returns a list of lines about the data of the run that point out something allowed but unusual."""
        folder, output = self.config.data.neighbors_dir, self.config.model.output
        line = compare_target_shares(folder, output.num_neighbors) if folder and output.needs_neighbors else ""
        stream = self.config.lifelong
        tasks = {f"{task.name}: ": stream.with_sources_dir(task.source) for task in stream.tasks} if stream else {}
        sources = tasks or {"": self.config.data.source}
        with keep_sources_cached(self.run_data.held):
            lines = [f"{name}{note}" for name, source in sources.items() for note in source_notes(source)]
        # For tasks whose answers are written, stages report the notes of each task (`memjax.lifelong.method_interface`)
        reported_by_stages = stream is not None and stream.epochs and self.task.writes_answers
        return (
            ([line] if line else []) + lines + ([] if reported_by_stages else self.task.notes(self.documents("train")))
        )

    def reopen(self, split: str, **fields: Any) -> Documents:
        """Opens the split of this name again with other settings of the data (`fields`), but with the same tokenizer,
        and returns its documents.
        """
        config = dataclasses.replace(self.config, data=dataclasses.replace(self.config.data, **fields))
        open_documents = make_task(config).data(tokenizer=self.tokenizer).documents
        return self.run_data.open(config, "", split, open_documents, same_settings=False)

    def subsets(self, evaluation: configs.Evaluation) -> dict[str, TargetSelector]:
        """Returns a function for each subset of the targets that an evaluation scores separately, by name: from
        `Batch.extras` to a bool mask of the targets, `[batch, length]`.
        """
        return self.task.subsets(self.documents(evaluation.split), evaluation)

    def with_growth(self, lineage: Sequence[Mapping[str, Any]]) -> Experiment:
        """Returns this experiment for the model that results from the growth history `lineage`, a sequence of growth
        steps.

        See `memjax.training.runs.config_after_growth`.
        """
        if not lineage:
            return self
        config = config_after_growth(self.config, lineage)
        return dataclasses.replace(self, config=config, model=make_task(config).model(self.model.vocabulary.vocab_size))

    def of_task(self, name: str, prompt: str = "") -> Experiment:
        """Returns this experiment for the task `name` of the stream. Its documents are read with the prompt of the task
        that `prompt` names: '' for the task itself, 'none' for no prompt.

        Args:
          name: Name of the task.
          prompt: Name of the task whose prompt the documents are read with, or 'none' for no prompt. '' for the prompt
            of the task itself.

        Raises:
          ValueError: There is no such task, or its documents have another vocabulary.
        """
        settings = self.config.lifelong
        names = [task.name for task in (settings.tasks if settings else ())]
        if settings is None or name not in names:
            raise ValueError(f"evaluation.task: given {name!r}, allowed: one of {names}")
        places = {task.name: place for place, task in enumerate(settings.ordered_tasks)}
        config = with_task_source(self.config, settings.source_of(name))
        places |= {"none": -1}
        if prompt and prompt not in places:
            raise ValueError(f"evaluation.prompt_of_task: given {prompt!r}, allowed: '' or one of {[*places]}")
        config = dataclasses.replace(config, task=config.task.for_task(places[prompt or name]))
        datasets, vocab_size = make_task(config).data(tokenizer=self.tokenizer), self.model.vocabulary.vocab_size
        if datasets.vocab_size != vocab_size:
            raise ValueError(
                f"lifelong.tasks: {name} has {datasets.vocab_size} ids, allowed: {vocab_size}, those of data.source"
            )
        options = {"same_settings": prompt in ("", name)}
        documents = functools.cache(
            lambda split: self.run_data.open(config, name, split, datasets.documents, **options)
        )
        fields = {"documents": documents, "words_in_split": datasets.words_in_split, "task_number": places[name]}
        return dataclasses.replace(self, config=config, model=self.model.of_task(places[name]), **fields)

    @property
    def needs_task_id(self) -> bool:
        """Whether the answers depend on the task of a stream that an evaluation or a question belongs to."""
        return self.model.needs_task_id or self.variables_of_task is not None

    def choose_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the variables of an evaluation that answer the task of this experiment."""
        return self.variables_of_task(variables, self.task_number) if self.variables_of_task else variables

    def fill_in_task(self, evaluation: configs.Evaluation) -> configs.Evaluation:
        """Returns the settings of an evaluation with the name of its task filled in, if the model needs the task and
        the settings do not name one.

        Raises:
          ValueError: The evaluation names no task, and its data does not belong to exactly one.
        """
        if not self.needs_task_id or evaluation.task or self.task_number is not None:
            return evaluation
        return dataclasses.replace(evaluation, task=task_of_evaluation(self.config, evaluation))

    def evaluators(self, layout: Layout | None = None) -> dict[str, Evaluator]:
        """Makes an `Evaluator` for every evaluation of the configuration, by name. '' is that of `config.evaluation`.

        Evaluators of the same model and shape share one compiled score.
        """
        evaluators: dict[str, Evaluator] = {}
        for evaluation in (self.config.evaluation, *self.config.evaluations):
            evaluator = self.evaluator(evaluation, layout=layout)
            for other in evaluators.values():
                evaluator.share(other)
            evaluators[evaluation.name] = evaluator
        return evaluators

    def evaluator(
        self,
        evaluation: configs.Evaluation | None = None,
        *,
        model: Any = None,
        documents: Documents | None = None,
        **options: Any,
    ) -> Evaluator:
        """Makes the `Evaluator` of an evaluation from its settings, by default `config.evaluation`. It takes the
        variables of this experiment's model, or of `model` if given, and scores `documents` if given.

        It takes the variables of `self.model` and converts them if the memory size of the evaluation groups the layers
        of its model differently.

        Args:
          evaluation: Evaluation to make the evaluator of. None for `config.evaluation`.
          model: Model to evaluate. The evaluator then takes the variables of this model. None for `self.model` with the
            memory size and the cache of the evaluation.
          documents: Documents to score, such as those of the split with annotations. None for those of the split.
          **options: `layout`, `compute_parts` and `feature_names` of `Evaluator`.
        """
        evaluation = self.fill_in_task(evaluation or self.config.evaluation)
        if evaluation.task:
            other = self.of_task(evaluation.task, evaluation.prompt_of_task)
            without_task = dataclasses.replace(evaluation, task="", prompt_of_task="")
            return other.evaluator(without_task, model=model, documents=documents, **options)
        convert_variables = self.choose_variables
        if model is None:
            model = make_evaluation_model(self, evaluation)
            if evaluation.memory_length is not None:
                what = f"evaluation.memory_length: given {evaluation.memory_length}, the trained variables do not fit"
                length = self.config.data.segment_length
                added = self.config.model.memory_facts.memory_parameter_names
                fit = fitting(self.model, model, length, added=added, what=what)
                convert_variables = lambda variables: fit(self.choose_variables(variables))
        change_memory = make_memory_intervention(
            evaluation.memory_intervention, model, part=evaluation.intervention_path, rows=evaluation.batch_size
        )
        split, num_words = documents or self.documents(evaluation.split), self.words_in_split
        generate_answers = None
        if self.task.writes_answers and evaluation.max_answers:
            adaptation = {"adapt_rows": self.adapt_rows} if self.adapt_rows else {}
            generate_answers = lambda variables: self.task.answers(
                model, variables, split, self.datasets, evaluation, **adaptation
            )
        return Evaluator(
            model,
            split,
            self.reading(evaluation),
            change_memory=change_memory,
            make_measure=self.task.make_measure(split),
            max_segments=evaluation.max_segments,
            subsets=self.subsets(evaluation),
            compute_accuracy=evaluation.compute_accuracy,
            convert_variables=convert_variables,
            num_words=functools.partial(num_words, evaluation.split) if num_words and documents is None else None,
            # A task whose answers are written adapts the model for the answers only, and not for the nats.
            adapt_rows=None if self.task.writes_answers else self.adapt_rows,
            generate_answers=generate_answers,
            **options,
        )

    @property
    def datasets(self) -> Datasets:
        """The documents of the run with its tokenizer, vocabulary size and begin token, as a task takes them."""
        return Datasets(self.documents, self.tokenizer, self.model.vocabulary.vocab_size, self.begin_token)

    def predict(self, variables: Mapping[str, Any], queries: Sequence[Query], **options: Any) -> list[dict[str, Any]]:
        """Answers questions of a user (`Query`) with the model, adapted to each question as in evaluations. Returns a
        dictionary with an `answer` for each question.

        See `memjax.tasks.interface.Task.predict`.

        Args:
          variables: Variables of `model`.
          queries: One or more questions.
          **options: Options of the task's `predict`.
        """
        if self.config.data.source.names_relations:
            self.run_data.check_files(self.config)
        if self.adapt_rows is not None and self.task.writes_answers:
            options["adapt_rows"] = self.adapt_rows
        elif self.adapt_rows is not None:
            options["read"] = make_read(self.model, self.adapt_rows)
        chosen = self.choose_variables(variables)
        return self.task.predict(self.model, chosen, queries, self.datasets, **options)

    def evaluate(
        self, variables: Mapping[str, Any], evaluation: configs.Evaluation | None = None, **options: Any
    ) -> EvaluationResult:
        """Scores a split with the variables of the model, as the settings of an evaluation say (by default
        `config.evaluation`), measures generated answers to it if the task does, and returns the `EvaluationResult`.

        No answers are generated if the evaluation changes the memory between segments.

        Args:
          variables: Variables of `model`.
          evaluation: Evaluation to run. None for `config.evaluation`.
          **options: `observe` and `stop` of a call of `Evaluator`.
        """
        evaluation = self.fill_in_task(evaluation or self.config.evaluation)
        if evaluation.task:
            of_one_task = dataclasses.replace(evaluation, task="", prompt_of_task="")
            return self.of_task(evaluation.task, evaluation.prompt_of_task).evaluate(variables, of_one_task, **options)
        evaluator = self.evaluator(evaluation)
        result = evaluator(variables, **options)
        if not evaluation.max_answers or evaluation.memory_intervention != "kept" or self.task.writes_answers:
            return result
        split = self.documents(evaluation.split)
        answers = self.task.answers(
            evaluator.model, evaluator.convert_variables(variables), split, self.datasets, evaluation
        )
        measures = {**result.measures, **answers.measures}
        return dataclasses.replace(result, measures=measures, notes=(*result.notes, *answers.notes))


def make_experiment(
    config: Config,
    *,
    tokenizer: Any = None,
    progress: Callable[[str, int, int | None], None] | None = None,
    run_data: RunData | None = None,
) -> Experiment:
    """Builds the documents, tokenizer and model of a configuration and returns them as an `Experiment`. `tokenizer`
    takes the place of that of the configuration, and `run_data` is the record of the data of a run.

    Args:
      config: Configuration of the run.
      tokenizer: Tokenizer to use, such as that of a finished run. Documents are then read only when they are needed.
        None makes the tokenizer that the configuration describes.
      progress: Function that is called with the progress of the preparation of the data.
      run_data: Record of the run's data, for a run that is opened or trained. None for no record.

    Raises:
      ValueError: The configuration is not valid or cannot fit into memory, or its data cannot be read.
    """
    validate(config)
    check_sizes(config, available_bytes())
    if config.model.output.needs_neighbors and not config.data.neighbors_dir:
        raise ValueError("data.neighbors_dir: given '', allowed: a folder from `memjax datastore neighbors` for Spalm")
    run_data = run_data or RunData()
    config = run_data.with_existing_paths(config)
    located = with_task_source(config, config.data.source)
    task = make_task(located)
    with keep_sources_cached(run_data.held):
        data = task.data(progress, tokenizer=tokenizer)
    model = task.model(data.vocab_size)

    def documents(split: str) -> Split:
        plain = data.documents(split)
        return open_neighbors(config.data.neighbors_dir, split, plain) if config.data.neighbors_dir else plain

    open_split = functools.cache(lambda split: run_data.open(located, "", split, documents))
    words = data.words_in_split
    return Experiment(config, model, open_split, data.begin_token, data.tokenizer, words, run_data=run_data)


def with_task_source(config: Config, source: Any) -> Config:
    """Returns the configuration with `source`, the settings of a data source, as `data.source`. In a stream of tasks
    its path is looked up in the folder of the tasks.
    """
    located = config.lifelong.with_sources_dir(source) if config.lifelong else source
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=located))


def task_of_evaluation(config: Config, evaluation: configs.Evaluation) -> str:
    """Returns the name of the task whose documents an evaluation reads, from the settings of the run and of the
    evaluation.

    It is the task that the evaluation names, otherwise the task whose source is `data.source`.

    Raises:
      ValueError: The evaluation names no task, and `data.source` is the source of no task or of several.
    """
    stream = config.lifelong
    assert stream is not None
    names, source = [task.name for task in stream.ordered_tasks], stream.with_sources_dir(config.data.source)
    matching = (
        [evaluation.task]
        if evaluation.task
        else [name for name in names if stream.with_sources_dir(stream.source_of(name)) == source]
    )
    if len(matching) != 1:
        kind, where = type(stream.method).__name__, f"data.source is that of {len(matching)} tasks"
        raise ValueError(f"evaluation.task: given '', allowed: one of {names}; {kind} must know the task, and {where}")
    return matching[0]


def make_evaluation_model(experiment: Experiment, evaluation: configs.Evaluation) -> Model:
    """Makes the model of an experiment with the memory size and the cache of an evaluation, or returns its own model if
    the evaluation sets neither. See `evaluation_model`.
    """
    if evaluation.memory_length is None and not evaluation.cache.memory_length:
        return experiment.model
    config = dataclasses.replace(experiment.config, evaluation=evaluation)
    return evaluation_model(config, experiment.model.vocabulary.vocab_size)


def evaluation_model(config: Config, vocab_size: int) -> Model:
    """Makes the model that a configuration describes, with the memory size and the cache of its evaluation.

    Raises:
      ValueError: A memory size for a model without memory, or a cache for a model that cannot mix with one.
    """
    length = config.evaluation.memory_length
    config = config.with_memory(length)
    model, mixtures = make_task(config).model(vocab_size), make_mixtures(config.evaluation, config.model)
    if length is not None:
        model.require("resizes")
    if mixtures:
        model.require("mixes")
    return model.clone(mixtures=mixtures) if mixtures else model
