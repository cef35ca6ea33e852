"""Transformer-XL of Hugging Face `transformers` (up to 4.57): import of its weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model gives the log-probabilities, hidden states and memories of `TransfoXLLMHeadModel` in evaluation mode:
its memory begins with zero vectors that are attended to (`empty_memory="zeros"`), its memory tensors are time-major
and hold the input of each layer. Nothing here imports torch or transformers.

Checkpoints of the original PyTorch repository have the cluster columns of the adaptive softmax in reverse order; those
of the TensorFlow repository and of Hugging Face have them as `memjax.models.vocabulary` does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from memjax import config
from memjax.models.factory import make_language_model
from memjax.models.transformer import join_layers, split_layers

__all__ = [
    "export_config",
    "export_params",
    "import_params",
    "load_pretrained",
    "model_config",
    "save_pretrained",
    "vocab_size",
]

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


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
    given = {**_DEFAULTS, **hf_config}
    fixed = {"attn_type": 0, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "d_embed": given["d_model"]}
    for key, allowed in fixed.items():
        if given[key] != allowed:
            raise ValueError(f"hf_config[{key!r}]: given {given[key]!r}, allowed: {allowed!r}")
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
    if isinstance(weights, str | Path):
        weights = safetensors.numpy.load_file(weights)
    source = _Source(weights)
    attention, output = _parts(model)
    vocabulary = _import_vocabulary(source, model.dim, output)
    stack = {f"layer_{i:02d}": _import_layer(source, i, model, attention) for i in range(model.num_layers)}
    if attention.tied_biases:
        shape = (model.num_heads, _head_dim(model))
        shared = {ours: source.take(f"transformer.{theirs}", shape) for ours, theirs in _BIASES.items()}
        for index, (ours, theirs) in ((i, pair) for i in range(model.num_layers) for pair in _BIASES.items()):
            source.same(f"transformer.layers.{index}.dec_attn.{theirs}", shared[ours])
        stack["shared"] = shared
    source.finish()
    grouped = join_layers(stack, _groups(model))
    return jax.tree.map(jnp.asarray, {"stack": grouped, "vocabulary": vocabulary})


def export_params(params: Mapping[str, Any], model: config.Model) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a complete state dict of `TransfoXLLMHeadModel`, tied tensors repeated.

    Args:
      params: of `make_language_model(model, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    attention, output = _parts(model)
    weights = _export_vocabulary(params["vocabulary"], output)
    stack = split_layers(params["stack"], _groups(model))
    for index in range(model.num_layers):
        layer = jax.tree.map(np.asarray, stack[f"layer_{index:02d}"])
        weights |= _export_layer(layer, f"transformer.layers.{index}.", stack.get("shared"))
    if attention.tied_biases:
        weights |= {f"transformer.{theirs}": np.asarray(stack["shared"][ours]) for ours, theirs in _BIASES.items()}
    frequencies = 10000.0 ** (-np.arange(0, model.dim, 2, dtype=np.float64) / model.dim)
    weights["transformer.pos_emb.inv_freq"] = frequencies.astype(np.float32)
    return {name: np.ascontiguousarray(weight) for name, weight in weights.items()}


def export_config(model: config.Model, vocab_size: int) -> dict[str, Any]:
    """The inverse of `model_config`, as it stands in `config.json`."""
    attention, output = _parts(model)
    adaptive = not output.is_one_softmax
    cutoffs = list(output.cutoffs) if adaptive else []
    return {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "vocab_size": vocab_size,
        "cutoffs": cutoffs,
        "div_val": output.div_val if adaptive else 1,
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
        "attn_type": 0,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }


def load_pretrained(folder: str | Path) -> tuple[config.Model, dict[str, Any]]:
    """Configuration and parameters of a folder with `config.json` and `model.safetensors`."""
    model = model_config(json.loads((Path(folder) / CONFIG_FILE).read_text()))
    return model, import_params(Path(folder) / WEIGHTS_FILE, model)


def save_pretrained(folder: str | Path, params: Mapping[str, Any], model: config.Model) -> None:
    """Writes a folder that `TransfoXLLMHeadModel.from_pretrained` and `load_pretrained` read."""
    weights = export_params(params, model)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / CONFIG_FILE).write_text(json.dumps(export_config(model, vocab_size(params)), indent=2) + "\n")
    safetensors.numpy.save_file(weights, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})


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


class _Source:
    """The state dict while it is read: every tensor is taken once, and none may be left."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = dict(weights)
        self.weights.pop("transformer.pos_emb.inv_freq", None)  # constants

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor `name`; a size of -1 may be anything."""
        if name not in self.weights:
            raise ValueError(f"weights: {name!r} is missing, allowed: the state dict of a TransfoXLLMHeadModel")
        weight = np.asarray(self.weights.pop(name))
        allowed = tuple(given if size == -1 else size for size, given in zip(shape, weight.shape, strict=False))
        if weight.shape != (allowed if weight.ndim == len(shape) else shape):
            raise ValueError(f"weights[{name!r}]: given shape {weight.shape}, allowed: {shape}")
        return weight if weight.dtype == np.float64 else weight.astype(np.float32)

    def same(self, name: str, weight: np.ndarray) -> None:
        """Takes `name`, which is tied to `weight`, if it is there."""
        if name in self.weights and not np.array_equal(self.take(name, weight.shape), weight):
            raise ValueError(f"weights[{name!r}]: given other values than those it is tied to, allowed: equal ones")

    def finish(self) -> None:
        if self.weights:
            raise ValueError(f"weights: given {sorted(self.weights)} too, allowed: names that the configuration has")


def _import_layer(source: _Source, index: int, model: config.Model, attention: config.TransformerXL) -> dict[str, Any]:
    dim, heads, head_dim = model.dim, model.num_heads, _head_dim(model)
    hidden = model.feed_forward.dim or 4 * dim
    take = lambda name, *shape: source.take(f"transformer.layers.{index}.{name}", shape)
    norm = lambda part: {"scale": take(f"{part}.layer_norm.weight", dim), "bias": take(f"{part}.layer_norm.bias", dim)}
    qkv = take("dec_attn.qkv_net.weight", 3 * heads * head_dim, dim).reshape(3, heads, head_dim, dim)
    qkv = np.moveaxis(qkv, -1, 0)  # [dim, 3, heads, head_dim]
    part: dict[str, Any] = {
        "query": qkv[:, 0],
        "key_value": qkv[:, 1:],
        "relative": take("dec_attn.r_net.weight", heads * head_dim, dim).T.reshape(dim, heads, head_dim),
        "output": take("dec_attn.o_net.weight", dim, heads * head_dim).T.reshape(heads, head_dim, dim),
        "layer_norm": norm("dec_attn"),
    }
    if not attention.tied_biases:
        part["biases"] = {ours: take(f"dec_attn.{theirs}", heads, head_dim) for ours, theirs in _BIASES.items()}
    dense = lambda number, wide, narrow: {
        "kernel": take(f"pos_ff.CoreNet.{number}.weight", narrow, wide).T,
        "bias": take(f"pos_ff.CoreNet.{number}.bias", narrow),
    }
    feed_forward = {"wide": dense(0, dim, hidden), "narrow": dense(3, hidden, dim), "layer_norm": norm("pos_ff")}
    return {"attention": part, "feed_forward": feed_forward}


def _export_layer(layer: Mapping[str, Any], prefix: str, shared: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    part, feed_forward = layer["attention"], layer["feed_forward"]
    dim = part["query"].shape[0]
    qkv = np.concatenate([part["query"][:, None], part["key_value"]], axis=1)
    biases = shared or part["biases"]
    weights = {
        "dec_attn.qkv_net.weight": qkv.reshape(dim, -1).T,
        "dec_attn.r_net.weight": part["relative"].reshape(dim, -1).T,
        "dec_attn.o_net.weight": part["output"].reshape(-1, dim).T,
        **{f"dec_attn.{theirs}": np.asarray(biases[ours]) for ours, theirs in _BIASES.items()},
        "pos_ff.CoreNet.0.weight": feed_forward["wide"]["kernel"].T,
        "pos_ff.CoreNet.0.bias": feed_forward["wide"]["bias"],
        "pos_ff.CoreNet.3.weight": feed_forward["narrow"]["kernel"].T,
        "pos_ff.CoreNet.3.bias": feed_forward["narrow"]["bias"],
    }
    for name, norm in [("dec_attn", part["layer_norm"]), ("pos_ff", feed_forward["layer_norm"])]:
        weights |= {f"{name}.layer_norm.weight": norm["scale"], f"{name}.layer_norm.bias": norm["bias"]}
    return {prefix + name: weight for name, weight in weights.items()}


def _import_vocabulary(source: _Source, dim: int, output: Any) -> dict[str, np.ndarray]:
    embedding, layer = "transformer.word_emb.emb_layers.{}.weight".format, "crit.out_layers.{}.{}".format
    if output.is_one_softmax:
        table = source.take(embedding(0), (-1, dim))
        source.same(layer(0, "weight"), table)
        return {"embedding": table, "bias": source.take(layer(0, "bias"), table.shape[:1])}
    tails = len(output.cutoffs)
    params = {
        "cluster_weight": source.take("crit.cluster_weight", (tails, dim)),
        "cluster_bias": source.take("crit.cluster_bias", (tails,)),
    }
    if output.div_val == 1:  # one table for all clusters
        table = source.take(embedding(0), (-1, dim))
        source.same(layer(0, "weight"), table)
        bias = source.take(layer(0, "bias"), table.shape[:1])
        params |= {f"embedding_{i}": rows for i, rows in enumerate(np.split(table, output.cutoffs))}
        params |= {f"bias_{i}": entries for i, entries in enumerate(np.split(bias, output.cutoffs))}
        return params
    for index in range(tails + 1):
        table = source.take(embedding(index), (-1, dim // output.div_val**index))
        source.same(layer(index, "weight"), table)
        projection = source.take(f"transformer.word_emb.emb_projs.{index}", (dim, table.shape[1]))
        params |= {
            f"embedding_{index}": table,
            f"bias_{index}": source.take(layer(index, "bias"), table.shape[:1]),
            f"projection_{index}": projection.T,
        }
        if output.tie_projections and output.tie_projections[index]:
            source.same(f"crit.out_projs.{index}", projection)
        else:
            params[f"output_projection_{index}"] = source.take(f"crit.out_projs.{index}", projection.shape).T
    return params


def _export_vocabulary(params: Mapping[str, Any], output: Any) -> dict[str, np.ndarray]:
    params = {name: np.asarray(value) for name, value in params.items()}
    embedding, layer = "transformer.word_emb.emb_layers.{}.weight".format, "crit.out_layers.{}.{}".format
    if output.is_one_softmax:
        table, bias = params["embedding"], params["bias"]
        return {embedding(0): table, layer(0, "weight"): table, layer(0, "bias"): bias}
    weights = {f"crit.{name}": params[name] for name in ("cluster_weight", "cluster_bias")}
    clusters = range(len(output.cutoffs) + 1)
    if output.div_val == 1:
        table = np.concatenate([params[f"embedding_{i}"] for i in clusters])
        bias = np.concatenate([params[f"bias_{i}"] for i in clusters])
        return weights | {embedding(0): table, layer(0, "weight"): table, layer(0, "bias"): bias}
    for i in clusters:
        table, projection = params[f"embedding_{i}"], params[f"projection_{i}"]
        weights |= {embedding(i): table, layer(i, "weight"): table, layer(i, "bias"): params[f"bias_{i}"]}
        weights[f"transformer.word_emb.emb_projs.{i}"] = projection.T
        weights[f"crit.out_projs.{i}"] = params.get(f"output_projection_{i}", projection).T
    return weights


def _parts(model: config.Model) -> tuple[config.TransformerXL, Any]:
    """The parts that matter here, after a check that Hugging Face's class can express the model."""
    attention, dense = cast(config.TransformerXL, model.attention), model.feed_forward
    output: Any = model.output
    if model.attention_kind != "TransformerXL":
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: TransformerXL")
    if output.needs_neighbors:
        raise ValueError("model.output: given Spalm, allowed: Softmax or AdaptiveSoftmax")
    checks = [
        ("model.scale_embeddings", model.scale_embeddings, True),
        ("model.output.bias", output.bias, True),
        ("model.feed_forward.bias", dense.bias, True),
        ("model.feed_forward.activation", dense.activation, "relu"),
        ("model.attention.final_norm", attention.norm == "pre" and attention.final_norm, False),
    ]
    if output.is_one_softmax:
        checks.append(("model.output.tied", output.tied, True))
    for field, given, allowed in checks:
        if given != allowed:
            raise ValueError(f"{field}: given {given!r}, allowed: {allowed!r} in a Hugging Face Transformer-XL")
    return attention, output


def _head_dim(model: config.Model) -> int:
    return model.head_dim or model.dim // model.num_heads


def _groups(model: config.Model) -> tuple[tuple[int, int], ...]:
    return make_language_model(model, 1).stack.groups()
