"""Heads beside those that they are copies of: sources through a lineage, correlations, and growth that keeps them."""

import jax.numpy as jnp
import numpy as np
import pytest

from memjax.inspection.attention_maps import attention_maps
from memjax.lifelong.ancestors import correlate_heads, head_sources, map_correlations, subtract_uniform_attention
from memjax.lifelong.expansion import expand
from memjax.lifelong.growth_sources import Growth
from memjax.typing import Batch
from tests.lifelong.expansion_test import LENGTH, ROWS, SMALL, TOKENS, bert, gpt2, growth, made, started

RANDOM = np.random.default_rng(0)


def heads_of(layers, *heads):
    none = np.zeros(1, int)
    return Growth(none, tuple(np.array(one) for one in heads), (none,) * len(heads), layers)


WIDER, DEEPER = heads_of((0, 1), [0, 1, 1], [0, 1, 0]), heads_of((0, 0, 1), [0, 1, 2], [0, 1, 2])
LATER = heads_of((0, 1, 2), [0, 1, 2, 2], [0, 1, 2, 0], [0, 1, 2, 1])
"""copies of one layer that go on with other maps of heads"""


@pytest.mark.parametrize(
    ("growths", "expected"),
    {
        "itself": ((), [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]),
        "wider": ((WIDER,), [[(0, 0), (0, 1), (0, 1)], [(1, 0), (1, 1), (1, 0)]]),
        "then deeper": (
            (WIDER, DEEPER),
            [[(0, 0), (0, 1), (0, 1)], [(0, 0), (0, 1), (0, 1)], [(1, 0), (1, 1), (1, 0)]],
        ),
        "then wider by layer": (
            (WIDER, DEEPER, LATER),
            [[(0, 0), (0, 1), (0, 1), (0, 1)], [(0, 0), (0, 1), (0, 1), (0, 0)], [(1, 0), (1, 1), (1, 0), (1, 1)]],
        ),
    }.values(),
)
def test_sources_of_heads_through_a_lineage(growths, expected):
    assert head_sources(growths, 2, 2).tolist() == np.array(expected).tolist()


def maps_of(layers, heads):
    return RANDOM.dirichlet(np.ones(4), (layers, 2, heads, 3))


def test_correlations_are_pearsons_over_what_is_seen():
    one, other, seen = maps_of(2, 2), maps_of(3, 2), RANDOM.random((2, 3, 4)) < 0.7
    found = map_correlations(one, other, seen)
    assert found.shape == (3, 2, 2, 2)
    pair = [maps[layer, :, head][seen] for maps, layer, head in ((other, 2, 0), (one, 1, 1))]
    np.testing.assert_allclose(found[2, 0, 1, 1], np.corrcoef(*pair)[0, 1])
    hidden = np.where(seen[:, None], other, 9.0)
    np.testing.assert_allclose(map_correlations(one, hidden, seen), found)
    even = np.full_like(other, 0.25)
    assert np.isnan(map_correlations(one, even, np.ones_like(seen))).all()
    np.testing.assert_allclose(subtract_uniform_attention(even, np.ones_like(seen)), 0)


def test_relatives_are_sources_and_families_are_no_control():
    """Of an ancestor whose heads 0 and 2 are copies of one, neither is a stranger to what is copied of either."""
    every, sources = RANDOM.random((3, 3, 2, 3)), head_sources([heads_of((0, 0, 1), [0, 1, 2], [0, 1, 1])], 2, 3)
    founders = head_sources([heads_of((0, 1), [0, 1, 0], [0, 1, 1])], 2, 2)
    found = correlate_heads(every, sources, founders)
    assert found.relatives[1, 2] == every[1, 2, 0, 2] and found.relatives[2, 2] == every[2, 2, 1, 1]
    assert found.beside[1, 2] == every[1, 2, 0, 1]
    np.testing.assert_allclose(found.others[1, 2], np.mean([every[1, 2, 0, 1], *every[1, 2, 1]]))
    alone = correlate_heads(every, sources)  # each a family of its own
    np.testing.assert_allclose(alone.beside[1, 2], every[1, 2, 0, :2].mean())
    one_family = np.zeros((2, 3, 2), int)
    assert np.isnan(correlate_heads(every, sources, one_family).others).all()


BAD = {
    "other text": (lambda: map_correlations(maps_of(1, 1), maps_of(1, 1), np.ones((3, 3, 4), bool)), "maps: given 2"),
    "other heads": (lambda: correlate_heads(np.ones((2, 2, 1, 1)), head_sources((), 2, 2)), r"lineage: given sources"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_maps(name):
    call, line = BAD[name]
    with pytest.raises(ValueError, match=line):
        call()


@pytest.mark.laws
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("make", [gpt2, bert])
def test_heads_read_as_their_ancestors_right_after_exact_growth(make, scan):
    """Twice in a row: every head as the one that it is a copy of, in the model before and in the one before that."""
    sizes, growths = (SMALL, (11, 3, 15), (13, 4, 20)), []
    models = [make(one, weighted=one != SMALL, scan=scan, dtype="float32") for one in sizes]
    variables = [started(models[0], "float32")]
    for number in (1, 2):
        small, big = models[number - 1 : number + 1]
        growths.append(growth(sizes=sizes[number], old=sizes[number - 1], seed=number))
        variables.append(expand(variables[-1], small, big, growths[-1], make=made, noise="none"))
    mask = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 2]])
    rows = Batch(TOKENS, TOKENS, mask, mask.astype(np.float32), jnp.ones(ROWS, bool))
    maps = [attention_maps(model, own, rows) for model, own in zip(models, variables, strict=True)]
    for old, new in ((0, 1), (1, 2), (0, 2)):
        sources = head_sources(growths[old:new], 2, sizes[old][1])
        founders = head_sources(growths[:old], 2, SMALL[1])
        for of, most in (
            (lambda one: one.weights, 0.999),
            (lambda one: subtract_uniform_attention(one.weights, one.seen), 0.9),
        ):
            found = correlate_heads(map_correlations(of(maps[old]), of(maps[new]), maps[0].seen), sources, founders)
            np.testing.assert_allclose(found.relatives, 1, atol=1e-5)
            assert np.nanmax(found.others) < most and np.nanmax(found.beside) < most
        # A map that is off by a head would be found.
        off = sources[:, :, 0] * sizes[old][1] + (sources[:, :, 1] + 1) % SMALL[1]
        wrong = np.stack(np.divmod(off, sizes[old][1]), axis=-1)
        shifted = correlate_heads(map_correlations(maps[old].weights, maps[new].weights, maps[0].seen), wrong)
        assert shifted.relatives.min() < 0.999
