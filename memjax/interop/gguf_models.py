"""Models in GGUF files, the format of llama.cpp, as models of Hugging Face's `transformers`: names of tensors, keys of
`config.json`, and files of the tokenizer. Their families then read them as they read a folder of transformers.

Where llama.cpp rotates neighbouring entries of queries and keys, its files have the rows of these matrices in another
order. It is undone here.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.durable_files import write_json
from memjax.interop import folders
from memjax.interop.gguf_files import GgufFile, read_gguf
from memjax.interop.gguf_tokenizers import tokenizer_files
from memjax.interop.hf_llama import LLAMA
from memjax.interop.hf_llama_kin import KIN
from memjax.settings.checks import require

KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
"""key of a GGUF file behind the name of its architecture -> key of `config.json`"""
SCALING_KEYS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""key behind `rope.scaling.` -> key of `rope_scaling`"""
TOKEN_KEYS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
"""key of `config.json` -> key behind `tokenizer.ggml.`"""
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""keys behind `tokenizer.ggml.` of tokens that end a text"""
OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""name of a tensor outside of the layers, without its ending -> name in transformers"""
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""name of a tensor of a layer, without its ending -> name in transformers"""
FACTORS = "rope_freqs.weight"
"""tensor by whose entries the frequencies of rotary positions are divided, in files of Llama 3.1 and later"""
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""keys of `rope_scaling` besides the factor, which are the same for all models of Llama 3.1 and later"""
_FAMILIES = {family.model_type: family for family in (LLAMA, *KIN)}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The differences of an architecture of GGUF files to its family in transformers.

    Attributes:
      model_type: Family in transformers.
      keys: Further keys behind the name of the architecture -> keys of `config.json`.
      layer: Names of tensors that differ from `LAYER`.
      permutes: Whether the rows of the matrices of queries and keys are in the order of llama.cpp.
      norm_offset: Number that was added to the factors of all norms.
      query_scale_layers: Number of layers of the one model whose scores have the scale of the width of the model
        divided by the number of heads, instead of that of the width of a head. 0 for no such scale in `config.json`.
    """

    model_type: str
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    layer: Mapping[str, str] = dataclasses.field(default_factory=dict)
    permutes: bool = False
    norm_offset: float = 0.0
    query_scale_layers: int = 0


_GEMMA = {"layer": {"ffn_norm": "pre_feedforward_layernorm"}, "norm_offset": 1.0}
ARCHITECTURES = {
    "llama": Architecture("llama", permutes=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma3": Architecture(
        "gemma3_text",
        {
            "final_logit_softcapping": "final_logit_softcapping",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        query_scale_layers=62,
        **_GEMMA,
    ),
    "olmo2": Architecture("olmo2"),
    "smollm3": Architecture("smollm3", permutes=True),
    "granite": Architecture(
        "granite",
        {
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        permutes=True,
    ),
    "gemma2": Architecture(
        "gemma2",
        {
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        query_scale_layers=46,
        **_GEMMA,
    ),
}
"""`general.architecture` of a GGUF file -> its differences, in the order of messages"""


def convert_gguf(path: Path, folder: Path) -> dict[str, np.ndarray]:
    """Writes `config.json`, `generation_config.json` and the files of the tokenizer of a GGUF file to a folder, and
    returns its state dict with the names of transformers.

    Args:
      path: The GGUF file, or one part of it.
      folder: An existing folder.

    Raises:
      ValueError: See `read_gguf`; or an architecture, a tensor, rotary positions or a tokenizer that are not known.
    """
    file = read_gguf(path)
    files = {folders.CONFIG_FILE: describe_model(file), "generation_config.json": describe_generation(file.metadata)}
    weights = rename_tensors(file)
    for name, content in (files | tokenizer_files(file.metadata)).items():
        write_json(folder / name, content, indent=None, checked=False)
    return weights


def architecture_of(file: GgufFile) -> Architecture:
    """Returns the `Architecture` of a file.

    Raises:
      ValueError: One that is not known, or a mixture of experts.
    """
    name = file.metadata.get("general.architecture")
    require(name in ARCHITECTURES, "general.architecture", name, ", ".join(ARCHITECTURES))
    experts = file.metadata.get(f"{name}.expert_count") or 0
    require(not experts, f"{name}.expert_count", experts, "0, since mixtures of experts are not read")
    return ARCHITECTURES[str(name)]


def describe_model(file: GgufFile) -> dict[str, Any]:
    """Returns the `config.json` of the model in a file.

    Raises:
      ValueError: An architecture or rotary positions that are not known, or a key that is missing.
    """
    architecture, metadata, tensors = architecture_of(file), file.metadata, file.tensors
    name, model_type = metadata["general.architecture"], architecture.model_type
    keys = {f"{name}.{key}": theirs for key, theirs in {**KEYS, **architecture.keys}.items()}
    described = {theirs: metadata[key] for key, theirs in keys.items() if metadata.get(key) is not None}
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours = next(ours for ours, theirs in KEYS.items() if theirs == key)
        require(isinstance(described.get(key), int), f"{name}.{ours}", described.get(key), "a number for all layers")
    require("token_embd.weight" in tensors, "weights", [*tensors][:3], "with token_embd.weight")
    head_dim = described.get("head_dim") or described["hidden_size"] // described["num_attention_heads"]
    described |= {"head_dim": head_dim, **_positions(file, name, described, head_dim)}
    pattern = metadata.get(f"{name}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        described["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
    elif pattern is not None:
        described["sliding_window_pattern"] = pattern
    if model_type == "olmo2" and "sliding_window" in described:
        model_type = "olmo3"  # llama.cpp has one name for both
    if architecture.query_scale_layers:
        is_wide = described["num_hidden_layers"] == architecture.query_scale_layers
        wide = described["hidden_size"] // described["num_attention_heads"]
        described["query_pre_attn_scalar"] = wide if is_wide else head_dim
    return {
        "architectures": [f"{_FAMILIES[model_type].classes}ForCausalLM"],
        "model_type": model_type,
        **described,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": len(tensors["token_embd.weight"]),
        "dtype": _main_type(tensors.values()),
        **_token_ids(metadata),
    }


def describe_generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `generation_config.json` of a model: ids of the begin and the padding, and of all ends."""
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    ends = list(dict.fromkeys(end for end in ends if end is not None))
    return _token_ids(metadata) | ({"eos_token_id": ends} if len(ends) > 1 else {})


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ids of the begin, the end and the padding that a file has, by their keys in transformers."""
    ids = {theirs: metadata.get(f"tokenizer.ggml.{key}") for theirs, key in TOKEN_KEYS.items()}
    return {key: number for key, number in ids.items() if number is not None}


def rename_tensors(file: GgufFile) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by their names in transformers, with rows and norms as transformers has them.

    Raises:
      ValueError: A tensor that the architecture does not have.
    """
    architecture, metadata = architecture_of(file), file.metadata
    name = metadata["general.architecture"]
    heads = metadata[f"{name}.attention.head_count"]
    rows = {"attn_q": heads, "attn_k": metadata.get(f"{name}.attention.head_count_kv", heads)}
    weights: dict[str, np.ndarray] = {}
    for key, tensor in file.tensors.items():
        if key == FACTORS:
            continue
        match = _TENSOR.fullmatch(key)
        layer, part, ending = match.groups() if match else (None, "", "")
        names = OUTER if layer is None else LAYER | dict(architecture.layer)
        require(part in names, f"weights[{key!r}]", f"a tensor of {name}", f"{', '.join(names)}, in layers or outside")
        if architecture.permutes and part in rows:
            tensor = restore_row_order(tensor, rows[part])
        if architecture.norm_offset and part.endswith("norm"):
            tensor = tensor - np.asarray(architecture.norm_offset, tensor.dtype)
        weights[f"{'' if layer is None else f'model.layers.{layer}.'}{names[part]}.{ending}"] = tensor
    return weights


