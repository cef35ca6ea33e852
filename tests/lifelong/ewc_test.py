import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from memjax.functional.losses import cross_entropy_sum
from memjax.lifelong.ewc import PENALTY, Consolidated, consolidate, quadratic_penalty
from memjax.lifelong.fisher import fisher_information
from memjax.models.contract import Model
from memjax.training.objective import Objective, model_loss, with_penalty
from memjax.training.step import init_train_state, make_train_step
from memjax.typing import Aux, Batch, EmptyState

RATE, WEIGHT = 0.2, 3.0


class Linear(Model):
    """Six features to three classes, without memory."""

    classes: int = 3

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        return EmptyState()

    @nn.compact
    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        return nn.Dense(self.classes)(x), state, Aux()

    def nll(self, scores, targets, weights):
        return cross_entropy_sum(scores, targets, weights)


def batch_of(x, y):
    rows = len(x)
    ones = jnp.ones((1, rows, 1))
    return Batch(
        jnp.asarray(x)[None, :, None], jnp.asarray(y)[None, :, None], ones > 0, ones, jnp.ones((1, rows), bool)
    )


def tree_of(flat):
    return {"Dense_0": {"kernel": jnp.asarray(flat[:18].reshape(3, 6).T), "bias": jnp.asarray(flat[18:])}}


def flat_of(tree):
    return np.concatenate([np.asarray(tree["Dense_0"]["kernel"]).T.ravel(), np.asarray(tree["Dense_0"]["bias"])])


def nothing(params):
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    return Consolidated(zeros(), zeros(), jnp.zeros(()))


def state_of(params, optimizer, batch, kept=None):
    objective = Objective(with_penalty(model_loss(Linear()), PENALTY, quadratic_penalty), {PENALTY: 2 * WEIGHT})
    state = init_train_state(
        objective,
        optimizer,
        {"params": params},
        EmptyState(),
        batch,
        jax.random.key(0),
        method=nothing(params) if kept is None else kept,
    )
    return objective, state


def test_a_run_over_three_tasks_has_the_numbers_of_avalanche():
    """Parameters before every step, losses, and what is kept after every task."""
    golden = np.load("tests/golden/avalanche_ewc.npz")
    optimizer = optax.sgd(RATE)
    objective, state = state_of(tree_of(golden["params"][0]), optimizer, batch_of(golden["x"][0], golden["y"][0]))
    step = jax.jit(make_train_step(objective, optimizer, jit=False))
    fisher = jax.jit(lambda state, batch: fisher_information(Linear(), state, batch, "batch"))
    for index in range(18):
        np.testing.assert_allclose(flat_of(state.params), golden["params"][index], atol=2e-6)
        before = state.params
        state, sums = step(state, batch_of(golden["x"][index], golden["y"][index]))
        gradient = (flat_of(before) - flat_of(state.params)) / RATE
        np.testing.assert_allclose(gradient, golden["raw"][index], atol=1e-5)
        loss, penalty = (float(sums[name].mean()) for name in ("nll", f"losses/{PENALTY}"))
        np.testing.assert_allclose(loss, golden["loss_ce"][index], atol=2e-6)
        np.testing.assert_allclose(loss + 2 * WEIGHT * penalty, golden["loss_total"][index], atol=5e-6)
        if (index + 1) % 6 == 0:
            task = index // 6
            rows = [index - 5 + i for i in range(3)]
            found = [fisher(state, batch_of(golden["x"][i], golden["y"][i])) for i in rows]
            information = jax.tree.map(lambda *leaves: sum(leaves) / 3, *[squares for squares, _ in found])
            kernel, bias = information["Dense_0"]["kernel"], information["Dense_0"]["bias"]
            np.testing.assert_allclose(kernel.T, golden[f"exp{task}/importance/weight"], atol=2e-6)
            np.testing.assert_allclose(bias, golden[f"exp{task}/importance/bias"], atol=2e-6)
            np.testing.assert_allclose(flat_of(state.params), golden[f"exp{task}/params_end"], atol=2e-6)
            state = dataclasses.replace(state, method=consolidate(state.method, information, state.params))


