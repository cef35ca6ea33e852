"""Layers, groups of layers, and parameters addressed by layer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.memory.memorizing import KeyValueMemory
from memjax.models.factory import make_language_model
from memjax.models.feed_forward import FeedForwardLayer
from memjax.models.transformer import group_layers, join_layers, split_layers
from memjax.typing import EmptyState
from tests.models.jaxprs import trace
from tests.reference.parameters import as_float64, params_of, random_params

DIM, VOCAB, LENGTH, ROWS = 8, 11, 4, 2
SMALL = {"dim": DIM, "num_heads": 2, "feed_forward": config.Dense(dim=12)}


def memorizing(layers=(-2,), num_layers: int = 5, **fields) -> config.Model:
    memory = {"memory_length": 6, "num_neighbors": 2, "cache_length": 3, "num_buckets": 4, "max_distance": 6}
    attention = config.Memorizing(layers_with_memory=layers, **memory)
    return config.Model(**SMALL | {"num_layers": num_layers, "attention": attention} | fields)


def shapes_of(model: config.Model, **options):
    module = make_language_model(model, VOCAB, **options)
    tokens, start = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, bool)
    init = lambda: module.init({"params": jax.random.key(0)}, tokens, module.init_state(1), start_of_document=start)
    return module, jax.eval_shape(init)["params"]


# Feed-forward part


@pytest.mark.parametrize(
    "norm, activation",
    [
        ("pre", "swiglu"),
        ("post", "relu"),
        *(pytest.param("pre", activation, marks=pytest.mark.laws) for activation in ("relu", "gelu", "gelu_exact")),
        *(pytest.param("post", activation, marks=pytest.mark.laws) for activation in ("gelu", "gelu_exact", "swiglu")),
    ],
)
def test_feed_forward(activation, norm):
    with jax.enable_x64(True):
        part = FeedForwardLayer(DIM, 6, activation, norm=norm, norm_kind="rms", bias=norm == "post", dtype=jnp.float64)
        x = np.random.default_rng(0).normal(size=(2, 3, DIM))
        params = params_of(part, jnp.asarray(x), EmptyState())
        y, state, aux = jax.jit(part.apply)({"params": params}, x, EmptyState())
    assert state == EmptyState() and not jax.tree.leaves(aux)
    assert set(params["wide"]) == ({"kernel", "bias"} if norm == "post" else {"kernel"})

    rms = lambda a: a / np.sqrt((a**2).mean(axis=-1, keepdims=True) + 1e-6) * params["layer_norm"]["scale"]
    dense = lambda a, name: a @ params[name]["kernel"] + params[name].get("bias", 0)
    wide = dense(rms(x) if norm == "pre" else x, "wide")
    erf = np.vectorize(math.erf)
    wide = {
        "relu": lambda: np.maximum(wide, 0),
        "gelu": lambda: wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))),
        "gelu_exact": lambda: wide / 2 * (1 + erf(wide / np.sqrt(2))),
        "swiglu": lambda: wide[..., :6] / (1 + np.exp(-wide[..., :6])) * wide[..., 6:],
    }[activation]()
    expected = x + dense(wide, "narrow")
    np.testing.assert_allclose(y, rms(expected) if norm == "post" else expected, atol=1e-12)


# Groups


@pytest.mark.parametrize(
    "layers, scan, alone, groups",
    [
        ("aaaa", True, (), ((0, 4),)),
        ("aaba", True, (), ((0, 2), (2, 0), (3, 0))),
        ("aaaa", False, (), ((0, 0), (1, 0), (2, 0), (3, 0))),
        ("aaaa", True, (1,), ((0, 0), (1, 0), (2, 2))),
        ("a", True, (), ((0, 0),)),
    ],
)
def test_equal_neighbours_form_a_group(layers, scan, alone, groups):
    assert group_layers(layers, scan_layers=scan, alone=alone) == groups


def test_a_memory_and_a_tap_leave_their_group():
    model = memorizing(num_layers=8, scan_layers=True)
    assert make_language_model(model, VOCAB).stack.layer_groups() == ((0, 6), (6, 0), (7, 0))
    tapped = make_language_model(model, VOCAB, features=("layer_02/output", "layer_-1/attention_input"))
    assert tapped.stack.layer_groups() == ((0, 2), (2, 0), (3, 3), (6, 0), (7, 0))
    assert tapped.stack.taps() == {2: ("output",), 7: ("attention_input",)}
    sizes = tapped.init_state(ROWS).stack.sizes
    assert sizes == (2, 0, 3, 0, 0)


@pytest.mark.parametrize("feature", ("layer_05/output", "layer_00/nothing", "layer_x/output", "layer_-6/output"))
def test_unknown_features_are_refused(feature):
    model = make_language_model(memorizing(), VOCAB, features=(feature,))
    with pytest.raises(ValueError, match=f"features: given '{feature}', allowed: layer_<index>/<tap> with an index"):
        model.init_state(1)


@pytest.mark.parametrize(
    "layers, chosen", [((-2,), {3}), ((0,), {0}), ((), {0, 1, 2, 3, 4}), ((1, -1), {1, 4}), ((2, -3), {2})]
)
def test_a_memory_sits_in_the_layers_that_are_named(layers, chosen):
    state = make_language_model(memorizing(layers, scan_layers=False), VOCAB).init_state(ROWS).stack
    holds = {i for i, group in enumerate(state.groups) if isinstance(group.attention.memory, KeyValueMemory)}
    assert holds == chosen
    assert all(group.attention.cache.valid.shape == (ROWS, 3) for group in state.groups)  # the cache is everywhere


def test_leaves_of_a_scanned_state_have_layers_first_and_buffers_of_their_own():
    state = make_language_model(memorizing(scan_layers=True), VOCAB).init_state(ROWS).stack
    assert state.sizes == (3, 0, 0)
    assert state.groups[0].attention.cache.keys.shape == (3, ROWS, 3, 2, 4)
    assert state.groups[1].attention.memory.keys.shape == (ROWS, 2, 6, 4)
    buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(buffers)) == len(buffers)


# Parameters by layer


def test_split_and_join_are_inverse():
    module, shapes = shapes_of(memorizing(scan_layers=True))
    groups = module.stack.layer_groups()
    params = random_params(shapes, dtype=np.float32)["stack"]
    split = split_layers(params, groups)
    assert sorted(split) == [f"layer_{i:02d}" for i in range(5)]
    query = split["layer_01"]["attention"]["query"]
    np.testing.assert_array_equal(query, params["layers_0"]["attention"]["query"][1])
    joined = join_layers(split, groups)
    assert jax.tree.structure(joined) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, joined, params)


def test_shared_parameters_stay_beside_the_layers():
    attention = config.TransformerXL(memory_length=4, tied_biases=True)
    module, shapes = shapes_of(config.Model(**SMALL, num_layers=3, attention=attention, scan_layers=True))
    params = random_params(shapes, dtype=np.float32)["stack"]
    split = split_layers(params, module.stack.layer_groups())
    assert sorted(split) == ["layer_00", "layer_01", "layer_02", "shared"]
    jax.tree.map(np.testing.assert_array_equal, join_layers(split, module.stack.layer_groups()), params)


def test_layers_are_the_same_whatever_the_grouping():
    """What a checkpoint needs when a memory moves or the scan is switched off."""
    scanned, shapes = shapes_of(memorizing(scan_layers=True))
    by_layer = split_layers(random_params(shapes, dtype=np.float32)["stack"], scanned.stack.layer_groups())
    for model, new in (
        (memorizing(scan_layers=False), set()),
        (memorizing(scan_layers=True, layers=(1, -2)), {"layer_01"}),
        (memorizing(scan_layers=True, layers=(3,)), set()),
    ):
        other, other_shapes = shapes_of(model)
        wanted = jax.eval_shape(lambda tree, g=other.stack.layer_groups(): split_layers(tree, g), other_shapes["stack"])
        for name, layer in wanted.items():
            missing = {"gate"} if name in new else set()
            assert set(layer["attention"]) - set(by_layer[name]["attention"]) == missing
        if not new:
            joined = join_layers(by_layer, other.stack.layer_groups())
            assert jax.tree.map(np.shape, joined) == jax.tree.map(np.shape, other_shapes["stack"])


# Scanned, unrolled and rematerialised layers compute the same


def two_segments(model: config.Model, params, **options):
    """Hidden states, metrics and last state of two segments, compiled."""
    module = as_float64(make_language_model(model, VOCAB, **options))
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (2, ROWS, LENGTH)), jnp.int32)

    @jax.jit
    def run(params):
        def segment(state, batch):
            tokens, start = batch
            hidden, state, aux = module.apply({"params": params}, tokens, state, start_of_document=start)
            return state, (hidden, aux.metrics)

        starts = jnp.array([[True] * ROWS, [False] * ROWS])
        state, (hidden, metrics) = jax.lax.scan(segment, module.init_state(ROWS, jnp.float64), (tokens, starts))
        return hidden, metrics, state.stack

    return jax.tree.map(np.asarray, run(params))


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-11), a, b)


def test_scanned_and_unrolled_layers_agree():
    model = lambda scan: memorizing((), num_layers=2, scan_layers=scan)
    with jax.enable_x64(True):
        (scanned, shapes), (unrolled, _) = shapes_of(model(True)), shapes_of(model(False))
        before, after = scanned.stack.layer_groups(), unrolled.stack.layer_groups()
        assert before == ((0, 2),) and after == ((0, 0), (1, 0))
        params = random_params(shapes)
        regrouped = params | {"stack": join_layers(split_layers(params["stack"], before), after)}
        hidden, metrics, state = two_segments(model(True), params)
        hidden_2, metrics_2, state_2 = two_segments(model(False), regrouped)
        close((hidden_2, metrics_2), (hidden, metrics))
        for layer in range(2):
            close(state_2.groups[layer], jax.tree.map(lambda leaf, i=layer: leaf[i], state.groups[0]))
    reported = ("gate", "memorizing/memory_share")
    assert metrics.keys() == {f"layer_0{layer}/{name}" for layer in range(2) for name in reported}


def test_recomputing_layers_does_not_change_gradients():
    model = config.Model(**SMALL, num_layers=2, attention=config.TransformerXL(memory_length=3), scan_layers=True)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (ROWS, LENGTH)), jnp.int32)
    with jax.enable_x64(True):
        params = random_params(shapes_of(model)[1])

        def gradient(rematerialize):
            module = as_float64(make_language_model(model, VOCAB, rematerialize=rematerialize))
            state, start = module.init_state(ROWS, jnp.float64), jnp.ones(ROWS, bool)
            loss = lambda p: (module.apply({"params": p}, tokens, state, start_of_document=start)[0] ** 3).sum()
            recomputed = [eqn for eqn in trace(loss, params) if eqn.primitive.name in ("remat", "remat2", "checkpoint")]
            assert bool(recomputed) == (rematerialize == "per_layer")
            return jax.jit(jax.value_and_grad(loss))(params)

        close(gradient("per_layer"), gradient("none"))


def test_the_program_does_not_grow_with_depth():
    def count(num_layers: int, scan: bool) -> int:
        model = memorizing(num_layers=num_layers, scan_layers=scan)
        module, shapes = shapes_of(model)
        state = jax.eval_shape(lambda: module.init_state(ROWS))
        tokens, start = jnp.zeros((ROWS, LENGTH), jnp.int32), jnp.ones(ROWS, bool)

        def loss(params, state):
            return module.apply({"params": params}, tokens, state, start_of_document=start)[0].sum()

        return len(trace(jax.grad(loss), shapes, state))

    # 3 or 7 layers before the memory, one group
    assert count(8, True) <= count(4, True) + 20
    assert count(8, False) > 1.5 * count(4, False)


def test_layers_are_scanned_from_six_on():
    groups = lambda count: make_language_model(config.Model(num_layers=count), VOCAB).stack.layer_groups()
    assert groups(5) == tuple((i, 0) for i in range(5))
    assert groups(6) == ((0, 6),)
