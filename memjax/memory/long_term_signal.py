"""The long-term memory of infinity-former as pure functions: a continuous signal that is updated and read.

Martins, Marinho, Martins 2022, "infinity-former: Infinite Memory Transformer", https://arxiv.org/abs/2109.00301. The
modules with the parameters are in `memjax.memory.infinity_former`.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from memjax.functional.fifo import reset_rows
from memjax.functional.gaussian_basis import (
    GaussianBasis,
    evaluate_basis,
    expected_basis,
    fit_matrix,
    update_matrices,
)
from memjax.functional.named_operations import operation
from memjax.memory.interface import where_rows
from memjax.typing import Activations, Leaf, Rows, tree_dataclass

__all__ = ["LongTermState"]


@tree_dataclass
class LongTermState:
    """Long-term memory of one layer: coefficients of a signal over [0, 1], and the segment that will enter it next.

    Attributes:
      coefficients: `[batch, basis, dim]`, coefficients of the signal, at least float32.
      valid: bool `[batch]`, rows whose signal holds something of the running document.
      tokens: int32 `[batch]`, number of tokens written since the signal was empty.
      histogram: `[batch, bins]`, attention mass of the last segment's queries in equal parts of [0, 1]. `EmptyState`
        unless updates are sticky.
      previous: `[batch, segment_length, dim]`, hidden states that enter the signal before the next segment reads it, so
        that the gate learns from that segment.
      previous_valid: bool `[batch, segment_length]`, real tokens of `previous`.
    """

    coefficients: Leaf
    valid: Leaf
    tokens: Leaf
    histogram: Leaf
    previous: Leaf
    previous_valid: Leaf


class Densities(NamedTuple):
    """Means and variances of the Gaussians with which queries attend to the signal, each `[batch, heads, length]`."""

    mean: Array
    variance: Array


class DensityInit(NamedTuple):
    """Numbers added to the scores of mean and variance before sigmoid and softplus: one of each head for the mean,
    `[heads]`, and one of all heads for the variance.
    """

    mean: Float[np.ndarray, " heads"]
    variance: float


@operation
def initial_densities(num_heads: int, stddev: float) -> DensityInit:
    """Computes the `DensityInit` that gives scores of 0 densities of standard deviation `stddev`, with head h at `(h -
    1/2) / num_heads` of the signal.

    Example:
      >>> offsets = initial_densities(2, 0.05)
      >>> print(np.asarray(jax.nn.sigmoid(offsets.mean)).round(3), round(float(jax.nn.softplus(offsets.variance)), 6))
      [0.25 0.75] 0.0025
    """
    places, variance = (np.arange(num_heads) + 0.5) / num_heads, stddev**2
    return DensityInit(np.log(places / (1 - places)), variance + float(np.log(-np.expm1(-variance))))


@operation
def reset(state: LongTermState, start_of_document: Rows) -> LongTermState:
    """Empties the signal of rows that start a document, and drops the segment that would enter it next."""
    return jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)


@operation
def gate(x: Activations, kernel: Float[Array, "3 dim dim"], bias: Float[Array, " dim"]) -> Activations:
    """Gates every position of `x` by a convolution over it and the positions beside it, `x * sigmoid(convolution(x))`.
    `kernel` and `bias` are those of the convolution.
    """
    length = x.shape[1]
    padded = jnp.pad(x, [(0, 0), (1, 1), (0, 0)])
    mixed = sum(padded[:, offset : offset + length] @ kernel[offset] for offset in range(3))
    return x * jax.nn.sigmoid(mixed + bias[None, None])


@operation
def update(
    state: LongTermState,
    tokens: Activations,
    positions: Float[Array, "batch samples"] | None,
    *,
    basis: GaussianBasis,
    num_samples: int,
    contraction: float,
    ridge: float,
    reset_after: int | None,
) -> LongTermState:
    """Returns the state whose signal holds `tokens`, the waiting segment after the gate. The past, read at `positions`,
    is contracted. A new signal begins where there is none or it has `reset_after` tokens.

    Rows where no token waits keep their signal. A gradient reaches the new tokens only.

    Args:
      state: State before the update.
      tokens: `[batch, length, dim]`, waiting tokens after the gate, 0 where there is no token.
      positions: `[batch, samples]`, positions at which the old signal is read, ascending. None for evenly spaced ones.
      basis: Basis functions of the signal.
      num_samples: Number of positions at which the old signal is read.
      contraction: Share of [0, 1] that the past keeps.
      ridge: Penalty of the regression.
      reset_after: Number of tokens after which the signal begins anew. None for never.
    """
    length, dtype = tokens.shape[1], state.coefficients.dtype
    matrices = signal_matrices(basis, length, num_samples, contraction, ridge)
    constant = lambda array: jnp.asarray(array, dtype)
    tokens, old = tokens.astype(dtype), jax.lax.stop_gradient(state.coefficients)
    times = functools.partial(jnp.einsum, precision="highest")
    if positions is None:
        past = times("mn,bnd->bmd", constant(matrices.contract), old)
    else:
        functions = evaluate_basis(basis, positions.astype(dtype))  # [b, m, n]
        past = times("mn,bmd->bnd", constant(matrices.past), times("bmn,bnd->bmd", functions, old))
    longer = past + times("ln,bld->bnd", constant(matrices.new), tokens)
    fresh = times("ln,bld->bnd", constant(matrices.first), tokens)
    valid, count = state.valid, state.tokens
    if reset_after is not None:
        expired = count >= reset_after
        valid, count = valid & ~expired, jnp.where(expired, 0, count)
    entering = state.previous_valid.any(axis=1)
    coefficients = jnp.where(valid[:, None, None], longer, fresh)
    new = dataclasses.replace(
        state,
        coefficients=coefficients,
        valid=jnp.ones_like(valid),
        tokens=count + state.previous_valid.sum(axis=1, dtype=count.dtype),
    )
    return where_rows(entering, new, dataclasses.replace(state, coefficients=old))


@operation
def attention_densities(
    queries: Float[Array, "batch length heads head_dim"],
    pooled: Float[Array, "batch 2 heads head_dim"],
    min_variance: float,
    offsets: DensityInit | None = None,
) -> Densities:
    """Computes the density of every query from its scores with the two pooled keys, `mu = sigmoid(w_mu . scores)` and
    `sigma^2 = softplus(w_sigma . scores)`, each `[batch, heads, length]`. `offsets` are added to the scores.

    The scores `q . k_j / sqrt(head_dim)` of all basis functions enter through a linear map only, so the keys are
    pooled by it first: one product with two keys instead of one for each function. Before training the scores are near
    0, and `offsets` move them. None leaves all densities at 0.5 with a standard deviation of 0.83.
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scaled = (queries.astype(wide) * queries.shape[-1] ** -0.5).astype(queries.dtype)
    scores = jnp.einsum("blhd,bchd->bchl", scaled, pooled, preferred_element_type=wide)
    mean_scores, variance_scores = scores[:, 0], scores[:, 1]
    if offsets is not None:
        mean_scores = mean_scores + jnp.asarray(offsets.mean, wide)[None, :, None]
        variance_scores = variance_scores + offsets.variance
    return Densities(jax.nn.sigmoid(mean_scores), jnp.maximum(jax.nn.softplus(variance_scores), min_variance))


