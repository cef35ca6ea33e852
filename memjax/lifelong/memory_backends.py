"""Backends of the episodic memory, which store rows of the stream in the train state or on the host.

Both have one interface. `DeviceMemoryBackend` stores a memory of `memjax.lifelong.episodic_memory` in
`TrainState.method`.
`HostMemoryBackend` stores a `HostMemory` outside the train state, which then has a `HostExchange`: the host puts the
rows to replay into it before an update, and takes the rows that the update offers out of it afterwards. Both backends
draw and store the same rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from memjax.axes import axes_of, constrain
from memjax.data.documents import Examples
from memjax.lifelong import episodic_memory as episodic
from memjax.lifelong import policies
from memjax.lifelong.episodic_memory import Nearest
from memjax.lifelong.host_memory import HostMemory
from memjax.lifelong.policies import CandidateRows, MemoryEntries, Policy, add_forgetting_events
from memjax.lifelong.stored_rows import make_candidates
from memjax.lifelong.update_streams import TASK
from memjax.training.experiment import Experiment
from memjax.training.sharding import Layout, row_shards
from memjax.training.stages import HostArrays
from memjax.training.train_state import TrainState, model_variables
from memjax.typing import Batch, WeightedSum, tree_dataclass

EPISODES = "episodes"
"""Name in `TrainState.method` of the episodic memory, or of the `HostExchange` with a memory on the host."""
UPDATES = "updates"
"""Name in `TrainState.method` of the number of updates that have read the stream. Methods without other updates use
`TrainState.step` instead."""
PURPOSES = {
    name: 100 + i for i, name in enumerate(("write", "replay", "adapt", "generate", "growth", "importance", "language"))
}
"""Numbers that are folded into random keys by purpose, so that a new purpose leaves the others' numbers unchanged."""


def key_for(key: Any, purpose: str, number: Any) -> Any:
    """Derives a random key from the random key `key` for the purpose named `purpose` (one of `PURPOSES`) and the
    counter `number`, such as the number of an update.
    """
    return jax.random.fold_in(jax.random.fold_in(key, PURPOSES[purpose]), number)


def replay_key(state: TrainState) -> Any:
    """Derives the random key that draws the rows to replay in the next update from the key and the step of a train
    state.
    """
    return jax.random.fold_in(key_for(state.key, "replay", state.step), 0)


Choose = Callable[[Mapping[str, Any], Any, Any, int], Any]
"""A function `choose(method_state, memory, key, number)` that returns the ids of rows of a memory."""
OfRows = Callable[[Any, Mapping[str, Any], Mapping[str, Any], Batch], Any]
"""A function `f(model, variables, method_state, rows)` of a batch `[rows, ...]` that returns an array `[rows, ...]`."""


class WriteRule(NamedTuple):
    """The rule by which a memory stores rows of the stream: a policy, functions for the scores and forgetting counts
    that it needs, and metrics of the offered rows.

    Attributes:
      policy: Policy that decides which rows are written, and to which slots.
      scores: Function that computes the score of every row, for policies that need scores. None for others.
      is_answered: Function that says whether replayed rows are answered correctly, for policies that count forgetting.
        None for others.
      metrics: Metrics of the rows that are offered, by name: `metric(entries, offered)` returns a sum.
    """

    policy: Policy
    scores: OfRows | None = None
    is_answered: OfRows | None = None
    metrics: Mapping[str, Callable[[MemoryEntries, CandidateRows], WeightedSum]] = {}


class MemoryOptions(NamedTuple):
    """Options of an episodic memory: its size, its place, and which rows of the stream are written to it.

    Attributes:
      capacity: Number of rows.
      rule: Rule by which rows are written.
      keys: Function that computes the key of every row. None for a memory without keys.
      groups: Group of a row, for policies that balance groups: its "class" or its "task".
      place: Storage of the rows: "device" (in the train state) or "host".
      index: Search of keys on the host: "exact" or "scann".
      setting: Name of the setting that holds the capacity, for messages.
      notes: `notes(task, seen, total, epochs)` returns lines about the rows of a task. See `Method.notes`.
    """

    capacity: int
    rule: WriteRule
    keys: OfRows | None = None
    groups: Literal["class", "task"] = "class"
    place: Literal["device", "host"] = "device"
    index: Literal["exact", "scann"] = "exact"
    setting: str = "lifelong.method.memory.capacity"
    notes: Callable[[str, int, int, int], Sequence[str]] = lambda task, seen, total, epochs: ()


