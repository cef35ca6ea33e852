"""Checks of the shapes of arguments against their annotations, in every call. An error names argument and axis.

An annotation such as `Float[Array, "batch length heads head_dim"]` is the layout of an argument. Equal names mean equal
sizes, in one argument and between the arguments of a call. Sizes are known while a function is traced, so that nothing
of the check is in a compiled program.
"""

import functools
import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer, UInt

__all__ = ["check_shapes"]


class _Size(NamedTuple):
    """Size of a named axis, or sizes of a group of axes, and the argument that it was first seen in.

    `widens` is True while a group has been seen only in arguments that broadcast against the others.
    """

    size: Any
    argument: str
    layout: str
    shape: tuple[int, ...]
    widens: bool = False


def check_shapes(**arguments: tuple[Any, str]) -> None:
    """Raises an error if arrays do not have their layouts, or if sizes of an axis differ between them. Each keyword
    argument is an array with its layout, such as `mask=(mask, 'batch length')`.

    A layout is that of a jaxtyping annotation: names of axes, `#name` for an axis that may be 1, numbers, `*name` for
    any number of axes, `*#name` for any number of axes that broadcast, and `...` for any axes.

    Args:
      **arguments: Name of each argument -> its array (or anything with a `shape`) and its layout. None is left out.

    Raises:
      ValueError: A shape does not fit. The error names the argument, the axis and both layouts, and two axes to swap if
        that would help.

    Example:
      >>> queries, keys = np.zeros((2, 3, 4, 8)), np.zeros((2, 4, 5, 8))
      >>> layouts = "batch length heads head_dim", "batch memory heads head_dim"
      >>> check_shapes(queries=(queries, layouts[0]), keys=(keys, layouts[1]))  # doctest: +NORMALIZE_WHITESPACE
      Traceback (most recent call last):
      ValueError: keys: given (2, 4, 5, 8), allowed: [batch, memory, heads, head_dim] with 4 at axis 2 (heads) as in
      queries, (2, 3, 4, 8) for [batch, length, heads, head_dim]; axes 1 and 2 look swapped
    """
    _check((name, np.shape(array), layout) for name, (array, layout) in arguments.items() if array is not None)


