"""Episodic memory on the host, for more rows than the devices can hold. See `memjax.lifelong.episodic_memory`."""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from memjax.datastore.exact import QUERY_BATCH, pad_query_batches
from memjax.datastore.index import (
    Metric,
    Neighbors,
    check_metric,
    check_queries,
    merge_neighbors,
)
from memjax.datastore.scann import ScannIndex, ScannSettings, build_scann_in_memory
from memjax.lifelong.episodic_memory import (
    Nearest,
    assign_slots,
    draw,
    init_memory,
    plan_compaction,
    search,
)
from memjax.lifelong.policies import MemoryEntries, Policy
from memjax.lifelong.stored_rows import has_weight, make_candidates, mask_invalid

BLOCK = 65536
"""Number of keys that are on a device at once."""
SMALLEST_BLOCK = 1024
"""Smallest number of keys in a search. Fewer keys are padded, so that few programs are compiled."""
SPARE = 3
"""Most additional candidates per neighbour that are asked for to make up for slots that were replaced since."""


class HostMemory:
    """An episodic memory of NumPy arrays on the host. Its methods do the same as the functions of
    `memjax.lifelong.episodic_memory`, but change the memory in place.

    The same random keys give the same writes and draws as on a device. `arrays` and `restore` make it usable as the
    `host` of a `memjax.training.stages.Learner`. A policy is compiled when it is first used, so make it once.

    Keys are searched exactly, in blocks that go to the default device one after the other, or with ScaNN. A ScaNN index
    knows the keys of the time when it was built. Slots that were written since are left out of its results and
    searched exactly. Once they are half of the rows, the next search builds a new index. The index is not saved, and
    two builds find different neighbours, so only exact search is reproducible after a restart.

    Attributes:
      rows: Tree of the stored rows, such as a `Batch`, with NumPy arrays `[capacity, ...]`.
      keys: Keys of the rows, `[capacity, key_dim]`. None for a memory without keys.
      groups: Task or class of every row, int32 `[capacity]`. -1 if it is unknown.
      scores: Score that the policy stores with every row, float32 `[capacity]`.
      count: Number of rows in use.
      offered: Number of rows that were offered so far.
      written: Number of rows that were written so far.
    """

    def __init__(
        self,
        row: Any,
        capacity: int,
        key_dim: int = 0,
        *,
        key_dtype: Any = np.float32,
        index: str = "exact",
        settings: ScannSettings | None = None,
    ):
        """Makes an empty memory.

        Args:
          row: Shapes and dtypes of one row without any batch axis. See `init_memory`.
          capacity: Number of slots.
          key_dim: Width of a key. 0 for a memory without keys.
          key_dtype: Dtype of the stored keys.
          index: Search of keys, "exact" or "scann".
          settings: Settings of ScaNN. With fewer rows than `brute_force_entries` the search is exact. None for the
            default settings.

        Raises:
          ValueError: the capacity is below 1, or the index is unknown.
          ModuleNotFoundError: ScaNN is not installed.
        """
        if index not in ("exact", "scann"):
            raise ValueError(f"index: given {index!r}, allowed: exact, scann")
        if index == "scann" and importlib.util.find_spec("scann") is None:
            raise ModuleNotFoundError("index: scann is not installed; pip install 'memjax[knn]'", name="scann")
        shapes = jax.eval_shape(lambda: init_memory(row, capacity, key_dim, key_dtype=key_dtype))
        zeros = lambda tree: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tree)
        self.rows, self.keys, self.scores = zeros((shapes.rows, shapes.keys, shapes.scores))
        self.groups = np.full(capacity, -1, np.int32)
        self.count = self.offered = self.written = 0
        self._index, self._settings = index, settings or ScannSettings()
        self._built: dict[str, _IndexedSlots] = {}
        # Stored here and not in a global cache, because every run makes its own policy.
        self._deciders: dict[Policy, Any] = {}

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self.groups)

    @property
    def entries(self) -> MemoryEntries:
        """The memory without its rows, as the `MemoryEntries` that policies read: keys, groups, scores and counters."""
        counters = (np.int32(value) for value in (self.count, self.offered, self.written))
        return MemoryEntries(self.keys, self.groups, self.scores, *counters)

    def write(
        self,
        rows: Any,
        key: Any,
        policy: Policy,
        *,
        keys: Float[Any, "rows key_dim"] | None = None,
        groups: Int[Any, " rows"] | None = None,
        scores: Float[Any, " rows"] | None = None,
        weights: Float[Any, " rows"] | None = None,
    ) -> None:
        """Offers rows to a policy and writes those that it gives a slot, in place. `key` is a random key, whereas
        `keys` are the vectors by which rows are searched. See `memjax.lifelong.episodic_memory.write`.

        Raises:
          ValueError: shapes or dtypes do not fit the memory, or a key of an offered row is not finite.
        """
        rows, keys, groups, scores, weights = jax.device_get((rows, keys, groups, scores, weights))
        offered = make_candidates(self, rows, keys, groups, scores, weights)
        if keys is not None and (bad := has_weight(rows, weights, len(keys)) & ~np.isfinite(keys).all(axis=-1)).any():
            raise ValueError(f"keys: given row {np.argmax(bad)} that is NaN or infinite; they must be finite")
        with _on_host():
            if policy not in self._deciders:
                self._deciders[policy] = jax.jit(functools.partial(assign_slots, policy=policy))
            new = jax.device_get(self._deciders[policy](self.entries, offered, _to_host(key)))
        accepted = new.slots < self.capacity
        slots = new.slots[accepted]

        def put(old: np.ndarray, value: Any) -> None:
            old[slots] = np.asarray(value)[accepted]

        jax.tree.map(put, (self.rows, self.keys, self.groups, self.scores), (rows, keys, offered.groups, new.scores))
        self.count, self.offered, self.written = int(new.count), int(new.offered), int(new.written)
        self._mark_changed(slots)

    def sample(self, key: Any, number: int, *, replace: bool = True) -> tuple[Any, np.ndarray]:
        """Draws `number` rows uniformly at random. Returns a tree of them and their weights, 1 for a row and 0 for
        padding. See `memjax.lifelong.episodic_memory.sample`.
        """
        with _on_host():
            ids = np.asarray(_draw(self.count, self.capacity, _to_host(key), number, replace=replace))
        return self.take(ids), (ids >= 0).astype(np.float32)

    def choose(self, choose: Callable[..., Any], method_state: Mapping[str, Any], key: Any, number: int) -> np.ndarray:
        """Returns the slots of `number` rows that `choose(method_state, memory, key, number)` draws from this memory by
        the random key `key` and the state of the learning method.
        """
        with _on_host():
            return np.asarray(choose(jax.device_get(method_state), self, _to_host(key), number))

    def take(self, ids: Int[Any, " *some"]) -> Any:
        """Returns the rows in the slots `ids`. See `memjax.lifelong.episodic_memory.read_slots`."""
        ids = np.asarray(ids)
        valid = (ids >= 0) & (ids < self.count)
        return mask_invalid(jax.tree.map(lambda leaf: leaf[np.where(valid, ids, 0)], self.rows), valid)

    def nearest(
        self, queries: Shaped[Any, "queries key_dim"], number: int, *, metric: Metric = "squared_l2"
    ) -> Nearest:
        """Finds the `number` rows whose keys are nearest to each query, and returns their slots, int64, and distances
        (`Nearest`). The search is exact, or by ScaNN if the memory was made with it.

        Raises:
          ValueError: the memory has no keys, the metric is unknown, or queries are not finite or have another width.
        """
        if self.keys is None:
            raise ValueError("memory: given one without keys, allowed: HostMemory with key_dim of 1 or more")
        check_metric(metric)
        queries = check_queries(queries, self.keys.shape[1], number)
        neighbors = None
        if self._index == "scann" and self.count >= max(1, self._settings.brute_force_entries):
            neighbors = self._search_index(queries, number, metric)
        if neighbors is None:
            neighbors = self._search_exactly(queries, np.arange(self.count), number, metric)
        return Nearest(neighbors.ids, neighbors.scores, neighbors.valid)

    def delete(self, chosen: Shaped[Any, " some"]) -> None:
        """Deletes the rows `chosen`, which are given by their slots or by a mask of all slots. The last rows in use
        move to the free slots. See `memjax.lifelong.episodic_memory.delete`.
        """
        with _on_host():
            holes, sources, count = jax.device_get(_moves(self.count, self.capacity, jax.device_get(chosen)))
        sources, holes = sources[holes < self.capacity], holes[holes < self.capacity]
        for leaf in jax.tree.leaves((self.rows, self.keys, self.groups, self.scores)):
            leaf[holes] = leaf[sources]
        self.count = int(count)
        self._mark_changed(holes)

    def set_scores(self, ids: Int[Any, " some"], scores: Float[Any, " some"]) -> None:
        """Replaces the scores of the rows that are now in the slots `ids`, in place. Ids that are no slot are ignored.

        See `memjax.lifelong.episodic_memory.set_scores`.
        """
        ids = np.asarray(ids)
        known = (ids >= 0) & (ids < self.capacity)
        self.scores[ids[known]] = np.asarray(scores)[known]

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns all arrays that a checkpoint needs, in a dict by name. Apart from the counters they are views, not
        copies.
        """
        tree = {name: getattr(self, name) for name in ("rows", "keys", "groups", "scores")}
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        arrays = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
        return {**arrays, **{name: np.asarray(getattr(self, name), np.int32) for name in COUNTERS}}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Restores the contents of this memory from the dict that its method `arrays` has returned.

        Args:
          arrays: Arrays by name.

        Raises:
          ValueError: names or shapes differ from those of this memory.
        """
        stored = self.arrays()
        for name in {**stored, **arrays}:
            shapes = [list(np.shape(side[name])) if name in side else "none" for side in (arrays, stored)]
            if shapes[0] != shapes[1]:
                raise ValueError(f"arrays: given {name} {shapes[0]}, allowed: {shapes[1]}, as this memory has it")
        for name, array in stored.items():
            np.copyto(array, np.asarray(arrays[name]))
        for name in COUNTERS:
            setattr(self, name, int(stored[name]))
        self._built.clear()

    def _mark_changed(self, slots: np.ndarray) -> None:
        """Marks slots as unknown to all indexes."""
        for built in self._built.values():
            built.fresh[slots] = True

    def _search_exactly(self, queries: np.ndarray, ids: np.ndarray, number: int, metric: Metric) -> Neighbors:
        """Searches the keys of given slots exactly on the default device."""
        with jax.set_mesh(NO_MESH):
            return self._search_in_blocks(queries, ids, number, metric)

    def _search_in_blocks(self, queries: np.ndarray, ids: np.ndarray, number: int, metric: Metric) -> Neighbors:
        """Searches the keys of given slots in blocks that fit on a device, and merges the results."""
        none = np.zeros((len(queries), 0))
        neighbors = [Neighbors(none.astype(queries.dtype), none.astype(np.int64), none.astype(bool))]
        for first in range(0, len(ids), BLOCK):
            part = ids[first : first + BLOCK]
            size = min(BLOCK, max(SMALLEST_BLOCK, 1 << (len(part) - 1).bit_length()))
            keys = np.zeros((size, self.keys.shape[1]), self.keys.dtype)
            np.take(self.keys, part, axis=0, out=keys[: len(part)], mode="clip")
            on_device = jnp.asarray(keys)
            near = [
                [np.asarray(leaf)[:real] for leaf in _search(batch, on_device, len(part), number, metric=metric)]
                for batch, real in pad_query_batches(queries, QUERY_BATCH)
            ]
            places, scores, valid = (np.concatenate(leaves) for leaves in zip(*near, strict=True))
            neighbors.append(Neighbors(scores, np.where(valid, part[places], -1), valid))
        return merge_neighbors(neighbors, number, metric)

    def _search_index(self, queries: np.ndarray, number: int, metric: Metric) -> Neighbors | None:
        """Searches with ScaNN. Returns None if it finds too few rows that were not replaced since."""
        built = self._built.get(metric)
        if built is None or 2 * np.count_nonzero(built.fresh[: self.count]) >= self.count:
            index = build_scann_in_memory(self.keys[: self.count], metric=metric, settings=self._settings)
            built = self._built[metric] = _IndexedSlots(index, np.arange(self.capacity) >= self.count)
        stale = built.fresh.copy()
        stale[self.count :] = True
        replaced = int(np.count_nonzero(stale[: built.index.entries]))
        old = built.index.search(queries, number + min(replaced, SPARE * number))
        valid = old.valid & ~stale[old.ids]
        fresh = self._search_exactly(queries, np.flatnonzero(built.fresh[: self.count]), number, metric)
        neighbors = merge_neighbors([old._replace(valid=valid), fresh], number, metric)
        return neighbors if neighbors.valid[:, : min(number, self.count)].all() else None


COUNTERS = ("count", "offered", "written")


@dataclasses.dataclass
class _IndexedSlots:
    """A ScaNN index, and the slots whose present keys it does not know: `fresh`, bool `[capacity]`."""

    index: ScannIndex
    fresh: np.ndarray


_draw = jax.jit(draw, static_argnames=("capacity", "number", "replace"))
_moves = jax.jit(plan_compaction, static_argnames="capacity")
_search = jax.jit(search, static_argnames=("number", "metric"))


@functools.cache
def _host() -> Any:
    """Returns the CPU device, or the default device if JAX was started without a CPU backend."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


NO_MESH = jax.sharding.Mesh(np.empty((), object), ())
"""An empty mesh, so that computations here use one device even if the train state is split over several."""


@contextlib.contextmanager
def _on_host() -> Iterator[None]:
    """Runs computations of JAX on the CPU device, without a mesh."""
    with jax.set_mesh(NO_MESH), jax.default_device(_host()):
        yield


def _to_host(key: Any) -> Any:
    """Moves a random key to the CPU device."""
    return jax.device_put(key, _host())
