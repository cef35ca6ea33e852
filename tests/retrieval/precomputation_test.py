"""Neighbours found before training: never the position itself, nor what else must not be used."""

import numpy as np
import pytest

from memjax.retrieval.precomputation import exclude_nearby, exclude_same_document, precompute_neighbors
from tests.reference.knn_lm import Store, nearest

RNG = np.random.default_rng(0)
ENTRIES, OFFSETS = 20, np.array([0, 7, 9, 20])
STORE = Store(RNG.normal(size=(ENTRIES, 3)).astype(np.float32), RNG.integers(0, 50, ENTRIES))
OWN = np.arange(ENTRIES)


def precompute(num_neighbors=4, **settings):
    settings = {"own": OWN, "queries_at_once": 6, **settings}
    return precompute_neighbors(STORE.keys.astype(np.float32), STORE.search, STORE.values, num_neighbors, **settings)


def expected(allowed, num_neighbors=4):
    """Ids of each position's nearest entries among those that `allowed(own, id)` lets through; -1 = no more."""
    rows = []
    for own in OWN:
        ids = [i for i in nearest(STORE.keys, STORE.keys[own], ENTRIES)[0] if allowed(own, i)][:num_neighbors]
        rows.append(ids + [-1] * (num_neighbors - len(ids)))
    return rows


def document(entry):
    return sum(entry >= end for end in OFFSETS[1:])


@pytest.mark.parametrize(
    "exclude, allowed",
    [
        (None, lambda own, i: i != own),
        (exclude_nearby(2), lambda own, i: abs(i - own) > 2),
        (exclude_same_document(OFFSETS), lambda own, i: document(i) != document(own)),
    ],
    ids=["self", "near", "document"],
)
@pytest.mark.parametrize("num_neighbors", [1, 4, 12])
def test_neighbors_are_the_nearest_that_may_be_used(exclude, allowed, num_neighbors):
    """S6; positions in a document of eleven have nine others, fewer than twelve."""
    found = precompute(num_neighbors, exclude=exclude)
    assert found.ids.tolist() == expected(allowed, num_neighbors)
    there = found.ids >= 0
    np.testing.assert_array_equal(found.values, np.where(there, STORE.tokens[found.ids], -1))
    assert (found.distances[~there] == 0).all() and (np.diff(found.distances, axis=1)[there[:, 1:]] >= 0).all()
    assert (found.ids != OWN[:, None]).all()


def test_equal_contexts_are_kept_and_only_the_own_entry_goes():
    keys = np.zeros((3, 2), np.float32)
    store = Store(keys, np.array([5, 6, 7]))
    found = precompute_neighbors(keys, store.search, store.values, 2, own=np.arange(3))
    assert [set(row) for row in found.values.tolist()] == [{6, 7}, {5, 7}, {5, 6}]


def test_another_corpus_excludes_nothing():
    found = precompute(own=None)
    assert found.ids[:, 0].tolist() == OWN.tolist()
    assert found.ids.tolist() == expected(lambda own, i: True)


def test_searches_are_as_few_as_possible(monkeypatch):
    monkeypatch.setattr(STORE, "searches", 0)
    precompute()
    assert STORE.searches == ENTRIES


def test_exclusions_are_about_tokens_not_entries():
    """Entries in another order than the tokens they stand for."""
    numbers = np.random.default_rng(3).permutation(ENTRIES)
    found = precompute(numbers=numbers, exclude=exclude_nearby(2))
    assert found.ids.tolist() == expected(lambda own, i: abs(numbers[i] - numbers[own]) > 2)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="own: given 3 entries, allowed: 20"):
        precompute(own=OWN[:3])
    with pytest.raises(ValueError, match="exclude: given without own"):
        precompute(own=None, exclude=exclude_nearby(1))
