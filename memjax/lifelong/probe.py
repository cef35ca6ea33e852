"""What a model still tells of its tasks below its head: linear probes on what the head reads.

Where the probe of a task stays and its accuracy falls, the task is forgotten by the head alone.
"""

from collections.abc import Mapping
from typing import Any

from memjax.lifelong.head_features import read_features
from memjax.lifelong.metrics import linear_probe
from memjax.training.experiment import Experiment

__all__ = ["probe_tasks"]


def probe_tasks(experiment: Experiment, variables: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of a linear probe of every task: name of its evaluation -> accuracy on the split of that.

    A probe learns the training split of its task, from features of the model as it is: in evaluation mode, and not
    adapted to a row (`memjax.lifelong.metrics.linear_probe`).

    Args:
      experiment: of a run over tasks with classes.
      variables: of its model.

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
