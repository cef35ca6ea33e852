"""Finds the architecture of Hugging Face's `transformers` of a folder or of a run."""

from collections.abc import Mapping
from typing import Any, get_args

from memjax import config
from memjax.interop import folders, hf_bert, hf_gpt2, hf_llama, hf_llama_kin, hf_roberta, hf_transfo_xl
from memjax.interop.family import ModelFamily

_ALL: tuple[ModelFamily, ...] = (
    hf_gpt2.FAMILY,
    hf_bert.BERT,
    hf_bert.DISTILBERT,
    hf_roberta.FAMILY,
    hf_transfo_xl.FAMILY,
    hf_llama.LLAMA,
    *hf_llama_kin.KIN,
)
FAMILIES = {family.model_type: family for family in _ALL}
"""`model_type` of config.json -> its family"""

LEFT_OUT = {
    "kv_lora_rank": "latent attention",
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "vision_config": "a model of images",
}
"""key of a `config.json` -> architecture that is not imported"""


def family_of_weights(described: Mapping[str, Any]) -> ModelFamily:
    """Returns the family, an importer and exporter, for a `config.json` that has been read as a dict. Its `model_type`
    decides.

    Args:
      described: The configuration, as `config.json` has it.

    Raises:
      ValueError: A configuration that names no family, or one that is not known.
    """
    kind = described.get("model_type")
    if kind not in FAMILIES:
        allowed = ", ".join(map(repr, FAMILIES))
        left_out = next((f", {what}" for key, what in LEFT_OUT.items() if described.get(key)), "")
        raise ValueError(f"{folders.CONFIG_FILE}: given model_type {kind!r}{left_out}, allowed: {allowed}")
    return FAMILIES[kind]


def family_of_run(model: config.ModelBase) -> ModelFamily:
    """Returns the family with which a model of these settings is exported to transformers. Its memory is left out of an
    export.

    Args:
      model: Settings of the model.

    Raises:
      ValueError: Transformers has no such model.
    """
    kind = "" if model.translates else model.memory_facts.hf_model_type
    if kind not in FAMILIES:
        description = type(model).__name__ if model.translates else model.attention_kind
        allowed = [kind.__name__ for kind in get_args(config.AttentionKind) if kind().hf_model_type]
        raise ValueError(
            f"export: given {description}, which transformers does not have, allowed: {', '.join(allowed)}"
        )
    return FAMILIES[kind]