def test_the_penalty_is_zero_at_the_anchor_and_its_gradient_is_in_closed_form():
    rng = np.random.default_rng(0)
    trees = [tree_of(rng.normal(size=21).astype(np.float32)) for _ in range(5)]
    squares = [jax.tree.map(jnp.square, tree) for tree in trees[:2]]
    kept = consolidate(nothing(trees[2]), squares[0], trees[2])
    assert float(quadratic_penalty(trees[2], kept)) == 0
    both = consolidate(kept, squares[1], trees[3])
    at = trees[4]
    wanted = sum(
        float(jnp.vdot(f, (p - a) ** 2)) / 2
        for square, anchor in zip(squares, trees[2:4], strict=True)
        for f, p, a in zip(*map(jax.tree.leaves, (square, at, anchor)), strict=True)
    )
    np.testing.assert_allclose(float(quadratic_penalty(at, both)), wanted, rtol=1e-5)
    gradient = jax.grad(quadratic_penalty)(at, both)
    closed = jax.tree.map(lambda f, g, p, a, b: f * (p - a) + g * (p - b), *squares, at, *trees[2:4])
    chex.assert_trees_all_close(gradient, closed, rtol=1e-4, atol=1e-5)
    # Online: the information of all, around the last; nothing of the earlier ones where it decays at once.
    online = consolidate(kept, squares[1], trees[3], decay=0.5)
    chex.assert_trees_all_close(online.importance, jax.tree.map(lambda a, b: 0.5 * a + b, *squares))
    chex.assert_trees_all_equal(online.anchor, trees[3])
    chex.assert_trees_all_close(consolidate(kept, squares[1], trees[3], decay=0.0).importance, squares[1])


def test_the_information_of_rows_is_that_of_each_by_itself():
    """For softmax regression the gradient of a row is `x (p - y)`; that of a batch is smaller by its size."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64)
    batch, params = batch_of(x, y), tree_of(rng.normal(size=21).astype(np.float32))
    _, state = state_of(params, optax.sgd(0.1), batch)
    squares, number = fisher_information(Linear(), state, batch)
    kernel, bias = (np.asarray(params["Dense_0"][name]) for name in ("kernel", "bias"))
    p = np.asarray(jax.nn.softmax(x @ kernel + bias))
    wanted = np.einsum("ni,nj->ij", x**2, (p - np.eye(3)[y]) ** 2)
    np.testing.assert_allclose(squares["Dense_0"]["kernel"], wanted, rtol=1e-4)
    assert float(number) == 64
    whole, one = fisher_information(Linear(), state, batch, "batch")
    assert float(one) == 1 and float(whole["Dense_0"]["kernel"].sum()) < float(squares["Dense_0"]["kernel"].sum()) / 64
    silent = dataclasses.replace(batch, weights=batch.weights.at[:, 1:].set(0))
    assert float(fisher_information(Linear(), state, silent)[1]) == 1


def test_without_weight_it_is_plain_training_bit_for_bit():
    golden = np.load("tests/golden/avalanche_ewc.npz")
    batch, params = batch_of(golden["x"][0], golden["y"][0]), tree_of(golden["params"][0])
    kept = consolidate(nothing(params), params, jax.tree.map(lambda leaf: leaf + 1, params))
    objective, state = state_of(params, optax.sgd(0.1), batch, kept)
    ends = [
        jax.jit(make_train_step(one, optax.sgd(0.1), jit=False))(state, batch)[0].params
        for one in (objective._replace(coefficients={PENALTY: 0.0}), Objective(model_loss(Linear())))
    ]
    chex.assert_trees_all_equal(*ends)


def test_it_bounds_forgetting():
    """A strong penalty keeps the parameters where the first task has left them, a weak one does not."""
    golden = np.load("tests/golden/avalanche_ewc.npz")
    batch, params = batch_of(golden["x"][0], golden["y"][0]), tree_of(golden["params"][0])
    kept = consolidate(nothing(params), jax.tree.map(jnp.ones_like, params), params)
    objective, start = state_of(params, optax.sgd(0.01), batch, kept)
    moved = []
    for weight in (0.1, 50.0):
        weighed = objective._replace(coefficients={PENALTY: weight})
        state, step = start, jax.jit(make_train_step(weighed, optax.sgd(0.01), jit=False))
        for _ in range(30):
            state, _ = step(state, batch)
        moved.append(np.abs(flat_of(state.params) - flat_of(params)).max())
    assert moved[1] < 0.2 * moved[0]
