"""Transformer-XL against float64 loops, and the invariants T1 to T9 of its specification."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.positions import relative_shift
from memjax.memory.transformer_xl import (
    RelativeBiases,
    TransformerXLAttention,
    TransformerXLProjector,
    TransformerXLState,
)
from memjax.typing import EmptyState
from tests.reference import transformer_xl as reference
from tests.reference.parameters import params_of, random_params

DIM, HEADS, HEAD_DIM, LAYERS, ROWS, TOKENS = 8, 2, 3, 2, 2, 12


def make(memory_length: int, **fields) -> TransformerXLAttention:
    fields = {"dtype": jnp.float64, **fields}
    positions = {name: fields.pop(name) for name in ("tied_biases", "clamp_length") if name in fields}
    projector = TransformerXLProjector(**positions)
    return TransformerXLAttention(DIM, HEADS, HEAD_DIM, memory_length, projector, **fields)


def document(seed: int = 0, rows: int = ROWS, tokens: int = TOKENS, dtype=np.float64) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, tokens, DIM)).astype(dtype)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def layer_params(tied: bool = False) -> tuple:
    """Parameters of the two attention parts, and u and v where they are tied."""
    part, x = make(2, tied_biases=tied), jnp.zeros((1, 1, DIM))
    shared = (jnp.zeros((HEADS, HEAD_DIM)),) * 2 if tied else None
    call = {"start_of_document": jnp.ones(1, bool), "shared": shared}
    params = [params_of(part, x, part.init_state(1), seed=seed, **call) for seed in range(LAYERS)]
    shapes = jax.ShapeDtypeStruct((HEADS, HEAD_DIM), np.float64)
    biases = random_params({"content": shapes, "position": shapes}, seed=9) if tied else None
    return params, biases


@functools.cache
def runner(part: TransformerXLAttention, segment_length: int):
    """Compiled: a document through two attention parts, segment after segment."""

    @jax.jit
    def run(params, biases, x):
        rows, tokens, _ = x.shape
        shared = None if biases is None else (biases["content"], biases["position"])
        segments = jnp.moveaxis(x.reshape(rows, tokens // segment_length, segment_length, DIM), 1, 0)

        def step(carry, y):
            states, first = carry

            def layer(y, layer):
                params, state = layer
                y, state, _ = part.apply({"params": params}, y, state, start_of_document=first, shared=shared)
                return y, state

            y, states = jax.lax.scan(layer, y, (params, states))
            return (states, jnp.zeros_like(first)), y

        states = jax.tree.map(lambda leaf: jnp.stack([leaf] * LAYERS), part.init_state(rows, x.dtype))
        start = states, jnp.ones(rows, bool)
        return jnp.moveaxis(jax.lax.scan(step, start, segments)[1], 0, 1).reshape(x.shape)

    return run


def run(x, segment_length: int, memory_length: int, **fields) -> np.ndarray:
    """`x` in segments through two attention parts, in float64."""
    params, biases = layer_params(fields.get("tied_biases", False))
    return np.asarray(runner(make(memory_length, **fields), segment_length)(stacked(params), biases, x))


def stacked(params: list) -> dict:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *params)


def reference_layers(tied: bool = False) -> tuple[list[dict], dict]:
    params, biases = layer_params(tied)
    return [{"attention": layer} for layer in params], ({"biases": biases} if tied else {})


@pytest.mark.parametrize(
    "fields",
    [
        {"norm": "post"},
        {"norm": "pre", "tied_biases": True, "clamp_length": 3},
        {"norm": "post", "tied_biases": True, "clamp_length": 4, "same_length": True},
    ],
)
def test_equals_the_float64_reference(fields):
    x, memory_length, segment_length = document(), 5, 4
    layers, biases = reference_layers(fields.get("tied_biases", False))
    expected = [
        reference.segmented(
            row,
            layers,
            segment_length=segment_length,
            memory_length=memory_length,
            window=memory_length if fields.get("same_length") else 0,
            norm=fields["norm"],
            clamp_length=fields.get("clamp_length", 0),
            **biases,
        )
        for row in x
    ]
    np.testing.assert_allclose(run(x, segment_length, memory_length, **fields), expected, atol=1e-12)


# T1, T2


def test_long_memory_equals_one_full_forward():
    x = document()
    np.testing.assert_allclose(run(x, 4, TOKENS), run(x, TOKENS, 0), atol=1e-12)


@pytest.mark.parametrize("memory_length", (3, 5))
def test_segments_equal_one_full_forward_with_the_mask_of_segments(memory_length):
    x, segment_length = document(), 4
    layers, _ = reference_layers()
    sees = lambda query, key: key >= query // segment_length * segment_length - memory_length
    expected = np.stack([reference.full(row, layers, sees=sees) for row in x])
    found = run(x, segment_length, memory_length)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    other = run(x, segment_length, 8 - memory_length)
    assert np.abs(found - other).max() > 1e-3  # so the memory length matters here


# T3


@pytest.mark.parametrize("memory_length", (5, *(pytest.param(length, marks=pytest.mark.laws) for length in (3, 8))))
def test_same_length_is_a_banded_mask_whatever_the_segment_length(memory_length):
    x = document(rows=1)
    layers, _ = reference_layers()
    expected = reference.full(x[0], layers, sees=lambda query, key: query - key < memory_length)
    for segment_length in (1, 2, 3, 4, 6):
        found = run(x, segment_length, memory_length, same_length=True)
        np.testing.assert_allclose(found[0], expected, atol=1e-12, err_msg=f"segments of {segment_length}")


# T4


@pytest.mark.parametrize("length, total", [(1, 1), (1, 5), (4, 4), (3, 7)])
def test_relative_shift_equals_the_direct_form(length, total):
    by_distance = (
        np.random.default_rng(0).normal(size=(2, length, total)).astype(np.float32)
    )  # distance total - 1 first
    shifted = np.asarray(relative_shift(jnp.asarray(by_distance)))
    for i in range(length):
        for j in range(i + total - length + 1):
            distance = i + total - length - j
            np.testing.assert_array_equal(shifted[:, i, j], by_distance[:, i, total - 1 - distance])


def test_only_distances_matter():
    # Two layers that see 3 keys each depend on the last 5 tokens, wherever they stand in document and segment.
    x = document(rows=1)
    moved = np.concatenate([document(seed=1, rows=1)[:, :3], x[:, :-3]], axis=1)
    first, second = (run(tokens, 4, 3, same_length=True) for tokens in (x, moved))
    np.testing.assert_allclose(second[:, 7:], first[:, 4:-3], atol=1e-12)


# T5


def test_without_position_terms_it_is_plain_attention():
    x = document(rows=1)
    params, _ = layer_params()
    zero = lambda layer: (
        layer
        | {
            "relative": 0 * layer["relative"],
            "biases": jax.tree.map(np.zeros_like, layer["biases"]),
        }
    )
    found = np.asarray(runner(make(TOKENS), 4)(stacked([zero(layer) for layer in params]), None, x))[0]
    hidden = x[0]
    for layer in params:
        keys, values = (np.einsum("td,dhf->htf", hidden, layer["key_value"][:, part]) for part in (0, 1))
        scores = np.einsum("td,dhf,hsf->hts", hidden, layer["query"], keys) / np.sqrt(HEAD_DIM)
        weights = np.exp(scores) * np.tri(TOKENS)
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hts,hsf,hfd->td", weights, values, layer["output"])
        hidden = reference.layer_norm(hidden + mixed, layer["layer_norm"])
    np.testing.assert_allclose(found, hidden, atol=1e-12)


# T6 to T9 and the state, on one compiled step

MEMORY, SEGMENT, BATCH = 5, 4, 3


@functools.cache
def step(**fields):
    part = make(MEMORY, **fields)
    return jax.jit(
        lambda params, x, state, start, mask: part.apply(
            {"params": params}, x, state, start_of_document=start, mask=mask
        )
    )


def one_step(x, state, start=False, mask=None, **fields):
    """Output and new state of one segment, in float64."""
    rows, length, _ = x.shape
    start = np.broadcast_to(start, (rows,))
    mask = np.ones((rows, length), bool) if mask is None else mask
    y, state, aux = step(**fields)(layer_params()[0][0], x, state, start, mask)
    assert not aux.losses and not aux.arrays and set(aux.metrics) <= {"transformer_xl/memory_share"}
    return np.asarray(y), jax.tree.map(np.asarray, state)


def some_state(seed: int = 3, valid=True) -> TransformerXLState:
    rng = np.random.default_rng(seed)
    valid = np.broadcast_to(valid, (BATCH, MEMORY)).copy()
    return TransformerXLState(rng.normal(size=(BATCH, MEMORY, DIM)), valid)


def test_calls_of_one_token_equal_segments_when_the_memory_is_long():
    x = document()
    np.testing.assert_allclose(run(x, 1, TOKENS), run(x, 4, TOKENS), atol=1e-12)


@pytest.mark.parametrize(
    "fields", [{}, pytest.param({"same_length": True, "clamp_length": 3, "norm": "pre"}, marks=pytest.mark.laws)]
)
def test_decoding_equals_segments(fields):
    part, x = make(MEMORY, **fields), document(rows=BATCH)
    params = layer_params()[0][0]
    expected, state = [], part.init_state(BATCH, np.float64)
    for first in range(0, TOKENS, SEGMENT):
        y, state = one_step(x[:, first : first + SEGMENT], state, **fields)
        expected.append(y)

    @jax.jit
    def decode(params, x):
        start = part.init_decode_state(part.init_state(BATCH, x.dtype), SEGMENT, BATCH)

        def token(carry, y):
            active = jnp.ones(BATCH, bool)
            y, carry = part.apply({"params": params}, y[:, None], carry, active=active, method="decode")
            return carry, y[:, 0]

        end, y = jax.lax.scan(token, start, jnp.moveaxis(x, 1, 0))
        return jnp.moveaxis(y, 0, 1), end

    found, end = decode(params, x)
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), atol=1e-12)
    np.testing.assert_array_equal(end.memory.hidden, state.hidden)
    np.testing.assert_array_equal(end.memory.valid, state.valid)


def test_a_document_start_resets_its_row_only():
    x, state = document(rows=BATCH)[:, :SEGMENT], some_state()
    starts = np.array([False, True, False])
    y, new = one_step(x, state, starts)
    carried, carried_state = one_step(x, state)
    fresh, fresh_state = one_step(x, make(MEMORY).init_state(BATCH, np.float64), True)
    np.testing.assert_array_equal(y[1], fresh[1])
    np.testing.assert_array_equal(y[[0, 2]], carried[[0, 2]])
    assert np.abs(y[1] - carried[1]).max() > 1e-3
    np.testing.assert_array_equal(new.valid[1], fresh_state.valid[1])
    np.testing.assert_array_equal(new.hidden[[0, 2]], carried_state.hidden[[0, 2]])
    np.testing.assert_array_equal(one_step(x, new)[0][1], one_step(x, fresh_state)[0][1])  # and later segments


def test_nothing_differentiates_through_the_memory_but_projections_of_it_learn():
    x, state = document(rows=BATCH)[:, :SEGMENT], some_state()
    part, params = make(MEMORY), layer_params()[0][0]
    start = jnp.zeros(BATCH, bool)

    def second_segment(params, x):
        old = TransformerXLState(jnp.asarray(state.hidden), jnp.asarray(state.valid))
        _, old, _ = part.apply({"params": params}, x, old, start_of_document=start)
        y, _, _ = part.apply({"params": params}, jax.lax.stop_gradient(2 * x), old, start_of_document=start)
        return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum()

    by_params, by_x = jax.jit(jax.grad(second_segment, argnums=(0, 1)))(params, jnp.asarray(x))
    assert not np.asarray(by_x).any()  # the first segment reaches the second only through the memory
    for name in ("query", "key_value", "relative", "output"):
        assert np.abs(by_params[name]).max() > 1e-3, name
    for name in ("content", "position"):
        assert np.abs(by_params["biases"][name]).max() > 1e-3, name


def test_rows_permute():
    x, state, order = document(rows=BATCH)[:, :SEGMENT], some_state(), [2, 0, 1]
    y, new = one_step(x, state, [True, False, False])
    permuted, permuted_state = one_step(
        x[order], jax.tree.map(lambda leaf: leaf[order], state), np.array([True, False, False])[order]
    )
    np.testing.assert_array_equal(permuted, y[order])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[order]), permuted_state, new)


def test_memory_is_the_last_inputs_and_padding_takes_invalid_slots():
    x, state = document(rows=BATCH)[:, :SEGMENT], some_state(valid=[False, False, True, True, True])
    mask = np.arange(SEGMENT)[None, :] < np.array([[4], [2], [0]])
    y, new = one_step(x, state, mask=mask)
    np.testing.assert_array_equal(new.hidden[:2, 1:], x[:2])
    np.testing.assert_array_equal(new.hidden[:2, 0], state.hidden[:2, -1])
    np.testing.assert_array_equal(new.valid[0], [True] * 5)
    np.testing.assert_array_equal(new.valid[1], [True, True, True, False, False])
    np.testing.assert_array_equal(new.hidden[2], state.hidden[2])  # an idle row keeps its state
    np.testing.assert_array_equal(new.valid[2], state.valid[2])
    changed = np.where(mask[..., None], x, 1e3)
    np.testing.assert_array_equal(one_step(changed, state, mask=mask)[0][mask], y[mask])  # padding is not read


def test_invalid_slots_are_not_read_unless_zeros_are_asked_for():
    x, state = document(rows=BATCH)[:, :SEGMENT], some_state(valid=False)
    params = layer_params()[0][0]
    expected = [reference.attention_part(row, np.zeros((0, DIM)), params)[0] for row in x]
    np.testing.assert_allclose(one_step(x, state)[0], expected, atol=1e-12)

    zeros = make(MEMORY, empty_memory="zeros").init_state(BATCH, np.float64)
    assert zeros.valid.all() and not zeros.hidden.any()
    attended = [reference.attention_part(row, np.zeros((MEMORY, DIM)), params)[0] for row in x]
    np.testing.assert_allclose(one_step(x, zeros, empty_memory="zeros")[0], attended, atol=1e-12)
    np.testing.assert_allclose(one_step(x, state, True, empty_memory="zeros")[0], attended, atol=1e-12)
    assert np.abs(np.array(expected) - attended).max() > 1e-2


def test_no_memory_is_an_empty_state():
    part = make(0)
    assert part.init_state(2) == EmptyState()
    assert not jax.tree.leaves(part.init_state(2))


def test_tied_biases_are_parameters_of_the_stack():
    params, _ = layer_params(tied=True)
    assert "biases" not in params[0]
    shared = make(2, tied_biases=True).shared_module()
    assert isinstance(shared, RelativeBiases)
    assert make(2).shared_module() is None


def test_bfloat16_keeps_the_dtypes_and_stays_close():
    x = document(rows=BATCH, dtype=np.float32)[:, :SEGMENT]
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), layer_params()[0][0])
    part = make(MEMORY, dtype=jnp.bfloat16)
    state = jax.tree.map(jnp.asarray, some_state())
    state = TransformerXLState(state.hidden.astype(jnp.bfloat16), state.valid)
    call = jax.jit(lambda p, x, s: part.apply({"params": p}, x, s, start_of_document=jnp.zeros(BATCH, bool)))
    y, new, _ = call(params, jnp.asarray(x, jnp.bfloat16), state)
    assert y.dtype == new.hidden.dtype == jnp.bfloat16
    exact, _ = one_step(x.astype(np.float64), some_state())
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=0.1)


def test_dropout_reaches_output_and_weights():
    x, params = document(rows=BATCH)[:, :SEGMENT], layer_params()[0][0]

    def drop(**fields):
        part = make(MEMORY, **fields)

        @jax.jit
        def call(seed):
            rngs = {"dropout": jax.random.key(seed, impl="unsafe_rbg")}  # compiles faster than the default
            state, start = part.init_state(BATCH), jnp.zeros(BATCH, bool)
            named = {"start_of_document": start, "deterministic": False, "rngs": rngs}
            return part.apply({"params": jax.tree.map(jnp.asarray, params)}, jnp.asarray(x), state, **named)[0]

        return np.stack([call(0), call(0), call(1)])

    for y in (drop(dropout=0.5), on_weights := drop(attention_dropout=0.9)):
        np.testing.assert_array_equal(y[0], y[1])
        assert not np.allclose(y[0], y[2])
    # The first token of a document sees one key only: without its weight it has nothing but the residual.
    residual = reference.layer_norm(x[:, 0], params["layer_norm"])
    assert np.isclose(on_weights[:, :, 0], residual[None], atol=1e-12).all(axis=-1).any()
