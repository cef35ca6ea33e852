"""Prompts of instructions: context, question and the mark ANS, of training rows and of tests alike.

A prompt is made without a look at the answer, and leaves room for an answer of the longest length, so that a model is
asked at the places of a row that it was trained at. Only the context of a training row may be another part of its text:
a window that holds the answer.
"""

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["answer_window", "locate_answer", "make_prompt", "prompt_room"]


def prompt_room(length: int, longest: int) -> int:
    """Returns the largest number of ids of a prompt in a row of `length` ids, which has room for a mark in front and
    for an answer of `longest` ids.

    Args:
      length: Number of ids of a row.
      longest: Largest number of ids of an answer.
    """
    return length - 1 - longest


def make_prompt(context: Sequence[int], question: Sequence[int], answer_id: int, room: int) -> list[int]:
    """Joins the ids of context and question and the id of ANS to a list, and cuts off the end of the context if they
    exceed `room` ids.

    Args:
      context: Ids of the context.
      question: Ids of the question.
      answer_id: Id of the mark ANS.
      room: Largest number of ids of a prompt. See `prompt_room`.

    Raises:
      ValueError: The question and ANS alone are longer.
    """
    context_room = room - 1 - len(question)
    if context_room < 0:
        raise ValueError(f"question: given {len(question)} tokens, allowed: up to {room - 1}")
    return [*context[:context_room], *question, answer_id]


def locate_answer(encode: Callable[[str], np.ndarray], context: str, start: int, length: int) -> tuple[int, int]:
    """Returns the numbers of the first token of a part of a context, such as an answer, and of the token after it.

    The context is compared with the texts before and after that part, token by token. So the tokenizer may change the
    case of letters, or read some words as unknown. A token that is only partly in the part counts as one of its tokens.

    Args:
      encode: Function `encode(text)` that returns the ids of a text, int `[tokens]`.
      context: Text of the context.
      start: Position of the first character of the part.
      length: Number of characters of the part.

    Example:
      >>> letters = lambda text: np.frombuffer(text.encode(), np.uint8)
      >>> locate_answer(letters, "a cat and a dog", 2, len("cat"))
      (2, 5)
    """
    tokens, before, after = (encode(text) for text in (context, context[:start], context[start + length :]))
    end = len(tokens) - _common_tokens(tokens[::-1], after[::-1])
    return min(_common_tokens(tokens, before), max(end - 1, 0)), end


def _common_tokens(first: np.ndarray, second: np.ndarray) -> int:
    """Returns the number of ids that two texts have in common at their beginning."""
    count = min(len(first), len(second))
    differs = np.append(first[:count] != second[:count], True)
    return int(np.argmax(differs))


def answer_window(first: int, end: int, room: int) -> int:
    """Returns the number of the token of a context at which a window of `room` tokens begins that holds an answer.

    Windows begin half a window apart, and the first one that holds the whole answer is taken, so that answers stand
    at all places of a window. If none of these holds it, the window begins with the answer itself.

    Args:
      first: Number of the first token of the answer. See `locate_answer`.
      end: Number of the token after the answer.
      room: Number of tokens of a window.

    Example:
      >>> [answer_window(first, first + 3, 8) for first in (0, 5, 6, 12)]
      [0, 0, 4, 8]
    """
    windows = range(0, first + 1, max(room // 2, 1))
    return next((window for window in windows if end <= window + room), first)
