"""Tables that map tensors of a state dict of Hugging Face's `transformers` to parameters, for import and export."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.training.lazy_arrays import LazyArray

ACTIVATIONS = {
    **{"gelu_new": "gelu", "gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu"},
    **{"gelu_python": "gelu_exact", "gelu_python_tanh": "gelu", "gelu_accurate": "gelu", "relu": "relu"},
    **{"silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "tanh": "tanh", "relu2": "relu_squared"},
}
"""name of an activation in transformers -> name in memjax; an export writes the first of several names"""

GATED_ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu"}
"""activation of a gate -> name of feed-forward parts with such a gate"""

Shape = tuple[int, ...]
Arrays = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class WeightMapping:
    """The correspondence of one or several parameters of memjax with tensors of transformers: their names, shapes, and
    functions that convert their values both ways.

    Attributes:
      paths: Paths of the parameters, with '/' between their parts and a separate path for each layer.
      tensors: Name of a tensor of transformers -> its shape, in which -1 stands for any size.
      load: Function that converts the tensors to the parameters.
      dump: Function that converts the parameters to the tensors.
      tied: Names of tensors that repeat the first one. They may be missing.
      spare: Name of the tensor that is read where the first one is missing.
    """

    paths: tuple[str, ...]
    tensors: Mapping[str, Shape]
    load: Callable[[Arrays], Arrays] = lambda arrays: arrays
    dump: Callable[[Arrays], Arrays] = lambda arrays: arrays
    tied: tuple[str, ...] = ()
    spare: str = ""


def map_unchanged(path: str, name: str, *shape: int, tied: tuple[str, ...] = (), spare: str = "") -> WeightMapping:
    """Returns the mapping of the parameter at `path` to the tensor `name` of transformers, with equal values and this
    shape, -1 for any size. `tied` are tensors that repeat it, `spare` is read where it is missing.
    """
    return WeightMapping((path,), {name: shape}, tied=tied, spare=spare)


def matrix(
    path: str, name: str, shape: Shape, inputs: int = 1, *, transposed: bool = True, tied: tuple[str, ...] = ()
) -> WeightMapping:
    """Returns the mapping of the kernel at `path`, of any number of axes, to the matrix `name` of transformers. The
    first `inputs` axes of the kernel are its inputs. With `transposed` the matrix has the outputs first.

    Args:
      path: Path of the kernel.
      name: Name of the matrix.
      shape: Shape of the kernel.
      inputs: Number of axes of the kernel, the first ones, that are its inputs.
      transposed: Whether the outputs are the first axis of the matrix.
      tied: Names of tensors that repeat the matrix.
    """
    wide, narrow = math.prod(shape[:inputs]), math.prod(shape[inputs:])
    turn: Callable[[Any], Any] = np.transpose if transposed else np.asarray
    return WeightMapping(
        (path,),
        {name: (narrow, wide) if transposed else (wide, narrow)},
        lambda arrays: [turn(arrays[0]).reshape(shape)],
        lambda arrays: [turn(arrays[0].reshape(wide, narrow))],
        tied,
    )


def linear(path: str, name: str, wide: int, narrow: int, *, transposed: bool = True) -> Iterator[WeightMapping]:
    """Yields the mappings of a dense layer's kernel and bias. `wide` is the number of its inputs and `narrow` that of
    its outputs. With `transposed` the outputs are the first axis in transformers.
    """
    yield matrix(f"{path}/kernel", f"{name}.weight", (wide, narrow), transposed=transposed)
    yield map_unchanged(f"{path}/bias", f"{name}.bias", narrow)


def norm(path: str, name: str, dim: int) -> Iterator[WeightMapping]:
    """Yields the mappings of a layer norm's scale and bias, both of length `dim`. `path` and `name` are those of the
    norm.
    """
    yield map_unchanged(f"{path}/scale", f"{name}.weight", dim)
    yield map_unchanged(f"{path}/bias", f"{name}.bias", dim)


def embeddings(name: str, output: str, dim: int, tied: bool) -> Iterator[WeightMapping]:
    """Yields the mapping of the embedding table, which is the tensor `name`. Unless the weights are `tied`, also yields
    that of the output weights, which are the tensor `output`.

    Args:
      name: Name of the table of embeddings.
      output: Name of the output weights.
      dim: Width of an embedding.
      tied: Whether the output weights are the embeddings.
    """
    yield map_unchanged("vocabulary/embedding", name, -1, dim, tied=(output,) if tied else ())
    if not tied:
        yield map_unchanged("vocabulary/output", output, -1, dim)


def fused(
    part: str, name: str, dim: int, heads: Shape, key_heads: Shape | None = None, *, transposed: bool = True
) -> WeightMapping:
    """Returns the mapping of the kernels of queries, keys and values under the path `part` to one matrix `name` in
    transformers, whose outputs are those of the queries, the keys and the values, in this order.

    Args:
      part: Path of the kernels.
      name: Name of the matrix.
      dim: Width of the inputs.
      heads: (number of heads, width of a head) of the queries.
      key_heads: (number of heads, width of a head) of keys and values. None for those of the queries.
      transposed: Whether the outputs are the first axis of the matrix.
    """
    key_heads = key_heads or heads
    width, rest = math.prod(heads), (2, *key_heads)
    whole = matrix("", name, (dim, width + math.prod(rest)), transposed=transposed)

    def load(arrays: Arrays) -> Arrays:
        kernel = whole.load(arrays)[0]
        return kernel[:, :width].reshape(dim, *heads), kernel[:, width:].reshape(dim, *rest)

    dump = lambda arrays: whole.dump([np.concatenate([array.reshape(dim, -1) for array in arrays], axis=1)])
    return WeightMapping((f"{part}/query", f"{part}/key_value"), whole.tensors, load, dump)


def vector(path: str, name: str, *shape: int) -> WeightMapping:
    """Returns the mapping of the parameter at `path`, of this shape, to the vector `name` of transformers, which has
    the same entries on one axis.
    """
    size = math.prod(shape)
    return WeightMapping(
        (path,), {name: (size,)}, lambda arrays: [arrays[0].reshape(shape)], lambda arrays: [arrays[0].reshape(size)]
    )


def stack_tensors(path: str, parts: Sequence[WeightMapping], *, axis: int, shape: Shape) -> WeightMapping:
    """Returns the mapping of the parameter at `path` to several tensors of transformers of the same shape, each
    converted by one of `parts`, which are stacked on a new axis `axis`. `shape` is that of the parameter.

    Args:
      path: Path of the parameter.
      parts: Mappings of one tensor each, whose own paths have no effect.
      axis: New axis on which the converted tensors are stacked.
      shape: Shape of the parameter: that of the stack, or one with its axes merged.
    """

    def load(arrays: Arrays) -> Arrays:
        converted = [part.load([array])[0] for part, array in zip(parts, arrays, strict=True)]
        return [np.stack(converted, axis).reshape(shape)]

    def dump(arrays: Arrays) -> Arrays:
        inner = shape[:axis], shape[axis + 1 :]
        if shape[axis] == len(parts):
            whole = arrays[0]
        else:  # the stack was merged with the axis behind it
            whole = arrays[0].reshape(*inner[0], len(parts), shape[axis] // len(parts), *inner[1])
        return [part.dump([np.take(whole, index, axis)])[0] for index, part in enumerate(parts)]

    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    return WeightMapping((path,), tensors, load, dump)


def has_shape(weight: Any, shape: Shape) -> bool:
    """Whether an array has the given shape, in which -1 stands for any size."""
    return weight.ndim == len(shape) and all(b in (-1, a) for a, b in zip(weight.shape, shape, strict=True))


def wide_dtype(weight: Any) -> np.dtype:
    """Returns the dtype of the parameters that an array becomes: float32, or float64 for an array of float64."""
    return np.dtype(np.float64 if weight.dtype == np.float64 else np.float32)


def _load_lazily(entry: WeightMapping, weights: Arrays) -> list[LazyArray]:
    """Returns the parameters of a mapping, which are read and converted when they are used."""
    dtype = np.result_type(*map(wide_dtype, weights))
    shapes = [array.shape for array in entry.load([np.broadcast_to(np.False_, weight.shape) for weight in weights])]
    arrays = lambda: [np.asarray(weight).astype(wide_dtype(weight), copy=False) for weight in weights]
    read = lambda place: lambda: np.ascontiguousarray(entry.load(arrays())[place])
    return [LazyArray(shape, dtype, read(place)) for place, shape in enumerate(shapes)]


def load_entries(
    entries: Iterable[WeightMapping], weights: Mapping[str, Any], written: Callable[[str], str] = str
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Maps a state dict to parameters by the mappings in `entries`, each a `LazyArray`. Also returns the names that are
    left over, and a phrase for each tensor that does not fit, in which the function `written` gives its name.

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

    def take(name: str, shape: Shape) -> Any:
        weight = left.pop(name, None)
        if weight is None:
            problems.append(f"{written(name)} is missing")
        elif not has_shape(weight, shape):
            expected = tuple("any" if size == -1 else size for size in shape)
            problems.append(f"{written(name)} has shape {weight.shape} and not {expected}".replace("'", ""))
        elif not jnp.issubdtype(weight.dtype, jnp.floating) or weight.dtype.itemsize < 2:
            problems.append(f"{written(name)} has the type {weight.dtype} and not one of 16 bits or more")
        else:
            return weight
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
        for path, array in zip(entry.paths, _load_lazily(entry, arrays), strict=True):
            tree, (*folders, last) = params, path.split("/")
            for folder in folders:
                tree = tree.setdefault(folder, {})
            tree[last] = array
    return params, list(left), problems


def dump_entries(entries: Iterable[WeightMapping], params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Converts parameters to tensors by the mappings in `entries`. Returns two state dicts: these tensors, and the tied
    tensors that repeat some of them.
    """
    weights: dict[str, Any] = {}
    tied: dict[str, Any] = {}
    for entry in entries:
        arrays = []
        for path in entry.paths:
            leaf: Any = params
            for step in path.split("/"):
                leaf = leaf[step]
            arrays.append(np.asarray(leaf))
        dumped = [np.ascontiguousarray(array) for array in entry.dump(arrays)]
        weights |= zip(entry.tensors, dumped, strict=True)
        tied |= dict.fromkeys(entry.tied, dumped[0])
    return weights, tied


