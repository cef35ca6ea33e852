"""Texts to tokens: lazily, or once into a memory-mapped file."""

from __future__ import annotations

import numpy as np

from memjax.data.sources import TextSource
from memjax.data.tokenizers import Tokenizer


class TokenizedTexts:
    """Documents tokenised when they are first asked for, kept in memory.

    Example:
      >>> from memjax.data.sources import Texts
      >>> from memjax.data.tokenizers import ByteTokenizer
      >>> documents = TokenizedTexts(Texts.from_mapping({"a": "hi"}), ByteTokenizer())
      >>> documents[0].tolist(), documents.num_bytes(0), documents.annotate(0)["target_bytes"].tolist()
      ([107, 108], 2, [1, 1])
    """

    def __init__(self, texts: TextSource, tokenizer: Tokenizer):
        self.texts, self.tokenizer = texts, tokenizer
        self.fingerprint = f"{texts.fingerprint}/{tokenizer.fingerprint}"
        self._kept: dict[int, tuple[np.ndarray, int]] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self._encoded(index)[0]

    def num_bytes(self, index: int, /) -> int:
        return self._encoded(index)[1]

    def num_tokens(self, index: int, /) -> int:
        return len(self._encoded(index)[0])

    def name(self, index: int, /) -> str:
        return self.texts.names[index]

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return {"target_bytes": self.tokenizer.token_bytes(self[index])}

    def _encoded(self, index: int) -> tuple[np.ndarray, int]:
        if index not in self._kept:
            text = self.texts[index]
            self._kept[index] = (self.tokenizer.encode(text), len(text.encode("utf-8")))
        return self._kept[index]
