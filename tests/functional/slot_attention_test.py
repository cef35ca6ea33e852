"""Attention of slots to themselves and to tokens, against loops, and what unit length and a bias make of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.slot_attention import count_slot_types, normalize_slots, slot_attention, slot_shares, slot_spread

ROWS, SLOTS, TOKENS, HEADS, HEAD_DIM = 2, 3, 4, 2, 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def arrays(seed: int = 0):
    draw = np.random.default_rng(seed).normal
    slot, token = (ROWS, SLOTS, HEADS, HEAD_DIM), (ROWS, TOKENS, HEADS, HEAD_DIM)
    return [jnp.asarray(draw(size=shape)) for shape in (slot, slot, token, slot, token)]


@pytest.mark.parametrize("temperature", [0.25, 1.0])
def test_equals_loops_over_slots(temperature):
    queries, own_keys, keys, own_values, values = map(np.asarray, arrays())
    lengths = (4, 2)
    mask = jnp.asarray([[t < length for t in range(TOKENS)] for length in lengths])
    new, found = slot_attention(*arrays(), mask, temperature=temperature)
    for b, i, h in np.ndindex(ROWS, SLOTS, HEADS):
        pairs = [(own_keys[b, i, h], own_values[b, i, h])]
        pairs += [(keys[b, t, h], values[b, t, h]) for t in range(lengths[b])]
        scores = np.array([queries[b, i, h] @ key / (np.sqrt(HEAD_DIM) * temperature) for key, _ in pairs])
        weights = np.exp(scores) / np.exp(scores).sum()
        expected = sum(weight * value for weight, (_, value) in zip(weights, pairs, strict=True))
        np.testing.assert_allclose(new[b, i, h], expected, atol=1e-12)
        np.testing.assert_allclose(found[b, h, i, 0], weights[0], atol=1e-12)
        np.testing.assert_allclose(found[b, h, i].sum(), 1, atol=1e-12)


def test_a_slot_does_not_depend_on_other_slots():
    _, _, keys, _, values = arrays()
    slots = arrays(1)[0]
    jacobian = jax.jit(jax.jacobian(lambda m: slot_attention(m, m, keys, m, values)[0]))  # [b, n, h, d, b, n, h, d]
    by_slot = np.abs(np.asarray(jacobian(slots))).sum(axis=(0, 2, 3, 4, 6, 7))
    assert (np.diag(by_slot) > 0).all()
    assert not by_slot[~np.eye(SLOTS, dtype=bool)].any()


def test_scores_of_slots_with_slots_are_never_built():
    count, tokens = 512, 8
    shapes = [jax.ShapeDtypeStruct((1, n, 1, 4), jnp.float32) for n in (count, count, tokens, count, tokens)]
    jaxpr = str(jax.make_jaxpr(slot_attention)(*shapes))
    assert f"{count},{tokens}]" in jaxpr and f"{count},{count}" not in jaxpr


def test_without_tokens_a_slot_stays_as_it_is():
    slots = arrays()
    new, weights = slot_attention(*slots, jnp.zeros((ROWS, TOKENS), bool))
    np.testing.assert_array_equal(new, slots[3])
    np.testing.assert_array_equal(weights[..., 0], np.ones((ROWS, HEADS, SLOTS)))


def test_slots_have_unit_length_and_zero_stays_finite():
    slots = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)) * np.array([[1e-3], [1.0], [1e6], [0.0]]))
    np.testing.assert_allclose(np.linalg.norm(normalize_slots(slots), axis=1), [1, 1, 1, 0], atol=1e-5)
    assert np.isfinite(jax.grad(lambda m: normalize_slots(m).sum())(slots)).all()


def test_slots_that_are_not_written_go_to_their_bias():
    draw = np.random.default_rng(0)
    bias, slots = jnp.asarray(draw.normal(size=(3, 8))), normalize_slots(jnp.asarray(draw.normal(size=(3, 8))))
    target = normalize_slots(bias)
    distances = []
    for _ in range(60):
        slots = normalize_slots(slots + 0.3 * bias)
        distances.append(float(jnp.abs(slots - target).max()))
    assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-10


@pytest.mark.parametrize("norm, steps", [(0.01, 133), (0.02, 67), (0.05, 27), (0.1, 14), (0.3, 5), (1.15, 2), (3.2, 1)])
def test_how_fast_a_bias_erases_a_slot(norm, steps):
    # Steps until the angle to the slot's beginning is 60 degrees, for a bias at a right angle to it.
    slot, bias = np.array([1.0, 0.0]), np.array([0.0, norm])
    start, taken = slot, 0
    while slot @ start > 0.5:
        slot = np.asarray(normalize_slots(jnp.asarray(slot + bias)))
        taken += 1
    assert taken == steps


def test_slot_types_are_counted_in_rows_that_count():
    shares = jnp.array([[0.9, 0.5, 0.05], [1.0, 1.0, 1.0]])
    assert [int(n) for n in count_slot_types(shares, jnp.array([True, False]))] == [1, 1, 1]
    assert [int(n) for n in count_slot_types(shares, jnp.array([True, True]))] == [4, 1, 1]


def test_what_is_left_of_a_slot_is_its_weight_only_beside_values_of_its_length():
    slot, value = jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2), jnp.array([0.0, 1.0]).reshape(1, 1, 1, 2)
    left = lambda length: slot_shares(slot, jnp.array([[[0.9]]]), 0.9 * slot + 0.1 * length * value)
    np.testing.assert_allclose([left(1), left(8)], [[[0.9]], [[9 / 17]]])
    halves, weights = jnp.array([[0.6, 0.0], [0.0, 0.8]]), jnp.array([1.0, 0.0])  # one head keeps its half
    written = jnp.array([[0.6, 0.0], [0.0, 0.2]])
    found = slot_shares(halves[None, None], weights[None, :, None], written[None, None])
    np.testing.assert_allclose(found, [[0.75]])


@pytest.mark.parametrize("count, dim", [(3, 5), (6, 4)])
def test_the_spread_of_slots_equals_loops_over_pairs(count, dim):
    slots = normalize_slots(jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, count, dim))))
    cosine, effective = slot_spread(slots)
    for b, found in enumerate(np.asarray(slots)):
        cosines = np.array([[one @ other for other in found] for one in found])
        np.testing.assert_allclose(cosine[b], np.mean([cosines[i, j] for i, j in np.ndindex(count, count) if i != j]))
        np.testing.assert_allclose(effective[b], count**2 / (cosines**2).sum())
