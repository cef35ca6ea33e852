"""Low-rank adapters beside the matrices of a layer, LoRA.

Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685. An adapter of
the matrix W adds `scale * (x A) B` to `x W`. A and B have the rank of the adapter as their inner size, so that no
matrix of the size of W is made. B is zero at first, and the layer computes what it computed before.

A part of a layer names its matrices (`Residual.adaptable_matrices`). The adapters of a whole model are added by
`memjax.models.adapters.add_adapters`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from memjax.axes import named
from memjax.typing import Leaf, tree_dataclass

ADAPTER = "adapter"
"""Beginning of the name of an adapter's parameters in those of its part, such as `adapter_query`."""
EARLIER = "earlier_"
"""Beginning of the names of the arrays that hold the adapters of earlier tasks, `earlier_a` and `earlier_b`."""


@dataclasses.dataclass(frozen=True)
class Adapters:
    """The adapters of one part of a layer: the names of the matrices that have one, and their rank, scale and dropout.

    Attributes:
      names: Names of the matrices, from `AdaptableMatrix.names`.
      rank: Inner size of A and B.
      scale: Factor of their product.
      dropout: Dropout rate of the input of A.
      earlier: Number of further adapters of each matrix, those of earlier tasks, whose products are added, too.
    """

    names: tuple[str, ...]
    rank: int
    scale: float
    dropout: float = 0.0
    earlier: int = 0


class AdaptableMatrix(NamedTuple):
    """One parameter of a part of a layer that holds one matrix or several matrices of equal shape, each of which can
    have an adapter.

    Attributes:
      path: Path of the parameter in those of its part, such as `key_value` or `wide/kernel`.
      names: Names of the matrices in it, in the order of its axis behind the inputs, such as `key` and `value`.
      inputs: Sizes of the input axes of a matrix, with the logical name of each.
      outputs: Sizes of the output axes of one matrix, with the logical name of each.
    """

    path: str
    names: tuple[str, ...]
    inputs: tuple[tuple[int, str | None], ...]
    outputs: tuple[tuple[int, str | None], ...]


class Adapter(nn.Module):
    """The parameters of one adapter: `a`, `[*inputs, rank]`, and `b`, `[rank, *outputs]`, which is zero at first.

    With adapters of earlier tasks there are also `earlier_a`, `[*inputs, earlier * rank]`, and `earlier_b`,
    `[earlier * rank, *outputs]`, which are zero at first.

    Attributes:
      inputs: Sizes and logical names of the input axes.
      outputs: Sizes and logical names of the output axes.
      rank: Inner size.
      earlier: Number of adapters of earlier tasks.
    """

    inputs: tuple[tuple[int, str | None], ...]
    outputs: tuple[tuple[int, str | None], ...]
    rank: int
    earlier: int = 0

    @nn.compact
    def __call__(self) -> tuple[Array, Array]:
        """Returns the arrays `a` and `b`, those of earlier tasks in front."""
        (inputs, names), (outputs, others) = (tuple(zip(*axes, strict=True)) for axes in (self.inputs, self.outputs))
        zeros = nn.initializers.zeros
        a = self.param("a", named(initialize_a, *names, None), (*inputs, self.rank))
        b = self.param("b", named(zeros, None, *others), (self.rank, *outputs))
        if not self.earlier:
            return a, b
        size = self.earlier * self.rank
        earlier_a = self.param(f"{EARLIER}a", named(zeros, *names, None), (*inputs, size))
        earlier_b = self.param(f"{EARLIER}b", named(zeros, None, *others), (size, *outputs))
        return jnp.concatenate([earlier_a, a], axis=-1), jnp.concatenate([earlier_b, b], axis=0)


