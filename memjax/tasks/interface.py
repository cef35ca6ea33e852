"""The task interface: one object that gives a run its data, its model's head and its measures.

A task knows its data, the question that it asks about each example, the head that answers, and how answers are scored.
The model, the update and the evaluation know none of this. They read batches and sum the nats of targets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from memjax import config as configs
from memjax.config import Config
from memjax.data.documents import Examples, Split
from memjax.data.opening import Datasets
from memjax.data.reading_plan import ReadingPlan
from memjax.data.token_files import Progress
from memjax.models.factory import make_model
from memjax.models.heads import TaskHead
from memjax.models.interface import Model
from memjax.settings.compatibility import warn_of_renamed_members
from memjax.settings.pointers import import_by_name
from memjax.typing import Batch

__all__ = ["GeneratedAnswers", "Query", "TaskMetric", "Task", "make_task"]

SHOWN_BY = {
    "generate": "a run that continues texts",
    "translate": "a run that translates texts",
    "sample": "a run that draws images",
    "predict": "a run that answers about a text",
}
"""Subcommand of the command line that shows what a run has learned -> kind of run that it needs."""

TargetSelector = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""A function that selects targets. It maps `Batch.extras` to bool `[batch, length]`, True for the selected targets."""
TokenSelector = Callable[[Batch], np.ndarray]
"""A function that selects input tokens. It maps a `Batch` without a segment axis to bool `[batch, length]`, True for
the selected tokens."""


