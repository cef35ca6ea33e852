"""Low-rank adapters of a whole model: adding them to its layers, and merging them with its parameters (LoRA).

See `memjax.memory.adapters` for the adapters of one part of a layer.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from memjax import config as settings
from memjax.memory.adapters import ADAPTER, EARLIER, AdaptableMatrix, Adapters, merge_low_rank
from memjax.memory.layer_parts import Residual
from memjax.models.gate import GATE, GATE_ENCODER
from memjax.models.interface import Model
from memjax.models.transformer import Layer

__all__ = [
    "LayerMatrix",
    "adapted_matrices",
    "add_adapters",
    "count_trained",
    "is_adapter",
    "is_earlier_adapter",
    "is_part",
    "is_trained_with_adapters",
    "join_earlier_adapters",
    "layer_matrices",
    "merge_adapters",
]

PARTS = ("attention", "feed_forward")
"""Names of the parts of a layer."""
HEAD = "head/"
"""Beginning of the paths of the parameters of a task's head, which is always trained."""


class LayerMatrix(NamedTuple):
    """A matrix of a layer that can have an adapter, and its place among the parameters of single layers.

    Attributes:
      part: Path of the part of the layer, `stack/layer_<index>/<part>`.
      parameter: Parameter of the part that holds the matrix, alone or among others of equal shape.
      name: Name of the matrix.
    """

    part: str
    parameter: AdaptableMatrix
    name: str

    @property
    def path(self) -> str:
        """Path of the matrix, as the targets of adapters name it, such as `stack/layer_00/attention/query`."""
        return f"{self.part}/{self.name}"

    @property
    def adapter(self) -> str:
        """Path of the adapter's arrays, which are `a` and `b` below it."""
        return f"{self.part}/{ADAPTER}_{self.name}"

    @property
    def inputs(self) -> tuple[int, ...]:
        """Sizes of the input axes."""
        return tuple(size for size, _ in self.parameter.inputs)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Sizes of the output axes."""
        return tuple(size for size, _ in self.parameter.outputs)


def add_adapters(model: Model, lora: settings.LoRA, *, earlier: int = 0) -> Model:
    """Returns a model with the adapters that the settings `lora` describe, or the model itself for the rank 0.
    `earlier` is the number of further adapters of each matrix, those of earlier tasks.

    Args:
      model: Language model or text encoder, unbound.
      lora: Settings of the adapters.
      earlier: Number of further adapters of each matrix, whose products are added, too.

    Raises:
      ValueError: The model has no layers whose matrices can have adapters, or a target names none of them.
    """
    if not lora.rank:
        return model
    if not model.has_stack:
        kind = type(model).__name__
        raise ValueError(f"training.lora.rank: given {lora.rank} with a {kind}, allowed: 0, or a model made of layers")
    stack: Any = model.stack
    number, paths = len(stack.layers), dict[str, bool]()
    chosen = ({layer % number for layer in lora.layers} or set(range(number))) - set(range(stack.first))
    plain = Adapters((), lora.rank, lora.scale, lora.dropout, earlier)
    layers = tuple(
        _adapt_layer(layer, f"stack/layer_{i:02d}", i in chosen, lora.targets, plain, paths)
        for i, layer in enumerate(stack.layers)
    )
    for target in lora.targets:
        if target != settings.ALL_LINEAR and not any(target in path for path in paths):
            names = ", ".join(dict.fromkeys(path.split("/", 2)[2] for path in paths))
            allowed = f"'{settings.ALL_LINEAR}' or a part of a matrix's path in a layer: {names}"
            raise ValueError(f"training.lora.targets: given {target!r}, allowed: {allowed}")
    if not any(paths.values()):
        allowed = "such that a matrix of the chosen layers is among them"
        raise ValueError(f"training.lora.targets: given {lora.targets}, allowed: {allowed}")
    return model.clone(stack=stack.clone(layers=layers))


def _adapt_layer(
    layer: Layer, path: str, is_chosen: bool, targets: tuple[str, ...], adapters: Adapters, paths: dict[str, bool]
) -> Layer:
    """Returns a layer with adapters. Adds to `paths` the path of each matrix that can have one, and whether it has."""
    parts: dict[str, Any] = {name: getattr(layer, name) for name in PARTS}
    for name, part in parts.items():
        matrices = _matrices_of(part)
        if not matrices and name == "attention" and is_chosen and settings.ALL_LINEAR in targets:
            kind = type(part).__name__
            allowed = "targets in feed_forward/, or an attention whose matrices can have adapters"
            raise ValueError(f"training.lora.targets: given '{settings.ALL_LINEAR}' with {kind}, allowed: {allowed}")
        here = {f"{path}/{name}/{matrix}": matrix for parameter in matrices for matrix in parameter.names}
        has_adapter = {where: is_chosen and _is_target(where, targets) for where in here}
        paths |= has_adapter
        names = tuple(here[where] for where in here if has_adapter[where])
        if names:
            parts[name] = part.clone(adapters=dataclasses.replace(adapters, names=names))
    return layer.clone(**parts)


def _is_target(path: str, targets: tuple[str, ...]) -> bool:
    return any(target == settings.ALL_LINEAR or target in path for target in targets)


def is_adapter(path: str) -> bool:
    """Whether an array belongs to an adapter, by its path in a layer or in a group of layers."""
    return f"/{ADAPTER}_" in path


def is_earlier_adapter(path: str) -> bool:
    """Whether an array holds the adapters of earlier tasks, which are not trained any more, by its path in a layer."""
    return is_adapter(path) and path.rpartition("/")[2].startswith(EARLIER)


def is_part(name: str, path: str) -> bool:
    """Whether `name` is a part of the path of a parameter, or its beginning where it has a / at the front.

    Example:
      >>> [is_part("/layer_norm", path) for path in ("layer_norm/scale", "stack/layers_0/attention/layer_norm/scale")]
      [True, False]
    """
    return path.startswith(name[1:]) if name.startswith("/") else name in path


def is_trained_with_adapters(path: str, lora: settings.LoRA) -> bool:
    """Whether a parameter is trained in a run with adapters: those of the adapters, those of the head of a task and of
    the gate on its input, and those that the settings `lora` name as fully trained. `path` has `/` between its parts.

    Example:
      >>> is_trained_with_adapters("stack/layers_0/attention/adapter_query/a", settings.LoRA(rank=4))
      True
    """
    if is_earlier_adapter(path):
        return False
    is_of_task = path.startswith((HEAD, GATE)) and not path.startswith(GATE_ENCODER)
    return is_adapter(path) or is_of_task or any(is_part(name, path) for name in lora.fully_trained)


def _matrices_of(part: Any) -> tuple[AdaptableMatrix, ...]:
    """Returns the matrices of a part of a layer that can have adapters."""
    return part.adaptable_matrices() if isinstance(part, Residual) else ()


def layer_matrices(layers: Sequence[Layer]) -> Iterator[LayerMatrix]:
    """Yields every matrix of layers that can have an adapter, layer by layer."""
    for index, layer in enumerate(layers):
        for part in PARTS:
            for parameter in _matrices_of(getattr(layer, part)):
                for name in parameter.names:
                    yield LayerMatrix(f"stack/layer_{index:02d}/{part}", parameter, name)


def adapted_matrices(model: Model) -> Iterator[tuple[LayerMatrix, Adapters]]:
    """Yields every matrix of a model that has an adapter, with the adapters of its part of a layer."""
    layers: Any = model.stack.layers if model.has_stack else ()
    for index, layer in enumerate(layers):
        for matrix in layer_matrices([layer]):
            part = matrix.part.rpartition("/")[2]
            adapters: Adapters | None = getattr(layer, part).adapters
            if adapters is not None and matrix.name in adapters.names:
                yield matrix._replace(part=f"stack/layer_{index:02d}/{part}"), adapters


def count_trained(params: Any, lora: settings.LoRA) -> int:
    """Returns the number of values of parameters that are trained in a run with the adapters `lora`, all for rank 0.

    Args:
      params: Tree of parameters, arrays or shapes.
      lora: Settings of the adapters.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    is_trained = lambda path: is_trained_with_adapters(jax.tree_util.keystr(path, simple=True, separator="/"), lora)
    return sum(math.prod(leaf.shape) for path, leaf in leaves if not lora.rank or is_trained(path))


