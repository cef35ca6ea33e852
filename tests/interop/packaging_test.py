"""Packaging is undone at an import and done again at an export; damaged and unknown files are refused in one line."""

import json
import sys
import types

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax import cli
from memjax.interop import folders
from memjax.interop.families import FAMILIES
from memjax.interop.runs import export_run, import_run
from tests.interop import weights as made
from tests.interop.variants_test import make as variant

WRAPPERS = ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module.", "model.", "net.", "module.model."]


def read(name, rename):
    """A variant whose tensors have other names."""
    family, described, weights = variant(name)
    return family.read_model(described, weights), family.read_model(described, rename(weights))


def equal(first, second):
    assert (first.model, first.task) == (second.model, second.task)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)


@pytest.mark.parametrize("name", ["gpt2", "bert", "distilbert", "roberta", "gpt2_untied", "bert_classes"])
def test_wrappers_are_no_part_of_a_name(name):
    family, described, weights = variant(name)
    plain = family.read_model(described, weights)
    for wrapper in WRAPPERS:
        renamed = {f"{wrapper}{tensor}": weight for tensor, weight in weights.items()}
        equal(plain, family.read_model(described, renamed))
        names = family.read_names(renamed)
        assert [names.plain[tensor] for tensor in renamed] == list(weights)
    inside = {n.replace(family.layer, f"{family.layer}_orig_mod."): w for n, w in weights.items()}
    equal(plain, family.read_model(described, inside))  # layers compiled one by one


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["_orig_mod.", "module.", "model.", "base.", "a.b."]), max_size=4).map("".join))
def test_any_wrapping_gives_the_same_names(wrapper):
    for family in FAMILIES.values():
        layer = f"{family.prefix}{family.layer}{'' if family.layer.endswith('0.') else '0.'}weight"
        names = [layer, f"{family.head_parts[0]}x"]
        written = family.read_names(f"{wrapper}{name}" for name in names)
        assert list(written.plain.values()) == names
        assert [written.write(name, family.prefix) for name in names] == [f"{written.outer}{name}" for name in names]


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_old_names_of_norms_are_todays(name):
    old = lambda name: name.replace("orm.weight", "orm.gamma").replace("orm.bias", "orm.beta")
    equal(*read(name, lambda weights: {old(name): weight for name, weight in weights.items()}))


def test_a_tied_head_may_be_the_one_that_was_kept():
    equal(*read("gpt2", lambda weights: {n.replace("transformer.wte", "lm_head"): w for n, w in weights.items()}))


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "roberta", "gpt2_untied"])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_a_value_that_is_not_finite_is_named(name, data):
    family, described, weights = variant(name)
    tensor = data.draw(st.sampled_from(sorted(weights)))
    value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    place = data.draw(st.integers(0, weights[tensor].size - 1))
    damaged = {**weights, tensor: weights[tensor].copy()}
    damaged[tensor].flat[place] = value
    with pytest.raises(ValueError, match=r"given (nan|inf|-inf) at \[.*allowed: finite numbers") as error:
        family.read_model(described, damaged)
    assert repr(tensor) in str(error.value) and "\n" not in str(error.value)


