import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from memjax.functional.best_entries import _group_size, best_entries, best_groups


@pytest.mark.parametrize("entries, number", [(4096, 8), (4099, 8), (8192, 32), (600, 1), (64, 32), (40, 40)])
@pytest.mark.parametrize("kind", ["normal", "ties", "few"])
def test_entries_are_those_of_top_k(entries, number, kind):
    draw = np.random.default_rng(entries + number)
    scores = {
        "normal": lambda: draw.normal(size=(2, 3, entries)),
        "ties": lambda: draw.integers(0, 3, (2, 3, entries)),
        "few": lambda: np.where(draw.random((2, 3, entries)) < 2 / entries, 1.0, -np.inf),
    }[kind]()
    scores = jnp.asarray(scores, jnp.float32)
    found, places = jax.jit(best_entries, static_argnums=1)(scores, number)
    expected, expected_places = lax.top_k(scores, number)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(places, expected_places)


def test_large_arrays_are_searched_by_groups():
    searches = lambda entries: str(jax.make_jaxpr(lambda scores: best_entries(scores, 8))(jnp.zeros((2, entries))))
    assert searches(4096).count("top_k") > searches(40).count("top_k")
    assert _group_size(4096, 8) == 16


def test_groups_stand_by_place():
    scores = jnp.array([[0.0, 1.0, 9.0, 2.0, 5.0, 4.0, 3.0, 8.0]])
    found, places = best_groups(scores, 2, 2)
    np.testing.assert_array_equal(found, [[9.0, 2.0, 3.0, 8.0]])
    np.testing.assert_array_equal(places, [[2, 3, 6, 7]])
