"""Examples from pieces of fixed length into which documents are cut, each read with an empty memory."""

import hashlib
from typing import Any, Literal

import numpy as np

from memjax.data.documents import Documents, Example, Examples

__all__ = ["Pieces", "TextPieces", "Where", "insert_prompt"]

Where = Literal["none", "before", "after_first"]
"""Place of a task prompt: none, before a text, or after its first token."""


def insert_prompt(tokens: np.ndarray, prompt: int | None, where: Where) -> np.ndarray:
    """Returns token ids with `prompt`, the id of a task prompt, inserted before them, or after the first one if `where`
    is 'after_first'. None inserts nothing.

    Args:
      tokens: Token ids.
      prompt: Id of the prompt. None to leave the tokens unchanged.
      where: Place of the prompt: 'after_first' for after the first token, otherwise before all tokens.

    Example:
      >>> [insert_prompt(np.array([5, 6]), 9, place).tolist() for place in ("before", "after_first")]
      [[9, 5, 6], [5, 9, 6]]
    """
    return tokens if prompt is None else np.insert(tokens, int(where == "after_first"), prompt).astype(np.int32)


class Pieces(Examples):
    """Base class of examples that are pieces of documents, in order, of up to `room` tokens. A subclass defines their
    targets (`example`).

    Attributes:
      room: Number of tokens of a piece. The last piece of a document (of all documents, if they are joined) may have
        fewer.
    """

    def __init__(self, documents: Documents, *, room: int, packed: bool = False):
        """Computes the bounds of all pieces.

        Args:
          documents: Tokenised texts.
          room: Number of tokens of a piece.
          packed: Whether to join all documents before cutting. If False, no piece contains tokens of two documents.
        """
        self._documents, self._packed, self.room = documents, packed, room
        sizes = np.array([documents.num_tokens(index) for index in range(len(documents))], np.int64)
        self._ends = np.cumsum(sizes)
        pieces = -(-sizes // room) if not packed else np.array([-(-int(sizes.sum()) // room)])
        self._piece_ends = np.cumsum(pieces)

    def __len__(self) -> int:
        return int(self._piece_ends[-1])

    def bounds(self, index: int, /) -> tuple[int, int, int]:
        """Returns three positions in the joined corpus: the begin and the end of piece `index`, and the end of its
        document.

        Returns:
          Position of its first token, position after its last token, and position after the last token of its document
          (of the corpus, if the documents are joined).
        """
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
        """Returns the tokens `[begin, end)` of the joined corpus, as a list with one array per document."""
        parts, document = [], int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            until, start = min(end, int(self._ends[document])), int(self._ends[document - 1]) if document else 0
            parts.append(self._documents.window(document, begin - start, until - start)[0])
            begin, document = until, document + 1
        return parts


class TextPieces(Pieces):
    """Language-modelling examples from pieces of text: each token of a piece has the next token as its target.

    The target of the last token is the first token of the next piece. The first token of a document (of the corpus, if
    the documents are joined) is never a target. A task prompt takes the place of one token. It is never a target, and
    does not add targets.
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
        """Computes the bounds of all pieces.

        Args:
          documents: Tokenised texts.
          tokenizer: Tokenizer that counts bytes. None for one byte per token.
          length: Number of tokens of a row.
          packed: Whether to join all documents before cutting. If False, no piece contains tokens of two documents.
          prompt: Id of the task prompt in every piece. None for no prompt, although one token of room is left for it
            unless `where` is 'none'.
          where: Place of the prompt. 'none' leaves no room for a prompt.
        """
        super().__init__(documents, room=length - (where != "none"), packed=packed)
        self._tokenizer, self._length, self._prompt = tokenizer, length, prompt
        self._where: Where = where
        prompt_settings = f"/{where}/{prompt}" if where != "none" else ""
        settings = f"{documents.fingerprint}/{length}/{packed}{prompt_settings}"
        self.fingerprint = "pieces-" + hashlib.sha256(settings.encode()).hexdigest()[:16]

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        begin, end, last = self.bounds(index)
        tokens = np.concatenate([*self.parts(begin, min(end + 1, last))]).astype(np.int32)
        inputs, next_tokens = tokens[: end - begin], tokens[1:]
        targets, weights = np.zeros(self._length, np.int32), np.zeros(self._length, np.float32)
        # A token is asked for where the one before it is read; behind the first one that may be the prompt.
        places = np.arange(len(next_tokens)) + (self._prompt is not None)
        inputs = insert_prompt(inputs, self._prompt, self._where)
        targets[places], weights[places] = next_tokens, 1
        return Example(inputs, targets, weights)

    def num_tokens(self, index: int, /) -> int:
        begin, end, _ = self.bounds(index)
        return end - begin

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of UTF-8 bytes of the targets of a piece, or without a tokenizer the number of its
        targets.
        """
        begin, end, last = self.bounds(index)
        targets = self.parts(begin + 1, min(end + 1, last))
        return int(
            sum(len(part) if self._tokenizer is None else self._tokenizer.token_bytes(part).sum() for part in targets)
        )
