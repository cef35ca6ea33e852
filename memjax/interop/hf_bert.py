"""BERT, DistilBERT and MiniLM of Hugging Face `transformers`: import of weights and configuration, and export.

    model, params = load_pretrained("folder with config.json and model.safetensors")
    encoder = make_text_encoder(model, None, vocab_size(params))
    encoder.apply({"params": params}, tokens, mask=mask, method="embed_texts")

Names may have the prefix `bert.` or `distilbert.`, or none. `runs.import_run` makes a run directory of such a folder.
Nothing here imports torch or transformers.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.interop import folders
from memjax.interop import state_dicts as hf
from memjax.models.factory import make_stack
from memjax.models.heads import ClassificationHead, MaskedTokenHead, SpanHead
from memjax.models.transformer import join_collection, split_collection
from memjax.tasks import task_of

__all__ = [
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
    named = {_DISTIL_KEYS.get(key, key): value for key, value in hf_config.items()}
    given = hf.take_settings(named, _DEFAULTS)
    fixed = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "is_decoder": False}
    hf.check_fixed(given, fixed)
    activation = hf.take_activation(given, "hidden_act")
    hf.check_heads(given, "num_attention_heads", "hidden_size")
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
        feed_forward=config.Dense(dim=given["intermediate_size"], activation=activation),
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
    return _import(_read(weights), model, task)[0]


def _import(
    weights: Mapping[str, np.ndarray], model: config.Model, task: config.TaskKind | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The parameters, and the tensors that have no place."""
    source = _Source(weights)
    params = hf.load_entries(_entries(_family(weights), model, task), source)
    left = source.finish()
    return jax.tree.map(jnp.asarray, join_collection(params, make_stack(model).groups())), left


