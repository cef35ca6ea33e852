"""Attention from and to memory tokens, of a text and of a source."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection.token_maps import TokenMaps, memory_token_maps
from memjax.models.factory import make_language_model, make_model
from memjax.typing import Batch
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB = 2, 4, 7
TOKENS = config.MemoryTokens(num_tokens=2)


def segment(**extras):
    ids = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    real = np.arange(LENGTH) < np.array([[4], [2]])
    made = Batch(ids, ids, real, real.astype(np.float32), np.ones(ROWS, bool), extras)
    return jax.tree.map(jnp.asarray, made)


def test_shares_are_means_over_real_tokens():
    weights = np.zeros((1, 2, 1, 5, 6))  # 2 memory tokens, a slot, 3 tokens
    weights[0, 0, 0] = [[1, 0, 0, 0, 0, 0], [0, 0.5, 0, 0.5, 0, 0]] + [[0.25, 0, 0.25, 0.5, 0, 0]] * 3
    weights[0, 1, 0, 2] = [0.5, 0.5, 0, 0, 0, 0]
    mask = np.array([[True, True, True], [True, False, False]])
    found = TokenMaps(2, weights, np.zeros((2, 3), int), mask)
    shares = found.shares()
    np.testing.assert_allclose(shares["memory tokens"], [(1 + 0.5 + 0 + 0) / 4])
    np.testing.assert_allclose(shares["tokens"], [(3 * 0.25 + 1) / 4])
    assert found.of_text.shape == (1, 2, 1, 5, 5) and found.of_text[0, 0, 0, 2].tolist() == [0.25, 0, 0.5, 0, 0]


def test_of_a_text_behind_its_memory():
    described = config.Model(
        dim=8, num_layers=2, num_heads=2, attention=config.TransformerXL(memory_length=3), memory_tokens=TOKENS
    )
    model = make_language_model(described, VOCAB, segment_length=LENGTH)
    given = segment().inputs, model.init_state(ROWS)
    params = params_of(model, *given, start_of_document=jnp.ones(ROWS, bool), dtype=np.float32)
    second = dataclasses.replace(segment(), start_of_document=jnp.zeros(ROWS, bool))
    found = memory_token_maps(model, {"params": jax.tree.map(jnp.asarray, params)}, [segment(), second])
    assert found.num_tokens == 2 and found.weights.shape == (2, ROWS, 2, 2 + LENGTH, 2 + 3 + LENGTH)
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1, atol=1e-5)
    assert not found.weights[:, :, :, :2, 2:].any()  # memory tokens read each other
    assert found.weights[:, 0, :, 2:, 2:5].min() > 0  # tokens read the slots of the segment before
    np.testing.assert_allclose(found.shares()["memory tokens"], 1, atol=1e-5)


def test_of_the_source_of_a_translation():
    described = config.EncoderDecoder(dim=8, num_layers=1, num_heads=2, memory_tokens=TOKENS)
    model = make_model(config.Config(model=described), VOCAB)
    batch = segment(source=segment().inputs, source_mask=segment().mask)
    extras = model.select_extras(batch.extras)
    named = {"start_of_document": jnp.ones(ROWS, bool), "extras": extras}
    params = params_of(model, batch.inputs, model.init_state(ROWS), **named, dtype=np.float32)
    found = memory_token_maps(model, {"params": params}, [batch])
    assert found.weights.shape == (1, ROWS, 2, 2 + LENGTH, 2 + LENGTH) and (found.mask == batch.mask).all()
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1, atol=1e-5)
    assert found.weights[0, 0, :, :2].min() > 0 and not found.weights[0, 1, ..., 2 + 2 :].any()  # padding


def test_models_without_memory_tokens_are_refused():
    described = config.Model(dim=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="memory tokens: given LanguageModel without any"):
        memory_token_maps(make_language_model(described, VOCAB), {}, [segment()])
