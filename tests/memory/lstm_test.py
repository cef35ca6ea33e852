"""The LSTM against a loop written from its papers, and what is particular to a model without feed-forward parts.

Its laws (decoding equals the forward pass, gradients between segments, padding) are in `tests/contract_test.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inference import generate
from memjax.inference.sampling import Sampling
from memjax.memory.lstm import LSTMLayer, LSTMState
from memjax.models.factory import make_language_model
from tests.reference import recurrent as reference
from tests.reference.parameters import params_of

DIM, ROWS, LENGTH, VOCAB = 6, 3, 5, 11


def random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def language_model(**fields):
    return make_language_model(config.Model(dim=DIM, attention=config.LSTM(), **fields), VOCAB)


def params_of_model(model) -> dict:
    tokens, start = jnp.zeros((1, LENGTH), jnp.int32), jnp.ones(1, bool)
    return params_of(model, tokens, model.init_state(1), start_of_document=start, dtype=np.float32)


def test_it_equals_a_loop_over_tokens():
    with jax.enable_x64(True):
        module, x = LSTMLayer(DIM, dtype=jnp.float64), random(1, ROWS, LENGTH, DIM)
        state = LSTMState(random(2, ROWS, DIM), random(3, ROWS, DIM))
        start = jnp.array([True, False, False])
        mask = jnp.arange(LENGTH)[None] < jnp.array([LENGTH, 3, 0])[:, None]
        params = params_of(module, x, state, start_of_document=start)
        y, new, _ = jax.jit(
            lambda params: module.apply({"params": params}, x, state, start_of_document=start, mask=mask)
        )(params)
        for row in range(ROWS):
            old = [np.zeros(DIM) if start[row] else np.asarray(leaf[row]) for leaf in (state.cell, state.hidden)]
            outputs, cell, hidden = reference.lstm(np.asarray(x[row]), params["cell"], *old, mask=mask[row])
            np.testing.assert_allclose(np.where(mask[row, :, None], y[row], 0), outputs, atol=1e-12)
            np.testing.assert_allclose(new.cell[row], cell, atol=1e-12)
            np.testing.assert_allclose(new.hidden[row], hidden, atol=1e-12)


def test_dropout_is_on_the_output_and_not_on_the_state():
    module, x, start = LSTMLayer(DIM, dropout=0.5), random(1, ROWS, LENGTH, DIM), jnp.ones(ROWS, bool)
    x, state = x.astype(jnp.float32), module.init_state(ROWS)
    params = params_of(module, x, state, start_of_document=start, dtype=np.float32)

    @jax.jit
    def run(params):
        read = lambda **noise: module.apply({"params": params}, x, state, start_of_document=start, **noise)
        return read()[:2], read(deterministic=False, rngs={"dropout": jax.random.key(0)})[:2]

    (y, new), (dropped, same) = run(params)
    assert 0.2 < (np.asarray(dropped) == 0).mean() < 0.8 and (np.asarray(y) != 0).all()
    jax.tree.map(np.testing.assert_array_equal, new, same)


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_the_state_is_at_least_float32(dtype):
    model = language_model(num_layers=2, memory_dtype=jnp.dtype(dtype).name)
    assert {leaf.dtype for leaf in jax.tree.leaves(model.init_state(ROWS))} == {jnp.dtype(jnp.float32)}


def test_its_layers_are_cells_alone():
    params = params_of_model(language_model(num_layers=2, scan_layers=False))
    layers = params["stack"]
    assert set(params) == {"stack", "vocabulary"} and set(layers) == {"layers_0", "layers_1"}  # no norm at the end
    for layer in layers.values():
        assert set(layer) == {"attention"} and set(layer["attention"]) == {"cell"}
        assert sum(leaf.size for leaf in jax.tree.leaves(layer)) == 8 * DIM**2 + 4 * DIM


def test_what_the_model_drops_is_not_dropped_twice():
    layers = language_model(num_layers=3, dropout=0.2).stack.layers
    assert [layer.attention.dropout for layer in layers] == [0.2, 0.2, 0.0]


@pytest.mark.parametrize("tap", ("feed_forward_input", "feed_forward_input_normed", "attention_input_normed"))
def test_taps_are_what_layers_hand_on(tap):
    features = (f"layer_1/{tap}", "layer_0/output", "output")
    model = make_language_model(config.Model(dim=DIM, num_layers=2, attention=config.LSTM()), VOCAB, features=features)
    tokens, start = jnp.arange(LENGTH)[None], jnp.ones(1, bool)
    apply = jax.jit(model.apply)
    _, _, aux = apply({"params": params_of_model(model)}, tokens, model.init_state(1), start_of_document=start)
    arrays = aux.arrays
    expected = arrays["layer_00/output" if tap.startswith("attention") else "output"]
    np.testing.assert_array_equal(arrays[f"layer_01/{tap}"], expected)


def test_a_language_model_goes_on_as_it_reads():
    model = language_model(num_layers=2)
    variables = {"params": jax.tree.map(lambda leaf: jnp.asarray(4 * leaf), params_of_model(model))}
    prompt = [3, 1, 4, 1, 5, 9, 2]  # ends inside a segment
    settings = {"segment_length": 4, "max_tokens": 6, "sampling": Sampling(temperature=0)}
    new = generate(model, variables, [prompt], **settings)[0]

    @jax.jit
    def best(tokens):
        hidden = model.apply(variables, tokens, model.init_state(1), start_of_document=jnp.ones(1, bool))[0]
        return model.apply(variables, hidden, method="log_probs").argmax(axis=-1)[0]

    expected = best(jnp.asarray([prompt + new]))[len(prompt) - 1 : -1].tolist()
    assert new == expected and len(new) == 6
    assert len(set(new)) > 1
