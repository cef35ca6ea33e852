"""Perceptrons, and classes that may not be answered, of vectors and of texts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config as configs
from memjax.config import Blobs, Classification, Config, Data, Evaluation, Model, Templates
from memjax.models.factory import make_text_encoder
from memjax.models.heads import CLASSES, INITS, ClassificationHead
from memjax.models.perceptron import Perceptron
from memjax.planning.programs import make_programs
from memjax.settings.checks import validate
from memjax.tasks import make_task
from memjax.training.objective import model_loss
from memjax.training.sharding import Layout, make_mesh
from memjax.training.train_state import init_variables
from memjax.typing import Batch

DIM, NUM_CLASSES, ROWS = 5, 4, 3


def config_of(**fields) -> Config:
    data = Data(source=Blobs(num_classes=NUM_CLASSES, dim=DIM), batch_size=2, segment_length=DIM)
    task = Classification(num_classes=NUM_CLASSES)
    return Config(**{"model": configs.Perceptron(widths=(8,)), "task": task, "data": data, **fields})


@pytest.fixture(scope="module")
def perceptron():
    model = Perceptron(ClassificationHead(NUM_CLASSES), widths=(7, 6), features=("output",))
    variables = jax.jit(lambda: init_variables(model, jax.random.key(0), DIM))()
    jiggle = lambda leaf: leaf + 0.2 * np.random.RandomState(leaf.size).standard_normal(leaf.shape).astype(np.float32)
    return model, jax.tree.map(jiggle, variables)


@pytest.fixture(scope="module")
def batch():
    draw = np.random.RandomState(0)
    mask = np.ones((ROWS, DIM), bool)
    mask[1, 3:] = False
    inputs = draw.standard_normal((ROWS, DIM)).astype(np.float32)
    targets, weights = np.array([[1], [3], [0]], np.int32), np.array([[1.0], [1.0], [0.0]], np.float32)
    return jax.tree.map(jnp.asarray, Batch(inputs, targets, mask, weights, np.ones(ROWS, bool)))


ALLOWED = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 1, 1, 1]], bool)


def layers_of(params):
    found = [params["layers_0"], params["layers_1"], params["head"]["classifier"]]
    return [(np.asarray(one["kernel"], np.float64), np.asarray(one["bias"], np.float64)) for one in found]


def reference(params, batch, allowed=None):
    """Hidden layer, log-probabilities, and the mean loss's gradient of the last matrix, in float64."""
    batch = jax.tree.map(np.asarray, batch)
    hidden, (*layers, (matrix, bias)) = np.where(batch.mask, batch.inputs, 0).astype(np.float64), layers_of(params)
    for kernel, offset in layers:
        hidden = np.maximum(hidden @ kernel + offset, 0)
    scores = hidden @ matrix + bias
    scores = scores if allowed is None else np.where(allowed, scores, -np.inf)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    share = batch.weights / batch.weights.sum()
    slope = (np.exp(log_probs) - np.eye(NUM_CLASSES)[batch.targets[:, 0]]) * share
    return hidden, log_probs, hidden.T @ slope