def check_arguments(
    function: Callable,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Raises an error if arguments of a call do not have the shapes and dtypes in the annotations of its function, if
    an array is None, or if a word is none of its `Literal`. `sizes` are known sizes of axes by name.

    A mask of 0 and -infinity, which other code adds to scores, would have the opposite meaning.

    Args:
      function: Function with annotations.
      args: Positional arguments of the call.
      kwargs: Keyword arguments of the call.
      sizes: Known sizes of axes, such as the width `dim` of the module whose method the function is.

    Raises:
      ValueError: An argument does not fit its annotation. The error names the argument.
    """
    names, layouts, words = _annotations(function)
    if not layouts and not words:
        return
    # Where an argument is missing or too many, the call itself raises the error.
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    for name, allowed in words.items():
        if name in arguments and arguments[name] not in allowed:
            raise ValueError(f"{name}: given {arguments[name]!r}, allowed: one of {_join_words(allowed)}")
    for name, hint in layouts.items():
        if name in arguments and not isinstance(arguments[name], tuple):
            _check_array(name, arguments[name], hint)
    known = {name: _Size(size, f"{name} = {size}", "", ()) for name, size in sizes.items()}
    _check(_iterate_arrays(layouts, arguments), known)


def array_arguments(function: Callable) -> frozenset[str]:
    """Returns the names of the arguments of a function that have the layout of an array in their annotations."""
    return frozenset(_annotations(function)[1])


class _ArrayHint(NamedTuple):
    """Allowed layouts of an argument that is an array, its allowed kinds of dtypes (empty for all), and whether it may
    be no array, such as None or a number.
    """

    layouts: tuple[str, ...]
    kinds: tuple[Any, ...]
    allows_others: bool


def _check_array(name: str, value: Any, hint: _ArrayHint) -> None:
    """Raises an error for an argument that is no array, or of another kind of dtype than its annotation says."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    is_number = isinstance(value, int | float) and any(_fits_rank(layout, 0) for layout in hint.layouts)
    is_other = value is None or isinstance(value, list | str | dict | int | float)
    if shape is None and is_other and not is_number and not hint.allows_others:
        kind = "None" if value is None else type(value).__name__
        raise ValueError(f"{name}: given {kind}, allowed: an array {_format_layout(' | '.join(hint.layouts))}")
    if dtype is None or not hint.kinds or any(jnp.issubdtype(dtype, kind) for kind in hint.kinds):
        return
    if hint.kinds == (jnp.bool_,):
        meaning = _TRUE_MEANS.get(name, "it takes part; a mask is not added")
        raise ValueError(f"{name}: given {dtype}, allowed: bool, True = {meaning}")
    raise ValueError(f"{name}: given {dtype}, allowed: {' or '.join(_KIND_NAMES[kind] for kind in hint.kinds)}")


_TRUE_MEANS = {"start_of_document": "a document begins here, and the memory of the row is reset"}
"""Argument of bool -> what True means, where the argument is no mask"""
_KIND_NAMES = {jnp.floating: "a float dtype", jnp.integer: "an integer dtype", jnp.bool_: "bool"}
"""Kind of dtypes -> its name in messages"""
_ANNOTATIONS: dict[Any, Any] = {
    Float: jnp.floating,
    Bool: jnp.bool_,
    Int: jnp.integer,
    UInt: jnp.integer,
    Integer: jnp.integer,
}
"""Kind of annotations -> its kind of dtypes"""
_KINDS = {str(annotation.dtypes): kind for annotation, kind in _ANNOTATIONS.items()}
"""Dtypes of an annotation -> their kind, which has dtypes of other widths, too"""


def _join_words(words: Iterable[Any]) -> str:
    return ", ".join(map(repr, words))


def _iterate_arrays(
    hints: Mapping[str, _ArrayHint], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yields name, shape and layout of every array among the arguments, also of arrays in tuples."""
    for name, hint in hints.items():
        value = arguments.get(name)
        arrays = {f"{name}[{i}]": array for i, array in enumerate(value)} if isinstance(value, tuple) else {name: value}
        for label, array in arrays.items():
            shape = getattr(array, "shape", None)
            if isinstance(shape, tuple):
                fitting = [layout for layout in hint.layouts if _fits_rank(layout, len(shape))]
                yield label, shape, fitting[0] if fitting else " | ".join(hint.layouts)


@functools.cache
def _annotations(function: Callable) -> tuple[tuple[str, ...], dict[str, _ArrayHint], dict[str, tuple[Any, ...]]]:
    """Returns the names of the arguments of a function, what its annotations say of every argument that is an array,
    and the allowed words of every argument with a `Literal`.
    """
    try:
        hints = {name: hint for name, hint in typing.get_type_hints(function).items() if name != "return"}
    except (NameError, AttributeError, TypeError):  # names that only a type checker sees
        hints = {}
    arrays = {name: [*_arrays_of(hint)] for name, hint in hints.items()}
    layouts = {
        name: _ArrayHint(tuple(" ".join(array.dim_str.split()) for array in options), *_kinds_of(hints[name], options))
        for name, options in arrays.items()
        if options
    }
    return (
        tuple(inspect.signature(function).parameters),
        layouts,
        {name: words for name, hint in hints.items() if (words := _words(hint))},
    )


def _kinds_of(hint: Any, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], bool]:
    """Returns the kinds of dtypes that annotations of an array allow, empty for all, and whether its annotation allows
    something else than arrays.
    """
    kinds = [_KINDS.get(str(array.dtypes)) for array in arrays]
    return () if None in kinds else tuple(dict.fromkeys(kinds)), _allows_others(hint, arrays)


def _allows_others(hint: Any, arrays: Sequence[Any]) -> bool:
    return any(part not in arrays for part in (typing.get_args(hint) or (hint,)))


def _words(hint: Any) -> tuple[Any, ...]:
    """Returns the allowed words of an argument, with None if it may be None. Empty without a `Literal`."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else ()
    words = tuple(word for part in parts for word in _words(part))
    others = [part for part in parts if typing.get_origin(part) is not typing.Literal]
    return () if not words or others not in ([], [NoneType]) else (*words, *(None for _ in others))


def _arrays_of(hint: Any) -> Iterator[Any]:
    """Yields the annotations of arrays inside the annotation of an argument."""
    if isinstance(hint, type) and hasattr(hint, "dim_str"):
        yield hint
    elif typing.get_origin(hint) is not Callable:
        for part in typing.get_args(hint):
            yield from _arrays_of(part)


def _fits_rank(layout: str, rank: int) -> bool:
    axes = layout.split()
    return rank == len(axes) or (rank >= len(axes) - 1 and any(_is_open(axis) for axis in axes))


def _is_open(axis: str) -> bool:
    """Whether an axis of a layout stands for any number of axes."""
    return axis.startswith("*") or axis == "..."


def _check(
    arguments: Iterable[tuple[str, tuple[int, ...], str]], sizes: Mapping[str, _Size] = MappingProxyType({})
) -> None:
    sizes = dict(sizes)
    for name, shape, layout in arguments:
        problem = _record_sizes(sizes, name, shape, layout)
        if problem:
            raise ValueError(
                f"{name}: given {shape}, allowed: {_format_layout(layout)}{problem}{_hint(sizes, shape, layout)}"
            )


def _record_sizes(sizes: dict[str, _Size], name: str, shape: tuple[int, ...], layout: str) -> str:
    """Records the sizes of an argument. Returns a description of what is wrong with it, or an empty text."""
    if "|" in layout or not _fits_rank(layout, len(shape)):
        return f", not {len(shape)} axes"
    new_sizes = dict(sizes)
    for place, axis, size in _axes(layout, shape):
        label = axis.lstrip("#*")
        if axis == "..." or (axis.startswith("#") and size == 1):
            continue
        if label.isdigit():
            known = _Size(int(label), "", "", ())
        else:
            known = new_sizes.setdefault(label, _Size(size, name, layout, shape, axis.startswith("*#")))
        if axis.startswith("*") and (wider := _broadcast_sizes(known, size, axis)):
            new_sizes[label] = wider
        elif size != known.size:
            source = f" as in {known.argument}, {known.shape} for {_format_layout(known.layout)}"
            if known.argument and not known.layout:
                source = f", the module's {known.argument}"
            where = f" with {known.size} at {place} ({label})"
            return where + (source if known.argument not in ("", name) else "")
    sizes.update(new_sizes)
    return ""


def _axes(layout: str, shape: tuple[int, ...]) -> Iterator[tuple[str, str, Any]]:
    """Yields for every axis of a layout its place in a shape, its name, and its size (a tuple for an open axis)."""
    axes = layout.split()
    spare, place = len(shape) - len(axes) + 1, 0
    for axis in axes:
        if _is_open(axis):
            yield f"axes {place} to {place + spare - 1}", axis, shape[place : place + spare]
            place += spare
        else:
            yield f"axis {place}", axis, shape[place]
            place += 1


def _broadcast_sizes(known: _Size, size: tuple[int, ...], axis: str) -> _Size | None:
    """Returns the sizes of a group of axes after a further argument. None where they do not fit."""
    try:
        broadcast = np.broadcast_shapes(known.size, size)
    except ValueError:
        return None
    if axis.startswith("*#"):
        return known._replace(size=broadcast) if known.widens or broadcast == known.size else None
    return known._replace(size=broadcast, widens=False) if known.widens and broadcast == size else None


def _hint(sizes: dict[str, _Size], shape: tuple[int, ...], layout: str) -> str:
    """Suggests two axes to swap, if exactly one swap makes the shape fit."""
    swaps = []
    for i, j in itertools.combinations(range(len(shape)), 2):
        order = list(range(len(shape)))
        order[i], order[j] = j, i
        if shape[i] != shape[j] and not _record_sizes(dict(sizes), "", tuple(shape[k] for k in order), layout):
            swaps.append(f"; axes {i} and {j} look swapped")
    return swaps[0] if len(swaps) == 1 else ""


def _format_layout(layout: str) -> str:
    """Formats a layout for an error message."""
    readable = lambda axis: (
        f"{axis[1:]} or 1" if axis[0] == "#" else f"{axis.lstrip('*#')}..." if axis[0] == "*" else axis
    )
    return " or ".join(f"[{', '.join(map(readable, option.split()))}]" for option in layout.split("|"))
