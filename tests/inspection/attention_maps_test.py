"""Maps of attention: what a head gives to each key, wherever the layer stands, and which keys it may read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.inspection.attention_maps import attention_maps
from memjax.models.factory import make_language_model, make_text_encoder
from memjax.models.heads import ClassificationHead
from memjax.models.perceptron import Perceptron
from memjax.models.transformer import split_collection
from memjax.typing import Batch
from tests.reference.parameters import params_of

ROWS, LENGTH, VOCAB = 2, 5, 7
REAL = np.arange(LENGTH) < np.array([[5], [3]])


def rows():
    tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    return jax.tree.map(jnp.asarray, Batch(tokens, tokens, REAL, REAL.astype(np.float32), np.ones(ROWS, bool)))


def built(attention, **fields):
    described = config.Model(dim=8, num_layers=2, num_heads=2, scan_layers=False, attention=attention, **fields)
    if isinstance(attention, config.Bidirectional):
        return make_text_encoder(described, None, VOCAB)
    return make_language_model(described, VOCAB, segment_length=LENGTH)


def started(model):
    first = params_of(model, rows().inputs, model.init_state(ROWS), start_of_document=jnp.ones(ROWS, bool))
    return {"params": jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), first)}


KINDS = {
    "gpt2": (config.GPT2(num_positions=LENGTH), np.tri(LENGTH, dtype=bool)),
    "bert": (config.Bidirectional(num_positions=LENGTH), np.ones((LENGTH, LENGTH), bool)),
}


@pytest.mark.parametrize("name", KINDS)
def test_maps_are_those_of_queries_and_keys(name):
    attention, causal = KINDS[name]
    model = built(attention)
    variables = started(model)
    found = attention_maps(model, variables, rows())
    np.testing.assert_array_equal(found.seen, causal & REAL[:, :, None] & REAL[:, None])
    assert found.weights.shape == (2, ROWS, 2, LENGTH, LENGTH)
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1, atol=1e-6)
    read = found.weights.max(axis=(0, 2)) > 0  # of padding nothing is read
    np.testing.assert_array_equal(read, np.broadcast_to(causal & REAL[:, None], read.shape))

    # The second layer by hand, from the first one's output.
    tapped = model.clone(stack=model.stack.clone(features=("layer_01/attention_input_normed",)))
    named = {"start_of_document": jnp.ones(ROWS, bool), "mask": jnp.asarray(REAL)}
    arrays = tapped.apply(variables, rows().inputs, model.init_state(ROWS), **named)[2].arrays
    (x,) = arrays.values()
    part = split_collection(variables["params"], model.layer_groups())["stack"]["layer_01"]["attention"]
    if name == "gpt2":
        queries = jnp.einsum("bld,dhe->bhle", x, part["query"]) + part["query_bias"][None, :, None]
        keys = jnp.einsum("bld,dhe->bhle", x, part["key_value"][:, 0]) + part["key_value_bias"][0][None, :, None]
    else:
        inner = jnp.einsum("bld,dthe->tbhle", x, part["query_key_value"]) + part["biases"].reshape(3, 1, 2, 1, 4)
        queries, keys = inner[0], inner[1]
    scores = jnp.einsum("bhle,bhme->bhlm", queries, keys) / 2
    expected = jax.nn.softmax(jnp.where((causal & REAL[:, None])[:, None], scores, -1e9), axis=-1)
    np.testing.assert_allclose(found.weights[1], expected, atol=1e-5)


def test_scanned_layers_and_layers_with_a_memory_have_the_same_maps():
    model = built(config.GPT2(num_positions=LENGTH))
    variables = started(model)
    scanned = model.clone(stack=model.stack.clone(scan_layers=True))
    stacked = jax.tree.map(lambda *two: jnp.stack(two), *(variables["params"]["stack"][f"layers_{i}"] for i in (0, 1)))
    other = {"params": {**variables["params"], "stack": {"layers_0": stacked}}}
    found, same = attention_maps(model, variables, rows()), attention_maps(scanned, other, rows())
    np.testing.assert_allclose(found.weights, same.weights, atol=1e-6)
    with_memory = built(config.TransformerXL(memory_length=3))
    found = attention_maps(with_memory, started(with_memory), rows())
    assert found.weights.shape == (2, ROWS, 2, LENGTH, 3 + LENGTH) and not found.seen[:, :, :3].any()  # empty slots


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            built(config.LinearTransformer()),
            "given LinearTransformerAttention, allowed: attention with track_attention",
        ),
        (Perceptron(ClassificationHead(num_classes=2)), "given Perceptron, allowed: a model with a stack of layers"),
    ],
    ids=["no weights", "no layers"],
)
def test_models_without_maps_are_refused(model, line):
    with pytest.raises(ValueError, match=f"attention maps: {line}"):
        attention_maps(model, {}, rows())


def test_queries_that_are_no_tokens_are_refused():
    tokens = config.MemoryTokens(num_tokens=2)
    model = built(config.TransformerXL(memory_length=0), memory_tokens=tokens)
    with pytest.raises(ValueError, match="allowed: one shape in all layers, with the 5 tokens"):
        attention_maps(model, started(model), rows())
