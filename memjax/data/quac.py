"""QuAC: dialogues in which one asks about a text.

Choi, He, Iyyer, Yatskar, Yih, Choi, Liang and Zettlemoyer, "QuAC: Question Answering in Context", EMNLP 2018,
https://arxiv.org/abs/1808.07036.

Differs from the data set: a turn is read without those before it, as de Masson d'Autume et al. (2019) read spans; turns
without an answer are left out.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memjax.data.paths import read_text
from memjax.data.questions import Entry, Question, QuestionSplit, gather, split_questions
from memjax.data.tfds import tfds_examples

__all__ = ["quac_questions", "tfds_quac_questions"]

FILES = ("train_v0.2.json", "val_v0.2.json")
NO_ANSWER = "CANNOTANSWER"
"""what stands at the end of every text, for turns that it does not answer"""
LACKS = "have no answer in their text"

Answers = Sequence[tuple[str, int]]


def quac_questions(path: str, **how: Any) -> QuestionSplit:
    """One split from a folder with `train_v0.2.json` and `val_v0.2.json`; `test` is validation.

    Args:
      path: the folder.
      **how: `split`, `validation` and `test` of `split_questions`; groups are the titles.

    Raises:
      ValueError: as `split_questions`, or a file of another form.
    """
    return split_questions(path, FILES, _read_json, **how)


def tfds_quac_questions(*, split: str, data_dir: str) -> QuestionSplit:
    """The same from the prepared builder `quac` of TensorFlow Datasets."""
    text = lambda value: value.decode("utf-8")

    def entry(one: Any) -> Entry:
        answers = [
            (text(words), int(start))
            for words, start in zip(one["answers"]["text"], one["answers"]["answer_start"], strict=True)
        ]
        return _turn("", text(one["question"]), text(one["context"]), text(one["orig_answer"]["text"]), answers)

    part = "train" if split == "train" else "validation"
    return gather(map(entry, tfds_examples("quac", split=part, data_dir=data_dir or None)))


def _turn(title: str, question: str, context: str, original: str, answers: Answers) -> Entry:
    """A turn; of several who answered, those count who found an answer, unless the first one found none."""
    kept = tuple((words, start) for words, start in answers if words != NO_ANSWER)
    if original == NO_ANSWER or not kept:
        return Entry(title, None, LACKS)
    return Entry(title, Question(question, context.removesuffix(NO_ANSWER).rstrip(), kept))


def _read_json(file: Path) -> Iterator[Entry]:
    try:
        for article in json.loads(read_text(file))["data"]:
            for paragraph in article["paragraphs"]:
                for turn in paragraph["qas"]:
                    answers = [(answer["text"], answer["answer_start"]) for answer in turn["answers"]]
                    asked = (turn["question"], paragraph["context"], turn["orig_answer"]["text"])
                    yield _turn(article["title"], *asked, answers)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: not of the form of QuAC ({type(error).__name__}: {error})") from None
