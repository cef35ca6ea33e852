"""Long memories whose slots are split over a mesh axis: reads and writes that leave every slot on its device.

They are for memories too large for one device. Each device along the axis holds a run of neighbouring slots of every
ring and searches it alone. Devices exchange the queries and new entries of a segment, the scores of `num_neighbors`
candidates per device, and partial sums of the softmax, but never slots. Batch rows stay split over the other mesh axes
and need no communication.

Use these functions in `jax.jit` under `jax.set_mesh(mesh)` with automatic axes. If no mesh is set, if the axis has size
1, or if it does not divide the slots, every function equals its counterpart in `fifo`, `neighbors` and `attention`.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from memjax.functional.attention import drop_weights, scale_queries
from memjax.functional.devices import platform
from memjax.functional.fifo import check_ring, read_window, ring_append, write_window
from memjax.functional.named_operations import operation
from memjax.functional.neighbors import gather_slots, select_neighbors
from memjax.functional.shapes import check_shapes

__all__ = [
    "PartialSoftmax",
    "merge_partials",
    "num_shards",
    "partial_attention",
    "sharded_append",
    "sharded_neighbors",
    "sharded_restore",
    "sharded_save",
]


class PartialSoftmax(NamedTuple):
    """Result of attention to some of the keys before the division of the softmax: numerator, denominator and largest
    score, in at least float32.

    Attributes:
      numerator: `[batch, length, heads, value_dim]`, sum of `exp(score - maximum) * value`.
      denominator: `[batch, length, heads]`, sum of `exp(score - maximum)`. 0 for a query that sees no key.
      maximum: `[batch, length, heads]`, largest score, without gradient. The lowest finite number where no key is seen.

    Example:
      >>> part = PartialSoftmax(jnp.full((1, 1, 1, 1), 6.0), jnp.full((1, 1, 1), 2.0), jnp.zeros((1, 1, 1)))
      >>> print(merge_partials(part, part).ravel())
      [3.]
    """

    numerator: Array
    denominator: Array
    maximum: Array


def num_shards(slot_axis: str, slots: int) -> int:
    """Returns the number of parts into which the mesh axis named `slot_axis` splits a ring of `slots` slots. 1 if they
    are not split.

    Args:
      slot_axis: Name of the mesh axis over which the slots are split. Empty for none.
      slots: Number of slots of the ring.

    Example:
      >>> num_shards("model", 8)
      1
      >>> with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2, 4), ("data", "model"))):
      ...     num_shards("model", 8), num_shards("model", 6)
      (4, 1)
    """
    size = dict(jax.sharding.get_abstract_mesh().shape).get(slot_axis, 1)
    return 1 if slots % size else size


@operation
def sharded_neighbors(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch heads memory head_dim"],
    values: Float[Array, "batch heads memory value_dim"],
    valid: Bool[Array, "batch memory"],
    num_neighbors: int,
    *,
    slot_axis: str,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    method: Literal["exact", "approximate"] = "exact",
    recall_target: float = 0.95,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> PartialSoftmax:
    """Attends to the `num_neighbors` nearest slots of each query in a memory that is split over the mesh axis
    `slot_axis`. Returns a `PartialSoftmax`, without the division.

    It replaces `select_neighbors`, `gather_slots` and `neighbor_attention`. Each device takes the `num_neighbors` best
    of its own slots. Only their scores are distributed over the devices. Each device merges the scores of its share of
    the queries and returns how many neighbours every device contributes. The neighbours are the ones that
    `select_neighbors` finds in the whole memory, ties too (the lower slot wins). Every device gathers its own, scores
    them again with gradient and adds to numerator and denominator.

    Per device and query it gathers `num_neighbors` slots, as many as one device with the whole memory would. The memory
    and the search are split.

    Args:
      queries: `[batch, length, heads, head_dim]`, queries. Heads of queries and result may be split over `slot_axis`.
      keys: `[batch, heads, memory, head_dim]`, keys, with slots split over `slot_axis`.
      values: `[batch, heads, memory, value_dim]`, values, with slots split over `slot_axis`.
      valid: bool `[batch, memory]`, slots that hold something, split over `slot_axis`.
      num_neighbors: Number of slots per query, at most `memory`.
      slot_axis: Name of the mesh axis over which the slots are split.
      scale: Factor of the scores, without effect on the choice of slots. See `attention`.
      method: Search method, "exact" or "approximate". "approximate" has at least its recall in one memory.
      recall_target: Expected share of true neighbours that "approximate" finds. See `select_neighbors`.
      dropout_rate: Probability with which an attention weight is dropped. Every device draws for its own slots, so that
        another mesh drops other weights.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Returns:
      A `PartialSoftmax`, for `merge_partials`, alone or together with that of local keys.

    Raises:
      ValueError: `num_neighbors` below 1 or above `memory`, or a method that cannot be split.

    Example:
      >>> keys = jnp.array([0.0, 3.0, 9.0, 2.0]).reshape(1, 1, 4, 1)
      >>> valid = jnp.array([[True, True, False, True]])
      >>> near = sharded_neighbors(jnp.ones((1, 1, 1, 1)), keys, keys, valid, 2, slot_axis="model")
      >>> print(merge_partials(near).ravel())
      [2.7310586]
    """
    memory, heads = keys.shape[2], queries.shape[2]
    shards = num_shards(slot_axis, memory)
    if shards == 1 or not 1 <= num_neighbors <= memory:  # select_neighbors raises the error
        ids, real = select_neighbors(
            jnp.swapaxes(queries, 1, 2), keys, valid, num_neighbors, method=method, recall_target=recall_target
        )
        return _neighbors_partial(queries, keys, values, ids, real, scale, lambda x: x, dropout_rate, dropout_key)
    factor = jnp.asarray(queries.shape[-1] ** -0.5 if scale is None else scale)
    factor = jnp.broadcast_to(factor.astype(jnp.promote_types(queries.dtype, jnp.float32)), (heads,))
    rows = _row_axes(queries.shape[0], slot_axis)
    split_heads = heads % shards == 0  # then queries arrive, and results leave, with their heads split

    def on_shard(
        queries: Array, keys: Array, values: Array, valid: Array, factor: Array, key: Array | None
    ) -> tuple[Array, Array, Array]:
        if split_heads:
            queries = lax.all_gather(queries, slot_axis, axis=2, tiled=True)
        if key is not None:
            for name in (*rows, slot_axis):
                key = jax.random.fold_in(key, lax.axis_index(name))
        best, ids = _best_slots(queries, keys, valid, min(num_neighbors, keys.shape[2]), method, recall_target)
        won = _num_winners(best, num_neighbors, slot_axis)[..., None]
        place = lax.broadcasted_iota(jnp.int32, ids.shape, ids.ndim - 1)
        real = (place < won) & (best > -jnp.inf)  # candidates are sorted: the winners come first
        partial = _neighbors_partial(
            queries, keys, values, ids, real, factor, lambda x: lax.pmax(x, slot_axis), dropout_rate, key
        )
        if split_heads:
            total = lambda x: lax.psum_scatter(x, slot_axis, scatter_dimension=2, tiled=True)
        else:
            total = lambda x: lax.psum(x, slot_axis)
        return total(partial.numerator), total(partial.denominator), partial.maximum

    by_row = PartitionSpec(rows or None)
    by_head = PartitionSpec(rows or None, None, slot_axis) if split_heads else by_row
    ring, flags = _ring_spec(rows, slot_axis, 2), _ring_spec(rows, slot_axis, 1)
    key = dropout_key if dropout_rate else None
    parts = jax.shard_map(
        on_shard,
        in_specs=(by_head, ring, ring, flags, PartitionSpec(), PartitionSpec()),
        out_specs=(by_head, by_head, by_row),
    )(queries, keys, values, valid, factor, key)
    return PartialSoftmax(*parts)


@operation
def partial_attention(
    queries: Float[Array, "batch length heads head_dim"],
    keys: Float[Array, "batch memory heads head_dim"],
    values: Float[Array, "batch memory heads value_dim"],
    *,
    mask: Bool[Array, "#batch #heads length memory"] | None = None,
    bias: Float[Array, "#batch heads length memory"] | None = None,
    scale: float | Float[Array, " #heads"] | Float[Array, ""] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
) -> PartialSoftmax:
    """Computes `attention` without the division of the softmax, and returns a `PartialSoftmax`, for `merge_partials`
    with other keys.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, memory, heads, head_dim]`.
      values: `[batch, memory, heads, value_dim]`.
      mask: True where the query sees the key. None if every query sees every key. See `attention`.
      bias: Summand of the scaled scores. See `attention`.
      scale: Factor of the content scores. None for `head_dim ** -0.5`. See `attention`.
      dropout_rate: Probability with which an attention weight is dropped.
      dropout_key: Random key of the dropout. Needed if `dropout_rate` is above 0.

    Example:
      >>> x = jnp.ones((1, 1, 1, 4))
      >>> part = partial_attention(x, x, x)
      >>> print(part.denominator.ravel(), part.maximum.ravel())
      [1.] [2.]
    """
    dtype = jnp.promote_types(jnp.promote_types(queries.dtype, keys.dtype), jnp.float32)
    scores = jnp.einsum("blhd,bmhd->bhlm", scale_queries(queries, scale), keys, preferred_element_type=dtype)
    scores = scores if bias is None else scores + jnp.broadcast_to(bias.astype(dtype), scores.shape)
    mask = jnp.broadcast_to(True if mask is None else mask, scores.shape)
    weights, maximum = _exponentials(scores, mask, lambda x: x)
    dropped = drop_weights(weights, dropout_rate, dropout_key).astype(values.dtype)
    numerator = jnp.einsum("bhlm,bmhe->blhe", dropped, values, preferred_element_type=dtype)
    return PartialSoftmax(numerator, jnp.swapaxes(weights.sum(axis=-1), 1, 2), jnp.swapaxes(maximum, 1, 2))


@operation
def merge_partials(*partials: PartialSoftmax) -> Float[Array, "batch length heads value_dim"]:
    """Merges any number of `PartialSoftmax`, each over a part of the keys, into the output of one softmax over all of
    them.

    Returns:
      `[batch, length, heads, value_dim]`, at least float32. 0 for a query that sees no key in any part.

    Example:
      >>> two = PartialSoftmax(jnp.full((1, 1, 1, 1), 6.0), jnp.full((1, 1, 1), 2.0), jnp.zeros((1, 1, 1)))
      >>> print(merge_partials(two).ravel(), merge_partials(two, two).ravel())
      [3.] [3.]
    """
    sums = "batch length heads"
    layouts = {"numerator": f"{sums} value_dim", "denominator": sums, "maximum": sums}
    fields = lambda i, part: {f"partials[{i}].{name}": x for name, x in part._asdict().items()}
    arrays = {name: x for i, part in enumerate(partials) for name, x in fields(i, part).items()}
    check_shapes(**{name: (x, layouts[name.rpartition(".")[2]]) for name, x in arrays.items()})
    maximum = functools.reduce(jnp.maximum, [part.maximum for part in partials])
    factors = [jnp.exp(part.maximum - maximum) for part in partials]
    parts = list(zip(partials, factors, strict=True))
    numerator = functools.reduce(jnp.add, [part.numerator * factor[..., None] for part, factor in parts])
    denominator = functools.reduce(jnp.add, [part.denominator * factor for part, factor in parts])
    sees_any = denominator > 0
    return jnp.where(sees_any[..., None], numerator / jnp.where(sees_any, denominator, 1)[..., None], 0)


@operation
def sharded_append(
    slots: Shaped[Array, "..."],
    new: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    active: Bool[Array, " batch"] | None = None,
    *,
    slot_axis: str,
    head_axis: str = "",
    axis: int = 1,
) -> Shaped[Array, "..."]:
    """Returns a ring, split over the mesh axis `slot_axis`, with new entries written as `ring_append` does. Every
    device writes to its own slots.

    For a ring that is not split, the compiler of TPUs would change the layout of all slots and back again: there, every
    device writes to its own rows and heads.

    Args:
      slots: The ring with the slots at `axis`, split over `slot_axis`.
      new: `[batch, ..., length, ...]`, new entries, oldest first, shaped like `slots` except at `axis`. All of them go
        to every device.
      cursor: int32 `[batch]`, slot that the first entry goes to.
      active: bool `[batch]`, rows to write. Other rows stay bit for bit. None for all rows.
      slot_axis: Name of the mesh axis over which the slots are split.
      head_axis: Name of the mesh axis over which axis 1 is split instead, where it has heads. Empty for none.
      axis: Axis of the slots in the array `slots`, 1 or more.

    Example:
      >>> print(sharded_append(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]]), jnp.array([2]), slot_axis="model"))
      [[5 2 4]]
    """
    check_ring(slots, axis, cursor, active, new=new)
    memory, length = slots.shape[axis], new.shape[axis]
    is_split = num_shards(slot_axis, memory) > 1
    if not is_split and not _writes_by_device(slots, head_axis):
        return ring_append(slots, new, cursor, active, axis=axis)
    if length > memory:
        new = lax.slice_in_dim(new, length - memory, length, axis=axis)
        cursor = (cursor + length - memory) % memory
    if is_split:
        return _write(slots, new, cursor, active, slot_axis, axis, split=False)
    return _write_rows(slots, new, cursor, active, head_axis, axis)


@operation
def sharded_save(
    slots: Shaped[Array, "..."], cursor: Int[Array, " batch"], length: int, *, slot_axis: str, axis: int = 1
) -> Shaped[Array, "..."]:
    """Returns `length` slots from the cursor on of a ring that is split over the mesh axis `slot_axis`, to save them
    before they are overwritten. Without communication every device returns a window of its own.

    `sharded_restore` writes them back.

    Args:
      slots: The ring with the slots at `axis`, split over `slot_axis`.
      cursor: int32 `[batch]`, first slot to save.
      length: Number of slots to save, at most `memory`.
      slot_axis: Name of the mesh axis over which the slots are split.
      axis: Axis of the slots in the array `slots`.

    Returns:
      `read_window(slots, cursor, length)` if the slots are not split. Otherwise every device saves a window of its own,
      in which only its slots have a meaning. The result then has `length` entries per device at `axis`, split as
      `slots` are.

    Raises:
      ValueError: `length` above `memory`.

    Example:
      >>> print(sharded_save(jnp.array([[1, 2, 3]]), jnp.array([2]), 2, slot_axis="model"))
      [[3 1]]
    """
    check_ring(slots, axis, cursor)
    memory = slots.shape[axis]
    if num_shards(slot_axis, memory) == 1 or length > memory:  # read_window raises the error
        return read_window(slots, cursor, length, axis=axis)

    def on_shard(part: Array, cursor: Array) -> Array:
        local_places, _ = _window_places(part, cursor, length, memory, slot_axis, axis)
        return jax.vmap(lambda row, place: jnp.take(row, place, axis=axis - 1, mode="clip"))(part, local_places)

    rows = _row_axes(slots.shape[0], slot_axis)
    ring = _ring_spec(rows, slot_axis, axis)
    return jax.shard_map(on_shard, in_specs=(ring, PartitionSpec(rows or None)), out_specs=ring)(slots, cursor)


@operation
def sharded_restore(
    slots: Shaped[Array, "..."],
    saved: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    active: Bool[Array, " batch"] | None = None,
    *,
    slot_axis: str,
    head_axis: str = "",
    axis: int = 1,
) -> Shaped[Array, "..."]:
    """Returns the ring with the slots written back that `sharded_save` has saved at the same cursor. It needs no
    communication.

    Args:
      slots: The ring with the slots at `axis`, split over `slot_axis`.
      saved: Result of `sharded_save`.
      cursor: int32 `[batch]`, first slot to restore, as passed to `sharded_save`.
      active: bool `[batch]`, rows to restore. Other rows stay bit for bit. None for all rows.
      slot_axis: Name of the mesh axis over which the slots are split.
      head_axis: Name of the mesh axis over which axis 1 is split instead. See `sharded_append`.
      axis: Axis of the slots in the array `slots`.

    Example:
      >>> ring, cursor = jnp.array([[1, 2, 3]]), jnp.array([2])
      >>> saved = sharded_save(ring, cursor, 2, slot_axis="model")
      >>> print(sharded_restore(jnp.zeros_like(ring), saved, cursor, slot_axis="model"))
      [[1 0 3]]
    """
    check_ring(slots, axis, cursor, active, saved=saved)
    if num_shards(slot_axis, slots.shape[axis]) > 1:
        return _write(slots, saved, cursor, active, slot_axis, axis, split=True)
    if _writes_by_device(slots, head_axis):
        return _write_rows(slots, saved, cursor, active, head_axis, axis)
    return write_window(slots, saved, cursor, active, axis=axis)


def _write(
    slots: Array, new: Array, cursor: Array, active: Array | None, slot_axis: str, axis: int, *, split: bool
) -> Array:
    """Writes on every device the entries of its own slots. `split`: each device has other entries."""
    memory = slots.shape[axis]

    def on_shard(part: Array, new: Array, cursor: Array, active: Array) -> Array:
        local_places, inside = _window_places(part, cursor, new.shape[axis], memory, slot_axis, axis)
        return _write_places(part, new, local_places, inside & active[:, None], axis)

    rows = _row_axes(slots.shape[0], slot_axis)
    ring, by_row = _ring_spec(rows, slot_axis, axis), PartitionSpec(rows or None)
    active = jnp.ones(cursor.shape, bool) if active is None else active
    return jax.shard_map(on_shard, in_specs=(ring, ring if split else by_row, by_row, by_row), out_specs=ring)(
        slots, new.astype(slots.dtype), cursor, active
    )


def _write_rows(slots: Array, new: Array, cursor: Array, active: Array | None, head_axis: str, axis: int) -> Array:
    """Writes on every device the entries of its own rows and heads."""
    memory, length = slots.shape[axis], new.shape[axis]

    def on_shard(part: Array, new: Array, cursor: Array, active: Array) -> Array:
        places = (cursor[:, None] + jnp.arange(length, dtype=cursor.dtype)[None]) % memory
        return _write_places(part, new, places, jnp.broadcast_to(active[:, None], places.shape), axis)

    rows = _row_axes(slots.shape[0], head_axis)
    by_row, ring = PartitionSpec(rows or None), PartitionSpec(rows or None, *([head_axis] if head_axis else []))
    active = jnp.ones(cursor.shape, bool) if active is None else active
    return jax.shard_map(on_shard, in_specs=(ring, ring, by_row, by_row), out_specs=ring, check_vma=False)(
        slots, new.astype(slots.dtype), cursor, active
    )


def _writes_by_device(slots: Array, head_axis: str) -> bool:
    """Returns whether every device of a mesh of TPUs has whole rows and heads of a ring."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    if not sizes or platform() != "tpu":
        return False
    shared = math.prod(size for name, size in sizes.items() if name != head_axis)
    return slots.shape[0] % shared == 0 and (not head_axis or slots.shape[1] % sizes.get(head_axis, 1) == 0)


def _write_places(part: Array, new: Array, places: Array, written: Array, axis: int) -> Array:
    """Writes entries to the slots `places` of every row, where `written`, both `[batch, length]`."""
    lead, size, length = part.shape[:axis], part.shape[axis], new.shape[axis]
    aligned = lambda x: x.reshape(-1, *(1,) * (axis - 1), length)  # [batch, 1..., length]
    # All rings are one long list of slots: for a scatter into each ring the TPU compiler changes the layout of the
    # whole ring before and after. Other entries are written beyond the end and so dropped, each at its own index, as
    # `unique_indices` promises.
    first = jnp.arange(math.prod(lead), dtype=places.dtype).reshape(*lead, 1) * size
    beyond = jnp.arange(math.prod(lead) * length, dtype=places.dtype).reshape(*lead, length)
    index = jnp.where(aligned(written), first + aligned(places), math.prod(lead) * size + beyond)
    flat, entries = (x.reshape(-1, *x.shape[axis + 1 :]) for x in (part, new))
    return flat.at[index.reshape(-1)].set(entries, unique_indices=True, mode="drop").reshape(part.shape)


def _window_places(
    part: Array, cursor: Array, length: int, memory: int, slot_axis: str, axis: int
) -> tuple[Array, Array]:
    """Returns the places of the window in this device's part, `[batch, length]`, and which of them are in the part."""
    size = part.shape[axis]
    window = (cursor[:, None] + jnp.arange(length, dtype=cursor.dtype)[None, :]) % memory
    local_places = window - (lax.axis_index(slot_axis) * size).astype(cursor.dtype)
    return local_places, (local_places >= 0) & (local_places < size)


def _best_slots(
    queries: Array, keys: Array, valid: Array, num_candidates: int, method: str, recall_target: float
) -> tuple[Array, Array]:
    """Returns scores and slots of this device's best candidates, `[batch, heads, length, candidates]`. No gradient."""
    queries, keys = lax.stop_gradient(queries), lax.stop_gradient(keys.astype(queries.dtype))
    dtype = jnp.promote_types(queries.dtype, jnp.float32)
    scores = jnp.einsum("blhd,bhmd->bhlm", queries, keys, preferred_element_type=dtype)
    scores = jnp.where(valid[:, None, None, :], scores, -jnp.inf)
    if method == "approximate":
        best, ids = lax.approx_max_k(scores, num_candidates, recall_target=recall_target)
    else:
        best, ids = lax.top_k(scores, num_candidates)
    return best, ids.astype(jnp.int32)


def _num_winners(best: Array, num_neighbors: int, slot_axis: str) -> Array:
    """Counts how many of this device's candidates are among the best of all devices.

    Args:
      best: `[batch, heads, length, candidates]`, scores, best first.
      num_neighbors: Number of winners of each query.
      slot_axis: Name of the mesh axis over which the slots are split.

    Returns:
      int32 `[batch, heads, length]`. The winners are the device's first candidates.
    """
    shards, (*shape, candidates) = lax.axis_size(slot_axis), best.shape
    queries = math.prod(shape)
    # Each device decides for its share of the queries: a fraction of the traffic and of the sorting of an all-gather.
    shares = jnp.pad(best.reshape(queries, candidates), [(0, -queries % shards), (0, 0)])
    shares = shares.reshape(shards, -1, candidates)
    received = lax.all_to_all(shares, slot_axis, split_axis=0, concat_axis=0)  # [shards, share, candidates]
    # In the order of the slots, so that ties are resolved as in the whole memory.
    together = jnp.moveaxis(received, 0, 1).reshape(-1, shards * candidates)
    owner = lax.top_k(together, num_neighbors)[1] // candidates  # [share, neighbors]
    count = (owner[None] == jnp.arange(shards, dtype=owner.dtype)[:, None, None]).sum(axis=-1, dtype=jnp.int32)
    own_count = lax.all_to_all(count, slot_axis, split_axis=0, concat_axis=0)  # [shards, share]
    return own_count.reshape(-1)[:queries].reshape(shape)


def _neighbors_partial(
    queries: Array,
    keys: Array,
    values: Array,
    ids: Array,
    real: Array,
    scale: float | Array | None,
    over_shards: Callable[[Array], Array],
    dropout_rate: float,
    dropout_key: Array | None,
) -> PartialSoftmax:
    """Computes the part of the softmax over the chosen slots, scored with gradient."""
    chosen = lambda slots: jnp.where(real[..., None], gather_slots(slots, ids), 0)  # the others may hold NaN
    near_keys, near_values = chosen(keys).astype(queries.dtype), chosen(values).astype(queries.dtype)
    dtype = jnp.promote_types(queries.dtype, jnp.float32)
    by_head = jnp.swapaxes(scale_queries(queries, scale), 1, 2)
    scores = jnp.einsum("bhld,bhlkd->bhlk", by_head, near_keys, preferred_element_type=dtype)
    weights, maximum = _exponentials(scores, real, over_shards)
    dropped = drop_weights(weights, dropout_rate, dropout_key).astype(near_values.dtype)
    numerator = jnp.einsum("bhlk,bhlke->bhle", dropped, near_values, preferred_element_type=dtype)
    return PartialSoftmax(*(jnp.swapaxes(x, 1, 2) for x in (numerator, weights.sum(axis=-1), maximum)))


def _exponentials(scores: Array, mask: Array, over_shards: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Computes `exp(score - maximum)`, 0 where masked, and the maximum over the last axis and `over_shards`."""
    lowest = np.array(np.finfo(scores.dtype).min, scores.dtype)
    maximum = over_shards(lax.stop_gradient(jnp.max(jnp.where(mask, scores, lowest), axis=-1)))
    # Both `where`s are needed: a masked entry must neither overflow nor reach the gradient.
    weights = jnp.where(mask, jnp.exp(jnp.where(mask, scores - maximum[..., None], 0)), 0)
    return weights, maximum


def _row_axes(batch: int, slot_axis: str) -> tuple[str, ...]:
    """Returns the mesh axes over which batch rows are split: all others, or none if they do not divide the rows."""
    sizes = {name: size for name, size in jax.sharding.get_abstract_mesh().shape.items() if name != slot_axis}
    return () if batch % math.prod(sizes.values()) else tuple(name for name, size in sizes.items() if size > 1)


def _ring_spec(rows: tuple[str, ...], slot_axis: str, axis: int) -> PartitionSpec:
    """Returns the sharding of a ring with the slots at `axis`."""
    return PartitionSpec(rows or None, *(None,) * (axis - 1), slot_axis)