def merge_adapters(arrays: Mapping[str, Any], model: Model, prefix: str = "params/") -> dict[str, Any]:
    """Adds the adapters of a model to its matrices, in float32 or wider, and returns the arrays of the same model
    without adapters, by name. Its logits differ from those with adapters by rounding only.

    Args:
      arrays: Arrays by their names in a checkpoint, a separate one for every layer.
      model: Model with the adapters.
      prefix: Beginning of the names of parameters.
    """
    merged = {name: array for name, array in arrays.items() if not is_adapter(name)}
    joined = join_earlier_adapters({name: np.asarray(array) for name, array in arrays.items() if is_adapter(name)})
    for matrix, adapters in adapted_matrices(model):
        path, names = f"{prefix}{matrix.part}/{matrix.parameter.path}", matrix.parameter.names
        a, b = (joined[f"{prefix}{matrix.adapter}/{factor}"] for factor in "ab")
        place = names.index(matrix.name)
        merged[path] = merge_low_rank(np.asarray(merged[path]), place, len(names), a, b, adapters.scale)
    return merged


def join_earlier_adapters(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of adapters by name, with those of earlier tasks in `a` and `b`: one adapter for each matrix,
    whose rank is the sum of theirs.

    Args:
      arrays: Arrays `a` and `b`, and `earlier_a` and `earlier_b` where there are some, by their names in single layers.
    """
    axes = {"a": -1, "b": 0}
    joined: dict[str, Any] = {}
    for name, array in arrays.items():
        stem, _, factor = name.rpartition("/")
        if not is_earlier_adapter(name):
            before = arrays.get(f"{stem}/{EARLIER}{factor}")
            joined[name] = array if before is None else np.concatenate([before, array], axis=axes[factor])
    return joined
