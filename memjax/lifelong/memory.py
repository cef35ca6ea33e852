"""Episodic memory: rows of batches that a learner keeps, on the devices, with a fixed capacity.

`EpisodicMemory` is a tree of arrays, for `TrainState.method` and its checkpoints; all functions are pure and run inside
`jax.jit`, with one program for every number of rows. Who is written is said by a policy of `memjax.lifelong.policies`.
Give a memory that is written to away (`donate_argnums`), else each write copies it. A memory that outgrows the devices
is `memjax.lifelong.host_memory.HostMemory`.

    memory = init_memory(row, capacity=1000, key_dim=768)
    memory = write(memory, rows, key, policies.reservoir(), keys=keys)
    rows, weights = sample(memory, key, 32)
    rows = take(memory, nearest(memory, queries, 32).ids)

Rows are those of a `Batch` without its `segments` axis. One that is missing, where the memory has fewer than were asked
for, is padding: its mask is False and its weights are 0, so that it teaches nothing.
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
from memjax.datastore.exact import middle, nearest_entries
from memjax.datastore.index import Metric
from memjax.datastore.sharded import Axis, centre_sharded, nearest_entries_sharded, num_devices
from memjax.functional.scopes import operation
from memjax.lifelong.policies import CandidateRows, MemoryEntries, Policy
from memjax.typing import Batch, Leaf, tree_dataclass

__all__ = [
    "EpisodicMemoryState",
    "Nearest",
    "MemoryUpdate",
    "assign_slots",
    "delete",
    "draw",
    "init_memory",
    "nearest",
    "sample",
    "set_scores",
    "statistics",
    "read_slots",
    "write",
]


@tree_dataclass
class EpisodicMemoryState:
    """Rows with what is known of them; those in use are the first `count`, in no particular order.

    Three counters, since none follows from the others once a policy is thinning out or rows are deleted.

    Attributes:
      rows: a `Batch` whose leaves are `[capacity, ...]`.
      groups: int32 `[capacity]`, the task or class of a row; -1 = not known.
      scores: float32 `[capacity]`, what the policy keeps of a row.
      count: int32 scalar, rows in use.
      offered: int32 scalar, rows that have been offered so far; it stops at 2^31 - 1.
      written: int32 scalar, rows that have been given a slot so far, those included that were replaced since.
      keys: `[capacity, key_dim]`, or None: rows are not looked up by keys.
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
        """Rows that it can hold."""
        return self.groups.shape[0]

    @property
    def entries(self) -> MemoryEntries:
        """As policies see it."""
        return MemoryEntries(self.keys, self.groups, self.scores, self.count, self.offered, self.written)


class Nearest(NamedTuple):
    """The nearest rows of each query, best first.

    Attributes:
      ids: int `[queries, number]`, slots; -1 = there are not as many rows.
      distances: `[queries, number]`, squared distances, or products; infinity or minus infinity where there is none.
      valid: bool `[queries, number]`.
    """

    ids: Leaf
    distances: Leaf
    valid: Leaf


class MemoryUpdate(NamedTuple):
    """What a policy changes.

    Attributes:
      slots: int32 `[offered]`, no slot twice; the capacity = not written.
      scores: float32 `[offered]`, of the rows.
      count: rows in use afterwards.
      offered: counter, afterwards.
      written: counter, afterwards.
    """

    slots: Leaf
    scores: Leaf
    count: Leaf
    offered: Leaf
    written: Leaf


def init_memory(row: Batch, capacity: int, key_dim: int = 0, *, key_dtype: Any = jnp.float32) -> EpisodicMemoryState:
    """An empty memory.

    Args:
      row: shapes and dtypes of one row, without any batch axis: arrays or `jax.ShapeDtypeStruct`.
      capacity: rows.
      key_dim: width of a key; 0 = rows have no keys.
      key_dtype: in which keys are kept.

    Raises:
      ValueError: no capacity.

    Example:
      >>> token, flag = jax.ShapeDtypeStruct((4,), jnp.int32), jax.ShapeDtypeStruct((), bool)
      >>> row = Batch(token, token, jax.ShapeDtypeStruct((4,), bool), jax.ShapeDtypeStruct((4,), jnp.float32), flag)
      >>> memory = init_memory(row, capacity=3)
      >>> print(memory.rows.inputs.shape, memory.count)
      (3, 4) 0
    """
    if capacity < 1:
        raise ValueError(f"capacity: given {capacity}, allowed: 1 or more rows")
    if key_dim < 0:
        raise ValueError(f"key_dim: given {key_dim}, allowed: 0 (no keys) or more")
    zero = lambda: jnp.zeros((), jnp.int32)  # a buffer of its own for each, for donation
    return EpisodicMemoryState(
        rows=jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row),
        groups=jnp.full(capacity, -1, jnp.int32),
        scores=jnp.zeros(capacity, jnp.float32),
        count=zero(),
        offered=zero(),
        written=zero(),
        keys=jnp.zeros((capacity, key_dim), key_dtype) if key_dim else None,
    )


