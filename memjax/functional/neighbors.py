"""Search for the best-matching slots of a memory, for every query, row and head.

Slots are chosen on stopped gradients. Queries learn through the softmax over the retrieved keys: either the caller
scores them again, or it takes the scores of the search (`neighbor_scores`).
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.functional.best_entries import best_entries
from memjax.functional.named_operations import operation

__all__ = ["gather_slots", "neighbor_scores", "select_neighbors", "select_scored_neighbors", "threshold_mask"]


@operation
def select_neighbors(
    queries: Float[Array, "batch heads length head_dim"],
    keys: Float[Array, "batch heads memory head_dim"],
    valid: Bool[Array, "batch memory"],
    num_neighbors: int,
    *,
    method: Literal["exact", "approximate", "bucket"] = "exact",
    recall_target: float = 0.95,
    head_chunks: int = 1,
    query_chunks: int = 1,
) -> tuple[Int[Array, "batch heads length neighbors"], Bool[Array, "batch heads length neighbors"]]:
    """Finds for every query the `num_neighbors` slots of its row and head with the largest inner products. Returns slot
    numbers and which are real, both `[batch, heads, length, neighbors]`. Chunks are groups that are searched one after
    the other.

    Args:
      queries: `[batch, heads, length, head_dim]`, queries.
      keys: `[batch, heads, memory, head_dim]`, keys of the slots.
      valid: bool `[batch, memory]`, slots that hold something.
      num_neighbors: Number of slots per query, at most `memory`.
      method: Search method. "exact" is `lax.top_k`, best first. "approximate" is `lax.approx_max_k`, fast on TPUs and
        exact elsewhere. "bucket" takes the best slot of each of `num_neighbors` buckets (slot number modulo
        `num_neighbors`), the form of the Memorizing Transformer's code. It finds `1 - (1 - 1/k) ** k`, about 63 %, of
        the true neighbours.
      recall_target: Expected share of true neighbours that "approximate" finds.
      head_chunks: Number of groups of heads that are searched one after the other, to bound memory.
      query_chunks: Number of groups of queries of a segment that are searched one after the other, to bound memory.

    Returns:
      ids: int32 `[batch, heads, length, neighbors]`, slot numbers.
      valid: bool, neighbours that are real. False where fewer slots (of a bucket) are valid than `num_neighbors`.

    Raises:
      ValueError: `num_neighbors` below 1 or above `memory`, an unknown method, or chunks that do not divide the axis.

    Example:
      >>> import jax.numpy as jnp
      >>> keys = jnp.array([0.0, 3.0, 9.0, 2.0]).reshape(1, 1, 4, 1)
      >>> ids, real = select_neighbors(jnp.ones((1, 1, 1, 1)), keys, jnp.array([[True, True, False, True]]), 2)
      >>> print(ids.ravel(), real.ravel())
      [1 3] [ True  True]
    """
    search = {
        "method": method,
        "recall_target": recall_target,
        "head_chunks": head_chunks,
        "query_chunks": query_chunks,
    }
    return select_scored_neighbors(queries, keys, valid, num_neighbors, **search)[:2]


@operation
def select_scored_neighbors(
    queries: Float[Array, "batch heads length head_dim"],
    keys: Float[Array, "batch heads memory head_dim"],
    valid: Bool[Array, "batch memory"],
    num_neighbors: int,
    *,
    method: Literal["exact", "approximate", "bucket"] = "exact",
    recall_target: float = 0.95,
    head_chunks: int = 1,
    query_chunks: int = 1,
) -> tuple[
    Int[Array, "batch heads length neighbors"],
    Bool[Array, "batch heads length neighbors"],
    Float[Array, "batch heads length neighbors"],
]:
    """Finds neighbours as `select_neighbors` does. Returns slot numbers, which are real, and the inner products of
    queries and slots, all `[batch, heads, length, neighbors]` and without gradient (`neighbor_scores` gives them one).

    Args:
      queries: `[batch, heads, length, head_dim]`, queries.
      keys: `[batch, heads, memory, head_dim]`, keys of the slots.
      valid: bool `[batch, memory]`, slots that hold something.
      num_neighbors: Number of slots per query, at most `memory`.
      method: Search method. See `select_neighbors`.
      recall_target: Expected share of true neighbours that "approximate" finds.
      head_chunks: Number of groups of heads that are searched one after the other, to bound memory.
      query_chunks: Number of groups of queries of a segment that are searched one after the other, to bound memory.

    Returns:
      ids: int32 `[batch, heads, length, neighbors]`, slot numbers.
      valid: bool, neighbours that are real.
      scores: Inner products in at least float32. -inf for a neighbour that is not real.

    Example:
      >>> import jax.numpy as jnp
      >>> keys = jnp.array([0.0, 3.0, 9.0, 2.0]).reshape(1, 1, 4, 1)
      >>> valid = jnp.array([[True, True, False, True]])
      >>> print(select_scored_neighbors(jnp.ones((1, 1, 1, 1)), keys, valid, 2)[2].ravel())
      [3. 2.]
    """
    heads, length = queries.shape[1:3]
    _check_neighbors(num_neighbors, keys.shape[2])
    _check_chunks("head_chunks", head_chunks, "heads", heads)
    _check_chunks("query_chunks", query_chunks, "queries", length)
    queries, keys = lax.stop_gradient(queries), lax.stop_gradient(keys)

    def select(queries: Array, keys: Array) -> tuple[Array, Array, Array]:
        return _select(queries, keys, valid, num_neighbors, method, recall_target)

    def over_queries(queries: Array, keys: Array) -> tuple[Array, Array, Array]:
        return _map_chunks(lambda part: select(part, keys), queries, query_chunks, axis=2)

    if head_chunks == 1:
        return over_queries(queries, keys)
    return _map_chunks(lambda part: over_queries(*part), (queries, keys), head_chunks, axis=1)


@operation
def neighbor_scores(
    queries: Float[Array, "batch heads length head_dim"],
    keys: Float[Array, "batch heads memory head_dim"],
    ids: Int[Array, "batch heads length neighbors"],
    valid: Bool[Array, "batch heads length neighbors"],
    scores: Float[Array, "batch heads length neighbors"],
) -> Float[Array, "batch heads length neighbors"]:
    """Returns the scores that a search has found, as if they were computed here: with their gradient to the queries.
    The keys of the slots, which get no gradient, are gathered in the backward pass alone.

    Args:
      queries: `[batch, heads, length, head_dim]`, queries of the search.
      keys: `[batch, heads, memory, head_dim]`, keys of the slots.
      ids: int `[batch, heads, length, neighbors]`, slots of the neighbours. See `select_scored_neighbors`.
      valid: bool `[batch, heads, length, neighbors]`, neighbours that are real. The others may hold anything.
      scores: `[batch, heads, length, neighbors]`, inner products of queries and neighbours.

    Example:
      >>> import jax
      >>> queries, keys = jnp.ones((1, 1, 1, 1)), jnp.array([0.0, 3.0, 9.0, 2.0]).reshape(1, 1, 4, 1)
      >>> ids, real, scores = select_scored_neighbors(queries, keys, jnp.ones((1, 4), bool), 2)
      >>> print(jax.grad(lambda queries: neighbor_scores(queries, keys, ids, real, scores).sum())(queries).ravel())
      [12.]
    """
    return _scores_found(queries, lax.stop_gradient(keys), ids, valid, lax.stop_gradient(scores))


@jax.custom_vjp
def _scores_found(queries: Array, keys: Array, ids: Array, valid: Array, scores: Array) -> Array:
    return scores


def _scores_found_forward(*arguments: Array) -> tuple[Array, tuple[Array, ...]]:
    queries, keys, ids, valid, scores = arguments
    return scores, (queries[..., :0, :], keys, ids, valid)  # of the queries only the dtype


def _scores_found_backward(residuals: tuple[Array, ...], gradient: Array) -> tuple[Any, ...]:
    queries, keys, ids, valid = residuals
    near = jnp.where(valid[..., None], gather_slots(keys, ids), 0)
    weights = jnp.where(valid, gradient, 0)
    to_queries = jnp.einsum("bhlk,bhlkd->bhld", weights.astype(near.dtype), near, preferred_element_type=gradient.dtype)
    return to_queries.astype(queries.dtype), None, None, None, None


_scores_found.defvjp(_scores_found_forward, _scores_found_backward)


@operation
def gather_slots(
    slots: Float[Array, "batch heads memory dim"], ids: Int[Array, "batch heads length neighbors"]
) -> Float[Array, "batch heads length neighbors dim"]:
    """Gathers the contents of the slots with the numbers `ids`, such as keys or values: `[batch, heads, length,
    neighbors, dim]`.

    Args:
      slots: `[batch, heads, memory, dim]`, contents of all slots.
      ids: int `[batch, heads, length, neighbors]`, slot numbers of the same row and head.

    Returns:
      `[batch, heads, length, neighbors, dim]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(gather_slots(jnp.array([5.0, 6.0, 7.0]).reshape(1, 1, 3, 1), jnp.array([[[[2, 0]]]])).ravel())
      [7. 5.]
    """
    pick = jax.vmap(jax.vmap(lambda slots, ids: jnp.take(slots, ids, axis=0, mode="clip")))
    return pick(slots, ids)


@operation
def threshold_mask(
    scores: Float[Array, "batch heads length memory"], valid: Bool[Array, "batch memory"], num_neighbors: int
) -> Bool[Array, "batch heads length memory"]:
    """Returns a mask `[batch, heads, length, memory]` of the slots that score at least as much as the
    `num_neighbors`-th best valid one of each query: top-k without a gather. `valid` is `[batch, memory]`.

    A masked softmax over all slots with this mask is attention over the exact neighbours (slots that tie with the last
    of them are all included).

    Args:
      scores: `[batch, heads, length, memory]`, scores. No gradient flows from here.
      valid: bool `[batch, memory]`, slots that hold something.
      num_neighbors: Number of slots per query, at most `memory`.

    Returns:
      bool `[batch, heads, length, memory]`. All valid slots where there are fewer than `num_neighbors`.

    Raises:
      ValueError: `num_neighbors` below 1 or above `memory`.

    Example:
      >>> import jax.numpy as jnp
      >>> scores = jnp.array([0.0, 3.0, 9.0, 2.0]).reshape(1, 1, 1, 4)
      >>> print(threshold_mask(scores, jnp.array([[True, True, False, True]]), 2).ravel())
      [False  True False  True]
    """
    _check_neighbors(num_neighbors, scores.shape[-1])
    valid = valid[:, None, None, :]
    scores = jnp.where(valid, lax.stop_gradient(scores), -jnp.inf)
    # The minimum and not the last entry of top_k: XLA turns a slice of top_k into a full sort (60 times slower).
    threshold = jnp.min(best_entries(scores, num_neighbors)[0], axis=-1, keepdims=True)
    return valid & (scores >= threshold)


def _select(
    queries: Array, keys: Array, valid: Array, num_neighbors: int, method: str, recall_target: float
) -> tuple[Array, Array, Array]:
    def select_all(queries: Array, keys: Array, valid: Array) -> tuple[Array, Array, Array]:
        dtype = jnp.promote_types(jnp.promote_types(queries.dtype, keys.dtype), jnp.float32)
        scores = jnp.einsum("bhld,bhmd->bhlm", queries, keys, preferred_element_type=dtype)
        scores = jnp.where(valid[:, None, None, :], scores, -jnp.inf)
        if method == "bucket":
            best, ids = _best_of_buckets(scores, num_neighbors)
        elif method == "approximate":
            best, ids = lax.approx_max_k(scores, num_neighbors, recall_target=recall_target)
        else:
            best, ids = best_entries(scores, num_neighbors)
        return ids.astype(jnp.int32), best > -jnp.inf, best

    if not jax.sharding.get_abstract_mesh().empty:  # rows and heads may live on different devices
        return select_all(queries, keys, valid)
    # On a CPU one row and head at a time takes half as long: the scores of all would need new memory every time.
    return lax.platform_dependent(
        queries, keys, valid, cpu=functools.partial(_by_row_and_head, select_all), default=select_all
    )


def _by_row_and_head(
    select: Callable[[Array, Array, Array], tuple[Array, Array, Array]], queries: Array, keys: Array, valid: Array
) -> tuple[Array, Array, Array]:
    """Applies `select` to one row and head after the other."""
    batch, heads = queries.shape[:2]
    select_one = lambda part: select(part[0][None, None], part[1][None, None], part[2][None])
    rows = jnp.repeat(valid, heads, axis=0, total_repeat_length=batch * heads)
    flat = (queries.reshape(-1, *queries.shape[2:]), keys.reshape(-1, *keys.shape[2:]), rows)
    return jax.tree.map(lambda x: x.reshape(batch, heads, *x.shape[3:]), lax.map(select_one, flat))


def _best_of_buckets(scores: Array, num_buckets: int) -> tuple[Array, Array]:
    """Finds the largest score of each bucket `slot % num_buckets`, and its slot number."""
    *lead, memory = scores.shape
    rounds = -(-memory // num_buckets)
    scores = jnp.pad(
        scores, [(0, 0)] * len(lead) + [(0, rounds * num_buckets - memory)], constant_values=-jnp.inf
    ).reshape(*lead, rounds, num_buckets)
    best = jnp.max(scores, axis=-2)
    # The first row that reaches the maximum: half the time of argmax on CPUs.
    row = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 2)
    row = jnp.min(jnp.where(scores == best[..., None, :], row, rounds - 1), axis=-2)
    return best, row * num_buckets + lax.broadcasted_iota(jnp.int32, best.shape, best.ndim - 1)


def _map_chunks(function, arrays, chunks: int, axis: int):
    """Applies `function` to equal parts of `axis` one after the other, and concatenates the results along `axis`."""
    if chunks == 1:
        return function(arrays)

    def split(x: Array) -> Array:
        parts = x.reshape(*x.shape[:axis], chunks, x.shape[axis] // chunks, *x.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, axis)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(join, lax.map(function, jax.tree.map(split, arrays)))


def _check_neighbors(num_neighbors: int, memory: int) -> None:
    if not 1 <= num_neighbors <= memory:
        raise ValueError(f"num_neighbors: given {num_neighbors}, allowed: 1 to {memory}, the slots of the memory")


def _check_chunks(name: str, chunks: int, what: str, size: int) -> None:
    if chunks < 1 or size % chunks:
        raise ValueError(f"{name}: given {chunks}, allowed: a divisor of the {size} {what}")
