"""Cross-entropy of tokens, as sums that can be added up over segments, rows and hosts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from memjax.functional.named_operations import operation
from memjax.typing import WeightedSum

__all__ = ["cross_entropy_sum", "token_cross_entropy"]


@operation
def token_cross_entropy(
    logits: Float[Array, "*tokens vocab"], targets: Int[Array, "*tokens"], *, label_smoothing: float = 0.0
) -> Float[Array, "*tokens"]:
    """Computes the cross-entropy `-log softmax(logits)[target]` of each token, in nats. It is 0 for a target outside
    the vocabulary.

    Args:
      logits: `[..., vocab]`, logits in any float dtype.
      targets: int `[...]`, target tokens. A target outside `0 .. vocab - 1` is not scored: its result and its gradient
        are 0, whatever its logits are.
      label_smoothing: Share of the target distribution that is spread evenly over the whole vocabulary (but for entries
        masked with -inf or the lowest finite number). The target has the rest.

    Returns:
      `[...]` in the dtype `promote_types(logits.dtype, float32)`.

    Raises:
      ValueError: `label_smoothing` outside `0 <= label_smoothing < 1`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(token_cross_entropy(jnp.zeros((1, 4)), jnp.array([2])))
      [1.3862944]
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing: given {label_smoothing}, allowed: a share in [0, 1)")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return _cross_entropy(logits, targets, label_smoothing)


@operation
def cross_entropy_sum(
    logits: Float[Array, "*tokens vocab"],
    targets: Int[Array, "*tokens"],
    weights: Float[Array, "*tokens"],
    *,
    label_smoothing: float = 0.0,
) -> WeightedSum:
    """Sums `token_cross_entropy` over tokens by their weights, and returns it with the sum of the weights as
    `WeightedSum`.

    Args:
      logits: `[..., vocab]`, logits.
      targets: int `[...]`, target tokens.
      weights: `[...]`, 1 for targets to score and 0 for others: nothing at their positions, not even a NaN, reaches the
        sum or a gradient.
      label_smoothing: Share of the target distribution that is spread over the vocabulary. See `token_cross_entropy`.

    Returns:
      `WeightedSum(total, weight)` in nats and targets.

    Example:
      >>> import jax.numpy as jnp
      >>> logits = jnp.array([[0.0, 0.0], [jnp.nan, 0.0]])
      >>> print(cross_entropy_sum(logits, jnp.array([1, -1]), jnp.array([1.0, 0.0])).total)
      0.6931472
    """
    scored = weights != 0
    nats = token_cross_entropy(logits, jnp.where(scored, targets, -1), label_smoothing=label_smoothing)
    weights = weights.astype(nats.dtype)
    return WeightedSum(jnp.sum(nats * weights), jnp.sum(weights))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _cross_entropy(logits: Array, targets: Array, label_smoothing: float) -> Array:
    return _nats_and_normalizer(logits, targets, label_smoothing)[0]


@_cross_entropy.defjvp
def _cross_entropy_jvp(label_smoothing: float, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # Softmax minus target distribution in one pass. The gradient of a gather would be a scatter, and reuse no softmax.
    logits, targets = primals
    nats, normalizer = _nats_and_normalizer(logits, targets, label_smoothing)
    ids = lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    wanted = (1 - label_smoothing) * (ids == targets[..., None]).astype(logits.dtype)
    if label_smoothing:
        present = _is_unmasked(logits)
        wanted = wanted + label_smoothing * present / jnp.sum(present, axis=-1, keepdims=True)
    # The `where` keeps a NaN at a target that is not scored out of the gradient.
    slope = jnp.where(_is_scored(logits, targets)[..., None], jnp.exp(logits - normalizer[..., None]) - wanted, 0)
    return nats, jnp.sum(slope * tangents[0], axis=-1)


def _nats_and_normalizer(logits: Array, targets: Array, label_smoothing: float) -> tuple[Array, Array]:
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    indices = jnp.clip(targets, 0, logits.shape[-1] - 1)[..., None]
    wanted = jnp.take_along_axis(logits, indices, axis=-1, mode="clip")[..., 0]
    if label_smoothing:
        present = _is_unmasked(logits)
        mean = jnp.sum(jnp.where(present, logits, 0), axis=-1) / jnp.sum(present, axis=-1)
        wanted = (1 - label_smoothing) * wanted + label_smoothing * mean
    return jnp.where(_is_scored(logits, targets), normalizer - wanted, 0), normalizer


def _is_scored(logits: Array, targets: Array) -> Array:
    return (targets >= 0) & (targets < logits.shape[-1])


def _is_unmasked(logits: Array) -> Array:
    """Selects the vocabulary entries that are not masked out."""
    return logits > 0.5 * float(np.finfo(logits.dtype).min)
