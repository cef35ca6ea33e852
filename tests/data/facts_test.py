"""The table of facts: one table for all documents, which no document tells."""

import numpy as np
import pytest

from memjax import config as configs
from memjax.data.facts import FactTableDocuments
from memjax.data.source_readers import open_source


def facts(documents):
    """(subject, relation, value) of all documents."""
    return np.concatenate([documents[index].reshape(-1, 3) for index in range(len(documents))])


def test_all_splits_ask_for_one_table():
    data = configs.Data(source=configs.FactTable(num_subjects=5, num_relations=7, num_values=4, num_documents=64))
    splits = [open_source(data, split) for split in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [64, 8, 8] and len({split.fingerprint for split in splits}) == 3
    table = {}
    for subject, relation, value in np.concatenate([facts(split) for split in splits]):
        assert table.setdefault((subject, relation), value) == value
    subjects, relations = (set(kind) for kind in zip(*table, strict=True))
    values = set(table.values())
    assert len(table) == 5 * 7 and (len(subjects), len(relations), len(values)) == (5, 7, 4)
    assert sorted(values | subjects | relations) == [*range(3, splits[0].vocab_size)]
    assert not np.array_equal(splits[1][0], splits[2][0])


def test_only_values_are_scored_and_no_half_of_a_pair_tells_one():
    documents = FactTableDocuments(400, num_values=4, num_subjects=8, num_relations=8)
    notes = documents.annotate(3)
    assert notes["is_answer"].nonzero()[0].tolist() == [*range(2, documents.num_tokens(3), 3)]
    np.testing.assert_array_equal(notes["weights"], notes["is_answer"])
    all_facts = facts(documents)
    for half in (0, 1):
        best = [np.bincount(all_facts[all_facts[:, half] == one, 2]).max() for one in np.unique(all_facts[:, half])]
        assert sum(best) / len(all_facts) < 0.55  # the best guess of one who knows half of the pair
    assert documents.chance == 0.25


@pytest.mark.parametrize("name", ["num_documents", "num_subjects", "num_relations", "num_values", "num_facts"])
def test_a_size_below_one_gets_one_line(name):
    with pytest.raises(ValueError, match=f"^{name}: given 0, allowed: at least 1$"):
        FactTableDocuments(**{"num_documents": 1, name: 0})
