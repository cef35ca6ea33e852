"""Episodic memory on the devices: a fixed number of slots for rows of earlier batches.

`EpisodicMemoryState` is a tree of arrays that is stored in `TrainState.method` and its checkpoints. All functions are
pure and run inside `jax.jit`, with one program for every number of rows. A policy of `memjax.lifelong.policies`
decides which rows are written. Donate a memory that is written to (`donate_argnums`), or each write copies it.
`memjax.lifelong.host_memory.HostMemory` is for more rows than the devices can hold.

Rows are trees of arrays with the rows at axis 0, such as `{"x": ..., "y": ...}`, or those of a `Batch` without its
`segments` axis. If the memory has fewer rows than were asked for, the missing ones are padding, with which `sample`
returns weights of 0. Padding of a `Batch` has the mask False and weights of 0, other padding is all zeros. Replay in a
training loop of your own, here of two tasks that share their parameters:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from memjax.lifelong import init_memory, sample, write
    >>> from memjax.lifelong.policies import reservoir_policy
    >>> def loss(params, rows, weights):
    ...     return jnp.average((rows["x"] @ params - rows["y"]) ** 2, weights=weights)
    >>> @jax.jit
    ... def update(params, memory, rows, key):
    ...     write_key, sample_key = jax.random.split(key)
    ...     replayed, weights = sample(memory, sample_key, 8)
    ...     both = jax.tree.map(lambda new, old: jnp.concatenate([new, old]), rows, replayed)
    ...     params -= 0.2 * jax.grad(loss)(params, both, jnp.append(jnp.ones(8), weights))
    ...     return params, write(memory, rows, write_key, reservoir_policy())
    >>> params, memory = jnp.zeros(2), init_memory({"x": jnp.zeros(2), "y": jnp.zeros(())}, capacity=64)
    >>> tasks = [(jnp.array([1.0, 0.5]), 1.0), (jnp.array([0.5, 1.0]), -1.0)]
    >>> for step in range(200):
    ...     x, y = tasks[step // 100]
    ...     rows = {"x": jnp.tile(x, (8, 1)), "y": jnp.full(8, y)}
    ...     params, memory = update(params, memory, rows, jax.random.key(step))
    >>> print(*(round(float(x @ params), 1) for x, y in tasks))  # the answers to both tasks; without replay -0.4 -1.0
    1.0 -1.0
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Shaped

from memjax.axes import axes_of
from memjax.datastore.exact import mean_of_first_keys, nearest_entries
from memjax.datastore.index import Metric
from memjax.datastore.sharded import Axis, centre_sharded, nearest_entries_sharded, num_devices
from memjax.functional.named_operations import operation
from memjax.lifelong.policies import CandidateRows, MemoryEntries, Policy
from memjax.lifelong.stored_rows import (
    check_key,
    check_memory,
    check_row,
    is_policy,
    make_candidates,
    mask_invalid,
    require_integer,
)
from memjax.typing import Leaf, tree_dataclass


@tree_dataclass
class EpisodicMemoryState:
    """Stored rows with their keys, groups and scores. The first `count` slots are in use, in no particular order.

    It has three counters, because none of them follows from the others once rows are refused or deleted.

    Attributes:
      rows: Tree of the stored rows, such as a `Batch`, with leaves `[capacity, ...]`.
      groups: Task or class of every row, int32 `[capacity]`. -1 if it is unknown.
      scores: Score that the policy stores with every row, float32 `[capacity]`.
      count: Number of rows in use, int32 scalar.
      offered: Number of rows that were offered so far, int32 scalar. It stops at 2^31 - 1.
      written: Number of rows that were written so far, int32 scalar. Rows that were replaced since count too.
      keys: Keys of the rows, `[capacity, key_dim]`. None for a memory without keys.
    """

    rows: Leaf = dataclasses.field(metadata=axes_of("entries"))
    groups: Leaf = dataclasses.field(metadata=axes_of("entries"))
    scores: Leaf = dataclasses.field(metadata=axes_of("entries"))
    count: Leaf = dataclasses.field(metadata=axes_of())
    offered: Leaf = dataclasses.field(metadata=axes_of())
    written: Leaf = dataclasses.field(metadata=axes_of())
    keys: Leaf = dataclasses.field(default=None, metadata=axes_of("entries"))

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.groups.shape[0]

    @property
    def entries(self) -> MemoryEntries:
        """The memory without its rows, as the `MemoryEntries` that policies read: keys, groups, scores and counters."""
        return MemoryEntries(self.keys, self.groups, self.scores, self.count, self.offered, self.written)


class Nearest(NamedTuple):
    """The nearest stored rows of each query, the nearest first: their slots, their distances, and whether they exist,
    each `[queries, number]`.

    Attributes:
      ids: Slots of the rows, int `[queries, number]`. -1 if the memory has fewer rows.
      distances: Squared distances or inner products, `[queries, number]`. Infinite or minus infinite for missing rows.
      valid: Whether there is a row, bool `[queries, number]`.
    """

    ids: Leaf
    distances: Leaf
    valid: Leaf


class MemoryUpdate(NamedTuple):
    """The changes of one write: slots and scores of the offered rows, and the counters of the memory after it.

    Attributes:
      slots: Slot of every offered row, int32 `[offered]`. No slot occurs twice. The capacity means not written.
      scores: Scores of the offered rows, float32 `[offered]`.
      count: Number of rows in use after the write.
      offered: Number of rows offered so far, after the write.
      written: Number of rows written so far, after the write.
    """

    slots: Leaf
    scores: Leaf
    count: Leaf
    offered: Leaf
    written: Leaf


def init_memory(row: Any, capacity: int, key_dim: int = 0, *, key_dtype: Any = jnp.float32) -> EpisodicMemoryState:
    """Makes an empty memory with `capacity` slots for rows such as `row`, a tree with shapes and dtypes of one row
    without batch axis. Keys have width `key_dim`, with 0 there are none.

    Args:
      row: Shapes and dtypes of one row without any batch axis, as a tree of arrays, numbers or `jax.ShapeDtypeStruct`.
      capacity: Number of slots.
      key_dim: Width of a key. 0 for a memory without keys.
      key_dtype: Dtype of the stored keys.

    Raises:
      ValueError: the capacity is below 1, the key width is negative, the row has a leaf that is no array, or it is a
        `Batch` without mask, weights or start of the document.

    Example:
      >>> from memjax.typing import Batch
      >>> token, flag = jax.ShapeDtypeStruct((4,), jnp.int32), jax.ShapeDtypeStruct((), bool)
      >>> row = Batch(token, token, jax.ShapeDtypeStruct((4,), bool), jax.ShapeDtypeStruct((4,), jnp.float32), flag)
      >>> memory = init_memory(row, capacity=3)
      >>> print(memory.rows.inputs.shape, memory.count)
      (3, 4) 0
    """
    require_integer("capacity", capacity, 1, "1 or more rows")
    require_integer("key_dim", key_dim, 0, "0 (no keys) or more")
    check_row(row)
    zero = lambda: jnp.zeros((), jnp.int32)  # A separate buffer for each counter, so that they can be donated.
    return EpisodicMemoryState(
        rows=jax.tree.map(lambda leaf: jnp.zeros((capacity, *np.shape(leaf)), jnp.result_type(leaf)), row),
        groups=jnp.full(capacity, -1, jnp.int32),
        scores=jnp.zeros(capacity, jnp.float32),
        count=zero(),
        offered=zero(),
        written=zero(),
        keys=jnp.zeros((capacity, key_dim), key_dtype) if key_dim else None,
    )


def write(
    memory: EpisodicMemoryState,
    rows: Any,
    key: Any,
    policy: Policy,
    *,
    keys: Float[Any, "rows key_dim"] | None = None,
    groups: Int[Any, " rows"] | None = None,
    scores: Float[Any, " rows"] | None = None,
    weights: Float[Any, " rows"] | None = None,
) -> EpisodicMemoryState:
    """Offers rows to a policy, writes those that it gives a slot, and returns the new memory. `key` is a random key,
    whereas `keys` are the vectors by which rows are searched. Rows of weight 0 are not offered.

    Args:
      memory: Memory to write to. Donate it (`donate_argnums`).
      rows: Rows to offer, a tree such as that of `init_memory` with leaves `[rows, ...]`. Rows of a `Batch` whose
        target weights are all 0 are padding, which is not offered.
      key: Random key.
      policy: Policy from `memjax.lifelong.policies`.
      keys: Keys of the rows, given if and only if the memory has keys.
      groups: Tasks or classes of the rows. None if they are unknown, which stores -1.
      scores: Scores that the learner gives the rows. None for 0.
      weights: Weights of the rows. Rows of weight 0 are not offered. None to offer all rows.

    Returns:
      The memory after the write.

    Raises:
      ValueError: rows have other shapes or dtypes than those of the memory, keys are missing or not expected, or the
        random key or the policy is none.
    """
    check_memory(memory)
    check_key(key)
    keys = None if keys is None else lax.stop_gradient(jnp.asarray(keys))
    offered = make_candidates(memory, rows, keys, groups, scores, weights)
    new = assign_slots(memory.entries, offered, key, policy)
    put = lambda old, values: old.at[new.slots].set(jnp.asarray(values, old.dtype), mode="drop")
    return EpisodicMemoryState(
        rows=jax.tree.map(put, memory.rows, rows),
        groups=put(memory.groups, offered.groups),
        scores=put(memory.scores, new.scores),
        count=new.count,
        offered=new.offered,
        written=new.written,
        keys=None if memory.keys is None else put(memory.keys, offered.keys),
    )


def sample(memory: EpisodicMemoryState, key: Any, number: int, *, replace: bool = True) -> tuple[Any, Array]:
    """Draws `number` rows uniformly at random by the random key `key`. Returns a tree of them and their weights: 1 for
    a row, 0 for padding if the memory is empty, or has too few rows without `replace`.

    Args:
      memory: Memory to draw from.
      key: Random key.
      number: Number of rows to draw.
      replace: Whether to draw with replacement. If not, rows that the memory lacks are padding.

    Returns:
      The rows, and their weights, float32 `[number]`: 1 for a row, 0 for padding.
    """
    check_memory(memory)
    ids = draw(memory.count, memory.capacity, key, number, replace=replace)
    return read_slots(memory, ids), (ids >= 0).astype(jnp.float32)


def read_slots(memory: EpisodicMemoryState, ids: Int[Any, " *some"]) -> Any:
    """Returns the rows in the slots `ids`, those of a `Batch` marked as starts of documents. -1 and slots that are not
    in use give padding.

    Args:
      memory: Memory to read from.
      ids: Slots, integers of any shape, which replaces the axis of rows. -1 and slots that are not in use give padding.
    """
    ids = jnp.asarray(ids)
    valid = (ids >= 0) & (ids < memory.count)
    return mask_invalid(jax.tree.map(lambda leaf: leaf[jnp.where(valid, ids, 0)], memory.rows), valid)


@operation
def nearest(
    memory: EpisodicMemoryState,
    queries: Float[Array, "queries key_dim"],
    number: int,
    *,
    metric: Metric = "squared_l2",
    axis: Axis | None = None,
    mesh: Mesh | None = None,
) -> Nearest:
    """Finds the `number` rows whose keys are nearest to each query `[queries, key_dim]`, by exact search without
    gradients. Returns their slots and distances (`Nearest`). `axis` of the device mesh is the one that rows are split
    over.

    Args:
      memory: Memory with keys.
      queries: Queries `[queries, key_dim]`.
      number: Number of rows to find for each query. It may exceed the number of rows in use.
      metric: "squared_l2" or "inner_product".
      axis: Mesh axis or axes that the rows (`entries`) are split over. None if they are not split.
      mesh: Mesh with the axis. None for the mesh that is set.

    Raises:
      ValueError: the memory has no keys, the metric is unknown, or queries have another width than keys.
    """
    check_memory(memory)
    if memory.keys is None:
        raise ValueError("memory: given one without keys, allowed: init_memory with key_dim of 1 or more")
    if queries.shape[1] != memory.keys.shape[1]:
        raise ValueError(f"queries: given width {queries.shape[1]}, allowed: {memory.keys.shape[1]}, that of the keys")
    return search(queries, memory.keys, memory.count, number, metric=metric, axis=axis, mesh=mesh)


def delete(memory: EpisodicMemoryState, chosen: Shaped[Any, " some"]) -> EpisodicMemoryState:
    """Returns the memory without the rows `chosen`, which are given by their slots or by a mask of all slots. The last
    rows in use move to the free slots.

    Old contents stay in the slots that are no longer in use until they are written again.

    Args:
      memory: Memory to change. Donate it (`donate_argnums`).
      chosen: Rows to delete: slots int `[some]`, of which those not in use are ignored, or a mask bool `[capacity]`. A
        mask may move all rows at once and needs the space for that.
    """
    holes, sources, count = plan_compaction(memory.count, memory.capacity, chosen)
    put = lambda leaf: leaf.at[holes].set(leaf[sources], mode="drop")
    rows, groups, scores, keys = jax.tree.map(put, (memory.rows, memory.groups, memory.scores, memory.keys))
    return dataclasses.replace(memory, rows=rows, groups=groups, scores=scores, keys=keys, count=count)


def set_scores(memory: EpisodicMemoryState, ids: Int[Any, " some"], scores: Float[Any, " some"]) -> EpisodicMemoryState:
    """Returns the memory with other scores of the rows in the slots `ids`, such as the forgetting events of replayed
    rows. Ids below 0 are ignored.
    """
    slots = jnp.where(jnp.asarray(ids) < 0, memory.capacity, ids)
    return dataclasses.replace(memory, scores=memory.scores.at[slots].set(scores, mode="drop"))


def draw(
    count: int | Int[Array, ""], capacity: int, key: Any, number: int, *, replace: bool = True
) -> Int[Array, " number"]:
    """Draws `number` of the first `count` slots, those in use, uniformly at random by the random key `key`, by default
    with replacement. Returns slot numbers. -1 if none is in use, and without replacement if there are too few.

    Args:
      count: Number of slots in use, which are the first ones.
      capacity: Number of slots.
      key: Random key.
      number: Number of slots to draw.
      replace: Whether to draw with replacement. If not, all slots differ, and -1 fills up if too few are in use.

    Returns:
      Slots, int `[number]`. All are -1 if none is in use.

    Example:
      >>> print(jnp.sort(draw(2, 5, jax.random.key(0), 3, replace=False)))
      [-1  0  1]
    """
    check_key(key)
    require_integer("number", number, 1, "1 or more rows")
    if replace:
        ids = jax.random.randint(key, (number,), 0, jnp.maximum(count, 1))
        return jnp.where(count > 0, ids, -1)
    order = jnp.where(lax.iota(jnp.int32, capacity) < count, jax.random.uniform(key, (capacity,)), -1)
    priorities, ids = lax.top_k(order, min(number, capacity))
    return jnp.pad(jnp.where(priorities >= 0, ids, -1), (0, max(0, number - capacity)), constant_values=-1)


def assign_slots(entries: MemoryEntries, offered: CandidateRows, key: Any, policy: Policy) -> MemoryUpdate:
    """Applies a policy to offered rows without writing them. Returns a `MemoryUpdate`: the slot of each row (the
    capacity if it is rejected), its score, and the new counters. If rows share a slot, the last of them gets it.

    Args:
      entries: Contents of the memory.
      offered: Rows that are offered.
      key: Random key.
      policy: Policy from `memjax.lifelong.policies`.
    """
    capacity = entries.capacity
    if not is_policy(policy):
        policy_name = getattr(policy, "__name__", repr(policy))
        raise ValueError(
            f"policy: given {policy_name}, allowed: one of memjax.lifelong.policies, such as reservoir_policy()"
        )
    decision = policy(entries, offered, key)
    accepted = decision.slots < capacity
    # A scatter that writes a slot twice has no defined order. So of equal slots, sorted stably, the last is kept.
    order = jnp.argsort(decision.slots, stable=True)
    ordered = decision.slots[order]
    last = jnp.append(ordered[1:] != ordered[:-1], True)
    slots = decision.slots.at[order].set(jnp.where(last, ordered, capacity))
    end = jnp.max(jnp.where(accepted, decision.slots + 1, 0))
    more = jnp.minimum(jnp.sum(offered.present), jnp.iinfo(jnp.int32).max - entries.offered)
    return MemoryUpdate(
        slots=slots,
        scores=decision.scores,
        count=jnp.maximum(entries.count, end).astype(jnp.int32),
        offered=(entries.offered + more).astype(jnp.int32),
        written=(entries.written + jnp.sum(accepted)).astype(jnp.int32),
    )


def plan_compaction(
    count: Any, capacity: int, chosen: Any
) -> tuple[Int[Array, " some"], Int[Array, " some"], Int[Array, ""]]:
    """Plans the moves of rows that close the gaps of deleted rows. Returns the slots that rows move to and from, and
    the number of rows in use afterwards. `chosen` are slots to delete, or a mask of all slots.

    Args:
      count: Number of rows in use.
      capacity: Number of slots.
      chosen: Rows to delete, slots or a mask. See `delete`.

    Returns:
      Slots that rows move to (the capacity for no move), slots that they move from, and the number of rows in use
      afterwards.
    """
    chosen = jnp.asarray(chosen)
    gone, room = chosen, capacity
    if chosen.dtype != bool:
        room = min(chosen.shape[0], capacity)
        gone = jnp.zeros(capacity, bool).at[jnp.where(chosen < 0, capacity, chosen)].set(True, mode="drop")
    elif chosen.shape != (capacity,):
        raise ValueError(f"chosen: given bool {list(chosen.shape)}, allowed: bool [{capacity}] or ids")
    slots = lax.iota(jnp.int32, capacity)
    used = slots < count
    left = (count - jnp.sum(gone & used)).astype(jnp.int32)
    holes = jnp.nonzero(gone & (slots < left), size=room, fill_value=capacity)[0]
    sources = jnp.nonzero(~gone & used & (slots >= left), size=room, fill_value=0)[0]
    return holes, sources, left


def search(
    queries: Any, keys: Any, count: Any, number: int, *, metric: Metric, axis: Any = None, mesh: Any = None
) -> Nearest:
    """Finds the `number` nearest of the first `count` keys for each query, and returns their indices and distances
    (`Nearest`). See `nearest` for `metric`, `axis` and `mesh`.
    """
    centre, distances = None, metric == "squared_l2"
    if axis is None:
        if distances:
            total, some = mean_of_first_keys(keys, count)
            centre = total / jnp.maximum(some, 1)
        neighbors = nearest_entries(queries, keys, number, metric=metric, count=count, centre=centre)
    else:
        mesh_of_axis: Any = mesh or jax.sharding.get_abstract_mesh()
        shards = num_devices(mesh_of_axis, axis)
        rows = keys.shape[0] // shards
        counts = jnp.clip(count - rows * jnp.arange(shards), 0, rows).astype(jnp.int32)
        if distances:
            centre = centre_sharded(keys, counts, axis=axis, mesh=mesh)
        neighbors = nearest_entries_sharded(
            queries, keys, number, axis=axis, counts=counts, metric=metric, centre=centre, mesh=mesh
        )
    return Nearest(neighbors.ids, neighbors.scores, neighbors.valid)
