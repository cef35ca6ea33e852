"""Changes to trained models: returning inner tensors, and mixing output memories into their predictions."""

from collections.abc import Mapping
from typing import Any, TypeVar

from memjax.memory.interface import OutputMemory
from memjax.models.interface import Model
from memjax.models.language_model import LanguageModel
from memjax.models.transformer import join_collection, split_collection

__all__ = ["add_features", "add_mixtures", "regroup_layers"]

Encoded = TypeVar("Encoded", bound=Model)


def add_mixtures(model: Any, *mixtures: OutputMemory) -> LanguageModel:
    """Returns a copy of a language model whose predictions the output memories `mixtures` are mixed into. The copy also
    returns the inner tensors with which they query a datastore.

    The variables stay those of the model. They are grouped anew where a feature takes a layer out of its scanned group:
    see `regroup_layers`.

    Example:
      >>> from memjax.config import Model
      >>> from memjax.memory.knn_lm import KNNMemory
      >>> from memjax.models.factory import make_language_model
      >>> model = make_language_model(Model(num_layers=3), 10)
      >>> add_mixtures(model, KNNMemory()).stack.features
      ('layer_02/feed_forward_input_normed',)

    Raises:
      ValueError: The model does not support output memories.
    """
    model.require("mixes", "add_mixtures")
    names = [memory.query_feature for memory in mixtures]
    full_names = [_full_name(feature, len(model.stack.layers)) for feature in names]
    mixtures = tuple(m.clone(query_feature=f) if f else m for m, f in zip(mixtures, full_names, strict=True))
    model = add_features(model, *filter(None, full_names))
    return model.clone(mixtures=(*model.mixtures, *mixtures))


def add_features(model: Encoded, *features: str) -> Encoded:
    """Returns a copy of a language model or text encoder that also returns inner tensors in `Aux.arrays`. `features`
    are their names, such as `layer_-1/output` for the last layer, which is returned as `layer_<index>/output`.

    Args:
      model: Language model or text encoder.
      features: Names of tensors, `layer_<index>/<tap>` (a negative index counts from the last layer), `output` or
        `output_normed`.
    """
    full_names = [_full_name(feature, len(model.stack.layers)) for feature in features]
    inner = {*(_full_name(feature, len(model.stack.layers)) for feature in model.stack.features)}
    inner |= {name for name in full_names if name.startswith("layer_")}
    outer = {*model.features, *(name for name in full_names if not name.startswith("layer_"))}
    unknown = outer - {"output", "output_normed"}
    if unknown:
        allowed = "layer_<index>/<tap>, output, output_normed"
        raise ValueError(f"features: given {sorted(unknown)[0]!r}, allowed: {allowed}")
    return model.clone(stack=model.stack.clone(features=tuple(sorted(inner))), features=tuple(sorted(outer)))


def regroup_layers(variables: Mapping[str, Any], model: Encoded, other: Encoded) -> dict[str, Any]:
    """Rearranges the variables of `model`, and returns them for `other`, a model that has the same layers in other
    scanned groups.

    For layers with another memory size see `memjax.training.variables.fitting`.
    """
    before, after = model.layer_groups(), other.layer_groups()
    if before == after:
        return dict(variables)
    return {
        name: join_collection(split_collection(collection, before), after) for name, collection in variables.items()
    }


def _full_name(feature: str, num_layers: int) -> str:
    """Completes the name of a layer's tensor: `layer_-1/output` -> `layer_02/output` for three layers.

    Other names stay as they are.
    """
    layer, slash, tap = feature.partition("/")
    index = layer.removeprefix("layer_")
    if not slash or not index.lstrip("-").isdigit() or not -num_layers <= int(index) < num_layers:
        return feature
    return f"layer_{int(index) % num_layers:02d}/{tap}"
