"""BERT, DistilBERT and MiniLM of Hugging Face `transformers`: import of weights and configuration, and export.

    model, params = load_pretrained("folder with config.json and model.safetensors")
    encoder = make_text_encoder(model, None, vocab_size(params))
    encoder.apply({"params": params}, tokens, mask=mask, method="embed_texts")

Names may have the prefix `bert.` or `distilbert.`, or none. `save_run` makes a run directory of such a folder, from
which `training.init_from` starts. Nothing here imports torch or transformers.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from memjax import config
from memjax.interop.runs import write_run
from memjax.models.factory import make_stack
from memjax.models.transformer import join_layers, split_layers
from memjax.models.vocabulary import pad_tables
from memjax.tasks import task_of

__all__ = ["export_params", "find_task", "import_params", "load_pretrained", "model_config", "save_run", "vocab_size"]

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
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
    for key, allowed in fixed.items():
        if given[key] != allowed:
            raise ValueError(f"hf_config[{key!r}]: given {given[key]!r}, allowed: {allowed!r}")
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
    source, params = _Source(weights), {}
    for entry in _entries(_family(weights), model, task):
        taken = [source.take(name, shape) for name, shape in zip(entry.names, entry.shapes, strict=True)]
        arrays = [array for array in taken if array is not None]
        if len(arrays) == len(taken):
            _put(params, entry.path, entry.load(arrays))
    source.finish()
    params["stack"] = join_layers(params["stack"], make_stack(model).groups())
    return jax.tree.map(jnp.asarray, params)


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a state dict with the names of transformers' classes for the task.

    Args:
      params: of `make_text_encoder(model, head, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration; without token types and pooler it is a DistilBERT.
      task: whose head the parameters have.
    """
    family = _distil_names("distilbert.") if not _attention(model).token_types else _bert_names("bert.")
    params = {**params, "stack": split_layers(params["stack"], make_stack(model).groups())}
    weights: dict[str, np.ndarray] = {}
    for entry in _entries(family, model, task):
        arrays = entry.dump(np.asarray(_get(params, entry.path)), entry.shapes)
        weights |= dict(zip(entry.names, arrays, strict=True))
    return {name: np.ascontiguousarray(weight) for name, weight in weights.items()}


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
    folder = Path(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"folder: {folder} has no {name}, allowed: a folder as save_pretrained writes it")
    weights = _read(folder / WEIGHTS_FILE)
    pooler = any(name.endswith("pooler.dense.weight") for name in weights)
    described = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    model = model_config(described, pooler=pooler)
    params = import_params(weights, model, task)
    if (rows := vocab_size(params)) != described.get("vocab_size", rows):
        raise ValueError(f"weights: {rows} word embeddings, {CONFIG_FILE} has vocab_size {described['vocab_size']}")
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
    task = find_task(folder / WEIGHTS_FILE) if (folder / WEIGHTS_FILE).is_file() else None
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
    encoder = task_of(described).model(vocab_size(params))
    tables = encoder.vocabulary.clone(bias="bias" in params["vocabulary"])
    params["vocabulary"] = pad_tables(params["vocabulary"], tables)
    write_run(path, described, encoder, params, vocabularies[:1])
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


def _bert_names(prefix: str) -> Names:
    layer = f"{prefix}encoder.layer.{{}}."
    return {
        "embeddings": f"{prefix}embeddings.",
        "query": f"{layer}attention.self.query",
        "key": f"{layer}attention.self.key",
        "value": f"{layer}attention.self.value",
        "output": f"{layer}attention.output.dense",
        "attention_norm": f"{layer}attention.output.LayerNorm",
        "wide": f"{layer}intermediate.dense",
        "narrow": f"{layer}output.dense",
        "feed_forward_norm": f"{layer}output.LayerNorm",
        "pooler": f"{prefix}pooler.dense",
        "head_dense": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "head_bias": "cls.predictions.bias",
    }


