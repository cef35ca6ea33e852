"""Attention cores against loops in float64, by hand, and what no gradient may do."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional
from memjax.functional import relative_distances, scale_queries, visibility
from tests.reference import attention as reference

ROWS, LENGTH, MEMORY, HEADS, HEAD_DIM, VALUE_DIM, NEIGHBORS = 2, 3, 5, 2, 4, 3, 2

# One program per test instead of one per operation.
attention = jax.jit(functional.attention, static_argnames="dropout_rate")
joint_attention = jax.jit(functional.joint_attention, static_argnames="dropout_rate")
neighbor_attention = jax.jit(functional.neighbor_attention, static_argnames="dropout_rate")
masked_softmax = jax.jit(functional.masked_softmax, static_argnums=2)


def random(rng, *shape):
    return rng.normal(size=shape)


@pytest.fixture
def case():
    """Random inputs in float64, with one query (row 1, query 0, head 1) that sees nothing at all."""
    rng = np.random.default_rng(0)
    mask = rng.random((ROWS, HEADS, LENGTH, MEMORY)) < 0.7
    neighbor_valid = rng.random((ROWS, HEADS, LENGTH, NEIGHBORS)) < 0.7
    mask[1, 1, 0], neighbor_valid[1, 1, 0] = False, False
    return {
        "queries": random(rng, ROWS, LENGTH, HEADS, HEAD_DIM),
        "keys": random(rng, ROWS, MEMORY, HEADS, HEAD_DIM),
        "values": random(rng, ROWS, MEMORY, HEADS, VALUE_DIM),
        "neighbor_keys": random(rng, ROWS, HEADS, LENGTH, NEIGHBORS, HEAD_DIM),
        "neighbor_values": random(rng, ROWS, HEADS, LENGTH, NEIGHBORS, VALUE_DIM),
        "mask": mask,
        "neighbor_valid": neighbor_valid,
        "bias": random(rng, ROWS, HEADS, LENGTH, MEMORY),
        "scale": np.array([0.5, 2.0]),
    }


def as_float(case, dtype):
    return {name: jnp.asarray(x, dtype if x.dtype == np.float64 else None) for name, x in case.items()}


def test_masked_softmax_by_hand():
    scores = jnp.array([[0.0, jnp.log(3.0), 9.0], [1.0, 1.0, 1.0], [2.0, 0.0, 0.0]])
    mask = jnp.array([[True, True, False], [False, False, False], [True, False, False]])
    np.testing.assert_allclose(masked_softmax(scores, mask), [[0.25, 0.75, 0], [0, 0, 0], [1, 0, 0]], rtol=1e-6)


@hypothesis.given(
    st.integers(0, 2**31),
    st.sampled_from([1.0, 100.0, 1e30]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0, 1]),
)
@hypothesis.settings(max_examples=12, deadline=None)
def test_masked_softmax_matches_the_definition(seed, size, share, axis):
    rng = np.random.default_rng(seed)
    scores, mask = size * random(rng, 4, 5), rng.random((4, 5)) < share
    with jax.enable_x64(True):
        got = masked_softmax(jnp.asarray(np.moveaxis(scores, 1, axis)), jnp.asarray(np.moveaxis(mask, 1, axis)), axis)
    got = np.moveaxis(np.asarray(got), axis, 1)
    np.testing.assert_allclose(got, reference.masked_softmax(scores, mask), atol=1e-12)
    assert np.all(got[~mask] == 0)
    np.testing.assert_allclose(got.sum(axis=1), mask.any(axis=1), atol=1e-12)


def test_masked_softmax_ignores_whatever_is_masked():
    scores = jnp.array([[1.0, jnp.nan, 2.0], [jnp.inf, -jnp.inf, jnp.nan]])
    mask = jnp.array([[True, False, True], [False, False, False]])
    weight = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    value, slope = jax.jit(jax.value_and_grad(lambda s: jnp.sum(weight * masked_softmax(s, mask))))(scores)
    low, high = np.exp(1) / (np.exp(1) + np.exp(2)), np.exp(2) / (np.exp(1) + np.exp(2))
    np.testing.assert_allclose(value, low * 1 + high * 3, rtol=1e-6)
    np.testing.assert_allclose(slope, [[-2 * low * high, 0, 2 * low * high], [0, 0, 0]], rtol=1e-6)


def test_masked_softmax_derivatives():
    """The rule written by hand is that of the formula, forward and reverse, first and second order."""
    mask = np.array([True, False, True, True])
    powers = np.arange(1.0, 5.0)

    def formula(scores):
        exponentials = jnp.exp(scores) * mask
        return jnp.sum(exponentials / exponentials.sum() * powers) ** 2

    def rule(scores):
        return jnp.sum(functional.masked_softmax(scores, jnp.asarray(mask)) * powers) ** 2

    with jax.enable_x64(True):
        scores = jnp.asarray(random(np.random.default_rng(1), 4))
        expected, got = (
            jax.jit(lambda s, f=f: (jax.grad(f)(s), jax.jacfwd(f)(s), jax.hessian(f)(s)))(scores)
            for f in (formula, rule)
        )
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_softmax_runs_in_float32_at_least(dtype):
    scores = jnp.array([[0.0, 1.0]], dtype)
    for mask in (jnp.array([[True, True]]), None):
        assert jax.eval_shape(masked_softmax, scores, mask).dtype == jnp.float32


def test_attention_matches_the_loops(case):
    shared = ("queries", "keys", "values")
    expected = reference.attention(*(case[n] for n in shared), case["mask"], case["bias"], case["scale"])
    with jax.enable_x64(True):
        x = as_float(case, jnp.float64)
        got = attention(*(x[n] for n in shared), mask=x["mask"], bias=x["bias"], scale=x["scale"])
        assert got.dtype == jnp.float64
    np.testing.assert_allclose(got, expected, atol=1e-12)
    assert np.all(np.asarray(got)[1, 0, 1] == 0)
    x = as_float(case, jnp.float32)
    got = attention(*(x[n] for n in shared), mask=x["mask"], bias=x["bias"], scale=x["scale"])
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_attention_defaults_and_broadcasts(case):
    x = as_float(case, jnp.float32)
    shared = (x["queries"], x["keys"], x["values"])
    full = np.ones((ROWS, HEADS, LENGTH, MEMORY), bool)
    none = np.zeros(full.shape)
    plain = reference.attention(*shared, full, none, [HEAD_DIM**-0.5] * HEADS)
    np.testing.assert_allclose(attention(*shared), plain, atol=1e-5)
    np.testing.assert_allclose(attention(*shared, scale=jnp.float32(0.5)), plain, atol=1e-5)
    mask, bias = jnp.asarray(case["mask"][:1, :1]), jnp.asarray(case["bias"][:1], jnp.float32)
    wide = reference.attention(*shared, np.broadcast_to(mask, full.shape), np.broadcast_to(bias, full.shape), [1, 1])
    np.testing.assert_allclose(attention(*shared, mask=mask, bias=bias, scale=1.0), wide, atol=1e-5)


def test_low_precision_queries_keep_their_dtype_and_accumulate_in_float32(case):
    shared = ("queries", "keys", "values")
    expected = reference.attention(*(case[n] for n in shared), case["mask"], case["bias"], case["scale"])
    x = as_float(case, jnp.bfloat16)
    got = attention(*(x[n] for n in shared), mask=x["mask"], bias=x["bias"], scale=x["scale"])
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), expected, atol=0.1)
    # a scale that bfloat16 cannot hold is applied before rounding, not rounded first
    ones = jnp.full((1, 1, 1, 128), 3.0, jnp.bfloat16)
    assert np.asarray(scale_queries(ones, None))[0, 0, 0, 0] == jnp.bfloat16(3 * 128**-0.5)


def test_a_query_without_keys_gives_zero_and_no_gradient(case):
    x = as_float(case, jnp.float32)

    @jax.jit
    def slopes_of(mask):
        loss = lambda *inputs: jnp.sum(attention(*inputs, mask=mask) ** 2)  # noqa: E731
        return jax.grad(loss, (0, 1, 2))(x["queries"], x["keys"], x["values"])

    assert all(np.all(np.asarray(s) == 0) for s in slopes_of(jnp.asarray(case["mask"] & False)))
    slopes = slopes_of(x["mask"])
    assert all(np.all(np.isfinite(s)) for s in slopes)
    assert np.all(np.asarray(slopes[0])[1, 0, 1] == 0)
    unseen = ~case["mask"].any(axis=2).swapaxes(1, 2)  # [b, m, h]: no query of the head sees the key
    assert np.all(np.asarray(slopes[1])[unseen] == 0) and np.all(np.asarray(slopes[2])[unseen] == 0)


def test_causality_by_gradients():
    rng = np.random.default_rng(2)
    x = jnp.asarray(random(rng, 1, LENGTH, 1, HEAD_DIM), jnp.float32)
    mask = visibility(LENGTH, None, None)
    jacobian = jax.jit(jax.jacobian(lambda x: attention(x, x, x, mask=mask).sum(axis=(0, 2, 3))))(x)  # [l, 1, l, 1, d]
    size = np.abs(np.asarray(jacobian)).max(axis=(1, 3, 4))
    assert np.all((size > 0) == np.tri(LENGTH, dtype=bool))


def test_joint_merge_matches_the_loops_and_one_softmax_over_both(case):
    """M4: the joint merge is softmax attention over the retrieved keys followed by the local ones."""
    names = ("queries", "keys", "values", "neighbor_keys", "neighbor_values")
    expected = reference.joint_attention(
        *(case[n] for n in (*names, "mask", "neighbor_valid", "bias", "scale")),
    )
    options = ("mask", "neighbor_valid", "bias", "scale")
    with jax.enable_x64(True):
        x = as_float(case, jnp.float64)
        got = joint_attention(*(x[n] for n in names), **{n: x[n] for n in options})
    np.testing.assert_allclose(got, expected, atol=1e-12)
    assert np.all(np.asarray(got)[1, 0, 1] == 0)


def test_joint_merge_falls_back_to_either_part(case):
    x = as_float(case, jnp.float32)
    names = ("queries", "keys", "values", "neighbor_keys", "neighbor_values")
    both = functools.partial(joint_attention, *(x[n] for n in names))
    none = jnp.asarray(case["neighbor_valid"] & False)
    local = attention(x["queries"], x["keys"], x["values"], mask=x["mask"], bias=x["bias"])
    np.testing.assert_allclose(both(mask=x["mask"], neighbor_valid=none, bias=x["bias"]), local, atol=1e-6)
    near = neighbor_attention(x["queries"], x["neighbor_keys"], x["neighbor_values"], x["neighbor_valid"])
    got = both(mask=jnp.asarray(case["mask"] & False), neighbor_valid=x["neighbor_valid"])
    np.testing.assert_allclose(got, near, atol=1e-6)
    expected = reference.joint_attention(
        *(case[n] for n in names), case["mask"] | True, case["neighbor_valid"] | True, 0 * case["bias"], [0.5, 0.5]
    )
    np.testing.assert_allclose(both(), expected, atol=1e-5)


def test_neighbor_attention_matches_the_loops(case):
    expected = reference.joint_attention(
        *(case[n] for n in ("queries", "keys", "values", "neighbor_keys", "neighbor_values")),
        np.zeros_like(case["mask"]),
        case["neighbor_valid"],
        case["bias"],
        case["scale"],
    )
    with jax.enable_x64(True):
        x = as_float(case, jnp.float64)
        arguments = (x["queries"], x["neighbor_keys"], x["neighbor_values"], x["neighbor_valid"])
        got = neighbor_attention(*arguments, scale=x["scale"])
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_neighbors_that_are_not_real_may_hold_anything(case):
    x = as_float(case, jnp.float32)
    real = x["neighbor_valid"][..., None]

    @jax.jit
    def slopes_of(filling):
        keys, values = (jnp.where(real, x[f"neighbor_{name}"], filling) for name in ("keys", "values"))

        def loss(queries, keys, values):
            near = neighbor_attention(queries, keys, values, x["neighbor_valid"])
            both = joint_attention(queries, x["keys"], x["values"], keys, values, neighbor_valid=x["neighbor_valid"])
            return jnp.sum(near**2) + jnp.sum(both**2)

        return jax.value_and_grad(loss, (0, 1, 2))(x["queries"], keys, values)

    expected = slopes_of(0.0)
    assert not real.all() and np.isfinite(expected[0])
    jax.tree.map(np.testing.assert_array_equal, slopes_of(np.nan), expected)
    jax.tree.map(np.testing.assert_array_equal, slopes_of(np.inf), expected)


def test_dropout_scales_what_it_keeps():
    """Equal scores, values 1: the output is the share of weights that were kept, over the rate of keeping."""
    query, keys, near = np.zeros((1, 1, 1, 1), "f"), np.zeros((1, 4000, 1, 1), "f"), np.zeros((1, 1, 1, 4000, 1), "f")
    shared, neighbors = (query, keys, keys + 1), (near, near + 1)
    options = {"dropout_rate": 0.25, "dropout_key": jax.random.key(0)}
    for form, inputs in (
        (attention, shared),
        (neighbor_attention, (query, *neighbors)),
        (joint_attention, (*shared, *neighbors)),
    ):
        got = form(*map(jnp.asarray, inputs), **options).item()
        assert abs(got - 1) < 0.05 and got != 1
    assert got == joint_attention(*map(jnp.asarray, (*shared, *neighbors)), **options).item()


def test_errors_name_the_argument():
    x = jnp.zeros((1, 2, 2, 4))
    with pytest.raises(ValueError, match=r"dropout_key: given None with dropout_rate 0.1"):
        attention(x, x, x, dropout_rate=0.1)
    with pytest.raises(ValueError, match=r"dropout_rate: given 1.0"):
        attention(x, x, x, dropout_rate=1.0, dropout_key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"window: given 0, allowed: at least 1"):
        visibility(2, None, None, window=0)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=15, deadline=None)
def test_visibility_matches_the_loops(data):
    length, memory = data.draw(st.sampled_from([(1, 3), (4, 2), (3, 5)]))
    window = data.draw(st.sampled_from([None, 1, 3, 6, 10]))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    memory_valid = rng.random((2, memory)) < 0.6
    mask = np.arange(length)[None] < rng.integers(0, length + 1, (2, 1))
    got = visibility(length, jnp.asarray(memory_valid), jnp.asarray(mask), window=window)
    assert got.dtype == bool
    assert np.array_equal(got, reference.visibility(length, memory_valid, mask, window))


def test_visibility_without_memory_or_mask():
    causal = np.tri(3, dtype=bool)[None, None]
    assert np.array_equal(visibility(3, None, None), causal)
    mask = jnp.array([[True, True, False]])
    assert np.array_equal(visibility(3, None, mask), causal & np.asarray(mask)[:, None, None])
    valid = jnp.array([[True], [False]])
    with_memory = visibility(3, valid, None)
    assert with_memory.shape == (2, 1, 3, 4)
    assert np.array_equal(with_memory[..., 1:], np.broadcast_to(causal, (2, 1, 3, 3)))
    assert np.array_equal(with_memory[..., 0], np.broadcast_to(np.asarray(valid)[:, :, None], (2, 1, 3)))


def test_same_length_window_of_transformer_xl():
    """Spec 1.4: segments of 4 and a memory of 4 with window 4 see keys 1..4, 2..5, 3..6, 4..7."""
    seen = np.asarray(visibility(4, jnp.ones((1, 4), bool), None, window=4))[0, 0]
    assert [list(np.flatnonzero(row)) for row in seen] == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]


@pytest.mark.parametrize("memory", [3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 6])
def test_window_makes_the_context_independent_of_the_segments(memory, length):
    """T3: with window = memory_length the segments of a text see the band `t - M < j <= t`, whatever their length."""
    total = 12
    seen = np.zeros((total, total), bool)
    for start in range(0, total, length):
        filled = np.arange(start - memory, start) >= 0
        part = np.asarray(visibility(length, jnp.asarray(filled)[None], None, window=memory))[0, 0]
        for i, row in enumerate(part):
            for key in np.flatnonzero(row):
                seen[start + i, start - memory + key] = True
    distances = relative_distances(total, total)
    assert np.array_equal(seen, (distances >= 0) & (distances < memory))
