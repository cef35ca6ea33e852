"""Marked events: what happened is found by its time, and by nothing else."""

import numpy as np
import pytest

from memjax.data.documents import Documents
from memjax.data.events import MarkedEventDocuments

SIZES = [{}, {"num_events": 3, "span": 4, "duration": 4, "filler_length": 0}, {"duration": 1, "num_values": 2}]


def asked(documents, index):
    """(time, event) of every question, from 0."""
    tokens, is_answer = documents[index], documents.annotate(index)["is_answer"]
    return [
        (tokens[place - 1] - documents._first_time, tokens[place] - documents._first_event)
        for place in np.flatnonzero(is_answer)
    ]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_time_is_asked_for_once_and_answered_with_what_happened_then(sizes):
    documents = MarkedEventDocuments(20, **sizes)
    assert isinstance(documents, Documents) and len(documents) == 20
    span, duration = sizes.get("span", 16), sizes.get("duration", 8)
    for index in range(20):
        tokens, notes = documents[index], documents.annotate(index)
        assert tokens.dtype == np.int32 and len(tokens) == documents.num_tokens(index) == documents.num_bytes(index)
        assert tokens.min() >= 3 and tokens.max() < documents.vocab_size
        np.testing.assert_array_equal(notes["weights"], notes["is_answer"].astype(np.float32))
        questions = asked(documents, index)
        assert sorted(time for time, _ in questions) == list(range(documents.num_events))
        for time, event in questions:
            then = tokens[time * span : (time + 1) * span]
            happened = then[then >= documents._first_event] - documents._first_event
            assert happened.tolist() == [event] * duration


def test_documents_are_the_same_everywhere_and_others_with_another_seed():
    one, again, other = MarkedEventDocuments(3), MarkedEventDocuments(3), MarkedEventDocuments(3, seed=1)
    np.testing.assert_array_equal(one[1], again[1])
    assert not np.array_equal(one[1], other[1]) and not np.array_equal(one[1], one[2])
    assert one.fingerprint == again.fingerprint != other.fingerprint
    events = [event for index in range(300) for _, event in asked(MarkedEventDocuments(300, num_values=4), index)]
    np.testing.assert_allclose(np.bincount(events) / len(events), 0.25, atol=0.04)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"num_events": 0}, "num_events: given 0, allowed: at least 1"),
        ({"filler_length": -1}, "filler_length: given -1, allowed: 0 or more"),
        ({"span": 4, "duration": 5}, "duration: given 5, allowed: at most span = 4"),
    ],
)
def test_bad_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        MarkedEventDocuments(3, **sizes)
