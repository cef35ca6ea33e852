"""Exact search with the keys split over the devices of a mesh, such as a datastore in the memory of a whole pod.

Every device finds the best of its own entries. Only their scores and ids are exchanged, so that each device merges the
results of its share of the queries.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped

from memjax.datastore.exact import (
    LARGEST_ID,
    QUERY_BATCH,
    DeviceIndex,
    half_squared_norms,
    load_keys,
    mean_of_first_keys,
    nearest_entries,
    sorted_neighbors,
)
from memjax.datastore.index import Metric, Neighbors
from memjax.datastore.store import Store
from memjax.functional.named_operations import operation

__all__ = ["ShardedIndex", "nearest_entries_sharded"]

Axis = str | tuple[str, ...]


@operation
def nearest_entries_sharded(
    queries: Float[Array, "queries dim"],
    keys: Float[Array, "rows dim"],
    num_neighbors: int,
    *,
    axis: Axis = "data",
    counts: Int[Array, " shards"] | None = None,
    first_ids: Int[Array, " shards"] | None = None,
    metric: Metric = "squared_l2",
    centre: Float[Array, " dim"] | None = None,
    half_norms: Float[Array, " rows"] | None = None,
    block_entries: int = 0,
    precision: Any = "highest",
    mesh: Mesh | None = None,
) -> Neighbors:
    """Finds the same nearest keys as `nearest_entries`, where the rows of the keys are split over the mesh axis `axis`,
    the first `counts[i]` rows of shard i being entries. Call it with global arrays, outside `shard_map`.

    Args:
      queries: `[queries, dim]`. All of them go to every device.
      keys: `[shards * rows_per_shard, dim]`, split over `axis`.
      num_neighbors: Number of neighbours. May exceed the number of entries of a shard, or of all shards.
      axis: Name of the mesh axis, or a tuple of several names.
      counts: int32 `[shards]`, number of entries of each shard. Rows after them are ignored. None = all rows are
        entries.
      first_ids: int32 `[shards]`, number of the first entry of each shard. None = the number of its first row.
      metric: Metric of the scores. See `nearest_entries`.
      centre: `[dim]`, point in the middle of the keys, on every device. See `nearest_entries`.
      half_norms: `[shards * rows_per_shard]`, split like the keys. See `nearest_entries`.
      block_entries: Number of entries compared at once on a device. See `nearest_entries`.
      precision: Precision of the products, as in `jax.numpy.matmul`.
      mesh: Mesh with the axis. None = the mesh that is set by `jax.set_mesh`.

    Returns:
      The result of `nearest_entries`, with the queries split over `axis` if it divides them.

    Raises:
      ValueError: The mesh has no such axis, or its size does not divide the rows.

    Example:
      >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> found = nearest_entries_sharded(jnp.array([[2.0]]), jnp.array([[0.0], [3.0]]), 1, mesh=mesh)
      >>> print(found.scores, found.ids)
      [[1.]] [[1]]
    """
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    sizes = dict((mesh or jax.sharding.get_abstract_mesh()).shape)
    absent = [name for name in axes if name not in sizes]
    if absent:
        raise ValueError(f"axis: given {absent[0]!r}, allowed: {', '.join(sizes) or 'none, since no mesh is set'}")
    shards = math.prod(sizes[name] for name in axes)
    if keys.shape[0] % shards:
        raise ValueError(f"keys: given {keys.shape[0]} rows for {shards} shards, allowed: a multiple; pad, give counts")
    rows = keys.shape[0] // shards
    counts = jnp.full((shards,), rows, jnp.int32) if counts is None else counts
    first_ids = jnp.arange(shards, dtype=jnp.int32) * rows if first_ids is None else first_ids
    num_queries = queries.shape[0]
    queries = jnp.pad(queries, [(0, -num_queries % shards), (0, 0)])

    def on_shard(
        queries: Array, keys: Array, centre: Array | None, norms: Array | None, count: Array, first: Array
    ) -> tuple[Array, Array]:
        local_neighbors = nearest_entries(
            queries,
            keys,
            num_neighbors,
            metric=metric,
            count=count[0],
            centre=centre,
            half_norms=norms,
            block_entries=block_entries,
            precision=precision,
        )
        ids = jnp.where(local_neighbors.valid, local_neighbors.ids + first[0], -1)
        scores, ids = (_deal(array, shards, axes) for array in (local_neighbors.scores, ids))
        merged = sorted_neighbors(scores, ids, num_neighbors, metric)
        return merged.scores, merged.ids

    split, whole = PartitionSpec(axes), PartitionSpec()
    # `check_vma` fails to follow values that vary over the mesh through the loop over blocks.
    merge = jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=(whole, split, whole, split, split, split),
        out_specs=(split, split),
        check_vma=False,
    )
    scores, ids = merge(queries, keys, centre, half_norms, counts, first_ids)
    scores, ids = scores[:num_queries], ids[:num_queries]
    return Neighbors(scores, ids, ids >= 0)


def _deal(candidates: Array, shards: int, axes: tuple[str, ...]) -> Array:
    """Exchanges candidates so that each device has all candidates of its share of the queries.

    It maps `[queries, k]` of this shard to `[queries / shards, shards * k]` of all shards.
    """
    exchanged = lax.all_to_all(candidates.reshape(shards, -1, candidates.shape[1]), axes, 0, 0)
    return jnp.swapaxes(exchanged, 0, 1).reshape(exchanged.shape[1], -1)


class ShardedIndex(DeviceIndex):
    """An index with exact search whose keys are split over the memory of all devices of a mesh.

    With several processes each has to call `search` with the same queries.
    """

    def __init__(
        self,
        keys: Shaped[Any, "rows dim"],
        *,
        entries: int,
        mesh: Mesh,
        axis: Axis = "data",
        metric: Metric = "squared_l2",
        block_entries: int = 0,
        query_batch: int = QUERY_BATCH,
    ):
        """Wraps keys that are on the devices already. `from_store` puts them there.

        Args:
          keys: `[rows, dim]`, split over `axis`, whose size divides the rows.
          entries: Number of entries, which are the first rows. Rows after them are padding.
          mesh: Mesh of the devices.
          axis: Name of the mesh axis, or a tuple of several names.
          metric: "squared_l2" or "inner_product".
          block_entries: Number of entries compared at once on a device. 0 = the default of `nearest_entries`.
          query_batch: Number of queries searched at once.
        """
        super().__init__(metric, entries, keys.shape[1], query_batch)
        shards = num_devices(mesh, axis)
        rows = keys.shape[0] // shards
        self._keys, self._everywhere = keys, NamedSharding(mesh, PartitionSpec())
        counts = np.clip(entries - np.arange(shards) * rows, 0, rows).astype(np.int32)
        self._centre = self._norms = None
        if metric == "squared_l2" and entries:
            self._centre, self._norms = _centre_and_norms(keys, counts, mesh, axis)
        options = {"axis": axis, "metric": metric, "block_entries": block_entries, "mesh": mesh}

        def search(
            queries: Array, keys: Array, centre: Array | None, norms: Array | None, num_neighbors: int
        ) -> Neighbors:
            return nearest_entries_sharded(
                queries, keys, num_neighbors, counts=jnp.asarray(counts), centre=centre, half_norms=norms, **options
            )

        self._compiled = jax.jit(search, static_argnums=4, out_shardings=self._everywhere)

    @classmethod
    def from_store(
        cls, store: Store, *, mesh: Mesh, axis: Axis = "data", metric: Metric = "squared_l2", **options: int
    ) -> ShardedIndex:
        """Makes a sharded index of a store, over the axis `axis` of a mesh. Every process reads the keys for its own
        devices, compared with their checksums. `options` are arguments of `ShardedIndex`.
        """
        if store.entries >= LARGEST_ID:
            raise ValueError(f"entries: given {store.entries}, allowed: below {LARGEST_ID}; split the store")
        rows = math.ceil(store.entries / num_devices(mesh, axis)) * num_devices(mesh, axis)

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(rows)
            ends = min(start, store.entries), min(stop, store.entries)
            return load_keys(store, *ends, rows=stop - start)

        split = NamedSharding(mesh, PartitionSpec(axis))
        keys = jax.make_array_from_callback((rows, store.dim), split, part)
        return cls(keys, entries=store.entries, mesh=mesh, axis=axis, metric=metric, **options)

    def _search_batch(self, queries: np.ndarray, num_neighbors: int) -> Neighbors:
        queries = jax.device_put(queries, self._everywhere)
        return self._compiled(queries, self._keys, self._centre, self._norms, num_neighbors)


def _centre_and_norms(keys: Array, counts: np.ndarray, mesh: Mesh, axis: Axis) -> tuple[Array, Array]:
    """Computes the centre of the keys of all shards, and the norms of the keys, for `nearest_entries`."""

    def prepare(keys: Array, counts: Array) -> tuple[Array, Array]:
        centre = centre_sharded(keys, counts, axis=axis, mesh=mesh)
        split, whole = PartitionSpec(axis), PartitionSpec()
        norms = jax.shard_map(half_squared_norms, mesh=mesh, in_specs=(split, whole), out_specs=split, check_vma=False)
        return centre, norms(keys, centre)

    return jax.jit(prepare)(keys, counts)


def centre_sharded(keys: Array, counts: Int[Array, " shards"], *, axis: Axis, mesh: Mesh | None = None) -> Array:
    """Computes, on every device, the mean `[dim]` of a sample of the keys of all shards along `axis`, as the `centre`
    of `nearest_entries_sharded`. `counts` are the numbers of entries of the shards.
    """

    def on_shard(keys: Array, count: Array) -> Array:
        total, number = lax.psum(mean_of_first_keys(keys, count[0]), axis)
        return total / jnp.maximum(number, 1)

    split = PartitionSpec(axis)
    return jax.shard_map(on_shard, mesh=mesh, in_specs=(split, split), out_specs=PartitionSpec(), check_vma=False)(
        keys, counts
    )


def num_devices(mesh: Mesh, axis: Axis) -> int:
    """Returns the number of devices along the mesh axis `axis`, or the product over a tuple of axes."""
    return math.prod(mesh.shape[name] for name in ((axis,) if isinstance(axis, str) else axis))