HEADS = [
    ("bert_classes", {"architectures": ["BertForTokenClassification"]}, "given architectures ['BertForTokenClass"),
    ("bert_classes", {"architectures": ["BertForMultipleChoice"]}, "given architectures ['BertForMultipleChoice']"),
    ("bert_classes", {"problem_type": "multi_label_classification"}, "allowed: 'single_label_classification'"),
    ("bert_classes", {"problem_type": "regression"}, "allowed: 'single_label_classification'"),
    ("bert_classes", {"id2label": {"0": "a", "1": "b"}}, "given 3 classes, allowed: 2, as id2label says"),
    ("roberta_classes", {"problem_type": "regression"}, "allowed: 'single_label_classification'"),
    ("roberta_classes", {"architectures": ["RobertaForTokenClassification"]}, "given architectures ['RobertaForTok"),
    ("distilbert", {"architectures": ["DistilBertForSequenceClassification"]}, "given architectures ['DistilBertFor"),
    ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "allowed: GPT2LMHeadModel, GPT2Model"),
    ("gpt2", {"architectures": ["GPT2ForSequenceClassification"]}, "allowed: GPT2LMHeadModel, GPT2Model"),
    ("gpt2", {"quantization_config": {"quant_method": "gptq"}}, "hf_config['quantization_config']: given 'gptq'"),
    ("gpt2", {"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "allowed: False"),
    ("gpt2", {"activation_function": "mish"}, "given 'mish', allowed: "),
    ("roberta", {"pad_token_id": 0}, "hf_config['pad_token_id']: given 0, allowed: 1"),
    ("bert", {"is_decoder": True}, "hf_config['is_decoder']: given True, allowed: False"),
]  # fmt: skip


@pytest.mark.parametrize(
    "name, change, message", HEADS, ids=[f"{n}-{next(iter(c))}{i}" for i, (n, c, _) in enumerate(HEADS)]
)
def test_what_is_not_known_is_one_line(name, change, message):
    family, described, weights = variant(name)
    with pytest.raises(ValueError) as error:
        family.read_model({**described, **change}, weights)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_regression_is_no_classification():
    family, described, weights = variant("bert_classes")
    weights |= {
        "classifier.weight": weights["classifier.weight"][:1],
        "classifier.bias": weights["classifier.bias"][:1],
    }
    with pytest.raises(ValueError, match="given 1 row, a regression, allowed: 2 or more classes"):
        family.read_model({**described, "id2label": {"0": "LABEL_0"}}, weights)


def test_integers_are_no_weights():
    family, described, weights = variant("gpt2")
    weights["transformer.h.0.mlp.c_fc.weight"] = weights["transformer.h.0.mlp.c_fc.weight"].astype(np.int8)
    with pytest.raises(ValueError, match="c_fc.weight has the type int8 and not one of 16 bits or more"):
        family.read_model(described, weights)


def test_dropouts_that_differ_are_said():
    family, described, weights = variant("gpt2")
    read = family.read_model({**described, "embd_pdrop": 0.3}, weights)
    assert read.model.dropout == 0.1
    assert read.notes == (
        "hf_config['embd_pdrop']: given 0.3, trained here with 0.1; what the weights compute is the same",
    )


def write_packed(folder):
    """A GPT-2 that was compiled, wrapped, padded, halved and cut into files."""
    made.gpt2(folder)
    described = json.loads((folder / folders.CONFIG_FILE).read_text())
    rows = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    whole = {n: np.concatenate([w, rows]) if "wte" in n else w for n, w in made.read(folder).items()}
    half = {f"module._orig_mod.{n}": w.astype(ml_dtypes.bfloat16) for n, w in whole.items()}
    half = {n: w.astype(np.float32) if "ln_f" in n else w for n, w in half.items()}
    (folder / folders.WEIGHTS_FILE).unlink()
    folders.write_folder(folder, {**described, "vocab_size": 64, "dtype": "bfloat16"}, half, shard_bytes=4000)
    return folder


def test_all_packaging_at_once_comes_back(tmp_path):
    folder = write_packed(tmp_path / "weights")
    run = import_run(folder, tmp_path / "run")
    assert run.vocab_size == 61 and "3 rows behind the 61 ids of the tokenizer are padding" in run.notes[0]
    exported = export_run(tmp_path / "run", tmp_path / "again")
    again, source = folders.read_folder(tmp_path / "again"), folders.read_folder(folder)
    assert again[0].items() >= source[0].items() and again[1].keys() == source[1].keys()
    for name, weight in source[1].items():
        np.testing.assert_array_equal(again[1][name], weight, err_msg=name, strict=True)
    assert {file.name for file in folder.iterdir()} <= set(exported.files)
    assert (
        json.loads((tmp_path / "again" / folders.INDEX_FILE).read_text())["weight_map"]
        == (json.loads((folder / folders.INDEX_FILE).read_text())["weight_map"])
    )


def test_a_name_of_the_hub_is_downloaded(tmp_path, monkeypatch):
    asked, folder = [], made.gpt2(tmp_path / "weights")

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert import_run("org/name", tmp_path / "run").vocab_size == 61
    ((name, patterns),) = asked
    assert name == "org/name" and {"config.json", "*.safetensors", "tokenizer.json", "merges.txt"} <= set(patterns)
    assert not any(pattern.endswith((".bin", ".py", ".h5", ".msgpack")) for pattern in patterns)


def offline(name, allow_patterns):
    raise OSError("Name or service\nnot known")


@pytest.mark.parametrize(
    "library, given, message",
    [
        (None, "org/name", "it needs huggingface_hub: pip install"),
        (offline, "org/name", "cannot be downloaded (Name or service not known)"),
        (None, "nothing", "is no folder, allowed: "),
        (None, "a/b/c", "is no folder, allowed: "),
        (None, "/tmp/no such folder", "is no folder, allowed: "),
        (None, "org/", "is no folder, allowed: "),
        (None, "../up", "is no folder, allowed: "),
        (None, "https://huggingface.co/org/name", "is no folder, allowed: "),
    ],
)
def test_a_name_that_cannot_be_read_is_one_line(library, given, message, tmp_path, monkeypatch, capsys):
    module = None if library is None else types.SimpleNamespace(snapshot_download=library)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    assert cli.main(["import", "--weights", given, "--run", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err.strip()
    assert message in line and "\n" not in line and not (tmp_path / "run").exists()
