"""The sorting task of the infinity-former: long documents after which their symbols must be listed by frequency.

Martins, Marinho, Martins 2022, "infinity-former: Infinite Memory Transformer", https://arxiv.org/abs/2109.00301. The
distribution of the symbols changes gradually along the document, so that the recent past alone is misleading.
"""

import hashlib
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.documents import FixedLengthDocuments
from memjax.data.sources import SPLITS, count_in_split

__all__ = ["SortingDocuments"]

IS_ANSWER = "is_answer"


class SortingDocuments(FixedLengthDocuments):
    """Synthetic documents of random symbols, followed by all symbols in the order of their frequency.

    Documents are generated when they are read. The same arguments give the same documents on every machine. A document
    consists of `length` symbols, a separator, and all symbols by falling count. Ties are ordered by first occurrence.
    Symbols that did not occur come last, in ascending order.

    Symbol j of n (from 0) is drawn from `(1 - r) p_0 + r p_1` with `r = (j + 1) / n`. Both distributions are random
    integers from 1 to 9, normalised. `annotate` returns `is_answer` (bool per token) and `weights` (1 for answers,
    otherwise 0).

    Ids: 0 pad, 1 begin, 2 separator, then the symbols.

    Example:
      >>> documents = SortingDocuments(10, length=30, num_symbols=4)
      >>> tokens, notes = documents[0], documents.annotate(0)
      >>> len(tokens), int(notes["is_answer"].sum()), documents.vocab_size
      (35, 4, 7)
    """

    begin_id = 1
    pad_id = 0
    separator_id = 2

    def __init__(self, num_documents: int, *, length: int = 4000, num_symbols: int = 20, seed: int = 0):
        """Sets the sizes of the task.

        Args:
          num_documents: Number of documents.
          length: Number of symbols of a document to sort, 4,000 to 16,000 in the paper.
          num_symbols: Number of different symbols.
          seed: Seed of the documents. Splits have different seeds.

        Raises:
          ValueError: A size that is too small.
        """
        for name, value in {"num_documents": num_documents, "length": length, "num_symbols": num_symbols}.items():
            if value < 1:
                raise ValueError(f"{name}: given {value}, allowed: at least 1")
        super().__init__(num_documents, length + 1 + num_symbols)
        self._num_sorted, self._num_symbols, self._seed = length, num_symbols, seed
        self.fingerprint = "sorting-" + hashlib.sha256(f"{length}/{num_symbols}/{seed}".encode()).hexdigest()[:16]

    @property
    def vocab_size(self) -> int:
        """Number of ids of the vocabulary."""
        return 3 + self._num_symbols

    def __getitem__(self, index: int, /) -> np.ndarray:
        random = self._random(f"sorting/{self._seed}", index)
        weights = random.randint(1, 10, (2, self._num_symbols)).astype(np.float64)
        early, late = weights / weights.sum(axis=1, keepdims=True)
        drift = (np.arange(1, self._num_sorted + 1) / self._num_sorted)[:, None]
        until = np.cumsum((1 - drift) * early + drift * late, axis=1)
        symbols = (random.random_sample(self._num_sorted)[:, None] * until[:, -1:] >= until[:, :-1]).sum(axis=1)
        answers = sort_by_count(symbols, self._num_symbols)
        return np.concatenate([3 + symbols, [self.separator_id], 3 + answers]).astype(np.int32)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Returns `is_answer` (bool per token) and `weights` (1 for answers, otherwise 0) of a document by name."""
        is_answer = np.arange(self.num_tokens(index)) > self._num_sorted
        return {IS_ANSWER: is_answer, "weights": is_answer.astype(np.float32)}


def sort_by_count(symbols: np.ndarray, num_symbols: int) -> np.ndarray:
    """Returns all symbols `0 ... num_symbols - 1` as an array, by falling count in `symbols`, ties by first occurrence,
    missing symbols last.

    Example:
      >>> sort_by_count(np.array([2, 0, 0, 3, 2]), 5).tolist()
      [2, 0, 3, 1, 4]
    """
    counts = np.bincount(symbols, minlength=num_symbols)
    first = np.full(num_symbols, len(symbols))
    np.minimum.at(first, symbols, np.arange(len(symbols)))
    return np.lexsort((np.arange(num_symbols), first, -counts))


def open_sorting(data: configs.Data, split: str) -> SortingDocuments:
    """Generates one split of `SortingDocuments` with the sizes in `data.source`. Held-out splits have a tenth as many
    documents.
    """
    source: Any = data.source
    count, seed = count_in_split(source.num_documents, split, 10), SPLITS.index(split)
    return SortingDocuments(count, length=source.length, num_symbols=source.num_symbols, seed=seed)
