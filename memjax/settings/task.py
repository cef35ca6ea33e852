"""What is learned."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Task",
    "LanguageModeling",
    "MaskedLanguageModeling",
    "Classification",
    "QuestionAnswering",
    "TaskKind",
]


@dataclass(slots=True, kw_only=True)
class Task:
    """What every task says of itself."""


@dataclass(slots=True, kw_only=True)
class LanguageModeling(Task):
    """Predict every next token."""


@dataclass(slots=True, kw_only=True)
class MaskedLanguageModeling(Task):
    """Predict tokens that were hidden: other ones in every epoch, the same ones in every evaluation."""

    rate: float = 0.15
    """share of the tokens of a text that are predicted"""
    masked: float = 0.8
    """share of them that read as the mask token"""
    random: float = 0.1
    """share of them that read as a random token; the rest stays as it is"""


@dataclass(slots=True, kw_only=True)
class Classification(Task):
    """The class of a text, or of a pair of texts, from its first token."""

    num_classes: int = 2
    """classes of the data"""


@dataclass(slots=True, kw_only=True)
class QuestionAnswering(Task):
    """The span of a text that answers a question (SQuAD); long texts are read in windows."""

    stride: int = 128
    """tokens from one window to the next"""
    max_question_length: int = 64
    """tokens of a question; the rest is cut off"""
    max_answer_length: int = 30
    """tokens of an answer that is given"""
    num_best: int = 20
    """most probable starts and ends of each window that are combined"""


TaskKind = LanguageModeling | MaskedLanguageModeling | Classification | QuestionAnswering
