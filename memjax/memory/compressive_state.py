"""The states of a Compressive Transformer, and the slots that it evicts and compresses."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from memjax.typing import Leaf, tree_dataclass

__all__ = ["AttentionUsage", "CompressiveState"]


@tree_dataclass
class AttentionUsage:
    """Attention that each slot of the ordinary memory has received since it was written, and the number of queries that
    could attend to it.

    Attributes:
      attention: `[batch, memory]`, attention weights summed over queries and averaged over heads.
      queries: int32 `[batch, memory]`, number of real queries that could attend to the slot.
    """

    attention: Leaf
    queries: Leaf


@tree_dataclass
class CompressiveState:
    """State of one layer: its inputs at the last `memory` positions, and compressed older inputs, both oldest first.

    Attributes:
      hidden: `[batch, memory, dim]`, remembered hidden states.
      valid: bool `[batch, memory]`, slots that hold a token of the running document.
      compressed: `[batch, compressed, dim]`, compressed hidden states.
      compressed_valid: bool `[batch, compressed]`, slots that stand for tokens of the running document only.
      phase: int32 `[batch]`, number of tokens of the document written so far, modulo the compression rate. It
        says where windows begin if segments are not whole windows.
      usage: `AttentionUsage` of the ordinary memory for the compression 'most_used'. `EmptyState` for all others.
    """

    hidden: Leaf
    valid: Leaf
    compressed: Leaf
    compressed_valid: Leaf
    phase: Leaf
    usage: Any


class EvictedSlots(NamedTuple):
    """Hidden states that are compressed when one segment is appended, in whole windows, oldest first.

    Attributes:
      hidden: `[batch, windows * rate, dim]`, hidden states, 0 in slots that are not valid.
      valid: bool `[batch, windows * rate]`, slots that hold a token of the running document.
      usage: `[batch, windows * rate]`, mean attention of a query and head to each slot. None if not recorded.
      start: int32 `[batch]`, position of the first of these slots in `memory ++ segment`. None for 0.
      last: bool `[batch]`, rows whose last window is compressed now. None for all rows.
    """

    hidden: Array
    valid: Array
    usage: Array | None
    start: Array | None
    last: Array | None

    def precedes(self, stands_for: Array, length: int, memory_length: int) -> Array:
        """Returns which queries of a segment come at or after the last evicted slot that is marked in `stands_for`,
        bool `[batch, slots]`. The result is bool `[#batch, length]`.

        A query at the position of the last compressed token counts too. All queries count where the memory is as long
        as the segment and windows end with it.
        """
        # Earlier queries would learn to read what comes after them, which no query does.
        first = jnp.zeros((1,), jnp.int32) if self.start is None else self.start
        positions = first[:, None] + jnp.arange(stands_for.shape[1], dtype=jnp.int32)[None, :]
        last = jnp.where(stands_for, positions, -1).max(axis=1)
        return memory_length + jnp.arange(length, dtype=jnp.int32)[None, :] >= last[:, None]

    def places(self, slots: Array) -> Array:
        """Returns the entries at the places of the evicted slots of any array `slots` over memory and segment, `[batch,
        memory + length, ...]`.
        """
        return take_slots(slots, self.start, self.hidden.shape[1])


class CompressedSlots(NamedTuple):
    """Compressed slots that were made of the evicted slots of one segment, and which of both are valid.

    Attributes:
      slots: `[batch, windows, dim]`, compressed hidden states.
      valid: bool `[batch, windows]`, compressed slots to keep.
      stands_for: bool `[batch, windows * rate]`, evicted slots that the valid compressed slots stand for.
    """

    slots: Array
    valid: Array
    stands_for: Array


def take_slots(slots: Array, start: Array | None, amount: int) -> Array:
    """Takes `amount` consecutive entries of each row. Entries beyond the end repeat the last one."""
    if start is None:
        return slots[:, :amount]
    indices = jnp.minimum(start[:, None] + jnp.arange(amount, dtype=start.dtype)[None, :], slots.shape[1] - 1)
    return jax.vmap(lambda row, place: jnp.take(row, place, axis=0, mode="clip"))(slots, indices)
