"""Gates: of heads, of tokens, at the output; each as its equation says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection.gates import gate_map
from memjax.memory.spalm import SpalmMemory
from memjax.models.factory import make_language_model
from memjax.models.feature_taps import add_features, regroup_layers
from memjax.models.transformer import split_collection
from memjax.training.train_state import init_variables
from memjax.typing import Batch
from tests.reference.parameters import random_params

ROWS, LENGTH, VOCAB = 2, 4, 7


def segments():
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, ROWS, LENGTH)).astype(np.int32)
    real = np.ones((ROWS, LENGTH), bool)
    extras = {"neighbor_values": np.ones((ROWS, LENGTH, 1), np.int32)}
    starts = ([True] * ROWS, [False] * ROWS)
    given = zip(tokens, starts, strict=True)
    made = [Batch(ids, ids, real, real.astype(np.float32), np.array(start), extras) for ids, start in given]
    return jax.tree.map(jnp.asarray, made)


def started(attention, output=None):
    described = config.Model(dim=8, num_layers=3, num_heads=2, attention=attention)
    model = make_language_model(described, VOCAB, segment_length=LENGTH).clone(output_memory=output)
    shapes = jax.eval_shape(lambda: init_variables(model.clone(output_memory=None), jax.random.key(0), LENGTH))
    variables = {name: random_params(shape, dtype=np.float32) for name, shape in shapes.items()}
    if output is not None:
        weights = {"weight": np.linspace(-1, 1, 8), "bias": np.array([0.5])}
        variables["params"]["output_memory"] = {name: value.astype(np.float32) for name, value in weights.items()}
    return model, jax.tree.map(jnp.asarray, variables)


def hidden(model, variables, *names):
    """Inner tensors over both segments, by name."""
    tapped, found = add_features(model, *names), []
    own, state = regroup_layers(variables, model, tapped), tapped.init_state(ROWS)
    for batch in segments():
        given = {"start_of_document": jnp.asarray(batch.start_of_document), "extras": None}
        _, state, aux = tapped.apply(own, jnp.asarray(batch.inputs), state, **given)
        found.append(aux.arrays)
    return {name: np.concatenate([one[name] for one in found], axis=1) for name in names}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_gates_of_heads_are_parameters():
    model, variables = started(config.Memorizing(layers_with_memory=(0, -1), memory_length=4, num_neighbors=2))
    found = gate_map(model, variables, segments())
    assert [*found.layers] == [0, 2] and found.output is None and found.tokens.shape == (ROWS, 2 * LENGTH)
    stack = split_collection(variables["params"], model.layer_groups())["stack"]
    for layer, gates in found.layers.items():
        assert gates.gated == "the long memory" and not gates.by_token
        expected = sigmoid(stack[f"layer_{layer:02d}"]["attention"]["gate"])
        np.testing.assert_allclose(gates.mean(found.counted), expected, rtol=1e-6)


def test_gates_of_tokens_are_those_of_what_the_layer_reads():
    model, variables = started(config.RFA(gate=True, num_directions=3))
    found = gate_map(model, variables, segments())
    assert [*found.layers] == [0, 1, 2]
    name = "layer_01/attention_input_normed"
    y, part = (
        hidden(model, variables, name)[name],
        split_collection(variables["params"], model.layer_groups())["stack"]["layer_01"],
    )
    expected = sigmoid(y @ part["attention"]["gate"] + part["attention"]["gate_bias"][None, None])
    assert found.layers[1].by_token and found.layers[1].gated == "the sums so far"
    np.testing.assert_allclose(found.layers[1].values, expected, atol=1e-5)
    counted = np.zeros_like(found.counted)
    counted[0, 3] = True
    np.testing.assert_allclose(found.layers[1].mean(counted), expected[0, 3], atol=1e-5)


def test_the_gate_at_the_output_is_that_of_the_hidden_state():
    model, variables = started(
        config.TransformerXL(memory_length=2), SpalmMemory(dim=8, num_neighbors=1, gate_bias=0.5)
    )
    found = gate_map(model, variables, segments())
    assert not found.layers and found.output is not None and found.output.values.shape == (ROWS, 2 * LENGTH, 1)
    plain = model.clone(output_memory=None)
    params = {name: value for name, value in variables["params"].items() if name != "output_memory"}
    h = hidden(plain, {**variables, "params": params}, "output_normed")["output_normed"]
    np.testing.assert_allclose(found.output.values[..., 0], sigmoid(h @ np.linspace(-1, 1, 8) + 0.5), atol=1e-5)


def test_models_without_a_gate_are_refused():
    model, variables = started(config.Memorizing(memory_length=4, num_neighbors=2, merge="joint"))
    with pytest.raises(ValueError, match="gates: given LanguageModel without one"):
        gate_map(model, variables, segments())
