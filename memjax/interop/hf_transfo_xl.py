"""Transformer-XL of Hugging Face `transformers` (up to 4.57): import of its weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model gives the log-probabilities, hidden states and memories of `TransfoXLLMHeadModel` in evaluation mode:
its memory begins with zero vectors that are attended to (`empty_memory="zeros"`), its memory tensors are time-major
and hold the input of each layer. Nothing here imports torch or transformers.

Checkpoints of the original PyTorch repository have the cluster columns of the adaptive softmax in reverse order; those
of the TensorFlow repository and of Hugging Face have them as `memjax.models.vocabulary` does.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from memjax import config
from memjax.interop import config_keys as keys
from memjax.interop import state_dicts as hf
from memjax.interop.family import ModelFamily
from memjax.interop.parameters import vocab_size

__all__ = ["FAMILY", "TransfoXL", "vocab_size"]

_BIASES = {"content": "r_w_bias", "position": "r_r_bias"}
FREQUENCIES = "transformer.pos_emb.inv_freq"


class TransfoXL(ModelFamily):
    """The family of Transformer-XL (Dai et al. 2019), which imports and exports its weights."""

    name, model_type = "Transformer-XL", "transfo-xl"
    prefix, layer, head_parts = "transformer.", "layers.0.", ("crit.",)
    constants = ("pos_emb.inv_freq",)
    writes_tied = True
    fields = (
        keys.Field("cutoffs", [20000, 40000, 200000]),
        keys.Field("div_val", 4),
        keys.Field("tie_projs", [False, True, True, True]),
        keys.Field("adaptive", True),
        keys.Field("d_model", 1024, "dim"),
        keys.fixed_key("d_embed", 1024, lambda described: described["d_model"]),
        keys.Field("n_head", 16, "num_heads"),
        keys.Field("d_head", 64, "head_dim", dump=lambda ours, model: _head_dim(model)),
        keys.hidden_size_key("d_inner", 4096, "d_model"),
        keys.Field("n_layer", 18, "num_layers"),
        keys.Field("mem_len", 1600, "attention.memory_length"),
        keys.Field("same_length", True, "attention.same_length"),
        keys.Field("clamp_len", 1000, "attention.clamp_length", lambda v, _: max(v, 0), lambda ours, _: ours or -1),
        keys.Field("pre_lnorm", False, "attention.norm", lambda v, _: "pre" if v else "post", lambda v, _: v == "pre"),
        keys.Field("untie_r", True, "attention.tied_biases", lambda v, _: not v, lambda v, _: not v),
        keys.Field("dropout", 0.1, "dropout"),
        keys.Field("dropatt", 0.0, "attention_dropout"),
        keys.fixed_key("attn_type", 0),
        keys.epsilon_key("layer_norm_epsilon", 1e-5, 1e-5),
        keys.fixed_key("tie_word_embeddings", True),
    )

    def base(self) -> config.Model:
        """Returns the settings that all imported Transformer-XL models share. Their empty memory consists of zero
        vectors that are attended to.
        """
        return config.Model(attention=config.TransformerXL(final_norm=False, empty_memory="zeros"))

    def finish(self, model: config.Model, described: Mapping[str, Any]) -> None:
        """Sets `model.output` to an adaptive softmax, or to an ordinary one where the configuration has no cutoffs."""
        cutoffs, div_val = tuple(described["cutoffs"]), int(described["div_val"])
        if div_val > 1 and not cutoffs:
            raise ValueError(f"hf_config['div_val']: given {div_val}, allowed: 1 where there are no cutoffs")
        model.output = config.Softmax(tied=True, bias=True)
        if cutoffs:
            ties = tuple(map(bool, described["tie_projs"])) if div_val > 1 else ()
            model.output = config.AdaptiveSoftmax(cutoffs=cutoffs, div_val=div_val, tie_projections=ties)

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns additional keys and values of `config.json` about the softmax: `cutoffs`, `div_val`, `tie_projs` and
        `adaptive`.
        """
        del task
        output: Any = model.output.softmax
        adaptive = not output.is_one_softmax
        cutoffs = list(output.cutoffs) if adaptive else []
        ties = list(output.tie_projections if adaptive else ()) or [False] * (len(cutoffs) + 1)
        return {"cutoffs": cutoffs, "div_val": output.div_val, "tie_projs": ties, "adaptive": adaptive}

    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[hf.WeightMapping]:
        """Yields a `WeightMapping` for each group of Transformer-XL's parameters. `task` has no effect."""
        del task
        attention, output = _attention(model), cast(Any, model.output.softmax)
        dim, heads = model.dim, (model.num_heads, _head_dim(model))
        hidden = model.feed_forward.dim or 4 * dim
        yield from _vocabulary(dim, output)
        for index in range(model.num_layers):
            layer, theirs = f"stack/layer_{index:02d}", f"transformer.layers.{index}"
            part, feed_forward = f"{layer}/attention", f"{layer}/feed_forward"
            yield hf.fused(part, f"{theirs}.dec_attn.qkv_net.weight", dim, heads)
            yield hf.matrix(f"{part}/relative", f"{theirs}.dec_attn.r_net.weight", (dim, *heads))
            yield hf.matrix(f"{part}/output", f"{theirs}.dec_attn.o_net.weight", (*heads, dim), 2)
            yield from hf.norm(f"{part}/layer_norm", f"{theirs}.dec_attn.layer_norm", dim)
            if not attention.tied_biases:
                for ours, bias in _BIASES.items():
                    yield hf.map_unchanged(f"{part}/biases/{ours}", f"{theirs}.dec_attn.{bias}", *heads)
            yield from hf.linear(f"{feed_forward}/wide", f"{theirs}.pos_ff.CoreNet.0", dim, hidden)
            yield from hf.linear(f"{feed_forward}/narrow", f"{theirs}.pos_ff.CoreNet.3", hidden, dim)
            yield from hf.norm(f"{feed_forward}/layer_norm", f"{theirs}.pos_ff.layer_norm", dim)
        if attention.tied_biases:
            for ours, bias in _BIASES.items():
                layers = tuple(f"transformer.layers.{index}.dec_attn.{bias}" for index in range(model.num_layers))
                yield hf.map_unchanged(f"stack/shared/{ours}", f"transformer.{bias}", *heads, tied=layers)

    def heads(self, described: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, None]:
        """Returns the only class of transformers that can be imported, mapped to None, since it is a language model."""
        del described, weights
        return {"TransfoXLLMHeadModel": None}

    def data(self, model: config.Model, task: config.TaskKind | None, dialogues: bool) -> config.Data:
        """Returns the settings of the data that a run reads by default: text files that are split into words."""
        del model, task, dialogues
        return config.Data(source=config.TextFiles(), tokenizer=config.Words(), segment_length=128)

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns "TransfoXLLMHeadModel", the class of transformers with a head for the next token."""
        del model, task
        return "TransfoXLLMHeadModel"

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns (name, value, allowed value) of each setting that Transformer-XL's `config.json` has no key for."""
        attention, output = _attention(model), cast(Any, model.output.softmax)
        return [
            ("model.scale_embeddings", model.scale_embeddings, True),
            ("model.feed_forward.activation", model.feed_forward.activation, "relu"),
            ("model.attention.norm", attention.norm, attention.norm_place),
            ("model.attention.final_norm", attention.norm == "pre" and attention.final_norm, False),
            ("model.output.tied", not output.is_one_softmax or output.tied, True),
        ]

    def complete(self, params: Mapping[str, Any], model: config.Model) -> Mapping[str, Any]:
        """Returns the parameters, with biases of zero added for the vocabulary where the output has no biases."""
        tables = params["vocabulary"]
        return {**params, "vocabulary": _no_biases(tables, model.output.softmax) | tables}

    def buffers(self, model: config.Model) -> dict[str, np.ndarray]:
        """Returns one tensor, the frequencies of the sinusoids for relative positions: name -> float32 array."""
        frequencies = 10000.0 ** (-np.arange(0, model.dim, 2, dtype=np.float64) / model.dim)
        return {FREQUENCIES: frequencies.astype(np.float32)}

    def differences(self, model: config.Model) -> tuple[str, ...]:
        """Returns a line if the exported model would compute something else, since transformers attends to zero vectors
        until its memory is full. Otherwise ().
        """
        if _attention(model).empty_memory == "zeros":
            return ()
        return (
            "model.attention.empty_memory: 'mask' here, 'zeros' there: until its memory is full, transformers attends "
            "to zero vectors too",
        )