def describe_writes(
    capacity: int, setting: str, written: float, drops: bool, task: str, seen: int, total: int, epochs: int
) -> list[str]:
    """Returns lines of text that warn if a memory stores rows of a task several times or not at all. `written` is the
    fraction of rows that are stored, `drops` whether a full memory stores no more, `setting` names the capacity.

    Args:
      capacity: Number of rows of the memory.
      setting: Name of the setting that holds the capacity.
      written: Fraction of the rows of the stream that the policy appends to the memory.
      drops: Whether the memory takes no more rows once it is full.
      task: Name of the task.
      seen: Number of examples that the run has read before the task.
      total: Number of examples that the task reads, with repetitions.
      epochs: Number of times that each example is read.

    Example:
      >>> setting = "lifelong.method.memory.capacity"
      >>> for line in describe_writes(8, setting, 1.0, True, "news", seen=0, total=12, epochs=2): print(line)
      lifelong.method.memory: an example is read 2 times and kept 2 times; 'random' with probability 0.5 keeps one
      lifelong.method.memory.capacity: full after 8 rows, of news; rows that come later are not kept
      >>> describe_writes(12, setting, 0.5, True, "news", seen=0, total=12, epochs=2)
      []
    """
    lines, times = list[str](), written * epochs
    if times > 1 and not seen:
        what = f"an example is read {epochs} times and kept {times:g} times"
        lines.append(f"lifelong.method.memory: {what}; 'random' with probability {1 / epochs:.2g} keeps one")
    if drops and written and seen <= (room := capacity / written) < seen + total:
        lines.append(f"{setting}: full after {room:,.0f} rows, of {task}; rows that come later are not kept")
    return lines


class DeviceMemoryBackend:
    """An episodic memory on the devices, as a part of the train state. `init` makes this part, the other methods take
    it as `kept`, and those that change it return the new one.

    The argument `kept` of its methods is the memory: the result of `init`, as the last update has left it.

    Attributes:
      host: Arrays on the host, of which this backend has none.
      outside: Whether the memory is searched outside of compiled programs.
    """

    host, outside = HostArrays(), False

    def __init__(self, row: Batch, capacity: int, key_dim: int, policy: Policy, layout: Layout | None = None):
        self._sizes, self._policy = (row, capacity, key_dim), policy
        # Rows are split over devices. If the capacity is not a multiple of their number, each device has all rows.
        split = layout.axes("entries", capacity) if layout else ()
        self._where: dict[str, Any] = {"axis": split, "mesh": layout.mesh} if layout and split else {}

    def init(self) -> episodic.EpisodicMemoryState:
        """Returns an empty memory, an `EpisodicMemoryState`."""
        return episodic.init_memory(*self._sizes)

    def sample(self, kept: Any, key: Any, number: int, *, replace: bool) -> Batch:
        """Returns a batch of `number` rows of the memory `kept`, drawn at random by the random key `key`. See
        `memjax.lifelong.episodic_memory.sample`.
        """
        return episodic.sample(kept, key, number, replace=replace)[0]

    def seen_again(self, kept: Any, ids: Any, right: Any) -> episodic.EpisodicMemoryState:
        """Returns the memory `kept` with new forgetting counts for the replayed rows `ids`. `right` tells whether each
        was answered correctly.

        Args:
          kept: The memory.
          ids: Ids of the replayed rows. -1 for a row that is left out.
          right: Whether each row was answered correctly, bool `[rows]`.
        """
        return episodic.set_scores(kept, ids, add_forgetting_events(kept.scores[ids], right))

    def drawn(self, kept: Any, key: Any, number: int, *, replace: bool) -> Any:
        """Returns the ids of the rows that `sample` draws from the memory `kept` with the same random key `key`."""
        return episodic.draw(kept.count, kept.capacity, key, number, replace=replace)

    def measure(
        self, kept: Any, metric: Callable[[MemoryEntries, CandidateRows], WeightedSum], offered: dict[str, Any]
    ) -> WeightedSum:
        """Computes the metric `metric(entries, candidates)` of rows that are offered to the memory `kept`. `offered` is
        a dict of rows, keys, groups, scores and weights.
        """
        candidates = [offered[name] for name in ("rows", "keys", "groups", "scores", "weights")]
        return metric(kept.entries, make_candidates(kept, *candidates))

    def write(self, kept: Any, key: Any, offered: dict[str, Any]) -> episodic.EpisodicMemoryState:
        """Offers rows to the memory `kept` and returns the new memory. `offered` is a dict of rows, keys, groups,
        scores and weights, as in `memjax.lifelong.episodic_memory.write`, and `key` a random key.
        """
        return episodic.write(kept, key=key, policy=self._policy, **offered)

    def draw(self, kept: Any, keys: Any, number: int) -> Any:
        """Returns for each random key in `keys` the ids of `number` different rows of the memory `kept`,
        `[keys, number]`. -1 where it has fewer rows.
        """
        return _draw_ids(kept.count, kept.capacity, keys, number)

    def nearest(self, kept: Any, queries: Any, number: int, *, metric: Any) -> Nearest:
        """Finds the `number` rows of the memory `kept` whose keys are nearest to each query, by `metric` ('squared_l2'
        or 'inner_product'). Returns ids and distances (`Nearest`). See `lifelong.episodic_memory.nearest`.
        """
        return episodic.nearest(kept, queries, number, metric=metric, **self._where)

    def take(self, kept: Any, ids: Any) -> Batch:
        """Returns a batch of the rows of the memory `kept` with the ids `ids`. -1 gives padding."""
        return episodic.read_slots(kept, ids)


