"""Reads QuAC: questions of dialogues about a text, whose answers are spans of the text.

Choi, He, Iyyer, Yatskar, Yih, Choi, Liang and Zettlemoyer, "QuAC: Question Answering in Context", EMNLP 2018,
https://arxiv.org/abs/1808.07036.

Difference from the data set: every turn is read without the turns before it, as de Masson d'Autume et al. (2019) read
spans, and turns without an answer are left out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.data.questions import Question, QuestionRecord, QuestionSplit, collect_questions, split_questions
from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_file
from memjax.data.tfds import tfds_examples
from memjax.settings.reading_rules import held_out_shares

__all__ = ["parse_quac"]

FILES = ("train_v0.2.json", "val_v0.2.json")
NO_ANSWER = "CANNOTANSWER"
"""Last word of every text, which is the answer of turns that the text does not answer."""
LACKS = "have no answer in their text"

Answers = Sequence[tuple[str, int]]


def parse_quac(source: configs.Quac, split: str) -> QuestionSplit:
    """Reads one split of QuAC as a `QuestionSplit`, from `train_v0.2.json` and `val_v0.2.json` in the folder
    `source.path` or, without a folder, from TFDS.

    The held-out file is both the validation and the test split. A folder with only one of the files is split by a hash
    of the titles of its articles.

    Args:
      source: Settings of the source.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: An unknown split, a folder without the files, or a file of another form.
    """
    if source.path:
        return split_questions(source.path, FILES, _read_json, split=split, **held_out_shares(source))
    text = lambda value: value.decode("utf-8")

    def entry(turn: Any) -> QuestionRecord:
        answers = [
            (text(words), int(start))
            for words, start in zip(turn["answers"]["text"], turn["answers"]["answer_start"], strict=True)
        ]
        return _entry_of_turn(
            "", text(turn["question"]), text(turn["context"]), text(turn["orig_answer"]["text"]), answers
        )

    part = "train" if split == "train" else "validation"
    return collect_questions(map(entry, tfds_examples("quac", split=part, data_dir=source.data_dir or None)))


def _entry_of_turn(title: str, question: str, context: str, original: str, answers: Answers) -> QuestionRecord:
    """Makes the entry of a turn, without the answers of annotators who found none.

    The turn is left out if its original answer is `NO_ANSWER`, or if no annotator found an answer.
    """
    found_answers = tuple((words, start) for words, start in answers if words != NO_ANSWER)
    if original == NO_ANSWER or not found_answers:
        return QuestionRecord(title, None, LACKS)
    return QuestionRecord(title, Question(question, context.removesuffix(NO_ANSWER).rstrip(), found_answers))


def _read_json(file: Path) -> Iterator[QuestionRecord]:
    """Reads all turns of a file."""
    with reading(file, "the JSON of QuAC"):
        for article in parse_json_file(file)["data"]:
            for paragraph in article["paragraphs"]:
                for turn in paragraph["qas"]:
                    answers = [(answer["text"], answer["answer_start"]) for answer in turn["answers"]]
                    question_parts = (turn["question"], paragraph["context"], turn["orig_answer"]["text"])
                    yield _entry_of_turn(expect(article["title"], str), *question_parts, answers)
