"""Retrieved tokens: which, with what weight, and which tokens are worth a look."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection.attention_ages import attention_by_age
from memjax.inspection.retrievals import Retrievals, retrievals
from memjax.memory.layer_parts import RETRIEVED
from memjax.models.factory import make_language_model
from memjax.typing import Batch
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB, SEGMENTS = 2, 4, 7, 4


def segments():
    tokens = np.random.default_rng(0).integers(0, VOCAB, (SEGMENTS, ROWS, LENGTH)).astype(np.int32)
    mask = np.ones((SEGMENTS, ROWS, LENGTH), bool)
    mask[1, 1, 2:] = False  # row 1 ends a document there
    starts = np.zeros((SEGMENTS, ROWS), bool)
    starts[0] = starts[2, 1] = True
    given = zip(tokens, mask, starts, strict=True)
    made = [Batch(ids, ids, real, real.astype(np.float32), begin) for ids, real, begin in given]
    return jax.tree.map(jnp.asarray, made)


def built(**fields):
    attention = config.Memorizing(layers_with_memory=(-1,), memory_length=8, num_neighbors=2, cache_length=2, **fields)
    described = config.Model(dim=8, num_layers=2, num_heads=2, scan_layers=False, attention=attention)
    model = make_language_model(described, VOCAB, segment_length=LENGTH)
    given = segments()[0].inputs, model.init_state(ROWS)
    params = params_of(model, *given, start_of_document=jnp.ones(ROWS, bool), dtype=np.float32)
    return model, {"params": jax.tree.map(jnp.asarray, params)}


@pytest.fixture(scope="module")
def found():
    return retrievals(*built(), segments())


def test_what_is_retrieved_stands_before_the_segment(found):
    assert found.layers == (1,) and found.positions.shape == (1, ROWS, 2, SEGMENTS * LENGTH, 2) and found.reach == 6
    assert found.places[0].tolist() == [*range(16)]
    assert found.places[1].tolist() == [0, 1, 2, 3, 4, 5, -1, -1, *range(8)]
    assert found.document[1].tolist() == [0] * 8 + [1] * 8
    real = found.places >= 0
    own = np.where(real, found.places % LENGTH, 0)
    before = (found.places - own)[None, :, None, :, None]
    chosen = np.broadcast_to(real[None, :, None, :, None], found.positions.shape)
    assert (found.positions < np.maximum(before, 0))[chosen].all()
    assert (found.positions[:, :, :, :LENGTH] == -1).all() and (found.weights[found.positions < 0] == 0).all()
    assert (found.positions[0, 1, :, 12:] >= 0).all()


def test_weights_are_those_of_attention_by_age(found):
    ages = attention_by_age(*built(), segments())
    real = (found.places >= 0)[None, :, None, :, None]
    np.testing.assert_allclose(
        np.where(real, found.weights, 0).sum() / (2 * ages.tokens), ages.by_source()[1, RETRIEVED], rtol=1e-5
    )


def crafted():
    """One row of six tokens in segments of two; two heads that retrieve two positions."""
    positions, weights = np.full((1, 1, 2, 6, 2), -1), np.zeros((1, 1, 2, 6, 2))
    positions[0, 0, :, 2:] = [[0, 1]]
    weights[0, 0, :, 2:] = [[0.25, 0.25]]
    weights[0, 0, :, 4] = [[0.75, 0.25], [0.5, 0.0]]
    weights[0, 0, :, 5] = [[0.0, 1.0], [0.0, 1.0]]
    tokens = np.array([[5, 6, 7, 7, 5, 8]])
    return Retrievals((2,), tokens, np.arange(6)[None], np.zeros((1, 6), int), positions, weights, 4)


def test_heads_that_retrieve_one_position_count_together():
    one = crafted().of_token(0, 0, 4)
    assert (one.row, one.position, one.token) == (0, 4, 5) and one.positions.tolist() == [0, 1]
    np.testing.assert_allclose(one.weights, [0.625, 0.125])


def test_tokens_that_look_far_come_first_each_id_once():
    assert crafted().sharpest(0, 9) == [(0, 5), (0, 4), (0, 2)]  # reach 4; of two tokens 7, alike, the first
    assert crafted().sharpest(0, 1) == [(0, 5)] and crafted().sharpest(0, 9, since=5) == [(0, 5)]


def test_the_text_around_a_position():
    found = crafted()
    assert found.text(0, 4, 1, 1).tolist() == [5, 6, 7] and found.text(0, 4, 5, 1).tolist() == [5, 8]


def test_the_share_of_the_same_token():
    same, chance = crafted().same_token(0)
    # Token 5 finds token 5 with 1.25 of 1.5; nothing else finds its like, in all 2 + 1.5 + 2 of both heads.
    assert same == pytest.approx(1.25 / 5.5)
    assert chance == pytest.approx((0 + 1 / 3 + 1 / 4 + 0) / 4)


def test_a_model_that_retrieves_nothing_is_refused():
    described = config.Model(dim=8, num_layers=1, num_heads=2, attention=config.TransformerXL(memory_length=2))
    model = make_language_model(described, VOCAB, segment_length=LENGTH)
    given = segments()[0].inputs, model.init_state(ROWS)
    params = params_of(model, *given, start_of_document=jnp.ones(ROWS, bool), dtype=np.float32)
    with pytest.raises(ValueError, match="retrievals: given a model without a long memory"):
        retrievals(model, {"params": params}, segments())
