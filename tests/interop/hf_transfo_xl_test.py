import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from memjax import config
from memjax.interop import hf_transfo_xl as hf
from memjax.models.factory import make_language_model
from memjax.models.vocabulary import pad_tables, unpad_tables
from tests.reference import transformer_xl as reference

GOLDEN = Path(__file__).parent.parent / "golden"
VARIANTS = ("pre_norm", "tied_projections", "own_projections")
FEATURES = ("layer_00/attention_input", "layer_01/attention_input", "output")


def load(name: str, prefix: str = "") -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name) as file:
        return {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}


def weights_of(golden: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix("param/"): value for key, value in golden.items() if key.startswith("param/")}


def config_of(golden: dict[str, np.ndarray]) -> config.Model:
    return hf.model_config(json.loads(str(golden["config_json"])))


def run(model: config.Model, weights: dict[str, np.ndarray], segments: np.ndarray, features=()) -> tuple:
    """Log-probabilities, hidden states and memories of every segment."""
    params = hf.import_params(weights, model)
    module = make_language_model(model, hf.vocab_size(params), features=features)

    @jax.jit
    def scan(params, segments):
        def step(state, ids):
            state, first = state
            hidden, state, aux = module.apply({"params": params}, ids, state, start_of_document=first)
            log_probs = module.apply({"params": params}, hidden, method="log_probs")
            memories = [group.attention.hidden for group in state.stack.groups]
            return (state, jnp.zeros_like(first)), (log_probs, aux.arrays | {"hidden": hidden}, memories)

        start = module.init_state(segments.shape[1]), jnp.ones(segments.shape[1], bool)
        return jax.lax.scan(step, start, segments)[1]

    return jax.tree.map(np.asarray, scan(params, jnp.asarray(segments, jnp.int32)))


@pytest.fixture(scope="module")
def full():
    golden = load("transfoxl_full.npz")
    stack = lambda name: np.stack([golden[f"seg{s}/{name}"] for s in range(3)])
    return golden, stack, run(config_of(golden), weights_of(golden), stack("ids"), FEATURES)


def test_three_segments_give_the_published_log_probabilities(full):
    _, stack, (log_probs, _, _) = full
    np.testing.assert_allclose(log_probs, stack("log_probs"), atol=1e-5, rtol=0)


def test_three_segments_give_the_published_hidden_states(full):
    _, stack, (_, features, _) = full
    for index, name in enumerate(FEATURES):
        np.testing.assert_allclose(features[name], stack(f"hidden{index}"), atol=1e-5, rtol=0, err_msg=name)


def test_three_segments_give_the_published_memories(full):
    _, stack, (_, _, memories) = full
    for layer, memory in enumerate(memories):
        time_major = np.swapaxes(memory, 1, 2)
        np.testing.assert_allclose(time_major, stack(f"mems_out{layer}"), atol=1e-5, rtol=0)


