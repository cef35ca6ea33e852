"""What a stream reads: random access to tokenised documents, or to finite labelled examples."""

import abc
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["ArrayDocuments", "DocumentRange", "Documents", "Example", "Examples", "FirstDocuments", "half_of"]


class Documents(abc.ABC):
    """Random access to tokenised documents: what a source says of them beyond length, tokens and bytes has a default.

    Attributes:
      fingerprint: what the tokens are; a position of other documents is then refused. None = not known.
      sliced: `window` reads no more than it gives, so that one document may be larger than memory. Otherwise a stream
        keeps a document while one of its rows is in it.
      skipped: documents that the source has and that were left out because they are too short.
      every_token: True, each token is a target.
    """

    fingerprint: str | None = None
    sliced = False
    skipped = 0
    every_token = True

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int, /) -> np.ndarray:
        """int32 tokens of one document, without a begin token."""

    @abc.abstractmethod
    def num_bytes(self, index: int, /) -> int:
        """UTF-8 bytes of the text of one document."""

    def num_tokens(self, index: int, /) -> int:
        """The length, where possible without reading the document."""
        return len(self[index])

    def name(self, index: int, /) -> str:
        """The name that the source gave the document."""
        return str(index)

    def word(self, token: int, /) -> str:
        """What an id that is no text means, for people."""
        return str(token)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Name -> array with one entry per token, the same names for every document.

        An entry is a number or an array of one shape. They come out in `Batch.extras`, aligned to the targets, 0 at
        padding. `target_bytes` (UTF-8 bytes of each token) is the name that evaluation looks for; `weights` becomes
        `Batch.weights` instead (0 = not scored).
        """
        del index
        return {}

    def window(self, index: int, start: int, stop: int, /) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Tokens `[start, stop)` of a document with their annotations."""
        return self[index][start:stop], {name: array[start:stop] for name, array in self.annotate(index).items()}

    def context(self, index: int, /) -> dict[str, np.ndarray]:
        """Name -> array of one shape for every document, such as the source of a translation.

        They come out in `Batch.extras` as they are, with every segment of the document, zeros where a row has none.
        """
        del index
        return {}


class ArrayDocuments(Documents):
    """Documents that are already in memory.

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
        """Keeps `tokens` (one sequence of ids per document).

        Args:
          tokens: ids of each document.
          num_bytes: bytes of each document; one byte per token if None.
          annotations: for each document, name -> one entry per token.
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
    """Documents `[begin, end)` of others.

    Example:
      >>> some = DocumentRange(ArrayDocuments([[1, 2], [3], [4, 5, 6]]), 1, 3)
      >>> len(some), some[1].tolist(), some.num_tokens(0)
      (2, [4, 5, 6], 1)
    """

    def __init__(self, documents: Documents, begin: int, end: int):
        """Reads nothing.

        Args:
          documents: the others.
          begin: the first.
          end: after the last.
        """
        self._documents, self._begin, self._size = documents, begin, end - begin
        self.sliced, self.every_token = documents.sliced, documents.every_token
        whole, part = documents.fingerprint, f"{begin}:{end}" if begin else f"first {end}"
        self.fingerprint = whole and hashlib.sha256(f"{whole}/{part}".encode()).hexdigest()[:16]

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
    """The first of other documents.

    Example:
      >>> documents = FirstDocuments(ArrayDocuments([[1, 2, 3], [4], [5]]), num_tokens=4)
      >>> len(documents), documents.num_tokens(1)
      (2, 1)
    """

    def __init__(self, documents: Documents, *, num_tokens: int):
        """As many as hold `num_tokens` tokens, or all."""
        count = tokens = 0
        while tokens < num_tokens and count < len(documents):
            tokens += documents.num_tokens(count)
            count += 1
        super().__init__(documents, 0, count)


def half_of(documents: Documents, half: str) -> DocumentRange:
    """The documents before the one in which the middle token lies, or from that one on; each half has one at least.

    Args:
      documents: to be halved.
      half: 'first' or 'second'.

    Raises:
      ValueError: there is one document only.

    Example:
      >>> [len(half_of(ArrayDocuments([[1, 2], [3], [4, 5, 6]]), half)) for half in ("first", "second")]
      [2, 1]
    """
    count = len(documents)
    if count < 2:
        raise ValueError(f"data.half: given {half!r}, allowed: '' for a training split of {count} document")
    ends = np.cumsum([documents.num_tokens(index) for index in range(count)])
    middle = min(max(int(np.searchsorted(ends, ends[-1] / 2, side="right")), 1), count - 1)
    return DocumentRange(documents, *((0, middle) if half == "first" else (middle, count)))


class EvenDocuments(Documents):
    """Documents that are no text, and all of one length."""

    def __init__(self, num_documents: int, length: int):
        self._num_documents, self._length = num_documents, length

    def __len__(self) -> int:
        return self._num_documents

    def num_tokens(self, index: int, /) -> int:
        """Every document has the same length."""
        del index
        return self._length

    def num_bytes(self, index: int, /) -> int:
        """One byte a token: these documents are no text."""
        return self.num_tokens(index)

    def _random(self, kind: str, index: int) -> np.random.RandomState:
        """What draws one document of those that are made when they are asked for."""
        if not -self._num_documents <= index < self._num_documents:
            raise IndexError(f"document {index} of {self._num_documents}")
        return self._of_key(f"{kind}/{index % self._num_documents}")

    @staticmethod
    def _of_key(key: str) -> np.random.RandomState:
        """What draws whatever has this name."""
        # RandomState, and not a Generator: its stream is frozen, so the documents are the same with every NumPy.
        return np.random.RandomState(int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little"))


@dataclasses.dataclass(frozen=True)
class Example:
    """What is read, and what is asked.

    Attributes:
      inputs: int32 `[length]`, or float32 where numbers are read instead of tokens.
      targets: int32 `[targets]`; every example of a set has as many.
      weights: float32 `[targets]`, 0 = not scored.
      annotations: name -> one entry per token read; 0 at padding.
      context: name -> array of one shape for every example; 0 where a row has none.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    annotations: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    context: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Examples(abc.ABC):
    """Random access to examples.

    Attributes:
      fingerprint: what they are; a position of others is then refused.
      skipped: of the source that were left out.
      groups: int `[examples]`, those of one group are choices, of which that of class 1 is right; None = all stand
        alone.
      every_token: False, targets are others than the tokens read.
    """

    fingerprint: str | None = None
    skipped = 0
    groups: np.ndarray | None = None
    every_token = False

    def word(self, token: int, /) -> str:
        """What an id that is no text means, for people."""
        return str(token)

    def notes(self) -> list[str]:
        """Lines about what was cut or is not known, worth knowing before training."""
        return []

    @property
    def plain(self) -> "Examples":
        """Those that others were laid over, such as states of frozen layers; themselves where none were."""
        return self

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def example(self, index: int, /, epoch: int = 0) -> Example:
        """One of them; `epoch` says how often it has been read before, where it asks for something else each time."""

    def num_tokens(self, index: int, /) -> int:
        """Tokens that are read."""
        return len(self.example(index).inputs)

    @abc.abstractmethod
    def num_bytes(self, index: int, /) -> int:
        """UTF-8 bytes of the text."""


Split = Documents | Examples
"""What a run reads of one split."""
