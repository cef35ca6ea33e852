"""Names of operations for compiled programs and profiles."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax

from memjax.functional.shapes import check_arguments

__all__ = ["operation"]

Function = TypeVar("Function", bound=Callable)


def operation(function: Function) -> Function:
    """Decorates a function: gives its operations in a compiled program a name, such as `fifo.ring_append`, and checks
    the shapes of its arguments by their annotations.

    The name is in the path of every operation of a compiled program, also of the gradient's, and therefore in the
    traces of `jax.profiler`. Linen modules name themselves. This decorator is for the functions that they call.
    Arguments must have the layouts of their annotations (`memjax.functional.shapes`).

    Raises:
      ValueError: By the decorated function, if an argument has another layout. It names the argument and the axis.

    Example:
      >>> import jax.numpy as jnp
      >>> @operation
      ... def double(x):
      ...     return jnp.add(x, x)
      >>> "named_operations.double/add" in jax.jit(double).lower(1.0).as_text(debug_info=True)
      True
    """
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    @functools.wraps(function)
    def call_named(*args, **kwargs):
        check_arguments(function, args, kwargs)
        with jax.named_scope(name):
            return function(*args, **kwargs)

    return call_named  # type: ignore[return-value]
