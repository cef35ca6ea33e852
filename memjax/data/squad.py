"""SQuAD 1.1: questions about a text.

Rajpurkar, Zhang, Lopyrev and Liang, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP 2016,
https://arxiv.org/abs/1606.05250.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memjax.data.paths import read_text
from memjax.data.questions import Entry, Question, QuestionSplit, gather, split_questions
from memjax.data.tfds import tfds_examples

__all__ = ["read_questions", "squad_questions", "tfds_squad_questions"]

FILES = ("train-v1.1.json", "dev-v1.1.json")


def squad_questions(path: str, *, part: int = 0, parts: int = 1, **how: Any) -> QuestionSplit:
    """One split from a folder with `train-v1.1.json` and `dev-v1.1.json`; `test` is validation, as papers report it.

    A folder with one of the files only is split by a hash of the articles' titles.

    Args:
      path: the folder.
      part: which group of articles, from 0.
      parts: groups into which they fall, by another hash of their titles.
      **how: `split`, `validation` and `test` of `split_questions`.

    Raises:
      ValueError: as `split_questions`, or a file of another form.
    """
    return split_questions(path, FILES, functools.partial(_entries, part=part, parts=parts), **how)


def tfds_squad_questions(*, split: str, data_dir: str, part: int = 0, parts: int = 1) -> QuestionSplit:
    """The same from the prepared builder `squad` of TensorFlow Datasets."""
    text = lambda value: value.decode("utf-8")
    answers = lambda given: tuple((text(t), int(s)) for t, s in zip(given["text"], given["answer_start"], strict=True))
    examples = tfds_examples("squad", split="train" if split == "train" else "validation", data_dir=data_dir or None)
    entry = lambda one: Question(text(one["question"]), text(one["context"]), answers(one["answers"]))
    chosen = (one for one in examples if parts == 1 or _part_of(text(one["title"]), parts) == part)
    return gather(Entry("", entry(one)) for one in chosen)


def read_questions(file: Path) -> list[Question]:
    """The questions of a file, article by article.

    Raises:
      ValueError: a file of another form.
    """
    return list(gather(_entries(file)).questions)


def _part_of(title: str, parts: int) -> int:
    return int.from_bytes(hashlib.sha256(f"part of {title}".encode()).digest()[:8], "big") % parts


def _entries(file: Path, part: int = 0, parts: int = 1) -> Iterator[Entry]:
    for title, questions in _read_json(file):
        if _part_of(title, parts) == part:
            yield from (Entry(title, question) for question in questions)


def _read_json(file: Path) -> list[tuple[str, list[Question]]]:
    """(title, questions) of every article."""
    try:
        articles = json.loads(read_text(file))["data"]
        return [(article["title"], [q for p in article["paragraphs"] for q in _questions(p)]) for article in articles]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: not of the form of SQuAD 1.1 ({type(error).__name__}: {error})") from None


def _questions(paragraph: Mapping[str, Any]) -> list[Question]:
    answers = lambda entry: tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])
    return [Question(entry["question"], paragraph["context"], answers(entry)) for entry in paragraph["qas"]]
