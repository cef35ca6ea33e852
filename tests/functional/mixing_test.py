"""Merges of memory and local output, and of distributions of tokens, by hand and against float64 loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional
from tests.reference import knn_lm as reference

# One program per test instead of one per operation.
head_gate = jax.jit(functional.head_gate, static_argnames="dilute_empty")
stop_forward = jax.jit(functional.stop_forward)

SHAPE = (2, 3, 2, 4)  # batch, length, heads, value_dim


@pytest.fixture
def outputs():
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=SHAPE), jnp.float32) for _ in range(2))


def test_gate_by_hand():
    memory, local = jnp.full((1, 1, 2, 1), 8.0), jnp.full((1, 1, 2, 1), 4.0)
    got = head_gate(jnp.array([0.0, jnp.log(3.0)]), memory, local)  # gates 1/2 and 3/4
    np.testing.assert_allclose(got.ravel(), [6.0, 7.0], rtol=1e-6)


def test_gate_open_and_closed(outputs):
    """M3: a gate at minus infinity leaves the local output, at plus infinity the memory."""
    memory, local = outputs
    assert np.array_equal(head_gate(jnp.full(2, -jnp.inf), memory, local), local)
    assert np.array_equal(head_gate(jnp.full(2, jnp.inf), memory, local), memory)


def test_without_memory_the_local_output_is_not_diluted(outputs):
    """M7, by row, by query and by head."""
    memory, local = outputs
    logits = jnp.array([0.0, 1.0])
    mixed = np.asarray(head_gate(logits, memory, local))
    for has_memory in (
        np.array([True, False]),
        np.arange(6).reshape(2, 3) % 2 == 0,
        np.arange(12).reshape(2, 3, 2) % 3 == 0,
    ):
        present = np.broadcast_to(has_memory.reshape(has_memory.shape + (1,) * (4 - has_memory.ndim)), SHAPE)
        got = np.asarray(head_gate(logits, memory, local, jnp.asarray(has_memory)))
        np.testing.assert_allclose(got[present], mixed[present], rtol=1e-6)
        assert np.array_equal(got[~present], np.asarray(local)[~present])


def test_published_code_dilutes(outputs):
    memory, local = outputs
    logits, has_memory = jnp.array([0.0, 1.0]), jnp.array([True, False])
    got = np.asarray(head_gate(logits, memory, local, has_memory, dilute_empty=True))
    np.testing.assert_allclose(got[0], np.asarray(head_gate(logits, memory, local))[0], rtol=1e-6)
    kept = 1 / (1 + np.exp(np.asarray(logits)))
    np.testing.assert_allclose(got[1], np.asarray(local)[1] * kept[None, :, None], rtol=1e-6)


def test_gate_gradients(outputs):
    """The gate learns wherever there is memory, and only there; nothing flows into an absent memory."""
    memory, local = outputs
    has_memory = jnp.array([True, False])

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def slopes_of(logits, memory, local, present):
        return jnp.sum(head_gate(logits, memory, local, present))

    slopes = slopes_of(jnp.zeros(2), memory, local, has_memory)
    expected = 0.25 * (np.asarray(memory) - np.asarray(local))[0].sum(axis=(0, 2))
    np.testing.assert_allclose(slopes[0], expected, rtol=1e-5)
    assert np.all(np.asarray(slopes[1])[1] == 0) and np.all(np.asarray(slopes[1])[0] == 0.5)
    assert np.all(np.asarray(slopes[2])[1] == 1) and np.all(np.asarray(slopes[2])[0] == 0.5)
    never = slopes_of(jnp.zeros(2), jnp.full(SHAPE, jnp.nan), local, jnp.array([False, False]))
    assert np.all(np.asarray(never[0]) == 0)


def test_dtypes():
    logits = jax.ShapeDtypeStruct((2,), jnp.float32)
    wide, narrow = (jax.ShapeDtypeStruct(SHAPE, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    assert jax.eval_shape(head_gate, logits, narrow, narrow).dtype == jnp.bfloat16
    assert jax.eval_shape(stop_forward, wide, narrow).dtype == jnp.bfloat16
    with jax.enable_x64(True):
        double = jax.ShapeDtypeStruct(SHAPE, jnp.float64)
        assert jax.eval_shape(head_gate, logits, double, double).dtype == jnp.float64


def test_stop_forward(outputs):
    memory, local = outputs
    assert np.array_equal(stop_forward(memory, local), memory)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=SHAPE), jnp.float32)
    slopes = jax.jit(jax.grad(lambda m, c: jnp.sum(weights * stop_forward(m, c)), (0, 1)))(memory, local)
    assert np.array_equal(slopes[0], weights) and np.array_equal(slopes[1], weights)
    present = jnp.array([True, False])
    got = np.asarray(stop_forward(memory, local, present))
    assert np.array_equal(got[0], np.asarray(memory)[0]) and np.array_equal(got[1], np.asarray(local)[1])


def test_has_memory_of_wrong_rank(outputs):
    with pytest.raises(
        ValueError, match=r"has_memory: given \(2, 3, 2, 4\), allowed: \[batch\] or \[batch, length\] or .*, not 4 axes"
    ):
        head_gate(jnp.zeros(2), *outputs, jnp.ones(SHAPE, bool))


# Distributions of tokens

VOCAB = 7


@functools.cache
def candidates() -> dict[str, np.ndarray]:
    """Two rows of three positions with six candidates, in float64; some are missing, at one position all are."""
    rng = np.random.default_rng(3)
    valid = rng.random((2, 3, 6)) < 0.7
    valid[0, 1], valid[1, 2] = False, True
    log_probs = rng.normal(size=(2, 3, VOCAB))
    return {
        "distances": np.where(valid, rng.gamma(2.0, 4.0, (2, 3, 6)), np.inf),
        "values": np.where(valid, rng.integers(0, VOCAB, (2, 3, 6)), -1).astype(np.int32),
        "valid": valid,
        "log_probs": log_probs - np.log(np.exp(log_probs).sum(axis=-1, keepdims=True)),
    }


@functools.partial(jax.jit, static_argnames="vocab_size")
def log_probs_of(distances, values, valid, temperature, vocab_size=VOCAB):
    scores = functional.distance_scores(distances, temperature, valid)
    return functional.candidate_log_probs(functional.candidate_log_weights(scores), values, vocab_size)


def expected_probs(temperature=1.0):
    parts = [candidates()[name].reshape(6, -1) for name in ("distances", "values", "valid")]
    rows = [reference.knn_probs(*row, VOCAB, temperature) for row in zip(*parts, strict=True)]
    return np.array(rows).reshape(2, 3, VOCAB)


def as_float32(*names):
    return [jnp.asarray(candidates()[name], None if name in ("values", "valid") else jnp.float32) for name in names]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 30.0])
def test_candidate_probabilities_equal_loops(temperature):
    arrays = as_float32("distances", "values", "valid")
    found = np.exp(log_probs_of(*arrays, temperature))
    np.testing.assert_allclose(found, expected_probs(temperature), atol=1e-6)
    there = candidates()["valid"].any(axis=-1)
    np.testing.assert_allclose(found.sum(axis=-1), there.astype(float), atol=1e-6)  # N2
    with jax.enable_x64(True):
        arrays = [jnp.asarray(candidates()[name]) for name in ("distances", "values", "valid")]
        np.testing.assert_allclose(np.exp(log_probs_of(*arrays, temperature)), expected_probs(temperature), atol=1e-14)


def test_one_token_equals_the_whole_vocabulary_however_improbable():
    """N10; far candidates have weights that no float32 probability could hold."""
    distances, values, valid = as_float32("distances", "values", "valid")

    @jax.jit
    def both(distances):
        log_weights = functional.candidate_log_weights(functional.distance_scores(distances, 1.0, valid))
        targets = jnp.broadcast_to(jnp.arange(VOCAB), (2, 3, VOCAB))
        one = functional.candidate_log_prob(log_weights[..., None, :], values[..., None, :], targets)
        return one, functional.candidate_log_probs(log_weights, values, VOCAB)

    for scale in (1.0, 100.0):
        one, whole = both(scale * distances)
        np.testing.assert_allclose(one, whole, rtol=1e-6, atol=1e-6)
    assert np.isneginf(one).any() and np.asarray(one)[np.isfinite(one)].min() < -120


def test_temperatures_at_the_ends():
    distances, values, valid = as_float32("distances", "values", "valid")
    flat = np.exp(log_probs_of(distances, values, valid, jnp.inf))
    for b, t in np.ndindex(2, 3):  # N8: the histogram of the values
        there = candidates()["values"][b, t][candidates()["valid"][b, t]]
        histogram = np.bincount(there, minlength=VOCAB) / max(len(there), 1)
        np.testing.assert_allclose(flat[b, t], histogram, atol=1e-6)
    cold = np.exp(log_probs_of(distances, values, valid, 1e-6))
    nearest = np.take_along_axis(candidates()["values"], candidates()["distances"].argmin(-1)[..., None], -1)[..., 0]
    hot = np.where(nearest[..., None] < 0, 0, np.eye(VOCAB)[nearest])  # N3
    np.testing.assert_allclose(cold, hot, atol=1e-6)


def test_order_duplicates_and_constants_of_distances():
    distances, values, valid = as_float32("distances", "values", "valid")
    probs = lambda *arrays: np.exp(log_probs_of(*arrays, 1.0))
    plain = probs(distances, values, valid)
    order = np.random.default_rng(0).permutation(6)
    shuffled = probs(distances[..., order], values[..., order], valid[..., order])  # N5, N9
    np.testing.assert_allclose(shuffled, plain, atol=1e-6)
    np.testing.assert_allclose(probs(distances + 16.0, values, valid), plain, atol=1e-5)  # N12
    twice = probs(*(jnp.concatenate([part, part], axis=-1) for part in (distances, values, valid)))
    np.testing.assert_allclose(twice, plain, atol=1e-6)
    two, values, valid = jnp.full((1, 2), 3.0), jnp.array([[0, 1]]), jnp.ones((1, 2), bool)
    doubled = [jnp.concatenate([part, part[:, :1]], axis=-1) for part in (two, values, valid)]
    np.testing.assert_allclose(probs(*doubled)[0, :2], [2 / 3, 1 / 3], atol=1e-6)  # N6


def test_tokens_may_be_shared_by_positions_and_strangers_are_left_out():
    log_weights = jnp.log(jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(4), (2, 3)), jnp.float32))
    tokens = jnp.array([[1, 5, 1, 6], [0, -1, 9, 3]])[:, None]
    found = np.exp(functional.candidate_log_probs(log_weights, tokens, VOCAB))
    weights = np.exp(log_weights)
    np.testing.assert_allclose(found[0, :, 1], weights[0, :, 0] + weights[0, :, 2], atol=1e-6)
    np.testing.assert_allclose(found[1].sum(axis=-1), weights[1, :, 0] + weights[1, :, 3], atol=1e-6)
    one = functional.candidate_log_prob(log_weights, tokens, jnp.array([[1, 5, 2], [0, 0, 3]]))
    np.testing.assert_allclose(np.exp(one[0]), [found[0, 0, 1], found[0, 1, 5], 0], atol=1e-6)


def test_interpolation_by_hand_and_exact_at_the_ends():
    rng = np.random.default_rng(5)
    first, second = (np.log(rng.dirichlet(np.ones(VOCAB), (2, 3))) for _ in range(2))
    first[0, 0, 0] = second[0, 0, :2] = -np.inf
    a, b = jnp.asarray(first, jnp.float32), jnp.asarray(second, jnp.float32)
    interpolate = jax.jit(functional.interpolate_log_probs)
    for weight in np.float32([0.25, 1e-6, 1 - 1e-6]).astype(float):
        expected = (1 - weight) * np.exp(first) + weight * np.exp(second)
        np.testing.assert_allclose(np.exp(interpolate(a, b, weight)), expected, rtol=1e-5)
    assert np.array_equal(interpolate(a, b, 0.0), a) and np.array_equal(interpolate(a, b, 1.0), b)  # N1
    assert np.isneginf(interpolate(a, b, 0.5)[0, 0, 0])
    each = interpolate(a, b, jnp.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]))
    assert np.array_equal(each[0, 1], b[0, 1]) and np.array_equal(each[1, 1:], a[1, 1:])


def test_joined_softmax_equals_its_definition():
    rng = np.random.default_rng(6)
    logits, scores, tokens = rng.normal(size=(4, VOCAB)), rng.normal(size=(4, 5)), rng.integers(0, VOCAB, (4, 5))
    scores[1], scores[2, :3] = -np.inf, -np.inf
    masses = np.exp(logits)
    for row in range(4):
        for score, token in zip(scores[row], tokens[row], strict=True):
            masses[row, token] += np.exp(score)

    @jax.jit
    def join(logits, scores):
        matching = functional.candidate_log_probs(scores, jnp.asarray(tokens), VOCAB)
        normalizer, total = jax.nn.logsumexp(logits, axis=-1), functional.candidate_log_total(scores)
        return functional.join_log_probs(jax.nn.log_softmax(logits), normalizer, matching, total)

    found = join(jnp.asarray(logits, jnp.float32), jnp.asarray(scores, jnp.float32))
    np.testing.assert_allclose(np.exp(found), masses / masses.sum(axis=-1, keepdims=True), rtol=1e-5)
    assert np.array_equal(found[1], jax.jit(jax.nn.log_softmax)(jnp.asarray(logits, jnp.float32))[1])


def test_gradients_of_distributions_are_finite_and_right():
    distances, values, valid = (jnp.asarray(candidates()[name]) for name in ("distances", "values", "valid"))
    log_probs = jnp.asarray(candidates()["log_probs"], jnp.float32).at[0, 0, 0].set(-jnp.inf)
    targets = jnp.array([[0, 1, 2], [3, 4, 5]])

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2, 3))
    def slopes_of(distances, temperature, weight, log_probs):
        scores = functional.distance_scores(distances, temperature, valid)
        log_weights = functional.candidate_log_weights(scores)
        whole = functional.candidate_log_probs(log_weights, values, VOCAB)
        mixed = functional.interpolate_log_probs(log_probs, whole, weight)
        one = functional.candidate_log_prob(log_weights, values, targets)
        own = jnp.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
        return jnp.where(mixed > -20, mixed, 0).sum() + functional.interpolate_log_probs(own, one, weight)[1].sum()

    slopes = slopes_of(distances.astype(jnp.float32), 2.0, 0.3, log_probs)
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert not np.asarray(slopes[0])[~candidates()["valid"]].any() and np.asarray(slopes[0]).any()
    step, at = 1e-3, lambda w: np.log((1 - w) * 0.5 + w * 0.25)
    found = jax.grad(lambda w: functional.interpolate_log_probs(jnp.log(jnp.float32(0.5)), jnp.log(0.25), w))(0.3)
    np.testing.assert_allclose(found, (at(0.3 + step) - at(0.3 - step)) / (2 * step), rtol=1e-3)


def test_distributions_are_at_least_float32():
    scores, tokens = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), jax.ShapeDtypeStruct((2, 3), jnp.int32)
    weights = jax.eval_shape(functional.candidate_log_weights, scores)
    probs = jax.eval_shape(lambda w, t: functional.candidate_log_probs(w, t, VOCAB), weights, tokens)
    mixed = jax.eval_shape(lambda a, b: functional.interpolate_log_probs(a, b, 0.5), scores, scores)
    assert weights.dtype == probs.dtype == mixed.dtype == jnp.float32
    with jax.enable_x64(True):
        scores = jax.ShapeDtypeStruct((2, 3), jnp.float64)
        assert jax.eval_shape(functional.candidate_log_weights, scores).dtype == jnp.float64
