import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.training.optimizers import (
    adafactor,
    adam,
    count_applied_steps,
    freeze_parameters,
    make_matrix_mask,
    make_optimizer,
    make_schedule,
    scale_updates,
)


def test_schedules():
    steps = np.array([0, 5, 10, 20, 55, 100, 200])
    cosine = make_schedule(2.0, steps=100, warmup_steps=10, decay="cosine", final_fraction=0.1)
    expected = [0.0, 1.0, 2.0, 2 * (0.1 + 0.45 * (1 + np.cos(np.pi / 9))), 2 * (0.1 + 0.45), 0.2, 0.2]
    np.testing.assert_allclose(cosine(steps), expected, rtol=1e-5)
    linear = make_schedule(2.0, steps=100, warmup_steps=10, decay="linear")
    np.testing.assert_allclose(linear(steps), [0, 1, 2, 2 * 80 / 90, 1, 0, 0], rtol=1e-5, atol=1e-7)
    rsqrt = make_schedule(2.0, steps=100, warmup_steps=10, decay="rsqrt")
    np.testing.assert_allclose(rsqrt(steps)[3:], 2 * np.sqrt(10 / steps[3:]), rtol=1e-5)
    constant = make_schedule(2.0, steps=100, decay="constant")
    np.testing.assert_allclose(constant(steps), np.full(7, 2.0))
    with pytest.raises(ValueError, match="decay: given 'exponential'"):
        make_schedule(1.0, steps=1, decay="exponential")


def first_update(optimizer, params, gradients):
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return updates


def test_only_matrices_decay():
    params = {
        "kernel": jnp.ones((2, 2)),
        "bias": jnp.ones(2),
        "layers_0": {"scale": jnp.ones((3, 2)), "kernel": jnp.ones((3, 2, 2))},
    }
    zeros = {
        "kernel": jnp.zeros((2, 2)),
        "bias": jnp.zeros(2),
        "layers_0": {k: 0 * v for k, v in params["layers_0"].items()},
    }
    rule = adam(
        make_schedule(0.5, steps=9, decay="constant"), weight_decay=0.1, decay_mask=make_matrix_mask(["layers_0"])
    )
    updates = first_update(rule, params, zeros)
    np.testing.assert_allclose(updates["kernel"], np.full((2, 2), -0.05), rtol=1e-6)
    np.testing.assert_allclose(updates["layers_0"]["kernel"], np.full((3, 2, 2), -0.05), rtol=1e-6)
    assert not np.any(updates["bias"]) and not np.any(updates["layers_0"]["scale"])


def test_clipping_comes_before_the_rule():
    optimizer = make_optimizer(optax.sgd(1.0), clip_norm=1.0)
    updates = first_update(optimizer, {"w": jnp.zeros(2)}, {"w": jnp.array([3.0, 4.0])})
    np.testing.assert_allclose(updates["w"], [-0.6, -0.8], rtol=1e-6)


def test_adafactor_equals_its_equations():
    # Unfactored (both axes below 128): v = g^2 at the first step, update = g / sqrt(v) clipped to RMS 1, relative size.
    params, gradient = np.array([[0.5, -2.0], [1.0, 3.0]]), np.array([[0.1, -0.4], [2.0, 0.3]])
    updates = first_update(
        adafactor(make_schedule(0.1, steps=9, decay="constant")), {"w": jnp.array(params)}, {"w": jnp.array(gradient)}
    )
    unit = gradient / np.sqrt(gradient**2 + 1e-30)
    unit /= max(1.0, np.sqrt(np.mean(unit**2)))
    np.testing.assert_allclose(updates["w"], -0.1 * np.sqrt(np.mean(params**2)) * unit, rtol=1e-5)


def test_adafactor_factors_large_matrices():
    state = adafactor(make_schedule(0.1, steps=9)).init({"w": jnp.zeros((128, 256))})
    assert max(leaf.size for leaf in jax.tree.leaves(state)) == 256