class TaskMetric(Protocol):
    """A measure over a whole split that is not a mean over targets. It observes batch after batch, then returns numbers
    by name.
    """

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Adds one batch, without a segment axis, and the model's output for it, in the form that the head gives, such
        as class scores.
        """
        ...

    def result(self) -> dict[str, float]:
        """Returns the measured numbers by name, over all batches added so far."""
        ...


class GeneratedAnswers(NamedTuple):
    """Measurements of the answers that a model has generated: numbers by name, and notes. The answers themselves are
    not in it.

    Attributes:
      measures: Measured numbers by name.
      notes: Lines that say how the answers were measured, and which measures were not available.
    """

    measures: dict[str, float]
    notes: tuple[str, ...] = ()


class Query(NamedTuple):
    """An input of a user for a trained model to answer: a text or vector, and where the task takes one a second input,
    such as a question.

    Attributes:
      text: The text to classify, translate, fill in or answer. For a task of vectors the numbers of one vector,
        `[width]`.
      second: Second input that belongs to the text, of the kind `Task.second_input`. '' where the task takes none.
    """

    text: Any
    second: str = ""


class ScoredBatch(NamedTuple):
    """A batch of rows with the model's output and log-probabilities for them, and with the numbers of the stored
    examples that the model was adapted to, if any.

    Attributes:
      batch: The batch that the model has read, without a segment axis.
      output: Output of the model for the batch, in the form that its head gives.
      log_probs: Log-probabilities of all choices for each target, `[rows, targets, choices]`.
      neighbors: int `[rows, neighbors]`, numbers of the stored examples that the model was adapted to for each row. -1
        marks a missing neighbour. None where the run adapts to no neighbours.
    """

    batch: Batch
    output: np.ndarray
    log_probs: np.ndarray
    neighbors: np.ndarray | None = None


ReadBatch = Callable[[Mapping[str, Any], Batch], ScoredBatch]
"""A function `read(variables, batch)` that applies a model to a batch, possibly after adapting it to every row."""


class Task:
    """A task that a run can learn: its data, its head and its measures. It is made from the configuration of the run.

    The base class has no data. Every other method defaults to a task without that ability.

    Attributes:
      config: Configuration of the run.
      settings: Settings of the task, `config.task`.
      protocol: Protocol with which training cuts a split of documents into rows. Examples are always read one by one.
      main_metrics: Names of the main metrics of an evaluation, most important first. Names that an evaluation does not
        have are skipped.
      target_unit: Unit of the scored targets in printed lines, such as 'tokens' or 'texts'.
      verbs: Subcommands that show what a run has learned, keys of `SHOWN_BY`.
      texts: Whether `predict` takes texts. False for a task that only reads a file of inputs.
      second_input: Kind of the second input that `predict` takes beside a text: 'question', 'pair' (another text) or
        'document'. '' for none.
      classifies: Whether every example has one target, the class that the head predicts.
      writes_answers: Whether every evaluation generates answers, because the generated answers are what is scored.
        Otherwise only `memjax eval` generates them.
      matrix_metrics: Metrics for the task-by-task score matrix of a stream. The first that the evaluations have is
        used.
      extra_metrics: Metrics reported beside the score matrix, as means over all tasks after the last task.
    """

    protocol = "separate"
    main_metrics: tuple[str, ...] = ("bits_per_byte", "perplexity", "accuracy")
    target_unit = "tokens"
    verbs: tuple[str, ...] = ("predict",)
    texts = True
    second_input = ""
    classifies = False
    writes_answers = False
    matrix_metrics: tuple[str, ...] = ("accuracy", "nats_per_token")
    extra_metrics: tuple[str, ...] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        warn_of_renamed_members(cls)

    def __init__(self, config: Config):
        self.config = config
        self.settings: Any = config.task

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the data as `Datasets`: a function from a split to its documents or examples, and the tokenizer.
        `tokenizer` replaces the configured one, and `progress` is a function that is told what is being prepared.

        Args:
          progress: Function called with the name of the item being prepared, how much of it is done, and the total.
          tokenizer: Tokenizer to use instead of the one that the configuration describes, such as the tokenizer of an
            existing run.

        Raises:
          ValueError: Data is missing or has another form.
        """
        raise NotImplementedError

    def head(self) -> TaskHead | None:
        """Returns the module of the head with which an encoder answers. None for a model whose answers are tokens."""
        return None

    def model(self, vocab_size: int, *, vocab_multiple: int | None = None) -> Model:
        """Makes the Linen model that the configuration describes, with the head of the task. `vocab_multiple` pads the
        vocabulary to a multiple of so many entries.

        Args:
          vocab_size: Number of entries of the tokenizer.
          vocab_multiple: Multiple that the vocabulary is padded to, instead of the one in the configuration. 1 = no
            padding.
        """
        return make_model(self.config, vocab_size, self.head(), vocab_multiple=vocab_multiple)

    def make_measure(self, split: Split) -> Callable[[], TaskMetric] | None:
        """Returns a function without arguments that makes the `TaskMetric` of one evaluation of `split`, which is
        opened documents or examples. None where the sums of losses over targets are enough.
        """
        del split
        return None

    def answers(
        self,
        model: Any,
        variables: Mapping[str, Any],
        split: Split,
        data: Datasets,
        evaluation: configs.Evaluation,
        **how: Any,
    ) -> GeneratedAnswers:
        """Lets a model generate answers to the first `evaluation.max_answers` examples of `split`, which is opened
        documents or examples, and returns measurements of them (`GeneratedAnswers`). By default none are generated.

        Args:
          model: Model with the settings that `evaluation` asks for, such as its memory length.
          variables: Variables of the model.
          split: Data of the split `evaluation.split`.
          data: Data sets of the run, whose tokenizer encodes and decodes the texts.
          evaluation: Evaluation settings: how many examples to answer, and how many rows to generate at once.
          **how: Further options of the task. `adapt_rows` is given for runs that adapt the model to every row, to tasks
            that write answers.
        """
        del model, variables, split, data, evaluation, how
        return GeneratedAnswers({})

    def notes(self, split: Split) -> list[str]:
        """Returns lines of text that are worth knowing before training. `split` is the opened documents or examples of
        the training split.
        """
        del split
        return []

    def require(self, verb: str) -> None:
        """Raises a `ValueError` if the task does not serve the subcommand `verb`, such as 'generate', 'translate',
        'sample' or 'predict'.

        Args:
          verb: Subcommand, a key of `SHOWN_BY`.

        Raises:
          ValueError: The subcommand is not among `verbs`. The line names the task and the subcommands that it supports.
        """
        if verb not in self.verbs:
            kind, served = type(self).__name__, ", ".join(("train", "eval", "plan", *self.verbs))
            raise ValueError(f"{verb}: given {kind}, allowed: {SHOWN_BY[verb]}; {kind} serves {served}")

    def predict(
        self, model: Any, variables: Mapping[str, Any], queries: Sequence[Query], data: Datasets, **how: Any
    ) -> list[dict[str, Any]]:
        """Answers the `queries` of a user with a trained model. Returns a dict for each, with its `answer` and,
        where there is a choice, probabilities of candidates.

        Args:
          model: Model of a run.
          variables: Variables of the model.
          queries: Questions, one or more.
          data: Data sets of the run, whose tokenizer encodes and decodes the texts.
          **how: Further options of the task, such as the size of a beam. For runs that adapt the model to every row,
            `read` is the `ReadBatch` to use.

        Returns:
          A JSON object for each question, with its `answer`. Where there is a choice it also has `candidates`: for each
          of the question's targets a list of answers with their probabilities, best first. Classes and spans have a
          `probability`. Where the model was adapted to stored examples, `neighbors` lists their numbers.

        Raises:
          ValueError: A text is too long, or lacks the second input that the task needs.
        """
        raise NotImplementedError(f"{type(self).__name__} answers nothing")

    def read_queries(self, file: str) -> list[Query]:
        """Reads queries from a file with the path `file`, one for each of its rows. Correct answers in the file are
        ignored. By default raises an error.

        Raises:
          ValueError: The file has another form, or the task reads no files.
        """
        kind = type(self).__name__
        raise ValueError(f"{file}: given with {kind}, allowed: --text TEXT or --file FILE, which is one text")

    def subsets(self, split: Split, evaluation: configs.Evaluation) -> dict[str, TargetSelector]:
        """Returns a dict from names to functions that select targets to score separately as well, each from a batch's
        extras to bool `[batch, length]`. `split` is the opened documents or examples.
        """
        del split, evaluation
        return {}

    def counted_tokens(self, batch: Batch) -> np.ndarray:
        """Selects the tokens over which the use of a memory is measured, bool `[batch, length]`.

        By default all real tokens.
        """
        return batch.mask

    def token_subsets(self, split: Split, evaluation: configs.Evaluation) -> dict[str, TokenSelector]:
        """Returns a dict from names to functions that select input tokens over which the use of a memory is measured
        separately, each from a batch to bool `[batch, length]`. `split` is the opened documents or examples.
        """
        del split, evaluation
        return {}


