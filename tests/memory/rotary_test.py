"""Rotary attention against loops over documents, and what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.functional.rotary import rotary_frequencies
from memjax.memory.rotary import RotaryAttention
from memjax.memory.rotary_projector import RotaryProjector
from tests.reference import rotary as reference

DIM, HEADS, KEY_HEADS, HEAD_DIM, LENGTH = 6, 4, 2, 4, 3
FREQUENCIES = rotary_frequencies(HEAD_DIM, 50.0)
PLAIN = RotaryProjector(key_heads=KEY_HEADS, frequencies=tuple(FREQUENCIES))


def part(projector: RotaryProjector = PLAIN, **fields: Any) -> RotaryAttention:
    return RotaryAttention(DIM, HEADS, HEAD_DIM, projector=projector, dtype=jnp.float64, **fields)


def read_document(memory: RotaryAttention, segments: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Any]:
    """A document of whole segments `[length, dim]`, what every token has read, `[length, dim]`, and the parameters."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(segments, 1, LENGTH, DIM))
    state, start = memory.init_state(1, jnp.float64), jnp.ones(1, bool)
    shapes = jax.eval_shape(memory.init, jax.random.key(0), x[0], state, start_of_document=start)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), shapes)

    @jax.jit
    def read_all(params, x, state):
        def body(carry, segment):
            state, start = carry
            result: Any = memory.apply(params, segment, state, start_of_document=start)
            y, state, _ = result
            return (state, jnp.zeros_like(start)), y

        return jax.lax.scan(body, (state, start), x)[1]

    y = np.asarray(read_all(params, x, state))
    return x.reshape(-1, DIM), (y - x).reshape(-1, DIM), jax.tree.map(np.asarray, params["params"])


def expected(x: np.ndarray, params: Any, projector: RotaryProjector, **sizes: Any) -> np.ndarray:
    """What the tokens of a document read, by loops."""

    def rms(values: np.ndarray, scale: np.ndarray, axes: Any = -1) -> np.ndarray:
        return values / np.sqrt((values**2).mean(axes, keepdims=True) + 1e-6) * scale

    hidden = rms(x, params["layer_norm"]["scale"])
    queries = np.einsum("ld,dhe->lhe", hidden, params["query"]) + params.get("query_bias", 0)
    both = np.einsum("ld,dche->lche", hidden, params["key_value"]) + params.get("key_value_bias", 0)
    keys, values = both[:, 0], both[:, 1]
    if projector.query_key_norm != "none":
        axes = -1 if projector.query_key_norm == "head" else (-2, -1)
        queries, keys = rms(queries, params["query_norm"], axes), rms(keys, params["key_norm"], axes)
    frequencies = projector.frequencies or ()
    z = reference.attention_in_segments(queries, keys, values, frequencies, segment=LENGTH, **sizes)
    return np.einsum("lhe,hed->ld", z, params["output"]) + params.get("output_bias", 0)


@pytest.mark.parametrize(
    "projector, sizes",
    [
        (PLAIN, {"memory": 4}),
        (PLAIN, {"memory": 4, "window": 4}),
        (PLAIN, {"memory": 5, "window": 2}),
        (PLAIN, {"memory": 4, "sinks": 2}),
        (PLAIN, {"memory": 4, "window": 4, "sinks": 2}),
        (PLAIN, {"memory": 0}),
        (RotaryProjector(1, (1.0,), bias=True, output_bias=True, query_key_norm="head"), {"memory": 4}),
        (RotaryProjector(2, (1.0, 0.3), query_key_norm="all"), {"memory": 4}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_a_long_document_is_read_as_by_loops(projector, sizes):
    memory_length, window = sizes["memory"], sizes.get("window", 0)
    options = {"same_length": window == memory_length > 0, "sinks": sizes.get("sinks", 0)}
    with jax.enable_x64(True):
        memory = part(projector, memory_length=memory_length, window=window, **options)
        x, y, params = read_document(memory, segments=5)
        np.testing.assert_allclose(y, expected(x, params, projector, **sizes), atol=1e-10)


def test_a_document_that_fits_is_read_as_at_once():
    with jax.enable_x64(True):
        x, y, params = read_document(part(memory_length=4, sinks=2), segments=3)  # 4 + 2 + 3 tokens
        whole = expected(x, params, PLAIN, memory=100)
        np.testing.assert_allclose(y, whole, atol=1e-10)
        longer = read_document(part(memory_length=4, sinks=2), segments=4)
        assert np.abs(longer[1] - expected(longer[0], longer[2], PLAIN, memory=100)).max() > 1e-3


def test_positions_are_those_inside_the_window():
    # The same tokens after two different pasts of any length give the same state, and so the same program and output.
    with jax.enable_x64(True):
        memory = part(memory_length=3)
        random = np.random.default_rng(1)
        shapes = jax.eval_shape(
            memory.init,
            jax.random.key(0),
            jnp.zeros((1, 3, DIM)),
            memory.init_state(1),
            start_of_document=jnp.ones(1, bool),
        )
        params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), shapes)
        segments = random.normal(size=(4, 1, LENGTH, DIM))
        apply = jax.jit(memory.apply)
        ends = []
        for past in (0, 2):
            state = memory.init_state(1, jnp.float64)
            for segment in segments[2 - past :]:
                y, state, _ = apply(params, segment, state, start_of_document=jnp.zeros(1, bool))
            ends.append((y, state))
        jax.tree.map(np.testing.assert_array_equal, *ends)


def test_settings_without_slots_have_no_sinks():
    settings = config.Rotary(memory_length=8, sinks=2, same_length=True)
    assert settings.with_memory(4) == config.Rotary(memory_length=4, sinks=2, same_length=True)
    assert settings.with_memory(0) == config.Rotary(memory_length=0)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"memory_length": 0, "sinks": 2}, "sinks: given 2, allowed: 0 where memory_length is 0"),
        ({"memory_length": 0, "same_length": True}, "same_length: given True, allowed: False where memory_length is 0"),
        ({"memory_length": -1}, "memory_length: given -1, allowed: 0 or more slots"),
        (
            {"memory_length": 2, "projector": RotaryProjector(key_heads=3)},
            "key_heads: given 3, allowed: a divisor of num_heads = 4, or 0 for as many",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(fields, message):
    with pytest.raises(ValueError, match=message):
        part(**fields).init_state(1)


@pytest.mark.parametrize("sizes", [{"memory_length": 6}, {"memory_length": 6, "sinks": 2}, {"memory_length": 0}])
def test_a_prompt_at_the_beginning_of_a_document_is_read_at_once(sizes):
    memory = part(**sizes).clone(dtype=jnp.float32)
    x = jax.random.normal(jax.random.key(3), (2, 4, memory.dim))
    state = memory.init_state(2)
    variables = memory.init(jax.random.key(0), x, state, start_of_document=jnp.ones(2, bool))
    y, new, _ = memory.apply(variables, x, state, start_of_document=jnp.ones(2, bool))
    start, lengths = memory.init_decode_state(state, 4, 2), jnp.array([4, 2])
    found, after = memory.apply(variables, x, start, lengths=lengths, method="decode_segment")
    np.testing.assert_allclose(found[0], y[0], atol=1e-5)
    np.testing.assert_allclose(found[1, :2], y[1, :2], atol=1e-5)
    assert after.position.tolist() == [0, 2]
    for here, there in zip(jax.tree.leaves(after.memory), jax.tree.leaves(new), strict=True):
        np.testing.assert_allclose(np.float32(here[0]), np.float32(there[0]), atol=1e-6)
