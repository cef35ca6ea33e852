"""Episodes of a method: what is kept of the stream, in the train state or on the host, behind one interface.

`InState` keeps a memory of `memjax.lifelong.memory` in `TrainState.method`. `OnHost` keeps a `HostMemory` beside it:
what goes to and fro in one update lies in the state as an `Exchange`, which the host fills before the update and
empties after it. An update is the same program in all else, draws the same rows and keeps the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from memjax.axes import axes_of
from memjax.data.documents import Examples
from memjax.lifelong import memory as episodic
from memjax.lifelong import policies
from memjax.lifelong.host_memory import HostMemory
from memjax.lifelong.memory import Nearest
from memjax.lifelong.policies import Entries, Offered, Policy, seen_again
from memjax.lifelong.streams import TASK
from memjax.training.experiment import Experiment
from memjax.training.sharding import Layout
from memjax.training.stages import Host
from memjax.training.step import TrainState
from memjax.typing import Batch, Sum, tree_dataclass

__all__ = [
    "EPISODES",
    "PURPOSES",
    "Episodes",
    "Exchange",
    "InState",
    "OfRows",
    "OnHost",
    "Store",
    "filled",
    "purpose_key",
]

EPISODES = "episodes"
"""the episodic memory in `TrainState.method`, or the `Exchange` with it"""
UPDATES = "updates"
"""the updates that have read the stream, in `TrainState.method`; without others between them, those are `step`"""
PURPOSES = {
    name: 100 + i for i, name in enumerate(("write", "replay", "adapt", "generate", "growth", "importance", "language"))
}
"""what random numbers are for: keys are folded by it, so that one purpose more or less moves no other's"""


def purpose_key(key: Any, purpose: str, number: Any) -> Any:
    """The key of a purpose and a counter."""
    return jax.random.fold_in(jax.random.fold_in(key, PURPOSES[purpose]), number)


def drawing_key(state: TrainState) -> Any:
    """The key of the rows that an update replays."""
    return jax.random.fold_in(purpose_key(state.key, "replay", state.step), 0)


OfRows = Callable[[Any, Mapping[str, Any], Mapping[str, Any], Batch], Any]
"""`of_rows(model, variables, method, rows)`, an array with `[rows]` in front; rows have no axis of segments"""


class Episodes(NamedTuple):
    """An episodic memory, and what is written to it.

    Attributes:
      capacity: rows.
      policy: which rows are written, and where.
      keys: the key of every row; None = it has none.
      groups: what shares the memory: the class of a row, or its task.
      scores: of every row, for policies that ask for them.
      again: whether each replayed row is answered rightly, for policies that count what was forgotten.
      metrics: name -> a sum over rows that are offered, `metric(entries, offered)`.
      of_each_task: the capacity is that of each task of the stream.
      place: in the train state, on the devices, or in the memory of the host.
      index: how a memory on the host searches its keys.
      setting: the field that says the capacity.
      written: share of the rows that are read, which are written one behind the other; 0 = in another order.
      drops: such a memory takes nothing more once it is full.
    """

    capacity: int
    policy: Policy
    keys: OfRows | None = None
    groups: Literal["class", "task"] = "class"
    scores: OfRows | None = None
    again: OfRows | None = None
    metrics: Mapping[str, Callable[[Entries, Offered], Sum]] = {}
    of_each_task: bool = False
    place: Literal["device", "host"] = "device"
    index: Literal["exact", "scann"] = "exact"
    setting: str = "lifelong.method.memory.capacity"
    written: float = 0.0
    drops: bool = False

    def notes(self, task: str, seen: int, total: int, epochs: int) -> list[str]:
        """What is kept of a task several times, or not at all, in a line each (`Method.notes`).

        Example:
          >>> memory = Episodes(8, policies.write_all("drop"), written=1.0, drops=True)
          >>> for line in memory.notes("news", seen=0, total=12, epochs=2): print(line)
          lifelong.method.memory: an example is read 2 times and kept 2 times; 'random' with probability 0.5 keeps one
          lifelong.method.memory.capacity: full after 8 rows, of news; rows that come later are not kept
          >>> memory._replace(capacity=12, written=0.5).notes("news", 0, 12, 2)
          []
        """
        lines, times = list[str](), self.written * epochs
        if times > 1 and not seen:
            what = f"an example is read {epochs} times and kept {times:g} times"
            lines.append(f"lifelong.method.memory: {what}; 'random' with probability {1 / epochs:.2g} keeps one")
        if self.drops and self.written and seen <= (room := self.capacity / self.written) < seen + total:
            lines.append(f"{self.setting}: full after {room:,.0f} rows, of {task}; rows that come later are not kept")
        return lines


