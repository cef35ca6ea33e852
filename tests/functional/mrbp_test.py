"""Both forms of memory replay back-propagation against back-propagation through time, in float64."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.functional.mrbp import mrbp_value_and_grad, scan_with_replay

SEGMENTS, ROWS, DIM = 6, 2, 3


class Memory(NamedTuple):
    """What real memories have: an activation, a counter, and rows that have started."""

    slots: Any
    count: Any
    started: Any


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def encode(params, memory, segment):
    """Rows whose document starts take a learned memory; dropout on what is encoded and on what is written."""
    x, start, key = segment
    keep, write = jax.random.split(key)
    fresh = (start | ~memory.started)[:, None]
    slots = jnp.where(fresh, params["initial"][None], memory.slots)
    hidden = jnp.tanh(x @ params["in"] + slots @ params["loop"])
    hidden = jnp.where(jax.random.bernoulli(keep, 0.7, hidden.shape), hidden / 0.7, 0)
    slots = slots + jnp.where(jax.random.bernoulli(write, 0.7, hidden.shape), hidden @ params["write"], 0)
    return Memory(slots, memory.count + 1, jnp.ones_like(memory.started)), (hidden, memory.count)


def head(params, encoded, segment):
    hidden, count = encoded
    loss = ((hidden @ params["out"] - segment[0][:, ::-1]) ** 2).sum() * (1 + count[0])
    return loss, {"size": jnp.abs(hidden).sum(axis=1)}


def step(params, memory, segment):
    memory, encoded = encode(params, memory, segment)
    return memory, head(params, encoded, segment)


def problem(dtype=np.float64):
    draw = np.random.default_rng(0)
    names = ("in", "loop", "write", "out")
    params = {name: jnp.asarray(draw.normal(size=(DIM, DIM)), dtype) for name in names}
    params["initial"] = jnp.asarray(draw.normal(size=DIM), dtype)
    memory = Memory(jnp.asarray(draw.normal(size=(ROWS, DIM)), dtype), jnp.zeros(ROWS, int), jnp.array([True, False]))
    start = jnp.zeros((SEGMENTS, ROWS), bool).at[3, 1].set(True)
    x = jnp.asarray(draw.normal(size=(SEGMENTS, ROWS, DIM)), dtype)
    return params, memory, (x, start, jax.random.split(jax.random.key(1), SEGMENTS))


def by_hand(params, slots, memory, segments, horizon=None):
    """Back-propagation through time: a loop that keeps everything."""
    memory, total, auxes = memory._replace(slots=slots), 0.0, []
    for index in range(SEGMENTS):
        if horizon and index and index % horizon == 0:
            memory = jax.lax.stop_gradient(memory)
        memory, (loss, aux) = step(params, memory, jax.tree.map(lambda leaf, i=index: leaf[i], segments))
        total, auxes = total + loss, [*auxes, aux]
    return total, (memory, jax.tree.map(lambda *leaves: jnp.stack(leaves), *auxes))


@functools.cache
def expected(horizon):
    params, memory, segments = problem()
    value_and_grad = jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1), has_aux=True), static_argnums=4)
    return value_and_grad(params, memory.slots, memory, segments, horizon)


def assert_close(a, b, tolerance=1e-10):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


MRBP = jax.jit(functools.partial(mrbp_value_and_grad, encode, head))
HORIZONS = [2, *(pytest.param(horizon, marks=pytest.mark.laws) for horizon in (None, 1, 4))]


@pytest.mark.parametrize("horizon", HORIZONS)
def test_scan_with_replay_has_the_gradients_of_bptt(horizon):
    params, memory, segments = problem()

    def loss(params, slots):
        last, (losses, aux) = scan_with_replay(step, params, memory._replace(slots=slots), segments, horizon=horizon)
        return losses.sum(), (last, aux)

    found = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, memory.slots)
    assert_close(found, expected(horizon))


@pytest.mark.parametrize("horizon", HORIZONS)
def test_mrbp_has_the_gradients_of_bptt(horizon):
    params, memory, segments = problem()
    run = jax.jit(functools.partial(mrbp_value_and_grad, encode, head, horizon=horizon))
    found = run(params, memory, segments)
    (value, (last, aux)), (gradients, to_slots) = expected(horizon)
    assert_close((found.value, found.memory, found.aux), (value, last, aux))
    assert_close((found.gradients, found.memory_gradient), (gradients, [to_slots]))
    assert np.asarray(to_slots)[0].any() and not np.asarray(to_slots)[1].any()  # row 1 began with the learned memory


@pytest.mark.laws
def test_a_shorter_horizon_is_another_gradient():
    gradients = [expected(horizon)[1][0]["loop"] for horizon in (None, 1, 4)]
    assert not np.allclose(gradients[0], gradients[1]) and not np.allclose(gradients[0], gradients[2])


def test_a_step_that_is_not_split():
    params, memory, segments = problem()
    whole = jax.jit(functools.partial(mrbp_value_and_grad, step, lambda params, out, segment: out))
    assert_close(whole(params, memory, segments), MRBP(params, memory, segments))


def test_overlapping_rollouts_take_the_memories_that_are_known():
    params, memory, segments = problem()
    part = lambda first, end: jax.tree.map(lambda leaf: leaf[first:end], segments)
    before = MRBP(params, memory, part(0, 4))
    known = before.known(2)  # before segments 2, 3 and 4
    found = MRBP(params, None, part(2, 6), memories=known)
    alone = MRBP(params, jax.tree.map(lambda leaf: leaf[2], before.memories), part(2, 6))
    assert_close(found, alone)

    # They are taken as they are: other parameters do not change those that are given.
    moved = {**params, "write": 2 * params["write"]}
    again = MRBP(moved, None, part(2, 6), memories=known)
    np.testing.assert_array_equal(again.memories.slots[:3], known.slots)
    assert not np.allclose(again.memories.slots[3], found.memories.slots[3])


def test_only_the_encoder_runs_in_the_forward_sweep():
    params, memory, segments = problem()
    calls = []

    def counted(params, encoded, segment):
        calls.append(1)
        return head(params, encoded, segment)

    jaxpr = jax.make_jaxpr(functools.partial(mrbp_value_and_grad, encode, counted))(params, memory, segments)
    scans = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    assert [scan.params["reverse"] for scan in scans] == [False, True]
    forward = str(scans[0].params["jaxpr"])
    assert forward.count("dot_general") == 3 and len(calls) >= 1  # in, loop and write; not out


def test_gradients_are_added_up_in_float32():
    count = 256
    encode_sum = lambda weight, memory, x: (memory, weight * x)
    head_sum = lambda weight, y, x: (y.astype(jnp.float32).sum(), None)
    weight = jnp.ones((), jnp.bfloat16)
    segments = jnp.full((count, 1), 1 + 2**-7, jnp.bfloat16)
    found = mrbp_value_and_grad(encode_sum, head_sum, weight, jnp.zeros(1), segments)
    assert found.gradients.dtype == jnp.bfloat16
    assert float(found.gradients) == count * (1 + 2**-7)  # in bfloat16 the sum stops growing at 256


def test_memory_is_saved_and_activations_are_not():
    width, segments = 64, 32
    params = jnp.eye(width)[None].repeat(4, axis=0)

    def deep(params, memory, x):
        y = x + memory
        for matrix in params:
            y = jnp.tanh(y @ matrix)
        return y.mean(axis=0, keepdims=True), y

    last = lambda params, y, x: ((y**2).sum(), None)
    x, memory = jnp.ones((segments, 16, width)), jnp.zeros((1, width))

    def plain(params, memory, x):
        out = jax.lax.scan(lambda m, s: deep(params, m, s), memory, x)[1]
        return (out**2).sum()

    def replayed(params, memory, x):
        return (scan_with_replay(deep, params, memory, x)[1] ** 2).sum()

    temporary = lambda f: jax.jit(f).lower(params, memory, x).compile().memory_analysis().temp_size_in_bytes
    bptt = temporary(jax.grad(plain))
    assert temporary(lambda *a: mrbp_value_and_grad(deep, last, *a).gradients) < bptt / 5
    assert temporary(jax.grad(replayed)) < bptt


@pytest.mark.parametrize(
    "change, message",
    [
        ({"horizon": 0}, "horizon: given 0, allowed: at least 1 segment, or None for no cut"),
        ({"segments": (jnp.ones((3, 1)), jnp.ones((2, 1)))}, r"segments: given leaves of \[2, 3\] segments"),
        ({"memories": jnp.ones((4, 1))}, "memories: given those of 4 segments, allowed: 1 to 3, one for each"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    named = {"params": 1.0, "memory": jnp.ones(1), "segments": jnp.ones((3, 1)), **change}
    with pytest.raises(ValueError, match=message):
        mrbp_value_and_grad(lambda p, m, s: (m, m), lambda p, e, s: (e.sum(), None), **named)
    if "memories" not in change:
        with pytest.raises(ValueError, match=message):
            scan_with_replay(lambda p, m, s: (m, m), **named)
