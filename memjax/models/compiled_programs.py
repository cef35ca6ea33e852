"""Frees compiled programs, which live as long as their process otherwise.

A program takes memory and a few of the memory maps that the system allows a process (65,530 on Linux), and neither is
known to the garbage collector.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax

Function = TypeVar("Function", bound=Callable[..., Any])


def free_programs(functions: Iterable[Any]) -> None:
    """Frees the compiled programs of functions made by `jax.jit`, which compile anew when they are called again.

    Args:
      functions: Results of `jax.jit`. Others are refused by an `AttributeError`.
    """
    for function in functions:
        function.clear_cache()


def jit_by_model(*, num_models: int = 8, **options: Any) -> Callable[[Function], Function]:
    """Makes a decorator like `jax.jit` for functions whose first argument is a model, which is static. Only the
    programs of the `num_models` models that were used last are kept.

    Keeps the programs of the models that were used last. `jax.jit` with a static argument keeps those of every model
    until the process ends.

    Args:
      num_models: Number of models whose programs are kept.
      **options: Arguments of `jax.jit` for the function without its first argument.
    """

    def decorate(function: Function) -> Function:
        @functools.lru_cache(maxsize=num_models)
        def compile_for(model: Any) -> Any:
            return jax.jit(functools.partial(function, model), **options)

        @functools.wraps(function)
        def call(model: Any, *arguments: Any, **named: Any) -> Any:
            return compile_for(model)(*arguments, **named)

        return call  # type: ignore[return-value]

    return decorate
