"""The largest entries of an array: what `lax.top_k` finds, by groups on a CPU."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from memjax.functional.named_operations import operation

__all__ = ["best_entries", "best_groups"]

SMALLEST_GROUP = 16
"""size of a group from which on groups are searched"""


@operation
def best_entries(
    scores: Float[Array, "*batch entries"], number: int
) -> tuple[Float[Array, "*batch best"], Int[Array, "*batch best"]]:
    """Finds the `number` largest scores of the last axis and their places, largest first, and of equal ones the first:
    the result of `lax.top_k`, bit for bit.

    On a CPU, where `lax.top_k` keeps a heap for every row, the largest of each group of neighbouring entries is found
    first, and only the entries of the best groups are compared.

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
    size = _group_size(scores.shape[-1], number)

    def plain(scores: Array) -> tuple[Array, Array]:
        best, places = lax.top_k(scores, number)
        return best, places

    if size < SMALLEST_GROUP:
        return plain(scores)

    def by_groups(scores: Array) -> tuple[Array, Array]:
        best, places = best_groups(scores, number, size)
        best, order = lax.top_k(best, number)
        return best, jnp.take_along_axis(places, order, axis=-1)

    return lax.platform_dependent(scores, cpu=by_groups, default=plain)


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
    *batch, entries = scores.shape
    padding = [(0, 0)] * len(batch) + [(0, -entries % size)]
    grouped = jnp.pad(scores, padding, constant_values=-jnp.inf).reshape(*batch, -1, size)
    _, chosen = lax.top_k(jnp.max(grouped, axis=-1), number)
    chosen = jnp.sort(chosen, axis=-1)[..., None]
    best = jnp.take_along_axis(grouped, chosen, axis=-2)  # [..., number, size]
    places = chosen * size + lax.iota(jnp.int32, size).reshape(*(1,) * (chosen.ndim - 1), size)
    return best.reshape(*batch, -1), places.reshape(*batch, -1)


def _group_size(entries: int, number: int) -> int:
    """Returns the number of entries in a group: a power of 2, with which there are about as many groups as entries in
    the best `number` of them.

    Example:
      >>> _group_size(8192, 32), _group_size(100, 50)
      (16, 1)
    """
    return 2 ** max(0, round(math.log2(entries / number) / 2))
