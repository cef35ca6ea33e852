"""Losses that keep the answers of a model near those of a frozen copy of it, made before the task.

Learning without forgetting (LwF), Li and Hoiem 2016, https://arxiv.org/abs/1606.09282, asks the copy about the new
examples, over the old classes: nothing is stored but the copy. Logit-KD, a baseline of ELLE (Qin et al. 2022,
https://arxiv.org/abs/2203.06311), asks it about remembered examples. Both are the divergence of Hinton et al. 2015
(https://arxiv.org/abs/1503.02531).

The teacher is the caller's: keep a copy of the parameters (`jnp.copy` of each, since an update donates its own), apply
the model without dropout, and let no gradient through. Scores are logits or log-probabilities, which give the same.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.typing import Sum

__all__ = ["annealed_ratio", "divergence", "divergence_sum", "learning_without_forgetting", "logit_kd", "seen_classes"]


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
      teacher: scores; no gradient reaches them.
      student: scores.
      temperature: divides the scores of both (tau).
      classes: True = counts; both distributions are over these alone, and no value or gradient of another gets in, not
        even a NaN. None = all. Without any, the divergence is 0.

    Returns:
      In at least float32. A class that the teacher excludes by -inf counts as one of probability 0; one that the
      student alone excludes makes it infinite.

    Raises:
      ValueError: a temperature that is not above 0.

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
      teacher: as in `divergence`.
      student: as in `divergence`.
      weights: of each position; what stands where it is 0 gets nowhere, not even a NaN.
      temperature: as in `divergence`.
      classes: as in `divergence`.
    """
    counts = weights > 0
    kept = lambda scores: jnp.where(counts[..., None], scores, 0)
    each = divergence(kept(teacher), kept(student), temperature=temperature, classes=classes)
    return Sum(jnp.sum(jnp.where(counts, weights * each, 0)), jnp.sum(weights))


def learning_without_forgetting(
    teacher: Float[Array, "*positions classes"],
    student: Float[Array, "*positions classes"],
    weights: Float[Array, "*positions"],
    old: Bool[Array, " classes"],
    *,
    temperature: float = 2.0,
) -> Sum:
    """LwF: the divergence on new examples, over the classes of earlier tasks.

    Differs from the paper: the divergence for the cross-entropy, which is larger by the teacher's entropy, without
    gradient; and `temperature^2`, by which its strength (lambda_o) is to be divided.

    Args:
      teacher: scores of the new examples by the model before the task.
      student: theirs by the model.
      weights: of each position.
      old: classes of earlier tasks (`seen_classes`, before the task); before the second task there is none, and the
        loss is 0.
      temperature: 2 in the paper.
    """
    return divergence_sum(teacher, student, weights, temperature=temperature, classes=old)


def logit_kd(
    teacher: Float[Array, "*positions classes"],
    student: Float[Array, "*positions classes"],
    weights: Float[Array, "*positions"],
    remembered: Bool[Array, "*positions"],
    *,
    temperature: float = 2.0,
) -> Sum:
    """Logit-KD: the divergence on remembered examples alone, of a batch of these and new ones.

    Args:
      teacher: scores by the model before the task.
      student: scores by the model.
      weights: of each position.
      remembered: True = of an example from the memory.
      temperature: divides the scores of both.
    """
    return divergence_sum(teacher, student, jnp.where(remembered, weights, 0), temperature=temperature)


def seen_classes(
    seen: Bool[Array, " classes"], labels: Int[Array, "*positions"], weights: Float[Array, "*positions"]
) -> Bool[Array, " classes"]:
    """The classes seen so far, with those of more labels; one of weight 0, or outside of the classes, is none.

    Example:
      >>> seen_classes(jnp.array([True, False, False]), jnp.array([1, 2]), jnp.array([1.0, 0.0])).tolist()
      [True, True, False]
    """
    number = seen.shape[0]
    counts = (weights > 0) & (labels >= 0) & (labels < number)
    return seen.at[jnp.where(counts, labels, number)].set(True, mode="drop")


def annealed_ratio(step: Array | int, steps: int, *, first: float = 1.0, last: float = 0.0) -> Float[Array, ""]:
    """The strength of distillation at a step of a task: from `first` at step 0 in a line to `last` at `steps`, then on.

    Example:
      >>> [float(annealed_ratio(step, 4)) for step in (0, 1, 4, 9)]
      [1.0, 0.75, 0.0, 0.0]
    """
    done = jnp.clip(jnp.asarray(step, jnp.float32) / max(steps, 1), 0.0, 1.0)
    return first + (last - first) * done


def _log_softmax(scores: Array, allowed: Array, temperature: float) -> tuple[Array, Array]:
    """Log-probabilities among the allowed classes of finite score, 0 at others; and which these are."""
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    inside = allowed & (scores != -jnp.inf)
    scores = scores / temperature
    peak = jnp.max(jnp.where(inside, scores, jnp.finfo(scores.dtype).min), axis=-1, keepdims=True)
    shifted = jnp.where(inside, scores - jax.lax.stop_gradient(peak), 0)
    total = jnp.sum(jnp.where(inside, jnp.exp(shifted), 0), axis=-1, keepdims=True)
    return jnp.where(inside, shifted - jnp.log(total), 0), inside
