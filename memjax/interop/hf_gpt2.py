"""GPT-2 of Hugging Face `transformers`: import of its weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model gives the logits and hidden states of `GPT2LMHeadModel` in evaluation mode. A memory is added by
describing a model that has one and giving its initial parameters, of which those of GPT-2 are replaced:

    model_config.attention = config.InfinityFormer(host="gpt2")
    variables = init_variables(make_language_model(model_config, 50257, segment_length=512), key, 512)
    params = import_params("model.safetensors", model_config, initial=variables["params"])

A model may have further entries of the vocabulary, such as the marks of dialogues (`extra_ids`). `save_run` makes a run
directory of such a folder, from which `training.init_from` starts. Nothing here imports torch or transformers.
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
from memjax.data.dialogue import NUM_MARKS
from memjax.interop.runs import write_run
from memjax.models.factory import make_language_model, make_model
from memjax.models.transformer import join_layers, split_layers
from memjax.models.vocabulary import pad_tables

__all__ = [
    "export_config",
    "export_params",
    "import_params",
    "is_gpt2",
    "load_pretrained",
    "model_config",
    "save_pretrained",
    "save_run",
    "vocab_size",
]

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))


def model_config(hf_config: Mapping[str, Any]) -> config.Model:
    """The model that a Hugging Face configuration (`config.json`, or `GPT2Config.to_dict()`) describes.

    Args:
      hf_config: missing keys have the defaults of `GPT2Config`.

    Raises:
      ValueError: an option that has no counterpart here.

    Example:
      >>> model_config({"n_layer": 2, "n_positions": 64}).attention.num_positions
      64
    """
    given = {**_DEFAULTS, **hf_config}
    fixed = {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "embd_pdrop": given["resid_pdrop"],
    }
    for key, allowed in fixed.items():
        if given[key] != allowed:
            raise ValueError(f"hf_config[{key!r}]: given {given[key]!r}, allowed: {allowed!r}")
    return config.Model(
        dim=given["n_embd"],
        num_layers=given["n_layer"],
        num_heads=given["n_head"],
        dropout=given["resid_pdrop"],
        attention_dropout=given["attn_pdrop"],
        scale_embeddings=False,
        attention=config.GPT2(num_positions=given["n_positions"]),
        feed_forward=config.Dense(dim=given["n_inner"] or 4 * given["n_embd"], activation="gelu"),
        output=config.Softmax(tied=True, bias=False),
    )


def import_params(
    weights: Mapping[str, np.ndarray] | str | Path, model: config.Model, *, initial: Any = None, extra_ids: int = 0
) -> dict[str, Any]:
    """Parameters of `make_language_model(model, ...)` from the state dict of a `GPT2LMHeadModel` or `GPT2Model`.

    Entries that the weights do not have come last and begin as the mean of all others. The table is the output's too:
    rows drawn around 0 score near 0, and where all scores of a model are far below 0 they take the whole softmax. The
    score of a mean is the mean of the scores, so that the new entries take at most their share of the vocabulary: no
    token loses more than `log(1 + extra_ids / entries)` nats (Hewitt 2021, "Initializing new word embeddings for
    pretrained language models", https://nlp.stanford.edu/~johnhew/vocab-expansion.html).

    Args:
      weights: name -> array, or a safetensors file.
      model: as `model_config` gives it, or that with a memory, marks of speakers or another scan setting.
      initial: parameters of the model, of which those that GPT-2 has are replaced; needed where it has a memory or
        marks.
      extra_ids: entries of the vocabulary after those of the weights.

    Raises:
      ValueError: a name that is missing or left over, a wrong shape, a negative number of entries, or a memory or marks
        without initial parameters.
    """
    if extra_ids < 0:
        raise ValueError(f"extra_ids: given {extra_ids}, allowed: 0 or more")
    if isinstance(weights, str | Path):
        weights = safetensors.numpy.load_file(weights)
    _check(model)
    source, stack = _Source(weights), {}
    for index in range(model.num_layers):
        stack[f"layer_{index:02d}"] = _import_layer(source, index, model)
    params = {
        "vocabulary": {"embedding": source.take("wte.weight", (-1, model.dim))},
        "positions": source.take("wpe.weight", (_attention(model).num_positions, model.dim)),
        "layer_norm": {
            "scale": source.take("ln_f.weight", (model.dim,)),
            "bias": source.take("ln_f.bias", (model.dim,)),
        },
    }
    source.tied("lm_head.weight", params["vocabulary"]["embedding"])
    source.finish()
    params["vocabulary"]["embedding"] = _extended(params["vocabulary"]["embedding"], extra_ids)
    groups = _groups(model)
    if initial is None:
        if _has_memory(model) or model.markers:
            raise ValueError("initial: given None for a model with a memory or marks, allowed: its initial parameters")
        params["stack"] = join_layers(stack, groups)
        return jax.tree.map(jnp.asarray, params)
    own = split_layers(initial["stack"], groups)
    params["stack"] = join_layers(_merged(own, stack), groups)
    return jax.tree.map(jnp.asarray, _merged(initial, params))


def export_params(params: Mapping[str, Any], model: config.Model) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a state dict of `GPT2LMHeadModel` without the tied `lm_head`.

    Parameters of a memory and embeddings of marks have no place in it and are left out.

    Args:
      params: of `make_language_model(model, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    _check(model)
    names = {"wte.weight": params["vocabulary"]["embedding"], "wpe.weight": params["positions"]}
    names |= {"ln_f.weight": params["layer_norm"]["scale"], "ln_f.bias": params["layer_norm"]["bias"]}
    stack = split_layers(params["stack"], _groups(model))
    for index in range(model.num_layers):
        names |= _export_layer(stack[f"layer_{index:02d}"], f"h.{index}.", model.dim)
    return {f"transformer.{name}": np.ascontiguousarray(np.asarray(value)) for name, value in names.items()}


def export_config(model: config.Model, vocab_size: int) -> dict[str, Any]:
    """The inverse of `model_config`, as it stands in `config.json`."""
    _check(model)
    return {
        **_DEFAULTS,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_embd": model.dim,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_positions": _attention(model).num_positions,
        "n_inner": model.feed_forward.dim or 4 * model.dim,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
    }


def load_pretrained(folder: str | Path, *, extra_ids: int = 0) -> tuple[config.Model, dict[str, Any]]:
    """Configuration and parameters of a folder with `config.json` and `model.safetensors`.

    Args:
      folder: of the two files.
      extra_ids: entries of the vocabulary after those of the weights, see `import_params`.
    """
    model = model_config(json.loads((Path(folder) / CONFIG_FILE).read_text()))
    return model, import_params(Path(folder) / WEIGHTS_FILE, model, extra_ids=extra_ids)


def save_pretrained(folder: str | Path, params: Mapping[str, Any], model: config.Model) -> None:
    """Writes a folder that `GPT2LMHeadModel.from_pretrained` and `load_pretrained` read."""
    weights = export_params(params, model)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / CONFIG_FILE).write_text(json.dumps(export_config(model, vocab_size(params)), indent=2) + "\n")
    safetensors.numpy.save_file(weights, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})


def save_run(folder: str | Path, path: str | Path, *, dialogues: bool = False) -> config.Config:
    """Makes a run directory of such a folder: `training.init_from` starts from it, `memjax eval` scores it.

    The tokenizer is copied beside the configuration, whose `data.tokenizer.path` is the run directory.

    Args:
      folder: with `config.json`, `model.safetensors`, and `tokenizer.json` or `vocab.json` and `merges.txt`.
      path: the run directory, which must not exist.
      dialogues: the vocabulary gets the marks of dialogues (`memjax.data.dialogue`), which begin as the mean of all
        entries.

    Raises:
      ValueError: a file that is missing, weights that do not fit, or a path that exists.
    """
    folder, path = Path(folder).expanduser(), Path(path).expanduser()
    if path.exists():
        raise ValueError(f"run: {path} exists, allowed: a new directory")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"folder: {folder} has no {name}, allowed: a folder as save_pretrained writes it")
    found = [names for names in TOKENIZERS if all((folder / name).is_file() for name in names)]
    if not found:
        allowed = "one with its tokenizer"
        raise ValueError(f"folder: {folder} has no tokenizer.json, or vocab.json and merges.txt, allowed: {allowed}")
    model, params = load_pretrained(folder, extra_ids=NUM_MARKS if dialogues else 0)
    data = config.Data(
        source=config.CmuDog(document="context", document_length=512) if dialogues else config.TextFiles(),
        tokenizer=config.BytePairs(path=str(path)),
        segment_length=_attention(model).num_positions,
    )
    described = config.Config(name=path.name, workdir=str(path.parent), model=model, data=data)
    decoder = make_model(described, vocab_size(params))
    params["vocabulary"] = pad_tables(params["vocabulary"], decoder.vocabulary)
    write_run(path, described, decoder, params, [folder / name for name in found[0]])
    return described


def is_gpt2(folder: str | Path) -> bool:
    """Whether the `config.json` of a folder says that it holds a GPT-2."""
    file = Path(folder).expanduser() / CONFIG_FILE
    return file.is_file() and json.loads(file.read_text()).get("model_type") == "gpt2"


def vocab_size(params: Mapping[str, Any]) -> int:
    """Entries of the vocabulary that the parameters are for.

    Example:
      >>> vocab_size({"vocabulary": {"embedding": jnp.zeros((5, 8))}})
      5
    """
    return params["vocabulary"]["embedding"].shape[0]


_DEFAULTS: dict[str, Any] = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def _extended(embedding: np.ndarray, extra_ids: int) -> np.ndarray:
    """The table with rows that are the mean of those it has."""
    mean = embedding.mean(axis=0, keepdims=True, dtype=np.float64).astype(embedding.dtype)
    return np.concatenate([embedding, np.repeat(mean, extra_ids, axis=0)])


class _Source:
    """The state dict while it is read, with or without the prefix of the model with a head; nothing may be left."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        names = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        # Older files hold the causal mask of every layer as constants.
        constants = (".attn.bias", ".attn.masked_bias")
        self.weights = {name: weight for name, weight in names.items() if not name.endswith(constants)}

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor `name`; a size of -1 may be anything."""
        if name not in self.weights:
            raise ValueError(f"weights: {name!r} is missing, allowed: the state dict of a GPT2LMHeadModel")
        weight = np.asarray(self.weights.pop(name))
        if len(weight.shape) != len(shape) or any(b not in (-1, a) for a, b in zip(weight.shape, shape, strict=True)):
            raise ValueError(f"weights[{name!r}]: given shape {weight.shape}, allowed: {shape}")
        return weight if weight.dtype == np.float64 else weight.astype(np.float32)

    def tied(self, name: str, weight: np.ndarray) -> None:
        """Takes `name`, which is tied to `weight`, if it is there."""
        if name in self.weights and not np.array_equal(self.take(name, weight.shape), weight):
            raise ValueError(f"weights[{name!r}]: given other values than those it is tied to, allowed: equal ones")

    def finish(self) -> None:
        if self.weights:
            raise ValueError(f"weights: given {sorted(self.weights)} too, allowed: names that the configuration has")


def _import_layer(source: _Source, index: int, model: config.Model) -> dict[str, Any]:
    dim, hidden = model.dim, model.feed_forward.dim or 4 * model.dim
    heads = (model.num_heads, model.dim // model.num_heads)
    take = lambda name, *shape: source.take(f"h.{index}.{name}", shape)
    norm = lambda name: {"scale": take(f"{name}.weight", dim), "bias": take(f"{name}.bias", dim)}
    dense = lambda name, wide, narrow: {
        "kernel": take(f"{name}.weight", wide, narrow),
        "bias": take(f"{name}.bias", narrow),
    }
    qkv = take("attn.c_attn.weight", dim, 3 * dim).reshape(dim, 3, *heads)
    bias = take("attn.c_attn.bias", 3 * dim).reshape(3, *heads)
    attention = {
        "query": qkv[:, 0],
        "key_value": qkv[:, 1:],
        "output": take("attn.c_proj.weight", dim, dim).reshape(*heads, dim),
        "query_bias": bias[0],
        "key_value_bias": bias[1:],
        "output_bias": take("attn.c_proj.bias", dim),
        "layer_norm": norm("ln_1"),
    }
    feed_forward = {
        "wide": dense("mlp.c_fc", dim, hidden),
        "narrow": dense("mlp.c_proj", hidden, dim),
        "layer_norm": norm("ln_2"),
    }
    return {"attention": attention, "feed_forward": feed_forward}


def _export_layer(layer: Mapping[str, Any], prefix: str, dim: int) -> dict[str, np.ndarray]:
    layer = jax.tree.map(np.asarray, layer)
    part, feed_forward = layer["attention"], layer["feed_forward"]
    names = {
        "attn.c_attn.weight": np.concatenate([part["query"][:, None], part["key_value"]], axis=1).reshape(dim, -1),
        "attn.c_attn.bias": np.concatenate([part["query_bias"][None], part["key_value_bias"]]).reshape(-1),
        "attn.c_proj.weight": part["output"].reshape(-1, dim),
        "attn.c_proj.bias": part["output_bias"],
    }
    for ours, theirs in (("wide", "mlp.c_fc"), ("narrow", "mlp.c_proj")):
        names |= {f"{theirs}.weight": feed_forward[ours]["kernel"], f"{theirs}.bias": feed_forward[ours]["bias"]}
    for theirs, norm in (("ln_1", part["layer_norm"]), ("ln_2", feed_forward["layer_norm"])):
        names |= {f"{theirs}.weight": norm["scale"], f"{theirs}.bias": norm["bias"]}
    return {prefix + name: value for name, value in names.items()}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with the leaves that `new` has."""
    both = lambda name: isinstance(old.get(name), Mapping) and isinstance(new[name], Mapping)
    return {**old, **{name: _merged(old[name], new[name]) if both(name) else new[name] for name in new}}


def _attention(model: config.Model) -> config.GPT2 | config.InfinityFormer:
    if model.attention.is_causal and model.attention.learned_positions:
        return cast("config.GPT2 | config.InfinityFormer", model.attention)
    raise ValueError(
        f"model.attention: given {model.attention_kind}, allowed: GPT2, or InfinityFormer with host = 'gpt2'"
    )


def _has_memory(model: config.Model) -> bool:
    return bool(_attention(model).coefficients())


def _check(model: config.Model) -> None:
    """That Hugging Face's class can express the model, its memory aside."""
    _attention(model)
    output: Any = model.output
    checks = [
        ("model.scale_embeddings", model.scale_embeddings, False),
        ("model.output", type(output).__name__, "Softmax"),
        ("model.output.tied", output.softmax.is_one_softmax and output.softmax.tied, True),
        ("model.output.bias", output.softmax.bias, False),
        ("model.feed_forward.bias", model.feed_forward.bias, True),
        ("model.feed_forward.activation", model.feed_forward.activation, "gelu"),
    ]
    for field, given, allowed in checks:
        if given != allowed:
            raise ValueError(f"{field}: given {given!r}, allowed: {allowed!r} in a Hugging Face GPT-2")


def _groups(model: config.Model) -> tuple[tuple[int, int], ...]:
    return make_language_model(model, 1, segment_length=1).stack.groups()