def write(
    memory: EpisodicMemoryState,
    rows: Batch,
    key: Any,
    policy: Policy,
    *,
    keys: Float[Any, "rows key_dim"] | None = None,
    groups: Int[Any, " rows"] | None = None,
    scores: Float[Any, " rows"] | None = None,
    weights: Float[Any, " rows"] | None = None,
) -> EpisodicMemoryState:
    """Offers rows to a policy, and writes those that it gives a slot.

    Args:
      memory: give it away (`donate_argnums`).
      rows: `[rows, ...]`; a row whose own weights are all 0 is padding, which is neither offered nor counted.
      key: all that is random.
      policy: from `memjax.lifelong.policies`.
      keys: of the rows; given if and only if the memory has keys.
      groups: tasks or classes of the rows; None = -1, not known.
      scores: what the learner says of the rows; None = 0.
      weights: 0 = do not offer this row either; None = 1.

    Raises:
      ValueError: rows of other shapes or dtypes than those of the memory, or keys missing or too many.
    """
    keys = None if keys is None else lax.stop_gradient(jnp.asarray(keys))
    offered = make_candidates(memory, rows, keys, groups, scores, weights)
    new = assign_slots(memory.entries, offered, key, policy)
    put = lambda old, given: old.at[new.slots].set(jnp.asarray(given, old.dtype), mode="drop")
    return EpisodicMemoryState(
        rows=jax.tree.map(put, memory.rows, rows),
        groups=put(memory.groups, offered.groups),
        scores=put(memory.scores, new.scores),
        count=new.count,
        offered=new.offered,
        written=new.written,
        keys=None if memory.keys is None else put(memory.keys, offered.keys),
    )


def sample(memory: EpisodicMemoryState, key: Any, number: int, *, replace: bool = True) -> tuple[Batch, Array]:
    """Rows drawn uniformly, and float32 `[number]` weights: 0 = there is no such row.

    Args:
      memory: to draw from.
      key: all that is random.
      number: of rows.
      replace: False = different rows; those that the memory lacks have weight 0.
    """
    ids = draw(memory.count, memory.capacity, key, number, replace=replace)
    return read_slots(memory, ids), (ids >= 0).astype(jnp.float32)


