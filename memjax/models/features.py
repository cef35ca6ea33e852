"""Trained models that return more: inner tensors, and memories laid over the output."""

from collections.abc import Mapping
from typing import Any, TypeVar

from memjax.memory.contract import OutputMemory
from memjax.models.language_model import LanguageModel
from memjax.models.text_encoder import TextEncoder
from memjax.models.transformer import join_collection, split_collection

__all__ = ["add_features", "add_mixtures", "regroup"]

Encoded = TypeVar("Encoded", LanguageModel, TextEncoder)


def add_mixtures(model: Any, *mixtures: OutputMemory) -> LanguageModel:
    """The model with more memories at the output site, and with the features that they ask a store with.

    Its variables are those of the model, grouped anew where a feature takes a layer out of its scanned group: see
    `regroup`.

    Example:
      >>> from memjax.config import Model
      >>> from memjax.memory.knn_lm import KNNMemory
      >>> from memjax.models.factory import make_language_model
      >>> model = make_language_model(Model(num_layers=3), 10)
      >>> add_mixtures(model, KNNMemory()).stack.features
      ('layer_02/feed_forward_input_normed',)

    Raises:
      ValueError: a model that takes no memory over its output.
    """
    model.require("mixes", "add_mixtures")
    named = [memory.feature for memory in mixtures]
    full = [_full_name(feature, len(model.stack.layers)) for feature in named]
    mixtures = tuple(m.clone(feature=f) if f else m for m, f in zip(mixtures, full, strict=True))
    model = add_features(model, *filter(None, full))
    return model.clone(mixtures=(*model.mixtures, *mixtures))


def add_features(model: Encoded, *features: str) -> Encoded:
    """The model that also returns these inner tensors, under the names `layer_<index>/<tap>`; see `add_mixtures`.

    Args:
      model: any, also a text encoder.
      features: `layer_<index>/<tap>`, also with a negative index, or `output`, `output_normed`.
    """
    full = [_full_name(feature, len(model.stack.layers)) for feature in features]
    inner = {*(_full_name(feature, len(model.stack.layers)) for feature in model.stack.features)}
    inner |= {name for name in full if name.startswith("layer_")}
    outer = {*model.features, *(name for name in full if not name.startswith("layer_"))}
    unknown = outer - {"output", "output_normed"}
    if unknown:
        allowed = "layer_<index>/<tap>, output, output_normed"
        raise ValueError(f"features: given {sorted(unknown)[0]!r}, allowed: {allowed}")
    return model.clone(stack=model.stack.clone(features=tuple(sorted(inner))), features=tuple(sorted(outer)))


def regroup(variables: Mapping[str, Any], model: Encoded, other: Encoded) -> dict[str, Any]:
    """The variables of `model` as `other` holds them, which has the same layers in other groups.

    Layers with another memory size are the matter of `memjax.training.variables.fitting`.
    """
    before, after = model.groups(), other.groups()
    if before == after:
        return dict(variables)
    return {name: join_collection(split_collection(one, before), after) for name, one in variables.items()}


def _full_name(feature: str, num_layers: int) -> str:
    """`layer_-1/output` -> `layer_02/output`, for three layers; what is no layer's stays."""
    layer, slash, tap = feature.partition("/")
    index = layer.removeprefix("layer_")
    if not slash or not index.lstrip("-").isdigit() or not -num_layers <= int(index) < num_layers:
        return feature
    return f"layer_{int(index) % num_layers:02d}/{tap}"
