"""A-GEM and GEM: what projected gradients promise, against quadratic programs solved by others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize, nnls

from memjax.lifelong.projection import agem, gem, project_average, solve_gem
from memjax.training.optimizers import freeze_parameters, make_optimizer, make_reference_gradients

SOLVE = jax.jit(solve_gem, static_argnames=("margin", "epsilon", "sweeps"))
AVERAGE = jax.jit(project_average)


def split(flat):
    """A gradient of 12 entries as a tree."""
    return {"kernel": jnp.asarray(flat[:8], jnp.float32).reshape(2, 4), "bias": jnp.asarray(flat[8:], jnp.float32)}


def join(tree):
    return np.concatenate([np.asarray(tree["kernel"]).ravel(), np.asarray(tree["bias"])])


@functools.cache
def opposed(seed, tasks=1):
    """A gradient of 12 entries, and others that it goes against."""
    rng = np.random.default_rng(seed)
    g = rng.normal(size=12)
    others = rng.normal(size=(tasks, 12)) - 0.5 * g
    return g.astype(np.float32), others.astype(np.float32)


def average(g, r):
    return join(AVERAGE(split(g), split(r)))


@pytest.mark.parametrize("seed", range(3))
def test_an_average_projection_is_the_nearest_gradient_without_conflict(seed):
    g, (r,) = opposed(seed)
    assert g @ r < 0
    found = average(g, r)
    lengths = np.linalg.norm(g) * np.linalg.norm(r)
    assert found @ r >= -1e-6 * lengths
    assert np.linalg.norm(found) <= np.linalg.norm(g) * (1 + 1e-6)
    start, normal = g.astype(float), {"type": "ineq", "fun": lambda x: x @ r.astype(float)}
    wanted = minimize(lambda x: ((x - start) ** 2).sum(), start, jac=lambda x: 2 * (x - start), constraints=normal).x
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(average(found, r), found, atol=1e-6)  # once more changes nothing


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_the_length_of_the_reference_does_not_matter(scale):
    g, (r,) = opposed(0)
    np.testing.assert_allclose(average(g, np.float32(scale) * r), average(g, r), rtol=1e-5, atol=1e-6)


def test_without_conflict_a_gradient_keeps_every_bit():
    g, (r,) = opposed(0)
    np.testing.assert_array_equal(average(g, -r), g)
    np.testing.assert_array_equal(average(g, 0 * r), g)
    half = {"x": jnp.asarray(g, jnp.bfloat16)}
    kept = AVERAGE(half, {"x": jnp.asarray(-r, jnp.bfloat16)})["x"]
    assert kept.dtype == jnp.bfloat16 and bool(jnp.all(kept == half["x"]))
    assert project_average({}, {}) == {}


def test_a_reference_that_is_not_finite_is_not_ignored():
    g, (r,) = opposed(0)
    assert not np.isfinite(average(g, np.where(np.arange(12) == 3, np.nan, -r))).all()


def exact(gram, dots, margin, epsilon):
    """GEM's dual as non-negative least squares, in float64."""
    matrix = gram + epsilon * np.eye(len(dots))
    root = np.linalg.cholesky(matrix)
    return nnls(root.T, -np.linalg.solve(root, dots + matrix @ np.full(len(dots), margin)))[0] + margin


@pytest.mark.parametrize("margin, epsilon", [(0.0, 0.0), (0.5, 1e-3), (0.0, 1e-3)])
@pytest.mark.parametrize("tasks", [2, 5])
def test_gem_solves_its_program_as_non_negative_least_squares_does(tasks, margin, epsilon):
    for seed in range(5):
        g, others = (leaf.astype(float) for leaf in opposed(seed, tasks))
        gram, dots = others @ others.T, others @ g
        found = SOLVE(jnp.float32(gram), jnp.float32(dots), margin=margin, epsilon=epsilon)
        wanted = exact(gram, dots, margin, epsilon)
        projected = g + np.asarray(found) @ others
        np.testing.assert_allclose(projected, g + wanted @ others, atol=1e-5)
        if margin == 0:  # what epsilon leaves of a conflict is `epsilon v`
            assert np.all(others @ projected >= -epsilon * wanted - 1e-5)
            assert np.linalg.norm(projected) <= np.linalg.norm(g) + 1e-5


def test_gem_does_not_depend_on_the_order_of_tasks():
    g, others = opposed(1, 5)
    order = np.array([3, 0, 4, 1, 2])
    found = SOLVE(jnp.asarray(others @ others.T), jnp.asarray(others @ g))
    turned = others[order]
    np.testing.assert_allclose(SOLVE(jnp.asarray(turned @ turned.T), jnp.asarray(turned @ g)), found[order], atol=1e-5)


def test_tasks_that_are_not_there_yet_do_not_count():
    g, others = opposed(1, 5)
    gram, dots = others @ others.T, others @ g
    first = SOLVE(jnp.asarray(gram), jnp.asarray(dots), valid=jnp.arange(5) < 2)
    np.testing.assert_allclose(first[:2], exact(gram[:2, :2], dots[:2], 0.5, 1e-3), atol=1e-5)
    np.testing.assert_array_equal(first[2:], 0)


