"""BERT, DistilBERT and MiniLM of Hugging Face `transformers`: import of weights and configuration, and export.

    model, params = load_pretrained("folder with config.json and model.safetensors")
    encoder = make_text_encoder(model, None, vocab_size(params))
    encoder.apply({"params": params}, tokens, mask=mask, method="embed_texts")

Names may have the prefix `bert.` or `distilbert.`, or none. `save_run` makes a run directory of such a folder, from
which `training.init_from` starts. Nothing here imports torch or transformers.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.interop import state_dicts as hf
from memjax.interop.runs import write_run
from memjax.models.factory import make_stack
from memjax.models.heads import ClassificationHead, MaskedTokenHead, SpanHead
from memjax.models.transformer import join_collection, split_collection
from memjax.tasks import task_of

__all__ = ["export_params", "find_task", "import_params", "load_pretrained", "model_config", "save_run", "vocab_size"]

VOCABULARY_FILES = ("vocab.txt", "tokenizer.json")
_ACTIVATIONS: dict[str, Any] = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}


def model_config(hf_config: Mapping[str, Any], *, pooler: bool = True) -> config.Model:
    """The model that a Hugging Face configuration (`config.json`) of BERT or DistilBERT describes.

    Args:
      hf_config: the configuration; keys that are missing have the defaults of `BertConfig` or `DistilBertConfig`.
      pooler: whether the weights have one (DistilBERT's never do).

    Raises:
      ValueError: another kind of model, or an option that has no counterpart here.

    Example:
      >>> model_config({"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6}).dim
      384
    """
    kind = hf_config.get("model_type", "bert")
    if kind not in ("bert", "distilbert"):
        raise ValueError(f"hf_config['model_type']: given {kind!r}, allowed: 'bert', 'distilbert'")
    given = {**_DEFAULTS, **{_DISTIL_KEYS.get(key, key): value for key, value in hf_config.items()}}
    fixed = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "is_decoder": False}
    hf.check_fixed(given, fixed)
    if given["hidden_act"] not in _ACTIVATIONS:
        allowed = ", ".join(map(repr, _ACTIVATIONS))
        raise ValueError(f"hf_config['hidden_act']: given {given['hidden_act']!r}, allowed: {allowed}")
    if given["hidden_size"] % given["num_attention_heads"]:
        heads = given["num_attention_heads"]
        raise ValueError(
            f"hf_config['num_attention_heads']: given {heads}, allowed: a divisor of hidden_size = "
            f"{given['hidden_size']}"
        )
    return config.Model(
        dim=given["hidden_size"],
        num_layers=given["num_hidden_layers"],
        num_heads=given["num_attention_heads"],
        dropout=given["hidden_dropout_prob"],
        attention_dropout=given["attention_probs_dropout_prob"],
        attention=config.Bidirectional(
            positions=given["max_position_embeddings"],
            token_types=given["type_vocab_size"] if kind == "bert" else 0,
            pooler=pooler and kind == "bert",
        ),
        feed_forward=config.Dense(dim=given["intermediate_size"], activation=_ACTIVATIONS[given["hidden_act"]]),
    )


def import_params(
    weights: Mapping[str, np.ndarray] | str | Path, model: config.Model, task: config.TaskKind | None = None
) -> dict[str, Any]:
    """Parameters of `make_text_encoder(model, head, ...)` from the state dict of a BERT or DistilBERT.

    Args:
      weights: name -> array, or a safetensors file. Tensors tied to another one may be missing; heads of other tasks
        are left out.
      model: as `model_config` gives it, or that with another scan setting.
      task: whose head is imported too; None = no head.

    Raises:
      ValueError: tensors that are missing, left over or of another shape: all of them in one line.
    """
    weights = _read(weights)
    source = _Source(weights)
    params = hf.load_entries(_entries(_family(weights), model, task), source)
    source.finish()
    return jax.tree.map(jnp.asarray, join_collection(params, make_stack(model).groups()))


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a state dict with the names of transformers' classes for the task.

    Args:
      params: of `make_text_encoder(model, head, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration; without token types and pooler it is a DistilBERT.
      task: whose head the parameters have.
    """
    kind = 0 if _attention(model).token_types else 1
    family = _names(kind, _PREFIXES[kind])
    return hf.dump_entries(_entries(family, model, task), split_collection(params, make_stack(model).groups()))


def find_task(weights: Mapping[str, np.ndarray] | str | Path) -> config.TaskKind | None:
    """The task whose head a state dict has; None for an encoder alone."""
    weights = _read(weights)
    if {"cls.predictions.transform.dense.weight", "vocab_transform.weight"} & weights.keys():
        return config.MaskedLanguageModeling()
    if "qa_outputs.weight" in weights:
        return config.QuestionAnswering()
    if "classifier.weight" in weights and "pre_classifier.weight" not in weights:
        return config.Classification(num_classes=weights["classifier.weight"].shape[0])
    return None


def load_pretrained(folder: str | Path, task: config.TaskKind | None = None) -> tuple[config.Model, dict[str, Any]]:
    """Configuration and parameters of a folder with `config.json` and `model.safetensors`.

    Raises:
      ValueError: a file that is missing, or weights that do not fit the configuration.
    """
    described, weights = hf.read_folder(folder)
    pooler = any(name.endswith("pooler.dense.weight") for name in weights)
    model = model_config(described, pooler=pooler)
    params = import_params(weights, model, task)
    if (rows := vocab_size(params)) != described.get("vocab_size", rows):
        raise ValueError(f"weights: {rows} word embeddings, {hf.CONFIG_FILE} has vocab_size {described['vocab_size']}")
    return model, params


def save_run(folder: str | Path, path: str | Path) -> config.Config:
    """Makes a run directory of such a folder: `training.init_from` starts from it, `memjax eval` scores it.

    The head, where there is one, says the task; the vocabulary is copied beside the configuration.

    Args:
      folder: with `config.json`, `model.safetensors` and `vocab.txt` or `tokenizer.json`.
      path: the run directory, which must not exist.

    Raises:
      ValueError: a file that is missing, weights that do not fit, or a path that exists.
    """
    folder, path = Path(folder).expanduser(), Path(path).expanduser()
    if path.exists():
        raise ValueError(f"run: {path} exists, allowed: a new directory")
    task = find_task(folder / hf.WEIGHTS_FILE) if (folder / hf.WEIGHTS_FILE).is_file() else None
    model, params = load_pretrained(folder, task)
    vocabularies = [file for name in VOCABULARY_FILES if (file := folder / name).is_file()]
    if not vocabularies:
        raise ValueError(f"folder: {folder} has no {' or '.join(VOCABULARY_FILES)}, allowed: one with its vocabulary")
    vocab = path / vocabularies[0].name
    task = task or config.MaskedLanguageModeling()
    source, length = {config.Classification: (config.Glue(), 128), config.QuestionAnswering: (config.Squad(), 384)}.get(
        type(task), (config.TextFiles(), 128)
    )
    data = config.Data(
        source=source,
        tokenizer=config.WordPiece(vocab=str(vocab)),
        segment_length=min(length, _attention(model).positions),
    )
    described = config.Config(name=path.name, workdir=str(path.parent), task=task, model=model, data=data)
    write_run(path, described, task_of(described).model(vocab_size(params)), params, vocabularies[:1])
    return described


def vocab_size(params: Mapping[str, Any]) -> int:
    """Entries of the vocabulary that the parameters are for."""
    return params["vocabulary"]["embedding"].shape[0]


_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
}
_DISTIL_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}

Names = Mapping[str, str]
"""our part -> their module, `{}` being the number of a layer"""


_PREFIXES, _LAYERS = ("bert.", "distilbert."), ("encoder.layer.", "transformer.layer.")
_OF_LAYERS = {
    "query": ("attention.self.query", "attention.q_lin"),
    "key": ("attention.self.key", "attention.k_lin"),
    "value": ("attention.self.value", "attention.v_lin"),
    "output": ("attention.output.dense", "attention.out_lin"),
    "attention_norm": ("attention.output.LayerNorm", "sa_layer_norm"),
    "wide": ("intermediate.dense", "ffn.lin1"),
    "narrow": ("output.dense", "ffn.lin2"),
    "feed_forward_norm": ("output.LayerNorm", "output_layer_norm"),
}
_OF_HEADS = {
    "head_dense": ("cls.predictions.transform.dense", "vocab_transform"),
    "head_norm": ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
    "head_bias": ("cls.predictions.bias", "vocab_projector.bias"),
}
"""our part -> the module of BERT, and of DistilBERT"""


def _names(kind: int, prefix: str) -> Names:
    """The names of a BERT (0) or of a DistilBERT (1)."""
    layer = f"{prefix}{_LAYERS[kind]}{{}}."
    own = {"embeddings": f"{prefix}embeddings.", "pooler": f"{prefix}pooler.dense"}
    inside = {part: layer + modules[kind] for part, modules in _OF_LAYERS.items()}
    return own | inside | {part: modules[kind] for part, modules in _OF_HEADS.items()}


def _family(weights: Mapping[str, np.ndarray]) -> Names:
    """The names of the state dict's kind, with the prefix that it has."""
    for kind, prefix in enumerate(_PREFIXES):
        for start in (prefix, ""):
            if any(name.startswith(start + _LAYERS[kind]) for name in weights):
                return _names(kind, start)
    raise ValueError("weights: no layers of a BERT or DistilBERT, allowed: the state dict of one")


def _entries(names: Names, model: config.Model, task: config.TaskKind | None) -> Iterator[hf.Entry]:
    """Every parameter of the model."""
    dim, part = model.dim, _attention(model)
    embeddings = names["embeddings"]
    yield hf.same("vocabulary/embedding", f"{embeddings}word_embeddings.weight", -1, dim)
    yield hf.same("position_embedding", f"{embeddings}position_embeddings.weight", part.positions, dim)
    if part.token_types:
        yield hf.same("token_type_embedding", f"{embeddings}token_type_embeddings.weight", part.token_types, dim)
    yield from hf.norm("layer_norm", f"{embeddings}LayerNorm", dim)
    for index in range(model.num_layers):
        theirs = {name: module.format(index) for name, module in names.items()}
        yield from _layer(f"stack/layer_{index:02d}", theirs, model)
    if part.pooler:
        yield from hf.linear("pooler", names["pooler"], dim, dim)
    match task and task_of(config.Config(model=model, task=task)).head():
        case MaskedTokenHead():
            yield from hf.linear("head/dense", names["head_dense"], dim, dim)
            yield from hf.norm("head/layer_norm", names["head_norm"], dim)
            yield hf.same("vocabulary/bias", names["head_bias"], -1)
        case ClassificationHead(num_classes=classes):
            yield from hf.linear("head/classifier", "classifier", dim, classes)
        case SpanHead():
            yield from hf.linear("head/spans", "qa_outputs", dim, 2)


def _layer(path: str, names: Names, model: config.Model) -> Iterator[hf.Entry]:
    dim, heads = model.dim, (model.num_heads, model.head_dim or model.dim // model.num_heads)
    inner, parts = heads[0] * heads[1], [names[part] for part in ("query", "key", "value")]
    yield hf.Entry(
        (f"{path}/attention/query_key_value",),
        {f"{part}.weight": (inner, dim) for part in parts},
        lambda arrays: [np.stack([array.T.reshape(dim, *heads) for array in arrays], axis=1)],
        lambda arrays: [arrays[0][:, i].reshape(dim, inner).T for i in range(3)],
    )
    yield hf.Entry(
        (f"{path}/attention/biases",),
        {f"{part}.bias": (inner,) for part in parts},
        lambda arrays: [np.concatenate(arrays)],
        lambda arrays: np.split(arrays[0], 3),
    )
    yield hf.matrix(f"{path}/attention/output", f"{names['output']}.weight", (*heads, dim), 2)
    yield hf.same(f"{path}/attention/output_bias", f"{names['output']}.bias", dim)
    yield from hf.norm(f"{path}/attention/layer_norm", names["attention_norm"], dim)
    hidden = model.feed_forward.dim or 4 * dim
    yield from hf.linear(f"{path}/feed_forward/wide", names["wide"], dim, hidden)
    yield from hf.linear(f"{path}/feed_forward/narrow", names["narrow"], hidden, dim)
    yield from hf.norm(f"{path}/feed_forward/layer_norm", names["feed_forward_norm"], dim)


_TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "vocab_projector.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""tensors that repeat another one (the end of its name)"""
_OTHERS = ("cls.", "vocab_", "classifier.", "pre_classifier.", "qa_outputs.", "pooler.dense.", "position_ids")
"""what may be left over: the heads of other tasks, and constants"""


class _Source(hf.StateDict):
    """The state dict while it is read; mismatches are collected."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights, "BERT or DistilBERT")
        self.problems: list[str] = []
        for name, ends in _TIED.items():
            tied = [other for other in weights if other.endswith(ends)]
            if name in weights and tied and not np.array_equal(weights[name], weights[tied[0]]):
                self.problems.append(f"{name} differs from {tied[0]}, to which it is tied")

    def take(self, name: str, shape: hf.Shape) -> np.ndarray | None:
        """The tensor `name`, or None."""
        weight = self.weights.pop(name, None)
        if weight is None:
            self.problems.append(f"{name} is missing")
            return None
        if not hf.fits(weight, shape):
            expected = tuple("any" if size == -1 else size for size in shape)
            self.problems.append(f"{name} has shape {weight.shape} and not {expected}".replace("'", ""))
            return None
        return hf.in_full(weight)

    def finish(self) -> None:
        """Raises `ValueError` with all mismatches."""
        left = [name for name in self.weights if not any(part in name for part in _OTHERS)]
        problems = [*self.problems, *(f"{name} is left over" for name in sorted(left))]
        if problems:
            raise ValueError(f"weights: {len(problems)} tensors do not fit the model: {'; '.join(problems)}")


def _read(weights: Mapping[str, np.ndarray] | str | Path) -> dict[str, np.ndarray]:
    """The state dict; old names of norms (`gamma`, `beta`) are replaced."""
    rename = lambda name: name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
    return {rename(name): np.asarray(weight) for name, weight in hf.read_weights(weights).items()}


def _attention(model: config.Model) -> config.Bidirectional:
    if model.attention.is_causal:
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: Bidirectional")
    return cast(config.Bidirectional, model.attention)
