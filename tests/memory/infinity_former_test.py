"""infinity-former against a float64 reference with loops, and the properties its paper claims."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.memory.infinity_former import LOSS, InfinityFormerAttention, LongTermMemory
from memjax.memory.long_term_signal import Densities, gate
from memjax.memory.transformer_xl import TransformerXLAttention
from tests.reference import infinity_former as reference
from tests.reference.parameters import params_of

DIM, HEADS, HEAD_DIM, LENGTH, ROWS, SEGMENTS = 6, 2, 3, 4, 2, 4
SIZES = {"segment_length": LENGTH, "num_basis": 8, "widths": (0.1, 0.2), "num_samples": 5, "num_bins": 6, "ridge": 0.5}
STARTS = jnp.zeros(ROWS, bool)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def memory(**fields) -> LongTermMemory:
    return LongTermMemory(DIM, HEADS, HEAD_DIM, **{**SIZES, "dtype": jnp.float64, **fields})


def part(memory_length: int = 0, long_term: LongTermMemory | None = None) -> InfinityFormerAttention:
    heads = {"dim": DIM, "num_heads": HEADS, "head_dim": HEAD_DIM, "memory_length": memory_length, "norm": "pre"}
    return InfinityFormerAttention(**heads, dtype=jnp.float64, long_term=long_term or memory())


def random(seed: int, *shape: int):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@functools.cache
def memory_params():
    module, mask = memory(), jnp.ones((ROWS, LENGTH), bool)
    queries = jnp.zeros((ROWS, LENGTH, HEADS, HEAD_DIM))
    arrays = params_of(module, queries, module.init_state(ROWS, jnp.float64), mask=mask)
    return jax.tree.map(jnp.asarray, arrays)


@functools.cache
def part_params(memory_length: int = 0):
    module = part(memory_length)
    x = jnp.zeros((ROWS, LENGTH, DIM))
    arrays = params_of(module, x, module.init_state(ROWS, jnp.float64), start_of_document=STARTS)
    return jax.tree.map(jnp.asarray, arrays)


def store(state, hidden, rows=True):
    valid = jnp.broadcast_to(jnp.asarray(rows).reshape(-1, 1), hidden.shape[:2])
    return dataclasses.replace(state, previous=hidden, previous_valid=valid)


@functools.cache
def stepper(module):
    """One segment, compiled once for all tests that ask for this memory."""

    @jax.jit
    def step(params, queries, state, key):
        noise = {} if key is None else {"deterministic": False, "rngs": {"memory": key}}
        return module.apply({"params": params}, queries, state, mask=jnp.ones((ROWS, LENGTH), bool), **noise)

    return step


def read_segments(module, queries, hidden, params=None, key=None):
    """The memory over segments: outputs, divergences and the last state."""
    params = memory_params() if params is None else params
    state, outputs, losses = module.init_state(ROWS, jnp.float64), [], []
    for q, x in zip(queries, hidden, strict=True):
        y, state, aux = stepper(module)(params, q, state, key)
        state = store(state, x)
        outputs.append(y)
        losses.append(aux.losses[LOSS].mean())
    return np.stack(outputs), np.array(losses), state


@pytest.mark.parametrize(
    "sticky, begin",
    [
        ("none", "published"),
        ("quantile", "prior"),
        *(pytest.param(*case, marks=pytest.mark.laws) for case in (("none", "prior"), ("quantile", "published"))),
    ],
)
def test_equals_the_float64_reference(sticky, begin):
    queries, hidden = random(0, SEGMENTS, ROWS, LENGTH, HEADS, HEAD_DIM), random(1, SEGMENTS, ROWS, LENGTH, DIM)
    found, losses, _ = read_segments(memory(sticky=sticky, contraction=0.75, density_init=begin), queries, hidden)
    divergences = []
    for row in range(ROWS):
        expected, kl = reference.long_term_memory(
            np.asarray(queries[:, row]),
            np.asarray(hidden[:, row]),
            memory_params(),
            centers=np.linspace(0, 1, 4).repeat(2),
            widths=np.tile([0.1, 0.2], 4),
            samples=5,
            tau=0.75,
            ridge=0.5,
            bins=6,
            sticky=sticky == "quantile",
            min_variance=1e-4,
            begin_stddev=0.05 if begin == "prior" else None,
        )
        # The end bins are a millionth wider than the reference's.
        np.testing.assert_allclose(found[:, row], expected, atol=1e-10 if sticky == "none" else 1e-4)
        divergences.append(kl)
    np.testing.assert_allclose(losses, np.mean(divergences, axis=0), rtol=1e-8 if sticky == "none" else 1e-3)


def test_figures_are_those_of_the_densities():
    """Before training, by hand: width and middle of each head's density, and what these leave in each bin."""
    module, params = memory(sticky="quantile", num_bins=2), memory_params()
    quiet = {**params, "affine": jnp.zeros_like(params["affine"])}
    queries, mask = random(0, ROWS, LENGTH, HEADS, HEAD_DIM), jnp.ones((ROWS, LENGTH), bool)
    state = store(module.init_state(ROWS, jnp.float64), random(1, ROWS, LENGTH, DIM), rows=jnp.array([True, False]))
    _, _, aux = jax.jit(module.apply)({"params": quiet}, queries, state, mask=mask)
    found = {name.removeprefix("infinity_former/"): value for name, value in aux.metrics.items()}
    assert {name: float(value.weight) for name, value in found.items()} == {
        **{"stddev": LENGTH, "inside": LENGTH, "sticky_evenness": 1}  # the second row has no signal yet
    }
    np.testing.assert_allclose(found["stddev"].mean(), 0.05, rtol=1e-9)
    np.testing.assert_allclose(found["inside"].mean(), math.erf(0.25 / 0.05 / 2**0.5), atol=1e-6)
    np.testing.assert_allclose(found["sticky_evenness"].mean(), 1, rtol=1e-9)  # a head in each half
    published = module.clone(density_init="published")
    _, _, aux = jax.jit(published.apply)({"params": quiet}, queries, state, mask=mask)
    wide = math.log(2) ** 0.5
    np.testing.assert_allclose(aux.metrics["infinity_former/stddev"].mean(), wide, rtol=1e-9)
    np.testing.assert_allclose(aux.metrics["infinity_former/inside"].mean(), math.erf(0.5 / wide / 2**0.5), atol=1e-6)


