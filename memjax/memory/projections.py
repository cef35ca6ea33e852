"""Norms and initialisers that the parts of a layer share."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from memjax.axes import named


def make_norm(kind: str, dtype: Any, *, exact_variance: bool = False) -> nn.Module:
    """The norm of a part; statistics in float32.

    Args:
      kind: 'layer' (epsilon 1e-5), 'layer_exact' (epsilon 1e-12, as BERT) or 'rms' (no mean, no bias, epsilon 1e-6).
      dtype: of the result.
      exact_variance: the mean of squared distances, and not the difference of two means, which cancels where the
        mean is large against the spread; 'layer_exact' always has it, 'rms' needs none.
    """
    ones = named(nn.initializers.ones, "embed")
    if kind.startswith("layer"):
        zeros, tiny = named(nn.initializers.zeros, "embed"), kind == "layer_exact"
        epsilon = 1e-12 if tiny else 1e-5
        # So small an epsilon needs a variance that cannot come out negative.
        fast = not (tiny or exact_variance)
        return nn.LayerNorm(epsilon, dtype=dtype, scale_init=ones, bias_init=zeros, use_fast_variance=fast)
    return nn.RMSNorm(epsilon=1e-6, dtype=dtype, scale_init=ones)


def matrix_init(
    stddev: float | None, in_axis: int | tuple[int, ...] = 0, out_axis: int | tuple[int, ...] = -1
) -> Callable[..., Array]:
    """Normal with a given standard deviation, or truncated normal scaled by fan-in where None.

    Args:
      stddev: standard deviation, or None.
      in_axis: input axes of the matrix, for the fan.
      out_axis: output axes of the matrix.
    """
    if stddev is None:
        return nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", in_axis=in_axis, out_axis=out_axis)
    return nn.initializers.normal(stddev)


def xavier_init(
    gain: float | None, in_axis: int | tuple[int, ...] = 0, out_axis: int | tuple[int, ...] = -1
) -> Callable[..., Array]:
    """Xavier's uniform matrix times a gain, or `matrix_init(None)` where the gain is None.

    Args:
      gain: multiplies the values, or None.
      in_axis: input axes of the matrix, for the fan.
      out_axis: output axes of the matrix.
    """
    if gain is None:
        return matrix_init(None, in_axis, out_axis)
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform", in_axis=in_axis, out_axis=out_axis)


def project(x: Array, matrix: Array, axes: int = 1) -> Array:
    """Contracts the last `axes` axes of `x` with the first of `matrix`, in the dtype of `x`.

    As one product of two plain matrices: a CPU runs that faster, forward and backward, than a product with many axes.

    Example:
      >>> project(jnp.ones((2, 3, 4)), jnp.ones((4, 5, 6))).shape
      (2, 3, 5, 6)
    """
    if not jax.sharding.get_abstract_mesh().empty:  # one merged axis could not be split by heads
        return jnp.tensordot(x, matrix.astype(x.dtype), axes)
    inner = int(np.prod(matrix.shape[:axes]))
    flat = jnp.dot(x.reshape(-1, inner), matrix.reshape(inner, -1).astype(x.dtype))
    return flat.reshape(*x.shape[: x.ndim - axes], *matrix.shape[axes:])
