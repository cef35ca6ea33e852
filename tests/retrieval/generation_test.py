"""Generation with a datastore equals running the whole text again with a search at every token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inference import Sampling, generate, stream_tokens
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.memory.knn_lm import KNNMemory, search_neighbors
from memjax.models import add_mixtures, make_language_model
from memjax.retrieval import knn_retriever, spalm_retriever
from tests.reference import knn_lm as reference
from tests.reference.parameters import params_of

VOCAB, SEGMENT, NEIGHBORS = 11, 4, 3
MODEL = config.Model(
    dim=8, num_layers=1, num_heads=2, attention=config.TransformerXL(memory_length=5), output=config.Softmax(tied=False)
)
RNG = np.random.default_rng(0)
STORE = reference.Store(RNG.normal(size=(30, 8)).astype(np.float32), RNG.integers(0, VOCAB, 30))
PROMPTS = [[1], [1, 2, 3, 4], [5, 6, 7, 1, 2, 3, 4, 8, 9]]


@functools.cache
def models():
    plain = make_language_model(MODEL, VOCAB)
    tokens, start = jnp.zeros((1, SEGMENT), jnp.int32), jnp.ones(1, bool)
    params = params_of(plain, tokens, plain.init_state(1), start_of_document=start, dtype=np.float32)
    knn = KNNMemory(num_neighbors=NEIGHBORS, interpolation_weight=0.7, temperature=4.0)
    cache = ContinuousCacheMemory(dim=8, memory_length=6, interpolation_weight=0.3)
    model = add_mixtures(plain, knn)
    return plain, model, add_mixtures(plain, cache, knn), {"params": jax.tree.map(jnp.asarray, params)}


@functools.partial(jax.jit, static_argnums=0)
def forward(model, variables, tokens, state, mask, start, extras):
    named = {"start_of_document": start, "mask": mask, "extras": extras}
    hidden, new, _ = model.apply(variables, tokens, state, **named)
    return hidden.recalled[-1].query, model.apply(variables, hidden, method="log_probs"), new


def next_token(model, variables, tokens: list[int]) -> int:
    """The most probable one: every segment twice, first for the keys, then with the neighbours of the store."""
    state, start = model.init_state(1), jnp.ones(1, bool)
    none = {"knn_distances": jnp.zeros((1, SEGMENT, NEIGHBORS)), "knn_values": jnp.full((1, SEGMENT, NEIGHBORS), -1)}
    for begin in range(0, len(tokens), SEGMENT):
        piece = tokens[begin : begin + SEGMENT]
        arguments = (
            jnp.array([piece + [0] * (SEGMENT - len(piece))]),
            state,
            jnp.arange(SEGMENT)[None] < len(piece),
            start,
        )
        query, _, _ = forward(model, variables, *arguments, none)
        found = search_neighbors(np.asarray(query[0]), STORE.search, STORE.values, NEIGHBORS)
        extras = {"knn_distances": jnp.asarray(found.distances)[None], "knn_values": jnp.asarray(found.values)[None]}
        _, log_probs, state = forward(model, variables, *arguments, extras)
        start = jnp.zeros(1, bool)
    return int(log_probs[0, len(piece) - 1].argmax())


@pytest.mark.parametrize("with_cache", [pytest.param(False, marks=pytest.mark.laws), True])
def test_greedy_equals_searching_for_the_whole_text_again(with_cache):
    plain, knn, both, variables = models()
    model = both if with_cache else knn
    settings = {"segment_length": SEGMENT, "max_tokens": 6, "sampling": Sampling(temperature=0)}
    recall = knn_retriever(model, STORE.search, STORE.values)
    blocks = list(stream_tokens(model, variables, PROMPTS, **settings, recall=recall))
    assert all(len(row) == 1 for block in blocks for row in block)
    rows = [[block[row][0] for block in blocks] for row in range(len(PROMPTS))]
    assert rows != generate(plain, variables, PROMPTS, **settings)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        tokens = list(prompt)
        for token in row:
            assert token == next_token(model, variables, tokens)
            tokens.append(token)


def test_without_a_search_the_model_is_alone():
    plain, model, _, variables = models()
    settings = {"segment_length": SEGMENT, "max_tokens": 6, "sampling": Sampling(temperature=0)}
    assert generate(model, variables, PROMPTS, **settings) == generate(plain, variables, PROMPTS, **settings)


def test_a_model_without_neighbors_is_refused():
    with pytest.raises(ValueError, match="model: given 0 KNNMemory among its mixtures, allowed: 1"):
        knn_retriever(models()[0], STORE.search, STORE.values)


# SPALM: a frozen model reads along


@functools.cache
def spalm_models():
    make = lambda output: make_language_model(
        config.Model(dim=8, num_layers=1, num_heads=2, attention=MODEL.attention, output=output), VOCAB
    )
    tokens, start = jnp.zeros((1, SEGMENT), jnp.int32), jnp.ones(1, bool)
    found = []
    for seed, model in enumerate([make(config.Spalm(softmax=config.Softmax(tied=False))), make(config.Softmax())]):
        params = params_of(model, tokens, model.init_state(1), start_of_document=start, seed=seed, dtype=np.float32)
        found += [model, {"params": jax.tree.map(jnp.asarray, params)}]
    return found


@functools.partial(jax.jit, static_argnums=0)
def read(model, variables, tokens, state, start, mask, extras):
    named = {"start_of_document": start, "mask": mask, **({"extras": extras} if extras else {})}
    hidden, state, _ = model.apply(variables, tokens, state, **named)
    return hidden, model.apply(variables, hidden, method="log_probs"), state


def next_of_spalm(tokens: list[int]) -> int:
    """The most probable one, from segment forward passes of both models over the whole text."""
    model, variables, key_model, key_variables = spalm_models()
    states, start = [model.init_state(1), key_model.init_state(1)], jnp.ones(1, bool)
    for begin in range(0, len(tokens), SEGMENT):
        piece = tokens[begin : begin + SEGMENT]
        padded = jnp.array([piece + [0] * (SEGMENT - len(piece))])
        mask = jnp.arange(SEGMENT)[None] < len(piece)
        keys, _, states[1] = read(key_model, key_variables, padded, states[1], start, mask, {})
        found = search_neighbors(np.asarray(keys[0]), STORE.search, STORE.values, 4)
        extras = {"neighbor_values": jnp.asarray(found.values)[None]}
        _, log_probs, states[0] = read(model, variables, padded, states[0], start, mask, extras)
        start = jnp.zeros(1, bool)
    return int(log_probs[0, len(piece) - 1].argmax())


@pytest.mark.laws
def test_spalm_generates_with_a_frozen_model_beside_it():
    model, variables, key_model, key_variables = spalm_models()
    settings = {"segment_length": SEGMENT, "max_tokens": 5, "sampling": Sampling(temperature=0)}
    recall = spalm_retriever(
        model, variables, key_model, key_variables, STORE.search, STORE.values, segment_length=SEGMENT
    )
    rows = generate(model, variables, PROMPTS, **settings, recall=recall)
    assert rows != generate(model, variables, PROMPTS, **settings)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        tokens = list(prompt)
        for token in row:
            assert token == next_of_spalm(tokens)
            tokens.append(token)


def test_other_models_are_refused_for_spalm():
    model, variables, key_model, key_variables = spalm_models()
    settings = {"segment_length": SEGMENT}
    with pytest.raises(ValueError, match="model: given one with NoneType and 0 mixtures, allowed: with Spalm"):
        spalm_retriever(key_model, variables, key_model, key_variables, STORE.search, STORE.values, **settings)
    cached = add_mixtures(model, ContinuousCacheMemory(dim=8, memory_length=6))
    with pytest.raises(ValueError, match="model: given one with SpalmMemory and 1 mixtures"):
        spalm_retriever(cached, variables, key_model, key_variables, STORE.search, STORE.values, **settings)
