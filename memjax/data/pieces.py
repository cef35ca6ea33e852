"""Documents cut into pieces of fixed length, each an example that stands alone."""

import hashlib
from typing import Any, Literal

import numpy as np

from memjax.data.documents import Documents, Example, Examples

__all__ = ["Pieces", "TextPieces", "Where", "with_prompt"]

Where = Literal["none", "before", "after_first"]
"""no prompt has a place, or one stands before a text or after its first token"""


def with_prompt(tokens: np.ndarray, prompt: int | None, where: Where) -> np.ndarray:
    """int32 tokens with a prompt among them; None = as they are.

    Example:
      >>> with_prompt(np.array([5, 6]), 9, "before").tolist(), with_prompt(np.array([5, 6]), 9, "after_first").tolist()
      ([9, 5, 6], [5, 9, 6])
    """
    return tokens if prompt is None else np.insert(tokens, int(where == "after_first"), prompt).astype(np.int32)


class Pieces(Examples):
    """Documents cut into pieces, in order; a subclass says what a piece asks for (`example`).

    Attributes:
      room: tokens of a piece; the last one of a document, or of all, may have fewer.
    """

    def __init__(self, documents: Documents, *, room: int, packed: bool = False):
        """Cuts the documents.

        Args:
          documents: tokenised texts.
          room: tokens of a piece.
          packed: join all documents first; otherwise a piece never straddles two.
        """
        self._documents, self._packed, self.room = documents, packed, room
        sizes = np.array([documents.num_tokens(index) for index in range(len(documents))], np.int64)
        self._ends = np.cumsum(sizes)
        pieces = -(-sizes // room) if not packed else np.array([-(-int(sizes.sum()) // room)])
        self._piece_ends = np.cumsum(pieces)

    def __len__(self) -> int:
        return int(self._piece_ends[-1])

    def bounds(self, index: int, /) -> tuple[int, int, int]:
        """Of the joined corpus: first token of a piece, the one after its last, the one after its document's last."""
        if not 0 <= index < len(self):
            raise IndexError(f"piece {index} of {len(self)}")
        if self._packed:
            end = int(self._ends[-1])
            return index * self.room, min((index + 1) * self.room, end), end
        document = int(np.searchsorted(self._piece_ends, index, side="right"))
        start, end = int(self._ends[document - 1]) if document else 0, int(self._ends[document])
        before = int(self._piece_ends[document - 1]) if document else 0
        begin = start + (index - before) * self.room
        return begin, min(begin + self.room, end), end

    def parts(self, begin: int, end: int) -> list[np.ndarray]:
        """Tokens of the joined corpus from `begin` to `end`, of one document after the other."""
        parts, document = [], int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            until, start = min(end, int(self._ends[document])), int(self._ends[document - 1]) if document else 0
            parts.append(self._documents.window(document, begin - start, until - start)[0])
            begin, document = until, document + 1
        return parts


class TextPieces(Pieces):
    """Pieces whose every next token is asked for, the one after the piece included; the first of all is not.

    A prompt takes the place of one token. It is never asked for, and no more is asked for than without it.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Any,
        *,
        length: int,
        packed: bool = False,
        prompt: int | None = None,
        where: Where = "none",
    ):
        """Cuts the documents.

        Args:
          documents: as in `Pieces`, like `packed`.
          tokenizer: counts bytes; None = one a token.
          length: tokens of a row.
          packed: as there.
          prompt: id that stands in every piece; None = none, where there could be one.
          where: it stands; 'none' = there is no room for one.
        """
        super().__init__(documents, room=length - (where != "none"), packed=packed)
        self._tokenizer, self._length, self._prompt = tokenizer, length, prompt
        self._where: Where = where
        own = f"/{where}/{prompt}" if where != "none" else ""
        settings = f"{documents.fingerprint}/{length}/{packed}{own}"
        self.fingerprint = "pieces-" + hashlib.sha256(settings.encode()).hexdigest()[:16]

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        begin, end, last = self.bounds(index)
        tokens = np.concatenate([*self.parts(begin, min(end + 1, last))]).astype(np.int32)
        inputs, asked = tokens[: end - begin], tokens[1:]
        targets, weights = np.zeros(self._length, np.int32), np.zeros(self._length, np.float32)
        # A token is asked for where the one before it is read; behind the first one that may be the prompt.
        places = np.arange(len(asked)) + (self._prompt is not None)
        inputs = with_prompt(inputs, self._prompt, self._where)
        targets[places], weights[places] = asked, 1
        return Example(inputs, targets, weights)

    def num_tokens(self, index: int, /) -> int:
        begin, end, _ = self.bounds(index)
        return end - begin

    def num_bytes(self, index: int, /) -> int:
        """Of the targets; one a token where there is no tokenizer."""
        begin, end, last = self.bounds(index)
        asked = self.parts(begin + 1, min(end + 1, last))
        return int(
            sum(len(part) if self._tokenizer is None else self._tokenizer.token_bytes(part).sum() for part in asked)
        )
