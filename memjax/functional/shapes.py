"""Checks of the shapes of arguments against their annotations, in every call. An error names argument and axis.

An annotation such as `Float[Array, "batch length heads head_dim"]` is the layout of an argument. Equal names mean equal
sizes, in one argument and between the arguments of a call. Sizes are known while a function is traced, so that nothing
of the check is in a compiled program.
"""

import functools
import inspect
import itertools
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

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


def check_arguments(function: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises an error if arguments of a call do not have the shapes in the annotations of its function, or if a mask is
    not boolean.

    A mask of 0 and -infinity, which other code adds to scores, would have the opposite meaning.
    """
    signature, layouts = _layouts(function)
    if layouts:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return  # the call itself raises the error
        _check(_iterate_arrays(layouts, arguments))
        for name in _boolean_arguments(function):
            dtype = getattr(arguments.get(name), "dtype", None)
            if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
                raise ValueError(f"{name}: given {dtype}, allowed: bool, True = it takes part; a mask is not added")


def _iterate_arrays(
    layouts: dict[str, tuple[str, ...]], arguments: dict[str, Any]
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yields name, shape and layout of every array among the arguments, also of arrays in tuples."""
    for name, allowed in layouts.items():
        value = arguments.get(name)
        arrays = {f"{name}[{i}]": array for i, array in enumerate(value)} if isinstance(value, tuple) else {name: value}
        for label, array in arrays.items():
            shape = getattr(array, "shape", None)
            if isinstance(shape, tuple):
                fitting = [layout for layout in allowed if _fits_rank(layout, len(shape))]
                yield label, shape, fitting[0] if fitting else " | ".join(allowed)


@functools.cache
def _layouts(function: Callable) -> tuple[inspect.Signature, dict[str, tuple[str, ...]]]:
    """Returns the signature of a function, and the allowed layouts of every argument that is an array."""
    hints = typing.get_type_hints(function)
    by_argument = {name: tuple(_layouts_of(hint)) for name, hint in hints.items() if name != "return"}
    return inspect.signature(function), {name: layouts for name, layouts in by_argument.items() if layouts}


@functools.cache
def _boolean_arguments(function: Callable) -> tuple[str, ...]:
    """Returns the names of arguments whose annotations allow only boolean arrays (or what is no array)."""
    hints = typing.get_type_hints(function)
    arrays = {name: [*_arrays_of(hint)] for name, hint in hints.items() if name != "return"}
    mask: Any = Bool
    return tuple(
        name for name, options in arrays.items() if options and all(array.dtypes == mask.dtypes for array in options)
    )


def _layouts_of(hint: Any) -> Iterator[str]:
    for array in _arrays_of(hint):
        yield " ".join(array.dim_str.split())


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


def _check(arguments: Iterator[tuple[str, tuple[int, ...], str]] | Any) -> None:
    sizes: dict[str, _Size] = {}
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
