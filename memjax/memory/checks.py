"""Checks of the arguments of memories and models, made while a program is traced."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from memjax.memory.state_trees import leaves_and_axes
from memjax.typing import Mask

__all__ = ["ROW_ARGUMENTS", "check_call", "check_calls", "refuse_padding_in_front"]

ROW_ARGUMENTS = ("start_of_document", "mask", "active", "source", "source_mask")
"""Arguments of a memory whose first axis is the batch, by name."""
SEGMENTS = ("x", "tokens", "vectors", "inputs")
"""Names of the argument that is the segment."""
STATES = ("state", "decode_state")
"""Names of the argument that is the state."""


def check_calls(cls: type) -> None:
    """Replaces `__call__` and `decode` of the class `cls`, in place, by methods that check their arguments with
    `check_call` first.

    Arguments are recognised by their names (`SEGMENTS`, `STATES` and `ROW_ARGUMENTS`). A method without a segment of
    such a name is not checked. Shapes are compared while a program is traced, so that nothing of the check is in a
    compiled program.
    """
    for name in ("__call__", "decode"):
        if name in vars(cls):
            setattr(cls, name, _with_check(vars(cls)[name]))


def _with_check(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)
    segment = next((name for name in SEGMENTS if name in signature.parameters), "")
    state = next((name for name in STATES if name in signature.parameters), "")
    if not segment:
        return call

    @functools.wraps(call)
    def check_and_call(self: Any, *arguments: Any, **options: Any) -> Any:
        values = {**signature.bind(self, *arguments, **options).arguments, **options}
        rows = {name: values[name] for name in ROW_ARGUMENTS if values.get(name) is not None}
        check_call(values[segment], values.get(state), **rows)
        return call(self, *arguments, **options)

    return check_and_call


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
    rows, length = x.shape[:2]
    if not length:
        raise ValueError(
            f"x: given a segment of 0 tokens, shape {x.shape}, allowed: 1 or more; leave it out, or mask padding"
        )
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
