"""Merges of memory and local output, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional

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
    with pytest.raises(ValueError, match=r"has_memory: shape \(2, 3, 2, 4\) given"):
        head_gate(jnp.zeros(2), *outputs, jnp.ones(SHAPE, bool))