@operation
def read(
    query_densities: Densities, values: Float[Array, "batch basis heads head_dim"], basis: GaussianBasis
) -> Float[Array, "batch length heads head_dim"]:
    """Returns what every query reads, the expectation under its density, `[batch, length, heads, head_dim]`.
    `query_densities` are means and variances `[batch, heads, length]`, `values` the signal's
    `[batch, basis, heads, head_dim]`.
    """
    weights = expected_basis(basis, *query_densities)  # [b, h, l, n]
    y = jnp.einsum("bhln,bnhd->blhd", weights.astype(values.dtype), values, preferred_element_type=weights.dtype)
    return y.astype(values.dtype)


class SignalMatrices(NamedTuple):
    """Matrices of the regression: of a first segment (`first`), of an update, and both steps of an even update."""

    first: np.ndarray
    past: np.ndarray
    new: np.ndarray
    contract: np.ndarray


@functools.lru_cache(maxsize=32)
def signal_matrices(
    basis: GaussianBasis, length: int, num_samples: int, contraction: float, ridge: float
) -> SignalMatrices:
    """Computes the matrices of the regression for segments of `length` tokens. Equal arguments share one result."""
    matrices = update_matrices(basis, length, num_samples, contraction, ridge)
    first, contract = fit_matrix(basis, length, ridge), matrices.past.T @ matrices.samples
    return SignalMatrices(first, matrices.past, matrices.new, contract)
