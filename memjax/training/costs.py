"""Counts the floating-point operations of a traced program, with loops multiplied by their length.

The analysis of the compiler (`compiled.cost_analysis()`) counts the body of a loop once, although a training step is a
loop over segments around a loop over layers. This module counts in the jaxpr, which knows the length of a loop.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["count_flops", "jaxpr_flops"]

ARITHMETIC = frozenset(
    "add add_any sub mul div rem neg abs sign max min pow integer_pow sqrt rsqrt cbrt square exp exp2 log expm1 log1p "
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh logistic erf erfc erf_inv lgamma digamma "
    "cumsum cumprod cummax cummin cumlogsumexp clamp floor ceil round nextafter".split()
)
"""Primitives with one operation per element of the result. They are counted with `elementwise=True`."""

REDUCTIONS = frozenset(
    "reduce reduce_sum reduce_prod reduce_max reduce_min argmax argmin reduce_window reduce_window_sum".split()
)
"""Primitives with one operation per element of the operand. They are counted with `elementwise=True`."""


def count_flops(function: Callable[..., Any], *args: Any, elementwise: bool = False, **kwargs: Any) -> int:
    """Counts the floating-point operations of `function(*args, **kwargs)` without running it: those of matrix products
    and convolutions, with `elementwise` also elementwise operations and reductions.

    Args:
      function: Function of arrays. It may be jitted, differentiated or batched.
      *args: Trees of arrays or shapes (`jax.ShapeDtypeStruct`), the positional arguments of `function`.
      elementwise: Whether to count elementwise operations and reductions too. See `jaxpr_flops`.
      **kwargs: Trees of arrays or shapes, the keyword arguments of `function`.

    Returns:
      Number of operations that `jaxpr_flops` counts in the traced program.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
      >>> count_flops(lambda x: x @ x.T, x)
      256
      >>> count_flops(jax.vmap(lambda row: row @ row), x)
      64
    """
    return jaxpr_flops(jax.make_jaxpr(function)(*args, **kwargs), elementwise=elementwise)


def jaxpr_flops(jaxpr: Any, *, elementwise: bool = False) -> int:
    """Counts the floating-point operations of a traced program: 2 per multiply-add in matrix products and convolutions.
    With `elementwise` also 1 per element of elementwise operations and reductions.

    It counts `dot_general` and `conv_general_dilated`, including positions on padding. The body of a scan counts once
    per iteration, a conditional as its costliest branch, a Pallas kernel once per point of its grid, and a `shard_map`
    once per shard, so that the result is the work of all devices together. Calls (jit, checkpoint, custom derivatives)
    count as the program that they call. All other operations count 0.

    The number of iterations of a `while_loop` is not known: **its body counts once**. A `fori_loop` between Python
    integers is a scan.

    Args:
      jaxpr: Traced program, from `jax.make_jaxpr(function)(...)`.
      elementwise: Whether to count also 1 for each element that a floating-point operation makes (`ARITHMETIC`) or a
        reduction reads (`REDUCTIONS`). Comparisons, selections, conversions and copies count 0 in any case.

    Example:
      >>> def run(x):
      ...     return jax.lax.scan(lambda x, _: (jnp.tanh(x @ x), None), x, length=10)[0]
      >>> jaxpr = jax.make_jaxpr(run)(jnp.zeros((4, 4)))
      >>> jaxpr_flops(jaxpr), jaxpr_flops(jaxpr, elementwise=True)
      (1280, 1440)
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_equation_flops(equation, elementwise) for equation in jaxpr.eqns)


def _equation_flops(equation: Any, elementwise: bool) -> int:
    """Counts the operations of one equation of a jaxpr."""
    params, name = equation.params, equation.primitive.name
    inside = lambda jaxpr: jaxpr_flops(jaxpr, elementwise=elementwise)
    match name:
        case "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            return 2 * _size(equation.outvars[0]) * math.prod(shape[axis] for axis in contracted)
        case "conv_general_dilated":
            # Axes of the kernel: output features, input features (of one group), then spatial axes.
            axes = params["dimension_numbers"].rhs_spec
            shape = equation.invars[1].aval.shape
            return 2 * _size(equation.outvars[0]) * math.prod(shape[axis] for axis in axes[1:])
        case "scan":
            return params["length"] * inside(params["jaxpr"])
        case "while":
            return inside(params["cond_jaxpr"]) + inside(params["body_jaxpr"])
        case "cond":
            return max(inside(branch) for branch in params["branches"])
        case "shard_map":
            sizes = params["mesh"].shape
            axes = params.get("newly_manual_axes", params.get("manual_axes"))  # jax renamed it
            return math.prod(sizes[axis] for axis in axes) * inside(params["jaxpr"])
        case "pallas_call":
            return math.prod(params["grid_mapping"].grid) * inside(params["jaxpr"])
    if name in ARITHMETIC or name in REDUCTIONS:
        counted = elementwise and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.inexact)
        return _size(equation.outvars[0] if name in ARITHMETIC else equation.invars[0]) if counted else 0
    # Calls have had many names, but their program only two. The program of a scatter only combines two numbers.
    called = None if name.startswith("scatter") else params.get("jaxpr", params.get("call_jaxpr"))
    return 0 if called is None else inside(called)


def _size(variable: Any) -> int:
    """Returns the number of elements of a variable of a jaxpr."""
    return math.prod(variable.aval.shape)