@tree_dataclass
class HostExchange:
    """Rows that pass between an update and a memory on the host: those that are drawn for replay, and those that are
    offered. They are zeros between updates.

    Attributes:
      drawn: Rows to replay, from the memory. None if the method replays no rows.
      offered: Rows that the update offers to the memory, with the arguments of `Store.write`.
    """

    drawn: Any = dataclasses.field(metadata=axes_of())
    offered: Any = dataclasses.field(metadata=axes_of())


class HostMemoryBackend:
    """An episodic memory on the host, with the methods of `DeviceMemoryBackend` but `seen_again`, `drawn` and
    `measure`. Where a method has an argument `kept`, it is a `HostExchange`. Every update waits for the host.

    Attributes:
      memory: Memory with the rows.
      host: Functions that save, restore and exchange the rows of the memory. See `Learner.host_arrays`.
      outside: Whether the memory is searched outside of compiled programs.
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
        choose: Choose | None,
        split: bool,
    ):
        """Makes a backend without rows.

        Args:
          memory: Empty memory.
          policy: Policy that decides which rows are written.
          offered: Shapes of the rows that an update offers, with the arguments of `Store.write`.
          reads: `reads(kind)` returns whether updates of a kind replay rows.
          rows: Number of rows that an update replays.
          replace: Whether rows are drawn with replacement.
          choose: Function that chooses the rows to replay. None if all rows are equally likely.
          split: Whether arrays of the train state are split over several devices.

        Raises:
          ValueError: the run has several processes.
        """
        if (count := jax.process_count()) > 1:
            what = f"given 'host' in a run of {count} processes"
            raise ValueError(f"lifelong.method.memory.storage: {what}, allowed: 'device', or one process")
        self.memory, self._policy, self._offered = memory, policy, offered
        self._reads, self._rows, self._replace, self._split = reads, rows, replace, split
        self._choose = choose
        self.host = HostArrays(memory.arrays, memory.restore, self._before, self._after)

    def init(self) -> HostExchange:
        """Returns the `HostExchange` of zeros that the train state begins with."""
        replayed = jax.tree.map(
            lambda leaf: jnp.zeros((self._rows, *leaf.shape[1:]), leaf.dtype), self._offered["rows"]
        )
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._offered)
        return HostExchange(replayed if self._rows else None, empty)

    def sample(self, kept: Any, key: Any, number: int, *, replace: bool) -> Batch:
        """Returns the batch of rows that the host has drawn before the update and put into the exchange `kept`. The
        other arguments are not used.
        """
        del key, number, replace
        return kept.drawn

    def write(self, kept: Any, key: Any, offered: dict[str, Any]) -> HostExchange:
        """Returns the exchange `kept` with the offered rows, a dict with the arguments of a write. The host writes them
        after the update. `key` is not used.
        """
        del key
        return dataclasses.replace(kept, offered=offered)

    def draw(self, kept: Any, keys: Any, number: int) -> Any:
        """Returns for each random key in `keys` the ids of `number` different rows of the host's memory,
        `[keys, number]`. -1 where it has fewer rows. `kept` is not used.
        """
        del kept
        return _draw_ids(self.memory.count, self.memory.capacity, keys, number)

    def nearest(self, kept: Any, queries: Any, number: int, *, metric: Any) -> Nearest:
        """Finds the `number` rows of the host's memory whose keys are nearest to each query, and returns their ids and
        distances (`Nearest`). `kept` is not used.
        """
        del kept
        return self.memory.nearest(queries, number, metric=metric)

    def take(self, kept: Any, ids: Any) -> Batch:
        """Returns a batch of the rows of the host's memory with the ids `ids`. -1 gives padding. `kept` is not used."""
        del kept
        return self.memory.take(ids)

    def _before(self, state: TrainState, kind: str) -> TrainState:
        """Returns the state with the rows to replay in its exchange."""
        if not self._reads(kind):
            return state
        key = replay_key(state)
        if self._choose is None:
            replayed, _ = self.memory.sample(key, self._rows, replace=self._replace)
        else:
            others = {name: value for name, value in state.method.items() if name != EPISODES}
            replayed = self.memory.take(self.memory.choose(self._choose, others, key, self._rows))
        return self._with_exchange(state, dataclasses.replace(state.method[EPISODES], drawn=replayed))

    def _after(self, state: TrainState, kind: str, batch: Any) -> TrainState:
        """Writes the rows that the update has offered to the memory, and empties the exchange."""
        del kind
        if batch is not None:
            # The counter was raised by the update already. A skipped update has rows of weight 0, so none is written.
            key = key_for(state.key, "write", state.method.get(UPDATES, state.step) - 1)
            self.memory.write(key=key, policy=self._policy, **state.method[EPISODES].offered)
        return self._with_exchange(state, self.init())

    def _with_exchange(self, state: TrainState, new: HostExchange) -> TrainState:
        """Returns the state with a new exchange, placed on the devices of the old one."""
        put = lambda leaf, old: jax.device_put(leaf, old.sharding) if self._split else jnp.asarray(leaf)
        exchange = jax.tree.map(put, new, state.method[EPISODES])
        return dataclasses.replace(state, method={**state.method, EPISODES: exchange})


