"""Interfaces of data sets with random access: tokenised documents, and labelled examples."""

import abc
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["ArrayDocuments", "DocumentRange", "Documents", "Example", "Examples", "FirstDocuments", "split_at_half"]


class Documents(abc.ABC):
    """Interface of tokenised documents with random access. `documents[i]` are the tokens of document i, an int32 array.

    A subclass defines `__len__`, `__getitem__` and `num_bytes`. Everything else has a default.

    Attributes:
      fingerprint: Hash of the tokens. A resumed run compares it to detect that its documents have changed. None if
        unknown.
      sliced: Whether `window` reads only the tokens that it returns, so that one document may be larger than memory. If
        False, an iterator keeps a whole document in memory while a row reads it.
      skipped: Number of documents of the source that were left out because they are too short.
      every_token: Whether every token is a target. True for documents.
    """

    fingerprint: str | None = None
    sliced = False
    skipped = 0
    every_token = True

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int, /) -> np.ndarray:
        """Returns the int32 tokens of one document, without a begin token."""

    @abc.abstractmethod
    def num_bytes(self, index: int, /) -> int:
        """Returns the number of UTF-8 bytes of the text of one document."""

    def num_tokens(self, index: int, /) -> int:
        """Returns the number of tokens of one document, if possible without reading it."""
        return len(self[index])

    def name(self, index: int, /) -> str:
        """Returns the name that the source gives the document. By default its number, as text."""
        return str(index)

    def token_label(self, token: int, /) -> str:
        """Returns a readable label for a token id, for documents whose tokens do not stand for text. By default the id,
        as text.
        """
        return str(token)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Returns annotations of one document: name -> array with one entry per token. By default none.

        All documents have the same names. The entries of an array are numbers, or arrays of one shape. They become
        `Batch.extras`, aligned to the targets, with 0 at padding. Evaluation reads the name `target_bytes` (UTF-8 bytes
        of each token). The name `weights` becomes `Batch.weights` instead (0 = not scored).
        """
        del index
        return {}

    def window(self, index: int, start: int, stop: int, /) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the int32 tokens `[start, stop)` of document `index`, and their annotations by name."""
        return self[index][start:stop], {name: array[start:stop] for name, array in self.annotate(index).items()}

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        """Returns data about a whole document, such as the source of a translation: name -> array. By default none.

        An array has the same shape for all documents. It becomes an entry of `Batch.extras` with every segment of the
        document, and is 0 for an empty row.
        """
        del index
        return {}


