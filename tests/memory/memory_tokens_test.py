"""Memory tokens: what they equal, what reads what, and another number of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.memory.memory_tokens import COSINE
from tests.contract.cases import memory_tokens
from tests.reference.parameters import params_of

DIM, ROWS, LENGTH, TOKENS = 8, 2, 5, 3
ALL = jnp.ones((ROWS, LENGTH), bool)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


X = functools.partial(random, 0, ROWS, LENGTH, DIM)


@functools.cache
def make(own_layers: int = 0, **fields):
    module = memory_tokens(own_layers, **fields)(jnp.float64)
    return module, jax.tree.map(jnp.asarray, params_of(module, X(), module.init_state(ROWS)))


@functools.partial(jax.jit, static_argnums=0)
def encode(module, params, x, mask=None, memory_mask=None):
    return module.apply({"params": params}, x, mask, memory_mask, method="encode")


def assert_same(a, b, atol=1e-12):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


def test_no_memory_tokens_and_masked_ones_are_the_plain_encoder():
    module, params = make()
    plain = module.clone(num_tokens=0)
    without = {name: value for name, value in params.items() if name != "memory_tokens"}
    assert jax.tree.structure(without) == jax.tree.structure(params_of(plain, X(), plain.init_state(ROWS)))
    y = X()
    for index in range(2):  # the layers by hand
        layer = jax.jit(lambda p, y, one=plain.layers[index]: one.apply({"params": p}, y, y, ALL))
        y = layer(params[f"layers_{index}"], y)
    memory, x = encode(plain, without, X())
    assert memory.shape == (ROWS, 0, DIM)
    assert_same(x, y)
    off = jnp.zeros((ROWS, TOKENS), bool)
    assert_same(encode(module, params, X(), None, off)[1], x)
    assert not np.allclose(encode(module, params, X())[1], x, atol=1e-3)


def test_control_with_equal_layers_is_the_memory_transformer():
    module, params = make()
    other, _ = make(2, kind="control")
    tied = {**params, **{f"memory_layers_{i}": params[f"layers_{i}"] for i in range(2)}}
    assert_same(encode(other, tied, X()), encode(module, params, X()))


def test_tokens_meet_in_the_bottleneck_only():
    module, params = make(2, kind="bottleneck")
    params = {**params, "memory_layers_0": jax.tree.map(jnp.zeros_like, params["memory_layers_0"])}
    params["memory_layers_1"] = params["memory_layers_0"]  # norms of zero scale: the memory is the same for all texts
    jacobian = jax.jit(jax.jacobian(lambda x, p: encode(module, p, x)[1][0].sum(axis=-1)))
    between = np.abs(np.asarray(jacobian(X(), params)[:, 0])).sum(axis=-1)  # [to, from]
    assert not between[~np.eye(LENGTH, dtype=bool)].any() and between[np.eye(LENGTH, dtype=bool)].all()
    through_memory = jacobian(X(), make(2, kind="bottleneck")[1])[:, 0]
    assert np.abs(np.asarray(through_memory)).sum(axis=-1).all()


def test_the_order_of_memory_tokens_has_no_effect():
    module, params = make()
    order = jnp.array([2, 0, 1])
    memory, x = encode(module, params, X())
    other = encode(module, {**params, "memory_tokens": params["memory_tokens"][order]}, X())
    assert_same(other, (memory[:, order], x))


@pytest.mark.parametrize(
    "own_layers, kind",
    [
        (2, "control"),
        (1, "bottleneck"),
        *(pytest.param(*case, marks=pytest.mark.laws) for case in ((0, "transformer"), (1, "control"))),
    ],
)
def test_memory_rows_are_returned_by_name_and_learn(own_layers, kind):
    module, params = make(own_layers, kind=kind)
    names = {name for name in params if name.startswith("memory_layers")}
    assert len(names) == own_layers  # one layer that all share, or one each

    def loss(params):
        y, _, aux = module.apply({"params": params}, X(), module.init_state(ROWS))
        return (y**2).sum(), (y, aux.arrays["memory"])

    gradient, (y, memory) = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert y.shape == (ROWS, LENGTH, DIM) and memory.shape == (ROWS, TOKENS, DIM)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient["memory_tokens"]))
    assert np.abs(np.asarray(gradient["memory_tokens"])).sum(axis=-1).all()


@pytest.mark.parametrize(
    "own_layers, kind", [(2, "control"), (1, "bottleneck"), pytest.param(0, "transformer", marks=pytest.mark.laws)]
)
def test_attention_maps_have_memory_rows_and_columns_first(own_layers, kind):
    module, params = make(own_layers, kind=kind)
    mask = jnp.arange(LENGTH)[None, :] < jnp.array([LENGTH, 2])[:, None]
    maps = jax.jit(lambda p, x: module.apply({"params": p}, x, mask, method="attention_maps"))(params, X())
    assert len(maps) == 2 and all(one.shape == (ROWS, 2, TOKENS + LENGTH, TOKENS + LENGTH) for one in maps)
    for one in maps:
        one = np.asarray(one)
        np.testing.assert_allclose(one.sum(axis=-1), 1, atol=1e-12)
        assert not one[1, :, :, TOKENS + 2 :].any()
        assert one[0, :, :TOKENS].all(), "memory rows read everything"
        assert one[0, :, TOKENS:, TOKENS:].any() == (kind != "bottleneck")


def test_rows_of_padding_do_not_count_in_the_cosine():
    module, params = make()
    mask = jnp.array([[True] * LENGTH, [False] * LENGTH])
    _, _, aux = jax.jit(module.apply)({"params": params}, X(), module.init_state(ROWS), mask=mask)
    unit = np.asarray(aux.arrays["memory"][0])
    unit = unit / np.linalg.norm(unit, axis=-1, keepdims=True)
    found = aux.metrics[COSINE]
    assert float(found.weight) == 1
    np.testing.assert_allclose(found.total, np.mean([a @ b for a, b in itertools.combinations(unit, 2)]), rtol=1e-9)


def test_padding_is_not_read():
    module, params = make(1, kind="control")
    mask = jnp.arange(LENGTH)[None, :] < jnp.array([LENGTH, 2])[:, None]
    noisy = jnp.where(mask[..., None], X(), 9.0)
    first, second = (encode(module, params, x, mask) for x in (X(), noisy))
    assert_same((first[0], first[1][mask]), (second[0], second[1][mask]))
    short = encode(module, params, X()[1:, :2])
    assert_same((first[0][1:], first[1][1:, :2]), short)


def test_parameters_of_published_shapes():
    count = lambda params: sum(leaf.size for leaf in jax.tree.leaves(params))
    sizes = {kind: count(make(own, kind=kind)[1]) for own, kind in ((0, "transformer"), (1, "control"))}
    own = count(make(2, kind="control")[1])
    layer = count(make()[1]["layers_0"])
    assert sizes["control"] - sizes["transformer"] == layer and own - sizes["transformer"] == 2 * layer
    assert make()[1]["memory_tokens"].size == TOKENS * DIM


@pytest.mark.parametrize(
    "own_layers, fields, message",
    [
        (3, {"kind": "control"}, "memory_layers: given 3, allowed: 1 or 2 for 'control' with 2 layers"),
        (1, {}, "memory_layers: given 1, allowed: 0 for 'transformer' with 2 layers"),
    ],
)
def test_bad_arguments_are_named(own_layers, fields, message):
    with pytest.raises(ValueError, match=message):
        make(own_layers, **fields)


def test_a_bottleneck_needs_memory():
    module = memory_tokens(1, kind="bottleneck")(jnp.float64).clone(num_tokens=0)
    with pytest.raises(ValueError, match="num_tokens: given 0, allowed: 1 or more for 'bottleneck'"):
        params_of(module, X(), module.init_state(ROWS))