class InState:
    """The memory is part of the train state; `kept` is what `init` has given, as the last update has left it.

    Attributes:
      host: arrays on the host.
      outside: it is searched outside of compiled programs.
    """

    host, outside = Host(), False

    def __init__(self, row: Batch, capacity: int, key_dim: int, policy: Policy, layout: Layout | None = None):
        self._sizes, self._policy = (row, capacity, key_dim), policy
        # As the rows lie: those of a capacity that the devices do not divide are whole on each.
        split = layout.axes("entries", capacity) if layout else ()
        self._where: dict[str, Any] = {"axis": split, "mesh": layout.mesh} if layout and split else {}

    def init(self) -> episodic.EpisodicMemory:
        return episodic.init_memory(*self._sizes)

    def sample(self, kept: Any, key: Any, number: int, *, replace: bool) -> Batch:
        return episodic.sample(kept, key, number, replace=replace)[0]

    def seen_again(self, kept: Any, ids: Any, right: Any) -> episodic.EpisodicMemory:
        """With what the policy counts of replayed rows; they were answered rightly or not."""
        return episodic.set_scores(kept, ids, seen_again(kept.scores[ids], right))

    def drawn(self, kept: Any, key: Any, number: int, *, replace: bool) -> Any:
        """The ids of the rows that `sample` gives."""
        return episodic.draw(kept.count, kept.capacity, key, number, replace=replace)

    def measure(self, kept: Any, metric: Callable[[Entries, Offered], Sum], offered: dict[str, Any]) -> Sum:
        """Of rows that are offered."""
        named = [offered[name] for name in ("rows", "keys", "groups", "scores", "weights")]
        return metric(kept.entries, episodic.offer(kept, *named))

    def write(self, kept: Any, key: Any, offered: dict[str, Any]) -> episodic.EpisodicMemory:
        """`offered` has the arguments of `memjax.lifelong.memory.write`, without its policy."""
        return episodic.write(kept, key=key, policy=self._policy, **offered)

    def draw(self, kept: Any, keys: Any, number: int) -> Any:
        """Ids `[keys, number]`, none twice for one key; -1 = there are not as many rows."""
        return _draws(kept.count, kept.capacity, keys, number)

    def nearest(self, kept: Any, queries: Any, number: int, *, metric: Any) -> Nearest:
        return episodic.nearest(kept, queries, number, metric=metric, **self._where)

    def take(self, kept: Any, ids: Any) -> Batch:
        return episodic.take(kept, ids)


@tree_dataclass
class Exchange:
    """What one update and a memory on the host give each other; zeros between updates.

    Attributes:
      drawn: rows that are replayed; None = never any.
      offered: what the update offers to the memory (`Store.write`).
    """

    drawn: Any = dataclasses.field(metadata=axes_of())
    offered: Any = dataclasses.field(metadata=axes_of())


