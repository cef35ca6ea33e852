"""Sentence pairs: targets are the documents of a run, their sources stand beside them.

A text of one language is a `Texts` as any other; both sides are tokenised by one tokenizer and end with its end id.
"""

import itertools
import os
import string
from collections.abc import Iterator
from typing import Any

import numpy as np

from memjax.data.documents import Documents
from memjax.data.paths import find_packed, packed_names, read_text
from memjax.data.sources import SPLITS, Texts, only_texts
from memjax.data.tokenizers import Tokenizer


class SentencePairs(Documents):
    """Targets as documents, with their source as context of every segment.

    `context` gives `source`, int32 `[max_length]` ids padded with 0, and `source_mask`, bool of the same shape.

    Attributes:
      kept: which pairs of the two sides these are; longer ones are left out.
      fingerprint: of both sides.

    Example:
      >>> from memjax.data.documents import ArrayDocuments
      >>> pairs = SentencePairs(ArrayDocuments([[5, 6, 2], [7, 2]]), ArrayDocuments([[8, 2], [9, 9, 9, 9, 2]]), 4)
      >>> len(pairs), pairs[0].tolist(), pairs.context(0)["source"].tolist()
      (1, [8, 2], [5, 6, 2, 0])
    """

    def __init__(self, source: Documents, target: Documents, max_length: int):
        """Pairs entry i of `source` with entry i of `target`; both end with the end token.

        Raises:
          ValueError: sides of different sizes, or no pair that is short enough.
        """
        if len(source) != len(target):
            raise ValueError(f"sentence pairs: given {len(source)} sources and {len(target)} targets, allowed: as many")
        self.max_length, self._source, self._target = max_length, source, target
        lengths = [np.array([side.num_tokens(i) for i in range(len(side))]) for side in (source, target)]
        self.kept = np.flatnonzero(np.maximum(*lengths) <= max_length)
        if not len(self.kept):
            raise ValueError(
                f"max_length: given {max_length}, no pair is that short; allowed: {max(map(min, lengths))}"
            )
        parts = [str(side.fingerprint) for side in (source, target)]
        self.fingerprint = "/".join([*parts, str(max_length)])

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self._target[int(self.kept[index])]

    def num_tokens(self, index: int, /) -> int:
        return self._target.num_tokens(int(self.kept[index]))

    def num_bytes(self, index: int, /) -> int:
        return self._target.num_bytes(int(self.kept[index]))

    def source(self, index: int, /) -> np.ndarray:
        """int32 ids of the sentence to translate."""
        return self._source[int(self.kept[index])]

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        ids = self.source(index)
        padded = np.zeros(self.max_length, np.int32)
        padded[: len(ids)] = ids
        return {"source": padded, "source_mask": np.arange(self.max_length) < len(ids)}


class EndingTokenizer:
    """A tokenizer that writes its end id after every text."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.fingerprint = f"{tokenizer.fingerprint}-end"
        self.vocab_size, self.lossless = tokenizer.vocab_size, tokenizer.lossless
        self.begin_id, self.end_id, self.pad_id = tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id

    @property
    def base(self) -> Any:
        return self._tokenizer.base

    def files(self) -> dict[str, bytes]:
        return self._tokenizer.files()

    def decode(self, ids: Any) -> str:
        return self._tokenizer.decode(ids)

    def encode(self, text: str) -> np.ndarray:
        return np.append(self._tokenizer.encode(text), self._tokenizer.end_id).astype(np.int32)

    def token_bytes(self, ids: Any) -> np.ndarray:
        return self._tokenizer.token_bytes(ids)


class BothSides:
    """The texts of both languages, one side after the other, to train one tokenizer on."""

    def __init__(self, source: Any, target: Any):
        self._sides = (source, target)
        self.fingerprint = f"{source.fingerprint}-{target.fingerprint}"

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(map(only_texts, self._sides))


def parallel_texts(path: str | os.PathLike[str], stem: str, language: str) -> Texts:
    """One side of a split: the lines of the file `STEM.LANGUAGE` (also `.xz`, `.gz`).

    Raises:
      ValueError: no such file, or it is not UTF-8.
    """
    file = find_packed(path, f"{stem}.{language}")
    if file is None:
        names = packed_names(f"{stem}.{language}")
        raise ValueError(f"data.source.path: {path} has none of {', '.join(names)}; give the folder of the pairs")
    lines = read_text(file).removesuffix("\n").split("\n")
    return Texts.from_mapping({f"{stem}:{number}": line.strip() for number, line in enumerate(lines)})


def number_words(count: int, split: str, language: str) -> Texts:
    """Numbers below a million in words, `language` 'en' or 'de'; the splits share none.

    Example:
      >>> print(number_words(2, "test", "en")[0], number_words(2, "test", "de")[0], sep="\\n")
      nine hundred forty-seven thousand three hundred fifty-three
      neunhundertsiebenundvierzigtausenddreihundertdreiundfünfzig
    """
    spell = {"en": _english, "de": _german}[language]
    first = SPLITS.index(split)
    # A step that shares no factor with a million visits every number once.
    numbers = [(982_451 + 3 * 982_451 * i + first * 982_451) % 1_000_000 for i in range(count)]
    return Texts.from_mapping({f"{split}:{i}": spell(number) for i, number in enumerate(numbers)})


def random_letters(count: int, length: int, num_letters: int, split: str) -> Texts:
    """Texts of random letters, the first `num_letters` of the alphabet; each split has its own.

    Example:
      >>> len(random_letters(2, 5, 3, "test")[0])
      5
    """
    random = np.random.RandomState(SPLITS.index(split))  # its stream is frozen
    letters = np.array(list(string.ascii_lowercase[:num_letters]))
    rows = letters[random.randint(num_letters, size=(count, length))]
    return Texts.from_mapping({f"{split}:{i}": "".join(row) for i, row in enumerate(rows)})


def _english(number: int) -> str:
    ones = (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen"
    ).split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    if number >= 1000:
        head, rest = divmod(number, 1000)
        return f"{_english(head)} thousand" + (f" {_english(rest)}" if rest else "")
    if number >= 100:
        head, rest = divmod(number, 100)
        return f"{ones[head]} hundred" + (f" {_english(rest)}" if rest else "")
    if number >= 20:
        return tens[number // 10 - 2] + (f"-{ones[number % 10]}" if number % 10 else "")
    return ones[number]


def _german(number: int) -> str:
    ones = (
        "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
        "siebzehn achtzehn neunzehn"
    ).split()
    tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
    before = lambda head: _german(head).removesuffix("s") if head % 100 == 1 else _german(head)
    if number >= 1000:
        head, rest = divmod(number, 1000)
        return f"{before(head)}tausend" + (_german(rest) if rest else "")
    if number >= 100:
        head, rest = divmod(number, 100)
        return f"{before(head)}hundert" + (_german(rest) if rest else "")
    if number >= 20:
        one = number % 10
        return (f"{before(one)}und" if one else "") + tens[number // 10 - 2]
    return ones[number]
