"""Plain training on one task after the other: the lower bound of every method."""

from memjax.lifelong.contract import Method
from memjax.training.loop import plain_learner


def sequential() -> Method:
    """The method that does nothing against forgetting."""
    return Method(plain_learner)
