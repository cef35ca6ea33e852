import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.models.factory import make_language_model, make_text_encoder
from memjax.models.text_encoder import mean_pooling
from memjax.tasks import make_task
from memjax.training.train_state import init_variables
from tests.reference.parameters import random_params

MLM, CLASSES, SPANS = (
    config.MaskedLanguageModeling(),
    config.Classification(num_classes=3),
    config.QuestionAnswering(),
)
VOCAB = 11


def make_model(**fields) -> config.Model:
    attention = config.Bidirectional(num_positions=8, **fields)
    dense = config.Dense(dim=12, activation="gelu_exact")
    return config.Model(dim=8, num_layers=2, num_heads=2, attention=attention, feed_forward=dense)


def build(model, task, vocab_size):
    head = None if task is None else make_task(config.Config(task=task, model=model)).head()
    return make_text_encoder(model, head, vocab_size)


def make(task, **fields):
    encoder = build(make_model(**fields), task, VOCAB)
    return encoder, random_variables(encoder)


def random_variables(encoder):
    """No parameter is zero, so that nothing hides."""
    return jax.device_put(random_params(shapes_of(encoder, 6), dtype=np.float32))


def shapes_of(encoder, length):
    return jax.eval_shape(lambda: init_variables(encoder, jax.random.key(0), length))


@pytest.fixture(scope="module")
def texts():
    tokens = np.random.default_rng(1).integers(0, VOCAB, (2, 6)).astype(np.int32)
    return jax.device_put((tokens, np.array([[True] * 6, [True] * 4 + [False] * 2])))


@functools.partial(jax.jit, static_argnums=0)
def apply(encoder, variables, tokens, mask, **extras):
    return encoder.apply(variables, tokens, encoder.init_state(2), mask=mask, extras=extras)[0]


@functools.cache
def call(encoder, method):
    """A method of the encoder, compiled as one program."""
    return jax.jit(functools.partial(encoder.apply, method=method))


@pytest.mark.parametrize(
    "dim, layers, heads, task, count",
    [
        (768, 12, 12, None, 109_482_240),
        (768, 12, 12, MLM, 110_104_890),  # what the papers call 110M
        (768, 12, 12, config.Classification(), 109_482_240 + 768 * 2 + 2),
        pytest.param(1024, 24, 16, MLM, 336_224_058, marks=pytest.mark.laws),  # nominally 340M
    ],
)
def test_parameter_counts_are_the_published_ones(dim, layers, heads, task, count):
    model = config.Model(dim=dim, num_layers=layers, num_heads=heads, attention=config.Bidirectional())
    encoder = build(model, task, 30_522)
    shapes = shapes_of(encoder, 4)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


@pytest.mark.parametrize(
    "dim, layers, heads, dense_scale, count",
    [
        (768, 12, 12, 0.0, 505_940_794),  # Kim & Jung 2020: 506M
        (768, 12, 12, 1.0, 505_940_794 + 2 * 4_722_432),  # 515M
        pytest.param(1024, 24, 16, 0.0, 859_459_386, marks=pytest.mark.laws),  # 860M
        pytest.param(1024, 24, 16, 1.0, 876_246_842, marks=pytest.mark.laws),  # 876M
    ],
)
def test_parameter_counts_with_product_keys_are_the_published_ones(dim, layers, heads, dense_scale, count):
    memory = config.ProductKey(layers=(3, 7), dense_scale=dense_scale)
    model = config.Model(dim=dim, num_layers=layers, num_heads=heads, attention=config.Bidirectional())
    model.feed_forward, model.scan_layers = memory, True
    encoder = build(model, MLM, 30_522)
    shapes = shapes_of(encoder, 4)
    assert sum(leaf.size for name in ("params", "tables") for leaf in jax.tree.leaves(shapes[name])) == count


def test_distilbert_has_its_count():
    model = config.Model(num_layers=6, dim=768, num_heads=12)
    model.attention = config.Bidirectional(num_token_types=0, pooler=False)
    encoder = build(model, None, 30_522)
    shapes = shapes_of(encoder, 4)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 66_362_880


