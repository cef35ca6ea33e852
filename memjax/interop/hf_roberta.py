"""RoBERTa of Hugging Face `transformers`: import of weights and configuration, and export.

    model, params = load_pretrained("folder with config.json and model.safetensors")
    encoder = make_text_encoder(model, None, vocab_size(params))

The layers are BERT's. Positions of a text begin behind the id of the padding there, so that the first rows of the table
are no positions; there is one type of tokens; the head of classes has the dense layer that BERT has over the encoder.
Nothing here imports torch or transformers.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from memjax import config
from memjax.interop import config_keys as keys
from memjax.interop import state_dicts as hf
from memjax.interop.encoder import Encoder
from memjax.interop.family import ImportedWeights
from memjax.interop.hf_bert import BERT, Bert
from memjax.interop.parameters import vocab_size

__all__ = ["FAMILY", "Roberta", "vocab_size"]

PADDING_ID = 1
OFFSET = PADDING_ID + 1
"""number of rows of the table of positions before the row of the first token"""
_HEADS = {
    "head_dense": "lm_head.dense",
    "head_norm": "lm_head.layer_norm",
    "head_bias": "lm_head.bias",
    "decoder": "lm_head.decoder.weight",
    "decoder_bias": "lm_head.decoder.bias",
    "classifier": "classifier.out_proj",
}


class Roberta(Encoder):
    """The family of RoBERTa (Liu et al. 2019), which imports and exports its weights."""

    name, model_type, classes = "RoBERTa", "roberta", "Roberta"
    prefix, layer, head_parts = "roberta.", Bert.layer, ("lm_head.", "classifier.", "qa_outputs.")
    beside = (*head_parts, "pooler.dense.")
    names = {part: f"roberta.{name.removeprefix('bert.')}" for part, name in Bert.names.items()} | _HEADS
    fields = (
        *(field for field in BERT.fields if field.key != "max_position_embeddings"),
        keys.Field(
            "max_position_embeddings",
            512,
            "attention.num_positions",
            lambda rows, described: rows - OFFSET,
            lambda count, model: count + OFFSET,
        ),
        keys.fixed_key("pad_token_id", PADDING_ID),
    )

    def positions(self, count: int, dim: int) -> hf.WeightMapping:
        """Returns the mapping of the table of position embeddings, `count` positions of width `dim`. The table of
        transformers has two more rows at its start, which memjax does not have.
        """
        return hf.WeightMapping(
            ("position_embedding",),
            {f"{self.names['embeddings']}.position_embeddings.weight": (count + OFFSET, dim)},
            lambda arrays: [arrays[0][OFFSET:]],
            lambda arrays: [np.concatenate([np.zeros((OFFSET, dim), arrays[0].dtype), arrays[0]])],
        )

    def open_model(
        self, described: Mapping[str, Any], weights: Mapping[str, Any], *, dialogues: bool = False
    ) -> ImportedWeights:
        """Converts a configuration and a state dict to settings, parameters, data and task. `rows` of the result has
        the first two rows of the table of positions, which an export restores.
        """
        read, table = super().open_model(described, weights, dialogues=dialogues), "position_embeddings.weight"
        rows = {f"{name}[:{OFFSET}]": array[:OFFSET] for name, array in weights.items() if name.endswith(table)}
        return read._replace(rows=rows)

    def pooler(self, task: config.TaskKind | None) -> str:
        """Returns the name in transformers of the dense layer over the first token, which is part of the head for
        classification and of the encoder for other tasks.
        """
        return "classifier.dense" if isinstance(task, config.Classification) else super().pooler(task)

    def adapt(self, model: config.Model, names: Iterable[str]) -> config.Model:
        """Sets in the settings whether the model has a pooler, by the names of the tensors in a state dict, and returns
        these settings. The dense layer of the classification head counts as one.
        """
        poolers = {f"{self.pooler(task)}.weight" for task in (None, config.Classification())}
        return super().adapt(model, [f"{self.names['pooler']}.weight"] if poolers & set(names) else [])

    def head_activation(self, model: config.Model) -> Any:
        """Returns "gelu_exact", the activation in the head of masked tokens, whatever the activation of the
        feed-forward parts.
        """
        del model
        return "gelu_exact"

    def has_classes(self, model: config.Model) -> bool:
        """Whether the classification head of transformers has the same layers as the one of this memjax model: only if
        the model has a pooler.
        """
        return BERT.has_classes(model)

    def tokenizer(self) -> config.TokenizerKind:
        """Returns the settings of the tokenizer of the family, without a vocabulary: byte pairs."""
        return config.BytePairs()


FAMILY = Roberta()
"""the family, whose methods are the functions of this module too"""
model_config, read_model, find_task = FAMILY.model_config, FAMILY.read_model, FAMILY.find_task
import_params, export_params = FAMILY.import_params, FAMILY.export_params
load_pretrained, save_pretrained = FAMILY.load_pretrained, FAMILY.save_pretrained
export_config, entries, differences = FAMILY.export_config, FAMILY.entries, FAMILY.differences