class ArrayDocuments(Documents):
    """Documents whose tokens are arrays in memory.

    Example:
      >>> documents = ArrayDocuments([[1, 2, 3], [4]])
      >>> len(documents), documents[0].dtype, documents.num_bytes(1)
      (2, dtype('int32'), 1)
    """

    def __init__(
        self,
        tokens: Sequence[Any],
        *,
        num_bytes: Sequence[int] | None = None,
        annotations: Sequence[Mapping[str, Any]] | None = None,
    ):
        """Converts the tokens to int32 arrays and hashes them.

        Args:
          tokens: Sequence of ids for each document.
          num_bytes: Number of bytes of each document. None for one byte per token.
          annotations: Mapping from name to one entry per token, for each document. None for no annotations.
        """
        self._tokens = [np.asarray(ids, np.int32) for ids in tokens]
        self._num_bytes = [len(ids) for ids in self._tokens] if num_bytes is None else list(num_bytes)
        self._annotations = [{}] * len(self._tokens) if annotations is None else list(annotations)
        digest = hashlib.sha256()
        for ids in self._tokens:
            digest.update(len(ids).to_bytes(8, "little") + ids.astype("<i4").tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self._tokens[index]

    def num_bytes(self, index: int, /) -> int:
        return self._num_bytes[index]

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return {name: np.asarray(values) for name, values in self._annotations[index].items()}


class DocumentRange(Documents):
    """A range of consecutive documents of another data set: those numbered `[begin, end)`.

    Example:
      >>> some = DocumentRange(ArrayDocuments([[1, 2], [3], [4, 5, 6]]), 1, 3)
      >>> len(some), some[1].tolist(), some.num_tokens(0)
      (2, [4, 5, 6], 1)
    """

    def __init__(self, documents: Documents, begin: int, end: int):
        """Stores the range and reads no document.

        Args:
          documents: All documents.
          begin: Number of the first document of the range.
          end: Number after the last document of the range.
        """
        self._documents, self._begin, self._size = documents, begin, end - begin
        self.sliced, self.every_token = documents.sliced, documents.every_token
        fingerprint, selection = documents.fingerprint, f"{begin}:{end}" if begin else f"first {end}"
        self.fingerprint = fingerprint and hashlib.sha256(f"{fingerprint}/{selection}".encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self._documents[self._begin + index]

    def num_bytes(self, index: int, /) -> int:
        return self._documents.num_bytes(self._begin + index)

    def num_tokens(self, index: int, /) -> int:
        return self._documents.num_tokens(self._begin + index)

    def name(self, index: int, /) -> str:
        return self._documents.name(self._begin + index)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return self._documents.annotate(self._begin + index)

    def window(self, index: int, start: int, stop: int, /) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self._documents.window(self._begin + index, start, stop)

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        return self._documents.context(self._begin + index)


class FirstDocuments(DocumentRange):
    """The fewest first documents of another data set that have at least `num_tokens` tokens together, or all of its
    documents.

    Example:
      >>> documents = FirstDocuments(ArrayDocuments([[1, 2, 3], [4], [5]]), num_tokens=4)
      >>> len(documents), documents.num_tokens(1)
      (2, 1)
    """

    def __init__(self, documents: Documents, *, num_tokens: int):
        """Selects the fewest first documents that have `num_tokens` tokens together, or all documents.

        Args:
          documents: All documents.
          num_tokens: Number of tokens to reach.
        """
        count = tokens = 0
        while tokens < num_tokens and count < len(documents):
            tokens += documents.num_tokens(count)
            count += 1
        super().__init__(documents, 0, count)


def split_at_half(documents: Documents, half: str) -> DocumentRange:
    """Returns half of a data set, `half` being 'first' or 'second'. The cut is between documents, before the one that
    contains the middle token, and each half has at least one document.

    Args:
      documents: All documents.
      half: 'first' or 'second'.

    Raises:
      ValueError: There is only one document.

    Example:
      >>> [len(split_at_half(ArrayDocuments([[1, 2], [3], [4, 5, 6]]), half)) for half in ("first", "second")]
      [2, 1]
    """
    count = len(documents)
    if count < 2:
        raise ValueError(f"data.train_half: given {half!r}, allowed: '' for a training split of {count} document")
    ends = np.cumsum([documents.num_tokens(index) for index in range(count)])
    middle = min(max(int(np.searchsorted(ends, ends[-1] / 2, side="right")), 1), count - 1)
    return DocumentRange(documents, *((0, middle) if half == "first" else (middle, count)))


class FixedLengthDocuments(Documents):
    """Base class of documents without text that all have the same length. It takes their number and the number of
    tokens of each.
    """

    def __init__(self, num_documents: int, length: int):
        """Sets the number of documents, and the number of tokens of each."""
        self._num_documents, self._length = num_documents, length

    def __len__(self) -> int:
        return self._num_documents

    def num_tokens(self, index: int, /) -> int:
        """Returns the common length of the documents."""
        del index
        return self._length

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of tokens: a token counts as one byte because these documents are no text."""
        return self.num_tokens(index)

    def _random(self, kind: str, index: int) -> np.random.RandomState:
        """Returns the random generator of one document, for documents that are generated when they are read.

        Raises:
          IndexError: There is no document `index`.
        """
        if not -self._num_documents <= index < self._num_documents:
            raise IndexError(f"document {index} of {self._num_documents}")
        return self._of_key(f"{kind}/{index % self._num_documents}")

    @staticmethod
    def _of_key(key: str) -> np.random.RandomState:
        """Returns the random generator that belongs to a key."""
        # RandomState, and not a Generator: its stream is frozen, so the documents are the same with every NumPy.
        return np.random.RandomState(int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little"))


@dataclasses.dataclass(frozen=True)
class Example:
    """One labelled example: the inputs that the model reads, and the targets that it must predict.

    Attributes:
      inputs: Token ids, int32 `[length]`, or numbers, float32 `[length]`.
      targets: Ids to predict, int32 `[targets]`. All examples of a data set have the same number of targets.
      weights: Weights of the targets in the loss, float32 `[targets]`. 0 for targets that are not scored.
      annotations: Mapping from name to one entry per input. Padding has 0.
      context: Mapping from name to an array that has the same shape in all examples. An empty row has 0.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    annotations: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    context: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Examples(abc.ABC):
    """Interface of labelled examples with random access. `example(i)` returns one of them as an `Example`.

    Attributes:
      fingerprint: Hash of the examples. A resumed run compares it to detect that its examples have changed. None if
        unknown.
      skipped: Number of examples of the source that were left out.
      groups: Number of the group of each example, int `[examples]`. The examples of a group are the choices of one
        question, and the choice of class 1 is right. None if every example is a question of its own.
      every_token: Whether every token is a target. False for examples, which have targets of their own.
    """

    fingerprint: str | None = None
    skipped = 0
    groups: np.ndarray | None = None
    every_token = False

    def token_label(self, token: int, /) -> str:
        """Returns a readable label for a token id, for examples whose tokens do not stand for text. By default the id,
        as text.
        """
        return str(token)

    def notes(self) -> list[str]:
        """Returns a list of lines about data that was cut off, left out or is unknown, to be shown before training. By
        default empty.
        """
        return []

    @property
    def without_states(self) -> "Examples":
        """The original examples, without data that a wrapper has added, such as states of frozen layers. Without a
        wrapper, these examples themselves.
        """
        return self

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def example(self, index: int, /, epoch: int = 0) -> Example:
        """Returns one `Example`. `epoch`, the number of times that it was read before, only matters if targets are
        drawn anew each time.

        Args:
          index: Number of the example.
          epoch: Number of times that the example was read before. It only matters if the targets are drawn anew each
            time.
        """

    def num_tokens(self, index: int, /) -> int:
        """Returns the number of inputs of an example."""
        return len(self.example(index).inputs)

    @abc.abstractmethod
    def num_bytes(self, index: int, /) -> int:
        """Returns the number of UTF-8 bytes of the text of an example."""


Split = Documents | Examples
"""Data of one split (train, validation or test): documents or examples."""
