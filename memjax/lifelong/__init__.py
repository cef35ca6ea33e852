"""Lifelong learning: tasks that are learned one after the other, and methods against forgetting.

A method is a `Learner` and what happens between tasks; one method = one file. `train` runs a configuration of any kind.
"""

from memjax.lifelong.contract import Method, task_stages
from memjax.lifelong.ewc import Consolidated, consolidate, quadratic_penalty
from memjax.lifelong.factory import course_of, train
from memjax.lifelong.fisher import fisher_information

__all__ = [
    "Consolidated",
    "Method",
    "consolidate",
    "course_of",
    "fisher_information",
    "quadratic_penalty",
    "task_stages",
    "train",
]
