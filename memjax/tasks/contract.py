"""The task contract: what a run learns, as one object that everything around a model asks.

A task knows its data and the question that it puts to them, the head that answers, and how answers are measured. The
model, the step and the evaluation know none of it: they read batches and sum the nats of targets.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from memjax import config as configs
from memjax.config import Config
from memjax.data.documents import Split
from memjax.data.opening import Datasets
from memjax.data.token_files import Progress
from memjax.models.contract import Model
from memjax.models.factory import make_model
from memjax.models.heads import TaskHead
from memjax.typing import Batch

__all__ = ["Answers", "Measure", "Task", "task_of"]

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


class Task:
    """What a run learns. The base has no data; every other method has the default of a task that lacks a thing.

    Attributes:
      config: of the run.
      settings: of the task.
      protocol: how training cuts its split into rows; examples stand alone.
      headline: names of the numbers that it is about, of those that an evaluation has.
      scored: what the targets of an evaluation are.
    """

    protocol = "separate"
    headline: tuple[str, ...] = ("bits_per_byte", "perplexity", "accuracy")
    scored = "tokens"

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
        self, model: Any, variables: Mapping[str, Any], split: Split, data: Datasets, evaluation: configs.Evaluation
    ) -> Answers:
        """Lets a model answer the first `evaluation.answers` of a split by generating, and measures what it said.

        Args:
          model: as the evaluation describes it.
          variables: of that model.
          split: `evaluation.split` of the data.
          data: with the tokenizer.
          evaluation: how many, and how many side by side.
        """
        del model, variables, split, data, evaluation
        return Answers({})

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


def task_of(config: Config) -> Task:
    """The task of a configuration; documents of dialogues and of translations are language modelling's variants."""
    # Each task stands on this file, and brings what only it needs.
    from memjax.tasks import classification, dialogue, language_modeling, masked, question_answering, translation

    match config.task, config.data.source.gives[0]:
        case configs.MaskedLanguageModeling(), _:
            return masked.MaskedLanguageModeling(config)
        case configs.Classification(), _:
            return classification.Classification(config)
        case configs.QuestionAnswering(), _:
            return question_answering.QuestionAnswering(config)
        case configs.LanguageModeling(), "dialogues":
            return dialogue.DialogueModeling(config)
        case configs.LanguageModeling(), "pairs":
            return translation.Translation(config)
        case configs.LanguageModeling(), _:
            return language_modeling.LanguageModeling(config)
    raise ValueError(f"task: given {type(config.task).__name__}, allowed: one of memjax.config.TaskKind")
