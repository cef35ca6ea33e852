"""Functions of single rows that methods use: keys of random neighbours, and the scores that MAS measures."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import Model
from memjax.lifelong.basic_methods import _scores_of
from memjax.lifelong.mbpa import _make_row_keys
from memjax.models import make_language_model
from memjax.training.objective import read_segment
from memjax.training.train_state import model_variables
from tests.training.toy import VOCAB, toy_state, toy_stream


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_the_neighbors_of_a_row_are_drawn_by_its_own_key_in_every_batch(dtype):
    segment = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], next(toy_stream()))
    inputs = np.arange(24).reshape(4, 6).astype(dtype)
    rows = dataclasses.replace(segment, inputs=jnp.asarray(inputs))
    shuffled = dataclasses.replace(segment, inputs=jnp.asarray(inputs[[2, 0]]))
    words = lambda rows: np.asarray(jax.random.key_data(_make_row_keys(jax.random.key(3), rows)))
    assert len({tuple(word) for word in words(rows)}) == 4
    np.testing.assert_array_equal(words(shuffled), words(rows)[[2, 0]])


def test_mas_measures_scores_of_the_vocabulary_and_nothing_of_padding():
    model = make_language_model(Model(dim=8, num_layers=1, num_heads=2), vocab_size=VOCAB)
    batch = jax.tree.map(jnp.asarray, next(toy_stream()))
    state = toy_state(model, batch=batch)
    state = dataclasses.replace(state, params=jax.tree.map(jnp.asarray, state.params))
    segment = jax.tree.map(lambda leaf: leaf[0], batch)
    counted = jnp.ones(segment.weights.shape[1]).at[-2:].set(0)
    row = dataclasses.replace(jax.tree.map(lambda leaf: leaf[0], segment), weights=counted)
    scores = _scores_of(model, state, state.params, row)
    single = jax.tree.map(lambda leaf: leaf[None], row)
    output, _, _ = read_segment(model, model_variables(state), model.init_state(1), single, deterministic=True)
    wanted = model.apply(model_variables(state), output, method="logits")
    assert scores.shape == wanted.shape == (1, len(counted), VOCAB)
    np.testing.assert_allclose(scores[:, :-2], wanted[:, :-2], rtol=1e-6)
    assert not scores[:, -2:].any() and wanted[:, -2:].any()