def test_the_gate_is_a_convolution_of_three_positions():
    x, kernel, bias = random(0, 1, 5, DIM), random(1, 3, DIM, DIM), random(2, DIM)
    expected = reference.gate(np.asarray(x[0]), np.asarray(kernel), np.asarray(bias))
    np.testing.assert_allclose(gate(x, kernel, bias)[0], expected, atol=1e-12)


def test_without_its_output_matrix_the_layer_is_its_host():
    params = part_params(4)
    closed = {**params, "long_term": {**params["long_term"], "output": jnp.zeros_like(params["long_term"]["output"])}}
    host = TransformerXLAttention(DIM, HEADS, HEAD_DIM, 4, norm="pre", dtype=jnp.float64)
    own = {name: value for name, value in params.items() if name != "long_term"}
    state, other = part(4).init_state(ROWS, jnp.float64), host.init_state(ROWS, jnp.float64)

    @jax.jit
    def both(x, state, other):
        ours = part(4).apply({"params": closed}, x, state, start_of_document=STARTS)
        return ours, host.apply({"params": own}, x, other, start_of_document=STARTS)

    for x in random(3, 3, ROWS, LENGTH, DIM):
        (y, state, _), (expected, other, _) = both(x, state, other)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(state.short.hidden, other.hidden)