def test_padding_is_not_read(texts):
    tokens, mask = texts
    other = np.where(mask, tokens, (np.asarray(tokens) + 3) % VOCAB)
    for task, keep in [(None, np.s_[1, :4]), (CLASSES, np.s_[1]), (SPANS, np.s_[1, :, :4])]:
        encoder, variables = make(task)
        a, b = (np.asarray(apply(encoder, variables, t, mask)) for t in (tokens, other))
        np.testing.assert_array_equal(a[keep], b[keep])
        assert np.isfinite(a[keep]).all()
    assert np.isneginf(a[1, :, 4:]).all()  # padding is no end of an answer


def test_every_token_sees_every_other_one(texts):
    encoder, variables = make(None)
    tokens, _ = texts
    x = np.eye(VOCAB, dtype=np.float32)[np.asarray(tokens)]
    table = variables["params"]["vocabulary"]["embedding"]

    def last(x):  # the embeddings as a function of the input, by a table of one entry for each token
        own = {**variables["params"], "vocabulary": {"embedding": (x @ table).reshape(-1, 8)}}
        ids = jnp.arange(12).reshape(2, 6)
        wide = build(make_model(), None, 12)
        return wide.apply({"params": own}, ids, wide.init_state(2))[0]

    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.square(last(x)[0, 2]).sum()))(x))
    assert (np.abs(gradient[0]).sum(axis=-1) > 1e-6).all()
    assert (gradient[1] == 0).all()


def test_only_masked_positions_are_scored_and_alike(texts):
    encoder, variables = make(MLM)
    tokens, mask = texts
    places = np.array([[4, 1, 0], [2, 0, 0]])
    everywhere = apply(encoder, variables, tokens, mask)
    chosen = apply(encoder, variables, tokens, mask, masked_positions=places)
    np.testing.assert_allclose(chosen, np.take_along_axis(np.asarray(everywhere), places[..., None], 1), atol=1e-6)
    targets, weights = np.array([[3, 5, 0], [7, 0, 0]]), np.array([[1, 1, 0], [1, 0, 0]], np.float32)
    nll = call(encoder, "nll")(variables, chosen, targets, weights)
    log_probs = np.asarray(call(encoder, "log_probs")(variables, chosen))
    expected = -(log_probs[0, 0, 3] + log_probs[0, 1, 5] + log_probs[1, 0, 7])
    np.testing.assert_allclose(nll.total, expected, rtol=1e-6)
    assert nll.weight == 3 and log_probs.shape == (2, 3, VOCAB)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=1e-5)
    logits = np.asarray(call(encoder, "logits")(variables, chosen))
    np.testing.assert_allclose(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), log_probs, atol=1e-5)


def test_classes_are_read_from_the_pooled_first_token(texts):
    encoder, variables = make(CLASSES)
    tokens, mask = texts
    logits = apply(encoder, variables, tokens, mask)
    hidden, _ = jax.tree.map(np.asarray, call(encoder, "hidden_states")(variables, tokens, mask=mask))
    params = variables["params"]
    pooled = np.tanh(hidden[:, 0] @ params["pooler"]["kernel"] + params["pooler"]["bias"][None])
    expected = pooled @ params["head"]["classifier"]["kernel"] + params["head"]["classifier"]["bias"][None]
    assert logits.shape == (2, 1, 3)
    np.testing.assert_allclose(logits[:, 0], expected, atol=1e-5)


def test_spans_are_two_softmaxes_over_tokens(texts):
    encoder, variables = make(SPANS)
    output = apply(encoder, variables, *texts)
    targets, weights = np.array([[1, 4], [0, 3]]), np.array([[1, 1], [0, 0]], np.float32)
    nll = call(encoder, "nll")(variables, output, targets, weights)
    log_probs = np.asarray(call(encoder, "log_probs")(variables, output))
    np.testing.assert_allclose(nll.total, -(log_probs[0, 0, 1] + log_probs[0, 1, 4]), rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=1e-5)


def test_gradients_are_finite_where_a_row_has_no_token(texts):
    encoder, variables = make(SPANS)
    tokens, _ = texts
    mask = jnp.array([[True] * 6, [False] * 6])

    def loss(params):
        output, _, _ = encoder.apply({"params": params}, tokens, encoder.init_state(2), mask=mask)
        weights = jnp.array([[1.0, 1.0], [0.0, 0.0]])
        return encoder.apply({"params": params}, output, jnp.zeros((2, 2), int), weights, method="nll").total

    gradients = jax.jit(jax.grad(loss))(variables["params"])
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(gradients))


