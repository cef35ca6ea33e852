"""Key-value recall: a memory suffices, nothing less does."""

import numpy as np
import pytest

from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import Documents
from memjax.data.key_value_recall import KeyValueRecallDocuments

SIZES = [{}, {"layout": "sequence"}, {"group": 0}, {"num_pairs": 5, "group": 3, "filler_length": 0, "num_values": 4}]


def answers(documents, index):
    """(position of the answer, key token, value token) for each question from afar."""
    tokens, is_answer = documents[index], documents.annotate(index)["is_answer"]
    return [(place, tokens[place - 1], tokens[place]) for place in np.flatnonzero(is_answer)]


def lookup(documents, index):
    """What a perfect memory of the bindings alone says: binding read -> value."""
    tokens, found = documents[index].tolist(), {}
    for place in range(len(tokens)):
        if documents._layout == "joint" and tokens[place] >= documents._first_pair:
            key, value = divmod(tokens[place] - documents._first_pair, documents.num_values)
            found[documents._first_key + key] = documents._first_value + value
        elif documents._layout == "sequence" and documents._first_key <= tokens[place] < documents._first_pair:
            found.setdefault(tokens[place], tokens[place + 1])
    return found


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_documents(sizes):
    documents = KeyValueRecallDocuments(20, **sizes)
    assert isinstance(documents, Documents) and len(documents) == 20
    for index in range(20):
        tokens, notes = documents[index], documents.annotate(index)
        assert tokens.dtype == np.int32 and len(tokens) == documents.num_tokens(index) == documents.num_bytes(index)
        assert tokens.min() >= 3 and tokens.max() < documents.vocab_size
        assert notes["is_answer"].sum() == documents.num_pairs
        assert notes["is_practice"].sum() == (documents.num_pairs if sizes.get("group", 4) else 0)
        np.testing.assert_array_equal(notes["weights"], (notes["is_answer"] | notes["is_practice"]).astype(np.float32))
        found = lookup(documents, index)
        assert all(found[key] == value for _, key, value in answers(documents, index))


@pytest.mark.parametrize("layout", ["joint", "sequence"])
def test_answers_are_far_away_and_asked_once(layout):
    documents = KeyValueRecallDocuments(10, filler_length=40, layout=layout)
    for index in range(10):
        tokens = documents[index].tolist()
        keys = [key for _, key, _ in answers(documents, index)]
        assert len(set(keys)) == len(keys) == documents.num_pairs
        for place, key, _ in answers(documents, index):
            before = [p for p in range(place - 1) if tokens[p] == key]
            assert before and place - max(before) > 40


def test_without_the_bindings_an_answer_is_chance():
    documents = KeyValueRecallDocuments(200, num_values=4)
    asked = np.array([[(key, value) for _, key, value in answers(documents, i)] for i in range(200)])
    keys, values = asked[..., 0], asked[..., 1]
    assert documents.chance == 0.25 and np.bincount(values.ravel()).max() / values.size < 0.29
    # Neither the key nor the answer before says anything.
    assert abs((values[:, 1:] == values[:, :-1]).mean() - 0.25) < 0.04
    assert abs((keys % 2 == values % 2).mean() - 0.5) < 0.05


def test_documents_are_frozen_and_differ_by_seed():
    first, again, other = KeyValueRecallDocuments(3), KeyValueRecallDocuments(3), KeyValueRecallDocuments(3, seed=1)
    np.testing.assert_array_equal(first[2], again[2])
    np.testing.assert_array_equal(first[2], first[-1])
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first[0].tolist() != first[1].tolist() and first[0].tolist() != other[0].tolist()
    assert int(KeyValueRecallDocuments(1, num_pairs=2, filler_length=2)[0].sum()) == 418
    with pytest.raises(IndexError):
        first[3]


def test_streams_score_values_only():
    documents = KeyValueRecallDocuments(4)
    batches = list(DocumentBatches(documents, rows=2, segment_length=16, begin_token=documents.begin_id, epochs=1))
    scored = sum(batch.weights.sum() for batch in batches)
    assert scored == 4 * 2 * documents.num_pairs
    assert sum(batch.extras["is_answer"].sum() for batch in batches) == 4 * documents.num_pairs
    assert all((batch.weights[batch.extras["is_answer"]] == 1).all() for batch in batches)
    assert set(batches[0].extras) == {"is_answer", "is_practice"}
    evaluation = KeyValueRecallDocuments(4, score_practice=False).annotate(0)
    np.testing.assert_array_equal(evaluation["weights"] > 0, evaluation["is_answer"])


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"num_documents": 0}, "num_documents: 0; give at least 1"),
        ({"num_pairs": 17}, "num_keys: 16; give at least num_pairs = 17"),
        ({"num_values": 0}, "num_values: 0"),
        ({"filler_length": -1}, "filler_length: -1; give 0 or more"),
        ({"layout": "list"}, "layout: 'list'; allowed are joint, sequence"),
    ],
)
def test_bad_sizes_get_one_line(sizes, message):
    with pytest.raises(ValueError, match=message):
        KeyValueRecallDocuments(**{"num_documents": 4, **sizes})
