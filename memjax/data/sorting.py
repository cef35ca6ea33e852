"""Sorting: long documents whose symbols are to be named at the end, by how often they occurred.

Martins, Marinho, Martins 2022, "infinity-former: Infinite Memory Transformer", https://arxiv.org/abs/2109.00301. The
distribution of the symbols drifts along the document from one to another, so that the recent past alone is misleading.
"""

import hashlib

import numpy as np

from memjax.data.documents import EvenDocuments

__all__ = ["Sorting"]

IS_ANSWER = "is_answer"


class Sorting(EvenDocuments):
    """Documents of the sorting task, drawn when they are asked for; the same for the same arguments everywhere.

    A document is `length` symbols, a separator, and all symbols by falling count: ties by first occurrence, symbols
    that did not occur at the end in ascending order. Symbol j of n is drawn from `(1 - r) p_0 + r p_1` with
    `r = (j + 1) / n`; both distributions are whole numbers from 1 to 9, normalised. `annotate` gives `is_answer` (bool
    per token) and `weights` (1 on answers, 0 elsewhere).

    Ids: 0 pad, 1 begin, 2 separator, then the symbols.

    Example:
      >>> documents = Sorting(10, length=30, num_symbols=4)
      >>> tokens, notes = documents[0], documents.annotate(0)
      >>> len(tokens), int(notes["is_answer"].sum()), documents.vocab_size
      (35, 4, 7)
    """

    begin_id = 1
    pad_id = 0
    separator_id = 2

    def __init__(self, num_documents: int, *, length: int = 4000, num_symbols: int = 20, seed: int = 0):
        """Sets the task up.

        Args:
          num_documents: how many; another `seed` gives other documents (one per split).
          length: symbols to sort; 4,000 to 16,000 in the paper.
          num_symbols: different symbols.
          seed: of the documents.

        Raises:
          ValueError: a size that is too small.
        """
        for name, value in {"num_documents": num_documents, "length": length, "num_symbols": num_symbols}.items():
            if value < 1:
                raise ValueError(f"{name}: given {value}, allowed: at least 1")
        super().__init__(num_documents, length + 1 + num_symbols)
        self._num_drawn, self._num_symbols, self._seed = length, num_symbols, seed
        self.fingerprint = "sorting-" + hashlib.sha256(f"{length}/{num_symbols}/{seed}".encode()).hexdigest()[:16]

    @property
    def vocab_size(self) -> int:
        """Ids in use."""
        return 3 + self._num_symbols

    def __getitem__(self, index: int, /) -> np.ndarray:
        random = self._random(f"sorting/{self._seed}", index)
        weights = random.randint(1, 10, (2, self._num_symbols)).astype(np.float64)
        early, late = weights / weights.sum(axis=1, keepdims=True)
        drift = (np.arange(1, self._num_drawn + 1) / self._num_drawn)[:, None]
        until = np.cumsum((1 - drift) * early + drift * late, axis=1)
        drawn = (random.random_sample(self._num_drawn)[:, None] * until[:, -1:] >= until[:, :-1]).sum(axis=1)
        answers = sort_by_count(drawn, self._num_symbols)
        return np.concatenate([3 + drawn, [self.separator_id], 3 + answers]).astype(np.int32)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Which tokens are answers, and that only they are scored."""
        is_answer = np.arange(self.num_tokens(index)) > self._num_drawn
        return {IS_ANSWER: is_answer, "weights": is_answer.astype(np.float32)}


def sort_by_count(symbols: np.ndarray, num_symbols: int) -> np.ndarray:
    """All symbols from 0 to `num_symbols` by falling count, ties by first occurrence, those that are missing last.

    Example:
      >>> sort_by_count(np.array([2, 0, 0, 3, 2]), 5).tolist()
      [2, 0, 3, 1, 4]
    """
    counts = np.bincount(symbols, minlength=num_symbols)
    first = np.full(num_symbols, len(symbols))
    np.minimum.at(first, symbols, np.arange(len(symbols)))
    return np.lexsort((np.arange(num_symbols), first, -counts))
