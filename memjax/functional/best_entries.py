"""The largest entries of an array: what `lax.top_k` finds, by groups and ranks on a CPU."""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from memjax.functional.named_operations import operation

__all__ = ["best_entries", "best_groups"]

SMALLEST_GROUP = 16
"""size of a group from which on groups are searched for more entries than are worth ranking"""
RANKED = 128
"""number of entries of a row up to which every entry is compared with every other one"""
VECTOR = 8
"""integers that a CPU reduces at once; it reduces a longer axis one by one"""
UNROLLED = 4
"""entries of all rows that one pass over the ranks compares"""


@operation
def best_entries(
    scores: Float[Array, "*batch entries"], number: int
) -> tuple[Float[Array, "*batch best"], Int[Array, "*batch best"]]:
    """Finds the `number` largest scores of the last axis and their places, largest first, and of equal ones the first:
    the result of `lax.top_k`, bit for bit.

    On a CPU, where `lax.top_k` keeps a heap for every row on one thread, the largest of each group of neighbouring
    entries is found first, and only the entries of the best groups are compared, until there are so few that the rank
    of each can be counted.

    Args:
      scores: `[..., entries]`, scores. No gradient is defined: select on stopped gradients.
      number: Number of entries to find, 1 to `entries`.

    Returns:
      Scores and int32 places, both `[..., number]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(*best_entries(jnp.array([0.0, 3.0, 9.0, 3.0]), 2))
      [9. 3.] [2 1]
    """

    def plain(scores: Array) -> tuple[Array, Array]:
        best, places = lax.top_k(scores, number)
        return best, places

    return lax.platform_dependent(scores, cpu=lambda scores: _search_on_cpu(scores, number), default=plain)


@operation
def best_groups(
    scores: Float[Array, "*batch entries"], number: int, size: int
) -> tuple[Float[Array, "*batch candidates"], Int[Array, "*batch candidates"]]:
    """Returns the scores and places of all entries in the `number` groups with the largest maxima, by place. A group
    has `size` neighbouring entries.

    Among them are the `number` largest entries. If one of these were in another group, each of the chosen groups would
    hold an entry that is larger, or as large and at an earlier place.

    Args:
      scores: `[..., entries]`, scores.
      number: Number of groups, at most `entries / size`.
      size: Number of entries in a group.

    Returns:
      Scores and int32 places, both `[..., number * size]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(*best_groups(jnp.array([0.0, 3.0, 9.0, 1.0, 4.0, 5.0]), 2, 2))
      [9. 1. 4. 5.] [2 3 4 5]
    """
    return _search_groups(scores, number, size)


def _search_on_cpu(scores: Array, number: int) -> tuple[Array, Array]:
    """Computes `best_entries`, of integers too, in the way that a CPU does fastest."""
    entries = scores.shape[-1]
    if entries <= RANKED:
        return _rank_entries(scores, number)
    size = _group_size(entries, number)
    if size < (2 if number <= RANKED // 2 else SMALLEST_GROUP):
        best, places = lax.top_k(scores, number)
        return best, places
    best, places = _search_groups(scores, number, size)
    best, order = _search_on_cpu(best, number)
    return best, jnp.take_along_axis(places, order, axis=-1)


def _search_groups(scores: Array, number: int, size: int) -> tuple[Array, Array]:
    """Computes `best_groups`, of integers too."""
    *batch, entries = scores.shape
    lowest = jnp.iinfo(scores.dtype).min if jnp.issubdtype(scores.dtype, jnp.integer) else -jnp.inf
    padding = [(0, 0)] * len(batch) + [(0, -entries % size)]
    padded = jnp.pad(scores, padding, constant_values=lowest)
    grouped = padded.reshape(*batch, -1, size)
    chosen = lax.platform_dependent(
        padded,
        cpu=lambda padded: _search_on_cpu(_group_maxima(padded, size), number)[1],
        default=lambda padded: lax.top_k(jnp.max(padded.reshape(*batch, -1, size), axis=-1), number)[1],
    )
    chosen = jnp.sort(chosen, axis=-1)[..., None]
    best = jnp.take_along_axis(grouped, chosen, axis=-2)  # [..., number, size]
    places = chosen * size + lax.iota(jnp.int32, size).reshape(*(1,) * (chosen.ndim - 1), size)
    return best.reshape(*batch, -1), places.reshape(*batch, -1)


def _group_maxima(scores: Array, size: int) -> Array:
    """Returns the largest entry of each group as an integer, so that neither the sign of a NaN nor that of 0 is lost.

    Args:
      scores: `[..., groups * size]`.
      size: Number of entries in a group.
    """
    vector = math.gcd(size, VECTOR)
    # In one step from the flat axis: XLA would put the two axes of a group together again.
    return jnp.max(_sortable(scores).reshape(*scores.shape[:-1], -1, size // vector, vector), axis=(-2, -1))


def _rank_entries(scores: Array, number: int) -> tuple[Array, Array]:
    """Computes `best_entries` by counting how many entries stand before each, and by finding the entry of each rank.
    Both loops compare one entry of every row with all others, which runs on all threads.
    """
    *batch, entries = scores.shape
    keys, passes = _sortable(scores), -(-entries // UNROLLED)
    slots, wanted = (lax.iota(jnp.int32, length).reshape(*(1,) * len(batch), -1) for length in (entries, number))
    no_padding, padding = [(0, 0)] * len(batch), (0, passes * UNROLLED - entries)

    def each(array: Array, one_pass: Array) -> list[tuple[Array, Array]]:
        """The places of a pass, and the entries of all rows there, `[..., 1]`."""
        places = [one_pass * UNROLLED + further for further in range(UNROLLED)]
        return [(place, lax.dynamic_slice_in_dim(array, place, 1, axis=-1)) for place in places]

    padded = jnp.pad(keys, [*no_padding, padding], constant_values=jnp.iinfo(keys.dtype).min)

    def count(one_pass: Array, ranks: Array) -> Array:
        for place, other in each(padded, one_pass):
            ranks = ranks + jnp.where(place < slots, other >= keys, other > keys).astype(ranks.dtype)
        return ranks

    ranks = lax.fori_loop(0, passes, count, jnp.zeros(scores.shape, jnp.int32))
    ranks = jnp.pad(ranks, [*no_padding, padding], constant_values=entries)

    def find(one_pass: Array, best: Array) -> Array:
        for place, rank in each(ranks, one_pass):
            best = jnp.where(rank == wanted, place, best)
        return best

    best = lax.fori_loop(0, passes, find, jnp.zeros((*batch, number), jnp.int32))
    return jnp.take_along_axis(scores, best, axis=-1), best


def _sortable(scores: Array) -> Array:
    """Returns integers in the order that `lax.top_k` has: -0 below 0, and NaN above infinity.

    Example:
      >>> print(_sortable(jnp.array([0.0, -0.0, 1.0])))
      [         0         -1 1065353216]
    """
    if jnp.issubdtype(scores.dtype, jnp.integer):
        return scores
    bits = np.dtype(f"int{8 * scores.dtype.itemsize}")
    whole = lax.bitcast_convert_type(scores, bits)
    return whole ^ (lax.shift_right_arithmetic(whole, jnp.asarray(8 * bits.itemsize - 1, bits)) & np.iinfo(bits).max)


def _group_size(entries: int, number: int) -> int:
    """Returns the number of entries in a group: a power of 2, with which there are about as many groups as entries in
    the best `number` of them.

    Example:
      >>> _group_size(8192, 32), _group_size(100, 50)
      (16, 1)
    """
    return 2 ** max(0, round(math.log2(entries / number) / 2))
