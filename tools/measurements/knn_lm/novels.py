"""Reads English novels in the form of WikiText, and in the vocabulary of a run trained on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.corpora import novels
from memjax.data.documents import ArrayDocuments

_QUOTES = str.maketrans({"\ufeff": None, "_": None, "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
_SPACED = (
    (re.compile(r"(?<=\d)([,.])(?=\d)"), r" @\1@ "),
    (re.compile(r"(?<=\w)-(?=\w)"), " @-@ "),
    (re.compile(r"(?<!\S)-(?!\S)|-{2,}|\u2014"), " \u2014 "),
    (re.compile(r"\.{2,}|\u2026"), " ... "),
    (re.compile(r'([,;:!?()\[\]"*&/$%\u2013\u00a3])(?!@)'), r" \1 "),
    (re.compile(r"(?<=\w)'(?=\w)"), " '"),
    (re.compile(r"(?<!\S)'(?=\w)|(?<=\S)'(?!\S)"), " ' "),
)
_CONTRACTED = re.compile(r" ' (s|t|re|m|ve|ll|d)(?!\S)")
_LAST_PERIOD = re.compile(r"(?<!\S)(\S*[^\s.])\.(?!\S)")


def as_wikitext(text: str, words: Container[str]) -> str:
    """Brings a text into the form of WikiText: a line for each paragraph, a space before every mark.

    `can't` becomes `can 't`, `two-fold` `two @-@ fold`, `1,000` `1 @,@ 000`; dashes become one sign between spaces,
    quotation marks straight ones, and marks of emphasis go. A period stays on a word that the vocabulary has with it
    and that begins with a capital, such as `Mr.`. Letters keep their case.

    Args:
      text: Text of a book, a paragraph in each line.
      words: Words of the vocabulary.

    Example:
      >>> as_wikitext('"I can\\'t," said Mr. Toad-Hall.', {"Mr."})
      ' " I can \\'t , " said Mr. Toad @-@ Hall . \\n'
    """

    def last_period(match: re.Match[str]) -> str:
        whole = match[1] + "."
        return whole if whole[0].isupper() and whole in words else f"{match[1]} ."

    lines = []
    for line in text.translate(_QUOTES).splitlines():
        for pattern, spaced in _SPACED:
            line = pattern.sub(spaced, line)
        line = _LAST_PERIOD.sub(last_period, _CONTRACTED.sub(r" '\1", line))
        if line.strip():
            lines.append(" " + " ".join(line.split()) + " \n")
    return "".join(lines)


def make_documents(
    path: Path | str, split: str, tokenizer: Any, *, tokens: int = 0
) -> tuple[ArrayDocuments, list[str]]:
    """Reads the books of a split in the words of a run's vocabulary, and returns them with their names.

    Args:
      path: Path of the novels, see `memjax.data.corpora.novels`. Whole books are held out.
      split: 'train', 'validation' or 'test'.
      tokenizer: `WordTokenizer` of the run.
      tokens: Number of tokens of all books together, the same number from the beginning of each. The last book has the
        remaining tokens. 0 = whole books.
    """
    texts, words = novels(path, split=split), set(tokenizer.words)
    encode: Callable[[str], np.ndarray] = lambda text: tokenizer.encode(as_wikitext(text, words))
    if not tokens:
        return ArrayDocuments([encode(text) for text in texts]), list(texts.names)
    share = -(-tokens // len(texts))
    count = -(-tokens // share)
    # 16 characters a token are more than any beginning has.
    books = [encode(texts[i][: 16 * share])[: min(share, tokens - i * share)] for i in range(count)]
    return ArrayDocuments(books), list(texts.names[:count])


def authors(names: Iterable[str]) -> set[str]:
    """Returns the authors of books, which are the first parts of the books' names.

    Example:
      >>> authors(["Eliot_Adam_1859.txt", "Eliot_Felix_1866.txt"])
      {'Eliot'}
    """
    return {name.partition("_")[0] for name in names}
