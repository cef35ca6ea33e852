"""What a model still tells of its tasks below its head: linear probes on what the head reads.

Where the probe of a task stays and its accuracy falls, the task is forgotten by the head alone.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from memjax.config import Evaluation
from memjax.data.documents import Examples
from memjax.lifelong.metrics import linear_probe
from memjax.models.heads import FeatureHead
from memjax.training.experiment import Experiment
from memjax.training.objective import model_collections, read_segment

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
    model, own = experiment.model.clone(head=FeatureHead()), model_collections(variables)

    @jax.jit
    def features(variables: Any, rows: Any) -> Any:
        return read_segment(model, variables, model.init_state(len(rows.inputs)), rows, deterministic=True)[0][:, 0]

    def of_split(
        examples: Examples, task: Experiment, evaluation: Evaluation
    ) -> tuple[Float[np.ndarray, "examples dim"], Int[np.ndarray, " examples"]]:
        found = []
        for batch in task.reading(evaluation).batches(examples):
            there = batch.weights[:, 0] > 0
            found.append((np.asarray(features(own, batch), np.float32)[there], batch.targets[there, 0]))
        read, labels = zip(*found, strict=True)
        return np.concatenate(read), np.concatenate(labels)

    accuracies = {}
    for evaluation in experiment.config.evaluations:
        if evaluation.task:
            task = experiment.of_task(evaluation.task)
            splits = (task.documents(split) for split in ("train", evaluation.split))
            train, test = (of_split(examples, task, evaluation) for examples in splits)
            accuracies[evaluation.name] = linear_probe(*train, *test)
    return accuracies
