import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from memjax.functional.best_entries import _group_size, best_entries, best_groups


@pytest.mark.parametrize(
    "entries, number",
    [(4096, 8), (4099, 8), (8192, 32), (600, 1), (64, 32), (40, 40), (128, 32), (119, 32), (130, 100), (1, 1)],
)
@pytest.mark.parametrize("kind", ["normal", "ties", "few", "odd"])
def test_entries_are_those_of_top_k(entries, number, kind):
    draw = np.random.default_rng(entries + number)
    scores = {
        "normal": lambda: draw.normal(size=(2, 3, entries)),
        "ties": lambda: draw.integers(0, 3, (2, 3, entries)),
        "few": lambda: np.where(draw.random((2, 3, entries)) < 2 / entries, 1.0, -np.inf),
        "odd": lambda: draw.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1e-40], (2, 3, entries)),
    }[kind]()
    scores = jnp.asarray(scores, jnp.float32)
    found, places = jax.jit(best_entries, static_argnums=1)(scores, number)
    expected, expected_places = lax.top_k(scores, number)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(places, expected_places)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_entries_of_other_dtypes(dtype):
    scores = jnp.asarray(np.random.default_rng(0).integers(0, 50, (3, 90)), dtype)
    for one, other in zip(best_entries(scores, 20), lax.top_k(scores, 20), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize(
    "entries, number, heaps, loops", [(40, 8, 0, 2), (150, 100, 1, 0), (4096, 600, 1, 0), (8192, 32, 0, 8)]
)
def test_how_a_cpu_searches(entries, number, heaps, loops):
    """Few entries are ranked by two loops, many are searched by groups, and a large part of them by a heap."""
    program = jax.jit(best_entries, static_argnums=1).lower(jnp.zeros((2, entries)), number).as_text()
    assert (program.count("chlo.top_k"), program.count("stablehlo.while")) == (heaps, loops)
    assert _group_size(4096, 8) == 16


def test_groups_stand_by_place():
    scores = jnp.array([[0.0, 1.0, 9.0, 2.0, 5.0, 4.0, 3.0, 8.0]])
    found, places = best_groups(scores, 2, 2)
    np.testing.assert_array_equal(found, [[9.0, 2.0, 3.0, 8.0]])
    np.testing.assert_array_equal(places, [[2, 3, 6, 7]])
