"""Reads SQuAD 1.1: questions about paragraphs of Wikipedia, whose answers are spans of the paragraph.

Rajpurkar, Zhang, Lopyrev and Liang, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP 2016,
https://arxiv.org/abs/1606.05250.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data.questions import Question, QuestionRecord, QuestionSplit, collect_questions, split_questions
from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_file
from memjax.data.tfds import tfds_examples
from memjax.settings.reading_rules import held_out_shares

__all__ = ["parse_squad", "read_questions"]

FILES = ("train-v1.1.json", "dev-v1.1.json")


def parse_squad(source: configs.Squad, split: str) -> QuestionSplit:
    """Reads one split of SQuAD as a `QuestionSplit`, from `train-v1.1.json` and `dev-v1.1.json` in the folder
    `source.path` or, without a folder, from TFDS.

    The development file is both the validation and the test split, as in papers. A folder with only one of the files is
    split by a hash of the titles of its articles.

    Args:
      source: Settings of the source.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: An unknown split, a folder without the files, or a file of another form.
    """
    if source.path:
        read = functools.partial(_entries, part=source.part, parts=source.parts)
        return split_questions(source.path, FILES, read, split=split, **held_out_shares(source))
    text = lambda value: value.decode("utf-8")
    answers = lambda value: tuple((text(t), int(s)) for t, s in zip(value["text"], value["answer_start"], strict=True))
    question = lambda row: Question(text(row["question"]), text(row["context"]), answers(row["answers"]))
    part = "train" if split == "train" else "validation"
    return collect_questions(
        QuestionRecord("", question(example))
        for example in tfds_examples("squad", split=part, data_dir=source.data_dir or None)
        if source.parts == 1 or _part_of(text(example["title"]), source.parts) == source.part
    )


def read_questions(file: Path) -> list[Question]:
    """Reads all questions of a file of SQuAD 1.1 as one list of `Question`, in the order of the articles.

    Raises:
      ValueError: A file of another form.
    """
    return list(collect_questions(_entries(file)).questions)


def _part_of(title: str, parts: int) -> int:
    """Returns the number of the group that an article belongs to, by a hash of its title."""
    return int.from_bytes(hashlib.sha256(f"part of {title}".encode()).digest()[:8], "big") % parts


def _entries(file: Path, part: int = 0, parts: int = 1) -> Iterator[QuestionRecord]:
    """Reads the questions of a file whose articles belong to a group."""
    for title, questions in _read_json(file):
        if _part_of(title, parts) == part:
            yield from (QuestionRecord(title, question) for question in questions)


def _read_json(file: Path) -> list[tuple[str, list[Question]]]:
    """Reads the title and the questions of every article of a file."""
    with reading(file, "the JSON of SQuAD 1.1"):
        articles = parse_json_file(file)["data"]
        return [
            (expect(article["title"], str), [q for p in article["paragraphs"] for q in _questions(p)])
            for article in articles
        ]


def _questions(paragraph: Mapping[str, Any]) -> list[Question]:
    """Converts the questions of a paragraph."""
    answers = lambda entry: tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])
    return [Question(entry["question"], paragraph["context"], answers(entry)) for entry in paragraph["qas"]]
