"""Reads the features that the head of a model classifies examples by.

They are used for probes, for distances between classes, for pictures of the feature space, and by methods that choose
examples or compute prototypes.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from memjax.config import Evaluation
from memjax.data.documents import Examples
from memjax.data.example_batches import EXAMPLE
from memjax.models.heads import FeatureHead
from memjax.models.similarity_head import ALIGNMENT, VECTORS, apply_alignment
from memjax.training.experiment import Experiment
from memjax.training.objective import model_collections, read_segment


class HeadFeatures(NamedTuple):
    """Features of examples (the inputs of the model's head), with the labels of the examples and their numbers in the
    run.

    Attributes:
      features: Inputs of the head, float32 `[examples, dim]`.
      labels: Labels of the examples, int32 `[examples]`.
      numbers: Numbers of the examples in the run, int `[examples]`.
    """

    features: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray


def read_features(
    experiment: Experiment, variables: Mapping[str, Any], examples: Examples, evaluation: Evaluation | None = None
) -> HeadFeatures:
    """Reads a data set of examples in evaluation mode and returns their features, the inputs of the head, as
    `HeadFeatures`. `evaluation` has the settings for reading, by default `Config.evaluation`.

    Args:
      experiment: Experiment of the run, or of one of its tasks.
      variables: Variables of the model.
      examples: Examples to read.
      evaluation: Settings for reading them. None for `Config.evaluation`.

    Raises:
      ValueError: there are several processes, or the model has a separate head for each task.
    """
    if (count := jax.process_count()) > 1:
        raise ValueError(f"features of examples: given {count} processes, allowed: one process")
    if not hasattr(experiment.model, "head"):
        raise ValueError(
            f"features of examples: given {type(experiment.model).__name__}, allowed: a model with one head"
        )
    features, collections = _features(experiment.model), model_collections(variables)
    parts: list[tuple[np.ndarray, ...]] = []
    for batch in experiment.reading(evaluation).batches(examples):
        has_target = batch.weights[:, 0] > 0
        read_rows = np.asarray(features(collections, batch), np.float32)
        parts.append((read_rows[has_target], batch.targets[has_target, 0], batch.extras[EXAMPLE][has_target]))
    return HeadFeatures(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@functools.lru_cache(maxsize=4)
def _features(model: Any) -> Any:
    """Makes a function `features(variables, rows)`, compiled once for a model."""
    return jax.jit(functools.partial(features_of, model))


def features_of(model: Any, variables: Mapping[str, Any], rows: Any) -> Float[Any, "rows dim"]:
    """Computes the features of a batch of rows, the inputs of the model's head, in evaluation mode. Returns an array
    `[rows, dim]`.
    """
    bare = model.clone(head=FeatureHead())
    return read_segment(bare, variables, bare.init_state(len(rows.inputs)), rows, deterministic=True)[0][:, 0]


def align_features(
    variables: Mapping[str, Any], features: Float[np.ndarray, "rows dim"]
) -> Float[np.ndarray, "rows dim"]:
    """Maps features or class vectors `[rows, dim]` by the linear map that EA-EMR has stored in `variables`. Without
    such a map they are returned unchanged.
    """
    held = variables.get("constants", {}).get("head", {}).get(ALIGNMENT)
    return features if held is None else np.asarray(apply_alignment(held, jnp.asarray(features)))


def class_vectors_of_head(model: Any, variables: Mapping[str, Any]) -> Float[np.ndarray, "classes dim"] | None:
    """Returns the vectors `[classes, dim]` that a similarity head compares features with, aligned as by
    `align_features`. None for other heads.

    It is the prototype of the class, if the method has prototypes.

    Args:
      model: The Linen model.
      variables: Variables for evaluation.
    """
    vectors = variables["params"].get("head", {}).get(VECTORS)
    if vectors is None and model.head is not None and model.head.named:
        vectors = model.apply(model_collections(variables), model.all_classes(), method="name_vectors")
    return None if vectors is None else align_features(variables, np.asarray(vectors, np.float32))


def principal_axes(
    points: Float[np.ndarray, "points dim"], count: int = 2
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim axes"], float]:
    """Returns the mean of points `[points, dim]`, their first `count` principal axes as the columns of an array
    `[dim, count]`, and the fraction of the variance along these axes.

    Args:
      points: At least one point, `[points, dim]`.
      count: Number of axes. Axes that the points do not have are zeros. Signs are such that the largest entry of each
        axis is positive.

    Returns:
      The mean, the axes as columns, and the fraction of the variance of the points along these axes.

    Example:
      >>> middle, axes, share = principal_axes(np.array([[0.0, 1.0], [4.0, 1.0], [2.0, 2.0], [2.0, 0.0]]), 1)
      >>> middle.tolist(), axes.round(3).ravel().tolist(), round(share, 3)
      ([2.0, 1.0], [1.0, 0.0], 0.8)
    """
    middle = points.mean(axis=0)
    _, sizes, rows = np.linalg.svd(points - middle, full_matrices=False)
    axes = np.zeros((points.shape[1], count), points.dtype)
    directions = rows[:count].T
    largest = directions[np.argmax(np.abs(directions), axis=0), np.arange(directions.shape[1])]
    axes[:, : directions.shape[1]] = directions * np.where(largest < 0, -1, 1)
    whole = float(np.sum(sizes**2))
    return middle, axes, float(np.sum(sizes[:count] ** 2)) / whole if whole else 0.0