class OnHost:
    """The memory is on the host, and every update waits for it; the interface is that of `InState`.

    Attributes:
      memory: the rows.
    """

    outside = True

    def __init__(
        self,
        memory: HostMemory,
        policy: Policy,
        offered: dict[str, Any],
        *,
        reads: Callable[[str], bool],
        rows: int,
        replace: bool,
        split: bool,
    ):
        """A store without rows.

        Args:
          memory: an empty one.
          policy: which rows are written.
          offered: shapes of what an update offers.
          reads: whether a kind of update replays rows.
          rows: how many.
          replace: drawn with replacement.
          split: arrays of the state lie on several devices.

        Raises:
          ValueError: several processes.
        """
        if (count := jax.process_count()) > 1:
            what = f"given 'host' in a run of {count} processes"
            raise ValueError(f"lifelong.method.memory.place: {what}, allowed: 'device', or one process")
        self.memory, self._policy, self._offered = memory, policy, offered
        self._reads, self._rows, self._replace, self._split = reads, rows, replace, split
        self.host = Host(memory.arrays, memory.restore, self._before, self._after)

    def init(self) -> Exchange:
        drawn = jax.tree.map(lambda leaf: jnp.zeros((self._rows, *leaf.shape[1:]), leaf.dtype), self._offered["rows"])
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._offered)
        return Exchange(drawn if self._rows else None, empty)

    def sample(self, kept: Any, key: Any, number: int, *, replace: bool) -> Batch:
        """The rows that `drawing_key` has drawn before the update; the key is that."""
        del key, number, replace
        return kept.drawn

    def write(self, kept: Any, key: Any, offered: dict[str, Any]) -> Exchange:
        del key
        return dataclasses.replace(kept, offered=offered)

    def draw(self, kept: Any, keys: Any, number: int) -> Any:
        del kept
        return _draws(self.memory.count, self.memory.capacity, keys, number)

    def nearest(self, kept: Any, queries: Any, number: int, *, metric: Any) -> Nearest:
        del kept
        return self.memory.nearest(queries, number, metric=metric)

    def take(self, kept: Any, ids: Any) -> Batch:
        del kept
        return self.memory.take(ids)

    def _before(self, state: TrainState, kind: str) -> TrainState:
        """With the rows that the update replays."""
        if not self._reads(kind):
            return state
        drawn, _ = self.memory.sample(drawing_key(state), self._rows, replace=self._replace)
        return self._exchanged(state, dataclasses.replace(state.method[EPISODES], drawn=drawn))

    def _after(self, state: TrainState, kind: str, batch: Any) -> TrainState:
        """With what the update has offered in the memory, and nothing left to exchange."""
        del kind
        if batch is not None:
            # The counter stands behind the update already; one that was skipped has nothing to write.
            key = purpose_key(state.key, "write", state.method.get(UPDATES, state.step) - 1)
            self.memory.write(key=key, policy=self._policy, **state.method[EPISODES].offered)
        return self._exchanged(state, self.init())

    def _exchanged(self, state: TrainState, new: Exchange) -> TrainState:
        put = lambda leaf, old: jax.device_put(leaf, old.sharding) if self._split else jnp.asarray(leaf)
        exchange = jax.tree.map(put, new, state.method[EPISODES])
        return dataclasses.replace(state, method={**state.method, EPISODES: exchange})


Store = InState | OnHost


def filled(
    memory: episodic.EpisodicMemory, experiment: Experiment, examples: Examples, key: Any
) -> episodic.EpisodicMemory:
    """A memory with examples of its own choice written to it, as training would read them.

    Args:
      memory: with room for them; what finds none is dropped.
      experiment: how they are read.
      examples: in their order, each once.
      key: of the writes.
    """
    for batch in experiment.stream(split=examples, epochs=1, shuffle=False):
        memory = _filled(memory, jax.tree.map(lambda leaf: leaf[0], batch), key)
    return memory


@jax.jit
def _filled(memory: episodic.EpisodicMemory, rows: Batch, key: Any) -> episodic.EpisodicMemory:
    return episodic.write(memory, rows, key, policies.write_all("drop"), groups=rows.extras.get(TASK))


def _draws(count: Any, capacity: int, keys: Any, number: int) -> Any:
    draw = lambda key: episodic.draw(count, capacity, key, number, replace=False)
    return jax.vmap(draw)(keys)
