"""Sums of a few rows of a large table, with gradients and updates that touch only these rows.

Value tables of product-key memories are read and updated by them. See `memjax.functional.product_keys`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from memjax.functional.named_operations import operation

__all__ = ["gradient_of_rows", "lookup_rows", "sum_rows", "table_shards", "update_rows"]

LOOKUPS = 1 << 14
"""Number of rows that are gathered at once by default."""


Split = Literal["rows", "columns"]


@operation
def lookup_rows(
    table: Float[Array, "rows dim"], ids: Int[Array, "*lookups"], sink: Float[Array, "*lookups dim"] | None = None
) -> Float[Array, "*lookups dim"]:
    """Looks up rows of a table, `table[ids]`. The gradient goes to `sink`, an array in the shape of the result, if one
    is given, instead of the table.

    The gradient of a gather is a dense array of the table's size. With a sink the table has none at all. The gradient
    of every looked-up row is that of the sink, from which a row-sparse optimiser updates the rows `ids`.

    Args:
      table: `[rows, dim]`, the rows. Their gradient is dense without a sink, and 0 with one.
      ids: int `[...]`, rows to look up. A row may be looked up many times.
      sink: Array of the result's shape, whose values do not matter. None if the table has the gradient.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> table, ids = jnp.arange(6.0).reshape(3, 2), jnp.array([2, 0])
      >>> jax.grad(lambda sink: jnp.sum(lookup_rows(table, ids, sink) ** 2))(jnp.zeros((2, 2)))
      Array([[ 8., 10.],
             [ 0.,  2.]], dtype=float32)
    """
    if sink is None:
        return _take(table, ids)
    if sink.shape != (*ids.shape, table.shape[-1]):
        raise ValueError(f"sink: given shape {sink.shape}, allowed: the result's, {(*ids.shape, table.shape[-1])}")
    return _lookup(table, ids, sink)


@operation
def sum_rows(
    table: Float[Array, "rows dim"],
    ids: Int[Array, "*bags lookups"],
    weights: Float[Array, "*bags lookups"],
    sink: Float[Array, "..."] | None = None,
    *,
    axis: str = "",
    split: Split = "rows",
    lookups_at_once: int = LOOKUPS,
) -> Float[Array, "*bags dim"]:
    """Sums weighted rows of a table for every bag, `sum_l weights[l] * table[ids[l]]`. The gradient goes to `sink`, an
    array in the shape of the result, if one is given, not to the table. `axis` names the mesh axis of a split table.

    The gradient of row r is the sum of `weight * gradient of the bag` over all lookups of r. Without a sink it is an
    array of the table's size. With a sink the table has none, and the gradient of the bags is that of the sink, from
    which a row-sparse optimiser updates the rows that were read (`update_rows`). The weights always have a gradient,
    for which the rows are read again.

    If a mesh is set (`jax.set_mesh`, automatic axes), bags stay where they are, and every device reads its own part of
    a split table. Devices exchange sums, never rows.

    Args:
      table: `[rows, dim]`, the rows.
      ids: int `[..., lookups]`, rows of every bag. The first axis (batch rows) is split over the other mesh axes.
      weights: `[..., lookups]`, weights of the rows.
      sink: Array of the result's shape, whose values do not matter. None if the table has the gradient.
      axis: Name of the mesh axis that splits the table. Empty for a table that is not split.
      split: Axis of the table that is split: 'rows' or 'columns'.
      lookups_at_once: Number of rows gathered at a time on a device, rounded down to whole bags.

    Returns:
      `[..., dim]`, in the dtype of the table, at least float32.

    Raises:
      ValueError: A sink of another shape.

    Example:
      >>> table = jnp.arange(6.0).reshape(3, 2)
      >>> print(sum_rows(table, jnp.array([[2, 0]]), jnp.array([[0.5, 1.0]])))
      [[2.  3.5]]
    """
    shape = (*ids.shape[:-1], table.shape[-1])
    if sink is not None and sink.shape != shape:
        raise ValueError(f"sink: given shape {sink.shape}, allowed: the result's, {shape}")
    return _sum_rows(_Parts(axis, split, lookups_at_once), table, ids, weights.astype(table.dtype), sink)


def table_shards(axis: str, table: Float[Array, "rows dim"], split: Split) -> int:
    """Returns the number of parts into which the mesh axis named `axis` splits a table, by 'rows' or 'columns'. 1 if it
    is not split.

    Args:
      axis: Name of the mesh axis. Empty for none.
      table: Table, or its shape and dtype.
      split: Axis of the table that is split: 'rows' or 'columns'.

    Example:
      >>> table = jnp.zeros((8, 6))
      >>> with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2, 4), ("data", "model"))):
      ...     table_shards("model", table, "rows"), table_shards("model", table, "columns")
      (4, 1)
    """
    size = dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1)
    return 1 if table.shape[0 if split == "rows" else 1] % size else size


@operation
def update_rows(
    arrays: tuple[Float[Array, "rows dim"], ...],
    ids: Int[Array, "bags lookups"],
    weights: Float[Array, "bags lookups"],
    gradients: Float[Array, "bags dim"],
    rule: Callable[[tuple[Array, ...], Array], tuple[Array, ...]],
    *,
    axis: str = "",
    split: Split = "rows",
    lookups_at_once: int = LOOKUPS,
) -> tuple[Float[Array, "rows dim"], ...]:
    """Applies an update rule to the rows that were looked up, each once with its whole gradient. Returns the updated
    `arrays`. `gradients` are those of the bags, `rule(rows, gradient)` returns new rows.

    Lookups are sorted by row and processed in chunks, in a loop that carries the arrays: neither time nor temporary
    memory depends on the number of rows, and donated arrays change in place. Lookups of weight or gradient 0 change
    nothing. If a mesh is set, every device updates its own part of the arrays. It receives the gradients of all bags
    (as many as activations), never rows.

    Args:
      arrays: `[rows, dim]` each, the table and the rule's state of its rows.
      ids: int `[bags, lookups]`, rows of every bag. Numbers beyond the table are left out.
      weights: `[bags, lookups]`, weights of the rows.
      gradients: `[bags, dim]`, gradients of the sums of `sum_rows`, that is, of its sink.
      rule: `rule(rows of each array, gradient of the rows) -> new rows`, `[some rows, dim]` each.
      axis: Name of the mesh axis that splits the table. See `sum_rows`.
      split: Axis of the table that is split: 'rows' or 'columns'.
      lookups_at_once: Number of lookups in a chunk.

    Returns:
      The updated arrays.

    Example:
      >>> table = jnp.zeros((4, 1))
      >>> step = lambda rows, gradient: (rows[0] - gradient,)
      >>> ids, weights = jnp.array([[2, 0], [2, 1]]), jnp.array([[0.5, 1.0], [1.0, 0.0]])
      >>> print(update_rows((table,), ids, weights, jnp.array([[2.0], [4.0]]), step)[0].ravel())
      [-2.  0. -5.  0.]
    """
    gradients = gradients.astype(arrays[0].dtype)
    ids = _drop_without_gradient(arrays[0], ids, weights, gradients)
    run = functools.partial(_update_part, rule=rule, lookups_at_once=lookups_at_once)
    return _with_all_bags(run, arrays, ids, weights.astype(arrays[0].dtype), gradients, axis, split)


@operation
def gradient_of_rows(
    table: Float[Array, "rows dim"],
    ids: Int[Array, "bags lookups"],
    weights: Float[Array, "bags lookups"],
    gradients: Float[Array, "bags dim"],
    *,
    axis: str = "",
    split: Split = "rows",
    lookups_at_once: int = LOOKUPS,
) -> Float[Array, "rows dim"]:
    """Computes the gradient of a table as an array of its size, from the `gradients` of the bags, for small tables and
    for comparison.

    The arguments that are not listed are those of `update_rows`.

    Args:
      table: `[rows, dim]`, the table, or another array of its shape and dtype.
      ids: int `[bags, lookups]`, rows of every bag. Numbers beyond the table are left out.

    Example:
      >>> ids, weights = jnp.array([[2, 0], [2, 1]]), jnp.array([[0.5, 1.0], [1.0, 0.0]])
      >>> print(gradient_of_rows(jnp.zeros((4, 1)), ids, weights, jnp.array([[2.0], [4.0]])).ravel())
      [2. 0. 5. 0.]
    """
    run = functools.partial(_gradient_part, lookups_at_once=lookups_at_once)
    gradients, weights = gradients.astype(table.dtype), weights.astype(table.dtype)
    return _with_all_bags(run, (table,), ids, weights, gradients, axis, split)[0]


# Lookups of rows


def _take(table: Array, ids: Array) -> Array:
    return jnp.take(table, ids, axis=0)


@jax.custom_vjp
def _lookup(table: Array, ids: Array, sink: Array) -> Array:
    del sink
    return _take(table, ids)


def _lookup_forward(table: Array, ids: Array, sink: Array) -> tuple[Array, None]:
    del sink
    return _take(table, ids), None


def _lookup_backward(_: None, gradient: Array) -> tuple[None, None, Array]:
    return None, None, gradient


_lookup.defvjp(_lookup_forward, _lookup_backward)


# Weighted sums of rows


class _Parts(NamedTuple):
    """Split of a table over a mesh, and the number of its rows to read at once."""

    axis: str
    split: Split
    lookups_at_once: int


def _on_parts(parts: _Parts, function: Callable[..., Array], table: Array, *bags: Array, rows_out: bool) -> Array:
    """Applies `function(part of the table, bags of this device, total)`, on every device if a mesh is set.

    Args:
      parts: Split of the table.
      function: Function of arrays whose leading axes are merged. Its argument `total` adds over the parts of the table.
      table: The table.
      *bags: Arrays of bags. The first are the ids, which become numbers in the part (beyond it for other
        rows).
      rows_out: Whether the last axis of the result has the table's columns.
    """
    shards = table_shards(parts.axis, table, parts.split)
    flat = lambda x: x.reshape(-1, x.shape[-1])
    lead = bags[0].shape[:-1]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or math.prod(mesh.shape.values()) == 1:
        return function(table, *map(flat, bags), lambda x: x).reshape(*lead, -1)
    by_rows, by_columns = shards > 1 and parts.split == "rows", shards > 1 and parts.split == "columns"
    others = {name: size for name, size in mesh.shape.items() if name != parts.axis}
    divides = lead[0] % math.prod(others.values()) == 0
    rows = tuple(name for name, size in others.items() if size > 1) if divides else ()
    table_spec = PartitionSpec(parts.axis if by_rows else None, parts.axis if by_columns else None)
    by_bag = PartitionSpec(rows or None)
    with_columns = PartitionSpec(rows or None, *(None,) * (len(lead) - 1), parts.axis if by_columns else None)

    def on_shard(table: Array, ids: Array, *bags: Array) -> Array:
        if by_rows:
            ids = _local_ids(ids, table.shape[0], parts.axis)
        adds = by_rows or (by_columns and not rows_out)
        total = (lambda x: lax.psum(x, parts.axis)) if adds else (lambda x: x)
        out = function(table, flat(ids), *map(flat, bags), total)
        return out.reshape(*ids.shape[:-1], -1)

    # The last of the bags of a backward pass is a gradient with the table's columns.
    specs = (table_spec, by_bag, by_bag if rows_out else with_columns)
    return jax.shard_map(on_shard, in_specs=specs, out_specs=with_columns if rows_out else by_bag)(table, *bags)


def _in_chunks(function: Callable[..., Array], ids: Array, other: Array, lookups_at_once: int) -> Array:
    """Applies `function(ids, other)` to chunks of bags, one after the other, on `[bags, ...]`."""
    bags, lookups = ids.shape
    size = max(lookups_at_once // lookups, 1)
    if bags <= size:
        return function(ids, other)
    padded = lambda x: jnp.pad(x, [(0, -bags % size), (0, 0)]).reshape(-1, size, x.shape[1])
    out = lax.map(lambda chunk: function(*chunk), (padded(ids), padded(other)))
    return out.reshape(-1, out.shape[-1])[:bags]


def _take_or_zero(table: Array, ids: Array) -> Array:
    """Looks up rows, `table[ids]`, 0 beyond the table."""
    return jnp.take(table, ids, axis=0, mode="fill", fill_value=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_rows(parts: _Parts, table: Array, ids: Array, weights: Array, sink: Array | None) -> Array:
    del sink

    def sum_part(table: Array, ids: Array, weights: Array, total: Callable[[Array], Array]) -> Array:
        add = lambda ids, weights: jnp.einsum("nl,nld->nd", weights, _take_or_zero(table, ids))
        return total(_in_chunks(add, ids, weights, parts.lookups_at_once))

    return _on_parts(parts, sum_part, table, ids, weights, rows_out=True)


def _sum_rows_forward(
    parts: _Parts, table: Array, ids: Array, weights: Array, sink: Array | None
) -> tuple[Array, tuple]:
    return _sum_rows(parts, table, ids, weights, sink), (table, ids, weights if sink is None else None)


def _sum_rows_backward(parts: _Parts, saved: tuple, gradient: Array) -> tuple[Array | None, None, Array, Array | None]:
    table, ids, weights = saved

    def compare_part(table: Array, ids: Array, gradient: Array, total: Callable[[Array], Array]) -> Array:
        compare = lambda ids, gradient: jnp.einsum("nd,nld->nl", gradient, _take_or_zero(table, ids))
        return total(_in_chunks(compare, ids, gradient, parts.lookups_at_once))

    to_weights = _on_parts(parts, compare_part, table, ids, gradient, rows_out=False)
    if weights is None:  # there is a sink
        return None, None, to_weights, gradient
    bags = (x.reshape(-1, x.shape[-1]) for x in (ids, weights, gradient))
    to_table = gradient_of_rows(table, *bags, **parts._asdict())
    return to_table, None, to_weights, None


_sum_rows.defvjp(_sum_rows_forward, _sum_rows_backward)


# Updates of rows


def _local_ids(ids: Array, size: int, axis: str) -> Array:
    """Converts row numbers, inside a `shard_map`, to those in this device's part of a table. `size` for other parts."""
    ids = ids - lax.axis_index(axis).astype(ids.dtype) * size
    return jnp.where((ids >= 0) & (ids < size), ids, size)


