"""State dicts of Hugging Face `transformers` as tables, which import and export read in opposite directions."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax import config

ACTIVATIONS = {
    **{"gelu_new": "gelu", "gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu"},
    **{"gelu_python": "gelu_exact", "gelu_python_tanh": "gelu", "gelu_accurate": "gelu", "relu": "relu"},
    **{"silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "tanh": "tanh", "relu2": "relu_squared"},
}
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
      spare: name that is read where the first of theirs is missing.
    """

    paths: tuple[str, ...]
    tensors: Mapping[str, Shape]
    load: Callable[[Arrays], Arrays] = lambda arrays: arrays
    dump: Callable[[Arrays], Arrays] = lambda arrays: arrays
    tied: tuple[str, ...] = ()
    spare: str = ""


def same(path: str, name: str, *shape: int, tied: tuple[str, ...] = (), spare: str = "") -> Entry:
    """A parameter that is there as it is here."""
    return Entry((path,), {name: shape}, tied=tied, spare=spare)


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


def embeddings(name: str, output: str, dim: int, tied: bool) -> Iterator[Entry]:
    """The table of a vocabulary, and that of its scores: another one, or the same under a second name."""
    yield same("vocabulary/embedding", name, -1, dim, tied=(output,) if tied else ())
    if not tied:
        yield same("vocabulary/output", output, -1, dim)


def fused(part: str, name: str, dim: int, heads: Shape, *, transposed: bool = True) -> Entry:
    """Kernels of queries, and of keys and values, which are one matrix there."""
    whole = matrix("", name, (dim, 3, *heads), transposed=transposed)

    def load(arrays: Arrays) -> Arrays:
        kernel = whole.load(arrays)[0]
        return kernel[:, 0], kernel[:, 1:]

    dump = lambda arrays: whole.dump([np.concatenate([arrays[0][:, None], arrays[1]], axis=1)])
    return Entry((f"{part}/query", f"{part}/key_value"), whole.tensors, load, dump)


def fits(weight: np.ndarray, shape: Shape) -> bool:
    """Whether a tensor has a shape, of which sizes of -1 may be anything."""
    return weight.ndim == len(shape) and all(b in (-1, a) for a, b in zip(weight.shape, shape, strict=True))


def in_full(weight: np.ndarray) -> np.ndarray:
    """A tensor in float32, or in the float64 that it has."""
    return weight if weight.dtype == np.float64 else weight.astype(np.float32)


def load_entries(
    entries: Iterable[Entry], weights: Mapping[str, np.ndarray], written: Callable[[str], str] = str
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Converts a state dict to parameters.

    Args:
      entries: The table.
      weights: Name in the table -> array.
      written: Gives the name of a tensor as its file has it, for messages.

    Returns:
      The parameters, without those whose tensors do not fit; the names that are left over; and a phrase for each
      mismatch.
    """
    params: dict[str, Any] = {}
    left, problems = dict(weights), list[str]()

    def take(name: str, shape: Shape) -> np.ndarray | None:
        weight = left.pop(name, None)
        if weight is None:
            problems.append(f"{written(name)} is missing")
        elif not fits(weight, shape):
            expected = tuple("any" if size == -1 else size for size in shape)
            problems.append(f"{written(name)} has shape {weight.shape} and not {expected}".replace("'", ""))
        elif not jnp.issubdtype(weight.dtype, jnp.floating) or weight.dtype.itemsize < 2:
            problems.append(f"{written(name)} has the type {weight.dtype} and not one of 16 bits or more")
        else:
            return in_full(weight)
        return None

    for entry in entries:
        first = next(iter(entry.tensors))
        for name in entry.tied:
            twin = left.pop(name, None)
            if twin is not None and not np.array_equal(twin, left.setdefault(first, twin)):
                problems.append(f"{written(name)} differs from {written(first)}, to which it is tied")
        if entry.spare in left and first not in left:
            left[first] = left.pop(entry.spare)
        taken = [take(name, shape) for name, shape in entry.tensors.items()]
        arrays = [array for array in taken if array is not None]
        if len(arrays) < len(taken):
            continue
        for path, array in zip(entry.paths, entry.load(arrays), strict=True):
            tree, (*folders, last) = params, path.split("/")
            for folder in folders:
                tree = tree.setdefault(folder, {})
            tree[last] = array
    return params, list(left), problems


def dump_entries(
    entries: Iterable[Entry], params: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Converts parameters to the tensors of a table, and to those that repeat one of them."""
    weights: dict[str, np.ndarray] = {}
    tied: dict[str, np.ndarray] = {}
    for entry in entries:
        arrays = []
        for path in entry.paths:
            found: Any = params
            for step in path.split("/"):
                found = found[step]
            arrays.append(np.asarray(found))
        dumped = [np.ascontiguousarray(array) for array in entry.dump(arrays)]
        weights |= zip(entry.tensors, dumped, strict=True)
        tied |= dict.fromkeys(entry.tied, dumped[0])
    return weights, tied


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
