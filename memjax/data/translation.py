"""Sentence pairs for translation: target sentences are the documents of a run, and source sentences their context.

The texts of each language are `Texts`. Both languages are tokenised by one tokenizer, and sentences end with its end
id.
"""

import itertools
import os
import string
from collections.abc import Iterator
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.documents import Documents
from memjax.data.paths import find_packed, packed_names, read_text
from memjax.data.sources import SPLITS, Texts, count_in_split, texts_without_names
from memjax.data.tfds import TfdsPairs, tfds_texts
from memjax.data.tokenizers import Tokenizer


class SentencePairs(Documents):
    """Documents that are target sentences, with their source sentence as context of every segment. Pairs with a
    sentence longer than `max_length` are left out.

    `context` returns `source`, int32 ids `[max_length]` padded with 0, and `source_mask`, bool `[max_length]`.

    Attributes:
      kept: Numbers of the pairs that are short enough, int `[documents]`. Longer pairs are left out.
      fingerprint: Hash of the sentences of both languages, and the largest length.

    Example:
      >>> from memjax.data.documents import ArrayDocuments
      >>> pairs = SentencePairs(ArrayDocuments([[5, 6, 2], [7, 2]]), ArrayDocuments([[8, 2], [9, 9, 9, 9, 2]]), 4)
      >>> len(pairs), pairs[0].tolist(), pairs.context(0)["source"].tolist()
      (1, [8, 2], [5, 6, 2, 0])
    """

    def __init__(self, source: Documents, target: Documents, max_length: int):
        """Pairs sentence i of `source` with sentence i of `target`.

        Args:
          source: Source sentences, which end with the end token.
          target: Target sentences, which end with the end token.
          max_length: Largest number of tokens of a sentence. Pairs with a longer sentence are left out.

        Raises:
          ValueError: Different numbers of sentences, or no pair that is short enough.
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
        """Returns the int32 ids of the source sentence of a pair, without padding."""
        return self._source[int(self.kept[index])]

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        ids = self.source(index)
        padded = np.zeros(self.max_length, np.int32)
        padded[: len(ids)] = ids
        return {"source": padded, "source_mask": np.arange(self.max_length) < len(ids)}


class TokenizerWithEndToken:
    """A tokenizer that appends the end id to the ids of every text."""

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


class BilingualTexts:
    """An iterable of the texts of two languages, one language after the other, for the training of one tokenizer."""

    def __init__(self, source: Any, target: Any):
        self._sides = (source, target)
        self.fingerprint = f"{source.fingerprint}-{target.fingerprint}"

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(map(texts_without_names, self._sides))


def parallel_texts(path: str | os.PathLike[str], stem: str, language: str) -> Texts:
    """Reads the sentences of one language of a parallel corpus as `Texts`: the lines of the file `STEM.LANGUAGE` in a
    folder, such as `train.en`.

    Args:
      path: Folder of the files (also `.xz`, `.gz`).
      stem: Name of the files without the language, such as 'train'.
      language: Ending of the file, such as 'en'.

    Raises:
      ValueError: No such file, or it is not UTF-8.
    """
    file = find_packed(path, f"{stem}.{language}")
    if file is None:
        names = packed_names(f"{stem}.{language}")
        raise ValueError(f"data.source.path: {path} has none of {', '.join(names)}; give the folder of the pairs")
    lines = read_text(file).removesuffix("\n").split("\n")
    return Texts.from_mapping({f"{stem}:{number}": line.strip() for number, line in enumerate(lines)})


def number_words(count: int, split: str, language: str) -> Texts:
    """Generates `count` numbers below a million in words, in the language 'en' or 'de', as `Texts`: one side of a
    synthetic translation task. Splits share no number.

    Args:
      count: Number of texts.
      split: 'train', 'validation' or 'test'.
      language: 'en' or 'de'.

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
    """Generates `count` texts of `length` random letters, the first `num_letters` of the alphabet, as `Texts` for a
    synthetic copy task. Each split has its own texts.

    Args:
      count: Number of texts.
      length: Number of letters of a text.
      num_letters: Number of different letters, the first ones of the alphabet.
      split: 'train', 'validation' or 'test'.

    Example:
      >>> len(random_letters(2, 5, 3, "test")[0])
      5
    """
    random = np.random.RandomState(SPLITS.index(split))  # its stream is frozen
    letters = np.array(list(string.ascii_lowercase[:num_letters]))
    rows = letters[random.randint(num_letters, size=(count, length))]
    return Texts.from_mapping({f"{split}:{i}": "".join(row) for i, row in enumerate(rows)})


def open_parallel_text(data: configs.Data, split: str) -> tuple[Texts, Texts]:
    """Returns both languages of one split of a parallel corpus, source and target, each as `Texts`."""
    source: Any = data.source
    stem = {"train": source.train, "validation": source.validation, "test": source.test}[split]
    read = lambda language: parallel_texts(source.path, stem, language)
    return read(source.source_language), read(source.target_language)


def open_tfds_translation(data: configs.Data, split: str) -> tuple[Texts | TfdsPairs, Texts | TfdsPairs]:
    """Returns both languages of one split of a translation builder of TFDS, source and target, each as texts of
    `memjax.data.tfds.tfds_texts`.
    """
    source: Any = data.source
    read = lambda language: tfds_texts(source.name, split=split, field=language, data_dir=source.data_dir or None)
    return read(source.source_language), read(source.target_language)


def open_number_words(data: configs.Data, split: str) -> tuple[Texts, Texts]:
    """Generates one split of numbers in words as two aligned `Texts`, English (source) and German (target). Splits
    share no number.
    """
    source: Any = data.source
    count = count_in_split(source.num_documents, split)
    return number_words(count, split, "en"), number_words(count, split, "de")


def open_copied_letters(data: configs.Data, split: str) -> tuple[Texts, Texts]:
    """Generates one split of texts of random letters, and returns these `Texts` twice, as source and target of a copy
    task. Each split has its own texts.
    """
    source: Any = data.source
    texts = random_letters(count_in_split(source.num_documents, split), source.length, source.num_letters, split)
    return texts, texts


def _english(number: int) -> str:
    """Returns a number below a million in English words."""
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
    """Returns a number below a million in German words."""
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
        ones_digit = number % 10
        return (f"{before(ones_digit)}und" if ones_digit else "") + tens[number // 10 - 2]
    return ones[number]