Store = DeviceMemoryBackend | HostMemoryBackend


class StreamMemory(NamedTuple):
    """An episodic memory together with the functions that make its entries from batches of the stream.

    Attributes:
      store: Backend that stores the rows.
      options: Options of the memory.
      model: Model that computes keys and scores.
      batches: Number of batches that an update offers. Updates that read fewer are padded with empty rows.
    """

    store: Store
    options: MemoryOptions
    model: Any
    batches: int

    def candidates(
        self, variables: Mapping[str, Any], method: Mapping[str, Any], batch: Batch, ok: Any
    ) -> dict[str, Any]:
        """Returns a dict of the rows of a batch to offer to the memory, with keys, groups, scores and weights. `method`
        is the state of the method. If the bool `ok` is False, all weights are 0. See `candidate_rows`.
        """
        # An episode whose query is of the memory has one batch less, but the offer has one shape.
        missing = self.batches - len(batch.inputs)
        pad = lambda leaf: jnp.pad(leaf, ((0, missing), *((0, 0),) * (leaf.ndim - 1))) if missing > 0 else leaf
        return candidate_rows(self.options, self.model, variables, method, jax.tree.map(pad, batch), ok)

    def measure(self, kept: Any, offered: dict[str, Any]) -> dict[str, WeightedSum]:
        """Returns a dict of the metrics of rows that are offered to the memory `kept`. `offered` is the result of
        `candidates`.
        """
        if not self.options.rule.metrics:
            return {}
        assert isinstance(self.store, DeviceMemoryBackend)
        return {name: self.store.measure(kept, metric, offered) for name, metric in self.options.rule.metrics.items()}

    def write(self, state: TrainState, rows: Batch) -> TrainState:
        """Offers a batch of rows `[rows, ...]` to the memory in a train state, and returns the state with the new
        memory. Nothing else in it changes.
        """
        batch, key = jax.tree.map(lambda leaf: leaf[None], rows), key_for(state.key, "write", state.step)
        offered = self.candidates(model_variables(state), state.method, batch, jnp.ones((), bool))
        written = self.store.write(state.method[EPISODES], key, offered)
        return dataclasses.replace(state, method={**state.method, EPISODES: written})