def test_token_types_matter_and_are_optional(texts):
    encoder, variables = make(CLASSES)
    tokens, mask = texts
    types = jnp.array([[0, 0, 1, 1, 1, 1]] * 2)
    assert not np.allclose(
        apply(encoder, variables, tokens, mask, token_types=types), apply(encoder, variables, *texts)
    )
    assert encoder.select_extras({"token_types": types, "label": types}) == {"token_types": types}
    without, _ = make(CLASSES, num_token_types=0)
    assert without.select_extras({"token_types": types}) == {}


def test_mean_pooling_by_hand():
    hidden = jnp.array([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]], [[1.0, 1.0]] * 3])
    mask = jnp.array([[True, True, False], [False] * 3])
    np.testing.assert_allclose(mean_pooling(hidden, mask), [[5**-0.5, 2 * 5**-0.5], [0, 0]], rtol=1e-6)


def test_dropout_draws_only_in_training(texts):
    model = make_model()
    model.dropout = model.attention_dropout = 0.5
    encoder = build(model, CLASSES, VOCAB)
    variables = random_variables(encoder)
    rngs = lambda seed: {"dropout": jax.random.key(seed)}
    train = jax.jit(
        lambda seed: encoder.apply(variables, texts[0], encoder.init_state(2), deterministic=False, rngs=rngs(seed))[0]
    )
    assert not np.allclose(train(0), train(1))
    np.testing.assert_array_equal(train(0), train(0))


def test_a_text_longer_than_the_positions_is_refused():
    encoder, variables = make(None)
    with pytest.raises(ValueError, match="a text of 9 tokens given, allowed: up to 8, the positions"):
        encoder.apply(variables, jnp.zeros((1, 9), jnp.int32), encoder.init_state(1))


def test_a_decoder_is_no_encoder():
    with pytest.raises(ValueError, match=r"model\.attention: given FullAttention, allowed: Bidirectional"):
        build(config.Model(), None, VOCAB)
    with pytest.raises(ValueError, match=r"model\.attention: given Bidirectional, allowed: a decoder's"):
        make_language_model(make_model(), VOCAB)
    assert make_task(config.Config()).head() is None


def test_memory_tokens_stand_before_every_text(texts):
    tokens, mask = texts
    model = make_model()
    model.memory_tokens = config.MemoryTokens(num_tokens=3)
    encoder = build(model, MLM, VOCAB)
    variables = random_variables(encoder)
    rows = np.random.default_rng(3).normal(size=(3, 8)).astype(np.float32)

    @jax.jit
    def compiled(rows, tokens):
        changed = {"params": {**variables["params"], "memory_tokens": rows}}
        hidden, aux = encoder.apply(changed, tokens, mask=mask, method="hidden_states")
        return hidden, aux.arrays["memory"]

    read = lambda *arguments: jax.tree.map(np.asarray, compiled(*arguments))
    hidden, memory = read(rows, tokens)
    assert hidden.shape == (2, 6, 8) and memory.shape == (2, 3, 8)
    # They have no order: moving them moves what comes out of them, and texts do not notice.
    moved, other = read(rows[::-1], tokens)
    np.testing.assert_allclose(np.where(mask[..., None], moved, 0), np.where(mask[..., None], hidden, 0), atol=1e-5)
    np.testing.assert_allclose(other, memory[:, ::-1], atol=1e-5)
    assert np.abs(read(2 * rows, tokens)[0] - hidden).max() > 1e-2
    # They read the text, but not its padding, and not the other rows of the batch.
    other_tokens = np.array(tokens)
    other_tokens[1, 4:] += 1
    other_tokens[0, 0] += 1
    changed = read(rows, other_tokens)[1]
    np.testing.assert_array_equal(changed[1], memory[1])
    assert np.abs(changed[0] - memory[0]).max() > 1e-3
    plain = shapes_of(build(make_model(), MLM, VOCAB), 6)
    assert variables["params"].keys() - plain["params"].keys() == {"memory_tokens"}
