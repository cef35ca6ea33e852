"""The divergence of what a student says from what a teacher says (distillation), also among some classes alone.

Hinton, Vinyals and Dean 2015, https://arxiv.org/abs/1503.02531. The teacher is the caller's: keep a copy of the
parameters (`jnp.copy` of each, since an update donates its own), and apply the model without dropout. Scores are logits
or log-probabilities, which give the same.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from memjax.functional.scopes import operation
from memjax.typing import Sum

__all__ = ["divergence", "divergence_sum"]


@operation
def divergence(
    teacher: Float[Array, "*positions classes"],
    student: Float[Array, "*positions classes"],
    *,
    temperature: float = 1.0,
    classes: Bool[Array, " classes"] | None = None,
) -> Float[Array, "*positions"]:
    """`temperature^2 KL(teacher || student)` of the softmax of scores over `temperature`, in nats.

    The square keeps gradients of one size when the temperature changes; for a high one they tend to the difference of
    the scores less their means, over the number of classes.

    Args:
      teacher: `[*positions, classes]`, scores; no gradient reaches them.
      student: `[*positions, classes]`, scores.
      temperature: Divides the scores of both (tau).
      classes: True = counts; both distributions are over these alone, and no value or gradient of another gets in, not
        even a NaN. None = all. Without any, the divergence is 0.

    Returns:
      In at least float32. A class that the teacher excludes by -inf counts as one of probability 0; one that the
      student alone excludes makes it infinite.

    Raises:
      ValueError: A temperature that is not above 0.

    Example:
      >>> teacher, student = jnp.log(jnp.array([0.5, 0.5, 0.0])), jnp.log(jnp.array([0.25, 0.75, 0.0]))
      >>> print(f"{divergence(teacher, student):.4f}")
      0.1438
    """
    if not temperature > 0:
        raise ValueError(f"temperature: given {temperature}, allowed: above 0")
    allowed = jnp.ones(teacher.shape, bool) if classes is None else jnp.broadcast_to(classes, teacher.shape)
    theirs, possible = _log_softmax(jax.lax.stop_gradient(teacher), allowed, temperature)
    ours, reached = _log_softmax(student, allowed, temperature)
    # 0 x inf is NaN, in the gradient also where the value is masked: the factors are made harmless before the product.
    chances = jnp.where(possible, jnp.exp(theirs), 0)
    counted = chances > 0
    apart = jnp.where(counted, jnp.where(reached, theirs - ours, jnp.inf), 0)
    return temperature**2 * jnp.sum(chances * apart, axis=-1)


@operation
def divergence_sum(
    teacher: Float[Array, "*positions classes"],
    student: Float[Array, "*positions classes"],
    weights: Float[Array, "*positions"],
    *,
    temperature: float = 1.0,
    classes: Bool[Array, " classes"] | None = None,
) -> Sum:
    """The divergences of all positions by their weights, with the sum of the weights.

    Args:
      teacher: `[*positions, classes]`, as in `divergence`.
      student: `[*positions, classes]`, likewise.
      weights: `[*positions]`; what stands where it is 0 gets nowhere, not even a NaN.
      temperature: As in `divergence`.
      classes: As in `divergence`.

    Example:
      >>> teacher, student = jnp.array([[0.5, 0.5], [0.9, 0.1]]), jnp.array([[0.25, 0.75], [0.1, 0.9]])
      >>> found = divergence_sum(jnp.log(teacher), jnp.log(student), jnp.array([1.0, 0.0]))
      >>> print(f"{found.total:.4f} of {found.weight:g}")
      0.1438 of 1
    """
    counts = weights > 0
    kept = lambda scores: jnp.where(counts[..., None], scores, 0)
    each = divergence(kept(teacher), kept(student), temperature=temperature, classes=classes)
    return Sum(jnp.sum(jnp.where(counts, weights * each, 0)), jnp.sum(weights))


def _log_softmax(scores: Array, allowed: Array, temperature: float) -> tuple[Array, Array]:
    """Log-probabilities among the allowed classes of finite score, 0 at others; and which these are."""
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    inside = allowed & (scores != -jnp.inf)
    scores = scores / temperature
    peak = jnp.max(jnp.where(inside, scores, jnp.finfo(scores.dtype).min), axis=-1, keepdims=True)
    shifted = jnp.where(inside, scores - jax.lax.stop_gradient(peak), 0)
    total = jnp.sum(jnp.where(inside, jnp.exp(shifted), 0), axis=-1, keepdims=True)
    return jnp.where(inside, shifted - jnp.log(total), 0), inside
