"""Positions against the definitions, and invariances of the relative form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional import bucket_bias, relative_buckets, relative_distances, relative_shift, sinusoids
from tests.reference import positions as reference


@pytest.mark.parametrize("dim", [2, 6])
def test_sinusoids_are_halves_side_by_side(dim):
    positions = np.array([[0, 1, 7], [300, -2, 5000]])
    expected = [[reference.sinusoid(p, dim) for p in row] for row in positions]
    static = sinusoids(positions, dim)
    assert static.dtype == jnp.float32
    np.testing.assert_allclose(static, expected, atol=1e-7)
    np.testing.assert_allclose(sinusoids(jnp.asarray(positions), dim), expected, atol=1e-3)  # float32 angles of 5000
    with jax.enable_x64(True):
        assert sinusoids(positions, dim).dtype == jnp.float64
        np.testing.assert_allclose(sinusoids(positions, dim), expected, atol=1e-14)
        np.testing.assert_allclose(sinusoids(jnp.asarray(positions), dim), expected, atol=1e-11)


def test_sinusoids_of_low_precision_positions_are_computed_in_float32():
    assert sinusoids(jnp.arange(3, dtype=jnp.bfloat16), 4).dtype == jnp.float32


@pytest.mark.parametrize("dim", [0, 3])
def test_sinusoids_need_an_even_width(dim):
    with pytest.raises(ValueError, match=rf"dim: given {dim}, allowed: a positive even number"):
        sinusoids(np.arange(2), dim)


@pytest.mark.parametrize("length, total", [(1, 1), (1, 4), (3, 3), (3, 7), (4, 5)])
def test_shift_equals_direct_relative_scores(length, total):
    """T4: shifting scores by distance gives the scores by key, exactly, wherever the key is not in the future."""
    rng = np.random.default_rng(0)
    # small integers, so that "exactly" does not depend on the order of the sum
    queries, by_distance = rng.integers(-9, 10, (2, 3, length, 4)), rng.integers(-9, 10, (total, 4))
    scores = jnp.einsum("bhld,td->bhlt", jnp.asarray(queries), jnp.asarray(by_distance[::-1].copy()))
    shifted = np.asarray(relative_shift(scores))
    for b, h in np.ndindex(2, 3):
        expected = reference.position_scores(queries[b, h], by_distance)
        causal = ~np.isnan(expected)
        assert causal.sum() == (relative_distances(length, total) >= 0).sum()
        assert np.array_equal(shifted[b, h][causal], expected[causal])


def test_shift_is_a_reshape_both_ways():
    """No gather forward, no scatter backward."""
    program = jax.make_jaxpr(jax.grad(lambda s: jnp.sum(relative_shift(s) ** 2)))(jnp.zeros((2, 3, 5)))
    assert not {"gather", "scatter", "scatter-add"} & {equation.primitive.name for equation in program.eqns}


def test_scores_depend_on_distances_only():
    """T4: adding a constant to all absolute positions changes nothing."""
    for offset in (0, 11):
        queries, keys = np.arange(4, 7) + offset, np.arange(7) + offset
        assert np.array_equal(relative_distances(3, 7), queries[:, None] - keys[None])
    assert relative_distances(3, 7).dtype == np.int32


def test_buckets_of_t5():
    """Spec 6.2: n below 16 exact, else 16 + floor(log(n / 16) / log(8) * 16), capped at 31."""
    distances = np.arange(-3, 300)
    got = relative_buckets(distances)
    for n, bucket in zip(distances, got, strict=True):
        n = max(n, 0)
        assert bucket == (n if n < 16 else min(31, 16 + np.floor(np.log(n / 16) / np.log(8) * 16 + 1e-9)))
    assert got.dtype == np.int32 and isinstance(got, np.ndarray)


@pytest.mark.parametrize("num_buckets, max_distance", [(2, 5), (8, 64), (8, 20), (5, 9), (10, 160), (32, 128)])
def test_buckets_match_the_definition(num_buckets, max_distance):
    distances = np.arange(-2, 2 * max_distance)
    expected = [reference.bucket(n, num_buckets, max_distance) for n in distances]
    assert np.array_equal(relative_buckets(distances, num_buckets, max_distance), expected)
    traced = jax.jit(lambda n: relative_buckets(n, num_buckets, max_distance))(jnp.asarray(distances))
    assert np.array_equal(traced, expected) and traced.dtype == jnp.int32
    assert expected[-1] == num_buckets - 1


def test_bucket_errors():
    with pytest.raises(ValueError, match="num_buckets: given 1, allowed: at least 2"):
        relative_buckets(np.arange(3), 1)
    with pytest.raises(ValueError, match="max_distance: given 16, allowed: above num_buckets // 2 = 16"):
        relative_buckets(np.arange(3), 32, 16)


@pytest.mark.parametrize("length, total", [(1, 1), (3, 3), (2, 6), (6, 6)])
def test_bias_is_looked_up_by_distance(length, total):
    table = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    distances = relative_distances(length, total)
    expected = table[:, relative_buckets(distances, 4, 5)]
    static = jax.jit(lambda t, d=distances: bucket_bias(t, d, max_distance=5))
    assert np.array_equal(static(jnp.asarray(table)), expected)
    # any other static distances, and traced ones of one or of many rows
    other = np.asarray(distances[:, ::-1])
    assert np.array_equal(bucket_bias(jnp.asarray(table), other, max_distance=5), expected[:, :, ::-1])
    traced = jax.jit(lambda d: bucket_bias(jnp.asarray(table), d, max_distance=5))
    assert np.array_equal(traced(jnp.asarray(distances)), expected)
    assert np.array_equal(traced(jnp.asarray(np.stack([distances, other]))), np.stack([expected, expected[:, :, ::-1]]))


def test_bias_gradient_counts_the_distances():
    table, distances = jnp.zeros((2, 4)), relative_distances(3, 5)
    weights = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    buckets = relative_buckets(distances, 4, 5)
    expected = [[weights[h][buckets == n].sum() for n in range(4)] for h in range(2)]
    for form in (distances, jnp.asarray(distances)):
        slope = jax.jit(jax.grad(lambda t, d=form: jnp.sum(weights * bucket_bias(t, d, max_distance=5))))(table)
        np.testing.assert_allclose(slope, expected, rtol=1e-5)
    program = jax.make_jaxpr(jax.grad(lambda t: jnp.sum(bucket_bias(t, distances, max_distance=5) ** 2)))(table)
    assert not {"gather", "scatter", "scatter-add"} & {equation.primitive.name for equation in program.eqns}
