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

import numpy as np

from memjax import config
from memjax.interop import folders
from memjax.interop import state_dicts as hf
from memjax.interop.family import (
    Family,
    Field,
    Imported,
    activation_key,
    epsilon_key,
    fixed_key,
    head_count_key,
    hidden_size_key,
    is_tied,
    vocab_size,
)
from memjax.models.heads import ClassificationHead, MaskedTokenHead, SpanHead
from memjax.tasks import task_of

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

EPSILON = 1e-12
"""of the norms of a text encoder, unless its settings say otherwise"""


class Encoder(Family):
    """A text encoder: the layers, positions, types and heads that BERT has.

    Attributes:
      classes: Beginning of the names of its classes.
      names: Our module -> theirs, `{}` being the number of a layer.
    """

    classes: str
    names: Mapping[str, str]
    has_headless = True
    constants = ("position_ids", "token_type_ids")

    def base(self) -> config.Model:
        """Returns a model that sees the whole text."""
        return config.Model(attention=config.Bidirectional(), output=config.Softmax(tied=True))

    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[hf.Entry]:
        """Yields the table of parameters, with the head of the task."""
        dim, part, names = model.dim, _attention(model), self.names
        embedding, scores = (
            f"{names['embeddings']}.word_embeddings.weight",
            isinstance(task, config.MaskedLanguageModeling),
        )
        yield from hf.embeddings(embedding, names["decoder"], dim, is_tied(model) or not scores)
        yield self.positions(part.positions, dim)
        if part.token_types:
            types = f"{names['embeddings']}.token_type_embeddings.weight"
            yield hf.same("token_type_embedding", types, part.token_types, dim)
        yield from hf.norm("layer_norm", f"{names['embeddings']}.LayerNorm", dim)
        for index in range(model.num_layers):
            yield from self.layer_tensors(index, model)
        if part.pooler:
            yield from hf.linear("pooler", self.pooler(task), dim, dim)
        match task and task_of(config.Config(model=model, task=task)).head():
            case MaskedTokenHead():
                yield from hf.linear("head/dense", names["head_dense"], dim, dim)
                yield from hf.norm("head/layer_norm", names["head_norm"], dim)
                bias, decoder = names["head_bias"], names.get("decoder_bias", "")
                if decoder and not is_tied(model):  # the class reads that of the decoder then
                    yield hf.same("vocabulary/bias", decoder, -1, spare=bias)
                else:
                    yield hf.same("vocabulary/bias", bias, -1, tied=(decoder,) if decoder else ())
            case ClassificationHead(num_classes=classes):
                yield from hf.linear("head/classifier", names["classifier"], dim, classes)
            case SpanHead():
                yield from hf.linear("head/spans", "qa_outputs", dim, 2)

    def positions(self, count: int, dim: int) -> hf.Entry:
        """Returns the entry of the table of positions."""
        return hf.same("position_embedding", f"{self.names['embeddings']}.position_embeddings.weight", count, dim)

    def pooler(self, task: config.TaskKind | None) -> str:
        """Returns the name of the dense layer over the first token."""
        del task
        return self.names["pooler"]

    def layer_tensors(self, index: int, model: config.Model) -> Iterator[hf.Entry]:
        """Yields the table of one layer."""
        path, names = f"stack/layer_{index:02d}", {part: name.format(index) for part, name in self.names.items()}
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

    def adapt(self, model: config.Model, names: Iterable[str]) -> config.Model:
        """Returns the model, with a pooler where there are tensors of one."""
        _attention(model).pooler = f"{self.names['pooler']}.weight" in names
        return model

    def heads(
        self, described: Mapping[str, Any], weights: Mapping[str, np.ndarray]
    ) -> Mapping[str, config.TaskKind | None]:
        """Returns the classes that are known, and the task of the head that each has in the weights."""
        masked, asked = f"{self.names['head_dense']}.weight" in weights, "qa_outputs.weight" in weights
        known: dict[str, config.TaskKind | None] = {
            f"{self.classes}ForMaskedLM": config.MaskedLanguageModeling() if masked else None,
            f"{self.classes}ForQuestionAnswering": config.QuestionAnswering() if asked else None,
        }
        if "classifier" in self.names:
            name = f"{self.classes}ForSequenceClassification"
            is_it = next(iter(described.get("architectures") or (name,))) == name
            matrix = weights.get(f"{self.names['classifier']}.weight")
            known[name] = read_classes(described, matrix) if is_it else None
        return {**known, f"{self.classes}Model": None}

    def data(self, model: config.Model, task: config.TaskKind | None, dialogues: bool) -> config.Data:
        """Returns the texts of the task."""
        del dialogues
        sources = {config.Classification: (config.Glue(), 128), config.QuestionAnswering: (config.Squad(), 384)}
        source, length = sources.get(type(task), (config.TextFiles(), 128))
        length = min(length, _attention(model).positions)
        return config.Data(source=source, tokenizer=self.tokenizer(), segment_length=length)

    def tokenizer(self) -> config.TokenizerKind:
        """Returns the kind of its tokenizer."""
        return config.WordPiece()

    def read_model(
        self, described: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, dialogues: bool = False
    ) -> Imported:
        """Returns what a configuration and a state dict hold; the head, where there is one, says the task."""
        read = super().read_model(described, weights, dialogues=dialogues)
        task, length = read.task, read.data.segment_length
        if isinstance(task, config.MaskedLanguageModeling):
            task = config.MaskedLanguageModeling(activation=self.head_activation(read.model))
        if isinstance(task, config.QuestionAnswering) and length < 256:  # windows as large a part of it as by default
            task = config.QuestionAnswering(stride=max(length // 3, 1), max_question_length=max(length // 6, 1))
        return read._replace(task=task or config.MaskedLanguageModeling())

    def task_here(self, model: config.Model, task: config.TaskKind | None) -> config.TaskKind | None:
        """Returns the task, or None where transformers has another head for it."""
        match task:
            case config.Classification():
                return task if self.has_classes(model) else None
            case config.MaskedLanguageModeling():
                return task if task.activation == self.head_activation(model) else None
        return task

    def head_activation(self, model: config.Model) -> Any:
        """Returns the activation of its head of masked tokens."""
        return model.feed_forward.activation

    def has_classes(self, model: config.Model) -> bool:
        """Returns whether its head of classes is ours."""
        del model
        return False

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns the class that has the head of the task."""
        del model
        ends = {
            config.MaskedLanguageModeling: "ForMaskedLM",
            config.Classification: "ForSequenceClassification",
            config.QuestionAnswering: "ForQuestionAnswering",
        }
        return self.classes + ends.get(type(task), "Model")

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns the names of classes, unless there are the two that every configuration has."""
        del model
        match task:
            case config.Classification(num_classes=classes) if classes != 2:
                labels = {str(number): f"LABEL_{number}" for number in range(classes)}
                return {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
        return {}

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns name, value and allowed value of settings that it has no key for."""
        _attention(model)
        head_dim = model.dim // model.num_heads
        return [("model.head_dim", model.head_dim or head_dim, head_dim)]


class Bert(Encoder):
    """BERT (Devlin et al. 2019), and MiniLM (Wang et al. 2020)."""

    name, model_type, classes = "BERT", "bert", "Bert"
    prefix, layer, head_parts = "bert.", "encoder.layer.", ("cls.", "classifier.", "qa_outputs.")
    beside = ("cls.", "classifier.", "qa_outputs.", "pooler.dense.")
    names: Mapping[str, str] = {
        "embeddings": "bert.embeddings",
        "pooler": "bert.pooler.dense",
        "query": "bert.encoder.layer.{}.attention.self.query",
        "key": "bert.encoder.layer.{}.attention.self.key",
        "value": "bert.encoder.layer.{}.attention.self.value",
        "output": "bert.encoder.layer.{}.attention.output.dense",
        "attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
        "wide": "bert.encoder.layer.{}.intermediate.dense",
        "narrow": "bert.encoder.layer.{}.output.dense",
        "feed_forward_norm": "bert.encoder.layer.{}.output.LayerNorm",
        "head_dense": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "head_bias": "cls.predictions.bias",
        "decoder": "cls.predictions.decoder.weight",
        "decoder_bias": "cls.predictions.decoder.bias",
        "classifier": "classifier",
    }
    fields = (
        Field("hidden_size", 768, "dim"),
        Field("num_hidden_layers", 12, "num_layers"),
        head_count_key("num_attention_heads", 12, "hidden_size"),
        hidden_size_key("intermediate_size", 3072, "hidden_size"),
        activation_key("hidden_act", "gelu"),
        Field("hidden_dropout_prob", 0.1, "dropout"),
        Field("attention_probs_dropout_prob", 0.1, "attention_dropout"),
        Field("max_position_embeddings", 512, "attention.positions"),
        Field("type_vocab_size", 2, "attention.token_types"),
        epsilon_key("layer_norm_eps", 1e-12, EPSILON),
        fixed_key("position_embedding_type", "absolute"),
        fixed_key("is_decoder", False),
        Field("tie_word_embeddings", True, "output.tied"),
    )

    def heads(
        self, described: Mapping[str, Any], weights: Mapping[str, np.ndarray]
    ) -> Mapping[str, config.TaskKind | None]:
        """Returns the classes that are known, and the task of the head that each has in the weights."""
        known = super().heads(described, weights)
        return {"BertForPreTraining": known["BertForMaskedLM"], **known}

    def has_classes(self, model: config.Model) -> bool:
        """Returns whether its head of classes is ours."""
        return _attention(model).pooler


class DistilBert(Encoder):
    """DistilBERT (Sanh et al. 2019): no types of tokens, no pooler."""

    name, model_type, classes = "DistilBERT", "distilbert", "DistilBert"
    prefix, layer = "distilbert.", "transformer.layer."
    head_parts = ("vocab_", "classifier.", "pre_classifier.", "qa_outputs.")
    beside = head_parts
    names: Mapping[str, str] = {
        "embeddings": "distilbert.embeddings",
        "pooler": "",
        "query": "distilbert.transformer.layer.{}.attention.q_lin",
        "key": "distilbert.transformer.layer.{}.attention.k_lin",
        "value": "distilbert.transformer.layer.{}.attention.v_lin",
        "output": "distilbert.transformer.layer.{}.attention.out_lin",
        "attention_norm": "distilbert.transformer.layer.{}.sa_layer_norm",
        "wide": "distilbert.transformer.layer.{}.ffn.lin1",
        "narrow": "distilbert.transformer.layer.{}.ffn.lin2",
        "feed_forward_norm": "distilbert.transformer.layer.{}.output_layer_norm",
        "head_dense": "vocab_transform",
        "head_norm": "vocab_layer_norm",
        "head_bias": "vocab_projector.bias",
        "decoder": "vocab_projector.weight",
    }
    fields = (
        Field("dim", 768, "dim"),
        Field("n_layers", 12, "num_layers"),
        head_count_key("n_heads", 12, "dim"),
        hidden_size_key("hidden_dim", 3072, "dim"),
        activation_key("activation", "gelu"),
        Field("dropout", 0.1, "dropout"),
        Field("attention_dropout", 0.1, "attention_dropout"),
        Field("max_position_embeddings", 512, "attention.positions"),
        Field("tie_word_embeddings", True, "output.tied"),
    )

    def base(self) -> config.Model:
        """Returns a model that sees the whole text, without types of tokens and pooler."""
        return config.Model(
            attention=config.Bidirectional(token_types=0, pooler=False), output=config.Softmax(tied=True)
        )

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns the names of classes, and how positions were made."""
        return super().class_keys(model, task) | {"sinusoidal_pos_embds": False}

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns name, value and allowed value of settings that it has no key for."""
        epsilon = model.norm_epsilon or EPSILON
        own = [("model.attention.pooler", _attention(model).pooler, False), ("model.norm_epsilon", epsilon, EPSILON)]
        return [*super().checks(model), *own]


def read_classes(described: Mapping[str, Any], matrix: np.ndarray | None) -> config.Classification | None:
    """Returns the task of a head of classes, None where there is none.

    Args:
      described: The configuration.
      matrix: Weights of the head, a row a class.

    Raises:
      ValueError: The head answers with a number or with several classes, or has not the classes of the configuration.
    """
    problem = described.get("problem_type")
    if problem not in (None, "single_label_classification"):
        raise ValueError(f"hf_config['problem_type']: given {problem!r}, allowed: 'single_label_classification'")
    if matrix is None:
        return None
    if len(matrix) < 2:
        raise ValueError("weights['classifier.weight']: given 1 row, a regression, allowed: 2 or more classes")
    labels = described.get("id2label")
    count = len(labels) if labels is not None else described.get("num_labels", len(matrix))
    if count != len(matrix):
        raise ValueError(
            f"weights['classifier.weight']: given {len(matrix)} classes, allowed: {count}, as id2label says"
        )
    return config.Classification(num_classes=len(matrix))


def _attention(model: config.Model) -> config.Bidirectional:
    if model.attention.is_causal:
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: Bidirectional")
    return cast(config.Bidirectional, model.attention)


BERT, DISTILBERT = Bert(), DistilBert()


def _family_of(model: config.Model) -> Encoder:
    return BERT if _attention(model).token_types else DISTILBERT


def model_config(hf_config: Mapping[str, Any], *, pooler: bool = True) -> config.Model:
    """Returns the model that a configuration of BERT or DistilBERT describes.

    Args:
      hf_config: The configuration; keys that are missing have the defaults of `BertConfig` or `DistilBertConfig`.
      pooler: Whether the weights have one (DistilBERT's never do).

    Raises:
      ValueError: Another kind of model, or an option that has no counterpart here.

    Example:
      >>> model_config({"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6}).dim
      384
    """
    kind = hf_config.get("model_type", "bert")
    if kind not in ("bert", "distilbert"):
        raise ValueError(f"hf_config['model_type']: given {kind!r}, allowed: 'bert', 'distilbert'")
    model = (BERT if kind == "bert" else DISTILBERT).model_config(hf_config)
    _attention(model).pooler &= pooler
    return model


def import_params(
    weights: Mapping[str, np.ndarray] | str | Path, model: config.Model, task: config.TaskKind | None = None
) -> dict[str, Any]:
    """Returns parameters of `make_text_encoder(model, head, ...)`; see `Family.import_params`."""
    weights = folders.read_weights(weights)
    distilled = any(DISTILBERT.layer in name for name in weights)
    return (DISTILBERT if distilled else BERT).import_params(weights, model, task)


def read_model(described: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, dialogues: bool = False) -> Imported:
    """Returns what a configuration and a state dict hold; see `Family.read_model`."""
    distilled = described.get("model_type") == DISTILBERT.model_type
    return (DISTILBERT if distilled else BERT).read_model(described, weights, dialogues=dialogues)


def find_task(weights: Mapping[str, np.ndarray] | str | Path) -> config.TaskKind | None:
    """Returns the task whose head a state dict has. None = an encoder alone."""
    weights = folders.read_weights(weights)
    family = DISTILBERT if any(DISTILBERT.layer in name for name in weights) else BERT
    return family.find_task({}, {family.read_names(weights).plain[name]: weight for name, weight in weights.items()})


def load_pretrained(folder: str | Path, task: config.TaskKind | None = None) -> tuple[config.Model, dict[str, Any]]:
    """Returns settings and parameters of a folder; see `Family.load_pretrained`."""
    distilled = folders.read_described(Path(folder).expanduser()).get("model_type") == DISTILBERT.model_type
    return (DISTILBERT if distilled else BERT).load_pretrained(folder, task)


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """Returns a state dict of a BERT, or of a DistilBERT where there are no types; see `Family.export_params`."""
    return _family_of(model).export_params(params, model, task)


def export_config(model: config.Model, vocab_size: int, task: config.TaskKind | None = None) -> dict[str, Any]:
    """Returns the `config.json` of a BERT, or of a DistilBERT; see `Family.export_config`."""
    return _family_of(model).export_config(model, vocab_size, task)


def save_pretrained(
    folder: str | Path, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> None:
    """Writes a folder that transformers and `load_pretrained` read."""
    _family_of(model).save_pretrained(folder, params, model, task)


def entries(model: config.Model, task: config.TaskKind | None = None) -> Iterator[hf.Entry]:
    """Returns the table of every parameter that transformers' class has; see `export_params` for the arguments."""
    return _family_of(model).entries(model, task)


def differences(model: config.Model) -> tuple[str, ...]:
    """Returns what the exported model computes otherwise, its memory aside: nothing."""
    return _family_of(model).differences(model)