@pytest.mark.parametrize("allowed", [None, ALLOWED], ids=["all", "masked"])
def test_it_computes_the_equations(perceptron, batch, allowed):
    model, variables = perceptron
    batch = dataclasses.replace(batch, extras={} if allowed is None else {CLASSES: jnp.asarray(allowed)})
    state = model.init_state(ROWS)

    @jax.jit
    def run(params):
        def loss(params):
            _, _, nll, aux = model_loss(model, deterministic=True, output=True)(
                {"params": params}, state, batch, jax.random.key(0)
            )
            return nll.total / nll.weight, aux

        (value, aux), slopes = jax.value_and_grad(loss, has_aux=True)(params)
        output = aux.arrays["output"]
        return value, slopes, model.apply({"params": params}, output, method="log_probs"), output

    # `model_loss` shows the output under the name of the feature, which would be there twice
    plain = model.clone(features=())
    model, (*_, aux) = plain, model.apply(variables, batch.inputs, state, mask=batch.mask)
    value, slopes, log_probs, output = run(variables["params"])
    hidden, expected, matrix = reference(variables["params"], batch, allowed)
    assert output.shape == (ROWS, 1, NUM_CLASSES) and value.dtype == jnp.float32
    np.testing.assert_allclose(aux.arrays["output"][:, 0], hidden, atol=1e-5)
    np.testing.assert_allclose(log_probs[:, 0], expected, atol=1e-5)
    np.testing.assert_allclose(value, -(expected[0, 1] + expected[1, 3]) / 2, atol=1e-5)
    np.testing.assert_allclose(slopes["head"]["classifier"]["kernel"], matrix, atol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    if allowed is not None:  # a class that no scored row may answer has learned nothing at all
        assert not np.asarray(slopes["head"]["classifier"]["kernel"])[:, 2].any()
        assert np.isneginf(np.asarray(log_probs)[:, 0][~allowed]).all()


def test_what_may_be_answered_changes_nothing_where_it_is_all(perceptron, batch):
    model, variables = perceptron
    state = model.init_state(ROWS)
    read = jax.jit(lambda extras: model.apply(variables, batch.inputs, state, mask=batch.mask, extras=extras)[0])
    plain, every, none = (
        np.asarray(read(extras))
        for extras in ({}, {CLASSES: jnp.ones_like(ALLOWED)}, {CLASSES: jnp.zeros_like(ALLOWED)})
    )
    np.testing.assert_array_equal(every, plain)
    np.testing.assert_array_equal(none, plain)  # a row without a class, as padding is
    # A target that may not be answered is as improbable as can be; without weight nothing of it is heard.
    masked = read({CLASSES: jnp.asarray(ALLOWED)})

    def nll(*asked):
        found: Any = model.apply(variables, masked, *map(jnp.array, asked), method="nll")
        return found.total

    assert np.isinf(nll([[2], [1], [1]], [[1.0]] * ROWS))
    assert np.isfinite(nll([[2], [1], [1]], [[0.0], [1.0], [1.0]]))


def test_a_text_encoder_takes_the_same_classes():
    model = Model(dim=4, num_layers=1, num_heads=1, attention=configs.Bidirectional(num_positions=4, pooler=False))
    encoder = make_text_encoder(model, ClassificationHead(3), vocab_size=5)
    tokens, allowed = jnp.array([[1, 2], [3, 4]]), jnp.array([[True, False, True], [False, True, True]])
    named = encoder.select_extras({CLASSES: allowed, "other": allowed})
    assert named.keys() == {CLASSES}

    @jax.jit
    def run():
        variables = init_variables(encoder, jax.random.key(0), 2)
        read = lambda v, **extras: encoder.apply(v, tokens, encoder.init_state(2), extras=extras)[0]
        asked = (jnp.array([[2], [1]]), jnp.ones((2, 1)))

        def loss(v):
            found: Any = encoder.apply(v, read(v, **named), *asked, method="nll")
            return found.total

        return read(variables), read(variables, **named), jax.grad(loss)(variables)

    plain, masked, slopes = run()
    allowed = np.asarray(allowed)
    np.testing.assert_array_equal(np.asarray(masked)[:, 0][allowed], np.asarray(plain)[:, 0][allowed])
    assert np.isneginf(np.asarray(masked)[:, 0][~allowed]).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize(("name", "deviation"), [("normal", 0.02), ("lecun", 1 / 16), ("uniform", 1 / 16 / 3**0.5)])
def test_matrices_begin_as_they_are_named(name, deviation):
    matrix = np.asarray(INITS[name](jax.random.key(0), (256, 64), jnp.float32))
    assert matrix.std() == pytest.approx(deviation, rel=0.03)
    assert name != "uniform" or np.abs(matrix).max() == pytest.approx(1 / 16, rel=1e-3)


def test_a_configuration_makes_it():
    model = make_task(config_of(model=configs.Perceptron(widths=(256,), dropout=0.5, initializer="uniform"))).model(0)
    assert model == Perceptron(ClassificationHead(NUM_CLASSES, initializer="uniform"), (256,), 0.5, "uniform")
    large = Perceptron(ClassificationHead(10))
    shapes = jax.eval_shape(lambda: init_variables(large, jax.random.key(0), 784))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 784 * 256 + 256 + 256 * 10 + 10
    linear = Perceptron(ClassificationHead(3), widths=())
    shapes = jax.eval_shape(lambda: init_variables(linear, jax.random.key(0), 4))
    assert jax.tree.map(lambda leaf: leaf.shape, shapes)["params"] == {
        "head": {"classifier": {"bias": (3,), "kernel": (4, 3)}}
    }


def test_dropout_is_of_training_alone(perceptron, batch):
    model, variables = perceptron
    model = model.clone(dropout=0.5)
    state, key = model.init_state(ROWS), jax.random.key(3)
    read = lambda **named: model.apply(variables, batch.inputs, state, **named)[0]
    np.testing.assert_array_equal(read(), read(deterministic=True))
    assert (read(deterministic=False, rngs={"dropout": key}) != read()).any()


@pytest.mark.parametrize("what", ["train", "eval"])
def test_it_can_be_planned(what):
    (program,) = make_programs(config_of(), what, 0, Layout(make_mesh((1, 1, 1), jax.devices()[:1]))).values()
    result = jax.eval_shape(program.function, *program.arguments.values())
    held = program.arguments["memory" if what != "train" else "state"]
    assert jax.tree.map(lambda leaf: leaf.shape, result[0]) == jax.tree.map(lambda leaf: leaf.shape, held)
    assert program.padding == 0


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"task": configs.LanguageModeling()},
            "task: given 'LanguageModeling', allowed: Classification with Perceptron",
        ),
        (
            {"task": configs.QuestionAnswering()},
            "task: given 'QuestionAnswering', allowed: Classification with Perceptron",
        ),
        (
            {"data": Data(source=Templates())},
            "data.source: given 'Templates', allowed: Digits, Blobs, PermutedBags, CachedFeatures or",
        ),
        ({"data": Data(source=Blobs(), protocol="contiguous")}, "data.protocol: given 'contiguous', allowed: 'separa"),
        ({"data": Data(source=Blobs(), train_half="first")}, "data.train_half: given 'first', allowed: '' "),
        (
            {"data": Data(source=Blobs(classes=(1, 10)))},
            r"data.source.classes: given \(1, 10\), allowed: below data.so",
        ),
        (
            {"data": Data(source=Blobs(classes=(1, 1)))},
            r"data.source.classes: given \(1, 1\), allowed: each class once",
        ),
        ({"model": Model()}, "model.attention: given 'FullAttention', allowed: Bidirectional"),
        (
            {"model": Model(), "task": configs.LanguageModeling()},
            "data.source: given 'Blobs', allowed: a source of doc",
        ),
        (
            {"model": configs.Perceptron(widths=(8, 0))},
            r"model.widths: given \(8, 0\), allowed: an integer of at least",
        ),
        ({"evaluation": Evaluation(memory_length=4)}, "evaluation.memory_length: given 4, allowed: None "),
        (
            {"evaluation": Evaluation(memory_intervention="cleared")},
            "evaluation.memory_intervention: given 'cleared', allowed: 'kept",
        ),
        (
            {"evaluation": Evaluation(cache=configs.ContinuousCache(memory_length=2))},
            "evaluation.cache.memory_length: ",
        ),
    ],
)
def test_what_it_does_not_serve_is_refused_in_one_line(fields, line):
    with pytest.raises(ValueError, match=f"^{line}") as error:
        validate(config_of(**fields))
    assert "\n" not in str(error.value)


def test_it_serves_no_verb_of_tokens():
    task = make_task(config_of())
    for verb in ("generate", "translate", "sample"):
        line = f"^{verb}: given VectorClassification, .* serves train, eval, plan, predict$"
        with pytest.raises(ValueError, match=line):
            task.require(verb)
    with pytest.raises(ValueError, match="^datastore: given Perceptron, .*; Perceptron serves train, eval, plan$"):
        task.model(0).require("stores_keys")
