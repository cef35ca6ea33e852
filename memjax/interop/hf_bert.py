"""BERT, DistilBERT and MiniLM of Hugging Face `transformers`: import of weights and configuration, and export.

    model, params = load_pretrained("folder with config.json and model.safetensors")
    encoder = make_text_encoder(model, None, vocab_size(params))
    encoder.apply({"params": params}, tokens, mask=mask, method="embed_texts")

Names may have the prefix `bert.` or `distilbert.`, or none. `runs.import_run` makes a run directory of such a folder.
Nothing here imports torch or transformers.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax import config
from memjax.interop import config_keys as keys
from memjax.interop import folders
from memjax.interop import state_dicts as hf
from memjax.interop.encoder import EPSILON, Encoder, encoder_attention, layer_names
from memjax.interop.family import ImportedWeights
from memjax.interop.parameters import vocab_size

__all__ = [
    "Bert",
    "DistilBert",
    "differences",
    "entries",
    "export_config",
    "export_params",
    "find_task",
    "import_params",
    "load_pretrained",
    "model_config",
    "read_model",
    "save_pretrained",
    "vocab_size",
]


class Bert(Encoder):
    """The family of BERT (Devlin et al. 2019) and MiniLM (Wang et al. 2020), which imports and exports their
    weights.
    """

    name, model_type, classes = "BERT", "bert", "Bert"
    prefix, layer, head_parts = "bert.", "encoder.layer.", ("cls.", "classifier.", "qa_outputs.")
    beside = ("cls.", "classifier.", "qa_outputs.", "pooler.dense.")
    names: Mapping[str, str] = {
        "embeddings": "bert.embeddings",
        "pooler": "bert.pooler.dense",
        **layer_names(
            "bert.encoder.layer.{}.",
            [*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense"],
            ["intermediate.dense", "output.dense"],
            ["attention.output.LayerNorm", "output.LayerNorm"],
        ),
        "head_dense": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "head_bias": "cls.predictions.bias",
        "decoder": "cls.predictions.decoder.weight",
        "decoder_bias": "cls.predictions.decoder.bias",
        "classifier": "classifier",
    }
    fields = (
        keys.Field("hidden_size", 768, "dim"),
        keys.Field("num_hidden_layers", 12, "num_layers"),
        keys.head_count_key("num_attention_heads", 12, "hidden_size"),
        keys.hidden_size_key("intermediate_size", 3072, "hidden_size"),
        keys.activation_key("hidden_act", "gelu"),
        keys.Field("hidden_dropout_prob", 0.1, "dropout"),
        keys.Field("attention_probs_dropout_prob", 0.1, "attention_dropout"),
        keys.Field("max_position_embeddings", 512, "attention.num_positions"),
        keys.Field("type_vocab_size", 2, "attention.num_token_types"),
        keys.epsilon_key("layer_norm_eps", 1e-12, EPSILON),
        keys.fixed_key("position_embedding_type", "absolute"),
        keys.fixed_key("is_decoder", False),
        keys.Field("tie_word_embeddings", True, "output.tied"),
    )

    def heads(self, described: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, config.TaskKind | None]:
        """Returns, for a `config.json` and a state dict, a mapping from the names of BERT's classes to tasks. A class
        has None where the weights lack its head.
        """
        known = super().heads(described, weights)
        return {"BertForPreTraining": known["BertForMaskedLM"], **known}

    def has_classes(self, model: config.Model) -> bool:
        """Whether the classification head of transformers has the same layers as the one of this memjax model: only if
        the model has a pooler.
        """
        return encoder_attention(model).pooler


class DistilBert(Encoder):
    """The family of DistilBERT (Sanh et al. 2019), which has no token types and no pooler. It imports and exports the
    weights.
    """

    name, model_type, classes = "DistilBERT", "distilbert", "DistilBert"
    prefix, layer = "distilbert.", "transformer.layer."
    head_parts = ("vocab_", "classifier.", "pre_classifier.", "qa_outputs.")
    beside = head_parts
    names: Mapping[str, str] = {
        "embeddings": "distilbert.embeddings",
        "pooler": "",
        **layer_names(
            "distilbert.transformer.layer.{}.",
            [f"attention.{part}_lin" for part in ("q", "k", "v", "out")],
            ["ffn.lin1", "ffn.lin2"],
            ["sa_layer_norm", "output_layer_norm"],
        ),
        "head_dense": "vocab_transform",
        "head_norm": "vocab_layer_norm",
        "head_bias": "vocab_projector.bias",
        "decoder": "vocab_projector.weight",
    }
    fields = (
        keys.Field("dim", 768, "dim"),
        keys.Field("n_layers", 12, "num_layers"),
        keys.head_count_key("n_heads", 12, "dim"),
        keys.hidden_size_key("hidden_dim", 3072, "dim"),
        keys.activation_key("activation", "gelu"),
        keys.Field("dropout", 0.1, "dropout"),
        keys.Field("attention_dropout", 0.1, "attention_dropout"),
        keys.Field("max_position_embeddings", 512, "attention.num_positions"),
        keys.Field("tie_word_embeddings", True, "output.tied"),
    )

    def base(self) -> config.Model:
        """Returns the settings that all DistilBERT models share: a text encoder without token types and without a
        pooler.
        """
        return config.Model(
            attention=config.Bidirectional(num_token_types=0, pooler=False), output=config.Softmax(tied=True)
        )

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns additional keys and values of `config.json`: the names of classes (see `Encoder.class_keys`), and
        False for `sinusoidal_pos_embds`.
        """
        return super().class_keys(model, task) | {"sinusoidal_pos_embds": False}

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns (name, value, allowed value) of each setting that DistilBERT's `config.json` has no key for, such as
        the pooler.
        """
        epsilon = model.norm_epsilon or EPSILON
        pooler = encoder_attention(model).pooler
        without = [("model.attention.pooler", pooler, False), ("model.norm_epsilon", epsilon, EPSILON)]
        return [*super().checks(model), *without]


BERT, DISTILBERT = Bert(), DistilBert()
_FAMILIES: Mapping[str, Encoder] = {family.model_type: family for family in (BERT, DISTILBERT)}


def _family_of_model(model: config.Model) -> Encoder:
    return _FAMILIES[encoder_attention(model).hf_model_type]


def _family_of_config(described: Mapping[str, Any]) -> Encoder:
    kind = described.get("model_type", BERT.model_type)
    if kind not in _FAMILIES:
        raise ValueError(f"hf_config['model_type']: given {kind!r}, allowed: {', '.join(map(repr, _FAMILIES))}")
    return _FAMILIES[kind]


def _family_of_weights(weights: Iterable[str]) -> Encoder:
    return DISTILBERT if any(DISTILBERT.layer in name for name in weights) else BERT


def model_config(hf_config: Mapping[str, Any], *, pooler: bool = True) -> config.Model:
    """Converts a `config.json` of BERT or DistilBERT, as a dict, to the settings of a memjax model. `pooler` says
    whether the weights have a pooler.

    Args:
      hf_config: The configuration; keys that are missing have the defaults of `BertConfig` or `DistilBertConfig`.
      pooler: Whether the weights have one (DistilBERT's never do).

    Raises:
      ValueError: Another kind of model, or an option that has no counterpart here.

    Example:
      >>> model_config({"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6}).dim
      384
    """
    model = _family_of_config(hf_config).model_config(hf_config)
    encoder_attention(model).pooler &= pooler
    return model


def import_params(
    weights: Mapping[str, Any] | str | Path, model: config.Model, task: config.TaskKind | None = None
) -> dict[str, Any]:
    """Converts a state dict or a safetensors file of BERT or DistilBERT to the parameters of a text encoder with the
    head of `task`. See `ModelFamily.import_params`.
    """
    weights = folders.read_weights(weights)
    return _family_of_weights(weights).import_params(weights, model, task)


def read_model(described: Mapping[str, Any], weights: Mapping[str, Any], *, dialogues: bool = False) -> ImportedWeights:
    """Converts a `config.json` (a dict) and a state dict of BERT or DistilBERT to settings, parameters, data and task.
    See `ModelFamily.read_model`.
    """
    return _family_of_config(described).read_model(described, weights, dialogues=dialogues)


def find_task(weights: Mapping[str, Any] | str | Path) -> config.TaskKind | None:
    """Returns the task of the head in a state dict or safetensors file, such as `MaskedLanguageModeling()`. None for an
    encoder without a head.
    """
    weights = folders.read_weights(weights)
    family = _family_of_weights(weights)
    return family.find_task({}, {family.read_names(weights).plain[name]: weight for name, weight in weights.items()})


def load_pretrained(folder: str | Path, task: config.TaskKind | None = None) -> tuple[config.Model, dict[str, Any]]:
    """Reads a folder of BERT or DistilBERT and returns settings and parameters, with the head of `task`. None for no
    head. See `ModelFamily.load_pretrained`.
    """
    return _family_of_config(folders.read_described(Path(folder).expanduser())).load_pretrained(folder, task)


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """Converts parameters to a state dict of BERT, or of DistilBERT for a model without token types. See
    `ModelFamily.export_params`.
    """
    return _family_of_model(model).export_params(params, model, task)


def export_config(model: config.Model, vocab_size: int, task: config.TaskKind | None = None) -> dict[str, Any]:
    """Converts settings to a dict for the `config.json` of BERT, or of DistilBERT for a model without token types. See
    `ModelFamily.export_config`.
    """
    return _family_of_model(model).export_config(model, vocab_size, task)


def save_pretrained(
    folder: str | Path, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> None:
    """Writes a BERT or DistilBERT to a folder, as `config.json` and safetensors, which transformers and
    `load_pretrained` read.
    """
    _family_of_model(model).save_pretrained(folder, params, model, task)


def entries(model: config.Model, task: config.TaskKind | None = None) -> Iterator[hf.WeightMapping]:
    """Yields a `WeightMapping` for each group of parameters that an export of BERT or DistilBERT writes. See
    `ModelFamily.entries`.
    """
    return _family_of_model(model).entries(model, task)


def differences(model: config.Model) -> tuple[str, ...]:
    """Returns (), since an exported BERT or DistilBERT computes what the memjax model does. See
    `ModelFamily.differences`.
    """
    return _family_of_model(model).differences(model)
