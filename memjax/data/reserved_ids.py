"""Ids that no text has: marks of dialogues and instructions, prompts of tasks, frames of texts for an encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from memjax.data.tokenizers import Tokenizer

__all__ = ["FramingTokenizer", "ReservedTokenizer"]

MASK = "[MASK]"
"""in a text, what is to be found there"""


class ReservedTokenizer:
    """A tokenizer with some ids more behind its own; they have no text, and no text is read as one.

    Attributes:
      base: the innermost tokenizer, which a run keeps.
      reserved: the ids.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, name: str):
        """Wraps a tokenizer.

        Args:
          tokenizer: of texts.
          count: ids that are reserved.
          name: what they are, for the fingerprint.
        """
        self._tokenizer = tokenizer
        self.reserved = tuple(range(tokenizer.vocab_size, tokenizer.vocab_size + count))
        self.fingerprint = f"{tokenizer.fingerprint}-{name}"
        self.vocab_size, self.lossless = tokenizer.vocab_size + count, tokenizer.lossless
        self.begin_id, self.end_id, self.pad_id = tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id

    @property
    def base(self) -> Any:
        return self._tokenizer.base

    def files(self) -> dict[str, bytes]:
        return self._tokenizer.files()

    def encode(self, text: str) -> np.ndarray:
        return self._tokenizer.encode(text)

    def decode(self, ids: Any) -> str:
        ids = np.asarray(ids, np.int64)
        return self._tokenizer.decode(ids[ids < self._tokenizer.vocab_size])

    def token_bytes(self, ids: Any) -> np.ndarray:
        ids = np.asarray(ids, np.int64)
        marks = ids >= self._tokenizer.vocab_size
        return np.where(marks, 0, self._tokenizer.token_bytes(np.where(marks, self.pad_id, ids)))


class FramingTokenizer(ReservedTokenizer):
    """A tokenizer for text encoders: with its own `<s>`, `</s>` and `<mask>` (RoBERTa), or with ids for them behind.

    `[MASK]` in a text is read as the mask, as BERT's tokenizer does.

    Attributes:
      begin_id: first of every text; `end_id` closes each, `mask_id` hides.
      special_ids: all of them, and the padding.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Wraps a tokenizer of texts."""
        mask = getattr(tokenizer, "mask_id", None)
        super().__init__(tokenizer, 0 if mask is not None else 3, "frames")
        frame_ids = self.reserved or (self.begin_id, self.end_id, mask)
        self.begin_id, self.end_id, self.mask_id = frame_ids
        self.special_ids = np.array([self.pad_id, *frame_ids], np.int32)

    def for_encoder(self) -> Any:
        return self

    def encode(self, text: str) -> np.ndarray:
        """int32 ids, without those around a text."""
        first, *others = (self._tokenizer.encode(part) for part in text.split(MASK))
        mask = np.array([self.mask_id], np.int32)
        return np.concatenate([first, *(part for other in others for part in (mask, other))]).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of many texts."""
        return [self.encode(text) for text in texts]
