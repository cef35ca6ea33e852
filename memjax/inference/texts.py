"""Generation of texts from text prompts, piece by piece."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from memjax.data.tokenizers import StreamingDecoder, Tokenizer
from memjax.inference.chat import render_chat
from memjax.inference.decoding import stream_tokens
from memjax.inference.sampling import Sampling

__all__ = ["check_chat", "continue_texts"]


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
    chat: bool = False,
    **settings: Any,
) -> Iterator[list[str]]:
    """Continues the texts `prompts`, and yields a list of the new text of each row after each block of tokens. A row
    ends at an end token or before one of the texts `stop`. With `chat`, the prompts are messages to a model for chats.

    A character is yielded once all of its bytes are generated. End tokens are `end_id` and `extra_end_ids` of the
    tokenizer.

    Args:
      model: A language model.
      variables: Variables of the model.
      tokenizer: Tokenizer that the model was trained with.
      prompts: Text of each row to continue. '' starts a new document.
      segment_length: Tokens per segment in training.
      max_tokens: Largest number of tokens to generate per row.
      sampling: Settings of sampling. Begin and padding tokens are never drawn. None samples from the whole
        distribution.
      stop: Texts that end a row before their first occurrence. A row also ends at an end token.
      chat: Whether each prompt is the message of a user, to which the chat template of the tokenizer is applied.
      **settings: Further arguments of `stream_tokens`, such as `seed`, `block` and `dtype`.

    Raises:
      ValueError: A text in `stop` is empty; or `chat` with a tokenizer without a chat template.
    """
    if "" in stop:
        raise ValueError("stop: given '', allowed: texts of at least one character")
    ids = [
        _chat_prompt(tokenizer, text) if chat else [tokenizer.begin_id, *_encode(tokenizer, text)] for text in prompts
    ]
    ends = [tokenizer.end_id, *tokenizer.base.extra_end_ids]
    special = {tokenizer.begin_id, tokenizer.pad_id} - {*ends}
    special |= {*range(tokenizer.base.vocab_size, tokenizer.vocab_size)}  # reserved ids, which have no text
    rows = [_Row(StreamingDecoder(tokenizer), tuple(stop)) for _ in prompts]
    stream = stream_tokens(
        model,
        variables,
        ids,
        segment_length=segment_length,
        max_tokens=max_tokens,
        sampling=(sampling or Sampling()).without(special),
        stop_tokens=ends,
        finished=lambda _: [row.stopped for row in rows],
        **settings,
    )
    for new in stream:
        yield [row.push(tokens) for row, tokens in zip(rows, new, strict=True)]
    yield [row.flush() for row in rows]


def check_chat(tokenizer: Tokenizer | None) -> None:
    """Raises `ValueError` for a tokenizer without a chat template, and where there is none. Returns nothing."""
    if tokenizer is None or not tokenizer.base.chat_template:
        allowed = "a run on a model for chats, whose tokenizer_config.json or GGUF file has a chat template"
        raise ValueError(f"chat: given a tokenizer without a chat template, allowed: {allowed}")


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode(text)]


def _chat_prompt(tokenizer: Tokenizer, message: str) -> list[int]:
    """Returns the ids of the prompt that the chat template of a tokenizer makes of a message of a user."""
    check_chat(tokenizer)
    base = tokenizer.base
    text = render_chat(base.chat_template, [{"role": "user", "content": message}], base.special_names)
    return [int(token) for token in base.encode_special(text)]


@dataclasses.dataclass
class _Row:
    """Decodes the text of one row and holds back text that could be the beginning of a stop text.

    Attributes:
      decoder: Decoder from tokens to text.
      stop: Texts that end the row.
      held: Text that is held back.
      stopped: Whether a stop text was found.
    """

    decoder: StreamingDecoder
    stop: tuple[str, ...]
    held: str = ""
    stopped: bool = False

    def push(self, tokens: Sequence[int]) -> str:
        """Adds tokens and returns the text that can be shown."""
        if self.stopped:
            return ""
        text = self.held + self.decoder.push(tokens)
        starts = [start for start in (text.find(stop) for stop in self.stop) if start >= 0]
        if starts:
            self.stopped, self.held = True, ""
            return text[: min(starts)]
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Ends the row and returns the text that was held back."""
        return "" if self.stopped else self.held + self.decoder.flush()


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
