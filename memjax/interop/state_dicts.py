"""State dicts of Hugging Face `transformers` as tables, which import and export read in opposite directions."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from memjax import config

ACTIVATIONS = {"gelu_new": "gelu", "gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu", "relu": "relu"}
"""theirs -> ours; of several names the first is written"""

Shape = tuple[int, ...]
Arrays = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Some of our parameters and the tensors they are made of.

    Attributes:
      paths: of ours, by `/`, layers apart.
      tensors: name of theirs -> its shape; -1 may be anything.
      load: theirs to ours.
      dump: ours to theirs.
      tied: names that repeat the first of theirs; they may be missing.
    """

    paths: tuple[str, ...]
    tensors: Mapping[str, Shape]
    load: Callable[[Arrays], Arrays] = lambda arrays: arrays
    dump: Callable[[Arrays], Arrays] = lambda arrays: arrays
    tied: tuple[str, ...] = ()


def same(path: str, name: str, *shape: int, tied: tuple[str, ...] = ()) -> Entry:
    """A parameter that is there as it is here."""
    return Entry((path,), {name: shape}, tied=tied)


def matrix(
    path: str, name: str, shape: Shape, inputs: int = 1, *, transposed: bool = True, tied: tuple[str, ...] = ()
) -> Entry:
    """A kernel whose first `inputs` axes are those of its inputs: a matrix there, by default with outputs first."""
    wide, narrow = math.prod(shape[:inputs]), math.prod(shape[inputs:])
    turn: Callable[[np.ndarray], np.ndarray] = np.transpose if transposed else np.asarray
    return Entry(
        (path,),
        {name: (narrow, wide) if transposed else (wide, narrow)},
        lambda arrays: [turn(arrays[0]).reshape(shape)],
        lambda arrays: [turn(arrays[0].reshape(wide, narrow))],
        tied,
    )


def linear(path: str, name: str, wide: int, narrow: int, *, transposed: bool = True) -> Iterator[Entry]:
    """A kernel with its bias."""
    yield matrix(f"{path}/kernel", f"{name}.weight", (wide, narrow), transposed=transposed)
    yield same(f"{path}/bias", f"{name}.bias", narrow)


def norm(path: str, name: str, dim: int) -> Iterator[Entry]:
    """A layer norm."""
    yield same(f"{path}/scale", f"{name}.weight", dim)
    yield same(f"{path}/bias", f"{name}.bias", dim)


def fused(part: str, name: str, dim: int, heads: Shape, *, transposed: bool = True) -> Entry:
    """Kernels of queries, and of keys and values, which are one matrix there."""
    whole = matrix("", name, (dim, 3, *heads), transposed=transposed)

    def load(arrays: Arrays) -> Arrays:
        kernel = whole.load(arrays)[0]
        return kernel[:, 0], kernel[:, 1:]

    dump = lambda arrays: whole.dump([np.concatenate([arrays[0][:, None], arrays[1]], axis=1)])
    return Entry((f"{part}/query", f"{part}/key_value"), whole.tensors, load, dump)


class Imported(NamedTuple):
    """What a folder of transformers holds.

    Attributes:
      model: its architecture.
      params: of the model, in its own grouping of layers.
      data: what a run of it reads, unless it is told something else.
      task: whose head the weights have; None = none.
      left: tensors that have no place here, such as the heads of other tasks.
    """

    model: config.Model
    params: dict[str, Any]
    data: config.Data
    task: config.TaskKind | None = None
    left: Mapping[str, np.ndarray] = MappingProxyType({})


class StateDict:
    """The state dict while it is read: every tensor is taken once, and none may be left."""

    def __init__(self, weights: Mapping[str, np.ndarray], owner: str) -> None:
        self.weights, self.owner = dict(weights), owner

    def take(self, name: str, shape: Shape) -> np.ndarray | None:
        """The tensor `name`; a size of -1 may be anything."""
        if name not in self.weights:
            raise ValueError(f"weights: {name!r} is missing, allowed: the state dict of a {self.owner}")
        weight = np.asarray(self.weights.pop(name))
        if not fits(weight, shape):
            raise ValueError(f"weights[{name!r}]: given shape {weight.shape}, allowed: {shape}")
        return in_full(weight)

    def check_tied(self, name: str, weight: np.ndarray) -> None:
        """Takes `name`, which is tied to `weight`, if it is there."""
        if name in self.weights and not np.array_equal(self.weights.pop(name), weight):
            raise ValueError(f"weights[{name!r}]: given other values than those it is tied to, allowed: equal ones")

    def finish(self) -> None:
        """Raises `ValueError` where something is left."""
        if self.weights:
            raise ValueError(f"weights: given {sorted(self.weights)} too, allowed: names that the configuration has")


