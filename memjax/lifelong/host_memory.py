"""Episodic memory in the main memory of the host, for more rows than the devices hold; see `memjax.lifelong.memory`."""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from memjax.datastore.exact import QUERY_BATCH, query_batches
from memjax.datastore.index import (
    Metric,
    Neighbors,
    check_metric,
    check_queries,
    merge_neighbors,
)
from memjax.datastore.scann import ScannIndex, ScannSettings, build_scann_in_memory
from memjax.lifelong.memory import (
    Nearest,
    assign_slots,
    draw,
    group_shares,
    init_memory,
    make_candidates,
    mask_invalid,
    plan_compaction,
    search,
)
from memjax.lifelong.policies import MemoryEntries, Policy
from memjax.typing import Batch

__all__ = ["HostMemory"]

BLOCK = 65536
"""keys that are on a device at once"""
SMALLEST_BLOCK = 1024
"""smaller ones are filled up, so that few programs are compiled"""
SPARE = 3
"""times as many candidates as neighbours are asked for besides, where some of them have been replaced since"""


class HostMemory:
    """Rows in NumPy arrays, with the functions of `memjax.lifelong.memory` as methods that change it.

    The same keys give the same decisions and draws as on a device. It has `arrays` and `restore`, so that it can be the
    `host` of a `memjax.training.stages.Learner`. A policy is compiled once, so make it once.

    Keys are searched exactly, in blocks that go to the default device one after the other, or with ScaNN: what was
    there when its index was built is looked up in it, what was replaced since is left out, what was written since is
    searched exactly, and once that is as much as the rest the next search builds the index anew. It is not saved; two
    builds differ in what they find, so only exact search repeats itself after a restart.

    Attributes:
      rows: a `Batch` of NumPy arrays `[capacity, ...]`.
      keys: `[capacity, key_dim]`, or None.
      groups: int32 `[capacity]`.
      scores: float32 `[capacity]`.
      count: rows in use.
      offered: rows that have been offered so far.
      written: rows that have been given a slot so far.
    """

    def __init__(
        self,
        row: Batch,
        capacity: int,
        key_dim: int = 0,
        *,
        key_dtype: Any = np.float32,
        index: str = "exact",
        settings: ScannSettings | None = None,
    ):
        """An empty memory.

        Args:
          row: as for `init_memory`.
          capacity: rows.
          key_dim: width of a key; 0 = rows have no keys.
          key_dtype: in which keys are kept.
          index: how keys are searched, "exact" or "scann".
          settings: of ScaNN; with fewer rows than its `brute_force_entries` the search is exact.

        Raises:
          ValueError: no capacity, or an unknown index.
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
        # Of this memory, not of the process: a policy is another object in every run.
        self._deciders: dict[Policy, Any] = {}

    @property
    def capacity(self) -> int:
        """Rows that it can hold."""
        return len(self.groups)

    @property
    def entries(self) -> MemoryEntries:
        """As policies see it."""
        counters = (np.int32(value) for value in (self.count, self.offered, self.written))
        return MemoryEntries(self.keys, self.groups, self.scores, *counters)

    def write(
        self,
        rows: Batch,
        key: Any,
        policy: Policy,
        *,
        keys: Float[Any, "rows key_dim"] | None = None,
        groups: Int[Any, " rows"] | None = None,
        scores: Float[Any, " rows"] | None = None,
        weights: Float[Any, " rows"] | None = None,
    ) -> None:
        """As `memjax.lifelong.memory.write`, with which it shares its arguments; keys of rows that are offered must be
        finite.
        """
        rows, keys, groups, scores, weights = jax.device_get((rows, keys, groups, scores, weights))
        offered = make_candidates(self, rows, keys, groups, scores, weights)
        if keys is not None and (bad := offered.present & ~np.isfinite(keys).all(axis=-1)).any():
            raise ValueError(f"keys: given row {np.argmax(bad)} that is NaN or infinite; they must be finite")
        with _on_host():
            if policy not in self._deciders:
                self._deciders[policy] = jax.jit(functools.partial(assign_slots, policy=policy))
            new = jax.device_get(self._deciders[policy](self.entries, offered, _to_host(key)))
        given = new.slots < self.capacity
        slots = new.slots[given]

        def put(old: np.ndarray, value: Any) -> None:
            old[slots] = np.asarray(value)[given]

        jax.tree.map(put, (self.rows, self.keys, self.groups, self.scores), (rows, keys, offered.groups, new.scores))
        self.count, self.offered, self.written = int(new.count), int(new.offered), int(new.written)
        self._changed(slots)

    def sample(self, key: Any, number: int, *, replace: bool = True) -> tuple[Batch, np.ndarray]:
        """As `memjax.lifelong.memory.sample`."""
        with _on_host():
            ids = np.asarray(_draw(self.count, self.capacity, _to_host(key), number, replace=replace))
        return self.take(ids), (ids >= 0).astype(np.float32)

    def take(self, ids: Int[Any, " *some"]) -> Batch:
        """As `memjax.lifelong.memory.read_slots`."""
        ids = np.asarray(ids)
        valid = (ids >= 0) & (ids < self.count)
        return mask_invalid(jax.tree.map(lambda leaf: leaf[np.where(valid, ids, 0)], self.rows), valid)

    def nearest(
        self, queries: Shaped[Any, "queries key_dim"], number: int, *, metric: Metric = "squared_l2"
    ) -> Nearest:
        """As `memjax.lifelong.memory.nearest`, with int64 ids.

        Raises:
          ValueError: a memory without keys, an unknown metric, or queries that are not finite or of another width.
        """
        if self.keys is None:
            raise ValueError("memory: given one without keys, allowed: HostMemory with key_dim of 1 or more")
        check_metric(metric)
        queries = check_queries(queries, self.keys.shape[1], number)
        found = None
        if self._index == "scann" and self.count >= max(1, self._settings.brute_force_entries):
            found = self._indexed(queries, number, metric)
        if found is None:
            found = self._exact(queries, np.arange(self.count), number, metric)
        return Nearest(found.ids, found.scores, found.valid)

    def delete(self, chosen: Shaped[Any, " some"]) -> None:
        """As `memjax.lifelong.memory.delete`."""
        with _on_host():
            holes, sources, count = jax.device_get(_moves(self.count, self.capacity, jax.device_get(chosen)))
        sources, holes = sources[holes < self.capacity], holes[holes < self.capacity]
        for leaf in jax.tree.leaves((self.rows, self.keys, self.groups, self.scores)):
            leaf[holes] = leaf[sources]
        self.count = int(count)
        self._changed(holes)

    def set_scores(self, ids: Int[Any, " some"], scores: Float[Any, " some"]) -> None:
        """As `memjax.lifelong.memory.set_scores`."""
        ids = np.asarray(ids)
        known = (ids >= 0) & (ids < self.capacity)
        self.scores[ids[known]] = np.asarray(scores)[known]

    def statistics(self, num_groups: int) -> dict[str, Any]:
        """As `memjax.lifelong.memory.statistics`."""
        with _on_host():
            counted = jax.device_get(_shares(self.entries, num_groups))
        return {**counted, "bytes": float(sum(array.nbytes for array in self.arrays().values()))}

    def arrays(self) -> dict[str, np.ndarray]:
        """All that a checkpoint needs, by name; views, not copies."""
        tree = {name: getattr(self, name) for name in ("rows", "keys", "groups", "scores")}
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
        return {**named, **{name: np.asarray(getattr(self, name), np.int32) for name in COUNTERS}}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Takes over what `arrays` has given, into the arrays that it has.

        Raises:
          ValueError: other names or shapes than those of this memory.
        """
        own = self.arrays()
        for name in {**own, **arrays}:
            shapes = [list(np.shape(side[name])) if name in side else "none" for side in (arrays, own)]
            if shapes[0] != shapes[1]:
                raise ValueError(f"arrays: given {name} {shapes[0]}, allowed: {shapes[1]}, as this memory has it")
        for name, array in own.items():
            np.copyto(array, np.asarray(arrays[name]))
        for name in COUNTERS:
            setattr(self, name, int(own[name]))
        self._built.clear()

    def _changed(self, slots: np.ndarray) -> None:
        for built in self._built.values():
            built.fresh[slots] = True

    def _exact(self, queries: np.ndarray, ids: np.ndarray, number: int, metric: Metric) -> Neighbors:
        """Among some slots, on the default device."""
        with jax.set_mesh(NO_MESH):
            return self._exact_in_blocks(queries, ids, number, metric)

    def _exact_in_blocks(self, queries: np.ndarray, ids: np.ndarray, number: int, metric: Metric) -> Neighbors:
        none = np.zeros((len(queries), 0))
        found = [Neighbors(none.astype(queries.dtype), none.astype(np.int64), none.astype(bool))]
        for first in range(0, len(ids), BLOCK):
            part = ids[first : first + BLOCK]
            size = min(BLOCK, max(SMALLEST_BLOCK, 1 << (len(part) - 1).bit_length()))
            keys = np.zeros((size, self.keys.shape[1]), self.keys.dtype)
            np.take(self.keys, part, axis=0, out=keys[: len(part)], mode="clip")
            on_device = jnp.asarray(keys)
            near = [
                [np.asarray(leaf)[:real] for leaf in _search(batch, on_device, len(part), number, metric=metric)]
                for batch, real in query_batches(queries, QUERY_BATCH)
            ]
            places, scores, valid = (np.concatenate(leaves) for leaves in zip(*near, strict=True))
            found.append(Neighbors(scores, np.where(valid, part[places], -1), valid))
        return merge_neighbors(found, number, metric)

    def _indexed(self, queries: np.ndarray, number: int, metric: Metric) -> Neighbors | None:
        """With ScaNN; None where too many of what it finds has been replaced since."""
        built = self._built.get(metric)
        if built is None or 2 * np.count_nonzero(built.fresh[: self.count]) >= self.count:
            index = build_scann_in_memory(self.keys[: self.count], metric=metric, settings=self._settings)
            built = self._built[metric] = _IndexedSlots(index, np.arange(self.capacity) >= self.count)
        stale = built.fresh.copy()
        stale[self.count :] = True
        replaced = int(np.count_nonzero(stale[: built.index.entries]))
        old = built.index.search(queries, number + min(replaced, SPARE * number))
        valid = old.valid & ~stale[old.ids]
        fresh = self._exact(queries, np.flatnonzero(built.fresh[: self.count]), number, metric)
        found = merge_neighbors([old._replace(valid=valid), fresh], number, metric)
        return found if found.valid[:, : min(number, self.count)].all() else None


COUNTERS = ("count", "offered", "written")


@dataclasses.dataclass
class _IndexedSlots:
    """An index, and the slots whose keys it does not know: `fresh`, bool `[capacity]`."""

    index: ScannIndex
    fresh: np.ndarray


_draw = jax.jit(draw, static_argnames=("capacity", "number", "replace"))
_moves = jax.jit(plan_compaction, static_argnames="capacity")
_shares = jax.jit(group_shares, static_argnames="num_groups")
_search = jax.jit(search, static_argnames=("number", "metric"))


@functools.cache
def _host() -> Any:
    """The device whose memory is that of the host; the default one where JAX was started without it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


NO_MESH = jax.sharding.Mesh(np.empty((), object), ())
"""what is worked out here lies on one device, also between updates of a state that is split over several"""


@contextlib.contextmanager
def _on_host() -> Iterator[None]:
    with jax.set_mesh(NO_MESH), jax.default_device(_host()):
        yield


def _to_host(key: Any) -> Any:
    return jax.device_put(key, _host())