def _vocabulary(dim: int, output: Any) -> Iterator[hf.WeightMapping]:
    embedding, layer = "transformer.word_emb.emb_layers.{}.weight".format, "crit.out_layers.{}.{}".format
    if output.is_one_softmax:
        yield hf.map_unchanged("vocabulary/embedding", embedding(0), -1, dim, tied=(layer(0, "weight"),))
        yield hf.map_unchanged("vocabulary/bias", layer(0, "bias"), -1)
        return
    clusters = range(len(output.cutoffs) + 1)
    yield hf.map_unchanged("vocabulary/cluster_weight", "crit.cluster_weight", len(output.cutoffs), dim)
    yield hf.map_unchanged("vocabulary/cluster_bias", "crit.cluster_bias", len(output.cutoffs))
    if output.div_val == 1:  # one table for all clusters
        apart = lambda arrays: np.split(arrays[0], output.cutoffs)
        together = lambda arrays: [np.concatenate(arrays)]
        for ours, tensors, tied in [
            ("embedding", {embedding(0): (-1, dim)}, (layer(0, "weight"),)),
            ("bias", {layer(0, "bias"): (-1,)}, ()),
        ]:
            yield hf.WeightMapping(tuple(f"vocabulary/{ours}_{i}" for i in clusters), tensors, apart, together, tied)
        return
    for i in clusters:
        shape, output_projection = (dim // output.div_val**i, dim), f"crit.out_projs.{i}"
        is_tied = bool(output.tie_projections) and output.tie_projections[i]
        yield hf.map_unchanged(f"vocabulary/embedding_{i}", embedding(i), -1, shape[0], tied=(layer(i, "weight"),))
        yield hf.map_unchanged(f"vocabulary/bias_{i}", layer(i, "bias"), -1)
        projection, tied = f"transformer.word_emb.emb_projs.{i}", (output_projection,) if is_tied else ()
        yield hf.matrix(f"vocabulary/projection_{i}", projection, shape, tied=tied)
        if not is_tied:
            yield hf.matrix(f"vocabulary/output_projection_{i}", output_projection, shape)


def _attention(model: config.Model) -> Any:
    if model.attention.hf_model_type != "transfo-xl":
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: TransformerXL")
    return model.attention


def _no_biases(tables: Mapping[str, Any], output: Any) -> dict[str, np.ndarray]:
    """Returns biases of zero for every vocabulary entry and every cluster."""
    sizes = {n.replace("embedding", "bias"): len(t) for n, t in tables.items() if n.startswith("embedding")}
    sizes |= {} if output.is_one_softmax else {"cluster_bias": len(output.cutoffs)}
    return {name: np.zeros(size, np.float32) for name, size in sizes.items()}


def _head_dim(model: config.Model) -> int:
    return model.head_dim or model.dim // model.num_heads


FAMILY = TransfoXL()
"""the family, whose methods are the functions of this module too"""
model_config, read_model, find_task = FAMILY.model_config, FAMILY.read_model, FAMILY.find_task
import_params, export_params = FAMILY.import_params, FAMILY.export_params
load_pretrained, save_pretrained = FAMILY.load_pretrained, FAMILY.save_pretrained
export_config, entries, differences = FAMILY.export_config, FAMILY.entries, FAMILY.differences
