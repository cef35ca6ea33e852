"""What a stream reads: random access to tokenised documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from memjax.typing import Batch


@runtime_checkable
class Documents(Protocol):
    """Random access to tokenised documents.

    More members are used where they exist:

    - `annotate(i) -> dict[str, array]`: arrays with one entry per token of document i, the same names for every
      document; an entry is a number or an array of one shape. They come out in `Batch.extras`, aligned to the targets,
      0 at padding. `target_bytes` (UTF-8 bytes of each token) is the name that evaluation looks for; `weights` becomes
      `Batch.weights` instead (0 = not scored).
    - `num_tokens(i) -> int`: the length without reading the document.
    - `window(i, start, stop) -> (tokens, annotations)`: a slice, so that one document may be larger than memory.
    - `context(i) -> dict[str, array]`: arrays of one shape for every document, such as the source of a translation.
      They come out in `Batch.extras` as they are, with every segment of the document, zeros where a row has none.
    - `fingerprint: str`: what the tokens are; a position of other documents is then refused.
    - `ask(batch, epochs) -> Batch`: what a batch of them asks of a model, where that is not every next token. The
      targets and weights it returns are `[segments, batch, targets]`; `epochs` `[segments, batch]` says how often the
      document of each row has been read before.
    - `make_measure() -> Measure`: how the answers of a whole split are measured (see `Measure`).
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> np.ndarray:
        """int32 tokens of one document, without a begin token."""
        ...

    def num_bytes(self, index: int, /) -> int:
        """UTF-8 bytes of the text of one document."""
        ...


@runtime_checkable
class Measure(Protocol):
    """A measure of a model's answers that is no mean over targets: it sees a whole split, then says its numbers."""

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Takes in one batch without segments, as `ask` made it, and what the model gave for it."""
        ...

    def result(self) -> dict[str, float]:
        """Name -> number."""
        ...


class ArrayDocuments:
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

    def num_tokens(self, index: int, /) -> int:
        return len(self._tokens[index])

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return {name: np.asarray(values) for name, values in self._annotations[index].items()}
