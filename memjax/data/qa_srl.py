"""Reads QA-SRL: questions about who did what to whom in a sentence, whose answers are spans of the sentence.

Roit, Klein, Stepanov, Mamou, Michael, Stanovsky, Zettlemoyer and Dagan, "Controlled Crowdsourcing for High-Quality
QA-SRL Annotation", ACL 2020, https://arxiv.org/abs/1911.03243. This is not QA-SRL 1.0 (He et al. 2015), which decaNLP
and LAMOL use.
"""

from collections.abc import Iterator
from pathlib import Path

from memjax import config as configs
from memjax.data.paths import read_text
from memjax.data.questions import Question, QuestionRecord, QuestionSplit, collect_questions, find_required_file
from memjax.data.reader_errors import reading
from memjax.data.records import read_table
from memjax.data.sources import SPLITS, assign_split

__all__ = ["parse_qa_srl"]

BETWEEN = "~!~"
"""Separator between several answers of a question."""
LACKS = "have no answer in their sentence"


def parse_qa_srl(source: configs.QaSrl, split: str) -> QuestionSplit:
    """Reads one split of QA-SRL as a `QuestionSplit`, from `gold/wikinews.dev.gold.csv`,
    `sentences/wikinews.dev.full.csv` and so on in the folder `source.path`.

    The files `test` are the test split. The files `dev` are divided into training and validation by a hash of the name
    of each sentence.

    Args:
      source: Settings of the source.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: An unknown split, or a file that is missing or of another form.
    """
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    part, validation = "test" if split == "test" else "dev", source.validation_percent / 100
    rows = (
        find_required_file(source.path, f"gold/{source.domain}.{part}.gold.csv"),
        find_required_file(source.path, f"sentences/{source.domain}.{part}.full.csv"),
    )
    place = lambda entry: "test" if part == "test" else assign_split(entry.group, validation=validation, test=0)
    return collect_questions(entry for entry in _entries(*rows) if place(entry) == split)


def _entries(gold: Path, sentences: Path) -> Iterator[QuestionRecord]:
    """Reads the questions of a file of annotations about the sentences of another file."""
    words = {name: tokens.split(" ") for name, tokens in _columns(sentences, "qasrl_id", "tokens")}
    for name, question, places in _columns(gold, "qasrl_id", "question", "answer_range"):
        if name not in words or not places.strip():
            yield QuestionRecord(name, None, LACKS)
            continue
        answers = tuple(_answer(words[name], place, gold) for place in places.split(BETWEEN))
        yield QuestionRecord(name, Question(question, " ".join(words[name]), answers))


def _answer(words: list[str], place: str, file: Path) -> tuple[str, int]:
    """Returns the answer at a range of words such as `0:2`, and the position of its first character in the sentence."""
    with reading(f"{file}, answer_range {place!r}", "tokens of the sentence, as 0:2"):
        begin, end = map(int, place.split(":"))
        if not 0 <= begin < end <= len(words):
            raise ValueError(f"outside of {len(words)} tokens")
    return " ".join(words[begin:end]), sum(len(word) + 1 for word in words[:begin])


def _columns(file: Path, *names: str) -> Iterator[tuple[str, ...]]:
    """Reads some columns of a CSV file, row by row."""
    table = read_table(read_text(file), file, delimiter=",", has_quotes=True)
    header: list[str] = next((record.value for record in table), [])
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(f"{file}: no column {missing[0]!r}, allowed: {', '.join(header)}")
    columns = [header.index(name) for name in names]
    for record in table:
        if len(record.value) <= max(columns):
            raise ValueError(f"{record.place}: given a row that ends early, allowed: all of {', '.join(names)}")
        yield tuple(record.value[column] for column in columns)
