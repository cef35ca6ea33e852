"""Generation on texts: prompts in, pieces of text out as they are ready."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from memjax.data.tokenizers import StreamingDecoder, Tokenizer
from memjax.inference.decoding import stream_tokens
from memjax.inference.sampling import Sampling

__all__ = ["continue_texts"]


def continue_texts(
    model: Any,
    variables: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    segment_length: int,
    max_tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    **settings: Any,
) -> Iterator[list[str]]:
    """Continues every prompt and yields the new text of each row; characters come when their last byte is there.

    Args:
      model: a language model.
      variables: its variables.
      tokenizer: the one the model was trained with.
      prompts: texts; '' continues an empty document.
      segment_length: tokens of a segment, as in training.
      max_tokens: tokens generated per row, at most.
      sampling: settings; begin and padding tokens are never drawn.
      stop: a row ends before the first of these texts, besides at the end token.
      **settings: of `stream_tokens`: seed, block, dtype.
    """
    if "" in stop:
        raise ValueError("stop: given '', allowed: texts of at least one character")
    ids = [[tokenizer.begin_id, *(int(token) for token in tokenizer.encode(text))] for text in prompts]
    special = {tokenizer.begin_id, tokenizer.pad_id} - {tokenizer.end_id}
    special |= {*range(tokenizer.base.vocab_size, tokenizer.vocab_size)}  # reserved ids, which have no text
    rows = [_Row(StreamingDecoder(tokenizer), tuple(stop)) for _ in prompts]
    stream = stream_tokens(
        model,
        variables,
        ids,
        segment_length=segment_length,
        max_tokens=max_tokens,
        sampling=(sampling or Sampling()).without(special),
        stop_tokens=[tokenizer.end_id],
        finished=lambda _: [row.stopped for row in rows],
        **settings,
    )
    for new in stream:
        yield [row.push(tokens) for row, tokens in zip(rows, new, strict=True)]
    yield [row.flush() for row in rows]


@dataclasses.dataclass
class _Row:
    """The text of one row: what could be the beginning of a stop text is held back."""

    decoder: StreamingDecoder
    stop: tuple[str, ...]
    held: str = ""
    stopped: bool = False

    def push(self, tokens: Sequence[int]) -> str:
        """The text that may be shown after `tokens`."""
        if self.stopped:
            return ""
        text = self.held + self.decoder.push(tokens)
        found = [place for place in (text.find(stop) for stop in self.stop) if place >= 0]
        if found:
            self.stopped, self.held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What is left at the end."""
        return "" if self.stopped else self.held + self.decoder.flush()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
