"""Finds tokens of source code that repeat an identifier from long ago, which a memory can recall.

**Definition.** An identifier is a maximal run of ASCII letters, digits and underscores that does not begin with a
digit, has at least three characters, is not a Python keyword and does not touch a non-ASCII character. It counts
everywhere, also in comments and strings. An occurrence covers the tokens that share a byte with it. Its *distance* is

    (index of its first token) - (index of the last token of the latest earlier occurrence in the same document)

for all its tokens, and 0 when there is no earlier occurrence. A token that two identifiers share belongs to the first.
The first token of an occurrence is predicted from the `window` tokens before it. With a distance above `window` these
contain no token of an earlier occurrence: such tokens are *distant identifiers*. (The definition is about one layer. A
model of several layers, or with a Transformer-XL cache, sees further than `window` indirectly.)
"""

import keyword
import re

import numpy as np

from memjax.data.tokenizers import utf8_bytes

__all__ = ["identifier_distances"]

ANNOTATION = "identifier_distance"
"""Name of the annotation with the distances, in token files and in `Batch.extras`."""

_WORD = rb"0-9A-Za-z_\x80-\xff"
_IDENTIFIER = re.compile(rb"(?<![" + _WORD + rb"])[A-Za-z_][0-9A-Za-z_]{2,}(?![" + _WORD + rb"])")
_KEYWORDS = frozenset(word.encode() for word in keyword.kwlist)


def identifier_distances(text: str, ids: np.ndarray, token_bytes: np.ndarray) -> np.ndarray:
    """Returns for each token the distance in tokens to the previous occurrence of the identifier that it belongs to,
    int32 `[tokens]`, 0 for none. `token_bytes` counts the bytes of each token. `ids` is not used.

    Args:
      text: Text of a document.
      ids: Ids of its tokens, int `[tokens]`. Not used, but part of the signature of annotators.
      token_bytes: Number of UTF-8 bytes of each token, int `[tokens]`. They sum to the bytes of the text.

    Returns:
      Distances in tokens, int32 `[tokens]`. 0 if the token belongs to no identifier, or to one without an earlier
      occurrence.

    Raises:
      ValueError: The bytes do not sum to those of the text, because the tokenizer is not lossless.

    Example:
      >>> identifier_distances("foo = foo2 + foo", np.zeros(16), np.ones(16, np.int32)).tolist()
      [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 11, 11]
    """
    del ids
    content = utf8_bytes(text)
    ends = np.cumsum(token_bytes, dtype=np.int64)
    if (ends[-1] if len(ends) else 0) != len(content):
        raise ValueError(f"token_bytes: {int(token_bytes.sum())} bytes of {len(content)}; use a lossless tokenizer")
    tokens_back = np.zeros(len(token_bytes), np.int32)
    matches = [match for match in _IDENTIFIER.finditer(content) if match.group() not in _KEYWORDS]
    if not matches:
        return tokens_back
    spans = np.array([match.span() for match in matches], np.int64)
    first = np.searchsorted(ends, spans[:, 0], side="right")
    last = np.searchsorted(ends, spans[:, 1], side="left")
    latest: dict[bytes, int] = {}
    earlier = np.full(len(matches), -1, np.int64)
    for number, match in enumerate(matches):
        word = match.group()
        earlier[number] = latest.get(word, -1)
        latest[word] = number
    # Written from the last to the first, so that the first identifier of a shared token wins.
    sizes = (last - first + 1)[::-1]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    distances = np.where(earlier >= 0, first - last[earlier], 0)
    tokens_back[np.repeat(first[::-1], sizes) + within] = np.repeat(distances[::-1], sizes)
    return tokens_back