def initialize_a(key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draws the array A of an adapter, `[*inputs, rank]`, as PEFT does: uniform between -1 and 1 over the root of the
    number of inputs.
    """
    in_axis = tuple(range(len(shape) - 1))
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=in_axis)(key, shape, dtype)


@tree_dataclass
class LowRank:
    """The arrays of one adapter for one call of its part.

    Attributes:
      a: `[*inputs, rank]`.
      b: `[rank, *outputs]`.
      key: Random key of the dropout of the input. None for no dropout.
      scale: Factor of the product.
      dropout: Dropout rate of the input.
    """

    a: Leaf
    b: Leaf
    key: Leaf
    scale: float = dataclasses.field(metadata={"static": True})
    dropout: float = dataclasses.field(metadata={"static": True})

    def multiply(self, x: Array, axes: int) -> Array:
        """Multiplies the last `axes` axes of `x`, after dropout, with A, then with B, and with the scale."""
        if self.key is not None:
            mask = jax.random.bernoulli(self.key, 1 - self.dropout, x.shape)
            x = jnp.where(mask, x / (1 - self.dropout), 0).astype(x.dtype)
        return multiply(multiply(x, self.a, axes), self.b, 1) * self.scale


LowRanks = tuple[LowRank | None, ...]
"""The adapter of every matrix in a parameter, None for a matrix without one. () for a parameter without adapters."""


@tree_dataclass
class AdaptedMatrix:
    """A matrix with adapters, which `memjax.memory.layer_parts.project` takes in place of an array.

    Attributes:
      matrix: The array, `[*inputs, ...]`.
      low_ranks: Adapters of the matrices in it.
    """

    matrix: Leaf
    low_ranks: Any

    def multiply(self, x: Array, axes: int) -> Array:
        """Multiplies the last `axes` axes of `x` with the matrix, and adds the products of its adapters."""
        return add_low_ranks(multiply(x, self.matrix, axes), x, self.low_ranks, axes)


def add_low_ranks(y: Array, x: Array, low_ranks: LowRanks, axes: int = 1) -> Array:
    """Adds the products of `x` with adapters to `y`, the product of `x` with the matrices that they belong to.

    Args:
      y: Product of `x` with all matrices of a parameter, which lie one after the other behind the axes of `x`.
      x: Input, whose last `axes` axes are those of the matrices.
      low_ranks: Adapter of every matrix, or none.
      axes: Number of input axes.
    """
    products = [low_rank and low_rank.multiply(x, axes) for low_rank in low_ranks]
    zeros = next((jnp.zeros_like(product) for product in products if product is not None), None)
    if zeros is None:
        return y
    stacked = jnp.stack([zeros if product is None else product for product in products], axis=x.ndim - axes)
    return y + stacked.reshape(y.shape)


def multiply(x: Array, matrix: Array, axes: int) -> Array:
    """Multiplies the last `axes` axes of `x` with the first `axes` axes of `matrix`, in the dtype of `x`."""
    # One product of two plain matrices: faster on a CPU, forward and backward, than a product with many axes.
    if not jax.sharding.get_abstract_mesh().empty:  # a merged axis could not be split by heads
        return jnp.tensordot(x, matrix.astype(x.dtype), axes)
    inner = int(np.prod(matrix.shape[:axes]))
    flat = jnp.dot(x.reshape(-1, inner), matrix.reshape(inner, -1).astype(x.dtype))
    return flat.reshape(*x.shape[: x.ndim - axes], *matrix.shape[axes:])


def merge_low_rank(matrix: np.ndarray, place: int, number: int, a: np.ndarray, b: np.ndarray, scale: float) -> Any:
    """Adds the product of an adapter to its matrix, in float32 or wider, and returns the new parameter.

    Args:
      matrix: Parameter that holds `number` matrices behind its input axes.
      place: Index of the adapter's matrix among them.
      number: Number of matrices in the parameter.
      a: `[*inputs, rank]`.
      b: `[rank, *outputs]`.
      scale: Factor of the product.
    """
    wide = np.promote_types(np.asarray(matrix).dtype, np.float32)
    inner = int(np.prod(a.shape[:-1]))
    merged = np.array(matrix, wide).reshape(inner, number, -1)
    merged[:, place] += a.reshape(inner, -1).astype(wide) @ b.reshape(len(b), -1).astype(wide) * np.asarray(scale, wide)
    return merged.reshape(matrix.shape).astype(matrix.dtype)
