import jax
import jax.numpy as jnp
import numpy as np

from memjax.memory.adapters import AdaptedMatrix, LowRank, merge_low_rank
from memjax.memory.layer_parts import project

HEADS, WIDTH, DIM, RANK = 2, 3, 5, 2


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def adapter(key=None, dropout=0.0, seed=0):
    a, b = (jnp.asarray(drawn(*shape, seed=n)) for shape, n in (((DIM, RANK), seed), ((RANK, HEADS, WIDTH), seed + 1)))
    return LowRank(a, b, key, 0.5, dropout)


def product(x, low_rank):
    return 0.5 * np.tensordot(x @ low_rank.a, low_rank.b, 1)


def test_each_matrix_of_a_parameter_gets_its_own_product():
    x, matrix, low_rank = drawn(4, 6, DIM), drawn(DIM, 2, HEADS, WIDTH, seed=3), adapter()
    y = project(jnp.asarray(x), AdaptedMatrix(jnp.asarray(matrix), (None, low_rank)))
    expected = np.tensordot(x, matrix, 1)
    np.testing.assert_array_equal(y[:, :, 0], project(jnp.asarray(x), jnp.asarray(matrix))[:, :, 0])
    np.testing.assert_allclose(y[:, :, 1], expected[:, :, 1] + product(x, low_rank), rtol=1e-4, atol=1e-5)
    merged = merge_low_rank(matrix, 1, 2, np.asarray(low_rank.a), np.asarray(low_rank.b), 0.5)
    np.testing.assert_allclose(np.tensordot(x, merged, 1), y, rtol=1e-4, atol=1e-5)


def test_the_last_axes_of_the_input_may_be_several():
    x, matrix = drawn(4, HEADS, WIDTH), drawn(HEADS, WIDTH, DIM, seed=3)
    a, b = drawn(HEADS, WIDTH, RANK, seed=4), drawn(RANK, DIM, seed=5)
    y = project(
        jnp.asarray(x),
        AdaptedMatrix(jnp.asarray(matrix), (LowRank(jnp.asarray(a), jnp.asarray(b), None, 2.0, 0.0),)),
        axes=2,
    )
    flat = lambda array: array.reshape(HEADS * WIDTH, -1)
    expected = x.reshape(4, -1) @ (flat(matrix) + 2 * flat(a) @ b)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(merge_low_rank(matrix, 0, 1, a, b, 2.0), matrix + 2 * np.tensordot(a, b, 1), rtol=1e-5)


def test_dropout_is_on_the_input_of_the_adapter_alone():
    x, zeros = drawn(64, DIM), np.zeros((DIM, 1, HEADS, WIDTH), np.float32)
    low_rank = adapter(jax.random.key(0), 0.25)
    mask = np.asarray(jax.random.bernoulli(jax.random.key(0), 0.75, x.shape))
    assert 0.6 < mask.mean() < 0.9
    y = project(jnp.asarray(x), AdaptedMatrix(jnp.asarray(zeros), (low_rank,)))
    np.testing.assert_allclose(y[:, 0], product(np.where(mask, x / 0.75, 0), low_rank), rtol=1e-4, atol=1e-5)
    matrix = drawn(DIM, 1, HEADS, WIDTH, seed=3)
    with_matrix = project(jnp.asarray(x), AdaptedMatrix(jnp.asarray(matrix), (low_rank,)))
    np.testing.assert_allclose(with_matrix - y, np.tensordot(x, matrix, 1), rtol=1e-3, atol=1e-4)
