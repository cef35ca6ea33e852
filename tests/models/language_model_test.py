"""The language model as a whole: against float64 loops, its outputs and taps, precision, dropout, published sizes."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.models.factory import make_language_model
from memjax.models.transformer import TAPS
from memjax.typing import EmptyState
from tests.reference import memorizing as reference
from tests.reference.parameters import as_float64, random_params

DIM, HEADS, VOCAB, LENGTH, ROWS, SEGMENTS = 8, 2, 11, 4, 2, 3
SMALL = {"dim": DIM, "num_heads": HEADS, "feed_forward": config.Dense(dim=12)}
MEMORY = {"memory_length": 6, "num_neighbors": 2, "cache_length": 3, "num_buckets": 4, "max_distance": 6}


def memorizing(layers=(1,), num_layers: int = 3, **fields) -> config.Model:
    return config.Model(
        **SMALL, num_layers=num_layers, attention=config.Memorizing(layers_with_memory=layers, **MEMORY), **fields
    )


def shapes_of(module):
    tokens, start = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, bool)
    state = jax.eval_shape(lambda: module.init_state(1))
    init = lambda state: module.init({"params": jax.random.key(0)}, tokens, state, start_of_document=start)
    return jax.eval_shape(init, state)["params"]


def document(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, (ROWS, SEGMENTS * LENGTH)).astype(np.int32)


# The whole model against loops, with every tap

FEATURES = tuple(f"layer_01/{tap}" for tap in TAPS) + ("layer_-1/output", "output", "output_normed")


@functools.cache
def small_model():
    """Three layers, the middle one with the long memory, in float64."""
    with jax.enable_x64(True):
        module = as_float64(make_language_model(memorizing(), VOCAB, features=FEATURES))
        params = random_params(shapes_of(module))

        @jax.jit
        def run(params, tokens):
            def step(state, batch):
                tokens, start = batch
                hidden, state, aux = module.apply({"params": params}, tokens, state, start_of_document=start)
                log_probs = module.apply({"params": params}, hidden, method="log_probs")
                return state, (hidden, log_probs, aux)

            segments = jnp.moveaxis(tokens.reshape(ROWS, SEGMENTS, LENGTH), 1, 0)
            starts = jnp.arange(SEGMENTS)[:, None] == jnp.zeros((1, ROWS))
            _, out = jax.lax.scan(step, module.init_state(ROWS, jnp.float64), (segments, starts))
            return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1) if leaf.ndim > 1 else leaf, out)

        return params, jax.tree.map(np.asarray, run(params, document()))


def expected_tensors(row: int) -> dict[str, np.ndarray]:
    """Inner tensors of one row, `[tokens, dim]`, by the reference."""
    params, _ = small_model()
    found: dict[str, list] = {}
    layers = [params["stack"][f"layers_{i}"] for i in range(3)]
    fields = {name: value for name, value in MEMORY.items() if name != "num_buckets"}
    rows = [
        reference.Row(layer["attention"], **fields | ({} if i == 1 else {"memory_length": 0}))
        for i, layer in enumerate(layers)
    ]
    for segment in document()[row].reshape(SEGMENTS, LENGTH):
        x = params["vocabulary"]["embedding"][segment] * np.sqrt(DIM)
        for index, layer in enumerate(layers):
            tensors = {"attention_input": x, "attention_input_normed": rms(x, layer["attention"])}
            x, _ = rows[index].read(x)
            part = layer["feed_forward"]
            tensors |= {"feed_forward_input": x, "feed_forward_input_normed": rms(x, part)}
            wide = np.maximum(rms(x, part) @ part["wide"]["kernel"] + part["wide"]["bias"], 0)
            x = x + wide @ part["narrow"]["kernel"] + part["narrow"]["bias"]
            tensors["output"] = x
            for name, value in tensors.items():
                found.setdefault(f"layer_{index:02d}/{name}", []).append(value)
        found.setdefault("output", []).append(x)
        found.setdefault("output_normed", []).append(rms(x, params))
    return {name: np.concatenate(values) for name, values in found.items()}


def rms(x: np.ndarray, params: dict) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * params["layer_norm"]["scale"]


def test_features_are_the_inner_tensors():
    _, (hidden, _, aux) = small_model()
    names = {name.replace("layer_-1", "layer_02") for name in FEATURES}
    assert aux.arrays.keys() == names
    for row in range(ROWS):
        expected = expected_tensors(row)
        for name in names:
            found = aux.arrays[name][row].reshape(-1, DIM)
            np.testing.assert_allclose(found, expected[name], atol=1e-10, err_msg=name)
    np.testing.assert_array_equal(hidden, aux.arrays["output_normed"])


def test_log_probabilities_equal_the_float64_reference():
    params, (_, log_probs, _) = small_model()
    for row in range(ROWS):
        scores = expected_tensors(row)["output_normed"] @ params["vocabulary"]["embedding"].T
        expected = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(log_probs[row].reshape(-1, VOCAB), expected, atol=1e-10)


def test_sums_are_named_by_layer():
    params, (_, _, aux) = small_model()
    assert not aux.losses and set(aux.metrics) == {"layer_01/gate", "layer_01/memorizing/memory_share"}
    gate = 1 / (1 + np.exp(-params["stack"]["layers_1"]["attention"]["gate"]))
    np.testing.assert_allclose(aux.metrics["layer_01/gate"].mean(), gate.mean(), rtol=1e-6)


# Scoring


def scorer(**fields):
    module = make_language_model(config.Model(**SMALL, num_layers=1, **fields), VOCAB)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, LENGTH, DIM)), jnp.float32)
    return module, hidden, random_params(shapes_of(module), dtype=np.float32)


@pytest.mark.parametrize(
    "output",
    (config.Softmax(bias=True), config.AdaptiveSoftmax(cutoffs=(4, 7), div_val=2, tie_projections=(False, True, True))),
)
def test_nats_are_those_of_log_probs_and_padding_reaches_nothing(output):
    module, hidden, params = scorer(output=output)
    targets = jnp.asarray(document()[:, :LENGTH])
    weights = jnp.asarray([[1.0, 1.0, 0.5, 0.0], [1.0, 0.0, 1.0, 1.0]])
    poisoned = jnp.where(weights[..., None] == 0, jnp.nan, hidden)
    bad_targets = jnp.where(weights == 0, -1, targets)

    @jax.jit
    def both(params, hidden):
        def loss(params, hidden):
            total = module.apply({"params": params}, hidden, bad_targets, weights, method="nll")
            return total.total, total

        gradient, total = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, hidden)
        return gradient, total, module.apply({"params": params}, hidden, method="log_probs")

    (by_params, by_hidden), total, log_probs = both(params, poisoned)
    nats = -np.take_along_axis(np.asarray(log_probs), np.asarray(targets)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(total.total, np.where(weights > 0, nats * weights, 0).sum(), rtol=1e-5)
    assert total.weight == 5.5 and total.total.dtype == jnp.float32
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(by_params))
    assert np.isfinite(by_hidden).all()
    assert (np.abs(by_hidden).max(axis=-1) > 0).tolist() == (np.asarray(weights) > 0).tolist()


def test_output_embeddings_are_unscaled():
    module, _, params = scorer()
    ids = jnp.asarray(document()[:, :3])
    found = module.apply({"params": params}, ids, method="embed_output")
    np.testing.assert_array_equal(found, params["vocabulary"]["embedding"][ids])


# Degenerate cases and fields


def fields_of(part) -> dict:
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in ("parent", "name")}


def test_full_attention_is_the_memorizing_model_without_memory_and_cache():
    plain = make_language_model(config.Model(**SMALL), VOCAB)
    none = config.Memorizing(memory_length=0, cache_length=0)
    same = make_language_model(config.Model(**SMALL, attention=none), VOCAB)
    for one, other in zip(plain.stack.layers, same.stack.layers, strict=True):
        assert fields_of(one.feed_forward) == fields_of(other.feed_forward)
        different = fields_of(one.attention).items() ^ fields_of(other.attention).items()
        assert {name for name, _ in different} <= {"num_neighbors"}  # of a memory that is not there
    assert not jax.tree.leaves(plain.init_state(ROWS)) and not jax.tree.leaves(same.init_state(ROWS))


def test_without_memory_all_layers_form_one_group():
    attention = config.Memorizing(memory_length=0, cache_length=4)
    module = make_language_model(config.Model(**SMALL, num_layers=8, attention=attention), VOCAB)
    assert module.stack.layer_groups() == ((0, 8),)


@pytest.mark.parametrize(
    "attention, norm",
    [
        (config.FullAttention(), "rms"),
        (config.Memorizing(memory_length=64), "rms"),
        (config.TransformerXL(norm="post"), ""),
        (config.TransformerXL(norm="pre"), "layer"),
        (config.TransformerXL(norm="pre", final_norm=False), ""),
        (config.Compressive(norm="post"), ""),
        (config.Compressive(norm="pre"), "layer"),
        (config.Compressive(norm="pre_sonnet"), "layer"),
    ],
)
def test_final_norm(attention, norm):
    module = make_language_model(config.Model(**SMALL, attention=attention), VOCAB)
    assert module.final_norm == norm
    assert ("layer_norm" in shapes_of(module)) == bool(norm)


def test_state_needs_no_parameters_and_has_the_configured_dtype():
    module = make_language_model(memorizing(memory_dtype="bfloat16"), VOCAB)
    state = module.init_state(ROWS)
    assert state.output == EmptyState()
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(state)}
    assert dtypes == {"bfloat16", "bool", "int32"}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(module.init_state(ROWS, jnp.float32))} == {
        "float32",
        "bool",
        "int32",
    }


# Precision and dropout


@pytest.mark.parametrize(
    "attention",
    (
        config.TransformerXL(memory_length=5),
        pytest.param(config.Memorizing(layers_with_memory=(), **MEMORY), marks=pytest.mark.laws),
    ),
)
def test_bfloat16_computation(attention):
    model = {**SMALL, "num_layers": 2, "attention": attention, "scan_layers": True}
    exact = make_language_model(config.Model(**model), VOCAB)
    rough = make_language_model(config.Model(**model, compute_dtype="bfloat16", memory_dtype="bfloat16"), VOCAB)
    params = random_params(shapes_of(exact), dtype=np.float32)
    assert jax.tree.map(lambda leaf: leaf.dtype, shapes_of(rough)) == jax.tree.map(lambda leaf: leaf.dtype, params)
    tokens = jnp.asarray(document()[:, :LENGTH])

    @functools.partial(jax.jit, static_argnums=0)
    def run(module, params):
        def step(state, start):
            hidden, state, _ = module.apply({"params": params}, tokens, state, start_of_document=start)
            return state, (hidden, module.apply({"params": params}, hidden, method="log_probs"))

        starts = jnp.array([[True] * ROWS, [False] * ROWS])
        state, (hidden, log_probs) = jax.lax.scan(step, module.init_state(ROWS), starts)
        return hidden, log_probs, state

    hidden, log_probs, state = run(rough, params)
    assert hidden.dtype == jnp.bfloat16 and log_probs.dtype == jnp.float32
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(lambda leaf: leaf.dtype, rough.init_state(ROWS))
    assert np.isfinite(log_probs).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-5)
    if isinstance(attention, config.TransformerXL):  # which neighbours are nearest may change with the rounding
        assert np.abs(log_probs - run(exact, params)[1]).mean() < 0.1


def test_dropout_follows_its_key_and_needs_it():
    model = config.Model(**SMALL, num_layers=2, scan_layers=True, dropout=0.5)
    module = make_language_model(model, VOCAB)
    params = random_params(shapes_of(module), dtype=np.float32)
    tokens, start = jnp.asarray(document()[:, :LENGTH]), jnp.ones(ROWS, bool)
    state = module.init_state(ROWS)

    @jax.jit
    def run(params, seed):
        rngs = {"dropout": jax.random.key(seed, impl="unsafe_rbg")}  # compiles faster than the default
        named = {"start_of_document": start, "deterministic": False, "rngs": rngs}
        return module.apply({"params": params}, tokens, state, **named)[0]

    first, again, other = (run(params, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert (np.asarray(first) == 0).any()  # the last dropout is on the hidden states that are scored
    with pytest.raises(Exception, match="dropout"):
        jax.eval_shape(
            lambda: module.apply({"params": params}, tokens, state, start_of_document=start, deterministic=False)
        )


def test_layers_of_a_scan_drop_different_entries():
    # One layer of width 1 input to output: with attention and embeddings off, what is dropped shows in the output.
    module = make_language_model(config.Model(**SMALL, num_layers=3, scan_layers=True, dropout=0.5), VOCAB).stack
    x, start = jnp.zeros((ROWS, LENGTH, DIM)), jnp.ones(ROWS, bool)
    state = module.init_state(ROWS)
    shapes = jax.eval_shape(lambda: module.init({"params": jax.random.key(0)}, x, state, start_of_document=start))[
        "params"
    ]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    params["layers_0"]["feed_forward"]["narrow"]["bias"] += np.array([1.0, 10.0, 100.0], np.float32)[:, None]
    rngs = {"dropout": jax.random.key(0, impl="unsafe_rbg")}
    run = jax.jit(
        lambda p: module.apply({"params": p}, x, state, start_of_document=start, deterministic=False, rngs=rngs)
    )
    y = np.asarray(run(params)[0]) / 2  # digits: 1 where the layer kept its entry
    kept = [np.round(y / 10**layer) % 10 for layer in range(3)]
    assert all(set(np.unique(digit)) == {0, 1} for digit in kept)
    assert not (kept[0] == kept[1]).all() and not (kept[1] == kept[2]).all()


# Published sizes

WIKITEXT_CUTOFFS, LM1B_CUTOFFS = (20000, 40000, 200000), (60000, 100000, 640000)


def transformer_xl(layers, dim, heads, head_dim, hidden, output, **fields) -> config.Model:
    attention = config.TransformerXL(memory_length=8, tied_biases=True, **fields)
    dense = config.Dense(dim=hidden)
    shape = {"num_layers": layers, "dim": dim, "num_heads": heads, "head_dim": head_dim}
    return config.Model(**shape, feed_forward=dense, attention=attention, output=output)


def lm1b(layers, dim, heads, head_dim, hidden) -> config.Model:
    output = config.AdaptiveSoftmax(cutoffs=LM1B_CUTOFFS, div_val=4)
    return transformer_xl(layers, dim, heads, head_dim, hidden, output)


def large(**fields) -> config.Model:
    ties = (False, True, True, True)
    output = config.AdaptiveSoftmax(cutoffs=WIKITEXT_CUTOFFS, div_val=4, tie_projections=ties)
    model = transformer_xl(18, 1024, 16, 64, 4096, output)
    for name, value in fields.items():
        setattr(model.attention, name, value)
    return model


PUBLISHED = {
    "WikiText-103 base": (
        transformer_xl(16, 410, 10, 41, 2100, config.AdaptiveSoftmax(cutoffs=WIKITEXT_CUTOFFS)),
        267_735,
        151_107_538,
        2_566_650,
    ),
    "WikiText-103 large": (large(), 267_735, 285_170_506, 13_640_704),
    "WikiText-103 large, untied biases": (large(tied_biases=False), 267_735, 285_205_322, 13_640_704 + 2048),
    "enwik8 12 layers": (transformer_xl(12, 512, 8, 64, 2048, config.Softmax(bias=True)), 204, 41_055_436, 3_412_480),
    "enwik8 24 layers": (
        transformer_xl(24, 1024, 8, 128, 3072, config.Softmax(bias=True)),
        204,
        277_231_820,
        11_542_528,
    ),
    "text8 24 layers": (transformer_xl(24, 1024, 8, 128, 3072, config.Softmax(bias=True)), 27, 277_050_395, 11_542_528),
    "One Billion Word, repository": (lm1b(18, 1024, 8, 128, 4096), 793_471, 357_812_082, None),
    "One Billion Word, paper": (lm1b(20, 1024, 8, 128, 6144), 793_471, 469_020_530, None),
    "One Billion Word, large": (lm1b(24, 1280, 16, 80, 8192), 793_471, 841_295_982, None),
}


def count(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.laws if model.num_layers > 16 else [])
        for name, (model, *_) in PUBLISHED.items()
    ],
)
def test_published_parameter_counts_of_transformer_xl(name):
    model, vocab_size, total, per_layer = PUBLISHED[name]
    params = shapes_of(make_language_model(model, vocab_size))
    assert count(params) == total
    if per_layer:
        assert count(params["stack"]["layers_0"]) == per_layer * model.num_layers


def test_published_parameter_count_of_the_memorizing_transformer():
    def sizes(memory_length, compatibility="meliad"):
        attention = config.Memorizing(memory_length=memory_length, compatibility=compatibility)
        shape = {"num_layers": 12, "dim": 1024, "num_heads": 8, "head_dim": 128, "attention": attention}
        params = shapes_of(make_language_model(config.Model(**shape, feed_forward=config.Dense(bias=False)), 32_000))
        return count(params) - count(params["vocabulary"]), params

    total, params = sizes(8192)
    assert total == 151_023_464  # the code has no position table in the memory layer
    layer = params["stack"]["layers_8"]
    assert count(layer) == 12_584_960 + 8 + 8  # scale and gate of each head
    assert layer["attention"]["gate"].shape == (8,)
    assert sizes(0)[0] == total + 8 * 32 - 8  # without the memory: no gates, and the position table is back
    assert sizes(8192, "paper")[0] == total + 8 * 32


# Errors


def test_unknown_parts_are_refused():
    for field, allowed in (("attention", "Attention"), ("output", "Output")):
        model = config.Model(**SMALL)
        setattr(model, field, config.Data())
        with pytest.raises(ValueError, match=rf"model\.{field}: given Data, allowed: one of memjax\.config\.{allowed}"):
            make_language_model(model, VOCAB)
