"""Heads beside those of ancestors, from maps that are made."""

from types import SimpleNamespace

import numpy as np
import pytest

from memjax.inspection.attention_maps import AttentionMaps
from memjax.lifelong.ancestors import HeadCorrelations
from memjax.lifelong.growth_sources import Growth
from memjax.lifelong.looks import GenerationCheckpoint
from memjax.report import ancestors
from memjax.report.ancestors import Lineage, Pair, head_in_the_middle
from tests.report.crafted import AFTER, crafted, parts_of, smoke

LENGTH = 4


def maps(seed, heads):
    """Causal attention of one layer over two pieces."""
    seen = np.tril(np.ones((LENGTH, LENGTH), bool))
    weights = np.random.default_rng(seed).random((1, 2, heads, LENGTH, LENGTH)) * seen
    weights /= weights.sum(axis=-1, keepdims=True)
    return AttentionMaps(weights, np.broadcast_to(seen, (2, LENGTH, LENGTH)))


@pytest.fixture(scope="module")
def lineage():
    """A third head is a copy of the first; after some updates it reads otherwise."""
    old = maps(0, 2)
    grown = AttentionMaps(old.weights[:, :, [0, 1, 0]], old.seen)
    later = AttentionMaps(np.where(np.arange(3)[:, None, None] == 2, maps(1, 3).weights, grown.weights), old.seen)
    looks = (GenerationCheckpoint(0, 8, 8), GenerationCheckpoint(1, 8, 10), GenerationCheckpoint(1, 16, 20))
    growth = Growth(np.array([0, 1, 0]), (np.array([0, 1, 0]),), (np.array([0]),), (0,))
    rows = SimpleNamespace(inputs=np.arange(8).reshape(2, LENGTH), mask=np.ones((2, LENGTH), bool))
    named = dict(zip(looks, (old, grown, later), strict=True))
    # As many layers as before: the growth above has one more, of which the tests need none.
    return Lineage(looks, (growth._replace(layers=(0,)),), named, rows, "news", None)


def test_a_copy_reads_as_its_ancestor_until_it_learns(lineage):
    first, later = lineage.pairs()
    assert first.sources[0].tolist() == [[0, 0], [0, 1], [0, 0]]
    np.testing.assert_allclose(first.beyond.relatives, 1.0)
    np.testing.assert_allclose(later.beyond.relatives[0, :2], 1.0)
    assert later.beyond.relatives[0, 2] < 0.99 and (first.beyond.others < 0.99).all()


def test_the_head_that_is_shown_is_the_one_in_the_middle():
    values = np.array([[0.9, np.nan], [0.1, 0.5]])
    found = HeadCorrelations(values, values, values)
    pair = Pair(GenerationCheckpoint(0, 0, 0), GenerationCheckpoint(1, 0, 1), np.zeros((2, 2, 2), int), found, found)
    assert head_in_the_middle(pair) == (1, 1)
    none = HeadCorrelations(*[np.full((1, 1), np.nan)] * 3)
    assert head_in_the_middle(Pair(pair.ancestor, pair.descendant, pair.sources, none, none)) == (0, 0)


def test_panels_show_the_newest_generation(lineage, tmp_path, monkeypatch):
    grown = {"kind": "grown", "step": 8, "seconds": 0.5}
    run = crafted(tmp_path / "grown", smoke("lifelong_pretraining", tmp_path), [grown])
    monkeypatch.setattr(ancestors, "read_lineage", lambda path, pieces: lineage)
    parts = parts_of(ancestors.panels(run))
    assert [*parts] == ["ancestors_correlation_0", "ancestors_maps", "ancestors_means"]
    assert "2 validation pieces of news, 8 tokens" in parts["ancestors_correlation_0"].caption
    table = parts["ancestors_means"]
    assert [row[1] for row in table.rows] == ["generation 1, 8 updates", "generation 1, 16 updates"]
    assert table.rows[0][2] == pytest.approx(1.0) and all(len(row) == len(table.columns) for row in table.rows)


def test_runs_that_have_not_grown_have_none(tmp_path):
    run = crafted(tmp_path / "run", smoke("lifelong_pretraining", tmp_path), [{**AFTER, "name": "task_0", "step": 1}])
    assert not [*ancestors.panels(run)]
