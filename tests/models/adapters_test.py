import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import (
    GPT2,
    RFA,
    Bidirectional,
    Classification,
    Compressive,
    Config,
    Data,
    Dense,
    EncoderDecoder,
    FullAttention,
    InfinityFormer,
    LoRA,
    Memformer,
    Memorizing,
    Model,
    Rotary,
    Templates,
    Training,
    TransformerXL,
    WordPiece,
)
from memjax.models.adapters import adapted_matrices, is_adapter, merge_adapters
from memjax.models.factory import make_model
from memjax.settings.checks import validate
from memjax.tasks.interface import make_task
from memjax.training.train_state import init_variables
from memjax.training.variables import join_arrays, name_arrays

VOCAB, LENGTH = 11, 6
HOSTS = {
    "gpt2": GPT2(num_positions=LENGTH),
    "gpt2_compressed": GPT2(num_positions=LENGTH, compressed_memory_length=4, compression_rate=2),
    "transformer_xl": TransformerXL(memory_length=4),
    "compressive": Compressive(memory_length=4, compressed_memory_length=4, compression_rate=2),
    "memorizing": Memorizing(layers_with_memory=(1,), memory_length=16, num_neighbors=2, cache_length=4),
    "infinity_former": InfinityFormer(num_basis=8, memory_length=LENGTH),
    "full": FullAttention(),
    "rotary": Rotary(memory_length=4, sinks=1, key_heads=1, bias=True, query_key_norm="head"),
    "encoder": Bidirectional(num_positions=LENGTH),
}


def described(host, *, num_layers=2, activation="relu", **lora):
    # Narrower products are fused into what reads them, and then rounded in another way.
    feed_forward = Dense(dim=96, activation=activation)
    sizes = {"dim": 64, "num_layers": num_layers, "num_heads": 2, "scan_layers": num_layers > 2}
    model = Model(**sizes, attention=HOSTS[host], feed_forward=feed_forward)
    data, training = Data(segment_length=LENGTH), Training(lora=LoRA(**lora))
    if host != "encoder":
        return Config(model=model, data=data, training=training)
    data = dataclasses.replace(data, source=Templates(), tokenizer=WordPiece())
    return Config(model=model, data=data, training=training, task=Classification())


def built(config):
    return make_model(config, VOCAB, make_task(config).head(), vocab_multiple=1)


def drawn(model, *, b=0.0, seed=0):
    """Variables of a model with random values, and those of B times `b`."""
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))

    def draw(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        values = np.random.default_rng([seed, *name.encode()]).normal(0, 0.1, leaf.shape)
        return jnp.asarray(values * (b if name.endswith("/b") else 1), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def reader(model):
    """A function from variables to the logits of a few segments, one after the other."""

    @jax.jit
    def read(variables, tokens, state, start):
        output, state, _ = model.apply(variables, tokens, state, start_of_document=start)
        return model.apply(variables, output, method="logits"), state

    def outputs(variables):
        rng, state, logits = np.random.default_rng(0), model.init_state(2), []
        for index in range(3):
            tokens = jnp.asarray(rng.integers(0, VOCAB, (2, LENGTH)), jnp.int32)
            scores, state = read(variables, tokens, state, jnp.full(2, index == 0))
            logits.append(scores)
        return np.stack(logits)

    return outputs


def without_adapters(config):
    return built(dataclasses.replace(config, training=dataclasses.replace(config.training, lora=LoRA())))


def arrays_of(variables, model):
    return name_arrays(variables, model.layer_groups())


CASES = [(host, {}) for host in HOSTS]
CASES += [("rotary", {"activation": "swiglu"})]
CASES += [("transformer_xl", {"num_layers": 4, "layers": (-1,)}), ("gpt2", {"activation": "swiglu"})]
CASES += [("encoder", {"targets": ("attention/query", "attention/value"), "rank_stabilized": True})]
QUICK = (("gpt2", {}),)


@pytest.mark.parametrize(
    "host, options",
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.laws) for case in CASES],
    ids=lambda value: value if isinstance(value, str) else "_".join(value),
)
def test_new_adapters_change_no_bit_and_merged_ones_give_the_same_logits(host, options):
    config = described(host, rank=3, **options)
    validate(config)
    model, plain = built(config), without_adapters(config)
    new, groups, read, read_plain = drawn(model), plain.layer_groups(), reader(model), reader(plain)
    base = {name: leaf for name, leaf in arrays_of(new, model).items() if not is_adapter(name)}
    expected = read_plain(join_arrays(base, groups))
    np.testing.assert_array_equal(read(new), expected)

    trained = drawn(model, b=1.0)
    logits = read(trained)
    assert np.abs(logits - expected).max() > 1e-2
    merged = merge_adapters(arrays_of(trained, model), model)
    assert merged.keys() == base.keys()
    np.testing.assert_allclose(read_plain(join_arrays(merged, groups)), logits, rtol=1e-3, atol=1e-4)


def test_layers_that_do_not_run_have_no_adapters():
    config = described("encoder", rank=2, num_layers=3)
    config.model.first_trained_layer, config.model.scan_layers = 2, False
    parts = {matrix.part for matrix, _ in adapted_matrices(built(config))}
    assert parts == {"stack/layer_02/attention", "stack/layer_02/feed_forward"}


@pytest.mark.parametrize(
    "model, message",
    [
        (
            Model(attention=RFA()),
            "training.lora.targets: given 'all-linear' with RFAAttention, allowed: targets in feed",
        ),
        (
            Memformer(),
            "training.lora.rank: given 2, allowed: 0 with Memformer; adapters need a language model or a text",
        ),
        (EncoderDecoder(), "training.lora.rank: given 2, allowed: 0 with EncoderDecoder; adapters need"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_without_such_layers_are_refused(model, message):
    config = Config(model=model, training=Training(lora=LoRA(rank=2)))

    def check_and_build():
        config.training.lora.check("training.lora.", config)
        built(config)

    with pytest.raises(ValueError, match=message):
        check_and_build()
