"""Local adaptation: against float64 NumPy, its limits, and queries side by side, in groups and over devices."""

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

from memjax.lifelong.adaptation import PRESETS, adapt, adapted_outputs, neighbor_weights
from tests.programs import printed

QUERIES, NEIGHBORS, FEATURES, CLASSES = 6, 5, 4, 3
MOMENTUM = functools.partial(optax.sgd, momentum=0.9)


def loss(params, support):
    scores = predict(params, support["x"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, support["y"])


def predict(params, x):
    return x @ params["encoder"]["kernel"] @ params["head"]["kernel"] + params["head"]["bias"][(None,) * (x.ndim - 1)]


def in_head(path):
    return path.startswith("head/")


@pytest.fixture(scope="module")
def given():
    """Parameters, queries, their neighbours and weights, one neighbour of the first two queries missing."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    head = {"kernel": normal(FEATURES, CLASSES), "bias": normal(CLASSES)}
    params = {"encoder": {"kernel": normal(FEATURES, FEATURES)}, "head": head}
    labels = jnp.asarray(rng.integers(CLASSES, size=(QUERIES, NEIGHBORS)))
    supports = {"x": normal(QUERIES, NEIGHBORS, FEATURES), "y": labels}
    valid = np.ones((QUERIES, NEIGHBORS), bool)
    valid[:2, 1] = False
    weights = jnp.asarray(valid / valid.sum(axis=1, keepdims=True), jnp.float32)
    return params, normal(QUERIES, FEATURES), supports, weights


@pytest.fixture(scope="module")
def one(given):
    """The same of the first query."""
    params, queries, supports, weights = given
    return params, *rows_of((supports, weights), 0)


def rows_of(tree, rows):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), tree)


@functools.partial(jax.jit, static_argnames=("steps", "rule", "select"))
def adapted(params, support, weights, *, steps=5, learning_rate=0.1, penalty=0.3, rule=optax.sgd, select=None):
    named = {"steps": steps, "learning_rate": learning_rate, "penalty": penalty, "rule": rule, "select": select}
    return adapt(loss, params, support, weights, **named)


def same(a, b):
    """Bit for bit."""
    return all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def distance(a, b):
    """The largest one of two numbers."""
    apart = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(), a, b)
    return max(jax.tree.leaves(apart))


def head_objective(flat, one, penalty):
    """What is minimised over the head, and its gradient, in float64 from the equations."""
    params, support, weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), one)
    base = np.concatenate([params["head"]["kernel"], params["head"]["bias"][None]])
    now, labels = flat.reshape(base.shape), support["y"].astype(int)
    hidden = np.concatenate([support["x"] @ params["encoder"]["kernel"], np.ones((NEIGHBORS, 1))], axis=1)
    scores = hidden @ now
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    value = -weights @ np.log(likely[np.arange(NEIGHBORS), labels]) + penalty * ((now - base) ** 2).sum()
    gradient = hidden.T @ (weights[:, None] * (likely - np.eye(CLASSES)[labels])) + 2 * penalty * (now - base)
    return value, gradient.ravel()


def flat_head(params):
    return np.concatenate([np.ravel(params["head"]["kernel"]), params["head"]["bias"]]).astype(np.float64)


@pytest.mark.parametrize("rule, momentum", [(optax.sgd, 0.0), (MOMENTUM, 0.9)])
def test_steps_are_those_of_numpy(one, rule, momentum):
    flat = flat_head(one[0])
    velocity = np.zeros_like(flat)
    for _ in range(5):
        velocity = momentum * velocity + head_objective(flat, one, 0.3)[1]
        flat = flat - 0.1 * velocity
    new = adapted(*one, rule=rule, select=in_head)
    np.testing.assert_allclose(flat_head(new), flat, atol=1e-5)
    assert np.abs(flat - flat_head(one[0])).max() > 0.1
    assert same(new["encoder"], one[0]["encoder"])


def test_many_steps_reach_the_minimum(one):
    new = adapted(*one, steps=300, learning_rate=0.3, penalty=0.1, select=in_head)
    best = optimize.minimize(head_objective, flat_head(one[0]), args=(one, 0.1), jac=True, tol=1e-12)
    np.testing.assert_allclose(flat_head(new), best.x, atol=1e-4)


def test_the_penalty_holds_back(one):
    penalties = jnp.array([0.0, 0.1, 1.0, 10.0, 100.0])
    run = lambda penalty: adapted(*one, steps=200, learning_rate=0.004, penalty=penalty, select=in_head)
    flats = jax.vmap(
        lambda penalty: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(run(penalty)["head"])])
    )
    base = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(one[0]["head"])])
    moved = np.linalg.norm(np.asarray(jax.jit(flats)(penalties)) - np.asarray(base)[None], axis=1)
    assert np.all(np.diff(moved) < 0) and moved[-1] < 0.02 * moved[0]
    # Far from flat, the minimum lies where the penalty's gradient is the loss's at the base: g / (2 lambda) away.
    pulled = np.linalg.norm(head_objective(flat_head(one[0]), one, 0.0)[1])
    np.testing.assert_allclose(moved[-1], pulled / 200, rtol=0.05)


def test_without_steps_rate_or_neighbours_nothing_moves(one):
    params, support, weights = one
    decaying = functools.partial(optax.adamw, weight_decay=0.1)
    assert not same(adapted(*one, rule=decaying), params)
    assert same(adapted(*one, steps=0), params)
    assert same(adapted(*one, learning_rate=0.0), params)
    assert same(adapted(params, support, jnp.zeros(NEIGHBORS), rule=decaying), params)
    # The first step does not see the penalty.
    first = [adapted(*one, steps=1, penalty=penalty) for penalty in (0.0, 1e6)]
    assert same(*first) and not same(first[0], params)


def test_what_is_given_stays_also_where_it_is_donated(given):
    params, *rest = given
    before = jax.tree.map(np.array, params)
    run = lambda params, rest: (params, adapted_outputs(loss, predict, params, *rest, **PRESETS["em_in_lll"]))
    outputs = jax.jit(run)(params, rest)[1]
    assert same(params, before)
    donated = jax.tree.map(jnp.array, params)
    kept, again = jax.jit(run, donate_argnums=0)(donated, rest)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
    assert same(kept, before) and same(again, outputs)
    assert not np.allclose(outputs, predict(params, given[1]), atol=1e-2)


def test_queries_alone_side_by_side_and_in_groups(given):
    params, queries, supports, weights = given
    rows = [rows_of((queries, supports, weights), i) for i in range(QUERIES)]
    named = {"rule": MOMENTUM, "select": in_head, "steps": 5, "learning_rate": 0.1, "penalty": 0.3}
    say = jax.jit(predict)
    alone = [
        say(adapted(params, support, share, rule=MOMENTUM, select=in_head), query) for query, support, share in rows
    ]
    for batch_size in (None, 3, 4):
        found = jax.jit(functools.partial(adapted_outputs, loss, predict, batch_size=batch_size, **named))(*given)
        np.testing.assert_allclose(found, np.stack(alone), atol=1e-6)


def test_order_and_copies_of_neighbours_do_not_matter(one):
    params, support, weights = one
    order = np.random.default_rng(1).permutation(NEIGHBORS)
    twice = np.tile(np.arange(NEIGHBORS), 2)
    found = adapted(*one)
    for rows, share in ((order, 1), (twice, 2)):
        other = adapted(params, rows_of(support, rows), jnp.asarray(np.asarray(weights)[rows] / share))
        assert distance(other, params) > 0.1 and distance(other, found) < 1e-6


def test_neighbours_become_more_likely(given):
    params, _, supports, weights = given
    mean = lambda params, support, weights: jnp.sum(weights * loss(params, support))

    def both(support, weights):
        new = adapted(params, support, weights, steps=3, learning_rate=0.02, penalty=0.01)
        return mean(params, support, weights), mean(new, support, weights)

    before, after = jax.jit(jax.vmap(both))(supports, weights)
    assert np.all(np.asarray(after) < np.asarray(before) - 1e-3)


def test_presets(one):
    for name, preset in PRESETS.items():
        new = adapted(*one, **{**preset, "steps": 1})
        moved = np.abs(flat_head(new) - flat_head(one[0]))
        gradient = np.abs(head_objective(flat_head(one[0]), one, 0.0)[1])
        # Adam's first step has the size of its rate, that of the others the size of the gradient.
        sizes = np.ones_like(gradient) if name == "h3lio5" else gradient
        np.testing.assert_allclose(moved, preset["learning_rate"] * sizes, rtol=2e-2, atol=1e-6)
    assert [preset["steps"] for preset in PRESETS.values()] == [30, 30, 20]


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_what_is_not_selected_is_neither_carried_nor_copied(given):
    named = {"rule": MOMENTUM, "steps": 2, "learning_rate": 0.1, "penalty": 0.3}

    def shapes(select):
        run = lambda *given: adapted_outputs(loss, predict, *given, select=select, **named)
        found = list(equations(jax.make_jaxpr(run)(*given).jaxpr))
        (scan,) = [equation for equation in found if equation.primitive.name == "scan"]
        carry = [out.aval.shape for out in scan.outvars]
        return carry, {out.aval.shape for equation in found for out in equation.outvars}

    copy = (QUERIES, FEATURES, FEATURES)
    carry, made = shapes(in_head)
    # Parameters and their momentum.
    assert sorted(carry) == sorted(2 * [(QUERIES, CLASSES), (QUERIES, FEATURES, CLASSES)]) and copy not in made
    assert copy in shapes(None)[0]


def test_temporaries_do_not_grow_with_steps(given):
    def temporary(steps):
        named = {"rule": MOMENTUM, "steps": steps, "learning_rate": 0.1, "penalty": 0.3}
        run = jax.jit(lambda *given: adapted_outputs(loss, predict, *given, **named))
        return run.lower(*given).compile().memory_analysis().temp_size_in_bytes

    few = temporary(3)
    assert 0 < few == temporary(300)


def test_parameters_keep_their_dtype(one):
    params, support, weights = one
    half = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)
    scalars = {"learning_rate": np.float32(0.1), "penalty": np.float32(0.3)}
    new = jax.eval_shape(functools.partial(adapted, rule=MOMENTUM), half, support, weights, **scalars)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), new) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), half
    )


def test_derivatives_are_those_of_all_steps_where_asked_for():
    square = lambda w, support: (w - support) ** 2
    how = {"steps": 3, "learning_rate": 0.1, "penalty": jnp.array(0.0)}
    for order, wanted in ((1, 1.0), (2, 0.8**3)):
        run = lambda w, order=order: adapt(square, w, jnp.array([2.0]), jnp.array([1.0]), order=order, **how)
        value, derivative = jax.jit(jax.value_and_grad(run))(5.0)
        np.testing.assert_allclose([value, derivative], [2 + 3 * 0.8**3, wanted], rtol=1e-6)


def test_weights_of_neighbours():
    distances = jnp.array([[0.5, 1.5, jnp.nan], [4.0, -1e-6, 1.0], [jnp.inf, 0.0, 1.0]])
    valid = jnp.array([[True, True, False], [True, True, True], [False, False, False]])
    weigh = jax.jit(neighbor_weights, static_argnums=2)
    found = {kind: weigh(distances, valid, kind) for kind in ("uniform", "inverse_distance", "softmax")}
    for weights in found.values():
        np.testing.assert_allclose(np.sum(weights, axis=1), [1.0, 1.0, 0.0], atol=1e-6)
        assert not np.any(np.asarray(weights)[~np.asarray(valid)])
    np.testing.assert_allclose(np.asarray(found["uniform"])[:2], [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)
    kernel = 1 / (1e-3 + np.array([4.0, 0.0, 1.0]))
    np.testing.assert_allclose(np.asarray(found["inverse_distance"])[1], kernel / kernel.sum(), rtol=1e-6)
    near, far, _ = np.asarray(found["softmax"])[0]
    np.testing.assert_allclose(near / far, np.exp(1.0), rtol=1e-6)
    cold = weigh(1e4 + np.asarray(distances), valid, "softmax", temperature=1e-3)
    np.testing.assert_allclose(np.asarray(cold)[:2], [[1, 0, 0], [0, 1, 0]], atol=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"steps": -1}, "steps: given -1, allowed: 0 or more"),
        (
            {"select": lambda path: path == "nothing"},
            r"select: given what takes none of \['w'\], allowed: at least one",
        ),
        ({"loss": lambda params, support: params["w"]}, r"loss: given losses \(\), allowed: \(2,\), one for each"),
        ({"batch_size": 0}, "batch_size: given 0, allowed: 1 or more, or None"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    named = {"loss": lambda params, support: params["w"] * support, "steps": 1, **change}
    arrays = {"params": {"w": jnp.array(1.0)}, "queries": jnp.ones(3), "supports": jnp.ones((3, 2))}
    with pytest.raises(ValueError, match=message):
        adapted_outputs(
            predict=lambda *_: 0, weights=jnp.ones((3, 2)), learning_rate=0.1, penalty=0.0, **arrays, **named
        )
    with pytest.raises(ValueError, match="kind: given 'cosine', allowed: \"uniform\""):
        neighbor_weights(jnp.ones(2), jnp.ones(2, bool), "cosine")


SHARDED = """
import os, re
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from memjax.lifelong.adaptation import adapted_outputs
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(0)
params, queries, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 3), (32, 4), (32, 6, 4)))
loss = lambda w, s: optax.softmax_cross_entropy_with_integer_labels(s["x"] @ w, s["y"])
given = params, queries, {"x": x, "y": jnp.asarray(rng.integers(3, size=(32, 6)))}, jnp.full((32, 6), 1 / 6)
rows = NamedSharding(mesh, P("data"))
for batch_size in (None, 16, 8):
    run = lambda *given: adapted_outputs(
        loss, lambda w, q: q @ w, *given, batch_size=batch_size, steps=5, learning_rate=0.1, penalty=0.1
    )
    split = jax.jit(run, in_shardings=(NamedSharding(mesh, P()), rows, rows, rows), out_shardings=rows)
    text = split.lower(*given).compile().as_text()
    sent = re.findall("all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute", text)
    print(len(sent), float(np.abs(np.asarray(split(*given)) - np.asarray(jax.jit(run)(*given))).max()) < 1e-6)
"""


@pytest.mark.slow
def test_queries_over_devices_send_nothing():
    assert printed("-c", SHARDED) == 3 * ["0 True"]
