"""Earlier names of fields and classes: what they have saved and hashed stays what it was."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from memjax import config as configs
from memjax.config import (
    GPT2,
    Bidirectional,
    Compressive,
    ContinuousCache,
    EncoderDecoder,
    InfinityFormer,
    Memformer,
    Memorizing,
    Model,
    Perceptron,
    Spalm,
)
from memjax.datastore.files import checksum
from memjax.retrieval.interpolation import _conditions
from memjax.retrieval.keys import KeySource
from memjax.training.runs import config_from_dict, model_for_fingerprint

SAVED = json.loads((Path(__file__).parent / "saved_settings.json").read_text(encoding="utf-8"))
"""Class -> its default values, as version 0.1.0 writes them in a config.json."""


@pytest.mark.parametrize("name", SAVED)
def test_settings_saved_by_an_earlier_version_are_read(name):
    assert config_from_dict(SAVED[name]) == getattr(configs, name)()


@pytest.mark.parametrize(
    ("model", "digest"),
    [
        (Model(attention=Compressive()), "a26e2a357c0883bf39b426550a3f1441"),
        (Model(attention=GPT2()), "18394f704cb2b9404f2e21aa482667e5"),
        (Model(attention=InfinityFormer(over_layers="sum")), "1923bcf6f12fd46280eab3223524c06b"),
        (Model(attention=Memorizing(layers=(0, -1), window=0)), "df61fb443304cd5717bb321fdae9d7bb"),
        (Model(output=Spalm()), "a6c403ab5aec2832dbac810fe072845a"),
        (Memformer(unit_values=False), "9f789591530846616d0303edbb66379a"),
        (Memformer(forgetting=False), "91511f27546f908bb15051a3c2252a6c"),
        (Perceptron(), "28ffb90b2ccda43549c498375f96e46a"),
        (EncoderDecoder(), "400b6bb6d80017463a8304308e05691b"),
        (Bidirectional(), "dfacfecd7ccff4bf50b86fe443378da3"),
    ],
)
def test_the_model_of_a_store_has_the_digest_that_earlier_versions_wrote(model, digest):
    assert checksum(model_for_fingerprint(model))[:32] == digest


@pytest.mark.parametrize(
    ("cache", "digest"),
    [
        (ContinuousCache(memory_length=64), "dbcd0b3e322e2ca6"),
        (
            ContinuousCache(memory_length=64, mixing="global", scale=0.5, offset=2.0, across_documents=True),
            "8f7bf8ed82d411ff",
        ),
    ],
)
def test_tuned_weights_are_found_under_the_digest_that_earlier_versions_wrote(cache, digest):
    config = SimpleNamespace(evaluation=SimpleNamespace(cache=cache))
    source = SimpleNamespace(run=SimpleNamespace(experiment=SimpleNamespace(config=config)))
    assert _conditions(source, SimpleNamespace(metric="l2"))["cache"] == digest  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Compressive", "GPT2", "InfinityFormer", "MemSizer", "Memorizing", "RFA", "T2R"])
def test_the_protocol_of_a_store_names_the_attention_as_earlier_versions_did(name):
    config = SimpleNamespace(model=SimpleNamespace(attention=getattr(configs, name)()))
    reading = lambda: SimpleNamespace(stride=0, protocol="separate", segment_length=8, score_first=True)
    run = SimpleNamespace(experiment=SimpleNamespace(config=config, reading=reading))
    protocol = KeySource.protocol(SimpleNamespace(run=run, tap="key"))  # type: ignore[arg-type]
    assert protocol["attention"] == SAVED[name]
