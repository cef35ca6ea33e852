import dataclasses

import pytest

from memjax.config import (
    GPT2,
    RFA,
    T2R,
    AdaptiveSoftmax,
    Bidirectional,
    Compressive,
    Dense,
    EncoderDecoder,
    FullAttention,
    InfinityFormer,
    LinearTransformer,
    Memformer,
    Memorizing,
    MemoryTokens,
    MemSizer,
    Model,
    ProductKey,
    TransformerXL,
)
from memjax.models.factory import make_encoder_decoder, make_language_model, make_memformer, make_text_encoder
from memjax.models.layer_factory import make_attention, make_stack


def values_of(part) -> dict:
    """Fields of settings, or of a module and the modules in it."""
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    inner = [value for value in values.values() if dataclasses.is_dataclass(value)]
    return {name: value for one in inner for name, value in values_of(one).items()} | values


@pytest.mark.parametrize(
    "part, elsewhere",
    [
        (FullAttention(scale_init=2.0), {"final_norm"}),
        (TransformerXL(memory_length=3, tied_biases=True), {"final_norm"}),
        (Compressive(compression="max", norm="pre_sonnet"), {"final_norm", "loss_weight"}),
        (
            Memorizing(layers_with_memory=(), local_window=3, retrieval="bucket", dropout_on="inputs"),
            {"layers_with_memory", "compatibility"},
        ),
        (
            InfinityFormer(ridge=2.0, norm="pre"),
            {*("base_attention", "layers_with_memory", "final_norm"), "num_positions", "kl_weight", "kl_over_layers"},
        ),
        (GPT2(compressed_memory_length=8, compression_rate=2), {"num_positions", "loss_weight"}),
        (LinearTransformer(bias=False), {"final_norm"}),
        (RFA(gate=True), {"final_norm"}),
        (T2R(num_features=3), {"final_norm"}),
        (MemSizer(num_slots=3), {"final_norm"}),
    ],
    ids=lambda part: type(part).__name__,
)
def test_every_setting_of_an_attention_reaches_its_module(part, elsewhere):
    given, module = values_of(part), values_of(make_attention(Model(attention=part), 0, segment_length=4))
    assert given.keys() - module.keys() == elsewhere
    never = {"reset_after_tokens": None}  # 0 tokens, as settings say it
    assert {name: module[name] for name in given if name in module} == {
        name: never.get(name, value) for name, value in given.items() if name in module
    }


def test_every_setting_of_a_feed_forward_part_reaches_its_module():
    part = ProductKey(layers=(1,), num_keys=8, memory_heads=3, dim=5, activation="swiglu", dense_scale=0.5)
    plain, with_memory, *_ = make_stack(Model(feed_forward=part, num_layers=4)).layers
    assert plain.feed_forward.memory is None and plain.feed_forward.hidden_dim == 5
    module = values_of(with_memory.feed_forward)
    assert {name for name in values_of(part) if name not in module} == {"layers", "memory_heads"}
    assert {module[name] for name in ("activation", "num_keys", "num_heads", "dense_scale")} == {"swiglu", 8, 3, 0.5}


@pytest.mark.parametrize(
    "make, model, beside",
    [
        (make_encoder_decoder, EncoderDecoder(dim=64), 1.5**0.5),  # embeddings of length 1, and sines
        (make_encoder_decoder, EncoderDecoder(dim=64, positions="none", scale_embeddings=False), 0.125),
        (make_language_model, Model(dim=64, attention=TransformerXL()), 0.02 * 8),
        (
            make_language_model,
            Model(dim=64, attention=TransformerXL(), output=AdaptiveSoftmax(cutoffs=(4,), div_val=2)),
            0.02 * 0.01 * 8 * 8,
        ),
        (lambda model, size: make_text_encoder(model, None, size), Model(attention=Bidirectional()), 1.0),  # normed
    ],
)
def test_memory_tokens_are_as_long_as_what_stands_beside_them(make, model, beside):
    for own, expected in ((None, beside), (0.02, 0.02)):
        made = make(dataclasses.replace(model, memory_tokens=MemoryTokens(init_stddev=own)), 10)
        fields = values_of(made.encoder) if model.translates else values_of(made)
        assert fields["init_stddev" if model.translates else "memory_stddev"] == pytest.approx(expected)


def test_a_memformer_has_the_feed_forward_part_of_its_settings():
    model = make_memformer(Memformer(feed_forward=Dense(bias=False, dim=6)), 10, segment_length=4)
    parts = [layer.feed_forward for layer in (*model.encoder.layers, *model.decoder)]
    assert {(part.bias, part.hidden_dim) for part in parts} == {(False, 6)}
