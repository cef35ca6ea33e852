"""Base class of the text encoders of Hugging Face's `transformers`: BERT and its descendants."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from memjax import config
from memjax.interop import state_dicts as hf
from memjax.interop.family import ImportedWeights, ModelFamily
from memjax.interop.parameters import is_tied
from memjax.models.heads import ClassificationHead, MaskedTokenHead, SpanHead
from memjax.tasks import make_task

EPSILON = 1e-12
"""number that the norms of a text encoder add to the variance, unless its settings say otherwise"""


class Encoder(ModelFamily):
    """Base class of the families of text encoders with the layers, positions, token types and heads of BERT. It imports
    and exports their weights; it is no module.

    Attributes:
      classes: Start of the names of transformers' classes, such as "Bert".
      names: Name of a module in memjax -> its name in transformers, in which `{}` stands for the number of a layer.
    """

    classes: str
    names: Mapping[str, str]
    has_headless = True
    constants = ("position_ids", "token_type_ids")

    def base(self) -> config.Model:
        """Returns the settings that all text encoders share: bidirectional attention and tied output weights."""
        return config.Model(attention=config.Bidirectional(), output=config.Softmax(tied=True))

    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[hf.WeightMapping]:
        """Yields a `WeightMapping` for every group of parameters of the encoder and of the head of `task`. None for no
        head.
        """
        dim, part, names = model.dim, encoder_attention(model), self.names
        embedding, scores = (
            f"{names['embeddings']}.word_embeddings.weight",
            isinstance(task, config.MaskedLanguageModeling),
        )
        yield from hf.embeddings(embedding, names["decoder"], dim, is_tied(model) or not scores)
        yield self.positions(part.num_positions, dim)
        if part.num_token_types:
            types = f"{names['embeddings']}.token_type_embeddings.weight"
            yield hf.map_unchanged("token_type_embedding", types, part.num_token_types, dim)
        yield from hf.norm("layer_norm", f"{names['embeddings']}.LayerNorm", dim)
        for index in range(model.num_layers):
            yield from self.layer_tensors(index, model)
        if part.pooler:
            yield from hf.linear("pooler", self.pooler(task), dim, dim)
        match task and make_task(config.Config(model=model, task=task)).head():
            case MaskedTokenHead():
                yield from hf.linear("head/dense", names["head_dense"], dim, dim)
                yield from hf.norm("head/layer_norm", names["head_norm"], dim)
                bias, decoder = names["head_bias"], names.get("decoder_bias", "")
                if decoder and not is_tied(model):  # the class reads that of the decoder then
                    yield hf.map_unchanged("vocabulary/bias", decoder, -1, spare=bias)
                else:
                    yield hf.map_unchanged("vocabulary/bias", bias, -1, tied=(decoder,) if decoder else ())
            case ClassificationHead(num_classes=classes):
                yield from hf.linear("head/classifier", names["classifier"], dim, classes)
            case SpanHead():
                yield from hf.linear("head/spans", "qa_outputs", dim, 2)

    def positions(self, count: int, dim: int) -> hf.WeightMapping:
        """Returns the mapping of the table of position embeddings, which has `count` positions of width `dim`."""
        return hf.map_unchanged(
            "position_embedding", f"{self.names['embeddings']}.position_embeddings.weight", count, dim
        )

    def pooler(self, task: config.TaskKind | None) -> str:
        """Returns the name in transformers of the pooler, the dense layer over the first token. It may depend on the
        task.
        """
        del task
        return self.names["pooler"]

    def layer_tensors(self, index: int, model: config.Model) -> Iterator[hf.WeightMapping]:
        """Yields the mappings of all parameters of the layer with number `index`, from 0."""
        path, names = f"stack/layer_{index:02d}", {part: name.format(index) for part, name in self.names.items()}
        dim, heads = model.dim, (model.num_heads, model.head_dim or model.dim // model.num_heads)
        inner, parts = heads[0] * heads[1], [names[part] for part in ("query", "key", "value")]
        yield hf.WeightMapping(
            (f"{path}/attention/query_key_value",),
            {f"{part}.weight": (inner, dim) for part in parts},
            lambda arrays: [np.stack([array.T.reshape(dim, *heads) for array in arrays], axis=1)],
            lambda arrays: [arrays[0][:, i].reshape(dim, inner).T for i in range(3)],
        )
        yield hf.WeightMapping(
            (f"{path}/attention/biases",),
            {f"{part}.bias": (inner,) for part in parts},
            lambda arrays: [np.concatenate(arrays)],
            lambda arrays: np.split(arrays[0], 3),
        )
        yield hf.matrix(f"{path}/attention/output", f"{names['output']}.weight", (*heads, dim), 2)
        yield hf.map_unchanged(f"{path}/attention/output_bias", f"{names['output']}.bias", dim)
        yield from hf.norm(f"{path}/attention/layer_norm", names["attention_norm"], dim)
        hidden = model.feed_forward.dim or 4 * dim
        yield from hf.linear(f"{path}/feed_forward/wide", names["wide"], dim, hidden)
        yield from hf.linear(f"{path}/feed_forward/narrow", names["narrow"], hidden, dim)
        yield from hf.norm(f"{path}/feed_forward/layer_norm", names["feed_forward_norm"], dim)

    def adapt(self, model: config.Model, names: Iterable[str]) -> config.Model:
        """Sets in the settings whether the model has a pooler, by the names of the tensors in a state dict, and returns
        these settings.
        """
        encoder_attention(model).pooler = f"{self.names['pooler']}.weight" in names
        return model

    def heads(self, described: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, config.TaskKind | None]:
        """Returns, for a `config.json` and a state dict, a mapping from the supported classes of transformers to tasks.
        A class has None where the weights lack its head.
        """
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
        """Returns the settings of the data that a run of the model reads by default: GLUE for classification, SQuAD for
        questions, else text files. `dialogues` has no effect.
        """
        del dialogues
        sources = {config.Classification: (config.Glue(), 128), config.QuestionAnswering: (config.Squad(), 384)}
        source, length = sources.get(type(task), (config.TextFiles(), 128))
        length = min(length, encoder_attention(model).num_positions)
        return config.Data(source=source, tokenizer=self.tokenizer(), segment_length=length)

    def tokenizer(self) -> config.TokenizerKind:
        """Returns the settings of the tokenizer of the family, without a vocabulary: WordPiece."""
        return config.WordPiece()

    def open_model(
        self, described: Mapping[str, Any], weights: Mapping[str, Any], *, dialogues: bool = False
    ) -> ImportedWeights:
        """Converts a configuration and a state dict to settings, parameters, data and task. The task is that of the
        head; without a head it is masked language modelling. `dialogues` must be False.
        """
        read = super().open_model(described, weights, dialogues=dialogues)
        task, length = read.task, read.data.segment_length
        if isinstance(task, config.MaskedLanguageModeling):
            task = config.MaskedLanguageModeling(activation=self.head_activation(read.model))
        if isinstance(task, config.QuestionAnswering) and length < 256:  # windows as large a part of it as by default
            task = config.QuestionAnswering(stride=max(length // 3, 1), max_question_length=max(length // 6, 1))
        return read._replace(task=task or config.MaskedLanguageModeling())

    def task_here(self, model: config.Model, task: config.TaskKind | None) -> config.TaskKind | None:
        """Returns `task` unchanged, or None where the head of transformers for it differs from the head of this memjax
        model, so that an export has no head.
        """
        match task:
            case config.Classification():
                return task if self.has_classes(model) else None
            case config.MaskedLanguageModeling():
                return task if task.activation == self.head_activation(model) else None
        return task

    def head_activation(self, model: config.Model) -> Any:
        """Returns the name of the activation in the head of masked tokens, by default that of the feed-forward
        parts.
        """
        return model.feed_forward.activation

    def has_classes(self, model: config.Model) -> bool:
        """Whether the classification head of transformers has the same layers as the one of this memjax model. False
        unless a family says otherwise.
        """
        del model
        return False

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns the name of the class of transformers with the head of `task`, such as "BertForMaskedLM".
        "BertModel", without a head, for None.
        """
        del model
        ends = {
            config.MaskedLanguageModeling: "ForMaskedLM",
            config.Classification: "ForSequenceClassification",
            config.QuestionAnswering: "ForQuestionAnswering",
        }
        return self.classes + ends.get(type(task), "Model")

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns additional keys and values of `config.json`: for a classification task `id2label` and `label2id`. {}
        for two classes, the default of transformers, and for other tasks.
        """
        del model
        match task:
            case config.Classification(num_classes=classes) if classes != 2:
                labels = {str(number): f"LABEL_{number}" for number in range(classes)}
                return {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
        return {}

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns (name, value, allowed value) of each setting that `config.json` has no key for, after checking that
        the model is a text encoder.
        """
        encoder_attention(model)
        head_dim = model.dim // model.num_heads
        return [("model.head_dim", model.head_dim or head_dim, head_dim)]


