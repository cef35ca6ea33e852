"""Mistral, Qwen, Gemma, OLMo, SmolLM3, Granite and Phi-3 of Hugging Face `transformers`, by their differences to Llama.

A family names the settings that its models share (`attention`) and the keys of `config.json` (`fields`). All else is
inherited from `memjax.interop.hf_llama.Llama`. Mixtures of experts, latent attention and vision are left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from memjax import config
from memjax.interop import config_keys as keys
from memjax.interop.config_keys import Described
from memjax.interop.hf_llama import Llama, rotary_attention, write_positions
from memjax.interop.tensor_names import Names

__all__ = ["KIN"]

GEMMA_HEAD_DIM = 256
_SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    "max_position_embeddings",
)
OFFSET_NORMS = {"norm": "both", "norm_kind": "rms_offset"}


class Mistral(Llama):
    """The family of Mistral (Jiang et al. 2023): Llama with a window of attention in all layers."""

    name, model_type, classes = "Mistral", "mistral", "Mistral"
    fields = (
        *keys.without(Llama.fields, "attention_bias", "mlp_bias"),
        keys.optional_key("sliding_window", 4096, "attention.window"),
    )


class Qwen2(Llama):
    """The family of Qwen 2 and Qwen 2.5, whose queries, keys and values have biases that no key of `config.json`
    names, and whose layers have windows from `max_window_layers` on.
    """

    name, model_type, classes = "Qwen 2", "qwen2", "Qwen2"
    attention = {"bias": True}
    has_layer_types = True
    set_by_finish = ("attention.local_layers",)
    fields = (
        *keys.without(Llama.fields, "attention_bias", "mlp_bias"),
        keys.Field("use_sliding_window", False),
        keys.Field("sliding_window", None),
        keys.Field("max_window_layers", 28),
    )

    def layer_types(self, described: Described) -> list[str]:
        """Returns the kinds of the layers: those from `max_window_layers` on have a window, if there is one."""
        layers, first = described["num_hidden_layers"], described["max_window_layers"]
        has_window = described["use_sliding_window"] and described["sliding_window"]
        return ["sliding_attention" if has_window and index >= first else "full_attention" for index in range(layers)]

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns the keys of `config.json` for rotary positions and windows."""
        local = rotary_attention(model).local_layers
        first = min(local) if local else model.num_layers
        has_window = {"use_sliding_window": local is not None, "max_window_layers": first}
        return {**super().class_keys(model, task), **has_window}


class Qwen3(Qwen2):
    """The family of Qwen 3, which normalises the queries and keys of each head."""

    name, model_type, classes = "Qwen 3", "qwen3", "Qwen3"
    attention = {"query_key_norm": "head"}
    fields = (
        *keys.without(Llama.fields, "mlp_bias", "head_dim"),
        keys.head_dim_key("head_dim", 128, "hidden_size", "num_attention_heads"),
        *Qwen2.fields[-3:],
    )


class Gemma2(Llama):
    """The family of Gemma 2: norms before and after with factors 1 + w, every second layer with a window, limited
    scores, and embeddings times sqrt(dim).
    """

    name, model_type, classes = "Gemma 2", "gemma2", "Gemma2"
    attention = OFFSET_NORMS
    scales_embeddings = True
    has_layer_types = True
    set_by_finish = ("attention.local_layers",)
    fields = (
        *keys.without(Llama.fields, "mlp_bias", "head_dim", "hidden_act", "tie_word_embeddings"),
        keys.head_dim_key("head_dim", GEMMA_HEAD_DIM, "hidden_size", "num_attention_heads"),
        keys.gated_activation_key("hidden_activation", "gelu_pytorch_tanh"),
        keys.score_scale_key("query_pre_attn_scalar", GEMMA_HEAD_DIM),
        keys.optional_key("attn_logit_softcapping", 50.0, "attention.score_cap"),
        keys.optional_key("final_logit_softcapping", 30.0, "logit_cap"),
        keys.Field("sliding_window", 4096),
        keys.Field("tie_word_embeddings", True, "output.tied"),
    )

    def layer_types(self, described: Described) -> list[str]:
        """Returns the kinds of the layers: every second one, from the first on, has a window."""
        return [
            "full_attention" if index % 2 else "sliding_attention" for index in range(described["num_hidden_layers"])
        ]