def fits(weight: np.ndarray, shape: Shape) -> bool:
    """Whether a tensor has a shape, of which sizes of -1 may be anything."""
    return weight.ndim == len(shape) and all(b in (-1, a) for a, b in zip(weight.shape, shape, strict=True))


def in_full(weight: np.ndarray) -> np.ndarray:
    """A tensor in float32, or in the float64 that it has."""
    return weight if weight.dtype == np.float64 else weight.astype(np.float32)


def load_entries(entries: Iterable[Entry], source: StateDict) -> dict[str, Any]:
    """Our parameters from theirs, without those of which a tensor could not be taken."""
    params: dict[str, Any] = {}
    for entry in entries:
        taken = [source.take(name, shape) for name, shape in entry.tensors.items()]
        arrays = [array for array in taken if array is not None]
        if len(arrays) < len(taken):
            continue
        for name in entry.tied:
            source.check_tied(name, arrays[0])
        for path, array in zip(entry.paths, entry.load(arrays), strict=True):
            tree, (*folders, last) = params, path.split("/")
            for folder in folders:
                tree = tree.setdefault(folder, {})
            tree[last] = array
    return params


def dump_entries(entries: Iterable[Entry], params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Theirs from ours, tied tensors repeated."""
    weights: dict[str, np.ndarray] = {}
    for entry in entries:
        arrays = []
        for path in entry.paths:
            found: Any = params
            for step in path.split("/"):
                found = found[step]
            arrays.append(np.asarray(found))
        dumped = [np.ascontiguousarray(array) for array in entry.dump(arrays)]
        weights |= dict(zip(entry.tensors, dumped, strict=True)) | dict.fromkeys(entry.tied, dumped[0])
    return weights


def check_fixed(given: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises `ValueError` for an option of a configuration that has no counterpart here."""
    for key, allowed in fixed.items():
        if given[key] != allowed:
            raise ValueError(f"hf_config[{key!r}]: given {given[key]!r}, allowed: {allowed!r}")


def take_activation(given: Mapping[str, Any], key: str) -> Any:
    """Our name of the activation in a configuration; a `ValueError` where it has none."""
    if given[key] not in ACTIVATIONS:
        raise ValueError(f"hf_config[{key!r}]: given {given[key]!r}, allowed: {', '.join(map(repr, ACTIVATIONS))}")
    return ACTIVATIONS[given[key]]


def name_activation(model: config.Model) -> str:
    """Their name of the activation of a model that `feed_forward_checks` lets pass."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.feed_forward.activation)


def take_settings(hf_config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the defaults of what it lacks; a `ValueError` where a value has another type than those."""
    given = {**defaults, **hf_config}
    for key, default in defaults.items():
        types = (int, float) if isinstance(default, float) else type(default)
        if default is not None and not isinstance(given[key], types):
            raise ValueError(f"hf_config[{key!r}]: given {given[key]!r}, allowed: a value such as {default!r}")
    return given


def check_heads(given: Mapping[str, Any], heads: str, dim: str) -> None:
    """Raises `ValueError` unless the width can be split between the heads."""
    if given[heads] < 1 or given[dim] % given[heads]:
        raise ValueError(f"hf_config[{heads!r}]: given {given[heads]}, allowed: a divisor of {dim} = {given[dim]}")


def check_fields(checks: Iterable[tuple[str, Any, Any]], owner: str) -> None:
    """Raises `ValueError` for a field of a model (its name, what is given, what is allowed) that `owner` lacks."""
    for field, given, allowed in checks:
        if given != allowed:
            raise ValueError(f"{field}: given {given!r}, allowed: {allowed!r} in a Hugging Face {owner}")


def feed_forward_checks(model: config.Model) -> list[tuple[str, Any, Any]]:
    """What `check_fields` asks of the feed-forward part, and of positions that would be added to the embeddings."""
    part: Any = model.feed_forward
    if part.dense_scale != 1:
        what = "replaces" if part.dense_scale == 0 else "stands beside"
        raise ValueError(
            f"model.feed_forward.dense_scale: given {part.dense_scale}, allowed: 1.0; transformers needs the "
            f"feed-forward network that the memory {what}"
        )
    activation = part.activation
    known = activation if activation in ACTIVATIONS.values() else "relu"
    return [
        ("model.positions", model.positions, "none"),
        ("model.feed_forward.bias", part.bias, True),
        ("model.feed_forward.activation", activation, known),
    ]
