"""State of a Memorizing Transformer's attention: a local cache, and a ring of keys and values."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from memjax.axes import MODEL, axes_of
from memjax.functional.fifo import order_after
from memjax.functional.sharded import sharded_restore, sharded_save
from memjax.typing import Leaf, Rows, tree_dataclass

__all__ = ["KeyValueMemory", "MemorizingState", "TokenProjections"]


@tree_dataclass
class TokenProjections:
    """Keys and values of consecutive tokens, oldest first: the local cache, or one segment.

    Attributes:
      keys: `[batch, tokens, heads, head_dim]`, normalised where the part normalises keys.
      values: `[batch, tokens, heads, head_dim]`.
      valid: bool `[batch, tokens]`, real tokens of the running document.
      positions: int32 `[batch, tokens]`, position of each token in its document. `EmptyState` if not tracked.
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", None, "heads", None))
    valid: Leaf
    positions: Leaf


@tree_dataclass
class KeyValueMemory:
    """Long memory of (key, value) pairs, stored as a ring, from which queries retrieve their neighbours.

    Attributes:
      keys: `[batch, heads, memory, head_dim]`.
      values: `[batch, heads, memory, head_dim]`.
      valid: bool `[batch, memory]`, slots that hold a token of the running document.
      positions: int32 `[batch, memory]`, document position of each slot's token. `EmptyState` if not tracked.
      cursor: int32 `[batch]`, slot that is written next. It holds the oldest pair.
      slot_axis: Name of the mesh axis over which the slots are split. Empty if they are not split (static).
    """

    keys: Leaf = dataclasses.field(metadata=axes_of("batch", "memory_heads", "memory", None))
    values: Leaf = dataclasses.field(metadata=axes_of("batch", "memory_heads", "memory", None))
    valid: Leaf = dataclasses.field(metadata=axes_of("batch", "memory"))
    positions: Leaf = dataclasses.field(metadata=axes_of("batch", "memory"))
    cursor: Leaf
    slot_axis: str = dataclasses.field(default="", metadata={"static": True})

    @property
    def mesh_axes(self) -> dict[str, str]:
        """Names of the mesh axes over which the slots, or if they are not split the heads, of keys and values are."""
        return {"slot_axis": self.slot_axis, "head_axis": "" if self.slot_axis else MODEL}

    def save(self, start_of_document: Rows, length: int) -> tuple[KeyValueMemory, SavedWindow]:
        """Returns this memory, to use from now on, and a `SavedWindow` of the slots that a segment of `length` tokens
        will overwrite.

        See `memjax.memory.interface.save_state`.
        """
        slots = self.valid.shape[1]
        window = min(length, slots)
        start = (jnp.where(start_of_document, 0, self.cursor) + length - window) % slots
        take = lambda ring: sharded_save(ring, start, window, slot_axis=self.slot_axis, axis=2)
        saved = SavedWindow(take(self.keys), take(self.values), start, self.valid, self.positions, self.cursor)
        # The write depends on this cursor: it comes after these reads, and so needs no copy of the ring.
        return dataclasses.replace(self, cursor=order_after(self.cursor, saved.keys, saved.values)), saved

    def restore(self, ok: Bool[Array, ""], saved: SavedWindow) -> KeyValueMemory:
        """Returns this memory if the scalar `ok` is True, else the memory before the segment, of which only the slots
        of the `SavedWindow` are written back.
        """
        rows = jnp.broadcast_to(~ok, saved.start.shape)
        put = lambda ring, window: sharded_restore(ring, window, saved.start, rows, **self.mesh_axes, axis=2)
        valid, positions, cursor = jax.tree.map(
            lambda new, old: jnp.where(ok, new, old),
            (self.valid, self.positions, self.cursor),
            (saved.valid, saved.positions, saved.cursor),
        )
        keys, values = put(self.keys, saved.keys), put(self.values, saved.values)
        return KeyValueMemory(keys, values, valid, positions, cursor, self.slot_axis)


@tree_dataclass
class SavedWindow:
    """Keys and values of the slots that a segment overwrites, and the validity of all slots, saved beforehand.

    `KeyValueMemory.restore` undoes a segment with them, after a skipped step.

    Attributes:
      keys: `[batch, heads, length, head_dim]`, keys of the overwritten slots. If the slots are split over devices,
        every device has `length` keys (see `sharded_save`).
      values: `[batch, heads, length, head_dim]`, values of the overwritten slots.
      start: int32 `[batch]`, first slot that is overwritten.
      valid: bool `[batch, memory]`, validity of all slots.
      positions: int32 `[batch, memory]`, document positions of all slots.
      cursor: int32 `[batch]`, slot that is written next.
    """

    keys: Leaf
    values: Leaf
    start: Leaf
    valid: Leaf
    positions: Leaf
    cursor: Leaf


@tree_dataclass
class MemorizingState:
    """State of the attention of one layer of a Memorizing Transformer: its cache, its long memory and the position in
    the document.

    Attributes:
      cache: `TokenProjections` of the last `cache_length` positions. `EmptyState` for none.
      memory: `KeyValueMemory`. `EmptyState` for none.
      document_position: int32 `[batch]`, number of tokens of the document read so far. `EmptyState` if not tracked.
    """

    cache: Any
    memory: Any
    document_position: Any
