"""Reads word vectors from text files like those of GloVe, which have a word and its numbers in every line.

Pennington, Socher and Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014,
https://aclanthology.org/D14-1162.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from memjax import config as configs
from memjax.data.paths import read_text
from memjax.data.reader_errors import reading
from memjax.data.tokenizers import WordTokenizer

__all__ = ["WordVectors", "read_word_vectors", "embedding_table"]

SYMBOLS = ("<eos>", "<unk>", "")
"""Entries of a file that are not words. They are skipped because tokenizers have such symbols of their own."""


class WordVectors(NamedTuple):
    """Words, and their vectors as the rows of an array.

    Attributes:
      words: Different words, in the order of their file.
      values: Vectors of the words, float32 `[words, dim]`.
    """

    words: tuple[str, ...]
    values: np.ndarray


def read_word_vectors(path: str | Path, *, num_words: int = 0) -> WordVectors:
    """Reads the first `num_words` words of a file of word vectors with their vectors, 0 for all. If a word occurs
    twice, its first vector counts.

    Args:
      path: Path of the file (also `.xz`, `.gz`).
      num_words: Number of words to read, the first ones of the file. 0 for all.

    Raises:
      ValueError: No such file, a line with more or fewer numbers than the first, or a line with other text than
        numbers.
    """
    file = Path(path).expanduser()
    if not str(path) or not file.is_file():
        raise ValueError(f"data.tokenizer.path: given {str(path)!r}, allowed: a file of word vectors")
    return _read(str(file), file.stat().st_mtime_ns, num_words)


def embedding_table(vectors: WordVectors, words: Sequence[str]) -> Float[np.ndarray, "words dim"]:
    """Returns an embedding table for a list of words, float32 `[words, dim]`. Words without a vector get the mean of
    all vectors.

    Example:
      >>> embedding_table(WordVectors(("a", "b"), np.array([[1.0], [3.0]], np.float32)), ["b", "?"]).tolist()
      [[3.0], [2.0]]
    """
    rows = {word: row for row, word in enumerate(vectors.words)}
    known = np.array([rows.get(word, -1) for word in words])
    mean = vectors.values.mean(axis=0, keepdims=True)
    return np.where((known >= 0)[:, None], vectors.values[known], mean).astype(np.float32)


@functools.lru_cache(maxsize=1)  # the tasks of one run read the same file
def _read(path: str, changed: int, num_words: int) -> WordVectors:
    """Reads a file. `changed` is its time of change, so that a cached result of an older file is not used."""
    del changed  # only tells a changed file from the one that is kept
    words: dict[str, int] = {}
    values: list[np.ndarray] = []
    width = 0
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        word, *numbers = line.rstrip().split(" ")
        if number == 1 and len(numbers) == 1:  # word2vec's header: words and width
            continue
        width = width or len(numbers)
        if not width or len(numbers) != width:
            allowed = f"{width}, as the first line has" if width else "a word and its numbers"
            raise ValueError(f"{path}:{number}: given {len(numbers)} numbers, allowed: {allowed}")
        if word in words or word in SYMBOLS:
            continue
        with reading(f"{path}:{number}", "a word and its numbers"):
            values.append(np.array(numbers, np.float32))
        words[word] = len(words)
        if len(words) == num_words:
            break
    if not values or not width:
        raise ValueError(f"{path}: no word with numbers, allowed: one in every line")
    stacked = np.stack(values)
    if not np.isfinite(stacked).all():
        raise ValueError(f"{path}: a number that is not finite, allowed: finite ones")
    return WordVectors(tuple(words), stacked)


def make_vector_word_tokenizer(settings: configs.VectorWords, train: Any) -> WordTokenizer:
    """Returns a `WordTokenizer` of the words of the file of word vectors at `settings.path`. `train`, which
    `memjax.data.opening.make_tokenizer` passes, is not used.
    """
    del train
    return WordTokenizer(read_word_vectors(settings.path, num_words=settings.num_words).words)
