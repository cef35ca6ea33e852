"""First-in first-out memories of fixed size: right-aligned ones that shift, and rings that overwrite.

A ring keeps entry number n of a row at slot `n % capacity`. The row's cursor is the slot that is written next.
Rings are written in place when their buffer is donated: only the window that changes is touched.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped

from memjax.functional.named_operations import operation
from memjax.functional.shapes import check_shapes

__all__ = [
    "advance_cursor",
    "order_after",
    "read_window",
    "reset_rows",
    "ring_ages",
    "ring_append",
    "shift_append",
    "write_window",
]


@operation
def shift_append(
    slots: Shaped[Array, "batch memory *rest"], new: Shaped[Array, "batch length *rest"]
) -> Shaped[Array, "batch memory *rest"]:
    """Appends entries to a right-aligned memory, whose newest entry is always in the last slot. Returns the last
    `memory` entries of both.

    Args:
      slots: `[batch, memory, ...]`, the memory, oldest entry first.
      new: `[batch, length, ...]`, new entries, oldest first. Only the last `memory` of them are kept.

    Returns:
      The last `memory` entries of `slots ++ new`, in the dtype of `slots`.

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


@operation
def ring_append(
    slots: Shaped[Array, "..."],
    new: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    active: Bool[Array, " batch"] | None = None,
    *,
    axis: int = 1,
    aligned: bool = False,
) -> Shaped[Array, "..."]:
    """Returns the ring with new entries written in each active row from its cursor on, wrapping around. `aligned`
    promises that cursors are multiples of the number of entries. Move the cursor with `advance_cursor`.

    Args:
      slots: The ring, `[batch, ..., memory, ...]` with the slots at `axis`.
      new: `[batch, ..., length, ...]`, new entries, oldest first, shaped like `slots` except at `axis`. If `length`
        exceeds `memory`, only the last `memory` entries are written, each at the slot it would have reached.
      cursor: int32 `[batch]`, slot that the first entry goes to, `0 <= cursor < memory`.
      active: bool `[batch]`, rows to write. Other rows stay bit for bit. None for all rows.
      axis: Axis of the slots, 1 or more.
      aligned: Promise that every cursor is a multiple of `length`, so that one window is written per row. A window that
        would cross the end is not written at all.

    Returns:
      The ring after writing, in the dtype of `slots`.

    Raises:
      ValueError: `aligned` is set although `memory` is not a multiple of `length`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ring_append(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]]), jnp.array([2])))
      [[5 2 4]]
    """
    check_ring(slots, axis, cursor, active, new=new)
    memory, length = slots.shape[axis], new.shape[axis]
    if length > memory:
        new = lax.slice_in_dim(new, length - memory, length, axis=axis)
        cursor = (cursor + length - memory) % memory
    return write_window(slots, new, cursor, active, axis=axis, aligned=aligned)


@operation
def read_window(
    slots: Shaped[Array, "..."], cursor: Int[Array, " batch"], length: int, *, axis: int = 1
) -> Shaped[Array, "..."]:
    """Returns `length` slots of each row's ring from its cursor on, wrapping around.

    Args:
      slots: The ring with the slots at `axis`.
      cursor: int32 `[batch]`, first slot to read.
      length: Number of slots to read, at most `memory`.
      axis: Axis of the slots.

    Returns:
      `[batch, ..., length, ...]`, shaped like `slots` except at `axis`.

    Raises:
      ValueError: `length` above `memory`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(read_window(jnp.array([[1, 2, 3]]), jnp.array([2]), 2))
      [[3 1]]
    """
    check_ring(slots, axis, cursor)
    _check_window(slots.shape[axis], length, aligned=False)
    places = _window_slots(cursor, length, slots.shape[axis])
    # Slot by slot even where one slice would do: for a gather of slices the TPU compiler copies the whole ring.
    return jax.vmap(lambda row, place: jnp.take(row, place, axis=axis - 1, mode="clip"))(slots, places)


@operation
def write_window(
    slots: Shaped[Array, "..."],
    new: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    active: Bool[Array, " batch"] | None = None,
    *,
    axis: int = 1,
    aligned: bool = False,
) -> Shaped[Array, "..."]:
    """Returns the ring with the slots of each active row from its cursor on overwritten with `new`, wrapping around.
    `aligned` promises that cursors are multiples of the number of entries.

    Args:
      slots: The ring with the slots at `axis`.
      new: `[batch, ..., length, ...]`, new entries, shaped like `slots` except for at most `memory` entries at `axis`.
      cursor: int32 `[batch]`, slot that the first entry goes to.
      active: bool `[batch]`, rows to write. Other rows stay bit for bit. None for all rows.
      axis: Axis of the slots.
      aligned: Promise that every cursor is a multiple of the number of entries.

    Returns:
      The ring after writing, in the dtype of `slots`.

    Raises:
      ValueError: More entries than slots, or `aligned` although `memory` is not a multiple of their number.

    Example:
      >>> import jax.numpy as jnp
      >>> print(write_window(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]]), jnp.array([2])))
      [[5 2 4]]
    """
    check_ring(slots, axis, cursor, active, new=new)
    memory, length = slots.shape[axis], new.shape[axis]
    _check_window(memory, length, aligned)
    new = new.astype(slots.dtype)
    aligned = aligned or length == 1
    places = _window_slots(cursor, 1 if aligned else length, memory)
    if active is not None:
        # Idle rows write beyond the end, which is dropped: nothing is read, and nothing is copied.
        beyond = memory + jnp.arange(places.shape[1], dtype=places.dtype)
        places = jnp.where(active[:, None], places, beyond[None, :])
    if aligned:
        dimensions = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(slots.ndim - 1)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(axis - 1,),
        )
        return jax.vmap(
            lambda row, entries, place: lax.scatter(
                row, place, entries, dimensions, unique_indices=True, indices_are_sorted=True, mode="drop"
            )
        )(slots, new, places)
    index = (slice(None),) * (axis - 1)
    return jax.vmap(lambda row, entries, place: row.at[(*index, place)].set(entries, unique_indices=True, mode="drop"))(
        slots, new, places
    )


