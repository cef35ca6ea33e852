"""Names of operations, as compiled programs and profiles show them."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax

from memjax.functional.shapes import check_arguments

__all__ = ["operation"]

Function = TypeVar("Function", bound=Callable)


def operation(function: Function) -> Function:
    """Names what a function computes after its file and itself, as `fifo.ring_append`, and checks shapes of arguments.

    The name stands in the path of every operation of a compiled program, those of the gradient included, and so in the
    traces of `jax.profiler`. Linen modules name themselves; this is for the functions that they call. Arguments must
    have the layouts that the annotations give them (`memjax.functional.shapes`).

    Raises:
      ValueError: By what is returned, where an argument has another layout; it names the argument and the axis.

    Example:
      >>> import jax.numpy as jnp
      >>> @operation
      ... def double(x):
      ...     return jnp.add(x, x)
      >>> "scopes.double/add" in jax.jit(double).lower(1.0).as_text(debug_info=True)
      True
    """
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    @functools.wraps(function)
    def named(*args, **kwargs):
        check_arguments(function, args, kwargs)
        with jax.named_scope(name):
            return function(*args, **kwargs)

    return named  # type: ignore[return-value]