class Gemma3(Gemma2):
    """The family of Gemma 3 for texts: five layers with a window and a theta of their own to each without, and norms of
    queries and keys.
    """

    name, model_type, classes = "Gemma 3", "gemma3_text", "Gemma3"
    attention = {**OFFSET_NORMS, "query_key_norm": "head"}
    theta, local_theta, positions_by_kind = 1e6, 10_000.0, True
    fields = (
        keys.Field("hidden_size", 2304, "dim"),
        keys.Field("num_hidden_layers", 26, "num_layers"),
        keys.Field("num_attention_heads", 8, "num_heads"),
        keys.key_heads_key("num_key_value_heads", 4, "num_attention_heads"),
        keys.hidden_size_key("intermediate_size", 9216, "hidden_size"),
        keys.Field("max_position_embeddings", 131_072, "attention.trained_length"),
        *keys.without(Gemma2.fields, *_SIZES, "attn_logit_softcapping", "final_logit_softcapping"),
        keys.optional_key("attn_logit_softcapping", None, "attention.score_cap"),
        keys.optional_key("final_logit_softcapping", None, "logit_cap"),
        keys.Field("sliding_window_pattern", 6),
        keys.fixed_key("use_bidirectional_attention", False),
    )

    def layer_types(self, described: Described) -> list[str]:
        """Returns the kinds of the layers: every sixth, or as `sliding_window_pattern` says, has no window."""
        period = described["sliding_window_pattern"]
        return [
            "sliding_attention" if (index + 1) % period else "full_attention"
            for index in range(described["num_hidden_layers"])
        ]


class Gemma3WithImages(Gemma3):
    """The language model of a Gemma 3 for texts and images. Its configuration is the key `text_config` of a larger one.
    The tensors of the images are kept for an export, and have no effect here.
    """

    name, model_type = "Gemma 3 with images", "gemma3"
    beside = ("vision_tower.", "multi_modal_projector.")
    fields = (
        *keys.without(Gemma3.fields, "final_logit_softcapping"),
        keys.fixed_key("final_logit_softcapping", None),  # which transformers' class does not read
    )

    def text_config(self, described: Described) -> Described:
        """Returns the keys of the language model, with the classes that the whole configuration names."""
        whole = {"model_type": self.model_type, "architectures": described.get("architectures")}
        return {**described["text_config"], **whole} if "text_config" in described else described

    def read_names(self, names: Iterable[str]) -> Names:
        """Returns a mapping from the names of the tensors in a state dict to the names in the table, those of the
        images unchanged.
        """
        names = [*names]
        beside = {name: name for name in names if any(part in name for part in self.beside)}
        texts = super().read_names([name for name in names if name not in beside])
        return texts._replace(plain={name: beside.get(name) or texts.plain[name] for name in names})

    def heads(self, described: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, None]:
        """Returns the names of transformers' classes that can be imported, as language models."""
        del described, weights
        return {"Gemma3ForConditionalGeneration": None, "Gemma3Model": None}

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns the name of the class of transformers with texts and images."""
        del model, task
        return "Gemma3ForConditionalGeneration"

    def export_config(
        self, model: config.Model, vocab_size: int, task: config.TaskKind | None = None
    ) -> dict[str, Any]:
        """Returns a dict for `config.json` that lacks the keys of the images, which an import has kept. See
        `ModelFamily.export_config`.
        """
        described = super().export_config(model, vocab_size, task)
        outer = {name: described.pop(name) for name in ("architectures", "model_type")}
        return {**outer, "text_config": {**described, "model_type": Gemma3.model_type}}


class Olmo2(Llama):
    """The family of OLMo 2: norms after attention and feed-forward parts only, and queries and keys that are normalised
    over all heads.
    """

    name, model_type, classes = "OLMo 2", "olmo2", "Olmo2"
    attention = {"norm": "after", "query_key_norm": "all"}
    fields = (
        *keys.without(Llama.fields, "mlp_bias", "head_dim", "rms_norm_eps"),
        keys.epsilon_key("rms_norm_eps", 1e-5, 1e-6),
    )


class Olmo3(Olmo2):
    """The family of OLMo 3: OLMo 2 with a window in three of four layers. Only the other layers have a kind of rotary
    positions with a factor.
    """

    name, model_type, classes = "OLMo 3", "olmo3", "Olmo3"
    theta, positions_by_kind, has_layer_types = 500_000.0, True, True
    set_by_finish = ("attention.local_layers",)
    fields = (*Olmo2.fields, keys.Field("sliding_window", 4096))

    def layer_types(self, described: Described) -> list[str]:
        """Returns the kinds of the layers: every fourth one has no window."""
        return [
            "sliding_attention" if (index + 1) % 4 else "full_attention"
            for index in range(described["num_hidden_layers"])
        ]


class SmolLM3(Llama):
    """The family of SmolLM3: Llama without rotary positions in every fourth layer."""

    name, model_type, classes = "SmolLM3", "smollm3", "SmolLM3"
    theta = 2e6
    set_by_finish = ("attention.local_layers",)
    fields = (
        *keys.without(Llama.fields, "head_dim", "num_key_value_heads", "tie_word_embeddings"),
        keys.key_heads_key("num_key_value_heads", 4, "num_attention_heads"),
        keys.fixed_key("use_sliding_window", False),
        keys.Field("no_rope_layers", None),
        keys.Field("no_rope_layer_interval", 4),
        keys.Field("sliding_window", None),
        keys.Field("tie_word_embeddings", True, "output.tied"),
    )

    def finish(self, model: config.Model, described: Described) -> None:
        """Sets, in `model`, the layers with rotary positions, which are those of `local_layers`, without a window."""
        attention, period = rotary_attention(model), described["no_rope_layer_interval"]
        rotated = described["no_rope_layers"] or [(index + 1) % period for index in range(model.num_layers)]
        attention.local_layers = tuple(index for index, rotates in enumerate(rotated) if rotates) or None
        super().finish(model, described)
        attention.local_window, attention.rotary = 0, None

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns the keys of `config.json` for rotary positions and the layers without."""
        del task
        attention = rotary_attention(model)
        rotated = [int(index in (attention.local_layers or ())) for index in range(model.num_layers)]
        return {**write_positions(attention.local_rotary), "no_rope_layers": rotated}