@operation
def order_after(cursor: Int[Array, " batch"], *arrays: Shaped[Array, "batch ..."]) -> Int[Array, " batch"]:
    """Returns the cursor unchanged, in such a way that XLA computes it after the arrays. A ring that they were computed
    from can then be overwritten in place.

    XLA copies a donated ring before overwriting it unless every read provably comes first. A write at
    `order_after(cursor, what_was_computed_from_the_ring)` does come after the read and happens in place.

    Args:
      cursor: int32 `[batch]`, slot numbers, `0 <= cursor < 2 ** 30`.
      *arrays: `[batch, ...]` of any dtype, best small ones (each is reduced once).

    Returns:
      int32 `[batch]`, equal to `cursor` whatever the arrays hold.

    Example:
      >>> import jax.numpy as jnp
      >>> print(order_after(jnp.array([2, 3]), jnp.array([[1.0], [jnp.nan]])))
      [2 3]
    """
    bound = jnp.full(cursor.shape, 2**30, jnp.int32)
    for array in arrays:
        largest = jnp.max(lax.stop_gradient(array), axis=tuple(range(1, array.ndim)), initial=0)
        bits = lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.int32)
        # A count of bits is never negative, so this bound is never below the cursor. The compiler does not know this.
        bound = bound + lax.population_count(bits)
    return jnp.minimum(cursor, bound.astype(cursor.dtype))


@operation
def advance_cursor(
    cursor: Int[Array, " batch"], amount: int | Int[Array, " batch"], capacity: int
) -> Int[Array, " batch"]:
    """Returns the cursor of a ring of `capacity` slots moved past `amount` written entries, `(cursor + amount) %
    capacity`.

    Args:
      cursor: int32 `[batch]`, slot that was next before the entries were written.
      amount: Number of entries written, one number or one per row (0 for idle rows).
      capacity: Number of slots of the ring.

    Returns:
      int32 `[batch]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(advance_cursor(jnp.array([2, 2]), jnp.array([2, 0]), 3))
      [1 2]
    """
    return ((cursor + amount) % capacity).astype(cursor.dtype)


@operation
def ring_ages(cursor: Int[Array, " batch"], capacity: int) -> Int[Array, "batch memory"]:
    """Returns the number of entries written after the one in each slot, `[batch, capacity]` (0 for the newest), whether
    the slot is valid or not.

    Args:
      cursor: int32 `[batch]`, slot that is written next.
      capacity: Number of slots of the ring.

    Returns:
      int32 `[batch, capacity]`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ring_ages(jnp.array([1]), 3))
      [[0 2 1]]
    """
    return (cursor[:, None] - 1 - jnp.arange(capacity, dtype=cursor.dtype)[None, :]) % capacity


@operation
def reset_rows(
    slots: Shaped[Array, "batch *rest"], start_of_document: Bool[Array, " batch"]
) -> Shaped[Array, "batch *rest"]:
    """Returns an array of contents, validity or counters, with 0 or False in the rows that start a document.

    A mask alone does not keep out the contents of an empty slot: its weight is 0, and 0 times NaN is NaN. Empty the
    contents with the validity if all slots are read anyway. Of a long ring only the chosen slots are read, and masked
    when they are read (see `memjax.functional.attention.neighbor_attention`).

    Args:
      slots: `[batch, ...]` of any dtype: contents, validity, counters.
      start_of_document: bool `[batch]`, rows to empty.

    Returns:
      `[batch, ...]`, `slots` with 0 or False in these rows.

    Example:
      >>> import jax.numpy as jnp
      >>> print(reset_rows(jnp.ones((2, 2), bool), jnp.array([True, False])))
      [[False False]
       [ True  True]]
    """
    return jnp.where(_per_row(start_of_document, slots.ndim), jnp.zeros((), slots.dtype), slots)


def check_ring(slots: Array, axis: int, cursor: Array, active: Array | None = None, **entries: Array) -> None:
    """Raises an error if the shapes of a ring with slots at `axis`, its cursors, its active rows and arrays of entries
    for it do not fit.
    """
    rest = [f"axis_{i}" for i in range(1, max(slots.ndim, axis + 1))]
    layout = lambda name: " ".join(["batch", *rest[: axis - 1], name, *rest[axis:]])
    ring = {"slots": (slots, layout("memory")), "cursor": (cursor, "batch"), "active": (active, "batch")}
    check_shapes(**ring, **{name: (array, layout("length")) for name, array in entries.items()})


def _check_window(memory: int, length: int, aligned: bool) -> None:
    if length > memory:
        raise ValueError(f"length: given {length} entries, allowed: up to {memory}, the slots of the ring")
    if aligned and memory % length:
        raise ValueError(
            f"aligned: given True for {length} entries, allowed: with a divisor of the ring's {memory} slots; or False"
        )


def _window_slots(cursor: Array, length: int, memory: int) -> Array:
    """Lists the slot numbers `[batch, length]` from the cursor on, wrapping around."""
    return (cursor[:, None] + jnp.arange(length, dtype=cursor.dtype)[None, :]) % memory


def _per_row(condition: Array, ndim: int) -> Array:
    """Reshapes a condition `[]` or `[batch]` to `ndim` axes of size 1 behind the batch."""
    return condition.reshape(condition.shape + (1,) * (ndim - condition.ndim)) if condition.ndim else condition
