"""Transformer-XL of Hugging Face `transformers` (up to 4.57): import of its weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model gives the log-probabilities, hidden states and memories of `TransfoXLLMHeadModel` in evaluation mode:
its memory begins with zero vectors that are attended to (`empty_memory="zeros"`), its memory tensors are time-major
and hold the input of each layer. Nothing here imports torch or transformers.

Checkpoints of the original PyTorch repository have the cluster columns of the adaptive softmax in reverse order; those
of the TensorFlow repository and of Hugging Face have them as `memjax.models.vocabulary` does.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.interop import folders
from memjax.interop import state_dicts as hf
from memjax.models.factory import make_language_model
from memjax.models.transformer import join_collection, split_collection

__all__ = [
    "differences",
    "entries",
    "export_config",
    "export_params",
    "import_params",
    "load_pretrained",
    "model_config",
    "read_model",
    "save_pretrained",
    "vocab_size",
]


def model_config(hf_config: Mapping[str, Any]) -> config.Model:
    """The model that a Hugging Face configuration (`config.json`, or `TransfoXLConfig.to_dict()`) describes.

    Args:
      hf_config: missing keys have the defaults of `TransfoXLConfig`.

    Raises:
      ValueError: an option that has no counterpart here.

    Example:
      >>> model_config({"n_layer": 2, "cutoffs": [], "div_val": 1}).output
      Softmax(tied=True, bias=True)
    """
    given = hf.take_settings(hf_config, _DEFAULTS)
    fixed = {"attn_type": 0, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "d_embed": given["d_model"]}
    hf.check_fixed(given, fixed)
    cutoffs, div_val = tuple(given["cutoffs"]), int(given["div_val"])
    if div_val > 1 and not cutoffs:
        raise ValueError(f"hf_config['div_val']: given {div_val}, allowed: 1 where there are no cutoffs")
    output: Any = config.Softmax(tied=True, bias=True)
    if cutoffs:
        ties = tuple(map(bool, given["tie_projs"])) if div_val > 1 else ()
        output = config.AdaptiveSoftmax(cutoffs=cutoffs, div_val=div_val, tie_projections=ties)
    return config.Model(
        dim=given["d_model"],
        num_layers=given["n_layer"],
        num_heads=given["n_head"],
        head_dim=given["d_head"],
        dropout=given["dropout"],
        attention_dropout=given["dropatt"],
        attention=config.TransformerXL(
            memory_length=given["mem_len"],
            norm="pre" if given["pre_lnorm"] else "post",
            final_norm=False,
            tied_biases=not given["untie_r"],
            clamp_length=max(given["clamp_len"], 0),
            same_length=given["same_length"],
            empty_memory="zeros",
        ),
        feed_forward=config.Dense(dim=given["d_inner"]),
        output=output,
    )


def import_params(weights: Mapping[str, np.ndarray] | str | Path, model: config.Model) -> dict[str, Any]:
    """Parameters of `make_language_model(model, ...)` from the state dict of a `TransfoXLLMHeadModel`.

    Args:
      weights: name -> array, or a safetensors file. Tensors that are tied to another one may be missing.
      model: as `model_config` gives it, or that with another memory length or scan setting.

    Raises:
      ValueError: a name that is missing or left over, or a wrong shape.
    """
    source = hf.StateDict(folders.read_weights(weights), "TransfoXLLMHeadModel")
    source.weights.pop(FREQUENCIES, None)  # constants
    params = hf.load_entries(entries(model), source)
    source.finish()
    vocabulary = params["vocabulary"]
    for name in (name for name in vocabulary if name.startswith("bias")):
        allowed = len(vocabulary[name.replace("bias", "embedding")])
        if len(vocabulary[name]) != allowed:
            raise ValueError(f"weights: given {name} of {len(vocabulary[name])} entries, allowed: {allowed}")
    return jax.tree.map(jnp.asarray, join_collection(params, _groups(model)))


def read_model(
    described: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, dialogues: bool = False
) -> hf.Imported:
    """What a configuration and a state dict hold.

    Args:
      described: the configuration.
      weights: name -> array.
      dialogues: True is refused.

    Raises:
      ValueError: see `model_config` and `import_params`.
    """
    hf.check_fields([("dialogues", dialogues, False)], "Transformer-XL")
    model = model_config(described)
    data = config.Data(source=config.TextFiles(), tokenizer=config.Words(), segment_length=128)
    constants = {name: weights[name] for name in (FREQUENCIES,) if name in weights}
    return hf.Imported(model, import_params(weights, model), data, left=constants)


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a complete state dict of `TransfoXLLMHeadModel`, tied tensors repeated.

    Where the model has no bias at the output, which that class has, it is zero.

    Args:
      params: of `make_language_model(model, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration.
      task: has no effect; a Transformer-XL has one head.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    _, output = _parts(model)
    tables = params["vocabulary"]
    params = {**params, "vocabulary": _no_biases(tables, output) | tables}
    weights = hf.dump_entries(entries(model, task), split_collection(params, _groups(model)))
    frequencies = 10000.0 ** (-np.arange(0, model.dim, 2, dtype=np.float64) / model.dim)
    return weights | {FREQUENCIES: frequencies.astype(np.float32)}


def export_config(model: config.Model, vocab_size: int, task: config.TaskKind | None = None) -> dict[str, Any]:
    """The inverse of `model_config`, as it stands in `config.json`.

    Args:
      model: the configuration.
      vocab_size: entries of the vocabulary.
      task: as in `export_params`.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    del task
    attention, output = _parts(model)
    adaptive = not output.is_one_softmax
    cutoffs = list(output.cutoffs) if adaptive else []
    return {
        **_DEFAULTS,
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "vocab_size": vocab_size,
        "cutoffs": cutoffs,
        "div_val": output.div_val,
        "tie_projs": list(output.tie_projections if adaptive else ()) or [False] * (len(cutoffs) + 1),
        "adaptive": adaptive,
        "d_model": model.dim,
        "d_embed": model.dim,
        "n_head": model.num_heads,
        "d_head": _head_dim(model),
        "d_inner": model.feed_forward.dim or 4 * model.dim,
        "n_layer": model.num_layers,
        "mem_len": attention.memory_length,
        "same_length": attention.same_length,
        "clamp_len": attention.clamp_length or -1,
        "pre_lnorm": attention.norm == "pre",
        "untie_r": not attention.tied_biases,
        "dropout": model.dropout,
        "dropatt": model.attention_dropout,
    }