def layer_names(
    layer: str, attention: Sequence[str], feed_forward: Sequence[str], norms: Sequence[str]
) -> dict[str, str]:
    """Returns a mapping from the parts of a layer, such as "query" or "wide", to the names of their modules in
    transformers, for `Encoder.names`. `layer` is the start of these names, the others are lists of their ends.

    Args:
      layer: Start of the names, in which `{}` stands for the number of the layer.
      attention: Projections of queries, keys and values, and of the output.
      feed_forward: First and second dense layer.
      norms: Norm of the attention part, and of the feed-forward part.
    """
    parts = ("query", "key", "value", "output", "wide", "narrow", "attention_norm", "feed_forward_norm")
    names = (*attention, *feed_forward, *norms)
    return {part: f"{layer}{name}" for part, name in zip(parts, names, strict=True)}


def read_classes(described: Mapping[str, Any], matrix: np.ndarray | None) -> config.Classification | None:
    """Returns the settings of a classification task with as many classes as the head's weight matrix has rows, after
    comparing them with the configuration `described`. None where `matrix` is None.

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


def encoder_attention(model: config.Model) -> config.Bidirectional:
    """Returns the attention settings of a text encoder, `model.attention`. Raises `ValueError` for another kind of
    model.

    Raises:
      ValueError: The model is not a text encoder.
    """
    if model.attention.is_causal:
        raise ValueError(f"model.attention: given {model.attention_kind}, allowed: Bidirectional")
    return cast(config.Bidirectional, model.attention)
