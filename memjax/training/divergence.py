"""Evaluations of models that have diverged: far worse than answers at random."""

import math
from collections.abc import Mapping

from memjax.training.evaluation import EvaluationResult

__all__ = ["DIVERGED", "describe_divergence", "divergence_limit", "final_divergence", "has_diverged"]

DIVERGED = 10
"""times the nats of a uniform answer, beyond which an evaluation is that of a model that has diverged"""


def divergence_limit(num_choices: int) -> float:
    """Returns the nats a target that only a model that has diverged needs: `DIVERGED` times those of a uniform answer.

    Args:
      num_choices: Number of answers that a target is one of, such as the entries of a vocabulary.

    Example:
      >>> round(divergence_limit(num_choices=1000), 2)
      69.08
    """
    return DIVERGED * math.log(max(num_choices, 2))


def has_diverged(result: EvaluationResult, limit: float) -> bool:
    """Returns whether an evaluation needs more nats a target than the limit; without targets it does not."""
    return (result.nats_per_token or 0) > limit


def describe_divergence(result: EvaluationResult, limit: float, learning_rate: float) -> str:
    """Returns a line about an evaluation that has diverged, in nats a target, with what may help.

    Args:
      result: The evaluation.
      limit: Limit of the evaluation, from `divergence_limit`.
      learning_rate: Highest learning rate of the schedule.
    """
    return (
        f"diverged: {result.nats_per_token:.4g} nats a target, a uniform answer has {limit / DIVERGED:.4g}; "
        f"training.schedule.learning_rate is {learning_rate:g}, a smaller one or training.clip_norm may help"
    )


def final_divergence(
    results: Mapping[str, EvaluationResult], limits: Mapping[str, float]
) -> dict[str, float | None] | None:
    """Returns nats and limit, a target, of the evaluation without a name; None unless all evaluations have diverged.

    Args:
      results: Evaluations at the end of a run, by name; '' has no name.
      limits: Limit of each evaluation, from `divergence_limit`.
    """
    if not all(has_diverged(result, limits[name]) for name, result in results.items()):
        return None
    return {"nats_per_token": results[""].nats_per_token, "more_than": limits[""]}
