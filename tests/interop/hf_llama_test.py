"""Llama and its kin: segments with a memory, decoding, and the keys of rotary positions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.interop.families import FAMILIES
from memjax.interop.hf_llama import read_positions, write_positions
from memjax.models.factory import make_language_model
from tests.interop import variants
from tests.interop.variants_test import LIMIT, difference, make

SEGMENT = 4


def with_memory(model: config.Model, length: int, **fields) -> config.Model:
    return dataclasses.replace(model, attention=dataclasses.replace(model.attention, memory_length=length, **fields))


def score(module, params, hidden):
    return module.apply({"params": params}, hidden, method=lambda m, h: m.vocabulary.logits(h))


@pytest.mark.parametrize("name, length", [("llama_3", 8), ("mistral", 8), ("mistral", 3), ("qwen3", 8)])
def test_segments_with_a_memory_give_the_logits_of_the_whole_text(name, length):
    family, described, weights = make(name)
    read = family.read_model(described, weights)
    # A window of 4 keys needs 3 earlier ones, whatever the segments.
    module: Any = make_language_model(with_memory(read.model, length), variants.VOCAB)
    ids, mask = variants.inputs()
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
    assert difference(name, np.concatenate(logits, axis=1)[:, : variants.LENGTH]) <= LIMIT


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
    for length, expected in ((64, (48, 16)), (131_072, (1536, 512))):
        described = {**variants.describe("llama"), "max_position_embeddings": length}
        model = FAMILIES["llama"].model_config(described)
        data = FAMILIES["llama"].data(model, None, False)
        assert (model.attention.memory_length, data.segment_length) == expected


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


def test_a_model_of_another_kind_is_no_llama():
    with pytest.raises(ValueError, match="model.attention: given GPT2, allowed: Rotary"):
        FAMILIES["llama"].export_config(config.Model(attention=config.GPT2()), 9)
    model = FAMILIES["qwen2"].model_config(variants.describe("qwen2"))
    with pytest.raises(ValueError, match="model.attention.bias: given False, allowed: True in a Hugging Face Qwen 2"):
        FAMILIES["qwen2"].check(dataclasses.replace(model, attention=config.Rotary()))
