"""GEM, MbPA, MbPA++ and Meta-MbPA, end to end in float64, against their papers' equations written out in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import GEM, EpisodicMemory, MbPA, MetaMbPA
from memjax.lifelong.projection import solve_gem
from tests.lifelong.learner_cases import ROWS, SIZE
from tests.lifelong.written_out import (
    RATE,
    SEED,
    answer,
    assert_params,
    batches_of,
    draw_for_test,
    draw_replay,
    join,
    queries,
    start_of,
    stream_in_float64,
)
from tests.reference.adaptation import descend, gradient_through
from tests.reference.perceptron import flatten, gradient, probabilities, step

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


# GEM


def solve_by_active_sets(gram, dots, margin, epsilon):
    """The best of all choices of weights that lie at the margin: `argmin_v v'(gram + epsilon I)v / 2 + dots'v`."""
    matrix, best = gram + epsilon * np.eye(len(dots)), (np.inf, None)
    for at_margin in itertools.product((False, True), repeat=len(dots)):
        low = np.array(at_margin)
        v = np.full(len(dots), margin)
        rest = dots[~low] + matrix[np.ix_(~low, low)] @ v[low]
        v[~low] = np.linalg.solve(matrix[np.ix_(~low, ~low)], -rest)
        if (v >= margin).all():
            best = min(best, (v @ matrix @ v / 2 + dots @ v, tuple(v)))
    return np.array(best[1])


def vector(tree):
    return np.concatenate([leaf.ravel() for leaf in tree.values()])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("margin", "epsilon"), [(0.0, 0.0), (0.5, 1e-3)])
def test_gem_solves_its_program(margin, epsilon, cached):
    method = GEM(examples_per_task=6, memory_strength=margin, epsilon=epsilon, cache_gradients=cached)
    _, played = stream_in_float64(method, epochs=2)
    params, read, conflicts = start_of(played), {}, set()
    for _, batch in played.updates:
        (rows,) = batches_of(batch)
        task = rows.number[0] // SIZE
        memory = played.begun[task].method["episodes"]  # who is draw_replay for it is chance
        stored = np.asarray(memory.rows.extras["example"])[: int(memory.count)]
        read |= {number: (x, y) for x, y, number in zip(*rows, strict=True)}
        # A new batch weighs its share of rows.
        direction = {path: leaf * len(rows.y) / ROWS for path, leaf in gradient(params, rows.x, rows.y).items()}
        earlier = []
        for number in range(task):
            x, y = zip(*(read[example] for example in stored if example // SIZE == number), strict=True)
            assert len(y) == 6
            earlier.append(gradient(params, np.array(x), np.array(y)))
        if earlier:
            matrix = np.stack([vector(tree) for tree in earlier])
            dots = matrix @ vector(direction)
            if (dots < 0).any():
                weights = solve_by_active_sets(matrix @ matrix.T, dots, margin, epsilon)
                conflicts.add(task)
                for weight, tree in zip(weights, earlier, strict=True):
                    direction = {path: leaf + weight * tree[path] for path, leaf in direction.items()}
        params = step(params, direction, RATE)
    assert_params(played.state.params, params)
    assert conflicts == {1, 2}  # of one constraint and of two


@pytest.mark.parametrize(("margin", "epsilon"), [(0.0, 0.0), (0.5, 1e-3)])
def test_where_some_constraints_bind_and_others_do_not_gem_solves_its_program_too(margin, epsilon):
    random, kinds = np.random.default_rng(0), set()
    for tasks in (1, 2, 4, 6):
        earlier, new = random.normal(size=(tasks, 9)), random.normal(size=9)
        gram, dots = earlier @ earlier.T, earlier @ new
        wanted = solve_by_active_sets(gram, dots, margin, epsilon)
        weights = solve_gem(jnp.asarray(gram), jnp.asarray(dots), margin=margin, epsilon=epsilon)
        np.testing.assert_allclose(weights, wanted, rtol=1e-8, atol=1e-10)
        kinds.add((bool((wanted > margin).any()), bool((wanted == margin).any())))
    assert (True, True) in kinds


# MbPA and MbPA++


def nearest(keys, query, number):
    """Places of the nearest keys by the Euclidean distance, and their squared distances."""
    squares = ((keys - query) ** 2).sum(axis=1)
    places = np.argsort(squares, kind="stable")[:number]
    return places, squares[places]


def adapt(params, x, y, alpha, **how):
    """`STEPS` steps of gradient descent from W on `PENALTY |V - W|^2 - sum_k alpha_k log p(y_k | x_k; V)`."""
    return descend(params, [(x, y, alpha)] * STEPS, rate=INNER_RATE, penalty=PENALTY, **how)[-1]


STEPS, INNER_RATE, PENALTY = 3, 0.5, 0.125
WEIGHTS = {"uniform": np.ones_like, "inverse_distance": lambda squares: 1 / (1e-3 + squares)}


@pytest.mark.parametrize(
    ("interval", "weighting", "momentum"), [(8, "uniform", 0.0), (0, "inverse_distance", 0.5)], ids=["mbpa_pp", "mbpa"]
)
def test_mbpa_replays_sparsely_and_answers_after_local_adaptation(interval, weighting, momentum):
    method = MbPA(
        memory=EpisodicMemory(write_policy="all", capacity=32),
        replay_interval=interval,
        replay_batch_size=5,
        num_neighbors=4,
        neighbor_weighting=weighting,
        adaptation_steps=STEPS,
        adaptation_learning_rate=INNER_RATE,
        adaptation_l2=PENALTY,
        adaptation_momentum=momentum,
    )
    config, played = stream_in_float64(method)
    params, memory, kinds = start_of(played), [], []
    for number, (kind, batch) in enumerate(played.updates):
        before = sum(len(rows.y) for rows in memory)
        if kind == "replay":
            rows, share = join(memory).take(draw_replay(played, number, before, 32, 5)), 1.0
        else:
            (rows,) = batches_of(batch)
            memory.append(rows)
            share = len(rows.y) / ROWS
            replays = interval and (before + len(rows.y)) // interval > before // interval
            kinds += ["stream", "replay"] if replays else ["stream"]
        params = step(params, gradient(params, rows.x, rows.y), RATE * share)
    assert [kind for kind, _ in played.updates] == kinds
    assert_params(played.state.params, params)
    written, answers = join(memory), answer(config, played, queries())
    for x, log_probs in zip(queries().astype(np.float64), answers, strict=True):
        places, squares = nearest(written.x, x, 4)
        alpha = WEIGHTS[weighting](squares)
        adapted = adapt(params, written.x[places], written.y[places], alpha / alpha.sum(), momentum=momentum)
        wanted = np.log(probabilities(adapted, x[None]))[0]
        np.testing.assert_allclose(log_probs, wanted, rtol=1e-9 if weighting == "uniform" else 1e-6)
        assert np.abs(wanted - np.log(probabilities(params, x[None]))[0]).max() > 1e-2


# Meta-MbPA


def neighborhood(memory, point, query, number):
    """The stored rows nearest to a point and their weights, but those of the query."""
    stored = join(memory)
    others = stored.take(~np.isin(stored.number, query.number))
    places, _ = nearest(others.x, point, number)
    return others.x[places], others.y[places], np.full(len(places), 1 / len(places))


@pytest.mark.parametrize("shared", [True, False], ids=["one_neighborhood", "of_each_row"])
@pytest.mark.parametrize(("steps", "second_order"), [(1, False), (2, False), (2, True)])
def test_meta_mbpa_learns_at_parameters_that_are_adapted_to_neighbours(shared, steps, second_order):
    method = MetaMbPA(
        memory=EpisodicMemory(write_policy="all", capacity=32),
        replay_interval=8,
        replay_batch_size=4,
        num_neighbors=4,
        share_neighborhood=shared,
        inner_steps=steps,
        inner_learning_rate=INNER_RATE,
        first_order=not second_order,
        adaptation_l2=PENALTY,
    )
    _, played = stream_in_float64(method)
    params, memory = start_of(played), []
    how = {"rate": INNER_RATE, "penalty": PENALTY, "second_order": second_order}
    for number, (kind, batch) in enumerate(played.updates):
        if kind == "replay":
            written = join(memory)
            query, share = written.take(draw_replay(played, number, len(written.y), 32, 4)), 1.0
        else:
            (query,) = batches_of(batch)
            share = len(query.y) / ROWS
        parts = [query] if shared else [query.take([row]) for row in range(len(query.y))]
        supports = [[neighborhood(memory, part.x.mean(axis=0), part, 4)] * steps if memory else [] for part in parts]
        slopes = [
            gradient_through(params, support, (part.x, part.y), **how)
            for support, part in zip(supports, parts, strict=True)
        ]
        direction = {name: sum(slope[name] for slope in slopes) / len(slopes) for name in params}
        params = step(params, direction, RATE * share)
        memory += [query] if kind == "stream" else []
    assert_params(played.state.params, params)


@pytest.mark.parametrize("scope", ["once", "per_batch", "per_example"])
def test_meta_mbpa_answers_after_one_adaptation_for_all_for_a_batch_or_for_a_row(scope):
    method = MetaMbPA(
        memory=EpisodicMemory(write_policy="all", capacity=32),
        num_neighbors=4,
        meta_train=False,
        adaptation_scope=scope,
        adaptation_steps=STEPS,
        adaptation_learning_rate=INNER_RATE,
        adaptation_l2=PENALTY,
    )
    config, played = stream_in_float64(method)
    params = flatten(played.state.params)
    written, x = join(batches_of(batch)[0] for _, batch in played.updates), queries().astype(np.float64)
    fit = lambda places: adapt(params, written.x[places], written.y[places], np.full(4, 0.25))
    if scope == "once":
        adapted = fit(draw_for_test(played, len(written.y), 32, 4))
        assert_params(played.learner.evaluation_variables(played.state, SEED)["params"], adapted)
        return
    points = x if scope == "per_example" else np.tile(x.mean(axis=0), (len(x), 1))
    for row, point, log_probs in zip(x, points, answer(config, played, queries()), strict=True):
        wanted = np.log(probabilities(fit(nearest(written.x, point, 4)[0]), row[None]))[0]
        np.testing.assert_allclose(log_probs, wanted, rtol=1e-9)
