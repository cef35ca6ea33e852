"""k-means, and the examples that stand for clusters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.lifelong.kmeans import kmeans, select_examples

CLUSTERS, EACH, DIM = 5, 12, 3
ALL = np.ones(CLUSTERS * EACH, bool)
clusters_of = jax.jit(kmeans, static_argnums=1)
examples_of = jax.jit(select_examples, static_argnums=1)


def cluster(points, number, key, present=ALL):
    return clusters_of(points, number, key, present=present)


def select(points, number, key, present=ALL):
    return examples_of(points, number, key, present=present)


def blobs(seed=0):
    """float32 points of well separated blobs, far from 0, in random order; and their blobs."""
    rng = np.random.default_rng(seed)
    centres = 100 + 20 * np.stack([np.eye(DIM)[i % DIM] * (1 + i // DIM) for i in range(CLUSTERS)])
    labels = rng.permutation(np.repeat(np.arange(CLUSTERS), EACH))
    return (centres[labels] + rng.normal(size=(len(labels), DIM))).astype(np.float32), labels


def test_blobs_are_found():
    points, labels = blobs()
    found = cluster(points, CLUSTERS, jax.random.key(0))
    own = [set(np.asarray(found.assignment)[labels == label]) for label in range(CLUSTERS)]
    assert all(len(numbers) == 1 for numbers in own) and len(set.union(*own)) == CLUSTERS
    for label, (number,) in enumerate(own):
        np.testing.assert_allclose(found.centroids[number], points[labels == label].mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        found.inertia[-1], ((points - np.asarray(found.centroids)[found.assignment]) ** 2).sum(), rtol=1e-5
    )


def test_inertia_never_grows_and_every_point_has_its_nearest_centroid():
    """Also where clusters run empty: points that are mostly equal, more clusters than there are kinds."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(CLUSTERS * EACH, DIM)).astype(np.float32)
    equal = np.where(np.arange(len(noise))[:, None] < 5, noise, np.ones((1, DIM), np.float32))
    for points in (noise, equal):
        for seed in range(5):
            found = jax.device_get(cluster(points, 8, jax.random.key(seed)))
            assert (np.diff(found.inertia) <= 1e-4 * found.inertia[0] + 1e-6).all()
            squares = ((points[:, None] - found.centroids[None]) ** 2).sum(-1)
            np.testing.assert_allclose(
                squares[np.arange(len(points)), found.assignment], squares.min(axis=1), rtol=1e-4, atol=1e-4
            )
    assert found.inertia[-1] < 1e-6, "six kinds of points, eight clusters"


def test_an_empty_cluster_moves_to_the_farthest_point(monkeypatch):
    """From a start where all centroids are one point, so that all points are of the first cluster."""
    monkeypatch.setattr("memjax.lifelong.kmeans._start", lambda points, number, *_: points[:1].repeat(number, axis=0))
    points = 100 + np.array([[0.0], [1.0], [0.0], [0.0], [10.0], [-7.0]], np.float32)
    found = jax.jit(lambda points: kmeans(points, 4, jax.random.key(0)))(points)
    assert float(found.inertia[0]) == 150 and found.inertia[-1] == 0
    assert sorted(found.centroids[:, 0].tolist()) == [93, 100, 101, 110]


def test_one_example_of_every_blob_and_the_nearest_to_its_middle():
    points, labels = blobs()
    chosen = np.asarray(select(points, CLUSTERS, jax.random.key(1)))
    assert sorted(labels[chosen]) == list(range(CLUSTERS))
    for place in chosen:
        own = np.flatnonzero(labels == labels[place])
        squares = ((points[own] - points[own].mean(axis=0)) ** 2).sum(-1)
        assert own[np.argmin(squares)] == place
    order = np.random.default_rng(5).permutation(len(points))
    again = order[np.asarray(select(points[order], CLUSTERS, jax.random.key(1)))]
    assert set(again) == set(chosen), "in whatever order the points come"


@pytest.mark.parametrize("number", [CLUSTERS, 60])
def test_examples_are_different(number):
    """Also where points are equal, and where padding leaves fewer than were asked for."""
    rng = np.random.default_rng(0)
    points = rng.integers(0, 2, (60, DIM)).astype(np.float32)
    assert len(set(select(points, number, jax.random.key(0)).tolist())) == number
    present = np.arange(60) % 15 == 0
    chosen = np.asarray(select(points, number, jax.random.key(0), present=present))
    real = chosen[chosen >= 0]
    assert len(real) == len(set(real)) == min(number, present.sum()) and present[real].all()


def test_padding_changes_nothing():
    points, labels = blobs()
    present = labels != 2
    padded = np.where(present[:, None], points, np.float32(1e4))
    chosen = np.asarray(select(padded, CLUSTERS, jax.random.key(0), present))
    assert sorted(set(labels[chosen])) == [0, 1, 3, 4]
    found = cluster(padded, CLUSTERS, jax.random.key(0), present)
    assert float(found.inertia[-1]) < 4 * EACH * DIM * 3 and (np.asarray(found.centroids) < 1e3).all()


def test_bfloat16_points_are_clustered_in_float32():
    points = jax.ShapeDtypeStruct((8, 2), jnp.bfloat16)
    found = jax.eval_shape(lambda points: kmeans(points, 2, jax.random.key(0)), points)
    assert found.centroids.dtype == found.inertia.dtype == jnp.float32


@pytest.mark.parametrize("number", [0, 61])
def test_what_is_refused(number):
    with pytest.raises(ValueError, match=f"num_clusters: given {number}, allowed: 1 to 60, the number of points"):
        kmeans(jnp.zeros((60, 2)), number, jax.random.key(0))
