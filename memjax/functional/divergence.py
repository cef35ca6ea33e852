"""Divergence of a student's distribution from a teacher's (distillation), over all classes or some of them.

Hinton, Vinyals and Dean 2015, https://arxiv.org/abs/1503.02531. The caller has the teacher: keep a copy of the
parameters (`jnp.copy` of each, since an update donates its own), and apply the model without dropout. Scores are logits
or log-probabilities, which give equal results.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from memjax.functional.named_operations import operation
from memjax.typing import WeightedSum

__all__ = ["divergence", "divergence_sum"]


@operation
def divergence(
    teacher: Float[Array, "*positions classes"],
    student: Float[Array, "*positions classes"],
    *,
    temperature: float = 1.0,
    classes: Bool[Array, " classes"] | None = None,
) -> Float[Array, "*positions"]:
    """Computes the distillation loss `temperature^2 KL(teacher || student)` of every position, in nats. Both are scores
    over classes, of which `classes` marks those that count.

    Both distributions are softmaxes of scores over `temperature`. The square keeps gradients of one size when the
    temperature changes. For a high temperature they tend to the difference of the scores less their means, over the
    number of classes.

    Args:
      teacher: `[*positions, classes]`, scores of the teacher. No gradient reaches them.
      student: `[*positions, classes]`, scores of the student.
      temperature: Divisor of all scores (tau).
      classes: bool `[classes]`, classes that both distributions are over. No value or gradient of other classes gets
        in, not even a NaN. None for all. Without any class the divergence is 0.

    Returns:
      `[*positions]`, at least float32. A class that the teacher excludes by -inf has probability 0. A class that the
      student alone excludes makes the divergence infinite.

    Raises:
      ValueError: A temperature of 0 or less.

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
    # 0 x inf is NaN, in the gradient even of masked values: both factors are made finite before the product.
    chances = jnp.where(possible, jnp.exp(theirs), 0)
    counted = chances > 0
    differences = jnp.where(counted, jnp.where(reached, theirs - ours, jnp.inf), 0)
    return temperature**2 * jnp.sum(chances * differences, axis=-1)


@operation
def divergence_sum(
    teacher: Float[Array, "*positions classes"],
    student: Float[Array, "*positions classes"],
    weights: Float[Array, "*positions"],
    *,
    temperature: float = 1.0,
    classes: Bool[Array, " classes"] | None = None,
) -> WeightedSum:
    """Sums the `divergence` of all positions by their weights, and returns it with the sum of the weights as
    `WeightedSum`.

    Args:
      teacher: `[*positions, classes]`, scores of the teacher.
      student: `[*positions, classes]`, scores of the student.
      weights: `[*positions]`, weight of each position. Nothing of a position with weight 0 gets in, not even a NaN.
      temperature: Divisor of all scores. See `divergence`.
      classes: bool `[classes]`, classes that both distributions are over. None for all. See `divergence`.

    Example:
      >>> teacher, student = jnp.array([[0.5, 0.5], [0.9, 0.1]]), jnp.array([[0.25, 0.75], [0.1, 0.9]])
      >>> result = divergence_sum(jnp.log(teacher), jnp.log(student), jnp.array([1.0, 0.0]))
      >>> print(f"{result.total:.4f} of {result.weight:g}")
      0.1438 of 1
    """
    counts = weights > 0
    counted_only = lambda scores: jnp.where(counts[..., None], scores, 0)
    each = divergence(counted_only(teacher), counted_only(student), temperature=temperature, classes=classes)
    return WeightedSum(jnp.sum(jnp.where(counts, weights * each, 0)), jnp.sum(weights))


def _log_softmax(scores: Array, allowed: Array, temperature: float) -> tuple[Array, Array]:
    """Log-probabilities over the allowed classes of finite score, 0 at others, and which classes these are."""
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    inside = allowed & (scores != -jnp.inf)
    scores = scores / temperature
    peak = jnp.max(jnp.where(inside, scores, jnp.finfo(scores.dtype).min), axis=-1, keepdims=True)
    shifted = jnp.where(inside, scores - jax.lax.stop_gradient(peak), 0)
    total = jnp.sum(jnp.where(inside, jnp.exp(shifted), 0), axis=-1, keepdims=True)
    return jnp.where(inside, shifted - jnp.log(total), 0), inside