def restore_row_order(tensor: np.ndarray, num_heads: int) -> np.ndarray:
    """Returns the rows of a matrix of queries or keys, or of their bias, in the order of transformers.

    llama.cpp rotates the entries 2 i and 2 i + 1 of a head together, and transformers the entries i and i + width / 2.

    Args:
      tensor: Matrix `[num_heads * width, inputs]`, or bias `[num_heads * width]`.
      num_heads: Number of heads.

    Example:
      >>> restore_row_order(np.arange(8), 2).tolist()
      [0, 2, 1, 3, 4, 6, 5, 7]
    """
    pairs = tensor.reshape(num_heads, -1, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def _positions(file: GgufFile, name: str, described: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """Returns the keys of `config.json` for rotary positions, besides the base."""
    scaling = {key: file.metadata.get(f"{name}.rope.scaling.{key}") for key in ("type", *SCALING_KEYS)}
    rotated = file.metadata.get(f"{name}.rope.dimension_count", head_dim)
    keys = {} if rotated == head_dim else {"partial_rotary_factor": rotated / head_dim}
    if FACTORS in file.tensors:
        return {**keys, "rope_scaling": _llama_3_scaling(file.tensors[FACTORS], described, rotated)}
    if scaling["type"] in (None, "none"):
        return keys
    known = {theirs: scaling[key] for key, theirs in SCALING_KEYS.items() if scaling[key] is not None}
    return {**keys, "rope_scaling": {"rope_type": scaling["type"], **known}}


def _llama_3_scaling(factors: np.ndarray, described: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Returns the `rope_scaling` with which transformers divides frequencies by the `factors` of a file.

    Raises:
      ValueError: Other factors than those of Llama 3.1 and later.
    """
    factor, length = float(factors.max()), LLAMA_3["original_max_position_embeddings"]
    low, high = LLAMA_3["low_freq_factor"], LLAMA_3["high_freq_factor"]
    periods = 2 * np.pi * float(described.get("rope_theta", LLAMA.theta)) ** (np.arange(0, width, 2) / width)
    smooth = np.clip((length / periods - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    fits = factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-4)
    require(fits, f"weights[{FACTORS!r}]", factors.tolist()[:4], f"the factors of Llama 3.1 for {factor:g}")
    return {"rope_type": "llama3", "factor": factor, **LLAMA_3}


def _main_type(tensors: Iterable[np.ndarray]) -> str:
    """Returns the name of the dtype that most values of `tensors` have."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype.name] = sizes.get(tensor.dtype.name, 0) + tensor.size
    return max(sizes, key=sizes.__getitem__)
