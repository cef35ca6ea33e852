"""The last layers of an encoder, trained on what the others give of each token, kept in a file."""

import dataclasses
import json

import numpy as np
import pytest

from memjax.cli import main
from memjax.config import SGD, Classification, Schedule, Templates
from memjax.lifelong import train
from memjax.settings.checks import validate
from memjax.settings.overrides import load_config
from tests.training.loop_test import final_arrays


def config_of(folder, name, *, first=0, init_from="", **training):
    config = load_config("bert_glue", "smoke")
    model = dataclasses.replace(
        config.model, first_trained_layer=first, scan_layers=False, dropout=0.0, attention_dropout=0.0
    )
    data = dataclasses.replace(
        config.data, encoder_states_dir=str(folder / "states") if first else "", cache_dir=str(folder / "cache")
    )
    schedule = Schedule(learning_rate=0.5, warmup_steps=0, decay="constant")
    named = {"steps": 4, "optimizer": SGD(), "schedule": schedule, "init_from": init_from, "log_every": 0, **training}
    training = dataclasses.replace(config.training, **named)
    return dataclasses.replace(config, name=name, workdir=str(folder), model=model, data=data, training=training)


def run(config):
    result = train(config, on_event=lambda event: None)
    return result, final_arrays(result.path)[1]


@pytest.mark.slow
def test_the_last_layer_learns_the_same_from_tokens_and_from_kept_states(tmp_path, capsys):
    encoder, before = run(config_of(tmp_path, "encoder", steps=1))
    tokens, whole = run(config_of(tmp_path, "tokens", init_from=str(encoder.path), num_trainable_layers=1))
    states, upper = run(config_of(tmp_path, "kept", init_from=str(encoder.path), first=1))
    trained = [name for name in upper if name.startswith("params/")]
    assert {name.split("/")[1] for name in trained} == {"head", "pooler", "stack"}
    assert not any("layer_00" in name for name in trained)
    far = lambda one, other, name: float(np.abs(one[name] - other[name]).max())
    for name in trained:
        assert far(upper, whole, name) <= 0.01 * far(whole, before, name) + 1e-6, name
    assert min(far(whole, before, name) for name in trained if name.endswith(("kernel", "output"))) > 5e-5
    frozen = [name for name in whole if name.startswith("params/") and name not in trained]
    assert frozen
    for name in frozen:
        np.testing.assert_array_equal(whole[name], before[name])
    nats = [result.results["evaluation"]["nats"] for result in (tokens, states)]
    np.testing.assert_allclose(*nats, rtol=1e-5)
    # The file is read again and knows what made it; a run of it needs no encoder, and refuses texts without states.
    assert main(["eval", "--run", str(states.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats"] == pytest.approx(nats[1], rel=1e-6)
    other = config_of(tmp_path, "other", init_from=str(tokens.path), first=1)
    assert run(dataclasses.replace(other, name="again"))[0].step == 4  # the layers below are those of the encoder
    assert main(["predict", "--run", str(states.path), "--text", "a claim"]) == 2
    assert "model.first_trained_layer: given texts alone" in capsys.readouterr().err


@pytest.mark.slow
def test_states_of_other_texts_are_computed_with_the_tokenizer_of_the_encoder(tmp_path):
    encoder, _ = run(config_of(tmp_path, "encoder", steps=1))
    other = config_of(tmp_path, "other", first=1, init_from=str(encoder.path))
    other.data.source = Templates(num_examples=40)
    other.task = Classification(num_classes=8)
    result, _ = run(other)
    assert result.step == 4
    named = [json.loads((path / "tokenizer" / "about.json").read_text()) for path in (encoder.path, result.path)]
    assert named[0]["fingerprint"] == named[1]["fingerprint"]


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"first": 2}, "model.first_trained_layer: given 2, allowed: up to 1, the last layer"),
        (
            {"num_trainable_layers": 3},
            "training.num_trainable_layers: given 3, allowed: 0 to 2 with model.scan_layers False",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, fields, line):
    with pytest.raises(ValueError, match=line):
        validate(config_of(tmp_path, "run", **fields))


def test_layers_of_a_scan_are_not_trained_apart(tmp_path):
    config = config_of(tmp_path, "run", num_trainable_layers=1)
    config.model.scan_layers = True
    with pytest.raises(
        ValueError, match=r"training.num_trainable_layers: given 1, allowed: .* layers of a scan are one array"
    ):
        validate(config)
    config = config_of(tmp_path, "run", first=1)
    config.data.encoder_states_dir = ""
    with pytest.raises(
        ValueError,
        match="data.encoder_states_dir: given '', allowed: a folder, where model.first_trained_layer is above 0",
    ):
        validate(config)
