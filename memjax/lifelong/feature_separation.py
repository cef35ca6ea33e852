"""Measures of how well features separate classes: distances within and between them, and a linear probe."""

import importlib.util
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist


class ClassDistances(NamedTuple):
    """Mean Euclidean distances between the features of examples: within each class, and between any two classes.

    Attributes:
      within: Mean distance between two examples of each class, `[classes]`. NaN for a class with one example.
      between: Mean distance between examples of two classes, `[classes, classes]`. NaN on the diagonal.
    """

    within: np.ndarray
    between: np.ndarray

    def means(self) -> dict[str, float]:
        """Returns a dict of the mean of `within` over classes and of `between` over pairs of classes. Classes are well
        separated if the first is much lower.
        """
        return {"within": float(np.nanmean(self.within)), "between": float(np.nanmean(self.between))}


def class_distances(features: npt.ArrayLike, labels: npt.ArrayLike) -> ClassDistances:
    """Computes the mean distances between features `[examples, dim]` of the same class, and between those of any two
    classes (`ClassDistances`).

    Args:
      features: Features of examples, `[examples, dim]`.
      labels: Classes of the examples, integers `[examples]`. At least two classes, one of them with two examples.

    Raises:
      ValueError: there is only one class, or no class has two examples.

    Example:
      >>> distances = class_distances([[0.0], [2.0], [9.0]], [0, 0, 1])
      >>> distances.within.tolist(), distances.means()
      ([2.0, nan], {'within': 2.0, 'between': 8.0})
    """
    points, labels = np.asarray(features, np.float64), np.asarray(labels)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.max() < 2:
        classes_given = f"those of {len(classes)} classes, at most {counts.max()} examples each"
        raise ValueError(
            f"labels: given {classes_given}, allowed: 2 or more classes, one of them with 2 or more examples"
        )
    groups = [points[labels == label] for label in classes]
    sums = np.array([[cdist(group, other).sum() for other in groups] for group in groups])
    pairs = np.outer(counts, counts).astype(np.float64)
    with np.errstate(invalid="ignore"):
        within = np.diag(sums) / (counts * (counts - 1.0))
    np.fill_diagonal(pairs, np.nan)
    return ClassDistances(within, sums / pairs)


def linear_probe(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    test_features: npt.ArrayLike,
    test_labels: npt.ArrayLike,
    *,
    strength: float = 1.0,
) -> float:
    """Fits a logistic regression on the features of a frozen model and returns its accuracy on test features, a float.
    `strength` is the weight of the squared penalty.

    It measures what features still tell about a task. If a model has forgotten a task in its head only, this accuracy
    does not fall. The classifier is scikit-learn's logistic regression on features scaled to mean 0 and deviation 1. It
    is deterministic.

    Args:
      features: Features of the training data of a task, `[examples, dim]`.
      labels: Labels of the training data, integers `[examples]` of at least two classes.
      test_features: Features of the test data, `[tests, dim]`.
      test_labels: Labels of the test data, `[tests]`.
      strength: Weight of the squared penalty, above 0 (1 / C).

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
      ValueError: the labels are of one class.
    """
    check_linear_probe()
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(classes := np.unique(labels)) < 2:
        raise ValueError(f"labels: given those of {len(classes)} class, allowed: 2 or more")
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / strength, max_iter=1000))
    return float(probe.fit(features, labels).score(test_features, test_labels))


def check_linear_probe() -> None:
    """Raises `ModuleNotFoundError` if scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise ModuleNotFoundError("scikit-learn is not installed (linear_probe); memjax[eval] has it", name="sklearn")
