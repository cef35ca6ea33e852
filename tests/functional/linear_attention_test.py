"""Linear attention: its three forms, its normalizers and feature maps, against loops and golden numbers."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional import linear_attention as linear
from memjax.typing import EmptyState
from tests.reference import linear_attention as reference

GOLDEN = Path(__file__).parent.parent / "golden" / "linear_attention_elu1.npz"
ROWS, LENGTH, HEADS, FEATURES, VALUE = 2, 11, 3, 4, 5

NORMALIZERS = {
    "add": lambda q, z, n: q @ z + 1e-6,
    "clamp": lambda q, z, n: max(abs(q @ z), 1e-2),
    "count": lambda q, z, n: max(n, 1) ** 0.5,
    "none": lambda q, z, n: 1.0,
}
EPS = {"add": 1e-6, "clamp": 1e-2}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def inputs(length: int = LENGTH, *, signed: bool = True):
    queries, keys = (random(seed, ROWS, length, HEADS, FEATURES) for seed in (1, 2))
    if not signed:
        queries, keys = jnp.abs(queries), jnp.abs(keys)
    return queries, keys, random(3, ROWS, length, HEADS, VALUE)


def gates(length: int = LENGTH):
    return jax.nn.log_sigmoid(2 * random(4, ROWS, length, HEADS))


def padded_mask(*lengths: int, total: int = LENGTH):
    return jnp.arange(total)[None, :] < jnp.array(lengths)[:, None]


@functools.partial(jax.jit, static_argnames=("normalizer", "chunk_length"))
def attend(parts, state, mask, log_decay, *, normalizer="add", chunk_length=0):
    return linear.causal_linear_attention(
        *parts,
        state,
        mask=mask,
        log_decay=log_decay,
        normalizer=normalizer,
        eps=EPS.get(normalizer, 0.0),
        chunk_length=chunk_length,
    )


def assert_same(a, b, atol=1e-10):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("gated", [False, True])
def test_equals_a_loop(normalizer, gated):
    parts, mask = inputs(signed=normalizer != "add"), padded_mask(LENGTH, 7)
    decay = gates() if gated else None
    out, _ = attend(parts, None, mask, decay, normalizer=normalizer)
    for row in range(ROWS):
        for head in range(HEADS):
            one = [np.asarray(part[row, :, head]) for part in parts]
            expected = reference.attend(
                *one,
                divide=NORMALIZERS[normalizer],
                decay=None if decay is None else np.exp(decay[row, :, head]),
                mask=mask[row],
            )
            np.testing.assert_allclose(out[row, :, head], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "chunk_length, normalizer",
    [
        (1, "add"),
        (4, "count"),
        *(
            pytest.param(*case, marks=pytest.mark.laws)
            for case in ((5, "add"), (20, "count"), (1, "count"), (4, "add"), (5, "count"), (20, "add"))
        ),
    ],
)
def test_chunked_and_recurrent_forms_equal_the_parallel_one(normalizer, chunk_length):
    parts, mask = inputs(signed=False), padded_mask(LENGTH, 6)
    used = attend(parts, None, None, None, normalizer=normalizer)[1]
    for state, decay in ((None, None), (used, gates())):
        form = functools.partial(attend, parts, state, mask, decay, normalizer=normalizer)
        assert_same(form(chunk_length=chunk_length), form())


def test_chunks_of_bfloat16_are_read_as_float32_bit_for_bit():
    random = np.random.default_rng(3)
    parts = [jnp.asarray(random.random((2, 11, 2, 5)) + 0.1, jnp.bfloat16) for _ in range(3)]
    run = jax.jit(functools.partial(linear.causal_linear_attention, chunk_length=4))
    out, state = run(*parts)
    wide, wide_state = run(*(part.astype(jnp.float32) for part in parts))
    assert (out.dtype, wide.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(out.astype(jnp.float32), wide.astype(jnp.bfloat16).astype(jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, state, wide_state)


@pytest.mark.parametrize("chunk_length", [pytest.param(1, marks=pytest.mark.laws), 4])
def test_gradients_of_all_forms_are_the_same(chunk_length):
    parts, decay = inputs(signed=False), gates()
    state = attend(parts, None, None, None)[1]
    weights = random(5, ROWS, LENGTH, HEADS, VALUE)

    @functools.partial(jax.jit, static_argnames="chunk")
    def gradients(parts, state, decay, chunk):
        def loss(parts, state, decay):
            out, new = attend(parts, state, padded_mask(9, LENGTH), decay, chunk_length=chunk)
            return (out * weights).sum() + (new.products**2).sum() + new.normalizer.sum()

        return jax.grad(loss, argnums=(0, 1, 2))(parts, state, decay)

    assert_same(gradients(parts, state, decay, chunk_length), gradients(parts, state, decay, 0), atol=1e-9)


@pytest.mark.parametrize("cut", [4, *(pytest.param(cut, marks=pytest.mark.laws) for cut in (1, 10))])
def test_a_segment_after_another_equals_both_at_once(cut):
    for normalizer in ("add", "count"):
        parts, decay = inputs(signed=False), gates()
        whole = attend(parts, None, None, decay, normalizer=normalizer)
        first = attend(tuple(p[:, :cut] for p in parts), None, None, decay[:, :cut], normalizer=normalizer)
        second = attend(tuple(p[:, cut:] for p in parts), first[1], None, decay[:, cut:], normalizer=normalizer)
        assert_same((jnp.concatenate([first[0], second[0]], axis=1), second[1]), whole)


def test_padding_is_neither_summed_nor_counted_nor_a_decay():
    parts, mask, decay = inputs(signed=False), padded_mask(5, 0), gates()
    noisy = tuple(jnp.where(mask[..., None, None], part, jnp.nan) for part in parts[1:])
    for normalizer in ("add", "count"):
        _, new = attend((parts[0], *noisy), None, mask, decay, normalizer=normalizer)
        short = attend(tuple(p[:, :5] for p in parts), None, None, decay[:, :5], normalizer=normalizer)[1]
        assert_same(jax.tree.map(lambda leaf: leaf[0], new), jax.tree.map(lambda leaf: leaf[0], short))
        assert not any(np.asarray(leaf[1]).any() for leaf in jax.tree.leaves(new))


def test_a_reset_empties_its_rows_only():
    state = attend(inputs(), None, None, None)[1]
    new = linear.reset_linear_state(state, jnp.array([True, False]))
    for old, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert not np.asarray(leaf[0]).any()
        np.testing.assert_array_equal(leaf[1], old[1])


def test_very_different_gates_do_not_overflow():
    parts, decay = inputs(signed=False), jnp.full((ROWS, LENGTH, HEADS), -200.0)
    value, gradient = jax.value_and_grad(lambda decay: attend(parts, None, None, decay)[0].sum())(decay)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_allclose(attend(parts, None, None, decay)[0], parts[2], atol=1e-4)  # only itself is left


def test_golden_numbers_of_fast_transformers():
    golden = np.load(GOLDEN)
    parts = tuple(jnp.asarray(golden[name], jnp.float64) for name in ("q", "k", "v"))

    @functools.partial(jax.jit, static_argnames="chunk_length")
    def run(parts, chunk_length=0):
        queries, keys, values = parts
        features = (linear.elu_features(queries), linear.elu_features(keys), values)
        return linear.causal_linear_attention(*features, eps=float(golden["eps"]), chunk_length=chunk_length)

    for chunk_length in (0, 1, 4):
        out, state = run(parts, chunk_length)
        np.testing.assert_allclose(out, golden["out_float64"], rtol=0, atol=1e-8)
        np.testing.assert_allclose(state.products, golden["state_S_float64"], rtol=0, atol=1e-8)
        np.testing.assert_allclose(state.normalizer, golden["state_Z_float64"], rtol=0, atol=1e-8)
        np.testing.assert_allclose(out, golden["out_fast_transformers_recurrent"], rtol=0, atol=2e-6)
    gradients = jax.jit(jax.grad(lambda parts: (run(parts)[0] ** 2).sum()))(parts)
    for name, gradient in zip("qkv", gradients, strict=True):
        np.testing.assert_allclose(gradient, golden[f"grad_{name}"], rtol=0, atol=2e-6)
    mask = padded_mask(11, 7)
    state = linear.summarize_source(linear.elu_features(parts[1]), parts[2], mask=mask)
    both_ways = linear.read_linear_state(linear.elu_features(parts[0]), state, normalizer="add")
    np.testing.assert_allclose(both_ways, golden["out_bidirectional_key_len_T_7"], rtol=0, atol=2e-6)


def test_a_source_is_what_the_last_token_sees():
    parts, mask = inputs(signed=False), padded_mask(LENGTH, 6)
    for normalizer in NORMALIZERS:
        out, state = attend(parts, None, mask, None, normalizer=normalizer)
        summary = linear.summarize_source(*parts[1:], mask=mask, normalizer=normalizer)
        assert_same(summary, state)
        read = linear.read_linear_state(parts[0], summary, normalizer=normalizer, eps=EPS.get(normalizer, 0.0))
        assert_same(read[:, -1], out[:, -1])


def test_two_copies_of_a_source_scale_a_memory_by_the_root_of_two():
    queries, keys, values = inputs()
    read = lambda keys, values: linear.read_linear_state(
        queries, linear.summarize_source(keys, values, normalizer="count"), normalizer="count"
    )
    twice = (jnp.concatenate([part, part], axis=1) for part in (keys, values))
    assert_same(read(*twice), 2**0.5 * read(keys, values))


def test_elu_features_are_positive_in_bfloat16():
    x = jnp.asarray(np.linspace(-20, 5, 101), jnp.bfloat16)
    features = linear.elu_features(x)
    assert features.dtype == jnp.bfloat16 and (features > 0).all()
    assert not (jax.nn.elu(x) + 1 > 0).all(), "the plain formula has become safe"
    x = random(6, 20)
    np.testing.assert_allclose(linear.elu_features(x), reference.elu_plus_one(np.asarray(x)), atol=1e-12)
    assert jax.grad(linear.elu_features)(0.0) == 1.0


def test_random_features_equal_a_loop_and_have_one_norm():
    x, directions = random(7, ROWS, LENGTH, HEADS, 6), random(8, HEADS, 16, 6)
    features = linear.random_features(x, directions)
    for head in range(HEADS):
        expected = reference.random_features(np.asarray(x[0, :, head]), np.asarray(directions[head]))
        np.testing.assert_allclose(features[0, :, head], expected, atol=1e-12)
    np.testing.assert_allclose((features**2).sum(axis=-1), 0.01 * 16, atol=1e-12)
    gradient = jax.grad(lambda x: linear.random_features(x, directions).sum())(jnp.zeros_like(x))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("orthogonal", [False, True])
def test_random_features_estimate_the_gaussian_kernel(orthogonal):
    x, y = (random(seed, 1, 1, 1, 8) for seed in (9, 10))
    unit = [np.asarray(v / (jnp.linalg.norm(v) + 1e-3)).ravel() for v in (x, y)]
    exact = np.exp(-((unit[0] - unit[1]) ** 2).sum() / 2)

    def error(size: int) -> float:
        """Root mean square over 64 draws (as so many heads)."""
        directions = linear.draw_directions(jax.random.key(size), 64, size, 8, orthogonal=orthogonal)
        features = [linear.random_features(jnp.tile(v, (1, 1, 64, 1)), directions) for v in (x, y)]
        return float(jnp.sqrt(jnp.mean(((features[0] * features[1]).sum(axis=-1) / (0.01 * size) - exact) ** 2)))

    few, many = error(64), error(4096)
    assert many < 0.02 and 4 < few / many < 16, "the error falls as D ** -0.5: 8 times for 64 times the directions"


def test_orthogonal_directions_are_orthogonal_in_blocks():
    directions = linear.draw_directions(jax.random.key(0), 2, 10, 4, orthogonal=True)
    assert directions.shape == (2, 10, 4)
    products = np.asarray(jnp.einsum("hmd,hnd->hmn", directions[:, :4], directions[:, :4]))
    np.testing.assert_allclose(products * (1 - np.eye(4)), 0, atol=1e-10)


def test_queries_without_a_feature_give_zero_and_finite_gradients():
    x, kernel = random(11, ROWS, LENGTH, HEADS, 6), random(12, HEADS, 6, FEATURES)
    values = inputs()[2]

    def loss(x, bias):
        features = linear.relu_features(x, kernel, bias)
        out, _ = linear.causal_linear_attention(features, features, values, normalizer="clamp", eps=1e-2)
        return (out**2).sum(), out

    off = jnp.full((HEADS, FEATURES), -100.0)
    (_, out), gradient = jax.value_and_grad(loss, has_aux=True)(x, off)
    assert not np.asarray(out).any() and np.isfinite(gradient).all()
    assert np.asarray(loss(x, jnp.zeros((HEADS, FEATURES)))[1]).any()


@pytest.mark.parametrize("length", [8, 256])
def test_the_state_does_not_grow_with_the_length(length):
    for normalizer, parts in (("add", 2), ("count", 2), ("none", 1)):
        state = jax.eval_shape(lambda p: attend(p, None, None, None, normalizer=normalizer)[1], inputs(length))  # noqa: B023
        assert state.products.shape == (ROWS, HEADS, FEATURES, VALUE)
        assert len(jax.tree.leaves(state)) == parts
        assert (state.count == EmptyState()) == (normalizer != "count")


def test_bfloat16_inputs_are_summed_in_float32():
    ones = jnp.ones((1, 600, 1, 1), jnp.bfloat16)
    out, state = linear.causal_linear_attention(ones, ones, ones, normalizer="none", chunk_length=32)
    assert out.dtype == jnp.bfloat16 and state.products.dtype == jnp.float32
    assert float(state.products[0, 0, 0, 0]) == 600  # a sum in bfloat16 stops at 256


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="normalizer: given 'sum', allowed: one of 'add', 'clamp', 'count', 'none'"):
        linear.causal_linear_attention(*inputs(), normalizer="sum")
    with pytest.raises(ValueError, match=r"chunk_length: given -1, allowed: 0 \(the whole segment\) or more tokens"):
        linear.causal_linear_attention(*inputs(), chunk_length=-1)


def test_the_effective_rank_is_that_of_the_singular_values():
    random = np.random.default_rng(0)
    products = random.normal(size=(3, 2, 5, 3)).astype(np.float32)
    products[1] *= np.float32(1e12)  # sums of a long document
    products[2] = 0
    for sums in (products, products.swapaxes(2, 3)):
        found = jax.jit(linear.effective_rank)(sums)
        squares = np.linalg.svd(sums[:2].astype(np.float64), compute_uv=False) ** 2
        expected = (squares.sum(axis=-1) ** 2 / (squares**2).sum(axis=-1)).mean(axis=1) / 3
        np.testing.assert_allclose(found, [*expected, 0], rtol=1e-5)
