"""K-means clustering of points, and the choice of representative examples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.typing import Leaf


class KMeansResult(NamedTuple):
    """The result of k-means: the centroids, the cluster of each point, and the sum of squared distances after each
    iteration.

    Attributes:
      centroids: Centroids of the clusters, `[clusters, dim]`, in at least float32.
      assignment: Nearest centroid of each point, int32 `[points]`.
      inertia: Sum of squared distances to the nearest centroid, at the start and after each iteration, `[iterations +
        1]`. It never increases.
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
    """Clusters points `[points, dim]` by Lloyd's algorithm from a k-means++ start (Arthur and Vassilvitskii 2007) with
    the random key `key`. `present` is a mask of the points that exist. Returns a `KMeansResult`.

    It may be called inside `jax.jit`. A cluster without points moves to the point that is farthest from its centroid.

    Args:
      points: Points `[points, dim]` of any float dtype.
      num_clusters: Number of clusters, at most the number of points.
      key: Random key of the start. Nothing else is random.
      iterations: Number of iterations of Lloyd's algorithm, which does not stop earlier.
      present: Whether each point exists. Padding belongs to no cluster. None if all exist.

    Raises:
      ValueError: `num_clusters` is below 1 or above the number of points.

    Example:
      >>> points = jnp.array([[0.0], [1.0], [10.0], [11.0]])
      >>> print(jnp.sort(kmeans(points, 2, jax.random.key(0)).centroids[:, 0]))
      [ 0.5 10.5]
    """
    count, width = points.shape
    if not 1 <= num_clusters <= count:
        raise ValueError(f"num_clusters: given {num_clusters}, allowed: 1 to {count}, the number of points")
    points = points.astype(jnp.promote_types(points.dtype, jnp.float32))
    exists = jnp.ones(count, bool) if present is None else present
    real = exists.astype(points.dtype)

    def step(centroids: Array, _: None) -> tuple[Array, Array]:
        nearest, squares = _assign(points, centroids)
        totals = jnp.zeros_like(centroids).at[nearest].add(real[:, None] * points)
        sizes = jnp.zeros(num_clusters, points.dtype).at[nearest].add(real)
        empty = sizes == 0
        farthest = lax.top_k(squares * real, num_clusters)[1]
        farthest_points = points[farthest[jnp.cumsum(empty) - 1]]
        means = totals / jnp.maximum(sizes, 1)[:, None]
        return jnp.where(empty[:, None], farthest_points, means), jnp.sum(squares * real)

    centroids, inertia = lax.scan(step, _start(points, num_clusters, key, exists), None, iterations)
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
    """Selects `num_examples` different points that represent all points, and returns their indices: for each k-means
    cluster the point nearest to its centroid. `present` is a mask of the points that exist.

    A point that is nearest to two centroids represents the first, and the next nearest point represents the second.

    Args:
      points: Features of examples, `[points, dim]`.
      num_examples: Number of points to select, and of clusters. At most the number of points.
      key: Random key of `kmeans`.
      iterations: Number of iterations of `kmeans`.
      present: Whether each point exists. Padding is never selected. None if all exist.

    Returns:
      Indices of the selected points, int32 `[num_examples]`. -1 if fewer points exist.

    Raises:
      ValueError: `num_examples` is below 1 or above the number of points.

    Example:
      >>> points = jnp.array([[0.0], [1.0], [1.5], [10.0], [11.0], [13.0]])
      >>> print(jnp.sort(select_examples(points, 2, jax.random.key(0))))
      [1 4]
    """
    centroids = kmeans(points, num_examples, key, iterations=iterations, present=present).centroids
    points = points.astype(centroids.dtype)

    def step(free: Array, centroid: Array) -> tuple[Array, Array]:
        chosen = jnp.argmin(jnp.where(free, _squares(points, centroid), jnp.inf))
        is_free = free[chosen]
        return free.at[chosen].set(False), jnp.where(is_free, chosen, -1).astype(jnp.int32)

    return lax.scan(step, jnp.ones(points.shape[0], bool) if present is None else present, centroids)[1]


def _start(points: Array, num_clusters: int, key: Any, present: Array) -> Array:
    """Draws the start of k-means++: points one by one, by the squared distance to the nearest point drawn before."""

    def draw(key: Any, squares: Array) -> Array:
        smallest = jnp.finfo(squares.dtype).tiny  # All points may be drawn already, or be equal.
        return points[
            jax.random.categorical(key, jnp.where(present, jnp.log(jnp.maximum(squares, smallest)), -jnp.inf))
        ]

    def step(carry: tuple[Array, Array], key: Any) -> tuple[tuple[Array, Array], Array]:
        squares, last = carry
        squares = jnp.minimum(squares, _squares(points, last))
        new = draw(key, squares)
        return (squares, new), new

    keys = jax.random.split(key, num_clusters)
    first = draw(keys[0], jnp.ones(points.shape[0], points.dtype))
    start = (jnp.full(points.shape[0], jnp.inf, points.dtype), first)
    return jnp.concatenate([first[None], lax.scan(step, start, keys[1:])[1]])


def _assign(points: Array, centroids: Array) -> tuple[Array, Array]:
    """Returns the nearest centroid of each point, and the squared distance to it."""
    centre = jnp.mean(centroids, axis=0)[None]  # Subtracting the mean saves precision.
    products = jnp.matmul(points - centre, (centroids - centre).T, precision="highest")  # [points, clusters]
    ranks = jnp.sum((centroids - centre) ** 2, axis=1)[None] - 2 * products
    nearest = jnp.argmin(ranks, axis=1).astype(jnp.int32)
    return nearest, jnp.sum((points - centroids[nearest]) ** 2, axis=1)


def _squares(points: Array, centroid: Array) -> Array:
    """Computes the squared distances of all points to a centroid."""
    return jnp.sum((points - centroid[None]) ** 2, axis=1)
