"""Distant identifiers: the definition, written out with loops."""

import keyword
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.data.identifiers import identifier_distances
from memjax.data.tokenizers import ByteTokenizer, SentencePieceTokenizer, train_sentencepiece

CODE = "def total(values, weight):\n    return sum(value * weight for value in values)  # total\n"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> SentencePieceTokenizer:
    return train_sentencepiece([CODE] * 20, tmp_path_factory.mktemp("model") / "m", vocab_size=320)


def reference(text, lengths):
    """The docstring's definition, token by token."""
    content = text.encode("utf-8", "surrogateescape")
    token_of, start = [], 0
    for token, length in enumerate(lengths):
        token_of += [token] * length
        start += length
    result, latest = [None] * len(lengths), {}
    for match in re.finditer(rb"[0-9A-Za-z_\x80-\xff]+", content):
        word = match.group()
        is_identifier = re.fullmatch(rb"[A-Za-z_][0-9A-Za-z_]{2,}", word) and not keyword.iskeyword(word.decode())
        if not is_identifier:
            continue
        first, last = token_of[match.start()], token_of[match.end() - 1]
        distance = first - latest[word] if word in latest else 0
        for token in range(first, last + 1):
            if result[token] is None:
                result[token] = distance
        latest[word] = last
    return [distance or 0 for distance in result]


@pytest.mark.parametrize("use_pieces", [False, True])
def test_by_hand(pieces, use_pieces):
    tokenizer = pieces if use_pieces else ByteTokenizer()
    ids = tokenizer.encode(CODE)
    distances = identifier_distances(CODE, ids, tokenizer.token_bytes(ids))
    assert distances.dtype == np.int32 and distances.tolist() == reference(CODE, tokenizer.token_bytes(ids))
    seen = [tokenizer.decode([i]) for i, distance in zip(ids, distances, strict=True) if distance]
    assert "".join(seen).replace(" ", "").replace(")", "") == "weightvaluevaluestotal"
    if not use_pieces:
        second = CODE.index("weight", 20)
        assert distances[second] == second - (CODE.index("weight") + len("weight") - 1)


WORDS = st.lists(
    st.sampled_from(["foo", "foo2", "2foo", "ab", "for", "_x1", "fooé", "é", " ", "  ", ".", "\n", "\x80"])
)


@settings(max_examples=200, deadline=None)
@given(WORDS.map("".join), st.randoms(use_true_random=False))
def test_equals_the_definition_for_any_cut_into_tokens(text, random):
    size, lengths = len(text.encode()), []
    while sum(lengths) < size:
        lengths.append(random.randint(0, min(5, size - sum(lengths))))
    lengths = np.array(lengths, np.int32)
    distances = identifier_distances(text, np.zeros(len(lengths)), lengths)
    assert distances.tolist() == reference(text, lengths)


def test_window():
    tokenizer = ByteTokenizer()
    text = "name" + " " * 10 + "name"
    ids = tokenizer.encode(text)
    for window, expected in [(10, True), (11, False)]:
        distant = identifier_distances(text, ids, tokenizer.token_bytes(ids)) > window
        assert distant[-4:].tolist() == [expected] * 4 and not distant[:-4].any()


def test_a_tokenizer_that_loses_bytes_is_refused():
    with pytest.raises(ValueError, match="token_bytes: 3 bytes of 4; use a lossless tokenizer"):
        identifier_distances("name", np.zeros(3), np.ones(3, np.int32))
