"""Cross-entropy of tokens, summed so that segments, rows and hosts only ever add."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from memjax.typing import Sum

__all__ = ["cross_entropy_sum", "token_cross_entropy"]


def token_cross_entropy(
    logits: Float[Array, "*tokens vocab"], targets: Int[Array, "*tokens"], *, label_smoothing: float = 0.0
) -> Float[Array, "*tokens"]:
    """`-log softmax(logits)[target]` of each token, in nats.

    Args:
      logits: `[..., vocab]`, any float dtype.
      targets: `[...]`, int. A target outside `0 .. vocab - 1` matches nothing: its result is the (finite) log-sum-exp,
        to be weighted by 0.
      label_smoothing: the target distribution is `1 - label_smoothing` at the target plus `label_smoothing` spread
        evenly over the whole vocabulary.

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
        raise ValueError(f"label_smoothing: {label_smoothing} given, allowed is 0 <= label_smoothing < 1")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # A comparison instead of a gather: its gradient fuses with that of the log-sum-exp, a gather's is a scatter.
    ids = lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    picked = jnp.sum(jnp.where(ids == targets[..., None], logits, 0), axis=-1)
    if label_smoothing:
        picked = (1 - label_smoothing) * picked + label_smoothing * jnp.mean(logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked


def cross_entropy_sum(
    logits: Float[Array, "*tokens vocab"],
    targets: Int[Array, "*tokens"],
    weights: Float[Array, "*tokens"],
    *,
    label_smoothing: float = 0.0,
) -> Sum:
    """Weighted sum of `token_cross_entropy` with the sum of the weights.

    Args:
      logits: `[..., vocab]`.
      targets: `[...]`.
      weights: `[...]`, 1 = the target is scored, 0 = it is not: nothing at that position, not even a NaN, reaches the
        sum or a gradient.
      label_smoothing: as in `token_cross_entropy`.

    Returns:
      `Sum(total, weight)` in nats and targets.

    Example:
      >>> import jax.numpy as jnp
      >>> logits = jnp.array([[0.0, 0.0], [jnp.nan, 0.0]])
      >>> print(cross_entropy_sum(logits, jnp.array([1, -1]), jnp.array([1.0, 0.0])).total)
      0.6931472
    """
    scored = weights != 0
    # Both wheres: the inner one keeps a NaN out of the gradient, the outer one out of the sum.
    nats = token_cross_entropy(
        jnp.where(scored[..., None], logits, 0), jnp.where(scored, targets, 0), label_smoothing=label_smoothing
    )
    weights = weights.astype(nats.dtype)
    return Sum(jnp.sum(jnp.where(scored, nats, 0) * weights), jnp.sum(weights))
