"""GGUF files of the small models of `variants`, written with the names and keys of the package `gguf` itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.interop import variants, weights
from tests.interop.variants_test import make

ARCHITECTURES = {"gemma3_text": "gemma3", "olmo3": "olmo2"}
"""`model_type` -> name in GGUF files, where it is another"""
PERMUTED = ("llama", "smollm3", "granite")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Writes the rows of a matrix as llama.cpp does: the two halves of a head alternate."""
    halves = weight.reshape(num_heads, 2, len(weight) // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def tensors(name: str, **changed: Any) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the config.json of a variant with changes, its tensors, and those of a GGUF file of it."""
    import gguf

    family, described, _ = make(name)
    described = described | changed
    model = family.model_config(described)
    shapes = {
        key: tuple(variants.VOCAB if size == -1 else size for size in shape)
        for entry in family.tensors(model, None)
        for key, shape in entry.tensors.items()
    }
    theirs = variants.weights(shapes)
    kind = described["model_type"]
    architecture = ARCHITECTURES.get(kind, kind)
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(number, described["num_hidden_layers"])
    written = {}
    for key, weight in theirs.items():
        if kind in PERMUTED and ("q_proj" in key or "k_proj" in key):
            heads = described["num_key_value_heads" if "k_proj" in key else "num_attention_heads"]
            weight = permute(weight, heads)
        if kind.startswith("gemma") and "norm" in key:
            weight = weight + np.float32(1)
        stem, _, ending = key.rpartition(".")
        written[f"{names.get_name(stem)}.{ending}"] = weight
    return described, theirs, written


def tokens() -> tuple[list[str], list[str]]:
    """Returns the tokens and the merges of a byte-level vocabulary of 61 entries."""
    pieces = [*SPECIAL, *weights.CHARACTERS, *(merge.replace(" ", "") for merge in weights.MERGES)]
    pieces += [f"Ġ{letter}" for letter in "bcdefghij"]
    return pieces[: variants.VOCAB], list(weights.MERGES)


def write(
    path: Path,
    described: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    kinds: Mapping[str, Any] = {},
    **more: Any,
) -> Path:
    """Writes a GGUF file.

    Args:
      path: The file.
      described: config.json of the model.
      arrays: Tensors.
      kinds: Name of a tensor that is given as raw bytes -> its type.
      **more: Further keys, with `__` for dots.
    """
    import gguf

    kind = ARCHITECTURES.get(described["model_type"], described["model_type"])
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(described["max_position_embeddings"])
    writer.add_embedding_length(described["hidden_size"])
    writer.add_block_count(described["num_hidden_layers"])
    writer.add_feed_forward_length(described["intermediate_size"])
    writer.add_head_count(described["num_attention_heads"])
    writer.add_head_count_kv(described["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(described.get("rms_norm_eps", 1e-6))
    for key, add in (
        ("head_dim", writer.add_key_length),
        ("sliding_window", writer.add_sliding_window),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("attention_multiplier", writer.add_attention_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("rope_theta", writer.add_rope_freq_base),
    ):
        if described.get(key) is not None:
            add(described[key])
    rope = described.get("rope_scaling") or {}
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    pieces, merges = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(more.pop("pre", "smollm"))
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in SPECIAL else 1 for piece in pieces])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for key, value in more.items():
        writer.add_uint32(key.replace("__", "."), value)
    for name, array in arrays.items():
        writer.add_tensor(name, array, raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
