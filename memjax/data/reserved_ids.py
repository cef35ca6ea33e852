"""Tokenizers with additional ids that stand for no text: marks, task prompts, and frame tokens of text encoders.

Marks separate the parts of dialogues and instructions. Frame tokens are the begin, end and mask tokens of an encoder.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from memjax.data.tokenizers import Tokenizer

__all__ = ["TokenizerWithFrameIds", "ReservedTokenizer"]

MASK = "[MASK]"
"""Part of a text that the model must fill in, which is read as the mask token."""


class ReservedTokenizer:
    """A tokenizer with additional ids after its own, which stand for no text and are never read from a text.

    Attributes:
      base: The innermost tokenizer inside all wrappers, which is saved with a run.
      reserved: The additional ids.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, name: str):
        """Adds ids to a tokenizer.

        Args:
          tokenizer: Tokenizer of texts.
          count: Number of additional ids.
          name: Name of the purpose of the ids, which enters the fingerprint.
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


class TokenizerWithFrameIds(ReservedTokenizer):
    """A tokenizer for text encoders, with ids of begin and end tokens to be set around texts, and of a mask token.
    `[MASK]` in a text is read as the mask token.

    The ids are those of `<s>`, `</s>` and `<mask>` of a tokenizer like RoBERTa's, or additional ids for a tokenizer
    without a mask token.

    Attributes:
      begin_id: Id before every text.
      end_id: Id after every text.
      mask_id: Id of the mask token, which hides a token.
      special_ids: All of these ids, and the padding id.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Wraps a tokenizer of texts, and adds ids if it has no mask token."""
        mask = getattr(tokenizer, "mask_id", None)
        super().__init__(tokenizer, 0 if mask is not None else 3, "frames")
        frame_ids = self.reserved or (self.begin_id, self.end_id, mask)
        self.begin_id, self.end_id, self.mask_id = frame_ids
        self.special_ids = np.array([self.pad_id, *frame_ids], np.int32)

    def for_encoder(self) -> Any:
        return self

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text, with the mask id for each `[MASK]`, and without the begin and end ids around
        it.
        """
        first, *others = (self._tokenizer.encode(part) for part in text.split(MASK))
        mask = np.array([self.mask_id], np.int32)
        return np.concatenate([first, *(part for other in others for part in (mask, other))]).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns a list with the int32 ids of each text. See `encode`."""
        return [self.encode(text) for text in texts]
