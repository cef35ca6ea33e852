"""Memformer's encoder: its memory against loops, and the invariants of its specification."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.memory.memformer import HeadAttention, MemformerEncoder, MemformerLayer, MemformerState, start, write
from memjax.models.feed_forward import FeedForwardLayer
from tests.reference.parameters import params_of

DIM, HEADS, HEAD_DIM, LENGTH, ROWS, SLOTS = 8, 2, 4, 4, 2, 3
NONE = jnp.zeros(ROWS, bool)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def encoder(layers: int = 1, reads: bool = True, **fields) -> MemformerEncoder:
    heads = lambda: HeadAttention(DIM, HEADS, HEAD_DIM, dtype=jnp.float64)
    feed_forward = lambda: FeedForwardLayer(DIM, 12, norm_kind="layer", dtype=jnp.float64)
    parts = tuple(
        MemformerLayer(heads(), feed_forward(), heads() if reads else None, dtype=jnp.float64) for _ in range(layers)
    )
    sizes = {"num_slots": SLOTS, "num_heads": HEADS, "writer_heads": HEADS, "num_buckets": 8, "max_distance": 6}
    return MemformerEncoder(parts, DIM, **{**sizes, **fields}, dtype=jnp.float64)


def random(seed: int, *shape: int):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@functools.cache
def params():
    module, x = encoder(), jnp.zeros((ROWS, LENGTH, DIM))
    arrays = params_of(module, x, module.init_state(ROWS, jnp.float64), start_of_document=NONE)
    return jax.tree.map(jnp.asarray, arrays)


@functools.cache
def step(**fields):
    module = encoder(**fields)
    return jax.jit(lambda p, x, s: module.apply({"params": p}, x, s, start_of_document=NONE))


@pytest.mark.parametrize(
    "fields", [{}, pytest.param({"unit_length_updates": False, "retain_bias": 0.0}, marks=pytest.mark.laws)]
)
def test_the_memory_equals_loops(fields):
    p, x = jax.tree.map(np.asarray, params()), random(0, ROWS, LENGTH, DIM)
    state = MemformerState(random(1, ROWS, SLOTS, DIM), jnp.ones(ROWS, bool))
    module, scale = encoder(**fields), 1 if fields else DIM**-0.5
    encode = jax.jit(functools.partial(module.apply, method="encode"))
    encoded, new, aux = encode({"params": params()}, x, state, start_of_document=NONE)
    hidden, slots, shares = np.asarray(encoded.hidden), np.asarray(state.slots), []
    assert hidden.shape == (ROWS, LENGTH + 1, DIM)
    for b, i in np.ndindex(ROWS, SLOTS):
        seen, written, kept = slots[b, i] * np.sqrt(DIM), [], []
        for h in range(HEADS):
            query, own = seen @ p["writer_query"][:, h], slots[b, i, h * HEAD_DIM : (h + 1) * HEAD_DIM]
            keys = [seen @ p["writer_key"][:, h]] + [token @ p["writer_key"][:, h] for token in hidden[b]]
            values = [own] + [token @ p["writer_value"][:, h] * scale for token in hidden[b]]
            scores = np.array([query @ key / (np.sqrt(HEAD_DIM) * 0.25) for key in keys])
            scores[0] += 0 if fields else p["writer_bias"][h]
            weights = np.exp(scores) / np.exp(scores).sum()
            written.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            kept.append(weights[0] * own)
        moved = np.concatenate(written) + p["forgetting"][i]
        np.testing.assert_allclose(new.slots[b, i], moved / np.linalg.norm(moved), atol=1e-9)
        old = np.concatenate(kept)
        shares.append(np.linalg.norm(old) / (np.linalg.norm(old) + np.linalg.norm(moved - old)))
    kinds = {"retaining": lambda s: s >= 0.9, "aggregating": lambda s: 0.1 < s < 0.9, "rewriting": lambda s: s <= 0.1}
    for name, belongs in kinds.items():
        assert float(aux.metrics[f"memformer/{name}"].total) == sum(map(belongs, shares))
    cosines = np.asarray(new.slots) @ np.asarray(new.slots).swapaxes(1, 2)
    between = cosines[:, ~np.eye(SLOTS, dtype=bool)].mean(axis=1)
    np.testing.assert_allclose(aux.metrics["memformer/slot_cosine"].total, between.sum())
    effective = SLOTS**2 / (cosines**2).sum(axis=(1, 2)) / SLOTS
    np.testing.assert_allclose(aux.metrics["memformer/effective_slots"].total, effective.sum())


def test_rows_that_are_not_written_keep_what_they_read():
    state, x = MemformerState(random(1, ROWS, SLOTS, DIM), jnp.array([True, False])), random(0, ROWS, LENGTH, DIM)
    given = {"start_of_document": NONE, "writes": jnp.array([True, False])}
    encode = jax.jit(functools.partial(encoder().apply, method="encode"))
    encoded, new, aux = encode({"params": params()}, x, state, **given)
    written, other, _ = encode({"params": params()}, x, state, **{**given, "writes": None})
    np.testing.assert_array_equal(encoded.hidden, written.hidden)
    np.testing.assert_array_equal(new.slots[0], other.slots[0])
    bias = params()["forgetting"]
    np.testing.assert_allclose(new.slots[1], bias / np.linalg.norm(bias, axis=1, keepdims=True), atol=1e-9)
    assert new.started.all() and float(aux.metrics["memformer/retaining"].weight) == SLOTS


def test_slots_stay_at_unit_length():
    state = encoder().init_state(ROWS, jnp.float64)
    for x in random(2, 4, ROWS, LENGTH, DIM):
        _, state, aux = step()(params(), x, state)
        np.testing.assert_allclose(np.linalg.norm(state.slots, axis=-1), 1, atol=1e-9)
        shares = [float(aux.metrics[f"memformer/{name}"].mean()) for name in ("retaining", "aggregating", "rewriting")]
        np.testing.assert_allclose(sum(shares), 1)


def test_nothing_written_and_nothing_forgotten_is_the_identity():
    state = MemformerState(random(1, ROWS, SLOTS, DIM), jnp.ones(ROWS, bool))
    state = write(state, state.slots, None, jnp.ones(ROWS, bool))
    again = write(state, state.slots, jnp.zeros((SLOTS, DIM)), jnp.ones(ROWS, bool))
    np.testing.assert_allclose(again.slots, state.slots, atol=1e-12)
    kept = write(state, 3 + state.slots, jnp.ones((SLOTS, DIM)), jnp.array([True, False]))
    np.testing.assert_array_equal(kept.slots[1], state.slots[1])
    assert not np.allclose(kept.slots[0], state.slots[0])


def test_a_document_begins_with_the_learned_memory():
    bias = jnp.asarray(params()["forgetting"])
    state = MemformerState(random(1, ROWS, SLOTS, DIM), jnp.array([True, False]))
    begun = start(state, bias, jnp.array([False, False]))
    np.testing.assert_array_equal(begun.slots[0], state.slots[0])
    np.testing.assert_allclose(begun.slots[1], bias / np.linalg.norm(bias, axis=1, keepdims=True), atol=1e-9)


def test_slots_are_a_set():
    order, x = jnp.array([2, 0, 1]), random(0, ROWS, LENGTH, DIM)
    state = MemformerState(random(1, ROWS, SLOTS, DIM), jnp.ones(ROWS, bool))
    y, new, _ = step()(params(), x, state)
    moved = {**params(), "forgetting": params()["forgetting"][np.asarray(order)]}
    other, shuffled, _ = step()(moved, x, MemformerState(state.slots[:, order], state.started))
    np.testing.assert_allclose(other, y, atol=1e-12)
    np.testing.assert_allclose(shuffled.slots, new.slots[:, order], atol=1e-12)


def test_a_reader_without_output_is_no_reader():
    x = random(0, ROWS, LENGTH, DIM)
    layer = params()["layers_0"]
    closed = {**layer, "reader": {**layer["reader"], "output": jnp.zeros_like(layer["reader"]["output"])}}
    state = MemformerState(random(1, ROWS, SLOTS, DIM), jnp.ones(ROWS, bool))
    y = step()({**params(), "layers_0": closed}, x, state)[0]
    without = {name: value for name, value in layer.items() if not name.startswith("reader")}
    own = ("classification", "layer_norm", "position_bias")
    plain = {name: params()[name] for name in own} | {"layers_0": without}
    module = encoder(reads=False, num_slots=0)
    other, new, _ = jax.jit(module.apply)({"params": plain}, x, module.init_state(ROWS), start_of_document=NONE)
    np.testing.assert_allclose(y, other, atol=1e-12)
    assert not jax.tree.leaves(new)


@pytest.mark.parametrize("write_chunk_size", [pytest.param(1, marks=pytest.mark.laws), 2])
def test_slots_that_are_written_in_chunks_are_the_same(write_chunk_size):
    xs, real = random(3, 2, ROWS, LENGTH, DIM), jnp.array([[True] * LENGTH, [True] + [False] * (LENGTH - 1)])

    def loss(p, module):
        state, total = module.init_state(ROWS, jnp.float64), 0.0
        for x in xs:
            y, state, aux = module.apply({"params": p}, x, state, start_of_document=NONE, mask=real)
            total = total + (y**2 * (1 + jnp.arange(DIM))[None, None]).sum()
        return total, (state, aux.metrics)

    chunks, expected = (
        jax.jit(jax.value_and_grad(functools.partial(loss, module=encoder(write_chunk_size=size)), has_aux=True))(
            params()
        )
        for size in (write_chunk_size, 0)
    )
    chex.assert_trees_all_close(chunks, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("horizon", [pytest.param(1, marks=pytest.mark.laws), 2])
def test_a_writer_learns_from_later_segments_only(horizon):
    module, xs = encoder(), random(3, 2, ROWS, LENGTH, DIM)

    def loss(p):
        state, total = module.init_state(ROWS, jnp.float64), 0.0
        for index, x in enumerate(xs):
            if index and horizon == 1:
                state = jax.lax.stop_gradient(state)
            y, state, _ = module.apply({"params": p}, x, state, start_of_document=NONE)
            total = total + (y**2 * (1 + jnp.arange(DIM))[None, None]).sum()
        return total

    gradient = jax.jit(jax.grad(loss))(params())
    writer = [np.asarray(gradient[f"writer_{name}"]) for name in ("query", "key", "value")]
    assert all(leaf.any() for leaf in writer) if horizon == 2 else not any(leaf.any() for leaf in writer)
    assert np.asarray(gradient["forgetting"]).any()  # through the memory that a document begins with


@pytest.mark.parametrize("value", [0.0, 1.0, 1e8])
def test_constant_and_extreme_inputs_are_finite(value):
    state = encoder().init_state(ROWS, jnp.float64)
    for _ in range(3):
        y, state, _ = step()(params(), jnp.full((ROWS, LENGTH, DIM), value), state)
    assert np.isfinite(y).all() and np.isfinite(state.slots).all()
    one = random(5, ROWS, 1, DIM)
    y, _, _ = step()(params(), one, state)
    assert y.shape == one.shape and np.isfinite(y).all()


def test_heads_of_the_writer_divide_the_slots():
    with pytest.raises(ValueError, match="writer_heads: given 3, allowed: a divisor of dim = 8"):
        encoder(writer_heads=3).init_state(1)
