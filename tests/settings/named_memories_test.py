"""Memories by name: every name gives a valid config of every size, and the same values in every config that uses it."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from memjax.config import (
    LSTM,
    AttentionKind,
    Bidirectional,
    Dense,
    FullAttention,
    LinearPositions,
    Memformer,
    ModelSettings,
    ProductKeyGraft,
    Rotary,
    TransformerXL,
)
from memjax.settings.checks import validate
from memjax.settings.named_memories import MEMORIES, make_memory_settings, with_memory_kind
from memjax.settings.overrides import UsageError, load_config


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("variant", ["smoke", "tiny", "default", "medium", "large"])
def test_every_memory_fits_the_model_of_every_size_of_text(name, variant):
    before = load_config("own_text", variant)
    config = with_memory_kind(before, name)
    if variant != "smoke":
        config.data.source.path = "novel.txt"
    validate(config)
    tokens = lambda config: config.data.batch_size * config.training.segments_per_update * config.data.segment_length
    assert tokens(config) == tokens(before) and config.model.dim == before.model.dim


@pytest.mark.parametrize("first", MEMORIES)
def test_a_memory_takes_the_place_of_any_other(first):
    tiny = load_config("own_text", "tiny")
    for name in ("none", "memformer", "product_key"):
        replaced = with_memory_kind(with_memory_kind(tiny, first), name)
        wanted = with_memory_kind(tiny, name)
        if first == "rotary" and name != "memformer":
            assert isinstance(replaced.model.attention, Rotary)
            continue
        if first in ("memformer", "rfa", "lstm", "linear_transformer", "t2r", "memsizer"):  # updates of more segments
            wanted = dataclasses.replace(wanted, data=replaced.data, training=replaced.training)
        assert replaced == wanted


def test_every_attention_with_a_memory_has_a_name():
    kinds = {memory.kind for memory in MEMORIES.values()}
    assert set(typing.get_args(AttentionKind)) - kinds == {FullAttention, Bidirectional}


def test_a_model_with_rotary_attention_keeps_it():
    config = with_memory_kind(load_config("own_text", "tiny"), "rotary")
    config.model.attention = Rotary(memory_length=64, key_heads=1, rotary=LinearPositions(theta=7.0), local_layers=(0,))
    config.model.feed_forward = Dense(dim=24, activation="swiglu", bias=False)
    host, grafts = config.model.attention, {}
    for name in ("none", "rotary", "memorizing", "compressive", "infinity_former", "knn_lm", "continuous_cache"):
        changed = with_memory_kind(with_memory_kind(config, "memorizing"), name)
        validate(changed)
        attention = changed.model.attention
        grafts[name] = type(attention.graft).__name__
        length = {"none": 0, "rotary": 256}.get(name, 64)
        assert dataclasses.replace(attention, graft=None) == dataclasses.replace(host, memory_length=length)
        assert changed.model.feed_forward == config.model.feed_forward
    assert list(grafts.values()) == [
        *("NoneType", "NoneType", "MemorizingGraft", "CompressiveGraft", "InfinityFormerGraft", "NoneType", "NoneType")
    ]
    beside = with_memory_kind(config, "product_key").model
    assert beside.attention == host and isinstance(beside.feed_forward, ProductKeyGraft)
    assert (beside.feed_forward.dim, beside.feed_forward.activation, beside.feed_forward.bias) == (24, "swiglu", False)
    assert isinstance(with_memory_kind(config, "lstm").model.attention, LSTM)
    config.training.init_from = "runs/smollm2"
    with pytest.raises(
        UsageError, match="given lstm with runs/smollm2, whose model has rotary.*allowed: none, rotary,"
    ):
        with_memory_kind(config, "lstm")


def test_sizes_follow_the_segments_and_values_take_precedence():
    config = with_memory_kind(load_config("own_text", "tiny"), "compressive", memory_length=7)
    attention = config.model.attention
    assert (attention.memory_length, attention.compressed_memory_length, attention.norm) == (7, 128, "pre")
    assert make_memory_settings("linear") == make_memory_settings("linear_transformer")
    assert with_memory_kind(config, "none").model.attention == TransformerXL(memory_length=0, norm="pre")
    assert isinstance(with_memory_kind(config, "memformer").model, Memformer)
    decoder = with_memory_kind(load_config("memformer_wikitext", "smoke"), "none").model
    assert type(decoder) is ModelSettings and decoder.num_layers == 2


@pytest.mark.parametrize("config", ["lifelong_text", "multi30k", "bert_mlm_wikitext", "lifelong_lamol"])
def test_a_model_that_reads_no_segments_is_refused(config):
    with pytest.raises(UsageError, match=f"--memory-kind: given rfa with {config}_.*allowed: a config of a language"):
        with_memory_kind(load_config(config), "rfa")


def test_an_unknown_name_is_answered_with_the_near_one_and_all():
    with pytest.raises(
        UsageError,
        match="given 'memorising', allowed: none, .*spalm, linear, or my_module:MyClass; did you mean memorizing",
    ):
        make_memory_settings("memorising")


def test_the_guide_lists_every_memory_with_its_line():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "start.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", guide, re.MULTILINE))
    assert {name: rows.get(name) for name in MEMORIES} == {name: memory.about for name, memory in MEMORIES.items()}