def test_tokens_enter_the_signal_when_they_leave_the_short_memory():
    module, params = part(2 * LENGTH), part_params(2 * LENGTH)
    state, xs = module.init_state(ROWS, jnp.float64), random(4, 4, ROWS, LENGTH, DIM)
    apply = jax.jit(module.apply)
    for index, x in enumerate(xs):
        _, state, _ = apply({"params": params}, x, state, start_of_document=STARTS)
        assert np.asarray(state.long.previous_valid).all() == (index >= 2)
        assert np.asarray(state.long.valid).all() == (index >= 3)
    np.testing.assert_array_equal(state.long.previous, xs[1])
    assert state.long.tokens.tolist() == [LENGTH] * ROWS


def test_gradients_reach_the_gate_and_nothing_stored():
    module, params = memory(), memory_params()
    queries, mask = random(0, ROWS, LENGTH, HEADS, HEAD_DIM), jnp.ones((ROWS, LENGTH), bool)
    state = read_segments(module, random(5, 3, ROWS, LENGTH, HEADS, HEAD_DIM), random(6, 3, ROWS, LENGTH, DIM))[2]

    def loss(params, coefficients, previous):
        now = dataclasses.replace(state, coefficients=coefficients, previous=previous)
        y, new, _ = module.apply({"params": params}, queries, now, mask=mask)
        return (y**2).sum() + (new.coefficients**2).sum()

    to_params, to_past, to_previous = jax.jit(jax.grad(loss, (0, 1, 2)))(params, state.coefficients, state.previous)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(to_params))
    assert not np.asarray(to_past).any()
    assert np.asarray(to_previous).any()  # by the gate's product; what a layer stores is cut off before (law 6)


def test_the_gate_changes_new_tokens_only():
    module, params = memory(), memory_params()
    state = read_segments(module, random(5, 3, ROWS, LENGTH, HEADS, HEAD_DIM), random(6, 3, ROWS, LENGTH, DIM))[2]
    state = store(state, jnp.zeros_like(state.previous))
    opened = {**params, "gate_bias": params["gate_bias"] + 3.0}
    updated = jax.jit(lambda p: module.update_signal(module.bind({"params": p}).weights(), state, None).coefficients)
    new, other = (updated(p) for p in (params, opened))
    np.testing.assert_array_equal(new, other)


def test_state_is_constant_finite_and_bounded_over_a_thousand_updates():
    module, params = part(long_term=memory(sticky="quantile")), part_params()
    state, xs = module.init_state(ROWS, jnp.float64), random(7, 8, ROWS, LENGTH, DIM)

    @jax.jit
    def run(state):
        def step(state, index):
            y, state, _ = module.apply({"params": params}, xs[index % 8], state, start_of_document=STARTS)
            return state, (jnp.abs(state.long.coefficients).max(), jnp.abs(y).max())

        return jax.lax.scan(step, state, jnp.arange(1000))

    last, (coefficients, outputs) = run(state)
    shapes = lambda tree: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
    assert shapes(last) == shapes(state)
    assert np.isfinite(outputs).all() and float(coefficients[500:].max()) <= 2 * float(coefficients[:500].max())
    assert last.long.tokens.tolist() == [999 * LENGTH] * ROWS


def test_reset_after_begins_the_signal_anew():
    module = memory(reset_after_tokens=8)
    queries, hidden = random(0, 6, ROWS, LENGTH, HEADS, HEAD_DIM), random(1, 6, ROWS, LENGTH, DIM)
    counts, state = [], module.init_state(ROWS, jnp.float64)
    read = jax.jit(
        lambda q, state: module.apply({"params": memory_params()}, q, state, mask=jnp.ones((ROWS, LENGTH), bool))[1]
    )
    for q, x in zip(queries, hidden, strict=True):
        state = read(q, state)
        counts.append(state.tokens.tolist()[0])
        state = store(state, x)
    assert counts == [0, 4, 8, 4, 8, 4]
    alone = store(module.init_state(ROWS, jnp.float64), hidden[4])
    fresh = read(queries[5], alone)
    before = read_segments(module, queries[:5], hidden[:5])[2]
    np.testing.assert_array_equal(read(queries[5], before).coefficients, fresh.coefficients)


