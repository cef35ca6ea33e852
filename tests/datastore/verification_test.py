"""Recall of an index: known shares are measured as such."""

import numpy as np
import pytest

from memjax.datastore import ExactIndex, Neighbors, measure_recall
from tests.datastore.stores import clusters, make_store

METRICS = ("squared_l2", "inner_product")


class Changed:
    """Exact search whose ids somebody has changed."""

    def __init__(self, index, change):
        self.metric, self.entries, self.dim, self._index, self._change = *_facts(index), index, change

    def search(self, queries, num_neighbors):
        ids = self._change(self._index.search(queries, num_neighbors).ids.copy())
        return Neighbors(np.zeros(ids.shape, np.float32), ids, ids >= 0)


def _facts(index):
    return index.metric, index.entries, index.dim


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sample", [20, "queries"])
def test_known_shares(tmp_path, metric, sample):
    store = make_store(tmp_path / "s", clusters(300, 6), shards=[100, 200])
    exact = ExactIndex.from_store(store, metric=metric)
    sample = clusters(25, 6, seed=1) if sample == "queries" else sample

    def lose(ids):
        ids[:, 7:] = -1
        return ids

    def repeat(ids):
        ids[:, 5:] = ids[:, :5]
        return ids

    def wrong(ids):
        ids[::5] = (ids[::5] + 1) % 300  # random entries in a fifth of the rows
        return ids

    assert measure_recall(exact, store, sample, 10) == 1
    assert measure_recall(Changed(exact, lose), store, sample, 10) == pytest.approx(0.7)
    assert measure_recall(Changed(exact, repeat), store, sample, 10) == pytest.approx(0.5)
    assert 0.8 <= measure_recall(Changed(exact, wrong), store, sample, 10) < 0.9
    assert measure_recall(exact, store, sample, 400) == 1, "more than there are"


def test_any_of_equal_entries_counts(tmp_path):
    """Each key stands ten times in the store; which of them are found does not matter."""
    keys = np.repeat(clusters(30, 6), 10, axis=0)
    store = make_store(tmp_path / "s", keys)
    exact = ExactIndex(keys)

    def others(ids):
        return ids // 10 * 10 + (ids % 10 + 5) % 10

    assert measure_recall(Changed(exact, others), store, 20, 5) == 1
    assert measure_recall(Changed(exact, lambda ids: (ids + 10) % 300), store, 20, 5) == 0


def test_the_truth_may_be_given(tmp_path):
    store, queries = make_store(tmp_path / "s", clusters(60, 6)), clusters(5, 6, seed=1)
    exact = ExactIndex.from_store(store)
    true = exact.search(queries, 4)
    assert measure_recall(exact, store, queries, 4, true=true) == 1
    nearer = true._replace(scores=np.zeros_like(true.scores))
    assert measure_recall(exact, store, queries, 4, true=nearer) < 0.1, "it is what was given"


def test_a_sample_is_needed(tmp_path):
    store = make_store(tmp_path / "s", clusters(10, 6))
    with pytest.raises(ValueError, match="sample: 0 queries for 10 entries, allowed: at least one of each"):
        measure_recall(ExactIndex.from_store(store), store, np.zeros((0, 6)), 3)