def read_slots(memory: EpisodicMemoryState, ids: Int[Any, " *some"]) -> Batch:
    """The rows of some slots, as the beginnings of documents; what is not in use is padding.

    Args:
      memory: to take from.
      ids: of any shape, which takes the place of the axis of rows; -1 = none.
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
    """The rows whose keys are nearest to each query, exactly; no gradient flows from here.

    Args:
      memory: with keys.
      queries: `[queries, key_dim]`.
      number: of rows; may be more than there are.
      metric: "squared_l2" or "inner_product".
      axis: of a mesh over which the memory is split (`entries`), or several, else None.
      mesh: with the axis; None = the one that is set.

    Raises:
      ValueError: a memory without keys, an unknown metric, or queries of another width.
    """
    if memory.keys is None:
        raise ValueError("memory: given one without keys, allowed: init_memory with key_dim of 1 or more")
    if queries.shape[1] != memory.keys.shape[1]:
        raise ValueError(f"queries: given width {queries.shape[1]}, allowed: {memory.keys.shape[1]}, that of the keys")
    return search(queries, memory.keys, memory.count, number, metric=metric, axis=axis, mesh=mesh)


def delete(memory: EpisodicMemoryState, chosen: Shaped[Any, " some"]) -> EpisodicMemoryState:
    """Without some rows; the last ones take their slots. What was in a slot stays there until it is written again.

    Args:
      memory: give it away.
      chosen: ids int `[some]` (what is not in use is ignored), or bool `[capacity]`, which moves up to all rows at
        once and needs the space for it.
    """
    holes, sources, count = plan_compaction(memory.count, memory.capacity, chosen)
    put = lambda leaf: leaf.at[holes].set(leaf[sources], mode="drop")
    rows, groups, scores, keys = jax.tree.map(put, (memory.rows, memory.groups, memory.scores, memory.keys))
    return dataclasses.replace(memory, rows=rows, groups=groups, scores=scores, keys=keys, count=count)


def set_scores(memory: EpisodicMemoryState, ids: Int[Any, " some"], scores: Float[Any, " some"]) -> EpisodicMemoryState:
    """With new scores of some rows, such as those that were replayed and forgotten; ids below 0 are ignored."""
    slots = jnp.where(jnp.asarray(ids) < 0, memory.capacity, ids)
    return dataclasses.replace(memory, scores=memory.scores.at[slots].set(scores, mode="drop"))


def statistics(memory: EpisodicMemoryState, num_groups: int) -> dict[str, Any]:
    """Figures of a memory.

    Args:
      memory: to look at.
      num_groups: groups 0, 1, ... that are counted.

    Returns:
      `acceptance_rate`, rows written of those offered; `fill`, rows in use of the capacity; `share`,
      float32 `[num_groups]`, of the rows in use; `bytes`, of all arrays.
    """
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(memory))
    return {**group_shares(memory.entries, num_groups), "bytes": float(size)}


def draw(
    count: int | Int[Array, ""], capacity: int, key: Any, number: int, *, replace: bool = True
) -> Int[Array, " number"]:
    """Ids of slots in use, drawn uniformly; -1 where there is none.

    Args:
      count: the first slots are in use.
      capacity: slots.
      key: all that is random.
      number: of ids.
      replace: False = different ids.

    Example:
      >>> print(jnp.sort(draw(2, 5, jax.random.key(0), 3, replace=False)))
      [-1  0  1]
    """
    if number < 1:
        raise ValueError(f"number: given {number}, allowed: 1 or more rows")
    if replace:
        ids = jax.random.randint(key, (number,), 0, jnp.maximum(count, 1))
        return jnp.where(count > 0, ids, -1)
    order = jnp.where(lax.iota(jnp.int32, capacity) < count, jax.random.uniform(key, (capacity,)), -1)
    drawn, ids = lax.top_k(order, min(number, capacity))
    return jnp.pad(jnp.where(drawn >= 0, ids, -1), (0, max(0, number - capacity)), constant_values=-1)


def assign_slots(entries: MemoryEntries, offered: CandidateRows, key: Any, policy: Policy) -> MemoryUpdate:
    """What a policy changes: of the rows that it gives one slot the last is written."""
    capacity = entries.capacity
    decision = policy(entries, offered, key)
    accepted = decision.slots < capacity
    # A scatter with a slot twice has no order. Sorted by slot, the last of equal ones stands before another.
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


def make_candidates(memory: Any, rows: Batch, keys: Any, groups: Any, scores: Any, weights: Any) -> CandidateRows:
    """The rows as policies see them, after a check; `memory` and they are on devices or on the host."""
    described = lambda tree, skip: {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{jnp.result_type(leaf)} {list(leaf.shape[skip:])}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    number = rows.weights.shape[0]
    have, given = described(memory.rows, 1), described(rows, 1)
    wrong = [name for name in {**have, **given} if have.get(name) != given.get(name)]
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"rows.{name}: given {given.get(name, 'none')}, allowed: {have.get(name, 'none')} for each row"
        )
    width = None if memory.keys is None else memory.keys.shape[1]
    if (None if keys is None else tuple(keys.shape)) != (None if width is None else (number, width)):
        shape = "none" if keys is None else list(keys.shape)
        raise ValueError(f"keys: given {shape}, allowed: {'none' if width is None else [number, width]}, see key_dim")
    present = (rows.weights.reshape(number, -1) > 0).any(axis=1)
    if weights is not None:
        present &= weights > 0
    groups = np.full(number, -1) if groups is None else groups
    scores = np.zeros(number) if scores is None else scores
    return CandidateRows(keys, groups.astype(np.int32), scores.astype(np.float32), present)


def mask_invalid(rows: Batch, valid: Any) -> Batch:
    """Rows on devices or on the host, of which those that are not valid are padding."""
    like = lambda leaf: valid.reshape(valid.shape + (1,) * (leaf.ndim - valid.ndim))
    return dataclasses.replace(
        rows,
        mask=rows.mask & like(rows.mask),
        weights=rows.weights * like(rows.weights),
        start_of_document=rows.start_of_document | True,
    )


def plan_compaction(
    count: Any, capacity: int, chosen: Any
) -> tuple[Int[Array, " some"], Int[Array, " some"], Int[Array, ""]]:
    """(slots that rows move to, where they are now, rows in use afterwards); the capacity = no move."""
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


def group_shares(entries: MemoryEntries, num_groups: int) -> dict[str, Any]:
    """The figures of `statistics` that are counted."""
    used = lax.iota(jnp.int32, entries.capacity) < entries.count
    groups = jnp.where(used & (entries.groups >= 0), entries.groups, num_groups)
    found = jnp.zeros(num_groups, jnp.float32).at[groups].add(1, mode="drop")
    return {
        "acceptance_rate": entries.written / jnp.maximum(entries.offered, 1),
        "fill": entries.count / entries.capacity,
        "share": found / jnp.maximum(entries.count, 1),
    }


def search(
    queries: Any, keys: Any, count: Any, number: int, *, metric: Metric, axis: Any = None, mesh: Any = None
) -> Nearest:
    """The nearest of the first `count` keys."""
    centre, distances = None, metric == "squared_l2"
    if axis is None:
        if distances:
            total, some = middle(keys, count)
            centre = total / jnp.maximum(some, 1)
        found = nearest_entries(queries, keys, number, metric=metric, count=count, centre=centre)
    else:
        over: Any = mesh or jax.sharding.get_abstract_mesh()
        shards = num_devices(over, axis)
        rows = keys.shape[0] // shards
        counts = jnp.clip(count - rows * jnp.arange(shards), 0, rows).astype(jnp.int32)
        if distances:
            centre = centre_sharded(keys, counts, axis=axis, mesh=mesh)
        found = nearest_entries_sharded(
            queries, keys, number, axis=axis, counts=counts, metric=metric, centre=centre, mesh=mesh
        )
    return Nearest(found.ids, found.scores, found.valid)
