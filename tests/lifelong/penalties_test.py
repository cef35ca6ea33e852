"""EWC, MAS and SI: their importances against closed forms, and what the penalty around earlier tasks says."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from memjax.lifelong.penalties import (
    accumulate_path,
    consolidate,
    fisher,
    init_consolidated,
    init_path,
    path_importance,
    quadratic_penalty,
    sensitivity,
)

CLASSES, FEATURES = 3, 2
CONSOLIDATE = jax.jit(consolidate, static_argnames=("decay", "share"))
SLOPE = jax.jit(jax.value_and_grad(quadratic_penalty))


def log_probs(params, x):
    return jax.nn.log_softmax(params["kernel"] @ x + params["bias"])


def likelihood(params, x, label):
    return log_probs(params, x)[label]


def toy(rows=8, seed=0):
    """Parameters of a softmax regression, inputs and labels."""
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (CLASSES, FEATURES), "bias": (CLASSES,)}
    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    x = jnp.asarray(rng.normal(size=(rows, FEATURES)), jnp.float32)
    return params, x, jnp.asarray(rng.integers(0, CLASSES, rows))


def chances(params, x):
    """`[rows, classes]`, in NumPy."""
    return softmax(np.asarray(x) @ np.asarray(params["kernel"]).T + np.asarray(params["bias"]), axis=-1)


def squares(params, x, y):
    """`sum_n x^2 (1[y] - p)^2` and that without x, the squared gradients of softmax regression."""
    apart = (np.eye(CLASSES)[np.asarray(y)] - chances(params, x)) ** 2
    return {"kernel": np.einsum("nc,nf->cf", apart, np.asarray(x) ** 2), "bias": apart.sum(0)}


def analytic(params, x):
    """`sum_n x^2 p (1 - p)`: the Fisher information of softmax regression."""
    p = chances(params, x)
    return {"kernel": np.einsum("nc,nf->cf", p * (1 - p), np.asarray(x) ** 2), "bias": (p * (1 - p)).sum(0)}


def close_to_analytic(found, params, x, draws):
    """Within four standard errors of a mean over so many draws of the labels."""
    p = chances(params, x)
    variance = p * (1 - p) ** 4 + (1 - p) * p**4 - (p * (1 - p)) ** 2
    errors = np.sqrt(np.einsum("nc,nf->cf", variance, np.asarray(x) ** 4) / draws), np.sqrt(variance.sum(0) / draws)
    for name, error in zip(("kernel", "bias"), errors, strict=True):
        assert np.all(np.abs(found[name] - analytic(params, x)[name]) < 4 * error)
        assert np.all(error < 0.1 * analytic(params, x)[name])  # or it would say nothing


@functools.cache
def compiled(**named):
    return jax.jit(functools.partial(fisher, likelihood, log_probs=log_probs, **named))


def test_the_fisher_information_of_examples_is_that_of_each_by_itself():
    params, x, y = toy()
    total, number = compiled(at_once=4)(params, x, y)
    chex.assert_trees_all_close(total, squares(params, x, y), rtol=1e-5)
    assert float(number) == 8
    one_by_one, _ = compiled()(params, x, y)
    chex.assert_trees_all_close(one_by_one, total, rtol=1e-6)


def test_the_true_fisher_information_is_the_analytic_one():
    params, x, _ = toy()
    total, number = compiled(kind="true", at_once=8)(params, x, None)
    chex.assert_trees_all_close(total, analytic(params, x), rtol=1e-5)
    assert float(number) == 8
    # Labels that are drawn give it on average: 2000 draws of each of the 8 rows.
    many = jnp.tile(x, (2000, 1))
    drawn, number = compiled(kind="true", at_once=500)(params, many, None, key=jax.random.key(0))
    assert float(number) == 16000
    close_to_analytic(jax.tree.map(lambda leaf: leaf / 2000, drawn), params, x, 2000)


def test_the_fisher_information_of_batches_is_too_small_by_their_size():
    """In expectation, under labels of the model: what makes a strength found with one kind wrong for the other."""
    params, x, _ = toy()
    p, rng = chances(params, x).astype(float), np.random.default_rng(1)
    rows = np.stack([rng.choice(CLASSES, size=4000, p=each / each.sum()) for each in p], axis=1)
    batches = jax.jit(jax.vmap(lambda labels: fisher(likelihood, params, x, labels, kind="batch")))
    total, number = batches(rows)
    np.testing.assert_array_equal(number, 1)
    mean = jax.tree.map(lambda leaf: 8 * jnp.mean(leaf, axis=0), total)
    wanted = jax.tree.map(lambda leaf: leaf / 8, analytic(params, x))
    chex.assert_trees_all_close(mean, wanted, rtol=0.1)


@pytest.mark.parametrize("kind", ["true", "example", "batch"])
def test_examples_of_weight_zero_are_not_there(kind):
    params, x, y = toy()
    weights = jnp.array([1.0, 0.0] * 4)
    found = compiled(kind=kind)(params, x, y, weights=weights)
    chex.assert_trees_all_close(found, compiled(kind=kind)(params, x[::2], y[::2]), rtol=1e-5, atol=1e-7)
    none, number = compiled(kind=kind)(params, x, y, weights=jnp.zeros(8))
    assert float(number) == 0 and not any(np.any(leaf) for leaf in none.values())


def test_an_example_of_weight_zero_may_be_anything():
    params, x, y = toy()
    weights, broken = jnp.ones(8).at[3].set(0), x.at[3].set(jnp.nan)
    found, _ = compiled()(params, broken, y, weights=weights)
    chex.assert_trees_all_equal(found, compiled()(params, x, y, weights=weights)[0])


def test_labels_of_several_positions_are_drawn():
    """Each position by itself: for independent ones the information adds up."""
    params, x, _ = toy()
    pairs = x.reshape(4, 2, FEATURES)
    each = lambda params, pair: jax.vmap(log_probs, (None, 0))(params, pair)
    of_all = lambda params, pair, labels: jnp.sum(jnp.take_along_axis(each(params, pair), labels[:, None], axis=1))
    find = functools.partial(fisher, of_all, params, kind="true", log_probs=each)
    with pytest.raises(ValueError, match=r"key: given None for labels of shape \(2,\)"):
        find(pairs, None)
    drawn = jax.jit(lambda pairs, key: find(pairs, None, key=key, at_once=500))
    total, _ = drawn(jnp.tile(pairs, (2000, 1, 1)), jax.random.key(0))
    close_to_analytic(jax.tree.map(lambda leaf: leaf / 2000, total), params, x, 2000)


def test_squares_of_small_gradients_do_not_vanish():
    params = jnp.zeros(2, jnp.float16)
    total, _ = fisher(lambda params, x, label: jnp.sum(params * x), params, jnp.full((1, 2), 1e-4, jnp.float16), None)
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(total, 1e-8, rtol=1e-2)


def test_one_line_says_what_is_wrong():
    params, x, y = toy()
    kept = init_consolidated(params)
    for line, call in {
        "kind: given 'rows', allowed: true, example, batch": lambda: fisher(likelihood, params, x, y, kind="rows"),
        "log_probs: given None": lambda: fisher(likelihood, params, x, y, kind="true"),
        "at_once: given 3, allowed: a divisor of the 8": lambda: fisher(likelihood, params, x, y, at_once=3),
        "share: given 0.5 without decay": lambda: consolidate(kept, params, params, share=0.5),
        "damping: given 0.0, allowed: above 0": lambda: path_importance(params, params, params, damping=0.0),
    }.items():
        with pytest.raises(ValueError, match=line):
            call()


def moved(params, by=0.5):
    return jax.tree.map(lambda leaf: leaf + by, params)


def test_the_penalty_is_zero_at_the_anchor_and_grows_with_the_importance():
    params, x, y = toy()
    importance = squares(params, x, y)
    kept = CONSOLIDATE(init_consolidated(params), importance, params)
    assert float(SLOPE(params, kept)[0]) == 0
    value, gradient = SLOPE(moved(params), kept)
    total = sum(leaf.sum() for leaf in importance.values())
    np.testing.assert_allclose(value, 0.5**2 * total / 2, rtol=1e-5)
    chex.assert_trees_all_close(gradient, jax.tree.map(lambda leaf: 0.5 * leaf, importance), rtol=1e-5)
    twice = SLOPE(moved(params), CONSOLIDATE(init_consolidated(params), moved(importance, 1.0), params))
    assert float(twice[0]) > float(value)


def test_the_sum_over_tasks_is_one_quadratic_form():
    """Separate penalties, three of them, anywhere: value and gradient of their sum."""
    trees = [toy(seed=seed)[0] for seed in range(4)]
    importances = [jax.tree.map(jnp.square, toy(seed=seed)[0]) for seed in range(4, 7)]
    importances[0]["bias"] = importances[1]["bias"] = jnp.zeros(CLASSES)
    kept = init_consolidated(trees[0])
    for importance, anchor in zip(importances, trees, strict=False):
        kept = CONSOLIDATE(kept, importance, anchor)
    wanted, at = 0.0, trees[3]
    slopes = jax.tree.map(jnp.zeros_like, at)
    for importance, anchor in zip(importances, trees, strict=False):
        wanted += sum(float(jnp.sum(importance[name] * (at[name] - anchor[name]) ** 2)) / 2 for name in at)
        slopes = jax.tree.map(lambda s, f, p, a: s + f * (p - a), slopes, importance, at, anchor)
    value, gradient = SLOPE(at, kept)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    chex.assert_trees_all_close(gradient, slopes, rtol=1e-4, atol=1e-5)


def test_online_with_a_fixed_anchor_is_the_sum_and_without_the_past_the_last():
    params = toy()[0]
    first, second = (jax.tree.map(jnp.square, toy(seed=seed)[0]) for seed in (1, 2))
    start = CONSOLIDATE(init_consolidated(params), first, params)
    at = moved(params)
    separate = CONSOLIDATE(start, second, params)
    online = CONSOLIDATE(start, second, params, decay=1.0)
    np.testing.assert_allclose(SLOPE(at, online)[0], SLOPE(at, separate)[0], rtol=1e-6)
    last = CONSOLIDATE(start, second, params, decay=0.0)
    chex.assert_trees_all_equal(last.importance, second)
    mixed = CONSOLIDATE(start, second, at, decay=0.5, share=0.25)
    chex.assert_trees_all_close(mixed.importance, jax.tree.map(lambda a, b: 0.5 * a + 0.25 * b, first, second))
    assert float(SLOPE(at, mixed)[0]) == 0


@pytest.mark.parametrize("decay", [None, 1.0])
@pytest.mark.parametrize("jit", [False, True])
def test_what_is_kept_outlives_the_parameters(jit, decay):
    """An update donates the arrays that it was given; an anchor must be none of them."""
    params = jax.tree.map(jnp.copy, toy()[0])
    importance, kept = jax.tree.map(jnp.square, params), init_consolidated(params)
    function = functools.partial(consolidate, decay=decay)
    kept = (jax.jit(function) if jit else function)(kept, importance, params)
    values = jax.tree.map(np.array, params)
    for leaf in jax.tree.leaves((params, importance)):
        leaf.delete()
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, kept.anchor), values)
    half = consolidate(init_consolidated(values), values, jax.tree.map(lambda v: v.astype(jnp.bfloat16), values))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half))


def test_a_strength_of_zero_is_plain_training_bit_for_bit():
    params, x, y = toy()
    kept = consolidate(init_consolidated(params), squares(params, x, y), moved(params))
    plain = lambda params: -jnp.mean(jax.vmap(likelihood, (None, 0, 0))(params, x, y))

    @functools.partial(jax.jit, static_argnames="penalised")
    def train(params, strength, penalised=True):
        loss = lambda params: plain(params) + (strength * quadratic_penalty(params, kept) if penalised else 0)
        step = lambda params, _: (jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params)), None)
        return jax.lax.scan(step, params, length=5)[0]

    alone = train(params, 0.0, penalised=False)
    chex.assert_trees_all_equal(train(params, 0.0), alone)
    assert np.abs(train(params, 1.0)["kernel"] - alone["kernel"]).max() > 1e-3


def test_on_a_linear_gaussian_model_it_is_the_exact_posterior_mean():
    """Unit noise, inputs along the axes: the posterior is Gaussian and diagonal. The online form is exact after any
    number of tasks; penalties around each task count what is in a later anchor twice (Huszar 2018,
    https://arxiv.org/abs/1712.03847)."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.5, 2.0, size=(3, 4)).astype(np.float32)
    x = jnp.asarray(scale[:, :, None] * np.eye(4, dtype=np.float32))  # three tasks of four observations
    y = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    log_likelihood = lambda theta, x, y: -((y - theta @ x) ** 2) / 2
    objective = lambda theta, kept, x, y: (
        -jnp.sum(jax.vmap(log_likelihood, (None, 0, 0))(theta, x, y)) + quadratic_penalty(theta, kept)
    )

    @jax.jit
    def fit(kept, x, y):
        """The minimum of a quadratic function, and the Fisher information there."""
        slope, curvature = jax.grad(objective)(zero, kept, x, y), jax.hessian(objective)(zero, kept, x, y)
        theta = -jnp.linalg.solve(curvature, slope)
        # Labels one deviation above and below: their mean squared gradient is the expectation under the model.
        predicted = x @ theta
        sides = jnp.concatenate([predicted + 1, predicted - 1])
        total, _ = fisher(log_likelihood, theta, jnp.concatenate([x, x]), sides, at_once=8)
        return theta, total / 2

    zero = jnp.zeros(4)
    means = np.cumsum(scale * np.asarray(y), axis=0) / np.cumsum(scale**2, axis=0)
    for decay in (None, 1.0):
        kept = init_consolidated(zero)
        for task in range(3):
            theta, information = fit(kept, x[task], y[task])
            if task < 2 or decay is not None:
                np.testing.assert_allclose(theta, means[task], rtol=1e-4, atol=1e-5)
            else:
                assert np.abs(theta - means[task]).max() > 1e-2
            kept = CONSOLIDATE(kept, information, theta, decay=decay)


def test_sensitivities_of_a_linear_map_are_in_closed_form():
    params, x, y = toy()
    outputs = lambda kernel, example: kernel @ example[0]
    find = functools.partial(jax.jit(functools.partial(sensitivity, outputs, at_once=4)), params["kernel"])
    total, number = find((x, y))
    of_rows = 2 * np.einsum("nc,nf->ncf", np.asarray(x @ params["kernel"].T), np.asarray(x))
    np.testing.assert_allclose(total, np.abs(of_rows).sum(0), rtol=1e-5)
    assert float(number) == 8 and np.all(total >= 0)
    shuffled, _ = find((x, y[::-1]))
    np.testing.assert_array_equal(shuffled, total)
    # In a batch, rows of opposite sign cancel.
    whole, one = jax.jit(functools.partial(sensitivity, outputs, kind="batch"))(params["kernel"], (x, y))
    np.testing.assert_allclose(whole, np.abs(of_rows.mean(0)), rtol=1e-4, atol=1e-6)
    assert float(one) == 1 and np.all(whole < total / number + 1e-6) and np.any(whole < 0.9 * total / number)
    with pytest.raises(ValueError, match="kind: given 'true', allowed: example, batch"):
        sensitivity(outputs, params["kernel"], (x, y), kind="true")


def test_the_path_over_a_quadratic_is_in_closed_form():
    """Gradient descent on `sum h theta^2 / 2` is a geometric series; for a small rate the path is the fall of the
    loss."""
    curvature, start = jnp.array([0.5, 2.0]), {"a": jnp.array([1.0, -3.0])}
    loss = lambda params: jnp.sum(curvature * params["a"] ** 2) / 2

    @functools.partial(jax.jit, static_argnames="steps")
    def descend(rate, steps):
        def step(carry, _):
            params, path = carry
            gradients = jax.grad(loss)(params)
            after = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
            return (after, accumulate_path(path, params, after, gradients)), None

        return jax.lax.scan(step, (start, init_path(start)), length=steps)[0]

    end, path = descend(0.1, 20)
    h, ratio = np.array([0.5, 2.0]), 1 - 0.1 * np.array([0.5, 2.0])
    wanted = 0.1 * h**2 * np.array([1.0, 9.0]) * (1 - ratio**40) / (1 - ratio**2)
    np.testing.assert_allclose(path["a"], wanted, rtol=1e-4)
    importance = path_importance(path, start, end, damping=0.25)
    np.testing.assert_allclose(importance["a"], wanted / ((ratio**20 - 1) ** 2 * np.array([1, 9]) + 0.25), rtol=1e-4)
    end, path = descend(0.001, 2000)
    np.testing.assert_allclose(jnp.sum(path["a"]), loss(start) - loss(end), rtol=5e-3)
    # Where the loss rose, there is nothing to protect; a parameter that did not move is bounded by the damping.
    rose = path_importance({"a": jnp.array([-1.0, 1.0])}, start, start, damping=0.25)
    np.testing.assert_array_equal(rose["a"], [0.0, 4.0])


def test_parameters_of_another_shape_than_what_is_kept_do_not_broadcast():
    kept = init_consolidated({"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"^params: given \['w'\] of \(3, 1\), allowed: \(3,\), as it was kept$"):
        quadratic_penalty({"w": jnp.ones((3, 1))}, kept)