def load_pretrained(folder: str | Path) -> tuple[config.Model, dict[str, Any]]:
    """Configuration and parameters of a folder with `config.json` and `model.safetensors`."""
    found = read_model(*folders.read_folder(folder))
    return found.model, found.params


def save_pretrained(folder: str | Path, params: Mapping[str, Any], model: config.Model) -> None:
    """Writes a folder that `TransfoXLLMHeadModel.from_pretrained` and `load_pretrained` read."""
    folders.write_folder(folder, export_config(model, vocab_size(params)), export_params(params, model))


def differences(model: config.Model) -> tuple[str, ...]:
    """What the exported model computes otherwise, its memory aside."""
    if _parts(model)[0].empty_memory == "zeros":
        return ()
    return (
        "model.attention.empty_memory: 'mask' here, 'zeros' there: until its memory is full, transformers attends to "
        "zero vectors too",
    )


def vocab_size(params: Mapping[str, Any]) -> int:
    """Entries of the vocabulary that the parameters are for.

    Example:
      >>> vocab_size({"vocabulary": {"embedding_0": jnp.zeros((5, 8)), "embedding_1": jnp.zeros((4, 4))}})
      9
    """
    tables = [leaf for name, leaf in params["vocabulary"].items() if name.startswith("embedding")]
    return sum(table.shape[0] for table in tables)


_DEFAULTS: dict[str, Any] = {
    "cutoffs": [20000, 40000, 200000],
    "d_model": 1024,
    "d_embed": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "div_val": 4,
    "pre_lnorm": False,
    "n_layer": 18,
    "mem_len": 1600,
    "clamp_len": 1000,
    "same_length": True,
    "attn_type": 0,
    "tie_projs": [False, True, True, True],
    "dropout": 0.1,
    "dropatt": 0.0,
    "untie_r": True,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}

_BIASES = {"content": "r_w_bias", "position": "r_r_bias"}
FREQUENCIES = "transformer.pos_emb.inv_freq"