def read_examples(
    model: Model,
    variables: Mapping[str, Any],
    examples: Examples,
    *,
    length: int,
    rows: int = 8,
    read: ReadBatch | None = None,
) -> Iterator[ScoredBatch]:
    """Applies a model to examples, `rows` at once, and yields a `ScoredBatch` for each batch. `length` is the number of
    tokens in a row. `read(variables, batch)` replaces how the model is applied, for example to adapt it first.

    Args:
      model: Text encoder, or classifier of vectors, with the head of a task.
      variables: Variables of the model.
      examples: Examples to read, in order.
      length: Number of tokens in a row.
      rows: Largest number of rows in a batch.
      read: Function that applies the model to a batch. None = the model with these variables, without adaptation.
    """

    @jax.jit
    def apply_model(variables: Any, inputs: Any, start: Any, mask: Any, extras: Any) -> Any:
        options = {"start_of_document": start, "mask": mask, "extras": extras}
        output = model.apply(variables, inputs, model.init_state(len(inputs)), **options)[0]
        return output, model.apply(variables, output, method="log_probs")

    def read_plainly(variables: Mapping[str, Any], batch: Batch) -> ScoredBatch:
        arrays = batch.inputs, batch.start_of_document, batch.mask, model.select_extras(batch.extras)
        return ScoredBatch(batch, *jax.device_get(apply_model(variables, *arrays)))

    for batch in ReadingPlan(rows=min(rows, len(examples)), segment_length=length).batches(examples):
        yield (read or read_plainly)(variables, batch)


def neighbor_numbers(scored: ScoredBatch, row: int) -> dict[str, list[int]]:
    """Returns a dict with `neighbors`, the numbers of the stored examples that the model was adapted to for one row of
    a `ScoredBatch`. Empty if nothing was adapted.
    """
    return {} if scored.neighbors is None else {"neighbors": [int(n) for n in scored.neighbors[row] if n >= 0]}


def rank_choices(log_probs: np.ndarray, name_of: Callable[[int], str], count: int) -> list[dict[str, Any]]:
    """Returns a dict with `answer` and `probability` for each of the `count` most probable choices, best first.
    `name_of` is a function from the number of a choice to its answer.

    Example:
      >>> rank_choices(np.log([0.25, 0.75]), str, 1)
      [{'answer': '1', 'probability': 0.75}]
    """
    best = np.argsort(-log_probs, kind="stable")[:count]
    return [{"answer": name_of(int(i)), "probability": round(float(np.exp(log_probs[i])), 6)} for i in best]


def make_task(config: Config) -> Task:
    """Makes the `Task` of a run's configuration, of the class that the settings `config.task` and the source of data
    name.

    For language modelling the kind of source selects the variant, such as dialogue or translation.

    Raises:
      ValueError: The settings are not those of a task.
    """
    name = config.task.implementation(config.data.source)
    if not name:
        raise ValueError(f"task: given {type(config.task).__name__}, allowed: one of memjax.config.TaskKind")
    return import_by_name(name)(config)
