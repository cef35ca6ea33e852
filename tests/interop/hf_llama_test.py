"""Llama and its kin: segments with a memory, decoding, and the keys of rotary positions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.interop.families import FAMILIES, family_of_weights
from memjax.interop.hf_llama import read_positions, write_positions
from memjax.models.factory import make_language_model
from tests.interop import variants
from tests.interop.variants_test import LIMIT, ROTARY, difference, make

SEGMENT = 4


def with_memory(model: config.Model, length: int, **fields) -> config.Model:
    fields = {"sinks": 0, **fields}
    return dataclasses.replace(model, attention=dataclasses.replace(model.attention, memory_length=length, **fields))


def score(module, params, hidden):
    return module.apply({"params": params}, hidden, method=lambda m, h: m.vocabulary.logits(h))


FAST = (("llama_3", 8, 11), ("mistral", 3, 11))  # a window of 4 keys needs 3 earlier ones, whatever the segments
SLOW = [(name, length - length % SEGMENT, length) for name in ROTARY for length in variants.LENGTHS[1:]]


@pytest.mark.parametrize(
    "name, memory, length", [*FAST, *(pytest.param(*case, marks=pytest.mark.laws) for case in SLOW if case not in FAST)]
)
def test_segments_with_a_memory_give_the_logits_of_the_whole_text(name, memory, length):
    """The goldens are equal with the cache of transformers and without it."""
    family, described, weights = make(name)
    read = family.read_model(described, weights)
    module: Any = make_language_model(with_memory(read.model, memory), variants.VOCAB)
    ids, mask = variants.inputs(length)
    rest = -ids.shape[1] % SEGMENT
    ids, mask = np.pad(ids, [(0, 0), (0, rest)]), np.pad(mask, [(0, 0), (0, rest)])
    state, start, logits = module.init_state(2), jnp.ones(2, bool), []

    @jax.jit
    def step(params, tokens, state, start, mask):
        hidden, state, _ = module.apply({"params": params}, tokens, state, start_of_document=start, mask=mask)
        return score(module, params, hidden), state

    for first in range(0, ids.shape[1], SEGMENT):
        part = slice(first, first + SEGMENT)
        scores, state = step(
            read.params, jnp.asarray(ids[:, part], jnp.int32), state, start, jnp.asarray(mask[:, part])
        )
        start = jnp.zeros(2, bool)
        logits.append(np.asarray(scores))
    assert difference(name, np.concatenate(logits, axis=1)[:, :length], length) <= LIMIT


def test_decoding_gives_the_logits_of_the_whole_text():
    family, described, weights = make("qwen2")
    read = family.read_model(described, weights)
    module = make_language_model(with_memory(read.model, 8), variants.VOCAB)
    ids, _ = variants.inputs()
    state = module.init_decode_state(module.init_state(2), SEGMENT, 2)

    @jax.jit
    def step(params, token, state):
        active = jnp.ones(2, bool)
        hidden, state = module.apply({"params": params}, token, state, active=active, method="decode")
        return score(module, params, hidden), state

    logits = []
    for place in range(variants.LENGTH):
        scores, state = step(read.params, jnp.asarray(ids[:, place, None], jnp.int32), state)
        logits.append(np.asarray(scores))
    assert difference("qwen2", np.concatenate(logits, axis=1)) <= LIMIT


def test_memory_and_segment_of_an_import_hold_what_the_model_was_trained_for():
    for name, length, expected in (
        ("llama", 64, (44, 4, 16)),
        ("llama", 131_072, (1532, 4, 512)),
        ("mistral", 131_072, (1536, 0, 512)),
    ):
        described = {**variants.describe(name), "max_position_embeddings": length}
        model = FAMILIES[name].model_config(described)
        data = FAMILIES[name].data(model, None, False)
        assert (model.attention.memory_length, model.attention.sinks, data.segment_length) == expected


LONGROPE = {"type": "su", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    "described, expected",
    [
        ({}, config.RotaryPositions()),
        ({"rope_theta": 5e5}, config.RotaryPositions(theta=5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 2.0}}, config.RotaryPositions(theta=2.0)),
        ({"rope_theta": 3.0, "partial_rotary_factor": 0.5}, config.RotaryPositions(theta=3.0, fraction=0.5)),
        (
            {"rope_theta": 4.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
            config.LinearPositions(theta=4.0, factor=3.0),
        ),
        (
            {"rope_parameters": {**YARN, "beta_fast": 8.0, "truncate": False}},
            config.YarnPositions(factor=4.0, original_length=32, fast_periods=8.0, whole_pairs=False),
        ),
        (
            {"max_position_embeddings": 77, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            config.YarnPositions(factor=2.0, original_length=77),
        ),
        (
            {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
            config.YarnPositions(factor=4.0, original_length=32, attention_factor=1.0),
        ),
        (
            {"max_position_embeddings": 64, "original_max_position_embeddings": 32, "rope_scaling": LONGROPE},
            config.LongRopePositions(divisors=(3.0, 4.0), attention_factor=(6 / 5) ** 0.5, original_length=32),
        ),
        (
            {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 4096, "attention_factor": 1.5}},
            config.LongRopePositions(divisors=(1.0, 2.0), attention_factor=1.5),
        ),
    ],
)
def test_both_ways_to_describe_positions_are_read_and_written(described, expected):
    assert read_positions(described) == expected
    written = write_positions(expected)
    assert read_positions({"rope_parameters": written["rope_parameters"]}) == expected
    earlier = {name: written[name] for name in ("rope_theta", "rope_scaling")}
    assert read_positions({**earlier, "partial_rotary_factor": expected.fraction}) == expected


@pytest.mark.parametrize(
    "described, message",
    [
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "hf_config.'rope_scaling'.: given type 'dynamic', allowed: 'default', .*; it changes with the",
        ),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'rope_parameters'.: given type 'spiral', allowed: 'default', "),
        ({"rope_scaling": {"type": "linear"}}, "'rope_scaling'.: given .*, allowed: with a factor"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0}},
            "'rope_scaling'.: given .*, allowed: with short_factor",
        ),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor'.: given 0.5, allowed: 1.0 in a Hugging Face Llama"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads'.: given 3, allowed: a divisor of num_attention_heads = 4"),
        ({"hidden_act": "relu"}, "'hidden_act'.: given 'relu', allowed: .*'silu'"),
        (
            {"num_attention_heads": 5, "num_key_value_heads": 1},
            "'num_attention_heads'.: given 5, allowed: a divisor of hidden_size = 24, or with",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(described, message):
    with pytest.raises(ValueError, match=message) as raised:
        FAMILIES["llama"].model_config({**variants.describe("llama"), **described})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "described, message",
    [
        (
            {"model_type": "mixtral", "num_local_experts": 8},
            "given model_type 'mixtral', a mixture of experts, allowed: ",
        ),
        (
            {"model_type": "deepseek_v3", "kv_lora_rank": 512, "n_routed_experts": 256},
            "given model_type 'deepseek_v3', latent attention, allowed: ",
        ),
        ({"model_type": "llava", "vision_config": {"x": 1}}, "given model_type 'llava', a model of images, allowed: "),
        ({"model_type": "falcon"}, "given model_type 'falcon', allowed: .*'phi3'"),
    ],
)
def test_architectures_that_are_left_out_are_named(described, message):
    with pytest.raises(ValueError, match=message) as raised:
        family_of_weights(described)
    assert "\n" not in str(raised.value)


def test_the_choice_of_longrope_is_told_at_import():
    family, described, weights = make("phi3")
    line = "hf_config['rope_parameters']: given LongRoPE for texts above 2 tokens; long_factor is taken for all texts"
    assert any(note.startswith(line) for note in family.read_model(described, weights).notes)
    family, described, weights = make("phi3_short")
    assert "short_factor is taken" in family.read_model(described, weights).notes[0]


def test_a_gemma3_is_read_from_a_model_of_images():
    family, described, weights = make("gemma3")
    cap = {"final_logit_softcapping": described.pop("final_logit_softcapping")}
    expected = family.read_model(described, weights)
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"x": 1}}
    whole = {**outer, "text_config": {key: value for key, value in described.items() if key != "architectures"}}
    seen = {"vision_tower.layers.0.weight": np.ones((2, 2), np.float32)}
    for prefix in ("language_model.", "model.language_model."):
        longer = prefix + "model." if prefix == "language_model." else prefix
        named = {longer + name.removeprefix("model."): weight for name, weight in weights.items()}
        read = family_of_weights(whole).read_model(whole, named | seen)
        assert read.model == expected.model and list(read.left) == list(seen)
        jax.tree.map(np.testing.assert_array_equal, read.params, expected.params)
    with pytest.raises(ValueError, match="'final_logit_softcapping'.: given 20.0, allowed: None"):
        family_of_weights(whole).model_config({**whole, "text_config": whole["text_config"] | cap})
    written = family_of_weights(whole).export_config(read.model, variants.VOCAB)
    assert written["architectures"] == outer["architectures"] and written["model_type"] == "gemma3"
    assert written["text_config"].items() >= {**whole["text_config"], "model_type": "gemma3_text"}.items()


def test_a_model_of_another_kind_is_no_llama():
    with pytest.raises(ValueError, match="model.attention: given GPT2, allowed: Rotary"):
        FAMILIES["llama"].export_config(config.Model(attention=config.GPT2()), 9)
    model = FAMILIES["qwen2"].model_config(variants.describe("qwen2"))
    with pytest.raises(ValueError, match="model.attention.bias: given False, allowed: True in a Hugging Face Qwen 2"):
        FAMILIES["qwen2"].check(dataclasses.replace(model, attention=config.Rotary()))