def entries(model: config.Model, task: config.TaskKind | None = None) -> Iterator[hf.Entry]:
    """Every parameter that transformers' class has; arguments as in `export_params`."""
    del task
    attention, output = _parts(model)
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
                yield hf.same(f"{part}/biases/{ours}", f"{theirs}.dec_attn.{bias}", *heads)
        yield from hf.linear(f"{feed_forward}/wide", f"{theirs}.pos_ff.CoreNet.0", dim, hidden)
        yield from hf.linear(f"{feed_forward}/narrow", f"{theirs}.pos_ff.CoreNet.3", hidden, dim)
        yield from hf.norm(f"{feed_forward}/layer_norm", f"{theirs}.pos_ff.layer_norm", dim)
    if attention.tied_biases:
        for ours, bias in _BIASES.items():
            layers = tuple(f"transformer.layers.{index}.dec_attn.{bias}" for index in range(model.num_layers))
            yield hf.same(f"stack/shared/{ours}", f"transformer.{bias}", *heads, tied=layers)


def _vocabulary(dim: int, output: Any) -> Iterator[hf.Entry]:
    embedding, layer = "transformer.word_emb.emb_layers.{}.weight".format, "crit.out_layers.{}.{}".format
    if output.is_one_softmax:
        yield hf.same("vocabulary/embedding", embedding(0), -1, dim, tied=(layer(0, "weight"),))
        yield hf.same("vocabulary/bias", layer(0, "bias"), -1)
        return
    clusters = range(len(output.cutoffs) + 1)
    yield hf.same("vocabulary/cluster_weight", "crit.cluster_weight", len(output.cutoffs), dim)
    yield hf.same("vocabulary/cluster_bias", "crit.cluster_bias", len(output.cutoffs))
    if output.div_val == 1:  # one table for all clusters
        apart = lambda arrays: np.split(arrays[0], output.cutoffs)
        together = lambda arrays: [np.concatenate(arrays)]
        for ours, tensors, tied in [
            ("embedding", {embedding(0): (-1, dim)}, (layer(0, "weight"),)),
            ("bias", {layer(0, "bias"): (-1,)}, ()),
        ]:
            yield hf.Entry(tuple(f"vocabulary/{ours}_{i}" for i in clusters), tensors, apart, together, tied)
        return
    for i in clusters:
        shape, own = (dim // output.div_val**i, dim), f"crit.out_projs.{i}"
        is_tied = bool(output.tie_projections) and output.tie_projections[i]
        yield hf.same(f"vocabulary/embedding_{i}", embedding(i), -1, shape[0], tied=(layer(i, "weight"),))
        yield hf.same(f"vocabulary/bias_{i}", layer(i, "bias"), -1)
        projection, tied = f"transformer.word_emb.emb_projs.{i}", (own,) if is_tied else ()
        yield hf.matrix(f"vocabulary/projection_{i}", projection, shape, tied=tied)
        if not is_tied:
            yield hf.matrix(f"vocabulary/output_projection_{i}", own, shape)


def _parts(model: config.Model) -> tuple[Any, Any]:
    """The parts that matter here, after a check that Hugging Face's class can express the model, its memory aside."""
    attention, output = cast(Any, model.attention), cast(Any, model.output.softmax)
    if attention.exports_as != "transfo-xl":
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: TransformerXL")
    checks = [
        ("model.scale_embeddings", model.scale_embeddings, True),
        ("model.feed_forward.activation", model.feed_forward.activation, "relu"),
        ("model.attention.norm", attention.norm, attention.norm_place),
        ("model.attention.final_norm", attention.norm == "pre" and attention.final_norm, False),
    ]
    if output.is_one_softmax:
        checks.append(("model.output.tied", output.tied, True))
    hf.check_fields([*checks, *hf.feed_forward_checks(model)], "Transformer-XL")
    return attention, output


def _no_biases(tables: Mapping[str, Any], output: Any) -> dict[str, np.ndarray]:
    """Biases of zero for every entry, and for every cluster."""
    sizes = {n.replace("embedding", "bias"): len(t) for n, t in tables.items() if n.startswith("embedding")}
    sizes |= {} if output.is_one_softmax else {"cluster_bias": len(output.cutoffs)}
    return {name: np.zeros(size, np.float32) for name, size in sizes.items()}


def _head_dim(model: config.Model) -> int:
    return model.head_dim or model.dim // model.num_heads


def _groups(model: config.Model) -> tuple[tuple[int, int], ...]:
    return make_language_model(model, 1, segment_length=1).stack.groups()
