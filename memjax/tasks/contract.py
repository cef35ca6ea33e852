"""The task contract: what a run learns, as one object that everything around a model asks.

A task knows its data and the question that it puts to them, the head that answers, and how answers are measured. The
model, the step and the evaluation know none of it: they read batches and sum the nats of targets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from memjax import config as configs
from memjax.config import Config
from memjax.data.documents import Examples, Split
from memjax.data.opening import Datasets
from memjax.data.reading import Reading
from memjax.data.token_files import Progress
from memjax.models.contract import Model
from memjax.models.factory import make_model
from memjax.models.heads import TaskHead
from memjax.typing import Batch

__all__ = ["Answers", "Asked", "Measure", "Task", "task_of"]

SHOWN_BY = {
    "generate": "a run that continues texts",
    "translate": "a run that translates texts",
    "sample": "a run that draws images",
    "predict": "a run that answers about a text",
}
"""verb that shows what a run has learned -> what it needs"""

Subset = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""`Batch.extras` -> bool `[batch, length]`, which targets belong to it"""
Tokens = Callable[[Batch], np.ndarray]
"""Batch without segments -> bool `[batch, length]`, which of the tokens read belong to it"""


class Measure(Protocol):
    """A measure of a model's answers that is no mean over targets: it sees a whole split, then says its numbers."""

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Takes in one batch without segments, and what the model gave for it."""
        ...

    def result(self) -> dict[str, float]:
        """Name -> number."""
        ...


class Answers(NamedTuple):
    """What a model has answered by generating, measured.

    Attributes:
      measures: name -> number.
      notes: how they were measured, and what could not be, a line each.
    """

    measures: dict[str, float]
    notes: tuple[str, ...] = ()


class Asked(NamedTuple):
    """What a user asks of a task.

    Attributes:
      text: that is classified, translated, filled in, or answered; of a task of vectors its numbers, `[width]`.
      about: what the task wants beside it (`Task.about`); '' = nothing.
    """

    text: Any
    about: str = ""


class Read(NamedTuple):
    """A batch of rows with what a model says of them.

    Attributes:
      batch: as it was read.
      output: of the model.
      log_probs: of all choices for each target.
      neighbors: int `[rows, neighbors]`, the numbers of the examples that a row was adapted to, -1 = none; None = the
        run adapts nothing.
    """

    batch: Batch
    output: np.ndarray
    log_probs: np.ndarray
    neighbors: np.ndarray | None = None


ReadBatch = Callable[[Mapping[str, Any], Batch], Read]
"""`read(variables, batch)`"""


class Task:
    """What a run learns. The base has no data; every other method has the default of a task that lacks a thing.

    Attributes:
      config: of the run.
      settings: of the task.
      protocol: how training cuts its split into rows; examples stand alone.
      headline: names of the numbers that it is about, of those that an evaluation has.
      scored: what the targets of an evaluation are.
      verbs: those of `SHOWN_BY` that show what a run has learned.
      texts: whether `predict` is given texts; else a file alone.
      about: what `predict` is given beside a text: a `question`, `pair` (another text) or `document`; '' = nothing.
      classifies: every example has one target, the class that its head gives.
      writes_answers: every evaluation lets the model write, since that is what is scored; else the verb `eval` alone.
      matrix: what the matrix of a stream of such tasks is of: the first of these that its evaluations have.
      beside: numbers of evaluations whose mean over the tasks in the end stands beside the matrix.
    """

    protocol = "separate"
    headline: tuple[str, ...] = ("bits_per_byte", "perplexity", "accuracy")
    scored = "tokens"
    verbs: tuple[str, ...] = ("predict",)
    texts = True
    about = ""
    classifies = False
    writes_answers = False
    matrix: tuple[str, ...] = ("accuracy", "nats_per_token")
    beside: tuple[str, ...] = ()

    def __init__(self, config: Config):
        self.config = config
        self.settings: Any = config.task

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """What is read of each split, as documents or as examples that put the task's question.

        Args:
          progress: told what is prepared, how much is done, and of how much.
          tokenizer: instead of the one that the configuration describes, such as that of a run.

        Raises:
          ValueError: data that is missing, or of another form.
        """
        raise NotImplementedError

    def head(self) -> TaskHead | None:
        """What a text encoder answers with; None for a model whose answers are tokens."""
        return None

    def model(self, vocab_size: int, *, vocab_multiple: int | None = None) -> Model:
        """The Linen model that the configuration describes, with the head of the task.

        Args:
          vocab_size: entries of the tokenizer.
          vocab_multiple: instead of that of the configuration; 1 = no padding.
        """
        return make_model(self.config, vocab_size, self.head(), vocab_multiple=vocab_multiple)

    def make_measure(self, split: Split) -> Callable[[], Measure] | None:
        """What an evaluation says of a split besides sums over its targets, made anew for each; None = nothing."""
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
    ) -> Answers:
        """Lets a model answer the first `evaluation.answers` of a split by generating, and measures what it said.

        Args:
          model: as the evaluation describes it.
          variables: of that model.
          split: `evaluation.split` of the data.
          data: with the tokenizer.
          evaluation: how many, and how many side by side.
          **how: `adapt_rows` of runs that adapt to every row, for tasks that write answers.
        """
        del model, variables, split, data, evaluation, how
        return Answers({})

    def notes(self, split: Split) -> list[str]:
        """Lines about the training split that are worth knowing before training."""
        del split
        return []

    def require(self, verb: str) -> None:
        """Refuses a verb that shows something else than what the run has learned.

        Args:
          verb: of `SHOWN_BY`.

        Raises:
          ValueError: one line with the task, and the verbs that show it.
        """
        if verb not in self.verbs:
            kind, served = type(self).__name__, ", ".join(("train", "eval", "plan", *self.verbs))
            raise ValueError(f"{verb}: given {kind}, allowed: {SHOWN_BY[verb]}; {kind} serves {served}")

    def predict(
        self, model: Any, variables: Mapping[str, Any], asked: Sequence[Asked], data: Datasets, **how: Any
    ) -> list[dict[str, Any]]:
        """What a model answers to texts of a user.

        Args:
          model: of a run.
          variables: of that model.
          asked: one or more.
          data: with the tokenizer.
          **how: what else the task takes, such as the size of a beam; of runs that adapt to every row `read`, which
            says what is made of a batch.

        Returns:
          For each a JSON object with `answer`; where there is a choice with `candidates` too: for each thing that was
          asked for, answers with their probability, the best first. Classes and spans have a `probability`, and
          `neighbors`, numbers of examples, where the model was adapted to some.

        Raises:
          ValueError: a text that is too long, or without what the task asks for.
        """
        raise NotImplementedError(f"{type(self).__name__} answers nothing")

    def ask(self, file: str) -> list[Asked]:
        """What a file asks of the task, a row after the other; right answers that it has are not read.

        Raises:
          ValueError: a file of another form, or a task that reads none.
        """
        kind = type(self).__name__
        raise ValueError(f"{file}: given with {kind}, allowed: --text TEXT or --file FILE, which is one text")

    def subsets(self, split: Split, evaluation: configs.Evaluation) -> dict[str, Subset]:
        """Targets that are scored apart too, by name."""
        del split, evaluation
        return {}

    def counted(self, batch: Batch) -> np.ndarray:
        """Bool `[batch, length]`: the tokens that say how much of a memory is in use."""
        return batch.mask

    def token_subsets(self, split: Split, evaluation: configs.Evaluation) -> dict[str, Tokens]:
        """Those of them that are counted apart too, by name."""
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
) -> Iterator[Read]:
    """Batches of examples, each with what the model gives for it and its log-probabilities.

    Args:
      model: a text encoder with the head of a task.
      variables: its variables.
      examples: what is read.
      length: tokens of a row.
      rows: read together, at most.
      read: what is made of a batch; None = what the model says with these variables.
    """

    @jax.jit
    def say(variables: Any, inputs: Any, start: Any, mask: Any, extras: Any) -> Any:
        named = {"start_of_document": start, "mask": mask, "extras": extras}
        output = model.apply(variables, inputs, model.init_state(len(inputs)), **named)[0]
        return output, model.apply(variables, output, method="log_probs")

    def read_plainly(variables: Mapping[str, Any], batch: Batch) -> Read:
        arrays = batch.inputs, batch.start_of_document, batch.mask, model.choose_extras(batch.extras)
        return Read(batch, *jax.device_get(say(variables, *arrays)))

    for batch in Reading(rows=min(rows, len(examples)), segment_length=length).batches(examples):
        yield (read or read_plainly)(variables, batch)


def neighbors_of(read: Read, row: int) -> dict[str, list[int]]:
    """What an answer says of the examples that its row was adapted to; {} where nothing is adapted."""
    return {} if read.neighbors is None else {"neighbors": [int(n) for n in read.neighbors[row] if n >= 0]}


def candidates(log_probs: np.ndarray, names: Callable[[int], str], count: int) -> list[dict[str, Any]]:
    """The most probable of some choices, best first.

    Example:
      >>> candidates(np.log([0.25, 0.75]), str, 1)
      [{'answer': '1', 'probability': 0.75}]
    """
    best = np.argsort(-log_probs, kind="stable")[:count]
    return [{"answer": names(int(i)), "probability": round(float(np.exp(log_probs[i])), 6)} for i in best]


def task_of(config: Config) -> Task:
    """The task of a configuration; documents of dialogues and of translations are language modelling's variants."""
    # Each task stands on this file, and brings what only it needs.
    from memjax.tasks import (
        classification,
        dialogue,
        images,
        instructions,
        language_modeling,
        masked,
        question_answering,
        relation,
        translation,
        vectors,
    )

    match config.task, config.data.source.gives[0]:
        case configs.Instructions(), _:
            return instructions.Instructions(config)
        case configs.MaskedLanguageModeling(), _:
            return masked.MaskedLanguageModeling(config)
        case configs.RelationExtraction(), _:
            return relation.RelationExtraction(config)
        case configs.Classification(), "vectors":
            return vectors.VectorClassification(config)
        case configs.Classification(), _:
            return classification.Classification(config)
        case configs.QuestionAnswering(), _:
            return question_answering.QuestionAnswering(config)
        case configs.LanguageModeling(), "dialogues":
            return dialogue.DialogueModeling(config)
        case configs.LanguageModeling(), "pairs":
            return translation.Translation(config)
        case configs.LanguageModeling(), _ if config.data.source.is_images:
            return images.ImageModeling(config)
        case configs.LanguageModeling(), _:
            return language_modeling.LanguageModeling(config)
    raise ValueError(f"task: given {type(config.task).__name__}, allowed: one of memjax.config.TaskKind")
