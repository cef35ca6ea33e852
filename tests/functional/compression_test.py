"""Compression functions and their losses against loops, by hand, and what has a gradient."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional
from tests.reference import compressive as reference

ROWS, DIM, HEADS, HEAD_DIM = 2, 3, 2, 4

# One program per test instead of one per operation.
max_pool = jax.jit(functional.max_pool, static_argnums=1)
mean_pool = jax.jit(functional.mean_pool, static_argnums=1)
strided_convolution = jax.jit(functional.strided_convolution)
dilated_convolutions = jax.jit(functional.dilated_convolutions, static_argnums=2)
most_used = jax.jit(functional.keep_most_used, static_argnums=3)
window_validity = jax.jit(functional.window_validity, static_argnums=1)
transposed_convolution = jax.jit(functional.transposed_convolution)
attention_reconstruction = jax.jit(functional.attention_reconstruction, static_argnames="reduction")
auto_encoding = jax.jit(functional.auto_encoding)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# The functions

SIZES = [(4, 2), (6, 3), (7, 2), (5, 5), (3, 1), (8, 3)]


@pytest.mark.parametrize("length, rate", SIZES)
def test_compressions_equal_the_reference(length, rate, float64):
    x, kernel = draw(0, ROWS, length, DIM), draw(1, rate, DIM, DIM)
    kernels, dilations = draw(2, 2, 2, DIM, DIM), (1, 3)
    equal = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12)
    for b, row in enumerate(x):
        equal(max_pool(x, rate)[b], reference.max_pool(row, rate))
        equal(mean_pool(x, rate)[b], reference.mean_pool(row, rate))
        equal(strided_convolution(x, kernel)[b], reference.strided_convolution(row, kernel))
        equal(dilated_convolutions(x, kernels, dilations)[b], reference.dilated_convolutions(row, kernels, dilations))
    assert max_pool(x, rate).shape == (ROWS, length // rate, DIM)


def test_a_remainder_is_dropped_at_the_old_end():
    x = jnp.arange(5.0).reshape(1, 5, 1)
    np.testing.assert_array_equal(max_pool(x, 2).ravel(), [2, 4])
    np.testing.assert_array_equal(window_validity(jnp.array([[False, True, True, True, False]]), 2), [[True, False]])


def test_pools_of_a_constant_are_the_constant_and_the_largest_is_not_below_the_mean():
    """C3."""
    constant = np.broadcast_to(draw(3, ROWS, 1, DIM), (ROWS, 6, DIM)).astype(np.float32)
    for pool in (mean_pool, max_pool):
        np.testing.assert_allclose(pool(constant, 3), constant[:, :2], rtol=1e-6)
    x = draw(4, ROWS, 6, DIM).astype(np.float32)
    assert (np.asarray(max_pool(x, 3)) > np.asarray(mean_pool(x, 3))).all()


@pytest.mark.parametrize("rate", [2, 3])
def test_convolutions_with_special_kernels(rate, float64):
    """C4: equal weights give the mean, and the matrix of the last slot alone gives every `rate`-th slot."""
    x, eye = draw(5, ROWS, 6, DIM), np.eye(DIM)
    np.testing.assert_allclose(
        strided_convolution(x, np.broadcast_to(eye / rate, (rate, DIM, DIM))), mean_pool(x, rate), atol=1e-12
    )
    last = np.zeros((rate, DIM, DIM))
    last[-1] = eye
    np.testing.assert_array_equal(strided_convolution(x, last), x[:, rate - 1 :: rate])


def test_dilated_convolutions_look_back_only_and_no_further_than_their_dilations():
    x, kernels = draw(6, 1, 8, DIM), np.abs(draw(7, 2, 2, DIM, DIM))
    x = np.abs(x).astype(np.float32)  # so that no ReLU is closed
    jacobian = jax.jit(jax.jacobian(lambda x: functional.dilated_convolutions(x, jnp.asarray(kernels), (1, 2))))(x)
    reach = np.abs(np.asarray(jacobian)).max(axis=(0, 2, 3, 5)) > 0  # [out, in]
    expected = [[0 <= out - at <= 3 for at in range(8)] for out in range(8)]
    np.testing.assert_array_equal(reach, expected)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.data())
def test_the_most_used_are_kept_in_order(data):
    """C9: the set of largest usage, oldest first; slots that hold nothing only where too few do."""
    usage = np.array(data.draw(st.lists(st.integers(0, 5), min_size=6, max_size=6)), np.float32)[None]
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6)))[None]
    x = np.arange(6, dtype=np.float32).reshape(1, 6, 1)
    kept, kept_valid = most_used(x, usage, valid, 2)
    known = [u if ok else None for u, ok in zip(usage[0], valid[0], strict=True)]
    places = reference.most_used(list(x[0]), known, 2)
    np.testing.assert_array_equal(kept[0, :, 0], places)
    np.testing.assert_array_equal(kept_valid[0], valid[0, places])
    left = [usage[0, i] for i in range(6) if valid[0, i] and i not in places]
    assert all(usage[0, i] >= max(left, default=0) for i in places if valid[0, i])


def test_windows_that_reach_into_another_document_are_invalid():
    """C8: the second row's document begins in the middle of a window."""
    valid = jnp.array([[True] * 6, [False] * 3 + [True] * 3, [False] * 4 + [True] * 2])
    np.testing.assert_array_equal(window_validity(valid, 2), [[1, 1, 1], [0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(window_validity(valid, 3), [[1, 1], [0, 1], [0, 0]])


def test_transposed_convolution_is_the_transpose(float64):
    x, kernel, y = draw(8, ROWS, 6, DIM), draw(9, 3, DIM, 5), draw(10, ROWS, 2, 5)
    forward = (strided_convolution(x, kernel) * y).sum()
    backward = (x * transposed_convolution(y, jnp.swapaxes(kernel, 1, 2))).sum()
    np.testing.assert_allclose(forward, backward, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_dtypes_stay(dtype):
    x, kernel = jnp.asarray(draw(11, ROWS, 4, DIM), dtype), jnp.asarray(draw(12, 2, DIM, DIM), jnp.float32)
    found = [max_pool(x, 2), mean_pool(x, 2), strided_convolution(x, kernel)]
    assert {y.dtype for y in found} == {jnp.dtype(dtype)}
    exact = mean_pool(x.astype(jnp.float32), 2)  # rounded once, at the end
    np.testing.assert_array_equal(found[1], exact.astype(dtype))


@pytest.mark.parametrize(
    "call, line",
    [
        (lambda x: functional.max_pool(x, 5), "rate: given 5, allowed: 1 to 4, the slots that are compressed"),
        (lambda x: functional.mean_pool(x, 0), "rate: given 0, allowed: 1 to 4, the slots that are compressed"),
        (
            lambda x: functional.dilated_convolutions(x, jnp.zeros((2, 2, DIM, DIM)), (1,)),
            r"dilations: given \(1,\), allowed: one for each of the 2 layers",
        ),
        (lambda x: loss_of(x, "sum"), "reduction: given 'sum', allowed: one of 'mean_square', 'norm'"),
    ],
)
def test_wrong_arguments_get_one_line(call, line):
    with pytest.raises(ValueError, match=line):
        call(jnp.zeros((1, 4, DIM)))


def loss_of(x, reduction):
    heads = jnp.zeros((1, 4, HEADS, HEAD_DIM))
    some = jnp.ones((1, 4), bool)
    masks = {"query_mask": some, "old_mask": some, "new_mask": some}
    return functional.attention_reconstruction(heads, heads, heads, heads, heads, **masks, reduction=reduction)


# The losses


def reconstruction_inputs():
    queries = draw(20, 3, 4, HEADS, HEAD_DIM)
    old, new = ([draw(seed, 3, size, HEADS, HEAD_DIM) for seed in (21, 22)] for size in (6, 3))
    masks = {
        "query_mask": np.arange(4)[None, :] < np.array([[4], [2], [4]]),
        "old_mask": np.array([[True] * 6, [False] * 2 + [True] * 4, [False] * 6]),
        "new_mask": np.array([[True] * 3, [False, True, True], [False] * 3]),
    }
    return (queries, *old, *new), masks


@pytest.mark.parametrize("reduction", ["mean_square", "norm"])
def test_attention_reconstruction_equals_the_reference(reduction, float64):
    arrays, masks = reconstruction_inputs()
    found = attention_reconstruction(*arrays, **masks, reduction=reduction)
    total, weight = 0.0, 0
    for b in range(2):  # the third row has nothing to compare
        queries, *slots = (array[b] for array in arrays)
        queries = queries[masks["query_mask"][b]]
        old, new = masks["old_mask"][b], masks["new_mask"][b]
        squares = reference.attention_reconstruction(
            queries, slots[0][old], slots[1][old], slots[2][new], slots[3][new]
        )
        total += squares.mean(axis=(1, 2)).sum() if reduction == "mean_square" else np.sqrt(squares.sum())
        weight += len(queries) if reduction == "mean_square" else 1
    np.testing.assert_allclose(found.total, total, rtol=1e-12)
    assert found.weight == weight


@pytest.mark.parametrize("reduction", ["mean_square", "norm"])
def test_attention_reconstruction_trains_the_new_slots_only(reduction, float64):
    arrays, masks = reconstruction_inputs()
    loss = lambda *arrays: attention_reconstruction(*arrays, **masks, reduction=reduction).mean()
    queries, old_keys, old_values, keys, values = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))(*arrays)
    assert not np.any(queries) and not np.any(old_keys) and not np.any(old_values)
    seen = masks["new_mask"]
    for gradient in (keys, values):
        moved = np.any(gradient, axis=(2, 3))
        assert moved[:2][seen[:2]].all() and not moved[~seen].any()


@pytest.mark.parametrize("reduction", ["mean_square", "norm"])
def test_nothing_is_lost_where_nothing_is_compressed(reduction):
    """C6, with a gradient that is 0 and not NaN."""
    (queries, keys, values, *_), masks = reconstruction_inputs()
    masks = {**masks, "new_mask": masks["old_mask"]}
    loss = lambda k, v: attention_reconstruction(queries, k, v, k, v, **masks, reduction=reduction).total
    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(jnp.asarray(keys), jnp.asarray(values))
    assert value == 0
    assert all(np.isfinite(g).all() and not np.any(g) for g in gradients)


def test_masked_rows_and_slots_have_no_effect_on_the_losses():
    arrays, masks = reconstruction_inputs()
    found = attention_reconstruction(*arrays, **masks)
    queries, *slots = (np.array(array) for array in arrays)
    queries[~masks["query_mask"]] = 1e3
    for place, name in enumerate(("old_mask", "old_mask", "new_mask", "new_mask")):
        slots[place][~masks[name]] = 1e3
    assert attention_reconstruction(queries, *slots, **masks) == found
    empty = {**masks, "new_mask": np.zeros((3, 3), bool), "old_mask": np.zeros((3, 6), bool)}
    nothing = attention_reconstruction(*arrays, **empty)
    assert (nothing.total, nothing.weight) == (0, 0)


def test_auto_encoding_by_hand():
    old = jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    decoded = jnp.array([[[1.0, 4.0], [0.0, 4.0]], [[5.0, 6.0], [9e9, 0.0]]])
    found = auto_encoding(decoded, old, jnp.array([[True, True], [True, False]]))
    assert (found.total, found.weight) == (4 / 2 + 9 / 2, 3)
    to_old = jax.jit(jax.grad(lambda x: functional.auto_encoding(decoded, x, jnp.ones((2, 2), bool)).total))(old)
    assert not np.any(to_old)
    to_decoded = jax.jit(jax.grad(lambda x: functional.auto_encoding(x, old, jnp.ones((2, 2), bool)).total))(decoded)
    np.testing.assert_array_equal(to_decoded[0], [[0, 2], [-3, 0]])


def test_losses_of_bfloat16_are_summed_in_float32():
    arrays, masks = reconstruction_inputs()
    arrays = [jnp.asarray(array, jnp.bfloat16) for array in arrays]
    found = attention_reconstruction(*arrays, **masks)
    assert found.total.dtype == found.weight.dtype == jnp.float32
    slots = jnp.asarray(draw(30, 1, 4, 2), jnp.bfloat16)
    assert auto_encoding(slots, 2 * slots, jnp.ones((1, 4), bool)).total.dtype == jnp.float32
