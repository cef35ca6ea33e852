"""Detects evaluations of models that have diverged, which score far worse than random answers."""

import math
from collections.abc import Mapping

from memjax.training.scores import EvaluationResult

DIVERGED = 10
"""Multiple of the nats per target of a uniform answer above which a model counts as diverged."""


def divergence_limit(num_choices: int) -> float:
    """Returns 10 times (`DIVERGED`) the nats of a uniform guess among `num_choices` values of a target: a model with
    more nats per target has diverged.

    Args:
      num_choices: Number of possible values of a target, such as the size of the vocabulary.

    Example:
      >>> round(divergence_limit(num_choices=1000), 2)
      69.08
    """
    return DIVERGED * math.log(max(num_choices, 2))


def has_diverged(result: EvaluationResult, limit: float) -> bool:
    """Returns whether an evaluation has more nats per target than the limit. False without targets."""
    return (result.nats_per_token or 0) > limit


def describe_divergence(result: EvaluationResult, limit: float, learning_rate: float) -> str:
    """Describes an evaluation of a diverged model in one line, with settings that may help. `learning_rate` is the
    highest one of the schedule.

    Args:
      result: Result of the evaluation.
      limit: Nats per target above which the model counts as diverged, from `divergence_limit`.
      learning_rate: Highest learning rate of the schedule.
    """
    return (
        f"diverged: {result.nats_per_token:.4g} nats a target, a uniform answer has {limit / DIVERGED:.4g}; "
        f"training.schedule.learning_rate is {learning_rate:g}, a smaller one or training.clip_norm may help"
    )


def final_divergence(
    results: Mapping[str, EvaluationResult], limits: Mapping[str, float]
) -> dict[str, float | None] | None:
    """Returns the nats per target and the limit of the evaluation named '', as `nats_per_token` and `more_than`, if all
    evaluations have diverged, else None. The arguments are results and limits by name.

    Args:
      results: Evaluations at the end of a run by name. '' is the unnamed one.
      limits: Limit of each evaluation, from `divergence_limit`.
    """
    if not all(has_diverged(result, limits[name]) for name, result in results.items()):
        return None
    return {"nats_per_token": results[""].nats_per_token, "more_than": limits[""]}
