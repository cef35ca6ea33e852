"""First-in first-out memories of fixed size: right-aligned ones that shift, and rings that overwrite.

A ring keeps entry number n of a row at slot `n % capacity`; the row's cursor is the slot that is written next.
Rings are written in place when their buffer is donated: only the window that changes is touched.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped

__all__ = [
    "advance",
    "read_window",
    "reset_rows",
    "ring_ages",
    "ring_append",
    "ring_order",
    "select_window",
    "shift_append",
    "write_window",
]


def shift_append(
    slots: Shaped[Array, "batch memory *rest"], new: Shaped[Array, "batch length *rest"]
) -> Shaped[Array, "batch memory *rest"]:
    """The last `memory` entries of `slots ++ new`: the newest entry is always in the last slot.

    Args:
      slots: `[batch, memory, ...]`, oldest first.
      new: `[batch, length, ...]`, oldest first; only its last `memory` entries are kept where it is longer.

    Returns:
      `[batch, memory, ...]` in the dtype of `slots`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(shift_append(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]])))
      [[3 4 5]]
    """
    memory, length = slots.shape[1], new.shape[1]
    new = new.astype(slots.dtype)
    if length >= memory:
        return new[:, length - memory :]
    return jnp.concatenate([slots[:, length:], new], axis=1)


def ring_append(
    slots: Shaped[Array, "..."],
    new: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    active: Bool[Array, " batch"] | None = None,
    *,
    axis: int = 1,
    aligned: bool = False,
) -> Shaped[Array, "..."]:
    """Writes `new` into each row's ring from its cursor on, wrapping around; the cursor is moved by `advance`.

    Args:
      slots: the ring, `[batch, ..., memory, ...]` with the slots at `axis`.
      new: as `slots` with `length` entries at `axis`, oldest first. Where `length` exceeds `memory` only the last
        `memory` entries are written, each at the slot it would have reached.
      cursor: int32 `[batch]`, the slot that the first entry goes to, `0 <= cursor < memory`.
      active: bool `[batch]`; the other rows stay bit for bit. None = all rows are written.
      axis: the slot axis, 1 or more.
      aligned: promise that every cursor is a multiple of `length`, so that one window is written per row.

    Returns:
      The ring after writing, in the dtype of `slots`.

    Raises:
      ValueError: `aligned` although `memory` is not a multiple of `length`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ring_append(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]]), jnp.array([2])))
      [[5 2 4]]
    """
    memory, length = slots.shape[axis], new.shape[axis]
    if length > memory:
        new = lax.slice_in_dim(new, length - memory, length, axis=axis)
        cursor = (cursor + length - memory) % memory
    if active is not None:
        old = read_window(slots, cursor, new.shape[axis], axis=axis, aligned=aligned)
        new = jnp.where(_per_row(active, new.ndim), new.astype(slots.dtype), old)
    return write_window(slots, new, cursor, axis=axis, aligned=aligned)


def read_window(
    slots: Shaped[Array, "..."], cursor: Int[Array, " batch"], length: int, *, axis: int = 1, aligned: bool = False
) -> Shaped[Array, "..."]:
    """The `length` slots of each row from its cursor on, wrapping around.

    Args:
      slots: the ring with the slots at `axis`.
      cursor: int32 `[batch]`.
      length: slots to read, at most `memory`.
      axis: the slot axis.
      aligned: promise that every cursor is a multiple of `length`.

    Returns:
      As `slots` with `length` slots at `axis`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(read_window(jnp.array([[1, 2, 3]]), jnp.array([2]), 2))
      [[3 1]]
    """
    _check_window(slots.shape[axis], length, aligned)
    if aligned:
        return jax.vmap(lambda row, start: lax.dynamic_slice_in_dim(row, start, length, axis - 1))(slots, cursor)
    places = _window_slots(cursor, length, slots.shape[axis])
    return jax.vmap(lambda row, place: jnp.take(row, place, axis=axis - 1, mode="clip"))(slots, places)


def write_window(
    slots: Shaped[Array, "..."],
    new: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    *,
    axis: int = 1,
    aligned: bool = False,
) -> Shaped[Array, "..."]:
    """Overwrites the slots of each row from its cursor on with `new`, wrapping around.

    Args:
      slots: the ring with the slots at `axis`.
      new: as `slots` with at most `memory` entries at `axis`.
      cursor: int32 `[batch]`.
      axis: the slot axis.
      aligned: promise that every cursor is a multiple of the number of entries.

    Returns:
      The ring after writing, in the dtype of `slots`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(write_window(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]]), jnp.array([2])))
      [[5 2 4]]
    """
    memory, length = slots.shape[axis], new.shape[axis]
    _check_window(memory, length, aligned)
    new = new.astype(slots.dtype)
    if aligned:
        return jax.vmap(lambda row, entries, start: lax.dynamic_update_slice_in_dim(row, entries, start, axis - 1))(
            slots, new, cursor
        )
    index = (slice(None),) * (axis - 1)
    return jax.vmap(lambda row, entries, place: row.at[(*index, place)].set(entries, unique_indices=True))(
        slots, new, _window_slots(cursor, length, memory)
    )


def select_window(
    ok: Bool[Array, "*rows"],
    new: Shaped[Array, "..."],
    old: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    length: int,
    *,
    axis: int = 1,
    aligned: bool = False,
) -> Shaped[Array, "..."]:
    """`where(ok, new, old)` for two rings that differ only in the window just written, touching only that window.

    Args:
      ok: bool scalar (or `[batch]`), whether the write is kept.
      new: the ring after `ring_append`.
      old: the ring before it.
      cursor: int32 `[batch]`, the cursor before it.
      length: entries that were written.
      axis: the slot axis.
      aligned: as it was for `ring_append`.

    Returns:
      `new` where `ok`, with the contents of `old` otherwise.

    Example:
      >>> import jax.numpy as jnp
      >>> old, cursor = jnp.array([[1, 2, 3]]), jnp.array([2])
      >>> new = ring_append(old, jnp.array([[4, 5]]), cursor)
      >>> print(select_window(jnp.array(False), new, old, cursor, 2))
      [[1 2 3]]
    """
    memory = new.shape[axis]
    if length > memory:
        length, cursor = memory, (cursor + length - memory) % memory
    before = read_window(old, cursor, length, axis=axis, aligned=aligned)
    after = read_window(new, cursor, length, axis=axis, aligned=aligned)
    return write_window(new, jnp.where(_per_row(ok, new.ndim), after, before), cursor, axis=axis, aligned=aligned)


def advance(cursor: Int[Array, " batch"], amount: int | Int[Array, " batch"], capacity: int) -> Int[Array, " batch"]:
    """The cursor after `amount` entries were written, `(cursor + amount) % capacity`.

    Args:
      cursor: int32 `[batch]`.
      amount: entries written, one number or one per row (0 for rows that were idle).
      capacity: slots of the ring.

    Returns:
      int32 `[batch]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(advance(jnp.array([2, 2]), jnp.array([2, 0]), 3))
      [1 2]
    """
    return ((cursor + amount) % capacity).astype(cursor.dtype)


def ring_order(cursor: Int[Array, " batch"], capacity: int) -> Int[Array, "batch memory"]:
    """The slots of each row from the oldest entry (which is overwritten next) to the newest.

    Args:
      cursor: int32 `[batch]`.
      capacity: slots of the ring.

    Returns:
      int32 `[batch, capacity]`, slot numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ring_order(jnp.array([1]), 3))
      [[1 2 0]]
    """
    return _window_slots(cursor, capacity, capacity)


def ring_ages(cursor: Int[Array, " batch"], capacity: int) -> Int[Array, "batch memory"]:
    """How many entries were written after the one in each slot (0 = the newest), whether the slot is valid or not.

    Args:
      cursor: int32 `[batch]`.
      capacity: slots of the ring.

    Returns:
      int32 `[batch, capacity]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ring_ages(jnp.array([1]), 3))
      [[0 2 1]]
    """
    return (cursor[:, None] - 1 - jnp.arange(capacity, dtype=cursor.dtype)[None, :]) % capacity


def reset_rows(
    valid: Bool[Array, "batch *rest"], start_of_document: Bool[Array, " batch"]
) -> Bool[Array, "batch *rest"]:
    """Marks every slot of the rows that start a document as empty.

    Args:
      valid: bool `[batch, ...]`.
      start_of_document: bool `[batch]`.

    Returns:
      bool `[batch, ...]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(reset_rows(jnp.ones((2, 2), bool), jnp.array([True, False])))
      [[False False]
       [ True  True]]
    """
    return valid & ~_per_row(start_of_document, valid.ndim)


def _check_window(memory: int, length: int, aligned: bool) -> None:
    if length > memory:
        raise ValueError(f"length: {length} entries given for a ring of {memory} slots; give at most {memory}")
    if aligned and memory % length:
        raise ValueError(
            f"aligned: a ring of {memory} slots is not a multiple of {length} entries; make it one or leave aligned off"
        )


def _window_slots(cursor: Array, length: int, memory: int) -> Array:
    """Slot numbers `[batch, length]` from the cursor on."""
    return (cursor[:, None] + jnp.arange(length, dtype=cursor.dtype)[None, :]) % memory


def _per_row(condition: Array, ndim: int) -> Array:
    """`[]` or `[batch]` -> `ndim` axes, 1 everywhere else."""
    return condition.reshape(condition.shape + (1,) * (ndim - condition.ndim)) if condition.ndim else condition
