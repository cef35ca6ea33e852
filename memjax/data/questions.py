"""Questions about texts: the types that all readers return, and functions to split and select questions."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from memjax.data.paths import find_packed, packed_names
from memjax.data.reader_errors import expect
from memjax.data.sources import SPLITS, assign_split

__all__ = ["QuestionRecord", "Question", "QuestionSplit", "collect_questions", "select_questions", "split_questions"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a text, with its correct answers and their positions in the text.

    Attributes:
      question: Text of the question.
      context: Text that contains the answer.
      answers: Correct answers, each with the position of its first character in the context, or -1 if it is not in the
        context. Training learns the first.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]

    def __post_init__(self):
        for text in (self.question, self.context, *(text for text, _ in self.answers)):
            expect(text, str)
        for _, position in self.answers:
            expect(position, int)


class QuestionRecord(NamedTuple):
    """One question as a reader returns it, or the reason why it is left out, with the name of its group.

    Attributes:
      group: Name of a group of questions that must be in the same split, such as the title of an article.
      question: The question. None if it is left out.
      lacks: Reason why it is left out, in words that continue "3 questions". Empty if it is not.
    """

    group: str
    question: Question | None
    lacks: str = ""


@dataclasses.dataclass(frozen=True)
class QuestionSplit:
    """The questions of one split, and by reason the numbers of questions that were left out.

    Attributes:
      questions: Questions in the order of the file.
      left_out: Number of questions that were left out, by reason.
    """

    questions: Sequence[Question]
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def notes(self, split: str) -> list[str]:
        """Returns a list with a line for each reason why questions were left out. `split` is the name that these lines
        give the split.

        Example:
          >>> QuestionSplit([], {"have no answer": 3}).notes("train")
          ['3 questions of the train split have no answer, and are left out']
        """
        return [f"{n} questions of the {split} split {why}, and are left out" for why, n in self.left_out.items()]


def collect_questions(entries: Iterable[QuestionRecord]) -> QuestionSplit:
    """Collects the questions of a reader's records `entries` as a `QuestionSplit`, which also counts those that are
    left out by reason.
    """
    questions, left_out = [], collections.Counter[str]()
    for entry in entries:
        if entry.question is None:
            left_out[entry.lacks] += 1
        else:
            questions.append(entry.question)
    return QuestionSplit(questions, dict(left_out))


def split_questions(
    path: str,
    names: tuple[str, str],
    read: Callable[[Path], Iterable[QuestionRecord]],
    *,
    split: str,
    validation: float,
    test: float,
) -> QuestionSplit:
    """Reads one split of a data set as a `QuestionSplit`. `names` are those of its training and held-out file in a
    folder, `read(file)` yields records, and `validation` and `test` are held-out shares if one file is missing.

    The held-out file is both the validation and the test split. A folder with only one of the files is split by a hash
    of the groups.

    Args:
      path: Folder of the files.
      names: Names of the training file and the held-out file (also `.xz`, `.gz`).
      read: Function from a file to its entries.
      split: 'train', 'validation' or 'test'.
      validation: Share in [0, 1] held out for validation if there is only one file.
      test: Share in [0, 1] held out for the test if there is only one file.

    Raises:
      ValueError: An unknown split, or a folder without the files.
    """
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    files = [file for name in names if (file := find_packed(path, name)) is not None]
    if not files:
        raise ValueError(f"data.source.path: {path} has no {names[0]} or {names[1]}, allowed: the folder of one")
    if len(files) == 1:
        return collect_questions(
            e for e in read(files[0]) if assign_split(e.group, validation=validation, test=test) == split
        )
    return collect_questions(read(files[0] if split == "train" else files[1]))


def select_questions(questions: Sequence[Question], number: int, *, seed: int = 0) -> Sequence[Question]:
    """Selects `number` questions, 0 for all: those with the smallest hashes of `seed` and their texts, in the original
    order.

    Args:
      questions: Questions to select from. Their order is preserved.
      number: Number of questions to select. 0 for all.
      seed: Seed of the hash.
    """
    if not number or number >= len(questions):
        return questions
    texts = [f"{seed}/{question.question}/{question.context}" for question in questions]
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in texts]
    ranked = sorted(range(len(questions)), key=hashes.__getitem__)
    return [questions[place] for place in sorted(ranked[:number])]


def find_required_file(path: str, name: str) -> Path:
    """Returns the path of the file `name` in the folder `path`, where it may be packed (`.xz`, `.gz`). A missing file
    is an error.

    Raises:
      ValueError: The folder has no such file.
    """
    file = find_packed(path, name)
    if file is None:
        raise ValueError(f"data.source.path: {path} has no {name}, allowed: one with {', '.join(packed_names(name))}")
    return file
