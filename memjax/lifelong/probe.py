"""Measures what the features of a model still tell about earlier tasks, with linear probes on the input of its head.

If the probe of a task stays accurate and the accuracy of the model falls, only the head has forgotten the task.
"""

from collections.abc import Mapping
from typing import Any

from memjax.lifelong.class_features import read_features
from memjax.lifelong.feature_separation import linear_probe
from memjax.training.experiment import Experiment


def probe_tasks(experiment: Experiment, variables: Mapping[str, Any]) -> dict[str, float]:
    """Fits a linear probe on the model's features for every task, and returns a dict of its accuracies on the evaluated
    splits, by the name of the task's evaluation.

    A probe learns the training split of its task and is tested on the split of the evaluation. It reads features of
    the model in evaluation mode, without adaptation to rows (`memjax.lifelong.feature_separation.linear_probe`).

    Args:
      experiment: Experiment of a run over tasks with classes.
      variables: Variables of its model.

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
      ValueError: a task of one class.
    """
    accuracies = {}
    for evaluation in experiment.config.evaluations:
        if evaluation.task:
            task = experiment.of_task(evaluation.task)
            splits = (task.documents(split) for split in ("train", evaluation.split))
            train, test = (read_features(task, variables, examples, evaluation) for examples in splits)
            accuracies[evaluation.name] = linear_probe(*train[:2], *test[:2])
    return accuracies
