"""Clusters of points, and the examples that stand for them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.typing import Leaf

__all__ = ["KMeansResult", "kmeans", "select_examples"]


class KMeansResult(NamedTuple):
    """Of points.

    Attributes:
      centroids: `[clusters, dim]`, at least float32.
      assignment: int32 `[points]`, the nearest centroid.
      inertia: `[iterations + 1]`, the sum of squared distances to the nearest centroid, at the start and after each
        iteration; it never grows.
    """

    centroids: Leaf
    assignment: Leaf
    inertia: Leaf


def kmeans(
    points: Float[Array, "points dim"],
    num_clusters: int,
    key: Any,
    *,
    iterations: int = 20,
    present: Bool[Array, " points"] | None = None,
) -> KMeansResult:
    """Lloyd's algorithm from the start of k-means++ (Arthur and Vassilvitskii 2007); may be called inside `jax.jit`.

    A cluster without points moves to the point that is farthest from its centroid.

    Args:
      points: `[points, dim]`, any float dtype.
      num_clusters: at most as many as points.
      key: for the start; nothing else is random.
      iterations: of Lloyd's algorithm, always as many.
      present: False = padding, which belongs to no cluster; None = all are points.

    Raises:
      ValueError: no cluster, or more than points.

    Example:
      >>> points = jnp.array([[0.0], [1.0], [10.0], [11.0]])
      >>> print(jnp.sort(kmeans(points, 2, jax.random.key(0)).centroids[:, 0]))
      [ 0.5 10.5]
    """
    count, width = points.shape
    if not 1 <= num_clusters <= count:
        raise ValueError(f"num_clusters: given {num_clusters}, allowed: 1 to {count}, the number of points")
    points = points.astype(jnp.promote_types(points.dtype, jnp.float32))
    there = jnp.ones(count, bool) if present is None else present
    real = there.astype(points.dtype)

    def step(centroids: Array, _: None) -> tuple[Array, Array]:
        nearest, squares = _assign(points, centroids)
        totals = jnp.zeros_like(centroids).at[nearest].add(real[:, None] * points)
        sizes = jnp.zeros(num_clusters, points.dtype).at[nearest].add(real)
        empty = sizes == 0
        farthest = lax.top_k(squares * real, num_clusters)[1]
        moved = points[farthest[jnp.cumsum(empty) - 1]]
        means = totals / jnp.maximum(sizes, 1)[:, None]
        return jnp.where(empty[:, None], moved, means), jnp.sum(squares * real)

    centroids, inertia = lax.scan(step, _start(points, num_clusters, key, there), None, iterations)
    nearest, squares = _assign(points, centroids)
    return KMeansResult(centroids, nearest, jnp.append(inertia, jnp.sum(squares * real)))


def select_examples(
    points: Float[Array, "points dim"],
    num_examples: int,
    key: Any,
    *,
    iterations: int = 20,
    present: Bool[Array, " points"] | None = None,
) -> Int[Array, " num_examples"]:
    """Different points that stand for all: of each cluster the one that is nearest to its centroid.

    A point that is nearest to two centroids stands for the first, and the next nearest for the second.

    Args:
      points: `[points, dim]`, features of examples.
      num_examples: as many clusters are made; at most as many as points.
      key: for `kmeans`.
      iterations: of `kmeans`.
      present: False = padding, which is never selected; None = all are points.

    Returns:
      int32 `[num_examples]`, places in `points`; -1 where fewer are present.

    Raises:
      ValueError: as `kmeans`.

    Example:
      >>> points = jnp.array([[0.0], [1.0], [1.5], [10.0], [11.0], [13.0]])
      >>> print(jnp.sort(select_examples(points, 2, jax.random.key(0))))
      [1 4]
    """
    centroids = kmeans(points, num_examples, key, iterations=iterations, present=present).centroids
    points = points.astype(centroids.dtype)

    def step(free: Array, centroid: Array) -> tuple[Array, Array]:
        chosen = jnp.argmin(jnp.where(free, _squares(points, centroid), jnp.inf))
        found = free[chosen]
        return free.at[chosen].set(False), jnp.where(found, chosen, -1).astype(jnp.int32)

    return lax.scan(step, jnp.ones(points.shape[0], bool) if present is None else present, centroids)[1]


def _start(points: Array, num_clusters: int, key: Any, present: Array) -> Array:
    """Points drawn one after the other, by the squared distance to the nearest that is drawn already."""

    def draw(key: Any, squares: Array) -> Array:
        smallest = jnp.finfo(squares.dtype).tiny  # all points may be drawn already, or equal
        return points[
            jax.random.categorical(key, jnp.where(present, jnp.log(jnp.maximum(squares, smallest)), -jnp.inf))
        ]

    def step(carry: tuple[Array, Array], key: Any) -> tuple[tuple[Array, Array], Array]:
        squares, last = carry
        squares = jnp.minimum(squares, _squares(points, last))
        new = draw(key, squares)
        return (squares, new), new

    keys = jax.random.split(key, num_clusters)
    one = draw(keys[0], jnp.ones(points.shape[0], points.dtype))
    start = (jnp.full(points.shape[0], jnp.inf, points.dtype), one)
    return jnp.concatenate([one[None], lax.scan(step, start, keys[1:])[1]])


def _assign(points: Array, centroids: Array) -> tuple[Array, Array]:
    """The nearest centroid of each point, and the squared distance to it."""
    centre = jnp.mean(centroids, axis=0)[None]  # what all have in common would cost digits
    products = jnp.matmul(points - centre, (centroids - centre).T, precision="highest")  # [points, clusters]
    ranks = jnp.sum((centroids - centre) ** 2, axis=1)[None] - 2 * products
    nearest = jnp.argmin(ranks, axis=1).astype(jnp.int32)
    return nearest, jnp.sum((points - centroids[nearest]) ** 2, axis=1)


def _squares(points: Array, centroid: Array) -> Array:
    return jnp.sum((points - centroid[None]) ** 2, axis=1)
