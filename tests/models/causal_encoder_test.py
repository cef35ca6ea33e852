"""Decoders as encoders of whole texts: names of parameters, the last token, and layers above stored states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import (
    GPT2,
    Bytes,
    Classification,
    Config,
    Data,
    Dense,
    Evaluation,
    LanguageModeling,
    Lifelong,
    LoRA,
    MaskedLanguageModeling,
    Model,
    OLoRA,
    Rotary,
    Schedule,
    Sequential,
    TaskData,
    Templates,
    TextFiles,
    Training,
    TransformerXL,
)
from memjax.lifelong import load_run, train
from memjax.models.adapters import is_adapter, is_trained_with_adapters
from memjax.models.feature_taps import add_features
from memjax.models.heads import STATES
from memjax.settings.checks import validate
from memjax.tasks.interface import make_task
from memjax.training.named_arrays import flatten
from memjax.training.train_state import init_variables
from memjax.training.variables import join_arrays, name_arrays
from tests.training.loop_test import final_arrays

VOCAB, LENGTH, LAYERS, FIRST = 259, 8, 3, 2
HOSTS = {"rotary": Rotary(memory_length=4, key_heads=1), "gpt2": GPT2(num_positions=LENGTH)}


def described(host="rotary", *, first=0, rank=0, task=None, **data):
    # Narrower products are fused into what reads them, and then rounded in another way.
    model = Model(dim=64, num_layers=LAYERS, num_heads=2, attention=HOSTS[host], feed_forward=Dense(dim=96))
    model.scan_layers, model.first_trained_layer = False, first
    data = {"source": Templates(num_examples=16), "segment_length": LENGTH, "batch_size": 4, **data}
    return Config(
        model=model,
        task=task or Classification(num_classes=8),
        data=Data(tokenizer=Bytes(), encoder_states_dir="states" if first else "", **data),
        training=Training(lora=LoRA(rank=rank, layers=(-1,) if rank else ())),
        evaluation=Evaluation(batch_size=2, split="test", max_segments=1),
    )


def built(config):
    validate(config)
    return make_task(config).model(VOCAB, vocab_multiple=1)


def drawn(model):
    """Variables with random values, those of an array equal in every model, and those of B zero."""
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))

    def draw(name, leaf):
        values = np.random.default_rng([*name.encode()]).normal(0, 0.1, leaf.shape)
        return jnp.asarray(values * (not name.endswith("/b")), leaf.dtype)

    named = name_arrays(shapes, model.layer_groups())
    return join_arrays({name: draw(name, leaf) for name, leaf in named.items()}, model.layer_groups())


def rows(seed=0):
    tokens = np.random.default_rng(seed).integers(3, VOCAB, (3, LENGTH))
    return jnp.asarray(tokens, jnp.int32), jnp.arange(LENGTH)[None] < jnp.array([[LENGTH], [5], [2]])


@pytest.mark.parametrize("host", [pytest.param("gpt2", marks=pytest.mark.laws), "rotary"])
def test_layers_above_stored_states_give_the_logits_of_the_whole_model(host):
    plain, whole, upper = (built(described(host, **o)) for o in ({}, {"rank": 3}, {"rank": 3, "first": FIRST}))
    tokens, mask = rows()
    tapped = add_features(whole, f"layer_{FIRST - 1:02d}/output")

    @jax.jit
    def logits(model_variables, states, later):
        read = lambda model, variables, **extras: model.apply(
            variables, tokens, model.init_state(3), mask=mask, extras=extras
        )
        expected, _, aux = read(tapped, model_variables)
        without = read(plain, drawn(plain))[0]
        return expected, without, aux.arrays[f"layer_{FIRST - 1:02d}/output"], read(upper, later, **{STATES: states})[0]

    zeros = jnp.zeros((*tokens.shape, 64))
    expected, without, states, _ = logits(drawn(whole), zeros, drawn(upper))
    found = logits(drawn(whole), states, drawn(upper))[3]
    assert np.ptp(expected) > 0.2
    np.testing.assert_allclose(expected, without, atol=1e-6 * np.ptp(expected))
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.ptp(expected))
    names = flatten(drawn(upper)["params"])
    assert not any(name.startswith(("vocabulary", "positions")) for name in names)
    assert {name.split("/")[1] for name in names if name.startswith("stack/")} == {f"layers_{FIRST}"}


@pytest.mark.laws
def test_a_class_is_read_from_the_last_token_and_parameters_are_those_of_the_language_model():
    model, language = built(described()), built(described(task=LanguageModeling(), source=TextFiles(path="x")))
    own, others = (flatten(drawn(part)["params"]) for part in (model, language))
    assert {name: leaf.shape for name, leaf in own.items() if not name.startswith("head/")} == {
        name: leaf.shape for name, leaf in others.items()
    }
    tokens, mask = rows()
    read = jax.jit(lambda tokens: model.apply(drawn(model), tokens, model.init_state(3), mask=mask)[0][:, 0])
    scores = read(tokens)
    np.testing.assert_array_equal(read(jnp.where(mask, tokens, 7)), scores)
    for row, last in enumerate((LENGTH - 1, 4, 1)):
        changed = np.abs(read(tokens.at[row, last].set(4)) - scores).max(axis=-1) > 1e-3
        assert changed.tolist() == [row == number for number in range(3)]


@pytest.mark.parametrize(
    "fields, line",
    [
        (
            {"attention": TransformerXL()},
            "model.attention: given 'TransformerXL', allowed: Bidirectional, Rotary or GPT2",
        ),
        ({"task": MaskedLanguageModeling()}, "model.attention: given 'Rotary', allowed: Bidirectional .Masked"),
    ],
)
def test_other_decoders_and_tasks_are_refused(fields, line):
    config = described()
    config.task = fields.get("task", config.task)
    config.model.attention = fields.get("attention", config.model.attention)
    with pytest.raises(ValueError, match=line):
        validate(config)


def run_of(folder, name, config, **training):
    schedule = Schedule(learning_rate=1e-2, warmup_steps=0, decay="constant")
    training = dataclasses.replace(config.training, schedule=schedule, log_every=0, **training)
    data = dataclasses.replace(config.data, cache_dir=str(folder / "cache"))
    if data.encoder_states_dir:
        data.encoder_states_dir = str(folder / "states")
    config = dataclasses.replace(config, name=name, workdir=str(folder), data=data, training=training)
    return train(config, on_event=lambda event: None)


@pytest.mark.slow
@pytest.mark.parametrize("method", [Sequential(), OLoRA()], ids=lambda method: type(method).__name__)
def test_tasks_are_learned_by_adapters_above_the_stored_states_of_a_language_model(method, tmp_path):
    (tmp_path / "train.txt").write_text("a few words of text. " * 50)
    base = run_of(
        tmp_path,
        "base",
        described(task=LanguageModeling(), source=TextFiles(path=str(tmp_path / "train.txt"))),
        steps=1,
    )
    stream = Lifelong(
        method=method,
        tasks=tuple(
            TaskData(name=f"task {number}", source=Templates(num_examples=16 + 4 * number)) for number in range(2)
        ),
        epochs=1,
    )
    start = {"init_from": str(base.path)}
    results = {}
    for name, first in (("whole", 0), ("stored", FIRST)):
        config = dataclasses.replace(described(first=first, rank=2), lifelong=stream)
        results[name] = run_of(tmp_path, name, config, **start)
    arrays = {
        name: {n: a for n, a in final_arrays(result.path)[1].items() if n.startswith("params/")}
        for name, result in results.items()
    }
    lora = LoRA(rank=2)
    trained = [name for name in arrays["stored"] if is_trained_with_adapters(name.removeprefix("params/"), lora)]
    assert trained
    assert any(is_adapter(name) for name in trained)
    assert not any("layer_00" in name or "vocabulary" in name for name in arrays["stored"])
    for name in trained:
        np.testing.assert_allclose(arrays["stored"][name], arrays["whole"][name], rtol=1e-3, atol=1e-5)
    loaded = load_run(results["stored"].path)
    score = loaded.experiment.evaluate(loaded.variables, loaded.experiment.config.evaluations[0])
    assert np.isfinite(score.as_dict()["nats"])
