"""A long memory whose slots are split over a mesh axis: reads and writes that leave every slot where it is.

For memories too large for one device. Each device along the axis holds a run of neighbouring slots of every ring and
searches it alone; between devices go the queries and new entries of a segment, the scores of `num_neighbors` candidates
per device, and partial sums of the softmax, never what the memory holds. Batch rows stay split over the other mesh axes
and need no communication.

For use in `jax.jit` under `jax.set_mesh(mesh)` with automatic axes. Where no mesh is set, where the axis has size 1, or
where it does not divide the slots, every function is its ordinary counterpart in `fifo`, `neighbors` and `attention`.
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

from memjax.functional.attention import scale_queries
from memjax.functional.fifo import check_ring, read_window, ring_append, write_window
from memjax.functional.neighbors import gather_slots, select_neighbors
from memjax.functional.scopes import operation
from memjax.functional.shapes import check_shapes

__all__ = [
    "Partial",
    "merge_partials",
    "num_shards",
    "partial_attention",
    "sharded_append",
    "sharded_neighbors",
    "sharded_restore",
    "sharded_save",
]


class Partial(NamedTuple):
    """A softmax over some of the keys, before its division, at least float32.

    Attributes:
      numerator: `[batch, length, heads, value_dim]`, the sum of `exp(score - maximum) * value`.
      denominator: `[batch, length, heads]`, the sum of `exp(score - maximum)`; 0 for a query that sees no key.
      maximum: `[batch, length, heads]`, of the scores, without gradient; the lowest finite number where no key is seen.

    Example:
      >>> one = Partial(jnp.full((1, 1, 1, 1), 6.0), jnp.full((1, 1, 1), 2.0), jnp.zeros((1, 1, 1)))
      >>> print(merge_partials(one, one).ravel())
      [3.]
    """

    numerator: Array
    denominator: Array
    maximum: Array


def num_shards(slot_axis: str, slots: int) -> int:
    """Into how many parts the mesh that is set splits so many slots; 1 = they are together.

    Args:
      slot_axis: Name of the mesh axis; "" = not split.
      slots: Of a ring.

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
) -> Partial:
    """Attention over the nearest slots of each query, without the division: `select_neighbors` to `neighbor_attention`.

    Each device takes the `num_neighbors` best of its own slots. Their scores, and nothing else of them, are dealt out
    over the devices, each of which merges those of its share of the queries and answers how many every device
    contributes. The neighbours are the ones that `select_neighbors` finds in the whole memory, ties too (the lower slot
    wins). Every device gathers its own, scores them again with gradient and adds to numerator and denominator.

    Per device and query it gathers `num_neighbors` slots, as many as one device with the whole memory would: what is
    split is the memory and the search.

    Args:
      queries: `[batch, length, heads, head_dim]`; their heads, and those of the result, may be split over `slot_axis`.
      keys: `[batch, heads, memory, head_dim]`, slots split over `slot_axis`.
      values: `[batch, heads, memory, value_dim]`, as `keys`.
      valid: `[batch, memory]`, as `keys`.
      num_neighbors: Slots per query, at most `memory`.
      slot_axis: Name of the mesh axis over which the slots are split.
      scale: As in `attention`; it does not take part in the choice of slots.
      method: As in `select_neighbors`; "approximate" has at least its recall.
      recall_target: As in `select_neighbors`.
      dropout_rate: As in `attention`; every device draws for its own slots, so another mesh drops other weights.
      dropout_key: As in `attention`.

    Returns:
      A `Partial`, for `merge_partials` alone or together with that of local keys.

    Raises:
      ValueError: `num_neighbors` below 1 or above `memory`, or a method that cannot be split.

    Example:
      >>> keys = jnp.array([0.0, 3.0, 9.0, 2.0]).reshape(1, 1, 4, 1)
      >>> valid = jnp.array([[True, True, False, True]])
      >>> found = sharded_neighbors(jnp.ones((1, 1, 1, 1)), keys, keys, valid, 2, slot_axis="model")
      >>> print(merge_partials(found).ravel())
      [2.7310586]
    """
    if method not in ("exact", "approximate"):
        raise ValueError(f'method: {method!r} given for slots that may be split; "exact" or "approximate" allowed')
    memory, heads = keys.shape[2], queries.shape[2]
    shards = num_shards(slot_axis, memory)
    if shards == 1 or not 1 <= num_neighbors <= memory:  # select_neighbors words the error
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
        found = _neighbors_partial(
            queries, keys, values, ids, real, factor, lambda x: lax.pmax(x, slot_axis), dropout_rate, key
        )
        if split_heads:
            total = lambda x: lax.psum_scatter(x, slot_axis, scatter_dimension=2, tiled=True)
        else:
            total = lambda x: lax.psum(x, slot_axis)
        return total(found.numerator), total(found.denominator), found.maximum

    by_row = PartitionSpec(rows or None)
    by_head = PartitionSpec(rows or None, None, slot_axis) if split_heads else by_row
    ring, flags = _ring_spec(rows, slot_axis, 2), _ring_spec(rows, slot_axis, 1)
    key = dropout_key if dropout_rate else None
    parts = jax.shard_map(
        on_shard,
        in_specs=(by_head, ring, ring, flags, PartitionSpec(), PartitionSpec()),
        out_specs=(by_head, by_head, by_row),
    )(queries, keys, values, valid, factor, key)
    return Partial(*parts)


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
) -> Partial:
    """`attention` without the division, to be merged with neighbours that are somewhere else.

    Args:
      queries: `[batch, length, heads, head_dim]`.
      keys: `[batch, memory, heads, head_dim]`.
      values: `[batch, memory, heads, value_dim]`.
      mask: As in `attention`.
      bias: As in `attention`.
      scale: As in `attention`.
      dropout_rate: As in `attention`.
      dropout_key: As in `attention`.

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
    kept = _dropout(weights, dropout_rate, dropout_key).astype(values.dtype)
    numerator = jnp.einsum("bhlm,bmhe->blhe", kept, values, preferred_element_type=dtype)
    return Partial(numerator, jnp.swapaxes(weights.sum(axis=-1), 1, 2), jnp.swapaxes(maximum, 1, 2))


@operation
def merge_partials(*partials: Partial) -> Float[Array, "batch length heads value_dim"]:
    """One softmax over the keys of all parts.

    Returns:
      `[batch, length, heads, value_dim]`, at least float32; 0 for a query that sees no key in any part.

    Example:
      >>> two = Partial(jnp.full((1, 1, 1, 1), 6.0), jnp.full((1, 1, 1), 2.0), jnp.zeros((1, 1, 1)))
      >>> print(merge_partials(two).ravel(), merge_partials(two, two).ravel())
      [3.] [3.]
    """
    sums = "batch length heads"
    layouts = {"numerator": f"{sums} value_dim", "denominator": sums, "maximum": sums}
    fields = lambda i, part: {f"partials[{i}].{name}": x for name, x in part._asdict().items()}
    named = {name: x for i, part in enumerate(partials) for name, x in fields(i, part).items()}
    check_shapes(**{name: (x, layouts[name.rpartition(".")[2]]) for name, x in named.items()})
    maximum = functools.reduce(jnp.maximum, [part.maximum for part in partials])
    factors = [jnp.exp(part.maximum - maximum) for part in partials]
    parts = list(zip(partials, factors, strict=True))
    numerator = functools.reduce(jnp.add, [part.numerator * factor[..., None] for part, factor in parts])
    denominator = functools.reduce(jnp.add, [part.denominator * factor for part, factor in parts])
    seen = denominator > 0
    return jnp.where(seen[..., None], numerator / jnp.where(seen, denominator, 1)[..., None], 0)


@operation
def sharded_append(
    slots: Shaped[Array, "..."],
    new: Shaped[Array, "..."],
    cursor: Int[Array, " batch"],
    active: Bool[Array, " batch"] | None = None,
    *,
    slot_axis: str,
    axis: int = 1,
) -> Shaped[Array, "..."]:
    """`ring_append` where every device writes the entries that fall into its part of the ring.

    Args:
      slots: The ring with the slots at `axis`, split over `slot_axis`.
      new: As `slots` with `length` entries at `axis`; all of them go to every device.
      cursor: int32 `[batch]`.
      active: bool `[batch]`; the other rows stay bit for bit. None = all rows are written.
      slot_axis: Name of the mesh axis over which the slots are split.
      axis: Axis of the slots, 1 or more.

    Example:
      >>> print(sharded_append(jnp.array([[1, 2, 3]]), jnp.array([[4, 5]]), jnp.array([2]), slot_axis="model"))
      [[5 2 4]]
    """
    check_ring(slots, axis, cursor, active, new=new)
    memory, length = slots.shape[axis], new.shape[axis]
    if num_shards(slot_axis, memory) == 1:
        return ring_append(slots, new, cursor, active, axis=axis)
    if length > memory:
        new = lax.slice_in_dim(new, length - memory, length, axis=axis)
        cursor = (cursor + length - memory) % memory
    return _write(slots, new, cursor, active, slot_axis, axis, split=False)


@operation
def sharded_save(
    slots: Shaped[Array, "..."], cursor: Int[Array, " batch"], length: int, *, slot_axis: str, axis: int = 1
) -> Shaped[Array, "..."]:
    """What is about to be overwritten, for `sharded_restore`; without communication.

    Args:
      slots: The ring with the slots at `axis`, split over `slot_axis`.
      cursor: int32 `[batch]`.
      length: Slots to read, at most `memory`.
      slot_axis: Name of the mesh axis over which the slots are split.
      axis: Axis of the slots.

    Returns:
      `read_window(slots, cursor, length)` where the slots are together. Else every device keeps a window of its own in
      which only its slots mean anything: as `slots` with `length` entries per device at `axis`, split as it is.

    Raises:
      ValueError: `length` above `memory`.

    Example:
      >>> print(sharded_save(jnp.array([[1, 2, 3]]), jnp.array([2]), 2, slot_axis="model"))
      [[3 1]]
    """
    check_ring(slots, axis, cursor)
    memory = slots.shape[axis]
    if num_shards(slot_axis, memory) == 1 or length > memory:  # read_window words the error
        return read_window(slots, cursor, length, axis=axis)

    def on_shard(part: Array, cursor: Array) -> Array:
        places, _ = _places(part, cursor, length, memory, slot_axis, axis)
        return jax.vmap(lambda row, place: jnp.take(row, place, axis=axis - 1, mode="clip"))(part, places)

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
    axis: int = 1,
) -> Shaped[Array, "..."]:
    """Writes back what `sharded_save` kept at the same cursor; without communication.

    Args:
      slots: The ring with the slots at `axis`, split over `slot_axis`.
      saved: From `sharded_save`.
      cursor: int32 `[batch]`, as it was given there.
      active: bool `[batch]`; the other rows stay bit for bit. None = all rows are written.
      slot_axis: Name of the mesh axis over which the slots are split.
      axis: Axis of the slots.

    Example:
      >>> ring, cursor = jnp.array([[1, 2, 3]]), jnp.array([2])
      >>> saved = sharded_save(ring, cursor, 2, slot_axis="model")
      >>> print(sharded_restore(jnp.zeros_like(ring), saved, cursor, slot_axis="model"))
      [[1 0 3]]
    """
    check_ring(slots, axis, cursor, active, saved=saved)
    if num_shards(slot_axis, slots.shape[axis]) == 1:
        return write_window(slots, saved, cursor, active, axis=axis)
    return _write(slots, saved, cursor, active, slot_axis, axis, split=True)


def _write(
    slots: Array, new: Array, cursor: Array, active: Array | None, slot_axis: str, axis: int, *, split: bool
) -> Array:
    """Every device writes what falls into its part; `split`: of entries of its own instead of common ones."""
    memory = slots.shape[axis]

    def on_shard(part: Array, new: Array, cursor: Array, active: Array) -> Array:
        lead, size, length = part.shape[:axis], part.shape[axis], new.shape[axis]
        places, inside = _places(part, cursor, length, memory, slot_axis, axis)
        aligned = lambda x: x.reshape(-1, *(1,) * (axis - 1), length)  # [batch, 1..., length]
        # All rings as one long list of slots: for a scatter into each of them the TPU compiler lays the whole ring out
        # anew before and after. What falls elsewhere is written beyond the end, that is, dropped; each entry at a place
        # of its own, as the promise below says.
        first = jnp.arange(math.prod(lead), dtype=places.dtype).reshape(*lead, 1) * size
        beyond = jnp.arange(math.prod(lead) * length, dtype=places.dtype).reshape(*lead, length)
        index = jnp.where(aligned(inside & active[:, None]), first + aligned(places), math.prod(lead) * size + beyond)
        flat, entries = (x.reshape(-1, *x.shape[axis + 1 :]) for x in (part, new))
        return flat.at[index.reshape(-1)].set(entries, unique_indices=True, mode="drop").reshape(part.shape)

    rows = _row_axes(slots.shape[0], slot_axis)
    ring, by_row = _ring_spec(rows, slot_axis, axis), PartitionSpec(rows or None)
    active = jnp.ones(cursor.shape, bool) if active is None else active
    return jax.shard_map(on_shard, in_specs=(ring, ring if split else by_row, by_row, by_row), out_specs=ring)(
        slots, new.astype(slots.dtype), cursor, active
    )


def _places(part: Array, cursor: Array, length: int, memory: int, slot_axis: str, axis: int) -> tuple[Array, Array]:
    """Where the window from the cursor on lies in this device's part, `[batch, length]`, and what of it does at all."""
    size = part.shape[axis]
    window = (cursor[:, None] + jnp.arange(length, dtype=cursor.dtype)[None, :]) % memory
    places = window - (lax.axis_index(slot_axis) * size).astype(cursor.dtype)
    return places, (places >= 0) & (places < size)