def test_sticky_updates_read_where_queries_looked():
    # Many samples: quantiles lie in the middle of their shares, even samples at the ends.
    module, params = memory(sticky="quantile", num_bins=4, num_samples=64), memory_params()
    state = read_segments(module, random(5, 3, ROWS, LENGTH, HEADS, HEAD_DIM), random(6, 3, ROWS, LENGTH, DIM))[2]
    weights = module.bind({"params": params}).weights()
    updated = jax.jit(lambda state: module.update_signal(weights, state, None).coefficients)
    at = lambda *masses: dataclasses.replace(state, histogram=jnp.asarray([masses] * ROWS))
    early, late = (updated(at(*masses)) for masses in ((1.0, 0, 0, 0), (0, 0, 0, 1.0)))
    assert not np.allclose(early, late)
    even = memory(num_samples=64).update_signal(weights, state, None).coefficients
    spread = updated(at(1.0, 1.0, 1.0, 1.0))
    difference = lambda a, b: float(np.abs(a - b).max())
    assert difference(spread, even) < 0.1 * difference(early, even)


def test_samples_follow_their_key():
    queries, hidden = random(0, 3, ROWS, LENGTH, HEADS, HEAD_DIM), random(1, 3, ROWS, LENGTH, DIM)
    module = memory(sticky="sample", num_bins=64)
    first, again, other = (read_segments(module, queries, hidden, key=jax.random.key(k))[0] for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    quiet = read_segments(module, queries, hidden)[0]
    np.testing.assert_array_equal(quiet, read_segments(module.clone(sticky="quantile"), queries, hidden)[0])


def test_the_cost_of_reading_does_not_depend_on_the_context():
    module = memory()
    flops = lambda tokens: jax.jit(module.apply).lower(
        {"params": memory_params()},
        random(0, ROWS, LENGTH, HEADS, HEAD_DIM),
        dataclasses.replace(module.init_state(ROWS, jnp.float64), tokens=jnp.full(ROWS, tokens, jnp.int32)),
        mask=jnp.ones((ROWS, LENGTH), bool),
    ).compile().cost_analysis()["flops"]  # fmt: skip
    assert flops(4) == flops(4_000_000)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e30, -1e30])
def test_constant_and_extreme_inputs_are_finite(value):
    module = memory(sticky="quantile", dtype=jnp.float32)
    queries = jnp.full((3, ROWS, LENGTH, HEADS, HEAD_DIM), value / 1e15, jnp.float32)
    outputs, losses, state = read_segments(module, queries, jnp.full((3, ROWS, LENGTH, DIM), value / 1e15, jnp.float32))
    assert np.isfinite(outputs).all() and np.isfinite(losses).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: part(3).init_state(1), "memory_length: given 3, allowed: 0 or a multiple of segment_length = 4"),
        (
            lambda: memory(reset_after_tokens=0).init_state(1),
            "reset_after_tokens: given 0, allowed: at least 1 token, or None",
        ),
        (lambda: memory(num_bins=0).init_state(1), "num_bins: given 0, allowed: an integer of at least 1"),
        (lambda: memory(num_basis=7).init_state(1), "num_basis: given 7, allowed: a multiple of the 2 widths"),
    ],
)
def test_bad_fields_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_evenness_of_a_histogram_that_rounds_below_zero():
    module, ones = memory(sticky="quantile", num_bins=4), jnp.full((1, HEADS, 1), 0.5)
    histogram = jnp.array([[0.5, 0.5, -1e-9, 0.0]])
    figures = module._metrics(Densities(ones, ones), jnp.ones((1, 1), bool), histogram)
    np.testing.assert_allclose(figures["infinity_former/sticky_evenness"].mean(), 0.5, atol=1e-6)