def _drop_without_gradient(table: Array, ids: Array, weights: Array, gradients: Array) -> Array:
    """Replaces the ids of lookups without a gradient by a number beyond the table."""
    has_gradient = (weights != 0) & (gradients != 0).any(axis=-1)[:, None] & (ids >= 0) & (ids < table.shape[0])
    return jnp.where(has_gradient, ids, table.shape[0])


def _with_all_bags(
    run: Callable[..., tuple[Array, ...]],
    arrays: tuple[Array, ...],
    ids: Array,
    weights: Array,
    gradients: Array,
    axis: str,
    split: Split,
) -> tuple[Array, ...]:
    """Applies `run(arrays, ids, weights, gradients)`, on every device to its part of the arrays if a mesh is set."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or math.prod(mesh.shape.values()) == 1:
        return run(arrays, ids, weights, gradients)
    shards = table_shards(axis, arrays[0], split)
    by_rows, by_columns = shards > 1 and split == "rows", shards > 1 and split == "columns"
    array_spec = PartitionSpec(axis if by_rows else None, axis if by_columns else None)
    whole, columns = PartitionSpec(), PartitionSpec(None, axis if by_columns else None)

    def on_shard(arrays: tuple[Array, ...], ids: Array, weights: Array, gradients: Array) -> tuple[Array, ...]:
        ids = _local_ids(ids, arrays[0].shape[0], axis) if by_rows else ids
        return run(arrays, ids, weights, gradients)

    # Devices along the other axes do equal work. Nothing is sent, so there is nothing to check.
    return jax.shard_map(on_shard, in_specs=(array_spec, whole, whole, columns), out_specs=array_spec, check_vma=False)(
        arrays, ids, weights, gradients
    )


def _update_part(
    arrays: tuple[Array, ...],
    ids: Array,
    weights: Array,
    gradients: Array,
    rule: Callable[..., Any],
    lookups_at_once: int,
) -> tuple[Array, ...]:
    rows, total, lookups = arrays[0].shape[0], ids.size, ids.shape[1]
    size = min(lookups_at_once, total)
    padding = size - total % size  # at least one: a lookup beyond the table ends the last row
    ids = jnp.pad(ids.reshape(-1), (0, padding), constant_values=rows)
    weights = jnp.pad(weights.reshape(-1), (0, padding))
    sorted_ids, order = lax.sort((ids, lax.iota(jnp.int32, ids.size)), num_keys=1)

    def body(chunk: Array, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        arrays, last_id, unfinished = carry
        row_ids = lax.dynamic_slice(sorted_ids, (chunk * size,), (size,))
        lookup_order = lax.dynamic_slice(order, (chunk * size,), (size,))
        parts = weights[lookup_order][:, None] * _take_or_zero(gradients, lookup_order // lookups)
        number = jnp.cumsum(row_ids != jnp.concatenate([last_id[None], row_ids[:-1]]))  # of the row in the chunk
        sums = jax.ops.segment_sum(parts, number, size + 1, indices_are_sorted=True).at[0].add(unfinished)
        row = jnp.full(size + 1, rows, row_ids.dtype).at[0].set(last_id).at[number].set(row_ids)
        # The last row may continue in the next chunk. Rows that are not written get distinct numbers beyond the table.
        nth = lax.iota(row.dtype, size + 1)
        row = jnp.where((nth < number[-1]) & (row < rows), row, rows + nth)
        new = rule(tuple(_take_or_zero(array, row) for array in arrays), sums)
        write = lambda array, values: array.at[row].set(values.astype(array.dtype), mode="drop", unique_indices=True)
        return tuple(map(write, arrays, new)), row_ids[-1], sums[number[-1]]

    start = (arrays, jnp.asarray(rows, ids.dtype), jnp.zeros(arrays[0].shape[1], arrays[0].dtype))
    return lax.fori_loop(0, (ids < rows).sum() // size + 1, body, start)[0]


def _gradient_part(
    arrays: tuple[Array, ...], ids: Array, weights: Array, gradients: Array, lookups_at_once: int
) -> tuple[Array, ...]:
    bags, lookups = ids.shape
    rows = arrays[0].shape[0]
    size = min(max(lookups_at_once // lookups, 1), bags)
    chunks = lambda x, fill: jnp.pad(x, [(0, -bags % size), (0, 0)], constant_values=fill).reshape(-1, size, x.shape[1])

    def add(sums: Array, chunk: tuple[Array, Array, Array]) -> tuple[Array, None]:
        ids, weights, gradients = chunk
        return sums.at[ids].add(weights[..., None] * gradients[:, None], mode="drop"), None

    start = jnp.zeros_like(arrays[0])
    return (lax.scan(add, start, (chunks(ids, rows), chunks(weights, 0), chunks(gradients, 0)))[0],)