def check_fields(checks: Iterable[tuple[str, Any, Any]], owner: str) -> None:
    """Raises `ValueError` for the first (name, value, allowed value) in `checks` whose two values differ. The message
    names the architecture `owner`.

    Args:
      checks: Name of a field of the model, its value and its allowed value.
      owner: Name of the architecture in the message.
    """
    for field, value, allowed in checks:
        if value != allowed:
            raise ValueError(f"{field}: given {value!r}, allowed: {allowed!r} in a Hugging Face {owner}")


def feed_forward_checks(model: config.Model, *, gated: bool = False) -> list[tuple[str, Any, Any]]:
    """Returns (name, value, allowed value) for settings of the feed-forward parts and of absolute positions, as
    `check_fields` takes them. `gated` says whether the family has gated ones, with or without biases.

    Raises:
      ValueError: A memory replaces the feed-forward network or stands beside it.
    """
    part: Any = model.feed_forward
    if part.dense_scale != 1:
        what = "replaces" if part.dense_scale == 0 else "stands beside"
        raise ValueError(
            f"model.feed_forward.dense_scale: given {part.dense_scale}, allowed: 1.0; transformers needs the "
            f"feed-forward network that the memory {what}"
        )
    activation = part.activation
    names = (GATED_ACTIVATIONS if gated else ACTIVATIONS).values()
    known = activation if activation in names else "swiglu" if gated else "relu"
    return [
        ("model.positions", model.positions, "none"),
        ("model.feed_forward.bias", part.bias, part.bias or not gated),
        ("model.feed_forward.activation", activation, known),
    ]