def test_gem_has_an_answer_to_parallel_and_to_absent_gradients():
    """Two constraints that are one, and one without a gradient: the matrix has no inverse."""
    g, (r,) = opposed(0)
    others = np.stack([r, 2 * r, 0 * r])
    v = SOLVE(jnp.asarray(others @ others.T), jnp.asarray(others @ g), margin=0.0, epsilon=0.0)
    np.testing.assert_allclose(g + np.asarray(v) @ others, average(g, r), atol=1e-6)
    assert v[2] == 0


def updated(link, g, others, share=1.0):
    """What a link makes of a gradient, with losses whose gradients are `others`."""

    @jax.jit
    def run(updates, others):
        losses = lambda params: {str(i): jnp.vdot(other, flat(params)) for i, other in enumerate(others)}
        params = jax.tree.map(jnp.ones_like, updates)
        reference = make_reference_gradients(losses, params)._replace(share=share)
        return link.update(updates, link.init(params), params, reference=reference)[0]

    return join(run(split(g), jnp.asarray(others)))


def flat(tree):
    return jnp.concatenate([tree["kernel"].ravel(), tree["bias"]])


STORED = pytest.mark.parametrize("stored", [False, True])


@STORED
def test_the_link_adds_the_weighted_gradients(stored):
    """One backward pass through the weighted losses is `g + G' v`."""
    g, others = opposed(2, 3)
    v = exact((others @ others.T).astype(float), (others @ g).astype(float), 0.5, 1e-3)
    np.testing.assert_allclose(updated(gem(stored=stored), g, others), g + v @ others, atol=1e-5)
    absent = np.concatenate([others, np.zeros((2, 12), np.float32)])
    np.testing.assert_allclose(updated(gem(stored=stored), g, absent), g + v @ others, atol=1e-5)


@STORED
def test_gem_without_conflict_keeps_every_bit(stored):
    g, others = opposed(2, 3)
    agreeing = others * np.sign(others @ g)[:, None]
    np.testing.assert_array_equal(updated(gem(stored=stored), g, agreeing), g)


@STORED
def test_gem_makes_of_a_part_of_a_batch_that_part_of_its_step(stored):
    """A margin above 0 has no scale: a smaller gradient would be turned further, even against the new task."""
    g, others = opposed(2, 3)
    whole, part = (updated(gem(stored=stored), share * g, others, share) for share in (1.0, 0.0625))
    np.testing.assert_allclose(part, 0.0625 * whole, rtol=1e-5, atol=1e-6)
    assert np.abs(updated(gem(stored=stored), 0.0625 * g, others) - part).max() > 0.1
    agreeing = others * np.sign(others @ g)[:, None]
    np.testing.assert_array_equal(updated(gem(stored=stored), 0.3 * g, agreeing, 0.3), np.float32(0.3) * g)


@STORED
def test_gem_passes_on_what_is_not_finite(stored):
    """A step with it is left out; one in which it is ignored would break constraints in silence."""
    g, others = opposed(2, 3)
    broken = np.where(np.arange(3)[:, None] == 1, np.nan, others * np.sign(others @ g)[:, None]).astype(np.float32)
    assert not np.isfinite(updated(gem(stored=stored), g, broken)).any()


@STORED
def test_gem_with_one_task_and_no_margin_is_agem(stored):
    g, others = opposed(0)
    found = updated(gem(margin=0.0, epsilon=0.0, stored=stored), g, others)
    np.testing.assert_allclose(found, updated(agem("0"), g, others), atol=5e-7)
    np.testing.assert_allclose(found, average(g, others[0]), atol=5e-7)


@pytest.mark.parametrize("link", [agem("0"), gem(margin=0.0, epsilon=0.0)], ids=["agem", "gem"])
def test_links_protect_what_is_trained_before_clipping(link):
    """Inside `freeze_parameters` the frozen part has no say; without a reference an update passes as it is."""
    g, others = opposed(0)
    rule = freeze_parameters(
        make_optimizer(optax.sgd(1.0), clip_norm=0.1, transformations=[link]), lambda path: "bias" in path
    )
    params = jax.tree.map(jnp.ones_like, split(g))
    losses = lambda params: {"0": jnp.vdot(others[0], flat(params))}
    run = lambda g, params: rule.update(
        g, rule.init(params), params, reference=make_reference_gradients(losses, params)
    )[0]
    updates = jax.jit(run)(split(g), params)
    wanted = AVERAGE(split(g)["kernel"], split(others[0])["kernel"])
    np.testing.assert_allclose(updates["kernel"], -0.1 * wanted / jnp.linalg.norm(wanted), atol=1e-6)
    assert not np.any(updates["bias"])
    plain, _ = link.update(split(g), link.init(params), params)
    np.testing.assert_array_equal(join(plain), g)
