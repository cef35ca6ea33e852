"""TriviaQA: questions of quizzes, with pages that name their answers.

Joshi, Choi, Weld and Zettlemoyer, "TriviaQA: A Large Scale Distantly Supervised Challenge Dataset for Reading
Comprehension", ACL 2017, https://arxiv.org/abs/1705.03551.

Nobody has said where on a page the answer stands: it is taken to be where one of its names stands first (distant
supervision). A question is read with the first of its pages that has one.

Differs from the authors' conversion: names are matched as whole words in the page as it is, where theirs takes the
first name of a list that occurs anywhere in the tokenised page; a question is read with one page, where theirs gives
every pair; and what no page names is left out of the held-out splits too.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memjax.data.paths import find_packed, read_text
from memjax.data.questions import Entry, Question, QuestionSplit, gather, split_questions
from memjax.data.tfds import tfds_examples

__all__ = ["first_match", "tfds_trivia_qa_questions", "trivia_qa_questions"]

PAGES = {"web": "SearchResults", "wikipedia": "EntityPages"}
"""set -> the list of a question that has its pages"""
LACKS = "have no name of the answer on their pages"


def trivia_qa_questions(path: str, *, pages: str, max_words: int, **how: Any) -> QuestionSplit:
    """One split from the folder of `triviaqa-rc`, with `qa/web-train.json`, `evidence/web` and so on; `test` is dev.

    Args:
      path: the folder.
      pages: of `PAGES`.
      max_words: of a page; 0 = all.
      **how: `split`, `validation` and `test` of `split_questions`; groups are the numbers of the questions.

    Raises:
      ValueError: as `split_questions`, or a file of another form.
    """
    evidence = Path(path) / "evidence" / pages
    if not evidence.is_dir():
        raise ValueError(f"data.source.path: {path} has no evidence/{pages}, allowed: the folder of triviaqa-rc")

    def read(file: Path) -> Iterator[Entry]:
        try:
            for one in json.loads(read_text(file))["Data"]:
                texts = (_page(evidence, page["Filename"]) for page in one.get(PAGES[pages], ()) if "Filename" in page)
                names = (one["Answer"]["Value"], *one["Answer"]["Aliases"])
                yield _entry(one["QuestionId"], one["Question"], names, texts, max_words)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file}: not of the form of TriviaQA ({type(error).__name__}: {error})") from None

    return split_questions(path, (f"qa/{pages}-train.json", f"qa/{pages}-dev.json"), read, **how)


def tfds_trivia_qa_questions(*, pages: str, max_words: int, split: str, data_dir: str) -> QuestionSplit:
    """The same from the prepared builder `trivia_qa/rc` of TensorFlow Datasets.

    The builder has joined the two sets: questions with pages of a search are those of the web.
    """
    text = lambda value: value.decode("utf-8")

    def entries() -> Iterator[Entry]:
        part = "train" if split == "train" else "validation"
        for one in tfds_examples("trivia_qa/rc", split=part, data_dir=data_dir or None):
            searched = one["search_results"]["search_context"]
            if bool(len(searched)) != (pages == "web"):
                continue
            texts = map(text, searched if pages == "web" else one["entity_pages"]["wiki_context"])
            names = (text(one["answer"]["value"]), *map(text, one["answer"]["aliases"]))
            yield _entry("", text(one["question"]), names, texts, max_words)

    return gather(entries())


def first_match(names: Iterable[str], text: str) -> tuple[str, int] | None:
    """Where one of some names stands first in a text, as whole words and in any case; the longest of those there.

    Example:
      >>> first_match(["art", "Paris", "Paris, France"], "A party in PARIS, France")
      ('PARIS, France', 11)
    """
    found = _pattern(tuple(sorted({name.strip() for name in names} - {""}, key=lambda name: (-len(name), name))))
    match = found.search(text) if found else None
    return (match[0], match.start()) if match else None


@functools.lru_cache(maxsize=1)  # of the pages of one question
def _pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", re.IGNORECASE) if names else None


def _entry(group: str, question: str, names: Iterable[str], texts: Iterable[str | None], max_words: int) -> Entry:
    names = tuple(names)
    for text in texts:
        page = _first_words(text or "", max_words)
        if match := first_match(names, page):
            others = tuple((name, -1) for name in dict.fromkeys(names) if name != match[0])
            return Entry(group, Question(question, page, (match, *others)))
    return Entry(group, None, LACKS)


def _first_words(text: str, count: int) -> str:
    """The beginning of a text, as it is."""
    found = re.match(rf"(?:\s*\S+){{0,{count}}}", text) if count else None
    return found[0] if found else text


def _page(folder: Path, name: str) -> str | None:
    """A page; None where it is not in the folder, as some are not."""
    file = find_packed(folder, name)
    return None if file is None else read_text(file, allow_empty=True)
