"""Checks of the fields and the arguments of memories and models, made when a module is made or a program is traced."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import typing
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from memjax.functional.shapes import array_arguments, check_arguments
from memjax.memory.state_trees import describe_kind, is_array_like, kind_of, leaves_and_axes
from memjax.settings.ranges import describe_invalid
from memjax.typing import Mask

__all__ = ["MUST_BE_GIVEN", "ROW_ARGUMENTS", "CheckedModule", "check_call", "check_calls", "refuse_padding_in_front"]

MUST_BE_GIVEN: Any = None
"""Default of a field of a `CheckedModule` that must be given and follows fields with defaults. A module without it is
refused in one line."""
ROW_ARGUMENTS = ("start_of_document", "mask", "active", "source", "source_mask")
"""Arguments of a memory whose first axis is the batch, by name."""
SEGMENTS = ("x", "tokens", "vectors", "inputs")
"""Names of the argument that is the segment."""
STATES = ("state", "decode_state")
"""Names of the argument that is the state."""


class CheckedModule(nn.Module):
    """Base class of Linen modules that check their fields when they are made, and the arguments of `__call__` and
    `decode` when a program is traced.

    A field must have the type, the range or one of the words of its annotation, such as `memory_length: Slots` or
    `Literal["exact", "approximate"]`. A field `head_dim` of 0 becomes `dim / num_heads`.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        check_calls(cls)

    def __post_init__(self) -> None:
        _check_fields(self)
        super().__post_init__()


def _check_fields(module: nn.Module) -> None:
    """Raises an error for a field of a module whose value its annotation does not allow, and sets a `head_dim` of 0.

    Raises:
      ValueError: A value of another type, out of its range, or none of its words.
    """
    hints = _field_hints(type(module))
    defaults = {field.name: field.default for field in dataclasses.fields(module)}
    for name, hint in hints.items():
        value = getattr(module, name)
        if value is not None and value is defaults[name]:
            continue
        if isinstance(value, np.generic):
            value = value.item()
        if hint is float and isinstance(value, float):  # infinite where a module takes it
            continue
        allowed = "" if isinstance(value, jax.Array | np.ndarray) else describe_invalid(value, hint)
        if allowed:
            value_text = type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)
            raise ValueError(f"{name}: {'not given' if value is None else f'given {value_text}'}, allowed: {allowed}")
    if {"dim", "num_heads", "head_dim"} <= hints.keys() and module.head_dim == 0:
        if module.dim % module.num_heads:
            allowed = f"a divisor of dim = {module.dim}; or give head_dim"
            raise ValueError(f"num_heads: given {module.num_heads}, allowed: {allowed}")
        module.head_dim = module.dim // module.num_heads


