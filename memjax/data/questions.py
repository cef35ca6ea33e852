"""Questions about texts: what every reader gives, how its files are split, and how some are chosen."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from memjax.data.paths import find_packed, packed_names
from memjax.data.sources import SPLITS, split_of

__all__ = ["Entry", "Question", "QuestionSplit", "gather", "select_questions", "split_questions"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
      question: its words.
      context: the text that holds the answer.
      answers: right ones: words and their first character in the context, -1 where they are not in it. Training learns
        the first.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


class Entry(NamedTuple):
    """What a reader finds.

    Attributes:
      group: what goes into one split together, such as the title of an article.
      question: None = it is left out.
      lacks: why.
    """

    group: str
    question: Question | None
    lacks: str = ""


@dataclasses.dataclass(frozen=True)
class QuestionSplit:
    """What is read of a split.

    Attributes:
      questions: in the order of the file.
      left_out: what they lack -> how many were left out for it.
    """

    questions: Sequence[Question]
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def notes(self, split: str) -> list[str]:
        """A line for everything that was left out.

        Example:
          >>> QuestionSplit([], {"have no answer": 3}).notes("train")
          ['3 questions of the train split have no answer, and are left out']
        """
        return [f"{n} questions of the {split} split {why}, and are left out" for why, n in self.left_out.items()]


def gather(entries: Iterable[Entry]) -> QuestionSplit:
    """The questions of some entries, and what was left out."""
    found, left_out = [], collections.Counter[str]()
    for entry in entries:
        if entry.question is None:
            left_out[entry.lacks] += 1
        else:
            found.append(entry.question)
    return QuestionSplit(found, dict(left_out))


def split_questions(
    path: str,
    names: tuple[str, str],
    read: Callable[[Path], Iterable[Entry]],
    *,
    split: str,
    validation: float,
    test: float,
) -> QuestionSplit:
    """One split of a folder with a file to train on and one that is held out; `test` is that of `validation`.

    A folder with one of the files only is split by a hash of the groups.

    Args:
      path: the folder.
      names: of the two files, in the folder (also `.xz`, `.gz`).
      read: a file -> its entries.
      split: which.
      validation: share held out where there is one file, in [0, 1].
      test: likewise.

    Raises:
      ValueError: an unknown split, or a folder without the files.
    """
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    there = [file for name in names if (file := find_packed(path, name)) is not None]
    if not there:
        raise ValueError(f"data.source.path: {path} has no {names[0]} or {names[1]}, allowed: the folder of one")
    if len(there) == 1:
        return gather(e for e in read(there[0]) if split_of(e.group, validation=validation, test=test) == split)
    return gather(read(there[0] if split == "train" else there[1]))


def select_questions(questions: Sequence[Question], number: int, *, seed: int = 0) -> Sequence[Question]:
    """Some questions, in their order: those with the smallest hash, whatever else stands in the file.

    Args:
      questions: all of them.
      number: how many; 0, or more than there are = all.
      seed: of the hash.
    """
    if not number or number >= len(questions):
        return questions
    key = lambda one: hashlib.sha256(f"{seed}/{one.question}/{one.context}".encode("utf-8", "surrogateescape")).digest()
    ranked = sorted(range(len(questions)), key=lambda place: key(questions[place]))
    return [questions[place] for place in sorted(ranked[:number])]


def required(path: str, name: str) -> Path:
    """A file of a folder (also `.xz`, `.gz`).

    Raises:
      ValueError: it is not there.
    """
    file = find_packed(path, name)
    if file is None:
        raise ValueError(f"data.source.path: {path} has no {name}, allowed: one with {', '.join(packed_names(name))}")
    return file
