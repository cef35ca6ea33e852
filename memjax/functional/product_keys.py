"""Product keys, which choose few rows of a large table of values (see `memjax.functional.table_rows`).

Lample et al. 2019, "Large Memory Layers with Product Keys", https://arxiv.org/abs/1907.05242. Slot `i * keys + j` has
the key `(first[i], second[j])`, so that two searches among `keys` find the best of `keys ** 2` slots.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from memjax.functional.best_entries import best_entries
from memjax.functional.named_operations import operation

__all__ = ["candidate_pairs", "lookup_spread", "select_product_keys", "top_slots"]


SAMPLED = 1 << 14
"""Number of lookups that `lookup_spread` samples."""


def candidate_pairs(num_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs of ranks in two descending lists whose sums can be among the `num_neighbors` largest: an array
    of ranks in the first list, and one of ranks in the second.

    These are the 1-based ranks with `i * j <= num_neighbors`. A pair at the ranks (i, j) is no better than the `i * j`
    pairs at or before it, so that other pairs are not needed: 119 pairs instead of 1,024 for 32 neighbours, and nothing
    is lost.

    Returns:
      0-based ranks in the first and in the second list, in the order of the first, then of the second.

    Example:
      >>> [array.tolist() for array in candidate_pairs(3)]
      [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]
    """
    ranks = np.arange(1, num_neighbors + 1)
    first, second = np.nonzero(ranks[:, None] * ranks[None, :] <= num_neighbors)
    return first.astype(np.int32), second.astype(np.int32)


@operation
def select_product_keys(
    queries: Float[Array, "*batch heads 2 half"], keys: Float[Array, "heads 2 keys half"], num_neighbors: int
) -> tuple[Int[Array, "*batch heads neighbors"], Float[Array, "*batch heads neighbors"]]:
    """Finds exactly the `num_neighbors` slots (i, j) of the largest scores `q_1 . first[i] + q_2 . second[j]`, for each
    query and head. Returns slot numbers and scores. `keys` are both lists of sub-keys.

    Slots are chosen on stopped gradients. Their scores are taken from the two products once more, so that queries and
    keys learn through the chosen slots and no gradient passes through a search.

    Args:
      queries: `[..., heads, 2, half]`, both halves of each head's query.
      keys: `[heads, 2, keys, half]`, both lists of sub-keys of each head.
      num_neighbors: Number of slots per query and head, at most `keys`.

    Returns:
      int32 numbers of slots, `first * keys + second`, best first, and their scores, at least float32.

    Raises:
      ValueError: `num_neighbors` below 1 or above `keys`.

    Example:
      >>> keys = jnp.array([[[[0.0], [1.0], [5.0]], [[2.0], [0.0], [1.0]]]])
      >>> ids, scores = select_product_keys(jnp.ones((1, 2, 1)), keys, 3)
      >>> print(ids, scores)
      [[6 8 7]] [[7. 6. 5.]]
    """
    num_keys = keys.shape[2]
    if not 1 <= num_neighbors <= num_keys:
        raise ValueError(
            f"num_neighbors: given {num_neighbors}, allowed: 1 to {num_keys}, the sub-keys of each half; use more "
            "sub-keys or fewer neighbours"
        )
    dtype = jnp.promote_types(queries.dtype, jnp.float32)
    products = jnp.einsum("...hpd,hpkd->...hpk", queries, keys.astype(queries.dtype), preferred_element_type=dtype)
    best, places = best_entries(lax.stop_gradient(products), num_neighbors)
    first, second = candidate_pairs(num_neighbors)
    sums = best[..., 0, first] + best[..., 1, second]
    chosen = best_entries(sums, num_neighbors)[1]
    pairs = jnp.stack([jnp.asarray(first)[chosen], jnp.asarray(second)[chosen]], axis=-2)  # [..., h, 2, k]
    places = jnp.take_along_axis(places, pairs, axis=-1)
    scores = jnp.take_along_axis(products, places, axis=-1).sum(axis=-2)
    return (places[..., 0, :] * num_keys + places[..., 1, :]).astype(jnp.int32), scores


@operation
def top_slots(ids: Int[Array, "*batch lookups"], weights: Float[Array, "*batch lookups"]) -> Int[Array, "*batch"]:
    """Returns the slot of the largest weight of each token. `ids` are the slots of all its heads. Weights of a slot
    that several heads chose are added up.

    Args:
      ids: int `[..., lookups]`, slots of all heads of a token.
      weights: `[..., lookups]`, weights of these slots.

    Example:
      >>> print(top_slots(jnp.array([[4, 7, 4]]), jnp.array([[0.3, 0.4, 0.2]])))
      [4]
    """
    same = ids[..., :, None] == ids[..., None, :]
    merged = jnp.sum(jnp.where(same, weights[..., None, :], 0), axis=-1)
    best = jnp.argmax(merged, axis=-1)
    return jnp.take_along_axis(ids, best[..., None], axis=-1)[..., 0]


@operation
def lookup_spread(
    ids: Int[Array, "tokens lookups"], weights: Float[Array, "tokens lookups"], num_keys: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Measures how evenly tokens use the slots. Returns the number of slots that were read as a share of the possible
    one, and the divergence of the weights from an even use, 0 to 1.

    Of a long segment, it samples tokens at equal distances with about 16,384 lookups. It needs no array as large
    as the table.

    Args:
      ids: int `[tokens, lookups]`, slots of all heads of a token. Slots from `num_keys ** 2` on stand for padding.
      weights: `[tokens, lookups]`, weights of these slots.
      num_keys: Number of sub-keys of each half.

    Returns:
      The number of slots that were read, as a share of the largest possible number for so many lookups, and the
      distance of the weights from an even use, in nats over `log(num_keys ** 2)`: the divergences of both halves from
      the uniform distribution, whose sum is never more than the divergence of the slots themselves. Both are 0 where
      all is padding.

    Example:
      >>> even, one = jnp.array([[0, 3], [1, 2]]), jnp.array([[3, 3], [3, 3]])
      >>> print(*(f"{number:.2f}" for ids in (even, one) for number in lookup_spread(ids, jnp.full((2, 2), 0.5), 2)))
      1.00 0.00 0.25 1.00
    """
    step, slots = max(1, -(-ids.size // SAMPLED)), num_keys**2
    ids, weights = ids[::step], weights[::step]
    ordered = jnp.sort(ids.ravel())
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    real = ids < slots
    touched, most = (first & (ordered < slots)).sum(), jnp.clip(real.sum(), 1, slots)
    heavy = jnp.where(real, weights, 0).astype(jnp.promote_types(weights.dtype, jnp.float32))
    empty = jnp.zeros(num_keys, heavy.dtype)
    halves = jnp.stack([empty.at[half].add(heavy, mode="drop") for half in (ids // num_keys, ids % num_keys)])
    shares = halves / jnp.maximum(halves.sum(axis=1, keepdims=True), 1e-30)
    known = jnp.where(shares > 0, shares * jnp.log(jnp.where(shares > 0, shares, 1)), 0).sum()  # negative entropies
    even = 2 * math.log(num_keys)
    divergence = jnp.where(real.any() & (even > 0), jnp.maximum(1 + known / max(even, 1e-30), 0), 0)
    return (touched / most).astype(heavy.dtype), divergence
