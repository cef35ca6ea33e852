"""What the head of a model reads of examples: the features that classes are told apart by.

Probes, distances of classes, pictures of the feature space, and methods that choose examples or make prototypes are
made of it.
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
from memjax.data.examples import EXAMPLE
from memjax.models.heads import FeatureHead
from memjax.models.similarity_head import ALIGNMENT, VECTORS, align
from memjax.training.experiment import Experiment
from memjax.training.objective import model_collections, read_segment

__all__ = ["HeadFeatures", "class_vectors_of_head", "align_features", "features_of", "principal_axes", "read_features"]


class HeadFeatures(NamedTuple):
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
) -> HeadFeatures:
    """What the head reads of examples, in evaluation mode.

    Args:
      experiment: of the run, or of a task of it.
      variables: of its model.
      examples: that are read.
      evaluation: how; None = as `Config.evaluation`.

    Raises:
      ValueError: several processes, or a model that has a head of its own for each task.
    """
    if (count := jax.process_count()) > 1:
        raise ValueError(f"features of examples: given {count} processes, allowed: one process")
    if not hasattr(experiment.model, "head"):
        raise ValueError(
            f"features of examples: given {type(experiment.model).__name__}, allowed: a model with one head"
        )
    features, own = _features(experiment.model), model_collections(variables)
    found: list[tuple[np.ndarray, ...]] = []
    for batch in experiment.reading(evaluation).batches(examples):
        there = batch.weights[:, 0] > 0
        read = np.asarray(features(own, batch), np.float32)
        found.append((read[there], batch.targets[there, 0], batch.extras[EXAMPLE][there]))
    return HeadFeatures(*(np.concatenate(part) for part in zip(*found, strict=True)))


@functools.lru_cache(maxsize=4)
def _features(model: Any) -> Any:
    """`features(variables, rows)`, compiled once for a model."""
    return jax.jit(functools.partial(features_of, model))


def features_of(model: Any, variables: Mapping[str, Any], rows: Any) -> Float[Any, "rows dim"]:
    """What the head of a model reads of rows, in evaluation mode."""
    bare = model.clone(head=FeatureHead())
    return read_segment(bare, variables, bare.init_state(len(rows.inputs)), rows, deterministic=True)[0][:, 0]


def align_features(
    variables: Mapping[str, Any], features: Float[np.ndarray, "rows dim"]
) -> Float[np.ndarray, "rows dim"]:
    """Features, or vectors of classes, as a head compares them: behind the linear map of a method that aligns them."""
    held = variables.get("constants", {}).get("head", {}).get(ALIGNMENT)
    return features if held is None else np.asarray(align(held, jnp.asarray(features)))


def class_vectors_of_head(model: Any, variables: Mapping[str, Any]) -> Float[np.ndarray, "classes dim"] | None:
    """What a head of similarities compares features with: a vector of each class, or its prototype where the method has
    some; None of other heads.

    Args:
      model: the Linen model.
      variables: of it, as they are evaluated.
    """
    vectors = variables["params"].get("head", {}).get(VECTORS)
    if vectors is None and getattr(model.head, "named", False):
        vectors = model.apply(model_collections(variables), model.all_names(), method="name_vectors")
    return None if vectors is None else align_features(variables, np.asarray(vectors, np.float32))


def principal_axes(
    points: Float[np.ndarray, "points dim"], count: int = 2
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim axes"], float]:
    """The middle of points, the axes along which they differ most, and what share of their variance lies in these.

    Args:
      points: at least one.
      count: of axes; those that the points do not have are zeros. Each points to where its largest entry is above 0.

    Example:
      >>> middle, axes, share = principal_axes(np.array([[0.0, 1.0], [4.0, 1.0], [2.0, 2.0], [2.0, 0.0]]), 1)
      >>> middle.tolist(), axes.round(3).ravel().tolist(), round(share, 3)
      ([2.0, 1.0], [1.0, 0.0], 0.8)
    """
    middle = points.mean(axis=0)
    _, sizes, rows = np.linalg.svd(points - middle, full_matrices=False)
    axes = np.zeros((points.shape[1], count), points.dtype)
    found = rows[:count].T
    largest = found[np.argmax(np.abs(found), axis=0), np.arange(found.shape[1])]
    axes[:, : found.shape[1]] = found * np.where(largest < 0, -1, 1)
    whole = float(np.sum(sizes**2))
    return middle, axes, float(np.sum(sizes[:count] ** 2)) / whole if whole else 0.0