def _best_slots(
    queries: Array, keys: Array, valid: Array, num_candidates: int, method: str, recall_target: float
) -> tuple[Array, Array]:
    """Scores, best first, and slots of this device's candidates, `[batch, heads, length, candidates]`; no gradient."""
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
    """How many of this device's candidates are among the best of all devices.

    Args:
      best: `[batch, heads, length, candidates]`, scores, best first.
      num_neighbors: Winners of each query.
      slot_axis: Name of the mesh axis over which the slots are split.

    Returns:
      int32 `[batch, heads, length]`; they are the device's first candidates.
    """
    shards, (*shape, candidates) = lax.axis_size(slot_axis), best.shape
    queries = math.prod(shape)
    # Each device decides for its share of the queries: a fraction of the traffic and of the sorting of an all-gather.
    shares = jnp.pad(best.reshape(queries, candidates), [(0, -queries % shards), (0, 0)])
    shares = shares.reshape(shards, -1, candidates)
    received = lax.all_to_all(shares, slot_axis, split_axis=0, concat_axis=0)  # [shards, share, candidates]
    # In the order of the slots, so that ties fall as they would in the whole memory.
    together = jnp.moveaxis(received, 0, 1).reshape(-1, shards * candidates)
    owner = lax.top_k(together, num_neighbors)[1] // candidates  # [share, neighbors]
    count = (owner[None] == jnp.arange(shards, dtype=owner.dtype)[:, None, None]).sum(axis=-1, dtype=jnp.int32)
    mine = lax.all_to_all(count, slot_axis, split_axis=0, concat_axis=0)  # [shards, share]
    return mine.reshape(-1)[:queries].reshape(shape)


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
) -> Partial:
    """The part of the softmax that the chosen slots make up, scored with gradient."""
    chosen = lambda slots: jnp.where(real[..., None], gather_slots(slots, ids), 0)  # the others may hold NaN
    near_keys, near_values = chosen(keys).astype(queries.dtype), chosen(values).astype(queries.dtype)
    dtype = jnp.promote_types(queries.dtype, jnp.float32)
    by_head = jnp.swapaxes(scale_queries(queries, scale), 1, 2)
    scores = jnp.einsum("bhld,bhlkd->bhlk", by_head, near_keys, preferred_element_type=dtype)
    weights, maximum = _exponentials(scores, real, over_shards)
    kept = _dropout(weights, dropout_rate, dropout_key).astype(near_values.dtype)
    numerator = jnp.einsum("bhlk,bhlke->bhle", kept, near_values, preferred_element_type=dtype)
    return Partial(*(jnp.swapaxes(x, 1, 2) for x in (numerator, weights.sum(axis=-1), maximum)))


