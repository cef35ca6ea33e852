"""What the head of a model reads of examples: the features that classes are told apart by.

Probes, distances of classes, and methods that choose examples or make prototypes are made of it.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from memjax.config import Evaluation
from memjax.data.documents import Examples
from memjax.data.examples import EXAMPLE
from memjax.models.heads import FeatureHead
from memjax.training.experiment import Experiment
from memjax.training.objective import model_collections, read_segment

__all__ = ["Read", "features_of", "read_features"]


class Read(NamedTuple):
    """Examples with what the head reads of them.

    Attributes:
      features: float32 `[examples, dim]`.
      labels: int32 `[examples]`.
      numbers: int `[examples]`, of the examples in the run.
    """

    features: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray


def read_features(
    experiment: Experiment, variables: Mapping[str, Any], examples: Examples, evaluation: Evaluation | None = None
) -> Read:
    """What the head reads of examples, in evaluation mode.

    Args:
      experiment: of the run, or of a task of it.
      variables: of its model.
      examples: that are read.
      evaluation: how; None = as `Config.evaluation`.

    Raises:
      ValueError: several processes.
    """
    if (count := jax.process_count()) > 1:
        raise ValueError(f"features of examples: given {count} processes, allowed: one process")
    features, own = _features(experiment.model), model_collections(variables)
    found: list[tuple[np.ndarray, ...]] = []
    for batch in experiment.reading(evaluation).batches(examples):
        there = batch.weights[:, 0] > 0
        read = np.asarray(features(own, batch), np.float32)
        found.append((read[there], batch.targets[there, 0], batch.extras[EXAMPLE][there]))
    return Read(*(np.concatenate(part) for part in zip(*found, strict=True)))


@functools.lru_cache(maxsize=4)
def _features(model: Any) -> Any:
    """`features(variables, rows)`, compiled once for a model."""
    return jax.jit(functools.partial(features_of, model))


def features_of(model: Any, variables: Mapping[str, Any], rows: Any) -> Float[Any, "rows dim"]:
    """What the head of a model reads of rows, in evaluation mode."""
    bare = model.clone(head=FeatureHead())
    return read_segment(bare, variables, bare.init_state(len(rows.inputs)), rows, deterministic=True)[0][:, 0]
