"""Weights, temperatures and numbers of neighbours at the borders of what is allowed."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.memory.knn_lm import KNNMemory
from memjax.retrieval.interpolation import check_neighbors, check_weight
from memjax.retrieval.tuning import CachedNeighbors, ScoredTargets, score_mixture, tune_interpolation

TARGETS = ScoredTargets(np.arange(3), np.array([1, 2, 3], np.int32), np.log(np.array([0.5, 0.25, 0.125])))
NEIGHBORS = CachedNeighbors(
    np.ones((3, 2), np.float32), np.array([[1, 2], [3, 3], [-1, -1]], np.int32), np.zeros((3, 2), np.int64)
)
WRONG = (0.0, -1.0, float("nan"), float("inf"), -float("inf"))


@pytest.mark.parametrize("temperature", WRONG)
def test_temperatures_are_numbers_above_0(temperature):
    for call in (
        lambda: tune_interpolation(TARGETS, NEIGHBORS, weights=[0.5], temperatures=[1.0, temperature]),
        lambda: score_mixture(TARGETS, NEIGHBORS, 0.5, temperature),
        lambda: KNNMemory(temperature=temperature).init_state(1),
    ):
        with pytest.raises(ValueError, match="temperature: given .*, allowed: a number above 0"):
            call()


@pytest.mark.parametrize("weight", [1.0, 1.5, -0.1, float("nan"), float("inf")])
def test_a_share_leaves_something_to_the_model(weight):
    with pytest.raises(ValueError, match="interpolation_weight: given .*, allowed: 0 to below 1"):
        check_weight(weight)


@settings(deadline=None)
@given(st.integers(-5, 40), st.integers(1, 30))
def test_there_are_at_most_as_many_neighbours_as_entries(count, entries):
    if 1 <= count <= entries:
        check_neighbors(entries, count)
        return
    with pytest.raises(ValueError, match=f"num_neighbors: given {count}, allowed: 1 to {entries}, the entries"):
        check_neighbors(entries, count)


@settings(deadline=None, max_examples=20)
@given(st.floats(0, 0.999), st.sampled_from([1e-3, 1.0, 1e6]))
def test_what_is_allowed_gives_every_target_a_probability(weight, temperature):
    score, mixed = score_mixture(TARGETS, NEIGHBORS, weight, temperature)
    assert np.isfinite(score.nats) and np.isfinite(mixed).all()
    assert mixed[2] == pytest.approx(TARGETS.log_probs[2])  # without neighbours the model is left as it is
    assert jnp.isfinite(mixed).all()
