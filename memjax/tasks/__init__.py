"""What runs learn, and how it is measured: one file a task."""

from memjax.tasks.classification import LabelledTexts
from memjax.tasks.contract import Answers, Measure, Task, task_of
from memjax.tasks.dialogue import answer_turns, score_answers
from memjax.tasks.masked import MaskedTexts
from memjax.tasks.question_answering import QuestionWindows

__all__ = [
    "Answers",
    "LabelledTexts",
    "MaskedTexts",
    "Measure",
    "QuestionWindows",
    "Task",
    "answer_turns",
    "score_answers",
    "task_of",
]
