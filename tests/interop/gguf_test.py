"""GGUF files: their models are those of folders of transformers, and what cannot be read is refused in one line."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from memjax import cli
from memjax.interop import folders
from memjax.interop.families import FAMILIES
from memjax.interop.gguf_files import TYPES, read_gguf
from memjax.interop.gguf_models import convert_gguf, describe_model, rename_tensors, restore_row_order
from memjax.interop.runs import export_run, import_run
from tests.interop import gguf_making, variants
from tests.interop.variants_test import LIMIT, difference, logits_of

gguf = pytest.importorskip("gguf")

LINEAR = {"rope_type": "linear", "factor": 8.0}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "llama": {},
    "llama_biases": {"hidden_act": "silu"},
    "qwen2": {
        "rope_parameters": None,
        "rope_theta": 1000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "qwen3": {"tie_word_embeddings": True},
    "gemma3": {
        "layer_types": None,
        "query_pre_attn_scalar": 8,
        "rope_parameters": None,
        "rope_theta": 1000.0,
        "rope_scaling": LINEAR,
    },
    "gemma2": {"query_pre_attn_scalar": 8},
    "olmo2": {},
    "olmo3": {"layer_types": None, "rope_parameters": None, "rope_theta": 1000.0, "rms_norm_eps": 1e-5},
    "smollm3": {"no_rope_layers": None},
    "granite": {},
}
"""variant -> keys that a GGUF file cannot say, or says in another way"""


@pytest.mark.parametrize("name", [name for name in MODELS if name != "olmo3"])
def test_a_file_gives_the_model_of_a_folder(name, tmp_path):
    described, theirs, written = gguf_making.tensors(name, **MODELS[name])
    file = read_gguf(gguf_making.write(tmp_path / "model.gguf", described, written))
    ours, weights = describe_model(file), rename_tensors(file)
    family = FAMILIES[described["model_type"]]
    expected, read = family.read_model(described, theirs), family.read_model(ours, weights)
    assert read.model == expected.model
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-7), read.params, expected.params)
    assert (ours["bos_token_id"], ours["eos_token_id"], ours["vocab_size"]) == (1, 2, variants.VOCAB)


def test_windows_make_an_olmo_2_an_olmo_3(tmp_path):
    described, _, written = gguf_making.tensors("olmo3", **MODELS["olmo3"])
    ours = describe_model(read_gguf(gguf_making.write(tmp_path / "model.gguf", described, written)))
    assert ours["architectures"] == ["Olmo3ForCausalLM"]
    assert FAMILIES["olmo3"].model_config(ours) == FAMILIES["olmo3"].model_config(described)


def test_factors_of_frequencies_are_those_of_llama_3(tmp_path):
    rope = {**LLAMA_3, "original_max_position_embeddings": 8192}
    described, _, written = gguf_making.tensors(
        "llama_3", rope_parameters=None, rope_theta=500_000.0, rope_scaling=rope, head_dim=8
    )
    # The equations of Llama 3.1, frequency by frequency.
    factors = []
    for index in range(4):
        period = 2 * np.pi * 500_000.0 ** (index / 4)
        smooth = (8192 / period - 1) / 3
        factors.append(1 if period < 8192 / 4 else 8 if period > 8192 else 1 / ((1 - smooth) / 8 + smooth))
    arrays = {**written, "rope_freqs.weight": np.array(factors, np.float32)}
    ours = describe_model(read_gguf(gguf_making.write(tmp_path / "model.gguf", described, arrays)))
    assert FAMILIES["llama"].model_config(ours) == FAMILIES["llama"].model_config(described)
    arrays["rope_freqs.weight"] = np.array([1, 1, 2, 8], np.float32)
    with pytest.raises(ValueError, match="weights.'rope_freqs.weight'.: given .*, allowed: the factors of Llama 3.1"):
        describe_model(read_gguf(gguf_making.write(tmp_path / "other.gguf", described, arrays)))


def test_without_the_order_of_rows_logits_are_others(tmp_path):
    described, _, written = gguf_making.tensors("llama")
    file = read_gguf(gguf_making.write(tmp_path / "model.gguf", described, written))
    family, ours, weights = FAMILIES["llama"], describe_model(file), rename_tensors(file)
    read = family.read_model(ours, weights)
    assert difference("llama", logits_of(read.model, read.params, None)) <= LIMIT
    kept = {"q_proj": "attn_q", "k_proj": "attn_k"}
    as_written = dict(weights)
    for key in weights:
        for theirs, name in kept.items():
            if theirs in key:
                as_written[key] = file.tensors[f"blk.{key.split('.')[2]}.{name}.weight"]
    other = family.read_model(ours, as_written)
    assert difference("llama", logits_of(other.model, other.params, None)) > 0.05


@pytest.mark.parametrize("heads, shape", [(1, (4,)), (3, (12, 2)), (2, (8,))])
def test_the_order_of_rows_is_undone(heads, shape):
    weight = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(restore_row_order(gguf_making.permute(weight, heads), heads), weight)


def blocks(kind, rows, generator):
    """Raw bytes of rows of 256 numbers of a type, with scales that are finite."""
    number = gguf.GGMLQuantizationType[kind]
    if kind not in ("Q4_K", "Q6_K"):
        return gguf.quantize(generator.normal(size=(rows, 256)).astype(np.float32), number)
    raw = generator.integers(0, 256, (rows, gguf.GGML_QUANT_SIZES[number][1]), np.uint8)
    scale = np.array([0.01], np.float16).view(np.uint8)
    for place in {"Q4_K": (0, 2), "Q6_K": (208,)}[kind]:
        raw[:, place : place + 2] = scale
    return raw


@pytest.mark.parametrize("kind", TYPES)
def test_tensors_are_what_the_package_dequantises(kind, tmp_path):
    number, generator = gguf.GGMLQuantizationType[kind], np.random.default_rng(0)
    raw = blocks(kind, 6, generator)
    described, _, _ = gguf_making.tensors("llama")
    path = gguf_making.write(tmp_path / "model.gguf", described, {"a": raw}, {"a": number})
    read = read_gguf(path).tensors["a"]
    assert read.shape == (6, 256)
    assert read.dtype.name == {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")
    np.testing.assert_array_equal(read.astype(np.float32), gguf.dequantize(raw, number))
    assert np.unique(read.astype(np.float32)).size > 8


def test_a_run_of_a_file_is_exported_for_transformers(tmp_path):
    described, theirs, written = gguf_making.tensors("llama")
    half = {name: array.astype(np.float16) if array.ndim == 2 else array for name, array in written.items()}
    path = gguf_making.write(tmp_path / "model.gguf", described, half)
    run = import_run(path, tmp_path / "run")
    assert run.left == () and run.vocab_size == variants.VOCAB
    export_run(tmp_path / "run", tmp_path / "folder")
    ours, weights = folders.read_folder(tmp_path / "folder")
    assert ours["architectures"] == ["LlamaForCausalLM"] and ours["rms_norm_eps"] == 1e-6
    assert ours["dtype"] == "float16"
    assert weights.keys() == theirs.keys()
    for name, weight in theirs.items():
        expected = weight.astype(np.float16) if weight.ndim == 2 else weight
        np.testing.assert_array_equal(weights[name], expected, err_msg=name, strict=True)
    generation = json.loads((tmp_path / "folder" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 0]}
    settings = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == gguf_making.TEMPLATE and settings["eos_token"] == "<|im_end|>"


def test_parts_of_a_split_file_are_read_together(tmp_path):
    described, theirs, written = gguf_making.tensors("llama")
    names = list(written)
    parts = [tmp_path / f"model-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for part, chosen in zip(parts, (names[::2], names[1::2]), strict=True):
        gguf_making.write(part, described, {name: written[name] for name in chosen}, split__count=2)
    (tmp_path / "folder").mkdir()
    assert convert_gguf(parts[1], tmp_path / "folder").keys() == theirs.keys()
    parts[0].unlink()
    with pytest.raises(ValueError, match="model-00001-of-00002.gguf is missing, allowed: all 2 parts"):
        read_gguf(parts[1])
    with pytest.raises(ValueError, match="allowed: the names of 2 parts"):
        read_gguf(parts[1].rename(tmp_path / "model.gguf"))


@dataclasses.dataclass
class Bad:
    """A file that cannot be imported, made of the parts of one that can."""

    described: dict
    arrays: dict
    path: Path

    def write(self, **more):
        gguf_making.write(self.path, self.described, self.arrays, **more)


def cut(bad):
    bad.write()
    bad.path.write_bytes(bad.path.read_bytes()[:-5000])


def cut_early(bad):
    bad.write()
    bad.path.write_bytes(bad.path.read_bytes()[:700])


def no_gguf(bad):
    bad.path.write_bytes(b"no such file at all")


def other_architecture(bad):
    bad.write()
    bad.path.write_bytes(bad.path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0bloom"))


def experts(bad):
    bad.write(llama__expert_count=8)


def missing(bad):
    bad.arrays.pop("blk.1.ffn_up.weight")
    bad.write()


def unknown(bad):
    bad.arrays["blk.0.ffn_gate_inp.weight"] = np.ones((2, 2), np.float32)
    bad.write()


def other_type(bad):
    bad.arrays["blk.0.ffn_up.weight"] = np.zeros((4, 110), np.uint8)
    bad.write(kinds={"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.Q3_K})


def not_finite(bad):
    bad.arrays["output_norm.weight"] = np.full(24, np.nan, np.float32)
    bad.write()


def wrong_shape(bad):
    bad.arrays["output_norm.weight"] = np.ones(23, np.float32)
    bad.write()


def other_text(bad):
    bad.write(pre="no-such-kind")


BAD = [
    (cut, "which is damaged or cut .*, allowed: a whole file"),
    (cut_early, "which is damaged or cut .*, allowed: a whole file"),
    (no_gguf, "is no folder, allowed: .*a GGUF file"),
    (other_architecture, "general.architecture: given 'bloom', allowed: llama, qwen2, "),
    (experts, "llama.expert_count: given 8, allowed: 0, since mixtures"),
    (missing, "1 tensor does not fit the model: model.layers.1.mlp.up_proj.weight is missing; allowed: a Llama"),
    (unknown, "'blk.0.ffn_gate_inp.weight'.: given 'a tensor of llama', allowed: attn_q, "),
    (other_type, "'blk.0.ffn_up.weight'.: given 'type Q3_K', allowed: F32, F16, BF16, Q8_0, "),
    (not_finite, "'model.norm.weight'.: given nan at .0., 24 of 24 values not finite, allowed: finite numbers"),
    (wrong_shape, "model.norm.weight has shape .23,. and not .24,."),
    (other_text, "tokenizer.ggml.pre: given 'no-such-kind', allowed: gpt-2, default"),
]


@pytest.mark.parametrize("damage, message", BAD, ids=[damage.__name__ for damage, _ in BAD])
def test_what_cannot_be_read_is_one_line(damage, message, tmp_path, capsys):
    described, _, written = gguf_making.tensors("llama")
    path = tmp_path / "model.gguf"
    damage(Bad(described, written, path))
    assert cli.main(["import", "--weights", str(path), "--run", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr()
    line = shown.err.strip()
    assert re.search(message, line) and "\n" not in line, line
    assert not shown.out and not (tmp_path / "run").exists()
