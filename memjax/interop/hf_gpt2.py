"""GPT-2 of Hugging Face `transformers`: import of its weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model gives the logits and hidden states of `GPT2LMHeadModel` in evaluation mode. A memory is added by
describing a model that has one and giving its initial parameters, of which those of GPT-2 are replaced:

    model_config.attention = config.InfinityFormer(base_attention="gpt2")
    variables = init_variables(make_language_model(model_config, 50257, segment_length=512), key, 512)
    params = import_params("model.safetensors", model_config, initial=variables["params"])

A model may have further entries of the vocabulary, such as the marks of dialogues (`extra_ids`). `runs.import_run`
makes a run directory of such a folder. Nothing here imports torch or transformers.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from memjax import config
from memjax.interop import config_keys as keys
from memjax.interop import state_dicts as hf
from memjax.interop.family import ModelFamily
from memjax.interop.parameters import is_tied, vocab_size

__all__ = ["FAMILY", "GPT2", "vocab_size"]


class GPT2(ModelFamily):
    """The family of GPT-2 (Radford et al. 2019), which imports and exports its weights."""

    name, model_type = "GPT-2", "gpt2"
    prefix, layer, head_parts = "transformer.", "h.0.", ("lm_head.",)
    constants = (".attn.bias", ".attn.masked_bias")  # causal masks, which older files hold
    takes_dialogues, inputs_first = True, True
    fields = (
        keys.Field("n_embd", 768, "dim"),
        keys.Field("n_layer", 12, "num_layers"),
        keys.head_count_key("n_head", 12, "n_embd"),
        keys.Field("n_positions", 1024, "attention.num_positions", dump=lambda ours, model: _positions(model)),
        keys.hidden_size_key("n_inner", None, "n_embd"),
        keys.activation_key("activation_function", "gelu_new"),
        keys.Field("resid_pdrop", 0.1, "dropout"),
        keys.training_key("embd_pdrop", 0.1, like="resid_pdrop"),
        keys.Field("attn_pdrop", 0.1, "attention_dropout"),
        keys.epsilon_key("layer_norm_epsilon", 1e-5, 1e-5),
        keys.fixed_key("scale_attn_weights", True),
        keys.fixed_key("scale_attn_by_inverse_layer_idx", False),
        keys.fixed_key("add_cross_attention", False),
        keys.Field("tie_word_embeddings", True, "output.tied"),
    )

    def base(self) -> config.Model:
        """Returns the settings that all GPT-2 models share: learned positions, and tied output weights without a
        bias.
        """
        output = config.Softmax(tied=True, bias=False)
        return config.Model(scale_embeddings=False, attention=config.GPT2(), output=output)

    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[hf.WeightMapping]:
        """Yields a `WeightMapping` for each group of GPT-2's parameters. `task` has no effect."""
        del task
        dim, hidden = model.dim, model.feed_forward.dim or 4 * model.dim
        heads = (model.num_heads, dim // model.num_heads)
        yield from hf.embeddings("transformer.wte.weight", "lm_head.weight", dim, is_tied(model))
        yield hf.map_unchanged("positions", "transformer.wpe.weight", _positions(model), dim)
        yield from hf.norm("layer_norm", "transformer.ln_f", dim)
        for index in range(model.num_layers):
            layer, theirs = f"stack/layer_{index:02d}", f"transformer.h.{index}"
            part, feed_forward = f"{layer}/attention", f"{layer}/feed_forward"
            yield hf.fused(part, f"{theirs}.attn.c_attn.weight", dim, heads, transposed=False)
            yield hf.WeightMapping(
                (f"{part}/query_bias", f"{part}/key_value_bias"),
                {f"{theirs}.attn.c_attn.bias": (3 * dim,)},
                lambda arrays: (arrays[0].reshape(3, *heads)[0], arrays[0].reshape(3, *heads)[1:]),
                lambda arrays: [np.concatenate([arrays[0][None], arrays[1]]).reshape(-1)],
            )
            yield hf.matrix(f"{part}/output", f"{theirs}.attn.c_proj.weight", (*heads, dim), 2, transposed=False)
            yield hf.map_unchanged(f"{part}/output_bias", f"{theirs}.attn.c_proj.bias", dim)
            yield from hf.norm(f"{part}/layer_norm", f"{theirs}.ln_1", dim)
            yield from hf.linear(f"{feed_forward}/wide", f"{theirs}.mlp.c_fc", dim, hidden, transposed=False)
            yield from hf.linear(f"{feed_forward}/narrow", f"{theirs}.mlp.c_proj", hidden, dim, transposed=False)
            yield from hf.norm(f"{feed_forward}/layer_norm", f"{theirs}.ln_2", dim)

    def heads(self, described: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, None]:
        """Returns the names of transformers' classes that can be imported, each mapped to None, since GPT-2 is imported
        as a language model.
        """
        del described, weights
        return {"GPT2LMHeadModel": None, "GPT2Model": None}

    def data(self, model: config.Model, task: config.TaskKind | None, dialogues: bool) -> config.Data:
        """Returns the settings of the data that a run reads by default: text files, or with `dialogues` CMU-DoG, a data
        set of dialogues about films. A segment has as many tokens as the model has positions.
        """
        del task
        source = config.CmuDog(document="context", document_length=512) if dialogues else config.TextFiles()
        return config.Data(source=source, tokenizer=config.BytePairs(), segment_length=_positions(model))

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns "GPT2LMHeadModel", the class of transformers with a head for the next token."""
        del model, task
        return "GPT2LMHeadModel"

    def check(self, model: config.Model) -> None:
        """Raises `ValueError` for a model that GPT-2's class in transformers cannot express. Its memory is not
        checked.
        """
        _attention(model)
        super().check(model)

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns (name, value, allowed value) of each setting that GPT-2's `config.json` has no key for."""
        softmax: Any = model.output.softmax
        return [
            ("model.head_dim", model.head_dim or model.dim // model.num_heads, model.dim // model.num_heads),
            ("model.scale_embeddings", model.scale_embeddings, False),
            ("model.output", type(softmax).__name__, "Softmax"),
            ("model.output.bias", softmax.bias, False),
        ]


def _attention(model: config.Model) -> config.GPT2 | config.InfinityFormer:
    if model.attention.is_causal and model.attention.learned_positions:
        return cast("config.GPT2 | config.InfinityFormer", model.attention)
    raise ValueError(
        f"model.attention: given {model.attention_kind}, allowed: GPT2, or InfinityFormer with host = 'gpt2'"
    )


def _positions(model: config.Model) -> int:
    return _attention(model).learned_positions


FAMILY = GPT2()
"""the family, whose methods are the functions of this module too"""
model_config, read_model, find_task = FAMILY.model_config, FAMILY.read_model, FAMILY.find_task
import_params, export_params = FAMILY.import_params, FAMILY.export_params
load_pretrained, save_pretrained = FAMILY.load_pretrained, FAMILY.save_pretrained
export_config, entries, differences = FAMILY.export_config, FAMILY.entries, FAMILY.differences
