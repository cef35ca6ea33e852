"""The numbers of avalanche-lib: a linear map over three tasks with each of four methods (tests/golden/README.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax.lifelong.penalties import consolidate, fisher, init_consolidated, quadratic_penalty, sensitivity
from memjax.lifelong.projection import agem, gem
from memjax.training.optimizers import make_reference_gradients

RATE, STEPS, STEPS_OF_A_TASK, BATCHES_OF_A_TASK = 0.2, 18, 6, 3
STRENGTH = {"ewc": 3.0, "mas": 1.5}
CLOSE = {"rtol": 0, "atol": 2e-6}


def tree_of(flat):
    return {"weight": flat[..., :18].reshape(*flat.shape[:-1], 3, 6), "bias": flat[..., 18:]}


def flat_of(tree):
    return jnp.concatenate([tree["weight"].ravel(), tree["bias"]])


def outputs(params, x):
    return params["weight"] @ x + params["bias"]


def likelihood(params, x, label):
    return jax.nn.log_softmax(outputs(params, x))[label]


def cross_entropy(params, x, y):
    return -jnp.mean(jax.vmap(likelihood, (None, 0, 0))(params, x, y))


def constraints_of(golden, name):
    """`[steps, 2, entries]`, the gradients of earlier tasks at each step; 0 where there is no such task yet."""
    found = np.zeros((STEPS, 2, 21), np.float32)
    for step in range(STEPS_OF_A_TASK, STEPS):
        given = np.atleast_2d(golden[f"it{step:02}/{name}"])
        found[step, : len(given)] = given
    return found


@pytest.mark.parametrize("method, key, link", [("agem", "ref", agem("0")), ("gem", "G", gem())])
def test_projected_training(method, key, link):
    """Each step from the parameters that our own steps have led to."""
    golden = np.load(f"tests/golden/avalanche_{method}.npz")
    optimizer = optax.chain(link, optax.sgd(RATE))

    def step(params, given):
        x, y, others = given
        raw = jax.grad(cross_entropy)(params, x, y)
        losses = lambda params: {str(task): jnp.vdot(other, flat_of(params)) for task, other in enumerate(others)}
        reference = make_reference_gradients(losses, params)
        final, _ = link.update(raw, link.init(params), params, reference=reference)
        updates, _ = optimizer.update(raw, optimizer.init(params), params, reference=reference)
        return optax.apply_updates(params, updates), (flat_of(params), flat_of(raw), flat_of(final))

    given = (golden["x"], golden["y"].astype(np.int32), constraints_of(golden, key))
    run = jax.jit(lambda params, given: jax.lax.scan(step, params, given))
    end, (params, raw, final) = run(tree_of(jnp.asarray(golden["params"][0])), given)
    for name, found in (("params", params), ("raw", raw), ("final", final)):
        np.testing.assert_allclose(found, golden[name], **CLOSE)
    np.testing.assert_allclose(flat_of(end), golden["exp2/params_end"], **CLOSE)
    # There is something to compare: steps with a conflict, and steps without.
    turned = np.any(golden["raw"] != golden["final"], axis=1)
    assert 0 < turned.sum() < STEPS - STEPS_OF_A_TASK


def fisher_of_a_batch(params, x, y):
    return fisher(likelihood, params, x, y, kind="batch")[0]


def sensitivity_of_a_batch(params, x, y):
    return sensitivity(outputs, params, x, kind="batch")[0]


@pytest.mark.parametrize("method, importance", [("ewc", fisher_of_a_batch), ("mas", sensitivity_of_a_batch)])
def test_penalised_training(method, importance):
    """The gradients of every step, penalty included, and the importances after every task."""
    golden = np.load(f"tests/golden/avalanche_{method}.npz")
    strength = 2 * STRENGTH[method]  # without the factor 1/2

    def loss(params, kept, x, y):
        return cross_entropy(params, x, y) + strength * quadratic_penalty(params, kept)

    gradients = jax.jit(jax.vmap(jax.value_and_grad(loss), (0, None, 0, 0)))
    mean = jax.jit(lambda *given: jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), over(*given)))
    over = jax.vmap(importance, (None, 0, 0))
    kept = init_consolidated(tree_of(jnp.asarray(golden["params"][0])))
    for task in range(3):
        at = slice(task * STEPS_OF_A_TASK, (task + 1) * STEPS_OF_A_TASK)
        params, x, y = jnp.asarray(golden["params"][at]), golden["x"][at], golden["y"][at].astype(np.int32)
        value, gradient = gradients(tree_of(params), kept, x, y)
        np.testing.assert_allclose(jax.vmap(flat_of)(gradient), golden["raw"][at], **CLOSE)
        np.testing.assert_allclose(value, golden["loss_total"][at], **CLOSE)
        end = tree_of(jnp.asarray(golden[f"exp{task}/params_end"]))
        found = mean(end, x[:BATCHES_OF_A_TASK], y[:BATCHES_OF_A_TASK])
        if method == "ewc":
            kept = consolidate(kept, found, end)
        else:
            found = {name: leaf if task == 0 else 0.5 * leaf for name, leaf in found.items()}
            kept = consolidate(kept, found, end, decay=0.5)
            found = kept.importance
        for name in ("weight", "bias"):
            np.testing.assert_allclose(found[name], golden[f"exp{task}/importance/{name}"], **CLOSE)
