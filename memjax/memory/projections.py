"""Norms, residual connections, projections and initialisers that the parts of a layer share."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from memjax.axes import named
from memjax.typing import Activations


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


class Residual(nn.Module):
    """What a part of a layer with one norm and a residual connection does.

    A subclass has the fields `norm` ('post', or in front of the part), `norm_kind`, `dropout` and `dtype`.
    """

    def setup(self) -> None:
        self.layer_norm = make_norm(self.norm_kind, self.dtype)
        self.drop = nn.Dropout(self.dropout)

    def normed(self, x: Activations) -> Activations:
        """What the part's first matrix sees of the residual stream `x`."""
        return x if self.norm == "post" else self.layer_norm(x)

    def added(self, x: Activations, y: Activations, deterministic: bool) -> Activations:
        """The residual stream after the part has given `y`."""
        y = x + self.drop(y, deterministic=deterministic).astype(x.dtype)
        return self.layer_norm(y) if self.norm == "post" else y


def weight_dropout(part: nn.Module, deterministic: bool) -> dict[str, Any]:
    """The arguments of `memjax.functional.attention` that drop attention weights, where a part does."""
    if deterministic or not part.attention_dropout:
        return {}
    return {"dropout_rate": part.attention_dropout, "dropout_key": part.make_rng("dropout")}


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


def project_biased(x: Array, matrix: Array, bias: Array | None) -> Array:
    """`project`, and a bias where there is one."""
    y = project(x, matrix)
    return y if bias is None else y + bias.astype(y.dtype)[None, None]
