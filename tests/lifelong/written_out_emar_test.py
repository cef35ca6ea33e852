"""EMAR, end to end, against the equations of its paper in NumPy: stored examples, prototypes, and both losses."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import EMAR
from memjax.lifelong.emar import draw_instances
from memjax.lifelong.kmeans import kmeans
from tests.lifelong.learner_cases import SIZE, TASKS
from tests.lifelong.written_out import RATE, SEED, assert_params, batches_of, join, start_of, stream_in_float64
from tests.reference.perceptron import VECTORS, features, gradient, step

pytestmark = pytest.mark.slow

KEPT, ROUNDS, ACTIVATION_ROWS, RECONSOLIDATION_ROWS = 5, 2, 4, 3
FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}  # Features and prototypes are stored in float32.


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


# The choice of examples


def start_of_clusters(points, number, key):
    """The first centroids: drawn by k-means++ from points that are filled up to a power of two. This is chance."""
    filled = np.zeros((1 << (len(points) - 1).bit_length(), points.shape[1]), np.float32)
    filled[: len(points)] = points
    present = np.arange(len(filled)) < len(points)
    start = kmeans(jnp.asarray(filled), number, key, iterations=0, present=jnp.asarray(present))
    return np.asarray(start.centroids, np.float64)


def representatives(points, number, key):
    """Lloyd's algorithm, and then for each centroid the nearest example that no earlier one has: all that can be.

    The two examples of a cluster of two are equally near to its centroid, so that rounding decides between them.
    """
    points = points.astype(np.float32)
    centroids = start_of_clusters(points, number, key)
    points = points.astype(np.float64)
    squares = lambda: ((points[:, None] - centroids) ** 2).sum(axis=-1)
    for _ in range(20):
        nearest = squares().argmin(axis=1)
        assert set(nearest) == set(range(number))
        centroids = np.stack([points[nearest == cluster].mean(axis=0) for cluster in range(number)])
    choices = [()]
    for column in squares().T:
        near = lambda free, column=column: free[column[free] <= column[free].min() * (1 + 1e-4) + 1e-6]
        free = lambda chosen: np.setdiff1d(np.arange(len(points)), chosen)
        choices = [(*chosen, place) for chosen in choices for place in near(free(chosen))]
    return [np.array(chosen) for chosen in choices]


def selections(params, rows, key, levels):
    """Numbers of `KEPT` examples: of the whole task, or of each class its share, one more where it matters most."""
    read, results = features(params, rows.x), set()
    for first in representatives(read, KEPT, key):
        if levels == "flat":
            results.add(frozenset(rows.number[first]))
            continue
        importance = {label: sum(rows.y[first] == label) for label in np.unique(rows.y)}
        ranked, of_classes = sorted(importance, key=lambda label: -importance[label]), []
        for place, label in enumerate(importance):
            quota = KEPT // len(ranked) + (ranked.index(label) < KEPT % len(ranked))
            members = np.flatnonzero(rows.y == label)
            some = representatives(read[members], quota, jax.random.fold_in(key, place))
            of_classes.append([rows.number[members[chosen]] for chosen in some])
        results |= {frozenset(np.concatenate(chosen)) for chosen in itertools.product(*of_classes)}
    return results


# The stream


def instances(known, number, round_, purpose, at_most):
    """Numbers of stored examples that are drawn of each class. This is chance; 0 takes all."""
    numbers = np.array(sorted(number))
    labels = np.array([known[example][1] for example in numbers])
    task = max(numbers) // SIZE
    chosen = draw_instances(numbers, labels, at_most, f"{purpose}/{SEED}/{task}/{round_}")
    wanted = [min(count, at_most or count) for count in np.bincount(labels)]
    assert [*np.bincount([known[example][1] for example in chosen])] == wanted
    return chosen


def sums_of(params, known, numbers):
    """The sum of the features of the examples of every class, and how many they are."""
    totals, counts = np.zeros_like(params[VECTORS]), np.zeros(len(params[VECTORS]))
    for number in numbers:
        x, y = known[number]
        totals[y] += features(params, x[None])[0]
        counts[y] += 1
    return totals, counts


def prototypes_of(params, known, numbers):
    """The mean of the features of the examples of every class, or its vector where there is none."""
    totals, counts = sums_of(params, known, numbers)
    return np.where(counts[:, None] > 0, totals / np.maximum(counts, 1)[:, None], params[VECTORS])


def pass_over(params, batches, rows, allowed, prototypes=None):
    """One update a batch. Prototypes stand in the place of the vectors of classes and get no gradient."""
    for batch in batches:
        compared = params if prototypes is None else {**params, VECTORS: prototypes}
        slope = gradient(compared, batch.x, batch.y, np.full(len(batch.y), 1 / rows), allowed)
        learned = lambda path: prototypes is None or path != VECTORS
        params = step(params, slope, RATE, learned)
    return params


def numbers_of(batches):
    return sorted(int(number) for batch in batches for number in batch.number)


@pytest.mark.parametrize(
    ("levels", "at_most", "first", "seen_only"), [("two_level", 2, "task", True), ("flat", 0, "both", False)]
)
def test_emar_activates_and_reconsolidates_what_it_keeps(levels, at_most, first, seen_only):
    method = EMAR(
        examples_per_task=KEPT,
        example_selection=levels,
        instances_per_class=at_most,
        first_pass_examples=first,
        rounds=ROUNDS,
        reconsolidation_batch_size=RECONSOLIDATION_ROWS,
    )
    _, played = stream_in_float64(method, task={"mask_unseen_classes": seen_only})
    params, known, stored = start_of(played), {}, set()
    stages = [
        (kind, [batches_of(batch)[0] for _, batch in group])
        for kind, group in itertools.groupby(played.updates, lambda update: update[0])
    ]
    plan = ["stream", *["activate", "reconsolidate"] * ROUNDS]
    assert [kind for kind, _ in stages] == plan * TASKS
    for number, (kind, batches) in enumerate(stages):
        task, place = divmod(number, len(plan))
        of_task, round_ = {*range(task * SIZE, (task + 1) * SIZE)}, (place - 1) // 2
        allowed = np.arange(2 * (task + 1)) if seen_only else slice(None)
        if kind == "stream":
            assert numbers_of(batches) == sorted(of_task | (stored if first == "both" else set()))
            joined = join(batches)
            known |= {int(example): (x, y) for x, y, example in zip(*joined, strict=True)}
            params = pass_over(params, batches, ACTIVATION_ROWS, allowed)
            sorted_rows = joined.take(np.argsort(joined.number))
            rows = sorted_rows.take(np.isin(sorted_rows.number, [*of_task]))
            chosen = frozenset(np.asarray(played.begun[number + 1].method["chosen"])[task].tolist())
            possible = selections(params, rows, jax.random.fold_in(jax.random.key(SEED), number), levels)
            assert chosen in possible and len(possible) <= 8
            stored |= chosen
        elif kind == "activate":
            prototypes = prototypes_of(params, known, instances(known, stored, round_, "prototypes", at_most))
            np.testing.assert_allclose(played.begun[number].method["emar"]["prototypes"], prototypes, **FLOAT32)
            assert numbers_of(batches) == sorted(of_task | stored)
            params = pass_over(params, batches, ACTIVATION_ROWS, allowed)
        else:
            assert numbers_of(batches) == [*instances(known, stored, round_, "instances", at_most)]
            params = pass_over(params, batches, RECONSOLIDATION_ROWS, allowed, prototypes)
    assert_params(played.state.params, params, **FLOAT32)
    totals, counts = sums_of(params, known, stored)
    final = played.learner.evaluation_variables(played.state, SEED)["params"]["head"]["vectors"]
    np.testing.assert_allclose(final, (params[VECTORS] + totals) / (1 + counts)[:, None], **FLOAT32)
