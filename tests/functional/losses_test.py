"""Cross-entropy against the definition; positions that are not scored must not exist."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax import functional
from tests.reference import losses as reference

# One program per test instead of one per operation.
token_cross_entropy = jax.jit(functional.token_cross_entropy, static_argnames="label_smoothing")
cross_entropy_sum = jax.jit(functional.cross_entropy_sum, static_argnames="label_smoothing")


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    return 3 * rng.normal(size=(2, 3, 5)), rng.integers(0, 5, (2, 3))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_matches_the_definition(case, label_smoothing):
    logits, targets = case
    expected = [
        [reference.cross_entropy(logits[b, i], targets[b, i], label_smoothing) for i in range(3)] for b in range(2)
    ]
    with jax.enable_x64(True):
        got = token_cross_entropy(jnp.asarray(logits), jnp.asarray(targets), label_smoothing=label_smoothing)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_derivatives(case, label_smoothing):
    """Values and first derivatives, forward and reverse, and the second, are those of optax's plain formula."""
    wanted = (1 - label_smoothing) * np.eye(5)[case[1]] + label_smoothing / 5

    def theirs(x):
        return jnp.sum(jnp.sin(optax.softmax_cross_entropy(x, jnp.asarray(wanted))))

    def ours(x):
        return jnp.sum(jnp.sin(token_cross_entropy(x, jnp.asarray(case[1]), label_smoothing=label_smoothing)))

    with jax.enable_x64(True):
        x = jnp.asarray(case[0])
        expected, got = (
            jax.jit(lambda x, f=f: (f(x), jax.grad(f)(x), jax.jacfwd(f)(x), jax.hessian(f)(x)))(x)
            for f in (theirs, ours)
        )
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_gradient_needs_no_scatter(case):
    logits, targets = jnp.asarray(case[0], jnp.float32), jnp.asarray(case[1])
    program = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(token_cross_entropy(x, targets))))(logits)
    assert "scatter" not in str(program)


def test_uniform_logits_cost_log_vocab():
    np.testing.assert_allclose(token_cross_entropy(jnp.zeros((1, 7)), jnp.array([3])), np.log(7), rtol=1e-6)


def test_large_logits_stay_finite():
    logits = jnp.array([[1e4, -1e4, 0.0]])
    np.testing.assert_allclose(token_cross_entropy(logits, jnp.array([0])), 0.0, atol=1e-6)
    np.testing.assert_allclose(token_cross_entropy(logits, jnp.array([1])), 2e4, rtol=1e-6)


def test_low_precision_logits_are_summed_in_float32(case):
    logits, targets = jnp.asarray(case[0], jnp.bfloat16), jnp.asarray(case[1])
    got = token_cross_entropy(logits, targets)
    assert got.dtype == jnp.float32
    wide = jnp.asarray(np.asarray(logits, np.float32))
    np.testing.assert_allclose(got, token_cross_entropy(wide, targets), rtol=1e-6)
    slope = jax.grad(lambda x: cross_entropy_sum(x, targets, jnp.ones((2, 3))).total)
    assert jax.eval_shape(slope, logits).dtype == jnp.bfloat16


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_what_is_not_scored_does_not_exist(case, label_smoothing):
    logits, targets = jnp.asarray(case[0], jnp.float32), jnp.asarray(case[1])
    weights = jnp.array([[1.0, 0.0, 0.5], [0.0, 0.0, 2.0]])

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(logits, targets):
        result = cross_entropy_sum(logits, targets, weights, label_smoothing=label_smoothing)
        return result.total, result.weight

    (clean, weight), slope = run(logits, targets)
    nats = np.asarray(token_cross_entropy(logits, targets, label_smoothing=label_smoothing))
    np.testing.assert_allclose(clean, np.sum(nats * np.asarray(weights)), rtol=1e-6)
    assert weight == 3.5
    scored = np.asarray(weights)[..., None] != 0
    assert np.all(np.asarray(slope)[~np.broadcast_to(scored, slope.shape)] == 0)
    for bad, target in ((np.nan, 0), (np.nan, -100), (np.inf, 1), (-np.inf, 99)):
        spoiled = np.where(scored, logits, np.float32(bad)), np.where(scored[..., 0], targets, np.int32(target))
        (again, _), slope_again = run(*map(jnp.asarray, spoiled))
        assert again == clean and np.array_equal(slope_again, slope)


def test_targets_outside_the_vocabulary_are_not_scored():
    logits = jnp.array([[0.0, 1.0], [2.0, 1.0], [0.0, 0.0]])
    targets = jnp.array([-1, 2, 1])
    np.testing.assert_allclose(token_cross_entropy(logits, targets), [0, 0, np.log(2)], rtol=1e-6)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(token_cross_entropy(x, targets))))(logits)
    assert np.all(np.asarray(slope)[:2] == 0) and np.all(np.asarray(slope)[2] != 0)


@pytest.mark.parametrize("masked", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_masked_vocabulary_entries_take_no_part(case, masked, label_smoothing):
    logits, targets = jnp.asarray(case[0], jnp.float32), jnp.asarray(case[1])
    padded = jnp.asarray(np.concatenate([logits, np.full((2, 3, 3), masked, np.float32)], axis=-1))

    @jax.jit
    @jax.value_and_grad
    def run(logits):
        return jnp.sum(token_cross_entropy(logits, targets, label_smoothing=label_smoothing))

    (expected, slope_expected), (got, slope) = run(logits), run(padded)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(slope)[..., :5], slope_expected, atol=1e-6)
    assert np.all(np.asarray(slope)[..., 5:] == 0)


def test_label_smoothing_range():
    with pytest.raises(ValueError, match="label_smoothing: given 1.0"):
        token_cross_entropy(jnp.zeros((1, 2)), jnp.array([0]), label_smoothing=1.0)
