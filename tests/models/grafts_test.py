"""Memories beside a rotary host: closed before they are trained, and able to open."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import (
    CompressiveGraft,
    Config,
    Data,
    Dense,
    InfinityFormerGraft,
    LinearPositions,
    LoRA,
    MemorizingGraft,
    Model,
    ProductKey,
    ProductKeyGraft,
    Rotary,
    Training,
)
from memjax.memory.continuous_cache import ContinuousCacheMemory
from memjax.memory.grafted_memories import GraftedCompression, GraftedNeighbors, GraftedSignal
from memjax.memory.knn_lm import KNNMemory
from memjax.models.factory import make_model
from memjax.models.feature_taps import add_mixtures
from memjax.settings.checks import validate
from memjax.tasks.interface import make_task
from memjax.training.train_state import init_variables
from memjax.training.variables import join_arrays, name_arrays
from tests.models.adapters_test import LENGTH, VOCAB, drawn, reader

HOST = Rotary(memory_length=4, sinks=2, key_heads=1, rotary=LinearPositions(theta=50.0), norm="both", score_cap=9.0)
KEYS = {"num_keys": 4, "memory_heads": 2, "num_neighbors": 2, "key_dim": 4}


def make_config(graft=None, feed_forward=None, lora=None, num_layers=3):
    """A config with memories beside a host that has a window, positions and norms of its own."""
    attention = dataclasses.replace(HOST, graft=graft, local_layers=(1,), local_window=3)
    sizes = {"dim": 32, "num_layers": num_layers, "num_heads": 2, "residual_scale": 0.5}
    dense = feed_forward or Dense(dim=48, activation="geglu", bias=False)
    model = Model(**sizes, attention=attention, feed_forward=dense)
    config = Config(model=model, data=Data(segment_length=LENGTH), training=Training(lora=lora or LoRA()))
    validate(config)
    return config


def built(config):
    return make_model(config, VOCAB, make_task(config).head(), vocab_multiple=1)


BESIDE = {"dim": 48, "activation": "geglu", "bias": False, "layers": (0, 2)}
TRAINED = {
    "memorizing": ({"graft": MemorizingGraft(memory_length=16, num_neighbors=3, layers=(0, -1))}, "graft/gate"),
    "compressive": ({"graft": CompressiveGraft(compressed_memory_length=4, compression_rate=2)}, "graft/gate"),
    "infinity_former": ({"graft": InfinityFormerGraft(num_basis=8, num_samples=6, layers=(1,))}, "signal/output"),
    "product_key": ({"feed_forward": ProductKeyGraft(**BESIDE, **KEYS)}, "memory/values"),
    "lora": ({"lora": LoRA(rank=2)}, "/b"),
}
"""memory -> settings, and the end of the paths of the parameters that are 0 at first"""


def start(config):
    """A model whose new parameters are initial and whose others are random, and the host with these, as variables."""
    host, model = built(make_config()), built(config)
    random = name_arrays(drawn(host), host.layer_groups())
    new = name_arrays(init_variables(model, jax.random.key(3), LENGTH), model.layer_groups())
    joined = join_arrays({name: random.get(name, leaf) for name, leaf in new.items()}, model.layer_groups())
    assert random.keys() < new.keys()
    return (host, join_arrays(random, host.layer_groups())), (model, joined)


@pytest.mark.parametrize(
    "name", [name if name == "memorizing" else pytest.param(name, marks=pytest.mark.laws) for name in TRAINED]
)
def test_a_memory_that_is_trained_changes_no_bit_at_first_and_can_open(name):
    options, closed = TRAINED[name]
    (host, before), (model, after) = start(make_config(**options))
    expected, read = reader(host)(before), reader(model)
    np.testing.assert_array_equal(read(after), expected)

    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (3, 2, LENGTH)), jnp.int32)

    def loss(variables):
        def add_segment(carry, inputs):
            (state, total), (segment, is_first) = carry, inputs
            output, state, _ = model.apply(variables, segment, state, start_of_document=jnp.full(2, is_first))
            scores = model.apply(variables, output, method="log_probs")
            return (state, total + jnp.take_along_axis(scores, jnp.roll(segment, 1)[..., None], axis=-1).sum()), None

        segments = tokens, jnp.arange(len(tokens)) == 0
        return jax.lax.scan(add_segment, (model.init_state(2), 0.0), segments)[0][1]

    gradients = name_arrays(jax.jit(jax.grad(loss))(after), model.layer_groups())
    gates = {path: np.asarray(leaf) for path, leaf in gradients.items() if path.endswith(closed)}
    assert gates and all(np.abs(leaf).max() > 0 for leaf in gates.values())
    zeros = name_arrays(after, model.layer_groups())
    opened = {path: leaf + (0.5 if path in gates else 0) for path, leaf in zeros.items()}
    assert all(not np.asarray(zeros[path]).any() for path in gates)
    assert np.abs(read(join_arrays(opened, model.layer_groups())) - expected).max() > 1e-3


@pytest.mark.laws
@pytest.mark.parametrize("kind", [MemorizingGraft(memory_length=16, num_neighbors=3, layers=()), CompressiveGraft()])
def test_a_sigmoid_gate_is_nearly_closed_at_first(kind):
    graft = dataclasses.replace(kind, gate_kind="sigmoid")
    if isinstance(graft, CompressiveGraft):
        graft.compression_rate = 2
    (host, before), (model, after) = start(make_config(graft))
    nats = [jax.nn.log_softmax(reader(which)(values)) for which, values in ((host, before), (model, after))]
    difference = np.abs(np.asarray(nats[0] - nats[1])).max()
    assert 0 < difference < 0.01


def with_cache(weight):
    return ContinuousCacheMemory(dim=32, memory_length=8, interpolation_weight=weight)


def with_neighbors(weight):
    return KNNMemory(num_neighbors=3, interpolation_weight=weight)


@pytest.mark.parametrize("memory", [with_cache, pytest.param(with_neighbors, marks=pytest.mark.laws)])
def test_a_memory_that_is_not_trained_changes_no_bit_with_a_weight_of_0(memory):
    host = built(make_config())
    variables = drawn(host)
    distances = jnp.asarray(np.random.default_rng(2).random((2, LENGTH, 3)), jnp.float32)
    neighbors = {"knn_distances": distances, "knn_values": jnp.ones((2, LENGTH, 3), jnp.int32)}
    extras = neighbors if memory is with_neighbors else {}
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (3, 2, LENGTH)), jnp.int32)

    def scores(model, extras):
        @jax.jit
        def read(state, segment, is_first):
            arguments = {"start_of_document": jnp.full(2, is_first), "extras": extras}
            output, state, _ = model.apply(variables, segment, state, **arguments)
            return model.apply(variables, output, method="log_probs"), state

        state, outputs = model.init_state(2), []
        for index, segment in enumerate(tokens):
            output, state = read(state, segment, index == 0)
            outputs.append(output)
        return np.stack(outputs)

    mixed = {weight: scores(add_mixtures(host, memory(weight)), extras) for weight in (0.0, 0.3)}
    np.testing.assert_array_equal(mixed[0.0], scores(host, {}))
    assert np.abs(mixed[0.3] - mixed[0.0]).max() > 1e-2


def test_the_factory_makes_a_memory_in_the_chosen_layers_and_keeps_the_host():
    plain, kinds = built(make_config()).stack.layers, {}
    for name in ("memorizing", "compressive", "infinity_former"):
        layers = built(make_config(**TRAINED[name][0])).stack.layers
        kinds[name] = [type(layer.attention.graft) for layer in layers]
        assert [layer.attention.clone(graft=None) for layer in layers] == [layer.attention for layer in plain]
    none = type(None)
    assert kinds["memorizing"] == [GraftedNeighbors, none, GraftedNeighbors]
    assert kinds["compressive"] == [GraftedCompression] * 3
    assert kinds["infinity_former"] == [none, GraftedSignal, none]
    memory = built(make_config(MemorizingGraft(memory_length=16, num_neighbors=16))).stack.layers[0].attention.graft
    assert (memory.key_heads, memory.num_heads, memory.head_dim, memory.num_neighbors) == (1, 2, 16, 16)


def test_product_keys_stand_in_place_of_a_feed_forward_part_or_beside_it():
    fields = {"dim": 48, "activation": "geglu", "bias": False, "layers": (1,), **KEYS}
    for part, scale in ((ProductKey(**fields), 0.0), (ProductKeyGraft(**fields), 1.0)):
        dense = [layer.feed_forward for layer in built(make_config(feed_forward=part)).stack.layers]
        assert [layer.memory is not None for layer in dense] == [False, True, False]
        assert dense[1].dense_scale == scale and dense[1].memory.zero_values == (scale == 1)


WRONG = [
    (MemorizingGraft(memory_length=8, num_neighbors=9), {}, "graft.num_neighbors: given 9, allowed: 1 to model"),
    (MemorizingGraft(layers=(3,)), {}, "graft.layers: given .3,., allowed: layers from -3 to 2"),
    (CompressiveGraft(compression_rate=4), {}, "graft.compression_rate: given 4, allowed: a divisor of data.segment"),
    (InfinityFormerGraft(num_basis=7), {}, "graft.num_basis: given 7, allowed: a multiple of the 2 widths"),
    (None, {"feed_forward": ProductKeyGraft(dense_scale=0.0)}, "dense_scale: given 0.0, allowed: another number"),
]


@pytest.mark.parametrize("graft, options, line", WRONG, ids=lambda value: type(value).__name__)
def test_memories_that_do_not_fit_are_refused_in_a_line(graft, options, line):
    with pytest.raises(ValueError, match=line):
        make_config(graft, **options)
