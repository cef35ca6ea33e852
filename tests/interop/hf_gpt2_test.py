"""GPT-2: the numbers of Hugging Face's class, generation, memories added to imported weights."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from memjax import config
from memjax.data.dialogue import NUM_MARKS
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling
from memjax.interop import hf_gpt2 as hf
from memjax.interop.runs import import_run
from memjax.models.factory import make_language_model, make_model
from memjax.models.transformer import split_layers
from memjax.models.vocabulary import unpad_tables
from memjax.training.loaded_runs import init_from
from memjax.training.runs import load_config
from memjax.training.train_state import init_variables
from tests.interop import weights as made
from tests.reference.parameters import random_params

GOLDEN = Path(__file__).parent.parent / "golden"
WEIGHTS = GOLDEN / "gpt2_tiny.safetensors"
FEATURES = ("layer_00/attention_input", "layer_01/attention_input", "output_normed")


@functools.cache
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "gpt2_tiny.npz") as file:
        return {name: file[name] for name in file.files}


def description() -> config.Model:
    model = hf.model_config(json.loads(str(golden()["config_json"])))
    return dataclasses.replace(model, dropout=0.0, attention_dropout=0.0)


def logits_of(model, params, hidden):
    return model.apply({"params": params}, hidden, method=lambda module, h: module.vocabulary.logits(h))


@functools.cache
def imported():
    model, params = description(), hf.import_params(WEIGHTS, description())
    return make_language_model(model, hf.vocab_size(params), features=FEATURES), params


def forward(params, ids, mask=None):
    model, start = imported()[0], jnp.ones(ids.shape[0], bool)
    hidden, _, aux = model.apply({"params": params}, ids, model.init_state(2), start_of_document=start, mask=mask)
    return logits_of(model, params, hidden), aux.arrays


def test_logits_and_hidden_states_are_the_published_ones():
    ids = jnp.asarray(golden()["ids"], jnp.int32)
    logits, features = jax.jit(forward)(imported()[1], ids)
    np.testing.assert_allclose(logits, golden()["logits"], atol=2e-6, rtol=0)
    for index, name in enumerate(FEATURES):
        np.testing.assert_allclose(features[name], golden()[f"hidden{index}"], atol=2e-6, rtol=0, err_msg=name)


def test_padding_changes_nothing_before_it():
    mask = golden()["mask"].astype(bool)
    logits, _ = jax.jit(forward)(imported()[1], jnp.asarray(golden()["ids"], jnp.int32), jnp.asarray(mask))
    np.testing.assert_allclose(np.asarray(logits)[mask], golden()["logits_masked_right_pad"][mask], atol=2e-6, rtol=0)


def test_loss_and_gradients_are_the_published_ones():
    ids = jnp.asarray(golden()["ids"], jnp.int32)

    def loss(params):
        logits = jax.nn.log_softmax(forward(params, ids)[0][:, :-1])
        return -jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1).mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(imported()[1])
    np.testing.assert_allclose(value, golden()["loss"], atol=2e-6)
    np.testing.assert_allclose(gradients["vocabulary"]["embedding"], golden()["grad_wte"], atol=2e-6, rtol=0)
    exported = hf.export_params(jax.tree.map(np.asarray, gradients), description())
    np.testing.assert_allclose(
        exported["transformer.h.0.attn.c_attn.weight"], golden()["grad_h0_c_attn"], atol=2e-6, rtol=0
    )


def test_decoding_token_by_token_gives_the_published_logits():
    model, params = make_language_model(description(), 61), imported()[1]
    ids = jnp.asarray(golden()["ids"], jnp.int32)
    state = model.init_decode_state(model.init_state(2), 16, 2)

    @jax.jit
    def step(state, token):
        hidden, state = model.apply(
            {"params": params}, token[:, None], state, active=jnp.ones(2, bool), method="decode"
        )
        return state, logits_of(model, params, hidden)[:, 0]

    logits = []
    for token in ids.T:
        state, one = step(state, token)
        logits.append(one)
    found = np.stack(logits, axis=1)
    np.testing.assert_allclose(found, golden()["logits"], atol=5e-6, rtol=0)
    np.testing.assert_allclose(found[:, -5:], golden()["logits_chunk2_with_cache"], atol=5e-6, rtol=0)


@pytest.mark.laws
def test_greedy_generation_follows_the_logits():
    model, params = make_language_model(description(), 61), imported()[1]
    prompt = [int(token) for token in golden()["ids"][0, :6]]
    new = generate(
        model,
        {"params": params},
        [prompt],
        segment_length=16,
        max_tokens=3,
        sampling=Sampling(temperature=0.0),
        block=3,
    )[0]
    padded = jnp.zeros((2, 16), jnp.int32).at[0, : len(prompt) + 3].set(jnp.asarray(prompt + new))
    logits, _ = jax.jit(forward)(params, padded)
    for index, token in enumerate(new):
        assert int(np.argmax(logits[0, len(prompt) + index - 1])) == token


def test_export_is_the_inverse_of_import(tmp_path):
    params = imported()[1]
    hf.save_pretrained(tmp_path, params, description())
    model, again = hf.load_pretrained(tmp_path)
    assert (model.attention, model.dim, model.feed_forward) == (
        config.GPT2(num_positions=32),
        24,
        description().feed_forward,
    )
    jax.tree.map(np.testing.assert_array_equal, params, again)
    written, published = (safetensors.numpy.load_file(path) for path in (tmp_path / "model.safetensors", WEIGHTS))
    assert written.keys() == published.keys()
    for name in published:
        np.testing.assert_array_equal(written[name], published[name])


def with_memory(kind: str) -> config.Model:
    model = description()
    model.attention = {
        "infinity_former": config.InfinityFormer(
            base_attention="gpt2", num_positions=32, num_basis=8, widths=(0.1, 0.2), num_samples=6
        ),
        "compressive": config.GPT2(num_positions=32, compressed_memory_length=4, compression_rate=2),
    }[kind]
    return model


@pytest.mark.parametrize("kind", ["compressive", pytest.param("infinity_former", marks=pytest.mark.laws)])
def test_memories_are_added_to_imported_weights(kind):
    described = with_memory(kind)
    model = make_language_model(described, 61, segment_length=4)
    ids = jnp.asarray(golden()["ids"], jnp.int32)[:, :12].reshape(2, 3, 4).swapaxes(0, 1)
    start = jnp.ones(2, bool)
    init = lambda: model.init(jax.random.key(0), ids[0], model.init_state(2), start_of_document=start)
    initial = random_params(jax.eval_shape(init)["params"], dtype=np.float32)
    params = hf.import_params(WEIGHTS, described, initial=initial)
    assert jax.tree.structure(params) == jax.tree.structure(initial)
    layer = split_layers(params["stack"], model.stack.layer_groups())["layer_01"]["attention"]
    own = split_layers(imported()[1]["stack"], imported()[0].stack.layer_groups())["layer_01"]["attention"]
    np.testing.assert_array_equal(layer["query"], own["query"])
    added = {"infinity_former": "long_term", "compressive": "compression_kernel"}[kind]
    assert set(layer) - set(own) == {added}

    @jax.jit
    def over(params):
        state, outputs, losses = model.init_state(2), [], []
        for index, segment in enumerate(ids):
            named = {"start_of_document": start & (index == 0)}
            hidden, state, aux = model.apply({"params": params}, segment, state, **named)
            outputs.append(logits_of(model, params, hidden))
            losses.append({name.partition("/")[2]: loss.mean() for name, loss in aux.losses.items()})
        return outputs, losses

    outputs, losses = over(params)
    alone = forward(imported()[1], ids[0])[0]
    np.testing.assert_allclose(outputs[0], alone, atol=5e-6)  # before anything is remembered it is GPT-2
    assert np.abs(outputs[2] - forward(imported()[1], ids[2])[0]).max() > 1e-4
    assert set(losses[2]) == set(described.attention.auxiliary_loss_weights())
    assert all(np.isfinite(value) and value > 0 for value in losses[2].values())
    exported = hf.export_params(params, described)
    np.testing.assert_array_equal(
        exported["transformer.wte.weight"], safetensors.numpy.load_file(WEIGHTS)["transformer.wte.weight"]
    )


def test_a_memory_needs_its_initial_parameters():
    with pytest.raises(ValueError, match="initial: given None for a model with a memory"):
        hf.import_params(WEIGHTS, with_memory("compressive"))
    with pytest.raises(ValueError, match="initial: given None for a model with a memory or marks"):
        hf.import_params(WEIGHTS, dataclasses.replace(description(), num_speaker_markers=NUM_MARKS))


def test_further_entries_leave_the_logits_of_the_others_as_they_were():
    ids, more = jnp.asarray(golden()["ids"], jnp.int32), 3
    model = make_language_model(description(), 61 + more)
    params = hf.import_params(WEIGHTS, description(), extra_ids=more)
    table, plain = params["vocabulary"]["embedding"], imported()[1]["vocabulary"]["embedding"]
    assert hf.vocab_size(params) == 64
    np.testing.assert_array_equal(table[:61], plain)
    mean = np.asarray(plain, np.float64).mean(axis=0)
    np.testing.assert_allclose(table[61:], np.broadcast_to(mean, (more, 24)), atol=1e-7, rtol=0)

    @jax.jit
    def scores(params):
        hidden, _, _ = model.apply({"params": params}, ids, model.init_state(2), start_of_document=jnp.ones(2, bool))
        return logits_of(model, params, hidden)

    logits = np.asarray(scores(params))
    np.testing.assert_allclose(logits[..., :61], golden()["logits"], atol=2e-6, rtol=0)
    np.testing.assert_allclose(logits[..., 61:], golden()["logits"].mean(-1, keepdims=True).repeat(more, -1), atol=2e-6)
    lost = jax.nn.log_softmax(golden()["logits"]) - jax.nn.log_softmax(logits)[..., :61]
    assert lost.min() > 0 and lost.max() <= np.log(1 + more / 61) + 1e-6  # at most their share of the vocabulary
    with pytest.raises(ValueError, match="extra_ids: given -1, allowed: 0 or more"):
        hf.import_params(WEIGHTS, description(), extra_ids=-1)


@pytest.mark.slow
def test_a_folder_becomes_a_run_from_which_dialogues_with_a_memory_start(tmp_path):
    folder = made.gpt2(tmp_path / "weights")
    described = import_run(folder, tmp_path / "run", dialogues=True).config
    assert load_config(tmp_path / "run") == described and isinstance(described.data.source, config.CmuDog)
    marked = dataclasses.replace(with_memory("infinity_former"), num_speaker_markers=NUM_MARKS)
    model = make_model(dataclasses.replace(described, model=marked), 61 + NUM_MARKS)
    fresh = init_variables(model, jax.random.key(0), described.data.segment_length)
    start, added = init_from(tmp_path / "run", fresh, model)
    assert "params/markers" in added and all("long_term" in name for name in set(added) - {"params/markers"})
    expected = hf.import_params(WEIGHTS, marked, initial=fresh["params"], extra_ids=NUM_MARKS)
    found = start["params"]
    assert found["vocabulary"]["embedding"].shape == (128, 24)  # padded, as sharding.pad_vocab_to_multiple says
    found = {**found, "vocabulary": unpad_tables(found["vocabulary"], model.vocabulary)}
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"activation_function": "mish"}, "hf_config\\['activation_function'\\]: given 'mish', allowed: 'gelu_new'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "allowed: False"),
    ],
)
def test_other_variants_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        hf.model_config({**json.loads(str(golden()["config_json"])), **change})


def test_weights_of_another_shape_or_name_are_refused():
    weights = safetensors.numpy.load_file(WEIGHTS)
    with pytest.raises(ValueError, match=r"wpe.weight has shape \(31, 24\) and not \(32, 24\)"):
        hf.import_params({**weights, "transformer.wpe.weight": np.zeros((31, 24), np.float32)}, description())
    with pytest.raises(ValueError, match="1 tensor does not fit the model: more is left over"):
        hf.import_params({**weights, "more": np.zeros(1, np.float32)}, description())
    with pytest.raises(ValueError, match="transformer.ln_f.bias is missing"):
        hf.import_params({k: v for k, v in weights.items() if k != "transformer.ln_f.bias"}, description())


def test_a_model_without_gpt2s_attention_is_refused():
    model = description()
    model.attention = config.FullAttention()
    with pytest.raises(ValueError, match="model.attention: given FullAttention, allowed: GPT2"):
        hf.export_config(model, 61)