def _exponentials(scores: Array, mask: Array, over_shards: Callable[[Array], Array]) -> tuple[Array, Array]:
    """`exp(score - maximum)`, 0 where masked, and the maximum over the last axis and `over_shards`."""
    lowest = np.array(np.finfo(scores.dtype).min, scores.dtype)
    maximum = over_shards(lax.stop_gradient(jnp.max(jnp.where(mask, scores, lowest), axis=-1)))
    # Both wheres: what stands at a masked entry must neither overflow nor reach the gradient.
    weights = jnp.where(mask, jnp.exp(jnp.where(mask, scores - maximum[..., None], 0)), 0)
    return weights, maximum


def _dropout(weights: Array, rate: float, key: Array | None) -> Array:
    """As in `attention`; on weights that are not divided yet, while their sum stays whole."""
    if rate == 0.0:
        return weights
    if key is None:
        raise ValueError(f"dropout_key: None given with dropout_rate {rate}; pass a key, or rate 0 when deterministic")
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, weights.shape), weights / (1.0 - rate), 0)


def _row_axes(batch: int, slot_axis: str) -> tuple[str, ...]:
    """Mesh axes that batch rows are split over: all others, or none where they do not divide the rows."""
    sizes = {name: size for name, size in jax.sharding.get_abstract_mesh().shape.items() if name != slot_axis}
    return () if batch % math.prod(sizes.values()) else tuple(name for name, size in sizes.items() if size > 1)


def _ring_spec(rows: tuple[str, ...], slot_axis: str, axis: int) -> PartitionSpec:
    """How a ring with the slots at `axis` is split."""
    return PartitionSpec(rows or None, *(None,) * (axis - 1), slot_axis)