def test_apply_every_averages():
    optimizer = make_optimizer(optax.sgd(1.0), gradient_accumulation_steps=2)
    params = {"w": jnp.zeros(1)}
    state = optimizer.init(params)
    first, state = optimizer.update({"w": jnp.array([1.0])}, state, params)
    second, state = optimizer.update({"w": jnp.array([3.0])}, state, params)
    assert float(first["w"][0]) == 0.0 and float(second["w"][0]) == -2.0


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 5), st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=8), st.booleans())
def test_a_window_that_is_not_full_has_its_own_mean(every, gradients, frozen):
    optimizer = make_optimizer(optax.sgd(1.0), gradient_accumulation_steps=every)
    optimizer = freeze_parameters(optimizer, lambda path: "stays" in path) if frozen else optimizer
    params = {"w": jnp.zeros(()), "stays": jnp.zeros(())}
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update({"w": jnp.array(gradient), "stays": jnp.zeros(())}, state, params)
        params = optax.apply_updates(params, updates)
    for _ in range(2):  # an empty window changes nothing
        updates, state = optimizer.update(params, state, params, finish=True)
        params = optax.apply_updates(params, updates)
    windows = [gradients[begin : begin + every] for begin in range(0, len(gradients), every)]
    np.testing.assert_allclose(params["w"], -sum(np.mean(window) for window in windows), atol=1e-5)
    assert float(params["stays"]) == 0


def test_memories_have_a_learning_rate_of_their_own():
    rule = optax.chain(adam(make_schedule(0.1, steps=9, decay="constant")), scale_updates(["long_term"], 5.0))
    params = {"layer": {"long_term": {"key": jnp.zeros(1)}, "query": jnp.zeros(1)}}
    updates = first_update(rule, params, jax.tree.map(lambda leaf: leaf + 2.0, params))["layer"]
    np.testing.assert_allclose([updates["long_term"]["key"][0], updates["query"][0]], [-0.5, -0.1], rtol=1e-5)


@pytest.mark.parametrize("rule", [adam, adafactor, optax.sgd])
@pytest.mark.parametrize("accumulated, steps", [(1, 5), (2, 2)])
@pytest.mark.parametrize("frozen", [(), ("a",)])
def test_steps_are_counted_since_the_state_began(rule, accumulated, steps, frozen):
    chain = make_optimizer(rule(make_schedule(0.1, steps=10)), clip_norm=1.0, gradient_accumulation_steps=accumulated)
    optimizer = freeze_parameters(chain, lambda path: path in frozen)
    params = {"a": jnp.ones((2, 2)), "b": jnp.ones((2, 2))}
    state = optimizer.init(params)
    assert int(count_applied_steps(state)) == 0
    for _ in range(5):
        _, state = optimizer.update(params, state, params)
    assert int(count_applied_steps(state)) == steps
    assert int(count_applied_steps(optimizer.init(params))) == 0 == count_applied_steps(optax.identity().init(params))


def test_frozen_parameters_stay_and_are_not_in_the_norm():
    optimizer = freeze_parameters(make_optimizer(optax.sgd(1.0), clip_norm=1.0), lambda path: "memory/" in path)
    params = {"memory": {"keys": jnp.ones(1)}, "wide": jnp.ones(2)}
    gradients = {"memory": {"keys": jnp.array([1e3])}, "wide": jnp.array([3.0, 4.0])}
    updates = first_update(optimizer, params, gradients)
    np.testing.assert_allclose(updates["wide"], [-0.6, -0.8], rtol=1e-6)
    assert float(updates["memory"]["keys"][0]) == 0.0
    decayed = freeze_parameters(adam(make_schedule(0.1, steps=9), weight_decay=0.5), lambda path: "keys" in path)
    both = {"keys": jnp.ones((2, 2)), "wide": jnp.ones((2, 2))}
    updates = first_update(decayed, both, jax.tree.map(jnp.ones_like, both))
    assert (updates["keys"] == 0).all() and (updates["wide"] != 0).all()