class Granite(Llama):
    """The family of Granite 3: Llama with factors of embeddings, scores, residuals and logits."""

    name, model_type, classes = "Granite", "granite", "Granite"
    fields = (
        *keys.without(Llama.fields, "head_dim"),
        keys.Field("embedding_multiplier", 1.0, "embedding_scale", dump=lambda ours, model: ours or 1.0),
        keys.Field("residual_multiplier", 1.0, "residual_scale"),
        keys.Field("logits_scaling", 1.0, "logit_divisor"),
        keys.Field(
            "attention_multiplier", 1.0, "attention.score_scale", dump=lambda ours, model: _score_scale(ours, model)
        ),
    )


class Phi3(Llama):
    """The family of Phi-3 and Phi-4: one matrix for queries, keys and values and one for both halves of the gated
    parts, a rotated share of the heads, and LongRoPE.
    """

    name, model_type, classes = "Phi-3", "phi3", "Phi3"
    rotates_in_part, is_fused = True, True
    fields = (
        *keys.without(Llama.fields, "attention_bias", "mlp_bias", "head_dim", "rms_norm_eps"),
        keys.epsilon_key("rms_norm_eps", 1e-5, 1e-6),
        keys.optional_key("sliding_window", None, "attention.window"),
        keys.Field("resid_pdrop", 0.0, "dropout"),
        keys.training_key("embd_pdrop", 0.0, like="resid_pdrop"),
        keys.Field("original_max_position_embeddings", 4096),
    )

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns the keys of `config.json` for rotary positions, and the length of the texts of the pre-training."""
        described = super().class_keys(model, task)
        rope, rotary = described["rope_parameters"], rotary_attention(model).rotary
        original = rope.get("original_max_position_embeddings", rotary_attention(model).trained_length)
        share = {} if rotary is None else {"partial_rotary_factor": rotary.fraction}
        return {**described, **share, "original_max_position_embeddings": original}


def _score_scale(scale: float | None, model: config.Model) -> float:
    """Returns the factor of the scores, also where it is that of the width of a head."""
    return (model.head_dim or model.dim // model.num_heads) ** -0.5 if scale is None else scale


KIN: tuple[Llama, ...] = (
    Mistral(),
    Qwen2(),
    Qwen3(),
    Gemma3(),
    Olmo2(),
    Olmo3(),
    SmolLM3(),
    Granite(),
    Gemma2(),
    Phi3(),
    Gemma3WithImages(),
)
"""all families, in the order of messages"""
