"""The sorting task: its rule, its drift, and what is scored."""

import collections

import numpy as np
import pytest

from memjax import config as configs
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import Documents
from memjax.data.opening import make_datasets
from memjax.data.sorting import SortingDocuments, sort_by_count


def by_hand(symbols, num_symbols):
    counts = collections.Counter(symbols)
    seen = sorted(counts, key=lambda symbol: (-counts[symbol], symbols.index(symbol)))
    return seen + [symbol for symbol in range(num_symbols) if symbol not in counts]


@pytest.mark.parametrize("seed", range(5))
def test_the_rule(seed):
    symbols = np.random.default_rng(seed).integers(0, 12, 15).tolist()
    assert sort_by_count(np.array(symbols), 14).tolist() == by_hand(symbols, 14)


def test_documents():
    documents = SortingDocuments(6, length=50, num_symbols=8)
    assert isinstance(documents, Documents) and len(documents) == 6
    for index in range(6):
        tokens, notes = documents[index], documents.annotate(index)
        assert tokens.dtype == np.int32 and len(tokens) == documents.num_tokens(index) == 59
        assert tokens[50] == documents.separator_id and (tokens[:50] >= 3).all() and tokens.max() < documents.vocab_size
        assert (tokens[51:] - 3).tolist() == by_hand((tokens[:50] - 3).tolist(), 8)
        np.testing.assert_array_equal(np.flatnonzero(notes["is_answer"]), np.arange(51, 59))
        np.testing.assert_array_equal(notes["weights"], notes["is_answer"].astype(np.float32))


def test_the_distribution_drifts():
    length = 20_000
    tokens = SortingDocuments(1, length=length, num_symbols=6)[0][:length] - 3
    early, late = (np.bincount(part, minlength=6) / len(part) for part in (tokens[:2000], tokens[-2000:]))
    whole = np.bincount(tokens, minlength=6) / length
    assert np.abs(early - late).max() > 0.05
    np.testing.assert_allclose(whole, (early + late) / 2, atol=0.03)
    assert whole.min() > 0.01  # every symbol has a weight from 1 to 9


def test_documents_are_frozen_and_differ_by_seed():
    first, again, other = (SortingDocuments(3, length=20, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[2], again[2])
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first[0].tolist() != first[1].tolist() and first[0].tolist() != other[0].tolist()
    with pytest.raises(IndexError):
        first[3]


def test_streams_score_answers_only():
    documents = SortingDocuments(4, length=20, num_symbols=5)
    batches = list(DocumentBatches(documents, rows=2, segment_length=8, begin_token=documents.begin_id, epochs=1))
    assert sum(batch.weights.sum() for batch in batches) == 4 * 5


def test_a_configuration_gives_splits_of_different_documents():
    data = configs.Data(source=configs.Sorting(length=20, num_documents=20))
    datasets = make_datasets(data)
    assert (datasets.vocab_size, datasets.begin_token, datasets.tokenizer) == (23, 1, None)
    assert [len(datasets.documents(split)) for split in ("train", "validation", "test")] == [20, 2, 2]
    assert datasets.documents("train")[0].tolist() != datasets.documents("test")[0].tolist()


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="length: given 0, allowed: at least 1"):
        SortingDocuments(1, length=0)
