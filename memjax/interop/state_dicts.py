"""State dicts of Hugging Face `transformers` as tables, which import and export read in opposite directions."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"

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


def read_weights(weights: Mapping[str, np.ndarray] | str | Path) -> Mapping[str, np.ndarray]:
    """A state dict, or that of a safetensors file."""
    return safetensors.numpy.load_file(weights) if isinstance(weights, str | Path) else weights


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


def check_fields(checks: Iterable[tuple[str, Any, Any]], owner: str) -> None:
    """Raises `ValueError` for a field of a model (its name, what is given, what is allowed) that `owner` lacks."""
    for field, given, allowed in checks:
        if given != allowed:
            raise ValueError(f"{field}: given {given!r}, allowed: {allowed!r} in a Hugging Face {owner}")


def read_folder(folder: str | Path) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
    """The configuration and the state dict of a folder.

    Raises:
      ValueError: a file that is missing.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (Path(folder) / name).is_file():
            raise ValueError(f"folder: {folder} has no {name}, allowed: a folder as save_pretrained writes it")
    described = json.loads((Path(folder) / CONFIG_FILE).read_text("utf-8"))
    return described, read_weights(Path(folder) / WEIGHTS_FILE)


def write_folder(folder: str | Path, described: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
    """Writes a folder that transformers and `read_folder` read."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n")
    safetensors.numpy.save_file(dict(weights), Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})