@functools.cache
def _field_hints(cls: type) -> dict[str, Any]:
    """Returns the annotations of the fields of a module's class, with their ranges. Empty where a name in them cannot
    be found, as in a class that was defined inside of a function.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, AttributeError, TypeError):
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name not in ("parent", "name")}


def check_calls(cls: type) -> None:
    """Replaces `__call__` and `decode` of the class `cls`, in place, by methods that check their arguments with
    `check_call` first. `init_state` checks its `batch_size`.

    Arguments with annotations such as `Float[Array, "batch length dim"]` must have that layout, in which `dim` is the
    field of the module. Others are recognised by their names (`SEGMENTS`, `STATES` and `ROW_ARGUMENTS`). A method
    without a segment of such a name is not checked. Shapes are compared while a program is traced, so that nothing of
    the check is in a compiled program.
    """
    for name in ("__call__", "decode"):
        if name in vars(cls):
            setattr(cls, name, _with_check(vars(cls)[name]))
    if "init_state" in vars(cls):
        cls.init_state = _with_size_check(vars(cls)["init_state"])


def _with_check(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)
    segment = next((name for name in SEGMENTS if name in signature.parameters), "")
    state = next((name for name in STATES if name in signature.parameters), "")
    if not segment:
        return call
    needed = [name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty]
    names = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    allowed = str(inspect.Signature(names[1:]))  # without `self`

    @functools.wraps(call)
    def check_and_call(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            values = {**signature.bind(self, *arguments, **options).arguments, **options}
        except TypeError as error:  # an argument too few, too many or of another name
            raise TypeError(f"{type(self).__name__}: {error}, allowed: {allowed}") from None
        _require_tokens(values[segment])
        sizes = {"dim": self.dim} if "dim" in _field_hints(type(self)) else {}
        check_arguments(call, (self, *arguments), options, sizes)
        for name in (segment, state, *ROW_ARGUMENTS):
            if name in needed and values.get(name) is None:
                raise ValueError(f"{name}: given None, allowed: {_DESCRIPTIONS.get(name, 'an array')}")
        checked = array_arguments(call)
        rows = {name: values[name] for name in ROW_ARGUMENTS if name not in checked and values.get(name) is not None}
        check_call(values[segment], values.get(state), **rows)
        is_outermost = not isinstance(self.parent, CheckedModule)  # else a module of ours has checked the whole
        if state in needed and is_outermost and call.__name__ == "__call__":
            check_state(self, values[state], len(values[segment]))
        return call(self, *arguments, **options)

    return check_and_call


_DESCRIPTIONS = {
    "state": "the state that init_state or the last call has returned",
    "decode_state": "the state that init_decode_state or the last call has returned",
}
"""Argument -> its description, for a message about None"""


def _with_size_check(init_state: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init_state)
    def check_and_init(self: Any, *arguments: Any, **options: Any) -> Any:
        batch_size = arguments[0] if arguments else options.get("batch_size", 1)
        try:
            fits = operator.index(batch_size) >= 1
        except TypeError:
            fits = False
        if not fits:
            size_text = f"shape {batch_size.shape}" if is_array_like(batch_size) else repr(batch_size)
            raise ValueError(f"batch_size: given {size_text}, allowed: an integer of at least 1")
        dtype = arguments[1] if len(arguments) > 1 else options.get("dtype")
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"dtype: given {jnp.dtype(dtype).name}, allowed: a float dtype")
        return init_state(self, *arguments, **options)

    return check_and_init


def check_state(module: Any, state: Any, rows: int) -> None:
    """Raises an error if a state is not one of `module` for `rows` rows: that of another memory, or of another size.

    Args:
      module: Memory or model with `init_state`.
      state: State that was given to a call of the module.
      rows: Number of batch rows.

    Raises:
      ValueError: A state of another class, or with leaves of another shape.
    """
    if difference := _compare_trees(state, jax.eval_shape(lambda: module.init_state(rows))):
        path, state_text, allowed = difference
        raise ValueError(f"state{path}: given {state_text}, allowed: {allowed}, as init_state({rows}) makes it")


def _compare_trees(tree: Any, expected: Any, path: str = "") -> tuple[str, str, str] | None:
    """Returns where a tree first differs from an expected one, what is given there, and what is allowed. None if they
    have the same classes and shapes.
    """
    if kind_of(tree) is not kind_of(expected):
        return path, describe_kind(tree), describe_kind(expected)
    if is_array_like(expected):
        return None if tree.shape == expected.shape else (path, f"shape {tree.shape}", str(expected.shape))
    parts, others = (
        jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda part, root=node: part is not root)[0]
        for node in (tree, expected)
    )
    if len(parts) != len(others):
        return path, f"{type(tree).__name__} of {len(parts)} parts", f"{len(others)} parts"
    differences = (
        _compare_trees(part, other, path + jax.tree_util.keystr(place))
        for (place, part), (_, other) in zip(parts, others, strict=True)
        if part is not tree  # a number is a leaf of itself
    )
    return next(filter(None, differences), None)


def check_call(x: Any, state: Any, **arguments: Any) -> None:
    """Raises an error for a segment `x` without tokens, or if the state or another argument of a memory's call does not
    have the batch rows of `x`, or a mask not its length.

    Args:
      x: Segment, `[batch, length, ...]`.
      state: State of the rows of `x`. None for no state.
      **arguments: Arguments of `ROW_ARGUMENTS` that are not None.

    Raises:
      ValueError: Rows of the state or of an argument that are not those of `x`, a mask of another length, or no token.
    """
    if not is_array_like(x) or len(x.shape) < 2:
        segment_text = f"shape {x.shape}" if is_array_like(x) else type(x).__name__
        raise ValueError(f"x: given {segment_text}, allowed: an array [batch, length, ...]")
    _require_tokens(x)
    rows, length = x.shape[:2]
    state_rows = {leaf.shape[axis] for leaf, axis in leaves_and_axes(state)}
    if state_rows - {rows}:
        numbers = " and ".join(map(str, sorted(state_rows)))
        raise ValueError(
            f"state: given one of {numbers} rows, allowed: {rows}, the rows of x; begin with init_state({rows}), "
            "or choose rows with take_rows"
        )
    for name, array in arguments.items():
        expected = {"mask": (rows, length), "start_of_document": (rows,), "active": (rows,)}.get(name, (rows,))
        if array.shape[: len(expected)] != expected:
            raise ValueError(f"{name}: given shape {array.shape}, allowed: {expected}, as x of shape {x.shape}")


def _require_tokens(x: Any) -> None:
    """Raises `ValueError` for a segment `[batch, length, ...]` without tokens. Other checks have the rest."""
    shape = getattr(x, "shape", ())
    if len(shape) > 1 and not shape[1]:
        raise ValueError(
            f"x: given a segment of 0 tokens, shape {shape}, allowed: 1 or more; leave it out, or mask padding"
        )


def refuse_padding_in_front(output: Array, mask: Mask | None) -> Array:
    """Returns `output` if no row of `mask` has padding before a real token, and else raises an error, or sets such rows
    to NaN if the mask is traced. For memories in which a token's index is its position.

    A known mask is refused by an error. A traced mask makes the output of the row NaN, so that the loss is NaN too. All
    other rows stay bit for bit.

    Args:
      output: Output of the memory, `[batch, ...]`.
      mask: Real tokens, `[batch, length]`. None for all.

    Raises:
      ValueError: A known mask has padding before a real token.
    """
    if mask is None:
        return output
    if not isinstance(mask, Tracer):
        late = np.flatnonzero((np.asarray(mask)[:, 1:] & ~np.asarray(mask)[:, :-1]).any(axis=1))
        if len(late):
            raise ValueError(
                f"mask: given padding before a real token in row {late[0]}, allowed: padding at the end of a row; move "
                "its tokens to the front"
            )
        return output
    late = (mask[:, 1:] & ~mask[:, :-1]).any(axis=1).reshape(-1, *(1,) * (output.ndim - 1))
    return output + jnp.where(late, jnp.nan, 0).astype(output.dtype)
