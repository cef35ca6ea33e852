"""Continuous signals over [0, 1] as combinations of Gaussian basis functions, and attention to them.

Martins, Marinho, Martins 2022, "infinity-former: Infinite Memory Transformer", https://arxiv.org/abs/2109.00301. A
sequence becomes coefficients by ridge regression, is contracted to make room for more, and is read by Gaussian
densities whose expectations have a closed form. Everything that depends on sizes only is computed once in float64:
the matrix of the regression has a condition number near 1e6, which float32 cannot solve.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from memjax.functional.named_operations import operation

__all__ = [
    "GaussianBasis",
    "UpdateMatrices",
    "bin_masses",
    "evaluate_basis",
    "expected_basis",
    "fit_matrix",
    "gaussian_basis",
    "kl_to_prior",
    "quantile_positions",
    "sample_positions",
    "token_positions",
    "update_matrices",
]


class GaussianBasis(NamedTuple):
    """Centres and widths of Gaussian basis functions over [0, 1], each a density with an area of 1.

    Attributes:
      centers: `[basis]`, centres in [0, 1].
      widths: `[basis]`, standard deviations.

    Example:
      >>> GaussianBasis((0.0, 1.0), (0.1, 0.1)).widths
      (0.1, 0.1)
    """

    centers: tuple[float, ...]
    widths: tuple[float, ...]


class UpdateMatrices(NamedTuple):
    """Matrices that compute the coefficients of a signal from its old coefficients and new tokens.

    Attributes:
      samples: `[samples, basis]`, basis functions at the positions where the old signal is read: `x_past = samples @
        coefficients`.
      past: `[samples, basis]`, part of the regression for the values that were read.
      new: `[length, basis]`, part of the regression for the tokens: `coefficients = past.T @ x_past + new.T @ tokens`.

    Example:
      >>> matrices = update_matrices(gaussian_basis(4, (0.1, 0.2)), length=6, num_samples=3)
      >>> matrices.samples.shape, matrices.past.shape, matrices.new.shape
      ((3, 4), (3, 4), (6, 4))
    """

    samples: Float[np.ndarray, "samples basis"]
    past: Float[np.ndarray, "samples basis"]
    new: Float[np.ndarray, "length basis"]


def gaussian_basis(num_basis: int, widths: tuple[float, ...] = (0.01, 0.05)) -> GaussianBasis:
    """Makes `num_basis` Gaussian basis functions: evenly spaced centres from 0 to 1, each with every width.

    Args:
      num_basis: Number of functions, a multiple of the number of widths.
      widths: Standard deviations. The published ones are (0.01, 0.05) and (0.005, 0.01).

    Raises:
      ValueError: No widths, a width of 0, or a number of functions that the number of widths does not divide.

    Example:
      >>> gaussian_basis(4, (0.1, 0.2))
      GaussianBasis(centers=(0.0, 0.0, 1.0, 1.0), widths=(0.1, 0.2, 0.1, 0.2))
    """
    if not widths or min(widths) <= 0:
        raise ValueError(f"widths: given {widths}, allowed: one or more standard deviations above 0")
    if num_basis < 1 or num_basis % len(widths):
        raise ValueError(f"num_basis: given {num_basis}, allowed: a multiple of the {len(widths)} widths")
    centers = np.linspace(0.0, 1.0, num_basis // len(widths)).repeat(len(widths))
    return GaussianBasis(tuple(centers.tolist()), tuple(float(width) for width in widths) * (num_basis // len(widths)))


@operation
def evaluate_basis(basis: GaussianBasis, positions: Array | np.ndarray) -> Array | np.ndarray:
    """Evaluates every basis function at every position, `N(t; mu_j, s_j^2)`. The functions are the last axis of the
    result.

    Args:
      basis: Basis functions.
      positions: Positions in an array of any shape. A NumPy array gives a NumPy array in float64.

    Returns:
      `[*positions.shape, basis]`.

    Example:
      >>> print(evaluate_basis(gaussian_basis(2, (0.4,)), np.array([0.0, 0.5])).round(3))
      [[0.997 0.044]
       [0.457 0.457]]
    """
    if isinstance(positions, np.ndarray):
        centers, widths = np.asarray(basis.centers), np.asarray(basis.widths)
        scaled = (positions[..., None].astype(np.float64) - centers) / widths
        return np.exp(-0.5 * scaled**2) / (np.sqrt(2 * np.pi) * widths)
    return expected_basis(basis, positions, jnp.zeros_like(positions))


@operation
def expected_basis(
    basis: GaussianBasis, mean: Float[Array, "*queries"], variance: Float[Array, "*queries"]
) -> Float[Array, "*queries basis"]:
    """Computes the expectation of every basis function under the Gaussian of each query, `N(mean; mu_j, variance +
    s_j^2)`. The functions are the last axis of the result.

    The integral runs over the whole line, as in the paper, not over [0, 1]. Its gradient is the covariance formula of
    continuous attention, `E[phi psi] - E[phi] E[psi]`.

    Args:
      basis: Basis functions.
      mean: `[...]`, mean of each query's density.
      variance: `[...]`, variance of each query's density, at least 0.

    Example:
      >>> print(np.asarray(expected_basis(gaussian_basis(2, (0.1,)), jnp.array([0.0]), jnp.array([0.15]))).round(3))
      [[0.997 0.044]]
    """
    dtype = jnp.promote_types(mean.dtype, jnp.float32)
    shape = (1,) * mean.ndim + (-1,)
    centers = jnp.asarray(np.asarray(basis.centers), dtype).reshape(shape)
    squares = jnp.asarray(np.asarray(basis.widths) ** 2, dtype).reshape(shape)
    total = variance[..., None].astype(dtype) + squares
    return jnp.exp(-0.5 * (mean[..., None].astype(dtype) - centers) ** 2 / total) * jax.lax.rsqrt(2 * np.pi * total)


def fit_matrix(basis: GaussianBasis, length: int, ridge: float = 1.0) -> Float[np.ndarray, "length basis"]:
    """Computes the matrix G, `[length, basis]`, of the ridge regression of a sequence of `length` tokens, `coefficients
    = G.T @ tokens`. `ridge` is its penalty.

    Token i is at `(i - 1/2) / length`, and `G = F.T (F F.T + ridge I)^-1`. As in the published code the sequence goes
    on as zeros over [-1/2, 0) and (1, 3/2], at its own spacing. That part of G is cut off again.

    Args:
      basis: Basis functions.
      length: Number of tokens.
      ridge: Penalty on the coefficients. 1.0 and 0.5 in the published code, not given in the paper.

    Returns:
      `[length, basis]` in float64.

    Raises:
      ValueError: No tokens, or a penalty of 0 or less.

    Example:
      >>> matrix = fit_matrix(gaussian_basis(8, (0.1, 0.2)), 6, ridge=0.5)
      >>> matrix.shape, float(matrix.sum().round(6))
      ((6, 8), 1.024942)
    """
    _check(length, ridge)
    # The middle `length` of twice as many points (one less for an odd number) are at (i - 1/2) / length.
    points, shift = (2 * length - 1, 1 / length) if length % 2 else (2 * length, 1 / (2 * length))
    positions = np.linspace(-0.5 + shift, 1.5 - shift, points)
    first = (points - length) // 2
    return _regression(basis, positions, ridge)[first : first + length]


def update_matrices(
    basis: GaussianBasis, length: int, num_samples: int, contraction: float = 0.5, ridge: float = 1.0
) -> UpdateMatrices:
    """Computes the `UpdateMatrices` of the regression of an old signal, read at `num_samples` positions and contracted
    to [0, tau], followed by `length` new tokens on (tau, 1]. `contraction` is tau.

    The old signal is read at `m / num_samples` and moved to `tau m / num_samples`. Token i is at
    `tau + (1 - tau) i / length` (unlike in `fit_matrix`, as in the published code). Zeros follow on both sides.

    Args:
      basis: Basis functions.
      length: Number of new tokens.
      num_samples: Number of positions at which the old signal is read.
      contraction: Share of [0, 1] that the past keeps (tau).
      ridge: Penalty on the coefficients. See `fit_matrix`.

    Raises:
      ValueError: No tokens or samples, a penalty of 0 or less, or a contraction not between 0 and 1.

    Example:
      >>> matrices = update_matrices(gaussian_basis(8, (0.1, 0.2)), 6, 4, contraction=0.5, ridge=0.5)
      >>> float((matrices.past.sum() + matrices.new.sum()).round(6))
      0.996182
    """
    _check(length, ridge)
    if num_samples < 1:
        raise ValueError(f"num_samples: given {num_samples}, allowed: at least 1")
    if not 0 < contraction < 1:
        raise ValueError(f"contraction: given {contraction}, allowed: between 0 and 1, both excluded")
    read = np.arange(1, num_samples + 1) / num_samples
    inside = [contraction * read, contraction + (1 - contraction) * np.arange(1, length + 1) / length]
    total = length + num_samples
    points, shift = (2 * total - 1, 1 / total) if length % 2 else (2 * total, 1 / (length + total))
    around = np.linspace(-0.5 + shift, 1.5 - shift, points)
    before, after = around[around < 0], around[around > 1]
    matrix = _regression(basis, np.concatenate([before, *inside, after]), ridge)[len(before) : len(before) + total]
    samples = evaluate_basis(basis, read)
    return UpdateMatrices(np.asarray(samples), matrix[:num_samples], matrix[num_samples:])


@operation
def bin_masses(
    mean: Float[Array, "*queries"], variance: Float[Array, "*queries"], num_bins: int
) -> Float[Array, "*queries bins"]:
    """Computes the probability of each query's Gaussian in each of `num_bins` equal bins of [0, 1], the last axis of
    the result. Mass outside is left out.

    Args:
      mean: `[...]`, mean of each query's density.
      variance: `[...]`, variance of each query's density, above 0.
      num_bins: Number of bins.

    Example:
      >>> print(np.asarray(bin_masses(jnp.array(0.5), jnp.array(0.04), 4)).round(3))
      [0.099 0.394 0.394 0.099]
    """
    dtype = jnp.promote_types(mean.dtype, jnp.float32)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    edges[[0, -1]] += np.array([-1e-6, 1e-6])
    shape = (1,) * mean.ndim + (-1,)
    scale = jax.lax.rsqrt(2 * variance.astype(dtype))[..., None]
    below = jax.lax.erf((jnp.asarray(edges, dtype).reshape(shape) - mean[..., None].astype(dtype)) * scale)
    return 0.5 * (below[..., 1:] - below[..., :-1])


@operation
def quantile_positions(masses: Float[Array, "batch bins"], num_samples: int) -> Float[Array, "batch samples"]:
    """Computes `num_samples` positions in [0, 1] that divide each row's histogram `masses` into equal masses: its
    quantiles at `(m - 1/2) / num_samples`.

    Mass is spread evenly inside a bin. Without any mass the positions are even. Positions ascend and have no gradient.

    Args:
      masses: `[batch, bins]`, masses of equal bins of [0, 1], each at least 0. They need not sum to 1.
      num_samples: Number of positions of each row.

    Example:
      >>> print(np.asarray(quantile_positions(jnp.array([[0.0, 3.0, 1.0, 0.0]]), 4)).round(3))
      [[0.292 0.375 0.458 0.625]]
    """
    shares = _shares(masses)
    num_bins, dtype = shares.shape[1], shares.dtype
    # A product: XLA on CPU repeats a cumulative sum in every loop that reads it, and compiles for minutes.
    summing = jnp.asarray(np.triu(np.ones((num_bins, num_bins))), dtype)
    until = jnp.matmul(shares, summing, precision=jax.lax.Precision.HIGHEST)
    levels = jnp.asarray((np.arange(num_samples) + 0.5) / num_samples, dtype) * (1 - jnp.finfo(dtype).eps)

    def quantiles_of_row(share: Array, until: Array) -> Array:
        bins = jnp.minimum(jnp.searchsorted(until, levels, side="right"), num_bins - 1)
        inside = (levels - (until - share)[bins]) / share[bins]
        return (bins.astype(dtype) + jnp.clip(inside, 0, 1)) / num_bins

    return jax.vmap(quantiles_of_row)(shares, until)


@operation
def sample_positions(
    key: PRNGKeyArray, masses: Float[Array, "batch bins"], num_samples: int, *, jitter: bool = False
) -> Float[Array, "batch samples"]:
    """Draws `num_samples` positions from each row's histogram `masses` over [0, 1] with replacement, ascending and
    without a gradient: left edges of bins, or with `jitter` anywhere inside.

    Args:
      key: Random key of the draw.
      masses: `[batch, bins]`, masses of equal bins of [0, 1], each at least 0. They need not sum to 1.
      num_samples: Number of positions of each row.
      jitter: Whether to draw evenly inside a bin. False takes its left edge, as in the published code.

    Example:
      >>> masses = jnp.array([[0.0, 0.0, 1.0, 0.0]])
      >>> print(sample_positions(jax.random.key(0), masses, 3))
      [[0.5 0.5 0.5]]
    """
    shares = _shares(masses)
    choose, spread = jax.random.split(key)
    shape = (num_samples, shares.shape[0])
    positions = jax.random.categorical(choose, jnp.log(shares), axis=-1, shape=shape).T.astype(shares.dtype)
    if jitter:
        positions = positions + jax.random.uniform(spread, positions.shape, shares.dtype)
    return jnp.sort(positions, axis=1) / shares.shape[1]


@operation
def kl_to_prior(variance: Float[Array, "*queries"], stddev: float) -> Float[Array, "*queries"]:
    """Computes the KL divergence of each query's `N(mu, variance)` from `N(mu, stddev^2)`. It is 0 only where they are
    equal.

    The formula printed in the paper has the logarithm of the ratio of standard deviations without the factor 2: it is
    negative at its minimum, which is not at `stddev`. The published code has the divergence.

    Args:
      variance: `[...]`, variance of each query's density, above 0.
      stddev: Standard deviation of the prior.

    Example:
      >>> print(np.asarray(kl_to_prior(jnp.array([0.01, 0.04]), 0.1)).round(3))
      [0.    0.807]
    """
    ratio = variance.astype(jnp.promote_types(variance.dtype, jnp.float32)) / stddev**2
    return 0.5 * (ratio - jnp.log(ratio) - 1)


def token_positions(
    num_segments: int,
    length: int,
    contraction: float = 0.5,
    sampled: Float[np.ndarray, "updates samples"] | None = None,
) -> Float[np.ndarray, "segments length"]:
    """Computes the positions in [0, 1] of the tokens, `[segments, length]`, after all segments were written to the
    memory. `sampled` are the positions at which each sticky update read the past.

    Each update moves a token from t to `tau t`. A sticky update reads the past at other positions and moves the token
    to the new position of the sample next to it. The gap between a token and its neighbours is its space in the memory.

    Args:
      num_segments: Number of segments written since the memory was empty.
      length: Number of tokens of a segment.
      contraction: Share of [0, 1] that the past keeps (tau).
      sampled: `[updates, samples]`, for each update after the first the ascending positions at which the past was read.
        None for evenly spaced ones.

    Raises:
      ValueError: `sampled` has another number of updates.

    Example:
      >>> print(token_positions(2, 2))
      [[0.125 0.375]
       [0.75  1.   ]]
    """
    if sampled is not None and len(sampled) != num_segments - 1:
        raise ValueError(f"sampled: given {len(sampled)} updates, allowed: {num_segments - 1}, one less than segments")
    positions = ((np.arange(length) + 0.5) / length)[None]
    for update in range(num_segments - 1):
        if sampled is not None:
            grid = np.asarray(sampled[update], np.float64)
            nearest = np.abs(positions[..., None] - grid).argmin(axis=-1)
            positions = (nearest + 1) / len(grid)
        new = contraction + (1 - contraction) * np.arange(1, length + 1) / length
        positions = np.concatenate([contraction * positions, new[None]])
    return positions


@functools.lru_cache(maxsize=32)
def _regression_of(basis: GaussianBasis, positions: tuple[float, ...], ridge: float) -> np.ndarray:
    functions = np.asarray(evaluate_basis(basis, np.asarray(positions))).T  # [n, p]
    system = functions @ functions.T + ridge * np.eye(len(functions))
    solution = np.linalg.solve(system, functions).T
    solution.flags.writeable = False
    return solution


def _regression(basis: GaussianBasis, positions: np.ndarray, ridge: float) -> np.ndarray:
    return _regression_of(basis, tuple(positions.tolist()), float(ridge))


def _shares(masses: Array) -> Array:
    """Scales masses to the sum 1, without gradient and none of them 0, in at least float32."""
    masses = jax.lax.stop_gradient(masses).astype(jnp.promote_types(masses.dtype, jnp.float32))
    masses = jnp.maximum(masses, 0) + 1e-12
    return masses / masses.sum(axis=1, keepdims=True)


def _check(length: int, ridge: float) -> None:
    if length < 1:
        raise ValueError(f"length: given {length}, allowed: at least 1 token")
    if ridge <= 0:
        raise ValueError(f"ridge: given {ridge}, allowed: above 0")
