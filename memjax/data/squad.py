"""SQuAD 1.1: questions about a text.

Rajpurkar, Zhang, Lopyrev and Liang, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP 2016,
https://arxiv.org/abs/1606.05250.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from memjax.data.sources import SPLITS, find_packed, read_text, split_of
from memjax.data.tfds import tfds_examples

__all__ = ["Question", "read_questions", "squad_questions", "tfds_squad_questions"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
      question: its words.
      context: the text that holds the answer.
      answers: right ones: words and their first character in the context. Training learns the first.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


def squad_questions(path: str, *, split: str, validation: float, test: float) -> list[Question]:
    """One split from a folder with `train-v1.1.json` and `dev-v1.1.json`; `test` is validation, as papers report it.

    A folder with one of the files only is split by a hash of the articles' titles.

    Raises:
      ValueError: an unknown split, a folder without the files, or a file of another form.
    """
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    files = (find_packed(path, f"{name}.json") for name in ("train-v1.1", "dev-v1.1"))
    there = [file for file in files if file is not None]
    if not there:
        raise ValueError(f"data.source.path: {path} has no train-v1.1.json or dev-v1.1.json, allowed: SQuAD's folder")
    if len(there) == 1:
        place = lambda title: split_of(title, validation=validation, test=test)
        return [q for title, questions in _read_json(there[0]) for q in questions if place(title) == split]
    chosen = there[0] if split == "train" else there[1]
    return [question for _, questions in _read_json(chosen) for question in questions]


def tfds_squad_questions(*, split: str, data_dir: str) -> list[Question]:
    """The same from the prepared builder `squad` of TensorFlow Datasets."""
    text = lambda value: value.decode("utf-8")
    part = "train" if split == "train" else "validation"
    answers = lambda given: tuple((text(t), int(s)) for t, s in zip(given["text"], given["answer_start"], strict=True))
    return [
        Question(text(example["question"]), text(example["context"]), answers(example["answers"]))
        for example in tfds_examples("squad", split=part, data_dir=data_dir or None)
    ]


def read_questions(file: Path) -> list[Question]:
    """The questions of a file, article by article.

    Raises:
      ValueError: a file of another form.
    """
    return [question for _, questions in _read_json(file) for question in questions]


def _read_json(file: Path) -> list[tuple[str, list[Question]]]:
    """(title, questions) of every article."""
    try:
        articles = json.loads(read_text(file))["data"]
        return [(article["title"], [q for p in article["paragraphs"] for q in _questions(p)]) for article in articles]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: not of the form of SQuAD 1.1 ({type(error).__name__}: {error})") from None


def _questions(paragraph: Any) -> list[Question]:
    answers = lambda entry: tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])
    return [Question(entry["question"], paragraph["context"], answers(entry)) for entry in paragraph["qas"]]