def _distil_names(prefix: str) -> Names:
    layer = f"{prefix}transformer.layer.{{}}."
    return {
        "embeddings": f"{prefix}embeddings.",
        "query": f"{layer}attention.q_lin",
        "key": f"{layer}attention.k_lin",
        "value": f"{layer}attention.v_lin",
        "output": f"{layer}attention.out_lin",
        "attention_norm": f"{layer}sa_layer_norm",
        "wide": f"{layer}ffn.lin1",
        "narrow": f"{layer}ffn.lin2",
        "feed_forward_norm": f"{layer}output_layer_norm",
        "head_dense": "vocab_transform",
        "head_norm": "vocab_layer_norm",
        "head_bias": "vocab_projector.bias",
    }


def _family(weights: Mapping[str, np.ndarray]) -> Names:
    """The names of the state dict's kind, with the prefix that it has."""
    for kind, prefix, inside in [
        (_bert_names, "bert.", "encoder.layer."),
        (_distil_names, "distilbert.", "transformer.layer."),
    ]:
        for start in (prefix, ""):
            if any(name.startswith(start + inside) for name in weights):
                return kind(start)
    raise ValueError("weights: no layers of a BERT or DistilBERT, allowed: the state dict of one")


Load = Callable[[Sequence[np.ndarray]], np.ndarray]
Dump = Callable[[np.ndarray, Sequence[tuple[int, ...]]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One of our parameters and the tensors it is made of.

    Attributes:
      path: of ours, by `/`, layers apart.
      names: theirs.
      shapes: theirs; -1 may be anything.
      load: theirs to ours.
      dump: ours to theirs, with their shapes.
    """

    path: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    load: Load = lambda arrays: arrays[0]
    dump: Dump = lambda array, shapes: [array]


def _entries(names: Names, model: config.Model, task: config.TaskKind | None) -> Iterator[_Entry]:
    """Every parameter of the model."""
    dim, part = model.dim, _attention(model)
    embeddings = names["embeddings"]
    yield _Entry("vocabulary/embedding", (f"{embeddings}word_embeddings.weight",), ((-1, dim),))
    positions = (f"{embeddings}position_embeddings.weight",)
    yield _Entry("position_embedding", positions, ((part.positions, dim),))
    if part.token_types:
        types = (f"{embeddings}token_type_embeddings.weight",)
        yield _Entry("token_type_embedding", types, ((part.token_types, dim),))
    yield from _norm("layer_norm", f"{embeddings}LayerNorm", dim)
    for index in range(model.num_layers):
        theirs = {name: module.format(index) for name, module in names.items()}
        yield from _layer(f"stack/layer_{index:02d}", theirs, model)
    if part.pooler:
        yield from _linear("pooler", names["pooler"], dim, dim)
    yield from HEADS[type(task)](names, dim, task)


def _masked_head(names: Names, dim: int, task: Any) -> Iterator[_Entry]:
    yield from _linear("head/dense", names["head_dense"], dim, dim)
    yield from _norm("head/layer_norm", names["head_norm"], dim)
    yield _Entry("vocabulary/bias", (names["head_bias"],), ((-1,),))


HEADS: dict[type, Callable[[Names, int, Any], Iterator[_Entry]]] = {
    type(None): lambda names, dim, task: iter(()),
    config.MaskedLanguageModeling: _masked_head,
    config.Classification: lambda names, dim, task: _linear("head/classifier", "classifier", dim, task.num_classes),
    config.QuestionAnswering: lambda names, dim, task: _linear("head/spans", "qa_outputs", dim, 2),
}
"""the parameters of the head of a task; None = an encoder alone"""


def _layer(path: str, names: Names, model: config.Model) -> Iterator[_Entry]:
    dim, heads = model.dim, model.num_heads
    head_dim = model.head_dim or dim // heads
    inner = heads * head_dim
    parts = [names[part] for part in ("query", "key", "value")]
    yield _Entry(
        f"{path}/attention/query_key_value",
        tuple(f"{part}.weight" for part in parts),
        ((inner, dim),) * 3,
        lambda arrays: np.stack([array.T.reshape(dim, heads, head_dim) for array in arrays], axis=1),
        lambda array, shapes: [array[:, i].reshape(dim, inner).T for i in range(3)],
    )
    yield _Entry(
        f"{path}/attention/biases",
        tuple(f"{part}.bias" for part in parts),
        ((inner,),) * 3,
        np.concatenate,
        lambda array, shapes: np.split(array, 3),
    )
    yield _Entry(
        f"{path}/attention/output",
        (f"{names['output']}.weight",),
        ((dim, inner),),
        lambda arrays: arrays[0].T.reshape(heads, head_dim, dim),
        lambda array, shapes: [array.reshape(inner, dim).T],
    )
    yield _Entry(f"{path}/attention/output_bias", (f"{names['output']}.bias",), ((dim,),))
    yield from _norm(f"{path}/attention/layer_norm", names["attention_norm"], dim)
    hidden = model.feed_forward.dim or 4 * dim
    yield from _linear(f"{path}/feed_forward/wide", names["wide"], dim, hidden)
    yield from _linear(f"{path}/feed_forward/narrow", names["narrow"], hidden, dim)
    yield from _norm(f"{path}/feed_forward/layer_norm", names["feed_forward_norm"], dim)


def _linear(path: str, name: str, wide: int, narrow: int) -> Iterator[_Entry]:
    transposed: Load = lambda arrays: arrays[0].T
    yield _Entry(f"{path}/kernel", (f"{name}.weight",), ((narrow, wide),), transposed, lambda a, shapes: [a.T])
    yield _Entry(f"{path}/bias", (f"{name}.bias",), ((narrow,),))


def _norm(path: str, name: str, dim: int) -> Iterator[_Entry]:
    yield _Entry(f"{path}/scale", (f"{name}.weight",), ((dim,),))
    yield _Entry(f"{path}/bias", (f"{name}.bias",), ((dim,),))


_TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "vocab_projector.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""tensors that repeat another one (the end of its name)"""
_OTHERS = ("cls.", "vocab_", "classifier.", "pre_classifier.", "qa_outputs.", "pooler.dense.", "position_ids")
"""what may be left over: the heads of other tasks, and constants"""


class _Source:
    """The state dict while it is read; mismatches are collected."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights, self.problems = dict(weights), []
        for name, ends in _TIED.items():
            tied = [other for other in weights if other.endswith(ends)]
            if name in weights and tied and not np.array_equal(weights[name], weights[tied[0]]):
                self.problems.append(f"{name} differs from {tied[0]}, to which it is tied")

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The tensor `name`, or None."""
        weight = self.weights.pop(name, None)
        if weight is None:
            self.problems.append(f"{name} is missing")
            return None
        fits = weight.ndim == len(shape) and all(b in (-1, a) for a, b in zip(weight.shape, shape, strict=True))
        if not fits:
            expected = tuple("any" if size == -1 else size for size in shape)
            self.problems.append(f"{name} has shape {weight.shape} and not {expected}".replace("'", ""))
            return None
        return weight if weight.dtype == np.float64 else weight.astype(np.float32)

    def finish(self) -> None:
        """Raises `ValueError` with all mismatches."""
        left = [name for name in self.weights if not any(part in name for part in _OTHERS)]
        problems = [*self.problems, *(f"{name} is left over" for name in sorted(left))]
        if problems:
            raise ValueError(f"weights: {len(problems)} tensors do not fit the model: {'; '.join(problems)}")


def _read(weights: Mapping[str, np.ndarray] | str | Path) -> dict[str, np.ndarray]:
    """The state dict; old names of norms (`gamma`, `beta`) are replaced."""
    if isinstance(weights, str | Path):
        weights = safetensors.numpy.load_file(weights)
    rename = lambda name: name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
    return {rename(name): np.asarray(weight) for name, weight in weights.items()}


def _attention(model: config.Model) -> config.Bidirectional:
    if model.attention.is_causal:
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: Bidirectional")
    return cast(config.Bidirectional, model.attention)


def _put(tree: dict[str, Any], path: str, value: np.ndarray) -> None:
    *folders, last = path.split("/")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[last] = value


def _get(tree: Any, path: str) -> Any:
    for step in path.split("/"):
        tree = tree[step]
    return tree