def read_model(
    described: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, dialogues: bool = False
) -> hf.Imported:
    """What a configuration and a state dict hold; the head, where there is one, says the task.

    Args:
      described: the configuration.
      weights: name -> array.
      dialogues: True is refused.

    Raises:
      ValueError: weights that do not fit the configuration.
    """
    hf.check_fields([("dialogues", dialogues, False)], "BERT")
    weights = _read(weights)
    model, task = _model_of(described, weights), find_task(weights)
    if task == config.MaskedLanguageModeling() and _with_counterpart(model, task) is None:
        given = model.feed_forward.activation
        raise ValueError(f"hf_config: given the activation {given!r}, allowed: 'gelu' with a head of masked tokens")
    params, left = _import(weights, model, task)
    if (rows := vocab_size(params)) != described.get("vocab_size", rows):
        given = described["vocab_size"]
        raise ValueError(f"weights: {rows} word embeddings, {folders.CONFIG_FILE} has vocab_size {given}")
    sources = {config.Classification: (config.Glue(), 128), config.QuestionAnswering: (config.Squad(), 384)}
    source, length = sources.get(type(task), (config.TextFiles(), 128))
    length = min(length, _attention(model).positions)
    if isinstance(task, config.QuestionAnswering) and length < 256:  # windows as large a part of it as by default
        task = config.QuestionAnswering(stride=max(length // 3, 1), max_question_length=max(length // 6, 1))
    data = config.Data(source=source, tokenizer=config.WordPiece(), segment_length=length)
    return hf.Imported(model, params, data, task or config.MaskedLanguageModeling(), left)


def _model_of(described: Mapping[str, Any], weights: Iterable[str]) -> config.Model:
    return model_config(described, pooler=any(name.endswith("pooler.dense.weight") for name in weights))


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a state dict with the names of transformers' classes for the task.

    Args:
      params: of `make_text_encoder(model, head, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration; without token types it is a DistilBERT.
      task: whose head the parameters have. One is left out where transformers' is another: of a classification without
        the pooler or of a DistilBERT, and of masked tokens where the layers have another activation than GELU, which
        the head has here.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    _check(model)
    return hf.dump_entries(entries(model, task), split_collection(params, make_stack(model).groups()))


def export_config(model: config.Model, vocab_size: int, task: config.TaskKind | None = None) -> dict[str, Any]:
    """The inverse of `model_config`, as it stands in `config.json`.

    Args:
      model: the configuration.
      vocab_size: entries of the vocabulary.
      task: as in `export_params`.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    _check(model)
    kind = _kind(model)
    own = {
        "hidden_size": model.dim,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.feed_forward.dim or 4 * model.dim,
        "hidden_act": hf.name_activation(model),
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "max_position_embeddings": _attention(model).positions,
    }
    if kind == 0:
        own = {**_DEFAULTS, **own, "type_vocab_size": _attention(model).token_types}
    else:
        theirs = {ours: name for name, ours in _DISTIL_KEYS.items()}
        own = {theirs.get(name, name): value for name, value in own.items()} | {"sinusoidal_pos_embds": False}
    task = _with_counterpart(model, task)
    match task:
        case config.Classification(num_classes=classes) if classes != 2:
            own["id2label"] = {str(number): f"LABEL_{number}" for number in range(classes)}
            own["label2id"] = {label: int(number) for number, label in own["id2label"].items()}
    name = ("Bert", "DistilBert")[kind] + _CLASSES.get(type(task), "Model")
    model_type = ("bert", "distilbert")[kind]
    return {"architectures": [name], "model_type": model_type, "vocab_size": vocab_size, "pad_token_id": 0, **own}


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

    Args:
      folder: of the two files.
      task: whose head is imported too; None = no head.

    Raises:
      ValueError: a file that is missing, or weights that do not fit the configuration.
    """
    described, weights = folders.read_folder(folder)
    model = _model_of(described, weights)
    return model, import_params(weights, model, task)


def save_pretrained(
    folder: str | Path, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> None:
    """Writes a folder that transformers and `load_pretrained` read."""
    folders.write_folder(folder, export_config(model, vocab_size(params), task), export_params(params, model, task))


def differences(model: config.Model) -> tuple[str, ...]:
    """What the exported model computes otherwise, its memory aside: nothing."""
    del model
    return ()


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
    "tie_word_embeddings": True,
}
_CLASSES = {
    config.MaskedLanguageModeling: "ForMaskedLM",
    config.Classification: "ForSequenceClassification",
    config.QuestionAnswering: "ForQuestionAnswering",
}
"""task -> the end of the name of transformers' class"""
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


HEAD_ACTIVATION = "gelu_exact"
"""of the head of masked tokens; there it is that of the layers"""
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


def entries(model: config.Model, task: config.TaskKind | None = None) -> Iterator[hf.Entry]:
    """Every parameter that transformers' class has, with the names there; arguments as in `export_params`."""
    kind, task = _kind(model), _with_counterpart(model, task)
    return _entries(_names(kind, _PREFIXES[kind] if task else ""), model, task)


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

    def finish(self) -> dict[str, np.ndarray]:
        """The tensors of other heads; raises `ValueError` with all mismatches."""
        left = [name for name in self.weights if not any(part in name for part in _OTHERS)]
        problems = [*self.problems, *(f"{name} is left over" for name in sorted(left))]
        if problems:
            raise ValueError(f"weights: {len(problems)} tensors do not fit the model: {'; '.join(problems)}")
        return {name: weight for name, weight in self.weights.items() if name not in _TIED}


def _read(weights: Mapping[str, np.ndarray] | str | Path) -> dict[str, np.ndarray]:
    """The state dict; old names of norms (`gamma`, `beta`) are replaced."""
    rename = lambda name: name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
    return {rename(name): np.asarray(weight) for name, weight in folders.read_weights(weights).items()}


def _attention(model: config.Model) -> config.Bidirectional:
    if model.attention.is_causal:
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: Bidirectional")
    return cast(config.Bidirectional, model.attention)


def _kind(model: config.Model) -> int:
    """0 for a BERT, 1 for a DistilBERT."""
    return 0 if _attention(model).token_types else 1


def _with_counterpart(model: config.Model, task: config.TaskKind | None) -> config.TaskKind | None:
    """The task, unless transformers' head for it is another one."""
    fits = {
        config.Classification: _kind(model) == 0 and _attention(model).pooler,
        config.MaskedLanguageModeling: model.feed_forward.activation == HEAD_ACTIVATION,
    }
    return task if fits.get(type(task), True) else None


def _check(model: config.Model) -> None:
    """That Hugging Face's class can express the model, its memory aside."""
    head_dim = model.dim // model.num_heads
    checks = [("model.head_dim", model.head_dim or head_dim, head_dim)]
    if _kind(model):
        checks.append(("model.attention.pooler", _attention(model).pooler, False))
    hf.check_fields([*checks, *hf.feed_forward_checks(model)], ("BERT", "DistilBERT")[_kind(model)])
