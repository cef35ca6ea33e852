"""kNN-LM against loops: the neighbours of a store as a distribution, its mixture with a model, features as keys."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.memory.knn_lm import KNNMemory, neighbor_log_prob, read, search_neighbors
from memjax.memory.next_token_candidates import Prediction
from memjax.models import add_features, add_mixtures, make_language_model, regroup_layers
from memjax.models.transformer import TAPS
from memjax.typing import EmptyState
from tests.compiling import AS_USERS_DO
from tests.reference import knn_lm as reference
from tests.reference.parameters import params_of

DIM, VOCAB, ENTRIES = 4, 6, 12
RNG = np.random.default_rng(0)
STORE = reference.Store(RNG.normal(size=(ENTRIES, DIM)).astype(np.float32), RNG.integers(0, VOCAB, ENTRIES))
QUERIES = RNG.normal(size=(7, DIM))

log_probs_at = jax.jit(jax.vmap(neighbor_log_prob, (None, None, 0, None), out_axes=1))


def knn_probs(store, queries, num_neighbors: int, temperature: float = 1.0) -> np.ndarray:
    """`p_kNN` of each query, by the library."""
    found = search_neighbors(queries, store.search, store.values, num_neighbors)
    every = jnp.broadcast_to(jnp.arange(VOCAB)[:, None], (VOCAB, len(queries)))
    return np.exp(log_probs_at(jnp.asarray(found.distances), jnp.asarray(found.values), every, temperature))


def expected(store, queries, num_neighbors: int, temperature: float = 1.0) -> np.ndarray:
    rows = []
    for query in queries:
        ids, distances = reference.nearest(store.keys, query, num_neighbors)
        rows.append(reference.knn_probs(distances, store.tokens[ids], [True] * len(ids), VOCAB, temperature))
    return np.array(rows)


@pytest.mark.parametrize("num_neighbors, temperature", [(1, 1.0), (5, 0.5), (5, 4.0)])
def test_probabilities_of_a_store_equal_loops(num_neighbors, temperature):
    found = knn_probs(STORE, QUERIES, num_neighbors, temperature)
    np.testing.assert_allclose(found, expected(STORE, QUERIES, num_neighbors, temperature), atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_a_stored_key_finds_itself():
    """N3."""
    found = search_neighbors(STORE.keys, STORE.search, STORE.values, 3)
    assert found.ids[:, 0].tolist() == list(range(ENTRIES)) and not found.distances[:, 0].any()
    np.testing.assert_allclose(knn_probs(STORE, STORE.keys, 3, 1e-3), np.eye(VOCAB)[STORE.tokens], atol=1e-6)


def test_all_entries_are_a_kernel_density():
    """N4; more neighbours than entries change nothing."""
    weights = np.exp(-((QUERIES[:, None] - STORE.keys[None]) ** 2).sum(axis=-1))
    density = (weights / weights.sum(axis=1, keepdims=True)) @ np.eye(VOCAB)[STORE.tokens]
    for num_neighbors in (ENTRIES, ENTRIES + 3):
        np.testing.assert_allclose(knn_probs(STORE, QUERIES, num_neighbors), density, atol=1e-5)


def test_the_order_of_entries_does_not_matter():
    """N9."""
    order = np.random.default_rng(1).permutation(ENTRIES)
    other = reference.Store(STORE.keys[order], STORE.tokens[order])
    np.testing.assert_allclose(knn_probs(other, QUERIES, 4), knn_probs(STORE, QUERIES, 4), atol=1e-6)


def test_inner_products_are_negative_distances():
    def search(queries, num_neighbors):
        products = queries @ STORE.keys.T
        ids = np.argsort(-products, axis=1)[:, :num_neighbors]
        return np.take_along_axis(products, ids, axis=1), ids, np.ones(ids.shape, bool)

    found = search_neighbors(QUERIES, search, STORE.values, 3, metric="inner_product")
    np.testing.assert_allclose(found.distances[:, 0], -(QUERIES @ STORE.keys.T).max(axis=1), rtol=1e-5)
    with pytest.raises(ValueError, match="metric: given 'cosine', allowed: 'squared_l2' or 'inner_product'"):
        search_neighbors(QUERIES, search, STORE.values, 3, metric="cosine")
    with pytest.raises(ValueError, match=r"search: gave \(7, 3\) for 7 queries and 2 neighbours"):
        search_neighbors(QUERIES, lambda queries, k: search(queries, 3), STORE.values, 2)


# Over a language model

LENGTH = 4
MODEL = config.Model(
    dim=8, num_layers=2, num_heads=2, attention=config.TransformerXL(memory_length=5), output=config.Softmax(tied=False)
)


@functools.cache
def plain_model():
    model = make_language_model(MODEL, VOCAB)
    tokens, start = jnp.zeros((1, LENGTH), jnp.int32), jnp.ones(1, bool)
    return model, {"params": params_of(model, tokens, model.init_state(1), start_of_document=start, dtype=np.float32)}


TOKENS = jnp.asarray(np.random.default_rng(2).integers(0, VOCAB, (2, LENGTH)), jnp.int32)
NEIGHBORS = {
    "knn_distances": jnp.asarray(np.random.default_rng(3).gamma(2.0, 2.0, (2, LENGTH, 5)), jnp.float32),
    "knn_values": jnp.asarray(np.random.default_rng(4).integers(-2, VOCAB, (2, LENGTH, 5)).clip(-1), jnp.int32)
    .at[0, 1]
    .set(-1),
}


@functools.partial(jax.jit, static_argnums=0)
def forward(model, variables, extras):
    start = jnp.ones(2, bool)
    hidden, _, aux = model.apply(variables, TOKENS, model.init_state(2), start_of_document=start, extras=extras)
    nats = model.apply(variables, hidden, TOKENS, method="token_nll")
    parts = model.apply(variables, hidden, TOKENS, method="token_log_probs")
    return hidden, model.apply(variables, hidden, method="log_probs"), nats, parts, aux


@pytest.mark.parametrize("weight, temperature", [pytest.param(0.25, 1.0, marks=pytest.mark.laws), (0.7, 5.0)])
def test_a_model_with_neighbors_equals_the_reference(weight, temperature):
    """N2, N10, and the parts that are tuned."""
    plain, variables = plain_model()
    own = np.exp(forward(plain, variables, {})[1])
    model = add_mixtures(plain, KNNMemory(interpolation_weight=weight, temperature=temperature))
    hidden, log_probs, nats, parts, aux = forward(model, variables, NEIGHBORS)
    for b, t in np.ndindex(2, LENGTH):
        distances, values = (np.asarray(array[b, t]) for array in NEIGHBORS.values())
        knn = reference.knn_probs(distances, values, values >= 0, VOCAB, temperature)
        mixed = reference.interpolate(own[b, t], knn, weight)
        np.testing.assert_allclose(np.exp(log_probs[b, t]), mixed, atol=1e-6)
        target = int(TOKENS[b, t])
        np.testing.assert_allclose(np.exp(-nats[b, t]), mixed[target], atol=1e-6)
        alone = [own[b, t, target], knn[target] if knn.any() else own[b, t, target]]
        np.testing.assert_allclose(np.exp(parts[:, b, t]), alone, atol=1e-6)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-6)
    key = "layer_01/feed_forward_input_normed"
    np.testing.assert_array_equal(hidden.recalled[0].query, aux.arrays[key])
    assert aux.metrics["knn_lm/neighbors"].total == (np.asarray(NEIGHBORS["knn_values"]) >= 0).sum()


def test_weights_at_the_ends_and_no_neighbors_are_exact():
    """N1."""
    plain, variables = plain_model()
    compiled = jax.jit(forward.__wrapped__, static_argnums=0, compiler_options=AS_USERS_DO)
    log_probs = lambda model, extras: compiled(model, variables, extras)[1]
    own = log_probs(plain, {})
    none = {name: array[..., :2] for name, array in NEIGHBORS.items()} | {"knn_values": jnp.full((2, LENGTH, 2), -1)}
    at = lambda weight, extras: log_probs(add_mixtures(plain, KNNMemory(interpolation_weight=weight)), extras)
    np.testing.assert_array_equal(at(0.0, NEIGHBORS), own)
    np.testing.assert_array_equal(at(0.9, none), own)
    np.testing.assert_array_equal(at(0.9, {}), own)  # not searched yet
    whole = forward(add_mixtures(plain, KNNMemory(interpolation_weight=1.0)), variables, NEIGHBORS)[1]
    recalled = read(NEIGHBORS["knn_distances"], NEIGHBORS["knn_values"], interpolation_weight=1.0)
    some = np.asarray(recalled.weight) > 0
    weights = np.exp(recalled.scores)[some]
    values = np.asarray(recalled.tokens)[some]
    for probs, weight, value in zip(np.exp(whole)[some], weights, values, strict=True):
        knn = np.bincount(value, weight, minlength=VOCAB) / weight.sum()
        np.testing.assert_allclose(probs, knn, atol=1e-6)


@pytest.mark.laws
def test_a_cache_comes_before_the_neighbors():
    plain, variables = plain_model()
    cache = ContinuousCacheMemory(dim=8, memory_length=6, interpolation_weight=0.2)
    cached = add_mixtures(plain, cache)
    both = add_mixtures(cached, KNNMemory(interpolation_weight=0.4))
    first, second = (np.exp(forward(m, variables, NEIGHBORS if m is both else {})[1]) for m in (cached, both))
    distances, values = (np.asarray(array[1, 3]) for array in NEIGHBORS.values())
    knn = reference.knn_probs(distances, values, values >= 0, VOCAB)
    np.testing.assert_allclose(second[1, 3], reference.interpolate(first[1, 3], knn, 0.4), atol=1e-6)


# Keys

FEATURES = (*(f"layer_-1/{tap}" for tap in TAPS), "output", "output_normed")


@pytest.mark.laws
def test_decoding_gives_the_features_of_the_segment():
    """All six positions of keys, one token at a time."""
    plain, variables = plain_model()

    @functools.partial(jax.jit, static_argnums=0)
    def step(model, variables, token, state):
        return model.apply(variables, token, state, active=jnp.ones(2, bool), method="decode")

    model = add_mixtures(plain, *(KNNMemory(num_neighbors=2, query_feature=feature) for feature in FEATURES))
    hidden, *_ = forward(model, variables, {})
    state = model.init_decode_state(model.init_state(2), LENGTH, 2)
    for t in range(LENGTH):
        one, state = step(model, variables, TOKENS[:, t : t + 1], state)
        assert isinstance(one, Prediction)
        for found, whole in zip(one.recalled, hidden.recalled, strict=True):
            np.testing.assert_allclose(found.query[:, 0], whole.query[:, t], atol=1e-5)
            assert found.scores.shape == (2, 1, 2) and np.isneginf(found.scores).all()


def test_features_take_layers_out_of_their_group_and_variables_follow():
    model = make_language_model(dataclasses.replace(MODEL, num_layers=3, scan_layers=True), VOCAB)
    start = jnp.ones(2, bool)
    params = params_of(model, TOKENS, model.init_state(2), start_of_document=start, dtype=np.float32)
    variables = {"params": jax.tree.map(jnp.asarray, params)}
    tapped = add_features(model, "layer_-1/output", "output_normed")
    assert model.stack.layer_groups() == ((0, 3),) and tapped.stack.layer_groups() == ((0, 2), (2, 0))
    assert add_features(tapped, "layer_2/output").stack.features == ("layer_02/output",)
    regrouped = regroup_layers(variables, model, tapped)
    np.testing.assert_allclose(forward(tapped, regrouped, {})[1], forward(model, variables, {})[1], atol=1e-6)
    assert set(forward(tapped, regrouped, {})[4].arrays) == {"layer_02/output", "output_normed"}
    jax.tree.map(np.testing.assert_array_equal, regroup_layers(regrouped, tapped, model), variables)


def test_mistakes_are_named():
    plain, variables = plain_model()
    with pytest.raises(ValueError, match="KNNMemory needs knn_distances, knn_values: documents annotated"):
        add_mixtures(plain, KNNMemory()).select_extras({"target_bytes": np.zeros((2, 4))})
    assert add_mixtures(plain, KNNMemory()).select_extras(NEIGHBORS | {"more": 0}) == NEIGHBORS
    with pytest.raises(ValueError, match="features: given 'outptu', allowed: layer_<index>/<tap>, output"):
        add_features(plain, "outptu")
    with pytest.raises(ValueError, match="features: given 'layer_3/output', allowed: layer_<index>/<tap>"):
        forward(add_features(plain, "layer_3/output"), variables, {})
    with pytest.raises(ValueError, match="query_feature: given 'layer_-1/feed_forward_input_normed', the model gives"):
        forward(plain.clone(mixtures=(KNNMemory(),)), variables, {})
    for fields, line in [
        ({"temperature": 0.0}, "temperature: given 0.0, allowed: a number above 0"),
        ({"interpolation_weight": -0.1}, "interpolation_weight: given -0.1, allowed: 0 to 1"),
        ({"num_neighbors": 0}, "num_neighbors: given 0, allowed: 1 or more"),
    ]:
        with pytest.raises(ValueError, match=line):
            KNNMemory(**fields).init_state(2)
    assert KNNMemory().init_state(2) == EmptyState()