def candidate_rows(
    options: MemoryOptions,
    model: Any,
    variables: Mapping[str, Any],
    method: Mapping[str, Any],
    batch: Batch,
    ok: Any,
) -> dict[str, Any]:
    """Returns a dict of the rows of a batch to offer to a memory, with their keys, groups, scores and weights. `method`
    is the state of the method. If the bool `ok` is False, all weights are 0.

    Args:
      options: Options of the memory.
      model: The Linen model.
      variables: Variables of the model.
      method: State of the method.
      batch: Batch of the stream.
      ok: Bool scalar. False for a skipped update, whose rows get weight 0.
    """
    rows = rows_of(batch)
    apply = lambda function: function and function(model, variables, method, rows)
    groups = rows.extras[TASK] if options.groups == "task" else rows.targets[:, 0]
    return {
        "rows": rows,
        "keys": apply(options.keys),
        "groups": groups.astype(jnp.int32),
        "scores": apply(options.rule.scores),
        "weights": jnp.broadcast_to(ok, groups.shape).astype(jnp.float32),
    }


def make_store(
    options: MemoryOptions,
    offered: dict[str, Any],
    *,
    layout: Layout | None,
    reads: Callable[[str], bool],
    rows: int,
    replace: bool,
    choose: Choose | None = None,
) -> Store:
    """Makes the backend of a memory, on the devices or on the host. `offered` has the shapes of offered rows,
    `reads(kind)` tells whether a kind of update replays, `rows` is the number of rows that it replays.

    Args:
      options: Options of the memory.
      offered: Shapes of the rows that an update offers, from `candidate_rows`.
      layout: Shardings of all arrays over the mesh. None on a single device.
      reads: `reads(kind)` returns whether updates of a kind replay rows.
      rows: Number of rows that an update replays.
      replace: Whether rows are drawn with replacement.
      choose: Function that chooses the rows to replay. None if all rows are equally likely.
    """
    row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), offered["rows"])
    sizes = (row, options.capacity, 0 if offered["keys"] is None else offered["keys"].shape[-1])
    if options.place == "device":
        return DeviceMemoryBackend(*sizes, options.rule.policy, layout)
    memory = HostMemory(*sizes, index=options.index)
    fields: dict[str, Any] = {"reads": reads, "rows": rows, "replace": replace, "choose": choose}
    return HostMemoryBackend(memory, options.rule.policy, offered, split=layout is not None, **fields)


def fill_memory(
    memory: episodic.EpisodicMemoryState, experiment: Experiment, examples: Examples, key: Any
) -> episodic.EpisodicMemoryState:
    """Offers each of the given examples once and in order to `memory`, and returns the new `EpisodicMemoryState`.
    Examples that do not fit are dropped. `experiment` makes their rows.

    Args:
      memory: Memory with room for the examples. Examples that do not fit are dropped.
      experiment: Experiment that makes rows of the examples.
      examples: Examples to write.
      key: Random key of the writes.
    """
    for batch in experiment.stream(split=examples, epochs=1, shuffle=False):
        memory = _write_rows(memory, jax.tree.map(lambda leaf: leaf[0], batch), key)
    return memory


@jax.jit
def _write_rows(memory: episodic.EpisodicMemoryState, rows: Batch, key: Any) -> episodic.EpisodicMemoryState:
    """Writes the rows of a batch to a memory, and drops those that do not fit."""
    return episodic.write(memory, rows, key, policies.write_all_policy("drop"), groups=rows.extras.get(TASK))


def _draw_ids(count: Any, capacity: int, keys: Any, number: int) -> Any:
    """Draws ids `[keys, number]`, without replacement for each key."""
    draw = lambda key: episodic.draw(count, capacity, key, number, replace=False)
    return jax.vmap(draw)(keys)


def rows_of(batch: Batch) -> Batch:
    """Returns a batch `[segments * rows, ...]` of the rows of all segments of a batch `[segments, rows, ...]`."""
    if len(batch.inputs) == 1:
        return jax.tree.map(lambda leaf: leaf[0], batch)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)


def split_over_devices(rows: Batch) -> Batch:
    """Splits the rows of a batch `[batches, rows, ...]` over the devices of the mesh, as rows of the stream are.
    Padding rows are added if they do not divide evenly.
    """
    missing = -rows.inputs.shape[1] % row_shards(jax.sharding.get_abstract_mesh())
    fill = lambda leaf: jnp.pad(leaf, ((0, 0), (0, missing), *((0, 0),) * (leaf.ndim - 2))) if missing else leaf
    return jax.tree.map(lambda leaf: constrain(fill(leaf), None, "batch", *(None,) * (leaf.ndim - 2)), rows)
