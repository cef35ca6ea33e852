"""Reads TriviaQA: quiz questions, with web or Wikipedia pages that contain the name of the answer.

Joshi, Choi, Weld and Zettlemoyer, "TriviaQA: A Large Scale Distantly Supervised Challenge Dataset for Reading
Comprehension", ACL 2017, https://arxiv.org/abs/1705.03551.

The data set does not say where on a page the answer is. It is assumed to be where one of its names occurs first
(distant supervision). A question is read with the first of its pages that contains a name.

Differences from the authors' conversion:

- Names are matched as whole words in the original page. The authors take the first name of their list that occurs
  anywhere in the tokenised page.
- A question is read with one page. The authors make an example of every pair of question and page.
- A question without a name on its pages is left out of all splits. The authors leave it out of the training split only.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from memjax import config as configs
from memjax.data.paths import find_packed, read_text
from memjax.data.questions import Question, QuestionRecord, QuestionSplit, collect_questions, split_questions
from memjax.data.reader_errors import check_inside, expect, reading
from memjax.data.records import parse_json_file
from memjax.data.tfds import tfds_examples
from memjax.settings.reading_rules import held_out_shares

__all__ = ["first_match", "parse_trivia_qa"]

PAGES = {"web": "SearchResults", "wikipedia": "EntityPages"}
"""Kind of pages -> field of a question with the list of its pages."""
LACKS = "have no name of the answer on their pages"


def parse_trivia_qa(source: configs.TriviaQa, split: str) -> QuestionSplit:
    """Reads one split of TriviaQA as a `QuestionSplit`, from the published folder `triviaqa-rc` at `source.path` or,
    without a folder, from TFDS.

    The development file is both the validation and the test split. A folder with only one of the files is split by a
    hash of the ids of its questions. The builder of TFDS has joined the questions for both kinds of pages. A question
    with pages of a web search is one for 'web'.

    Args:
      source: Settings of the source.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: An unknown split, a folder without the files, or a file of another form.
    """
    if not source.path:
        return collect_questions(_builder_entries(source, "train" if split == "train" else "validation"))
    pages, evidence = source.pages, Path(source.path) / "evidence" / source.pages
    if not evidence.is_dir():
        raise ValueError(f"data.source.path: {source.path} has no evidence/{pages}, allowed: the folder of triviaqa-rc")

    def read(file: Path) -> Iterator[QuestionRecord]:
        with reading(file, "the JSON of TriviaQA"):
            for row in parse_json_file(file)["Data"]:
                texts = (_page(evidence, page["Filename"]) for page in row.get(PAGES[pages], ()) if "Filename" in page)
                names = (row["Answer"]["Value"], *row["Answer"]["Aliases"])
                yield _entry(expect(row["QuestionId"], str), row["Question"], names, texts, source.max_words)

    files = (f"qa/{pages}-train.json", f"qa/{pages}-dev.json")
    return split_questions(source.path, files, read, split=split, **held_out_shares(source))


def _builder_entries(source: configs.TriviaQa, part: str) -> Iterator[QuestionRecord]:
    """Reads the questions of a split of the prepared builder `trivia_qa/rc` of TensorFlow Datasets."""
    text = lambda value: value.decode("utf-8")
    for example in tfds_examples("trivia_qa/rc", split=part, data_dir=source.data_dir or None):
        searched = example["search_results"]["search_context"]
        if bool(len(searched)) != (source.pages == "web"):
            continue
        texts = map(text, searched if source.pages == "web" else example["entity_pages"]["wiki_context"])
        names = (text(example["answer"]["value"]), *map(text, example["answer"]["aliases"]))
        yield _entry("", text(example["question"]), names, texts, source.max_words)


def first_match(names: Iterable[str], text: str) -> tuple[str, int] | None:
    """Finds the first place in a text where any of some names occurs, as whole words and ignoring case. Returns the
    name as written there and its position, or None.

    Returns:
      The longest name at that place, as written in the text, and its position. None if no name occurs.

    Example:
      >>> first_match(["art", "Paris", "Paris, France"], "A party in PARIS, France")
      ('PARIS, France', 11)
    """
    pattern = _pattern(tuple(sorted({name.strip() for name in names} - {""}, key=lambda name: (-len(name), name))))
    match = pattern.search(text) if pattern else None
    return (match[0], match.start()) if match else None


@functools.lru_cache(maxsize=1)  # all pages of one question have the same names
def _pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    """Returns a pattern that matches any of some names as whole words, the first names first. None without names."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", re.IGNORECASE) if names else None


def _entry(
    group: str, question: str, names: Iterable[str], texts: Iterable[str | None], max_words: int
) -> QuestionRecord:
    """Pairs a question with the first of its pages that contains a name of the answer."""
    names = tuple(names)
    for text in texts:
        page = _first_words(text or "", max_words)
        if match := first_match(names, page):
            other_names = tuple((name, -1) for name in dict.fromkeys(names) if name != match[0])
            return QuestionRecord(group, Question(question, page, (match, *other_names)))
    return QuestionRecord(group, None, LACKS)


def _first_words(text: str, count: int) -> str:
    """Returns the first `count` words of a text, with the original white space. 0 for the whole text."""
    match = re.match(rf"(?:\s*\S+){{0,{count}}}", text) if count else None
    return match[0] if match else text


def _page(folder: Path, name: str) -> str | None:
    """Reads a page. None if it is not in the folder, as some pages are not."""
    file = find_packed(folder, expect(name, str))
    return None if file is None else read_text(check_inside(file, folder), allow_empty=True)
