"""The encoder-decoder: decoding equals reading, sources and their padding, its losses, published sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.models.factory import make_encoder_decoder
from tests.reference.parameters import random_params

DIM, VOCAB, ROWS, LENGTH, SOURCE = 8, 7, 2, 6, 5
SMALL = {"dim": DIM, "num_heads": 2, "num_layers": 2, "encoder_layers": 1, "feed_forward": config.Dense(dim=12)}
KINDS = {
    "softmax": config.EncoderDecoder(**SMALL),
    "linear states": config.EncoderDecoder(
        **SMALL,
        norm="pre",
        attention=config.MemSizer(num_slots=3),
        cross_attention=config.T2R(num_features=4),
        memory_tokens=config.MemoryTokens(num_tokens=2, kind="control", share_memory_layer=True),
    ),
    "random features": config.EncoderDecoder(
        **SMALL,
        attention=config.RFA(num_directions=4, gate=True),
        cross_attention=config.RFA(num_directions=4),
        memory_tokens=config.MemoryTokens(num_tokens=2),
    ),
}
SOME = [pytest.param(kind, marks=[] if kind == "linear states" else pytest.mark.laws) for kind in KINDS]
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)), jnp.int32)
IDS = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (ROWS, SOURCE)), jnp.int32)
MASK = jnp.arange(SOURCE)[None, :] < jnp.array([SOURCE, 3])[:, None]
EXTRAS = {"source": IDS, "source_mask": MASK}


@functools.cache
def small(kind: str):
    model = make_encoder_decoder(KINDS[kind], VOCAB)
    keys = {"params": jax.random.key(0), "features": jax.random.key(1)}
    init = lambda: model.init(keys, TOKENS, model.init_state(ROWS), start_of_document=jnp.ones(ROWS, bool))
    shapes = jax.eval_shape(init)
    return model, {name: random_params(tree, dtype=np.float32) for name, tree in shapes.items()}


@functools.partial(jax.jit, static_argnums=0)
def read(model, variables, tokens, state, start, extras, mask=None):
    return model.apply(variables, tokens, state, start_of_document=start, mask=mask, extras=extras)


@pytest.mark.parametrize("kind", SOME)
def test_decoding_equals_reading(kind):
    model, variables = small(kind)
    start = jnp.ones(ROWS, bool)
    hidden, state, aux = read(model, variables, TOKENS, model.init_state(ROWS), start, EXTRAS)
    assert state.position.tolist() == [LENGTH] * ROWS
    assert ("encoder/memory" in aux.arrays) == (kind != "softmax")
    decode = jax.jit(lambda v, x, s, a: model.apply(v, x, s, active=a, method="decode"))
    current = jax.jit(lambda v: model.apply(v, IDS, MASK, LENGTH, method="start_decoding"))(variables)
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(current)]
    done, outputs = np.zeros(ROWS, int), [[] for _ in range(ROWS)]
    for step in range(2 * LENGTH):
        active = (done < LENGTH) & ((step + np.arange(ROWS)) % (np.arange(ROWS) + 1) == 0)  # rows out of phase
        token = TOKENS[jnp.arange(ROWS), np.minimum(done, LENGTH - 1)][:, None]
        y, current = decode(variables, token, current, jnp.asarray(active))
        for row in np.flatnonzero(active):
            outputs[row].append(np.asarray(y[row, 0]))
        done += active
    np.testing.assert_allclose(np.array(outputs), hidden, rtol=0, atol=2e-5)
    assert decode._cache_size() == 1 and [leaf.nbytes for leaf in jax.tree.leaves(current)] == sizes


def test_a_decoder_may_read_the_memory_alone():
    model, variables = small("random features")
    encode = lambda model: jax.jit(lambda v: model.apply(v, IDS, MASK, method="encode"))(variables)
    both, seen, _ = encode(model)
    alone, all_seen, _ = encode(model.clone(decoder_reads="memory"))
    assert both.shape[1] == 2 + SOURCE and seen[:, 2:].tolist() == MASK.tolist()
    np.testing.assert_allclose(alone, both[:, :2], rtol=0, atol=1e-6)
    assert all_seen.shape == (ROWS, 2) and all_seen.all()


@pytest.mark.parametrize("kind", SOME)
def test_padding_of_the_source_has_no_effect_and_the_source_has(kind):
    model, variables = small(kind)

    def run(ids):
        return read(model, variables, TOKENS, model.init_state(ROWS), jnp.ones(ROWS, bool), {**EXTRAS, "source": ids})[
            0
        ]

    plain = run(IDS)
    np.testing.assert_array_equal(run(jnp.where(MASK, IDS, 1 + IDS % 3)), plain)
    assert not np.allclose(run((IDS + 1) % VOCAB), plain, atol=1e-3)


def test_a_long_target_goes_on_in_the_next_segment():
    model, variables = small("linear states")
    start, new = jnp.ones(ROWS, bool), jnp.zeros(ROWS, bool)
    whole, end, _ = read(model, variables, TOKENS, model.init_state(ROWS), start, EXTRAS)
    first, state, _ = read(model, variables, TOKENS[:, :3], model.init_state(ROWS), start, EXTRAS)
    second, state, _ = read(model, variables, TOKENS[:, 3:], state, new, EXTRAS)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), whole, rtol=0, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), state, end)
    again = read(model, variables, TOKENS, state, start, EXTRAS)[0]
    np.testing.assert_array_equal(again, whole)


def test_training_smooths_the_targets_and_scoring_does_not():
    model, variables = small("softmax")
    hidden = jnp.asarray(np.random.default_rng(2).normal(size=(ROWS, LENGTH, DIM)), jnp.float32)
    apply = lambda method, *args: jax.jit(lambda v: model.apply(v, hidden, *args, method=method))(variables)
    log_probs, weights = apply("log_probs"), jnp.ones((ROWS, LENGTH)).at[1, 2:].set(0)
    own = jnp.take_along_axis(log_probs, TOKENS[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(apply("token_nll", TOKENS), -own, atol=1e-5)
    smoothed = -(0.9 * own + 0.1 * log_probs.mean(axis=-1))
    total = apply("nll", TOKENS, weights)
    np.testing.assert_allclose(total.total, (smoothed * weights).sum(), rtol=1e-5)
    assert total.weight == LENGTH + 2


def test_a_batch_without_a_source_is_refused():
    model, variables = small("softmax")
    with pytest.raises(ValueError, match=r"extras: given \[\], source, source_mask missing: use sentence pairs"):
        read(model, variables, TOKENS, model.init_state(ROWS), jnp.ones(ROWS, bool), None)


def size_of(**fields) -> int:
    settings = config.EncoderDecoder(dim=1024, num_layers=6, num_heads=16, **fields)
    model = make_encoder_decoder(settings, 32_768)
    init = lambda: model.init(
        {"params": jax.random.key(0)},
        jnp.zeros((1, 2), jnp.int32),
        model.init_state(1),
        start_of_document=jnp.ones(1, bool),
    )
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init)["params"]))


def test_sizes_of_the_published_translation_models():
    baseline = size_of()
    assert baseline == pytest.approx(209_911_808, rel=5e-4)  # published with biases in attention: 18 x 4 x 1,024 more
    assert 209_911_808 - baseline == 18 * 4 * 1024
    memsizer = size_of(
        attention=config.MemSizer(num_slots=4, query_init_scale=8, source_init_scale=8),
        cross_attention=config.MemSizer(num_slots=32, query_init_scale=8, source_init_scale=8),
    )
    assert 0.15 < 1 - memsizer / baseline < 0.17
    assert size_of(memory_tokens=config.MemoryTokens(num_tokens=20)) - baseline == 20 * 1024