def test_the_reference_gives_the_published_attention_maps(full):
    # The maps of the module are compared with those of the reference through its outputs, in the memory's own tests.
    golden, _, _ = full
    model = config_of(golden)
    layers = reference.layers_of(hf.import_params(weights_of(golden), model))
    memories = [np.zeros((2, 6, 16)), np.zeros((2, 6, 16))]
    for segment in range(3):
        part = {key: golden[f"seg{segment}/{key}"] for key in ("hidden0", "hidden1", "attn0", "attn1")}
        for index, layer in enumerate(layers):
            for row in range(2):
                hidden, memory = part[f"hidden{index}"][row], memories[index][row]
                _, maps = reference.attention_part(hidden, memory, layer["attention"])
                np.testing.assert_allclose(maps, part[f"attn{index}"][row], atol=1e-5, rtol=0)
            memories[index] = np.swapaxes(golden[f"seg{segment}/mems_out{index}"], 0, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_adaptive_variants_match(variant):
    golden = load("transfoxl_variants.npz", f"{variant}/")
    stack = lambda name: np.stack([golden[f"segment_{s}/{name}"] for s in range(2)])
    model = dataclasses.replace(config_of(golden), scan_layers=True)
    log_probs, features, (memories,) = run(model, weights_of(golden), stack("ids"))
    np.testing.assert_allclose(features["hidden"], stack("hidden"), atol=1e-5, rtol=0)
    np.testing.assert_allclose(log_probs, stack("log_probs"), atol=1e-5, rtol=0)
    for layer, memory in enumerate(memories[-1]):
        np.testing.assert_allclose(np.swapaxes(memory, 0, 1), golden[f"mems_{layer}"], atol=1e-5, rtol=0)


def test_the_loss_is_the_published_one():
    golden = load("transfoxl_variants.npz", "tied_projections/")
    model = config_of(golden)
    params = hf.import_params(weights_of(golden), model)
    module = make_language_model(model, hf.vocab_size(params))
    hidden, ids = jnp.asarray(golden["segment_1/hidden"]), jnp.asarray(golden["segment_1/ids"], jnp.int32)
    nll = jax.jit(lambda hidden, ids: module.apply({"params": params}, hidden, ids, method="token_nll"))(hidden, ids)
    np.testing.assert_allclose(nll, golden["segment_1/nll"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_padded_vocabulary_gives_the_published_log_probabilities(variant):
    golden = load("transfoxl_variants.npz", f"{variant}/")
    params = hf.import_params(weights_of(golden), config_of(golden))["vocabulary"]
    plain = make_language_model(config_of(golden), 15).vocabulary
    padded = plain.clone(multiple=4)
    hidden, ids = jnp.asarray(golden["segment_1/hidden"]), jnp.asarray(golden["segment_1/ids"], jnp.int32)

    @jax.jit
    def scores(params):
        call = lambda *args, method: padded.apply({"params": params}, *args, method=method)
        return call(hidden, method="log_probs"), call(hidden, ids, method="token_nll")

    log_probs, nll = scores(pad_tables(params, padded))
    np.testing.assert_allclose(log_probs, golden["segment_1/log_probs"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(nll, golden["segment_1/nll"], atol=1e-5, rtol=0)
    jax.tree.map(np.testing.assert_array_equal, unpad_tables(pad_tables(params, padded), padded), params)


@pytest.mark.parametrize("variant", ("full", *VARIANTS))
@pytest.mark.parametrize("scan_layers", (False, True))
def test_export_gives_back_every_tensor_and_the_configuration(variant, scan_layers):
    golden = load("transfoxl_full.npz") if variant == "full" else load("transfoxl_variants.npz", f"{variant}/")
    weights, model = weights_of(golden), config_of(golden)
    model = dataclasses.replace(model, scan_layers=scan_layers)
    exported = hf.export_params(hf.import_params(weights, model), model)
    frequencies = "transformer.pos_emb.inv_freq"  # computed in float32 there, rounded from float64 here
    np.testing.assert_allclose(exported.pop(frequencies), weights.pop(frequencies), rtol=1e-6)
    assert exported.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(exported[name], weight, err_msg=name)
    given = json.loads(str(golden["config_json"]))
    for key, value in hf.export_config(model, len(golden["param/crit.out_layers.0.bias"])).items():
        if key not in ("architectures", "vocab_size", "tie_projs"):
            assert given[key] == value, key


def test_imported_parameters_have_the_structure_of_the_model():
    golden = load("transfoxl_variants.npz", "tied_projections/")
    model = dataclasses.replace(config_of(golden), scan_layers=True)
    params = hf.import_params(weights_of(golden), model)
    module = make_language_model(model, hf.vocab_size(params))
    tokens, start = jnp.zeros((1, 2), jnp.int32), jnp.ones(1, bool)
    made = jax.eval_shape(
        lambda: module.init({"params": jax.random.key(0)}, tokens, module.init_state(1), start_of_document=start)
    )
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert shapes(params) == shapes(made["params"])
    assert hf.vocab_size(params) == 15


def test_a_folder_round_trip_and_a_file_without_tied_tensors(tmp_path):
    golden = load("transfoxl_variants.npz", "tied_projections/")
    weights, model = weights_of(golden), config_of(golden)
    params = hf.import_params(weights, model)
    hf.save_pretrained(tmp_path / "model", params, model)
    again, loaded = hf.load_pretrained(tmp_path / "model")
    assert again == model
    jax.tree.map(np.testing.assert_array_equal, loaded, params)

    # safetensors files of Hugging Face leave out what is tied, and constants
    tied = [f"crit.out_layers.{i}.weight" for i in range(3)] + ["crit.out_projs.1", "crit.out_projs.2"]
    kept = {name: value for name, value in weights.items() if name not in (*tied, "transformer.pos_emb.inv_freq")}
    safetensors.numpy.save_file(kept, tmp_path / "tied.safetensors")
    jax.tree.map(np.testing.assert_array_equal, hf.import_params(tmp_path / "tied.safetensors", model), params)


def drop(weights):
    del weights["transformer.layers.1.dec_attn.o_net.weight"]


def add(weights):
    weights["lm_head.weight"] = np.zeros(3)


def reshape(weights):
    weights["transformer.layers.0.pos_ff.CoreNet.0.bias"] = np.zeros(7)


def untie(weights):
    weights["crit.out_layers.0.weight"] = weights["crit.out_layers.0.weight"] + 1


@pytest.mark.parametrize(
    "change, message",
    [
        (drop, r": transformer\.layers\.1\.dec_attn\.o_net\.weight is missing; allowed: "),
        (add, r"lm_head\.weight is left over; allowed: "),
        (reshape, r"CoreNet\.0\.bias has shape \(7,\) and not \(32,\); allowed: "),
        (untie, r"out_layers\.0\.weight differs from .*, to which it is tied; allowed: "),
    ],
)
def test_wrong_weights_are_named(change, message):
    golden = load("transfoxl_full.npz")
    weights = weights_of(golden)
    change(weights)
    with pytest.raises(ValueError, match=message) as error:
        hf.import_params(weights, config_of(golden))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key, value", [("attn_type", 2), ("tie_word_embeddings", False), ("d_embed", 512)])
def test_options_without_a_counterpart_are_refused(key, value):
    with pytest.raises(ValueError, match=rf"hf_config\['{key}'\]: given {value!r}, allowed: "):
        hf.model_config({key: value})
    with pytest.raises(ValueError, match=r"hf_config\['div_val'\]: given 2, allowed: 1"):
        hf.model_config({"div_val": 2, "cutoffs": []})


def test_models_that_hugging_face_cannot_express_are_refused():
    with pytest.raises(ValueError, match=r"model\.attention: given Memorizing, allowed: TransformerXL"):
        hf.export_params({}, config.Model(attention=config.Memorizing()))
    for field, model in {
        "model.output.tied": config.Model(
            attention=config.TransformerXL(), output=config.Softmax(tied=False, bias=True)
        ),
        "model.attention.final_norm": config.Model(
            attention=config.TransformerXL(norm="pre"), output=config.Softmax(bias=True)
        ),
    }.items():
        with pytest.raises(ValueError, match=f"{field}: given .*, allowed: .* in a Hugging Face Transformer-XL"):
            hf.export_config(model, 5)


def test_the_defaults_are_those_of_the_published_wikitext_103_model():
    model = hf.model_config({})
    assert model.num_layers == 18 and model.attention.memory_length == 1600
    assert model.output == config.AdaptiveSoftmax(div_val=4, tie_projections=(False, True, True, True))
