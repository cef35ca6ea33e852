"""Small models of transformers with other options than the usual ones, and weights that are made by name.

Both sides make the same weights: `tools/golden_interop.py` for the classes of transformers, whose logits are in
`tests/golden/interop.npz`, and the tests for ours. Nothing but NumPy is needed here.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

VOCAB, LENGTH, LENGTHS = 61, 11, (3, 11, 29)
"""entries of the vocabulary; tokens of the texts of all variants, and of those with rotary positions"""
_BERT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
_BERT |= {"max_position_embeddings": 20, "vocab_size": VOCAB}
_DISTIL = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 20, "vocab_size": VOCAB}
_GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 20, "vocab_size": VOCAB}
_ROBERTA = {**_BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
_LLAMA = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_LLAMA |= {"intermediate_size": 40, "max_position_embeddings": 64, "vocab_size": VOCAB}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_GEMMA = {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 12, "final_logit_softcapping": 20.0}
_LISTS = {"short_factor": [1.0, 1.3, 2.0], "long_factor": [1.5, 4.0, 9.0]}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 1000.0}
_SHORT = {**_LONGROPE, "factor": 4.0, "partial_rotary_factor": 1.0}
_PHI3 = {**_LLAMA, "hidden_size": 32, "partial_rotary_factor": 0.75}
_PHI3 |= {"rope_parameters": {**_LONGROPE, **_LISTS, "partial_rotary_factor": 0.75}}
_LABELS = {"id2label": {str(n): f"LABEL_{n}" for n in range(3)}, "label2id": {f"LABEL_{n}": n for n in range(3)}}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", {**_BERT}),
    "bert_epsilon": ("BertForMaskedLM", {**_BERT, "layer_norm_eps": 0.1}),
    "bert_relu": ("BertForMaskedLM", {**_BERT, "hidden_act": "relu"}),
    "bert_silu_one_type": ("BertForMaskedLM", {**_BERT, "hidden_act": "silu", "type_vocab_size": 1}),
    "bert_untied": ("BertForMaskedLM", {**_BERT, "tie_word_embeddings": False}),
    "bert_classes": ("BertForSequenceClassification", {**_BERT, **_LABELS, "hidden_act": "gelu_new"}),
    "bert_spans": ("BertForQuestionAnswering", {**_BERT, "hidden_act": "quick_gelu"}),
    "distilbert": ("DistilBertForMaskedLM", {**_DISTIL}),
    "distilbert_relu": ("DistilBertForMaskedLM", {**_DISTIL, "activation": "relu"}),
    "roberta": ("RobertaForMaskedLM", {**_ROBERTA}),
    "roberta_relu": ("RobertaForMaskedLM", {**_ROBERTA, "hidden_act": "relu"}),
    "roberta_classes": ("RobertaForSequenceClassification", {**_ROBERTA, **_LABELS}),
    "gpt2": ("GPT2LMHeadModel", {**_GPT2}),
    "gpt2_epsilon": ("GPT2LMHeadModel", {**_GPT2, "layer_norm_epsilon": 0.1}),
    "gpt2_relu2": ("GPT2LMHeadModel", {**_GPT2, "activation_function": "relu2", "n_inner": 40}),
    "gpt2_tanh": ("GPT2LMHeadModel", {**_GPT2, "activation_function": "tanh"}),
    "gpt2_untied": ("GPT2LMHeadModel", {**_GPT2, "tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", {**_LLAMA}),
    "llama_3": (
        "LlamaForCausalLM",
        {**_LLAMA, "head_dim": 8, "rms_norm_eps": 0.1, "tie_word_embeddings": True}
        | {"rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 16}},
    ),
    "llama_biases": (
        "LlamaForCausalLM",
        {**_LLAMA, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "rope_theta": 100.0}
        | {"hidden_act": "gelu_pytorch_tanh", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", {**_LLAMA, "rope_parameters": _YARN}),
    "qwen3": ("Qwen3ForCausalLM", {**_LLAMA, "head_dim": 8, "num_key_value_heads": 1}),
    "qwen2_windows": (
        "Qwen2ForCausalLM",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**_LLAMA, **_GEMMA, "layer_types": ["sliding_attention", "full_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {**_LLAMA, "rms_norm_eps": 0.1}),
    "olmo3": (
        "Olmo3ForCausalLM",
        {**_LLAMA, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {**_YARN, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            }
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", {**_LLAMA, "no_rope_layers": [1, 0]}),
    "granite": (
        "GraniteForCausalLM",
        {**_LLAMA, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 0.25}
        | {"attention_multiplier": 0.3},
    ),
    "gemma2": ("Gemma2ForCausalLM", {**_LLAMA, **_GEMMA, "attn_logit_softcapping": 2.0}),
    "phi3": ("Phi3ForCausalLM", {**_PHI3, "original_max_position_embeddings": 2}),
    "phi3_short": (
        "Phi3ForCausalLM",
        {**_PHI3, "original_max_position_embeddings": 64, "sliding_window": 4, "partial_rotary_factor": 1.0}
        | {"rope_parameters": {name: [*numbers, 3.0] for name, numbers in _LISTS.items()} | _SHORT},
    ),
}
"""name -> class, and its configuration"""
FIXED_AT_IMPORT = {"phi3": ("rope_parameters",), "phi3_short": ("rope_parameters",)}
"""name -> keys that an import changes, since it chooses one of two lists of divisors"""
MODEL_TYPES = {"Bert": "bert", "DistilBert": "distilbert", "Roberta": "roberta", "GPT2": "gpt2"}
MODEL_TYPES |= {name: name.lower() for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Olmo2", "Olmo3")}
MODEL_TYPES |= {"SmolLM3": "smollm3", "Granite": "granite", "Gemma2": "gemma2", "Gemma3": "gemma3_text", "Phi3": "phi3"}


def describe(name: str) -> dict[str, Any]:
    """Returns the config.json of a variant."""
    class_name, settings = VARIANTS[name]
    model_type = next(kind for start, kind in MODEL_TYPES.items() if class_name.startswith(start))
    return {"model_type": model_type, "architectures": [class_name], **settings}


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the values of a tensor, which its name alone decides: large enough that logits spread by 3 and more."""
    values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    if name.endswith(".weight") and len(shape) == 1:
        values = 1 + 0.3 * values
    elif "embedding" in name or ".wte." in name or ".wpe." in name or len(shape) == 1:
        values = 0.5 * values
    else:
        values = (
            (40 if name.startswith("classifier.") else 8 if name.startswith("qa_outputs.") else 1.5)
            * values
            / np.sqrt(max(shape))
        )
    return values.astype(np.float32)


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns the tensors of a model."""
    return {name: tensor(name, shape) for name, shape in shapes.items()}


def inputs(length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of two texts without the ids below 4, and a mask: the second text lacks the last ones."""
    ids = np.random.default_rng(5 if length == LENGTH else length).integers(4, VOCAB, (2, length))
    mask = np.ones((2, length), bool)
    mask[1, max(length - 3, 2) :] = False
    return np.where(mask, ids, 1), mask


def golden_name(name: str, length: int) -> str:
    """Returns the name of the logits of texts of `length` tokens among the goldens."""
    return name if length == LENGTH else f"{name}:{length}"


def lengths(name: str) -> tuple[int, ...]:
    """Returns the lengths of the texts whose logits are goldens: several where `describe` names rotary positions."""
    return LENGTHS if "num_key_value_heads" in VARIANTS[name][1] else (LENGTH,)
