"""Methods by composition: rules that lay something over plain training, an episodic memory, and what is replayed of it.

One update is: the loss with those of the rules, its gradients, those of rows from the memory, links, clipping and the
optimiser, the finite check, what the rules gather, the memory's write. `memjax.training.step` has the halves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from memjax.axes import constrain
from memjax.lifelong.contract import Method, Phase, Scope, TaskInfo, phase_of, settings_of, stage_examples
from memjax.lifelong.episodes import (
    EPISODES,
    UPDATES,
    Episodes,
    InState,
    OnHost,
    Store,
    drawing_key,
    purpose_key,
)
from memjax.lifelong.host_memory import HostMemory
from memjax.lifelong.progress import PROGRESS, draw_task, init_progress, observe_loss, odds_of_tasks
from memjax.lifelong.spans import SPAN, share_done, spanned
from memjax.lifelong.streams import TASK, EpisodeSchedule, Schedule
from memjax.models.heads import note_classes
from memjax.training.assembly import make_parts
from memjax.training.evaluation import AdaptRows
from memjax.training.experiment import Experiment
from memjax.training.loop import MakeObjective, plain_learner
from memjax.training.objective import Objective
from memjax.training.optimizers import Reference, make_reference
from memjax.training.sharding import Layout, row_shards
from memjax.training.stages import STREAM, Context, Learner, Needs, Part, Sizes
from memjax.training.step import Gradients, TrainState, apply_gradients, gradients_of, model_variables
from memjax.typing import Batch, Sum

__all__ = ["SUPPORT", "Adapting", "Episode", "Replayed", "Rule", "compose", "rows_of"]

REPLAY, PROJECTED = "replay", "projected"
"""kinds of update beside `stream`"""
SUPPORT = "support"
"""what the rows of an update are adapted to before their loss, in what a method gives its losses"""

StateChange = Callable[[TrainState, Context, TaskInfo], TrainState]
Observe = Callable[[TrainState, Batch | None, str], tuple[TrainState, dict[str, Sum]]]
Lay = Callable[[Objective, Any], Objective]
"""`lay(objective, model) -> objective`, with something over it"""


def as_it_is(objective: Objective, model: Any) -> Objective:
    """Nothing over it."""
    del model
    return objective


class Rule(NamedTuple):
    """What a method lays over plain training; every part may be left out.

    Attributes:
      name: of what it keeps, in `TrainState.method`.
      init: `init(params)`, what it keeps at the start.
      stream: over the objective of the rows of the stream.
      memory: over that of replayed rows.
      link: of the optimiser, before clipping; it may ask for `reference`.
      after_update: `after_update(kept, params before, params after, gradients) -> kept`.
      before: `before(state, context, task) -> state`, before a task.
      after: likewise after it.
      needs: what it must be told.
      begin: `begin(params)`, the parameters that training begins with, of fresh or loaded ones.
      frozen: parts of the paths of parameters that it keeps as they are.
      counts: it reads how far a stage has come (`memjax.lifelong.spans.share_done` of what the method keeps).
    """

    name: str
    init: Callable[[Any], Any] | None = None
    stream: Lay = as_it_is
    memory: Lay = as_it_is
    link: optax.GradientTransformation | None = None
    after_update: Callable[[Any, Any, Any, Any], Any] | None = None
    before: StateChange | None = None
    after: StateChange | None = None
    needs: Needs = Needs()
    begin: Callable[[Any], Any] | None = None
    frozen: tuple[str, ...] = ()
    counts: bool = False


COUNTING = Rule(
    SPAN,
    init=lambda params: jnp.zeros(2, jnp.int32),
    after_update=lambda kept, before, after, gradients: kept.at[0].add(1),
)
"""counts the updates of a stage, for the rules that read them"""


class Replayed(NamedTuple):
    """What is done with rows of the memory.

    Attributes:
      rows: at once; of each task where mode is "tasks".
      mode: "sparse": an update of their own; "mixed": beside every batch; "reference": their gradient is the
        reference of a link; "tasks": the gradients of each earlier task are.
      every: examples from one to the next; 0 = every update, but for "sparse", where it is never.
      replace: drawn with replacement.
      by_progress: the rows are of one task, drawn by how much its loss falls (`memjax.lifelong.progress`), from a
        memory whose groups are tasks; else all rows are drawn equally.
    """

    rows: int
    mode: Literal["sparse", "mixed", "reference", "tasks"] = "mixed"
    every: int = 0
    replace: bool = True
    by_progress: bool = False

    @property
    def schedule(self) -> Schedule:
        """Which updates stand between those of the stream."""
        if self.mode == "sparse":
            return Schedule(self.every, REPLAY)
        return Schedule(self.every, PROJECTED, reads=True)


class Episode(NamedTuple):
    """What the query of an update, its last batch, is adapted to before its loss.

    The losses of rules find it under `SUPPORT`: batches of the stream, `[steps, rows, ...]`, or what `find` gives.

    Attributes:
      steps: batches of the stream in front of the query.
      find: `find(model, store)(variables, query)`, rows of the memory instead, for the rows of a query.
      reduction: of a query of the memory: the mean over its rows, or the sum of the means of batches of them.
      keeps_last: as in `EpisodeSchedule`.
    """

    steps: int = 0
    find: Callable[[Any, Store], Callable[[Mapping[str, Any], Batch], Any]] | None = None
    reduction: Literal["mean", "sum"] = "mean"
    keeps_last: bool = False


class Adapting(NamedTuple):
    """How a method adapts to the memory before it answers.

    Attributes:
      variables: `variables(experiment, store)(state, support, key)`, as in `Learner.adapt`.
      rows: `rows(model, store)`, as in `Learner.adapt_rows`; None = all rows are answered with the same parameters.
      width: as in `Sizes`.
      copied: likewise.
    """

    variables: Callable[[Experiment, Store], Callable[[TrainState, Any, Any], dict[str, Any]]]
    rows: Callable[[Any, Store], AdaptRows] | None = None
    width: str = ""
    copied: Callable[[Any], Any] = lambda params: {}


def compose(
    *rules: Rule,
    memory: Episodes | None = None,
    replay: Replayed | None = None,
    scope: Scope = "task",
    adapting: Adapting | None = None,
    episode: Episode | None = None,
) -> Method:
    """The method of some rules, as `optax.chain` is the transformation of some.

    Args:
      *rules: in the order in which they are laid over the loss and linked.
      memory: kept of the stream.
      replay: what is done with it.
      scope: whose examples a stage reads.
      adapting: of what is scored to the memory; None = nothing is adapted.
      episode: of what is learned from; None = nothing is adapted.
    """
    counts = any(rule.counts for rule in rules) or (replay is not None and replay.by_progress)
    rules = (*rules, COUNTING) if counts else rules
    needs = Needs(*(any(flags) for flags in zip(Needs(), *(rule.needs for rule in rules), strict=True)))
    if memory is not None:
        needs = needs._replace(examples=True, tasks_in_training=needs.tasks_in_training or memory.groups == "task")
    if episode is not None:
        needs = needs._replace(examples=True)
    schedule: Schedule | EpisodeSchedule = replay.schedule if replay else Schedule()
    if episode is not None and episode.find is None:
        schedule = EpisodeSchedule(schedule.every, REPLAY, steps=episode.steps, keeps_last=episode.keeps_last)

    def around(changes: Sequence[StateChange | None]) -> Callable[[TaskInfo], Phase]:
        given = [change for change in changes if change is not None]
        return lambda task: phase_of(*(functools.partial(_of_task, change, task) for change in given))

    def learner(experiment: Experiment, layout: Layout | None, objective: MakeObjective) -> Learner:
        return _Composed(rules, memory, replay, method, adapting, episode, experiment, objective).learner(layout)

    before, after = around([rule.before for rule in rules]), around([rule.after for rule in rules])
    takes_tasks = memory is None or not memory.of_each_task
    method = Method(learner, before, after, scope, schedule, needs, takes_tasks)
    method = method if memory is None else method._replace(notes=memory.notes)
    return method._replace(stages=lambda task, own: [spanned(own)]) if counts else method


def _of_task(change: StateChange, task: TaskInfo, state: TrainState, context: Context) -> TrainState:
    return change(state, context, task)


def over(objective: MakeObjective, laid: Sequence[Lay]) -> MakeObjective:
    """The objective of a configuration with others over it, in their order."""

    def made(config: Any, model: Any) -> Objective:
        found = objective(config, model)
        for lay in laid:
            found = lay(found, model)
        return found

    return made


def updating(experiment: Experiment, objective: MakeObjective, *rules: Rule) -> Observe:
    """The update of some rules without a memory (`Learner.observe`), for kinds of update of a learner of one's own."""
    made = _Composed(rules, None, None, compose(*rules), None, None, experiment, objective)
    return made.observe


class _Composed:
    """The learner of a composition."""

    def __init__(
        self,
        rules: tuple[Rule, ...],
        memory: Episodes | None,
        replay: Replayed | None,
        method: Method,
        adapting: Adapting | None,
        episode: Episode | None,
        experiment: Experiment,
        objective: MakeObjective,
    ):
        self.rules, self.memory, self.replay, self.method, self.adapting = rules, memory, replay, method, adapting
        self.episode, self.find, self.store = episode, None, None
        self.experiment, self.model, self.config = experiment, experiment.model, experiment.config
        self.settings = settings_of(experiment)
        links = [rule.link for rule in rules if rule.link is not None]
        training = self.config.training
        kept = dataclasses.replace(
            training, frozen=(*training.frozen, *(name for rule in rules for name in rule.frozen))
        )
        self.parts = make_parts(
            dataclasses.replace(self.config, training=kept),
            self.model,
            objective=over(objective, [r.stream for r in rules]),
            links=links,
        )
        self.replayed = over(objective, [rule.memory for rule in rules])(self.config, self.model)

    def learner(self, layout: Layout | None) -> Learner:
        plain = plain_learner(self.experiment, layout)
        example, schedule = self._example(), self.method.schedule
        kinds: dict[str, Any] = schedule.kinds(example)
        self.store = self._make_store(plain, kinds[STREAM], layout)
        if self.episode is not None and self.episode.find is not None:
            assert self.store is not None
            self.find = self.episode.find(self.model, self.store)

        def init(values: Mapping[str, Any]) -> TrainState:
            for rule in self.rules:
                values = {**values, "params": rule.begin(values["params"])} if rule.begin else values
            kept = self._init_rules(values)
            episodes = {} if self.store is None else {EPISODES: self.store.init()}
            if schedule.every:
                kept[UPDATES] = jnp.zeros((), jnp.int32)
            if self.replay is not None and self.replay.by_progress:
                kept[PROGRESS] = init_progress(len(self.settings.tasks))
            rows, key = self.config.data.rows, jax.random.key(self.config.training.seed)

            method = {**kept, **episodes}
            # Which sums there are is asked of losses, which read what their rows are adapted to.
            given = {**values, "method": method}
            asked = jax.eval_shape(self._with_support, given, kinds[STREAM], example)["method"]
            begun = self.parts.init(
                values, self.model.init_state(rows), example, jax.random.fold_in(key, 1), method=asked
            )
            return dataclasses.replace(begun, method=method)

        learner = plain._replace(
            init=init, observe=self.observe, kinds=kinds, needs=self.method.needs, finish=self.parts.finish
        )
        if self.memory is None or self.store is None:
            return learner
        learner, parts = learner._replace(host=self.store.host), {"write": Part(self._write, writes=True)}
        sizes = Sizes(kept=EPISODES, capacity=self.memory.setting)
        if self.adapting is not None:
            variables = self.adapting.variables(self.experiment, self.store)
            learner = learner._replace(adapt=variables)
            if self.adapting.rows is not None:
                rows = self.adapting.rows(self.model, self.store)
                scored = dataclasses.replace(self.experiment, adapt_rows=rows)
                learner = learner._replace(adapt_rows=rows, evaluators=scored.evaluators(layout))
                parts["search"] = Part(lambda state, batch: rows.find(variables(state, None, state.key), batch))
                sizes = sizes._replace(width=self.adapting.width, copied=self.adapting.copied)
        # What the host keeps and searches is no matter of a device.
        return learner if self.store.outside else learner._replace(sizes=sizes._replace(parts=parts))

    def _init_rules(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {rule.name: rule.init(values["params"]) for rule in self.rules if rule.init is not None}

    def _reads(self, kind: str) -> bool:
        """Whether an update of this kind reads rows of the memory."""
        if self.replay is None:
            return False
        return kind != STREAM or (self.replay.mode != "sparse" and not self.replay.every)

    def _example(self) -> Batch:
        """A batch of the stream."""
        if not self.settings.epochs:
            return self.experiment.example()
        return self.experiment.example(stage_examples(self.experiment, self.method)[0])

    # One update

    def observe(self, state: TrainState, batch: Batch | None, kind: str) -> tuple[TrainState, dict[str, Sum]]:
        """One update of a kind: `stream`, `projected` (of the stream too), or `replay`, of rows of the memory."""
        kept = dict(state.method)
        episodes = kept.pop(EPISODES, None)  # apart: no check and no gradient goes through all of it
        slim = dataclasses.replace(state, method=kept)
        if batch is None:
            drawn = self._drawn(state, episodes)
            new, sums = self._apply(slim, self._of_memory(self._adapting(slim, episodes, None, drawn), drawn))
            new = self._noted(new, drawn, sums["nll"])
            episodes = self._seen_again(state, episodes, drawn, sums)
            return dataclasses.replace(new, method={**new.method, EPISODES: episodes}), sums
        # Dropout follows the updates of the stream: replays between them do not move it.
        updates = kept.get(UPDATES, state.step)
        # What asks for nothing is of no class.
        classes = jnp.where(batch.weights > 0, batch.targets, jnp.iinfo(jnp.int32).max)
        slim = dataclasses.replace(slim, constants=note_classes(state.constants, self.model.head_place, classes))
        if kind == REPLAY:  # an episode whose query is of the memory
            drawn = self._drawn(state, episodes)
            found = self._of_memory(self._adapting(slim, episodes, batch, drawn), drawn)
            new, sums = self._apply(slim, found)
            episodes = self._seen_again(state, episodes, drawn, sums)
            return self._written(state, new, episodes, batch, updates, sums)
        steps = self.episode.steps if self.episode else 0
        query = jax.tree.map(lambda leaf: leaf[steps:], batch)
        at = self._adapting(dataclasses.replace(slim, step=updates), episodes, batch, query)
        own = self.model.init_state(query.inputs.shape[1]) if kind != STREAM else None
        found = self._gradients(self.parts.objective, at, query, memory=own)
        present, rows, more, reference = jnp.sum(_present(query)), query.inputs.shape[1], {}, None
        drawn, again = None, found
        if self._reads(kind):
            assert self.replay is not None
            if self.replay.mode == "tasks":
                reference = self._of_tasks(slim, episodes, batch)
            else:
                drawn = self._drawn(state, episodes)
                again, there = self._of_memory(slim, drawn), jnp.sum(_present(drawn))
                more = {f"replayed/{name}": value for name, value in again.sums.items()}
                if self.replay.mode == "mixed":
                    found, present, rows = _mixed(found, again), present + there, rows + there
                else:
                    reference = Reference(lambda name: again.params, *[_no_losses] * 3)
        if self.settings.epochs and self.settings.last_batch == "share":
            found = _scaled(found, present / rows)
        new, sums = self._apply(slim, found, reference)
        if drawn is not None:
            new = self._noted(new, drawn, again.sums["nll"])
            episodes = self._seen_again(state, episodes, drawn, sums)
        counted = lambda leaf: jnp.where(sums["skipped"].total == 0, leaf, 0).astype(jnp.float32)
        more = {name: jax.tree.map(counted, value) for name, value in more.items()}
        return self._written(state, new, episodes, batch, updates, {**sums, **more})

    def _written(
        self, state: TrainState, new: TrainState, episodes: Any, batch: Batch, updates: Any, sums: dict[str, Sum]
    ) -> tuple[TrainState, dict[str, Sum]]:
        """The state after an update that has read a batch, with its rows offered to the memory."""
        ok, method = sums["skipped"].total == 0, dict(new.method)
        if UPDATES in method:
            method[UPDATES] = updates + ok
        if self.store is not None:
            offered = self._offered(model_variables(state), state.method, batch, ok)
            assert self.memory is not None
            for name, metric in self.memory.metrics.items():
                assert isinstance(self.store, InState)
                sums = {**sums, name: self.store.measure(episodes, metric, offered)}
            method[EPISODES] = self.store.write(episodes, purpose_key(state.key, "write", updates), offered)
        constants = jax.tree.map(lambda now, old: jnp.where(ok, now, old), new.constants, state.constants)
        return dataclasses.replace(new, method=method, constants=constants), sums

    def _adapting(self, state: TrainState, episodes: Any, batch: Batch | None, query: Batch) -> TrainState:
        """The state for the loss of a query: with what its rows are adapted to."""
        variables = {**model_variables(state), "method": {**state.method, EPISODES: episodes}}
        found = dict(self._with_support(variables, batch, query)["method"])
        del found[EPISODES]
        return dataclasses.replace(state, method=found)

    def _with_support(self, variables: Mapping[str, Any], batch: Batch | None, query: Batch) -> Mapping[str, Any]:
        """Variables with what a query is adapted to: the batches in front of it, or rows of the memory."""
        if self.episode is None:
            return variables
        steps = self.episode.steps
        if self.find is None:
            support = None if batch is None else jax.tree.map(lambda leaf: leaf[:steps], batch)
        else:
            support = jax.lax.stop_gradient(self.find(variables, rows_of(query)))
        return {**variables, "method": {**variables["method"], SUPPORT: support}}

    def _gradients(self, objective: Objective, state: TrainState, batch: Batch, *, memory: Any = None) -> Gradients:
        return gradients_of(objective, state, batch, memory=memory, **self.parts.segments)[1]

    def _of_memory(self, state: TrainState, rows: Batch) -> Gradients:
        """The gradients of replayed rows; their dropout has a key of its own."""
        state = dataclasses.replace(state, key=purpose_key(state.key, "replay", 1))
        memory = self.model.init_state(rows.inputs.shape[1])
        found = self._gradients(self.replayed, state, rows, memory=memory)
        summed = self.episode is not None and self.episode.reduction == "sum"
        assert self.replay is not None
        return _scaled(found, self.replay.rows / self.config.data.rows) if summed else found

    def _apply(
        self, state: TrainState, found: Gradients, reference: Reference | None = None
    ) -> tuple[TrainState, dict[str, Sum]]:
        gathering = [rule for rule in self.rules if rule.after_update is not None]

        def after_update(method: Any, before: Any, after: Any, gradients: Any) -> Any:
            new = {rule.name: rule.after_update(method[rule.name], before, after, gradients) for rule in gathering}  # type: ignore[misc]
            return {**method, **new}

        return apply_gradients(
            state,
            found,
            self.parts.optimizer,
            table_optimizer=self.parts.table_optimizer,
            reference=reference,
            after_update=after_update if gathering else None,
        )

    # The memory

    def _make_store(self, plain: Learner, example: Batch, layout: Layout | None) -> Store | None:
        """Where the memory is."""
        if self.memory is None:
            return None
        values: Any = jax.eval_shape(plain.variables)
        shapes = lambda values, batch: self._offered(values, self._init_rules(values), batch, jnp.ones((), bool))
        offered = jax.eval_shape(shapes, values, example)
        of_one = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype)
        row, keys = jax.tree.map(of_one, example), offered["keys"]
        capacity = self.memory.capacity * (len(self.settings.tasks) if self.memory.of_each_task else 1)
        sizes = (row, capacity, 0 if keys is None else keys.shape[-1])
        if self.memory.place == "device":
            return InState(*sizes, self.memory.policy, layout)
        return OnHost(
            HostMemory(*sizes, index=self.memory.index),
            self.memory.policy,
            offered,
            reads=self._reads,
            rows=self.replay.rows if self.replay else 0,
            replace=bool(self.replay and self.replay.replace),
            split=layout is not None,
        )

    def _drawn(self, state: TrainState, episodes: Any) -> Batch:
        """Rows to replay, with the axis of segments; those that are not there weigh nothing."""
        assert self.replay is not None and self.store is not None
        number, key = self.replay.rows, drawing_key(state)
        if self.replay.by_progress:
            odds = odds_of_tasks(state.method[PROGRESS], share_done(state.method))
            rows = self.store.take(episodes, draw_task(episodes.groups, episodes.count, odds, key, number))
        else:
            rows = self.store.sample(episodes, key, number, replace=self.replay.replace)
        return _over_devices(jax.tree.map(lambda leaf: leaf[None], rows))

    def _noted(self, new: TrainState, drawn: Batch, nll: Sum) -> TrainState:
        """With the loss of replayed rows, where tasks are drawn by it."""
        if PROGRESS not in new.method:
            return new
        assert self.replay is not None
        noted = observe_loss(new.method[PROGRESS], drawn.extras[TASK][0, 0], nll, self.replay.rows)
        return dataclasses.replace(new, method={**new.method, PROGRESS: noted})

    def _seen_again(self, state: TrainState, episodes: Any, drawn: Batch, sums: Mapping[str, Sum]) -> Any:
        """The memory with what its policy counts of replayed rows; of an update that was skipped, nothing."""
        if self.memory is None or self.memory.again is None:
            return episodes
        assert isinstance(self.store, InState) and self.replay is not None
        number = self.replay.rows
        ids = self.store.drawn(episodes, drawing_key(state), number, replace=self.replay.replace)
        rows = jax.tree.map(lambda leaf: leaf[:number], rows_of(drawn))
        right = self.memory.again(self.model, model_variables(state), state.method, rows)
        ids = jnp.where(sums["skipped"].total == 0, ids, -1)
        return self.store.seen_again(episodes, ids, right)

    def _write(self, state: TrainState, rows: Batch) -> TrainState:
        """The state with rows of the stream offered to its memory, and nothing else of an update."""
        assert self.store is not None
        batch, key = jax.tree.map(lambda leaf: leaf[None], rows), purpose_key(state.key, "write", state.step)
        offered = self._offered(model_variables(state), state.method, batch, jnp.ones((), bool))
        written = self.store.write(state.method[EPISODES], key, offered)
        return dataclasses.replace(state, method={**state.method, EPISODES: written})

    def _offered(
        self, variables: Mapping[str, Any], method: Mapping[str, Any], batch: Batch, ok: Any
    ) -> dict[str, Any]:
        """What is offered to the memory of a batch; of one that was skipped, nothing."""
        assert self.memory is not None
        # An episode that replays has one batch less; what is offered has one shape.
        missing = self.episode.steps + 1 - len(batch.inputs) if self.episode and self.find is None else 0
        pad = lambda leaf: jnp.pad(leaf, ((0, missing), *((0, 0),) * (leaf.ndim - 1))) if missing else leaf
        rows = rows_of(jax.tree.map(pad, batch))
        of_rows = lambda function: function and function(self.model, variables, method, rows)
        groups = rows.extras[TASK] if self.memory.groups == "task" else rows.targets[:, 0]
        return {
            "rows": rows,
            "keys": of_rows(self.memory.keys),
            "groups": groups.astype(jnp.int32),
            "scores": of_rows(self.memory.scores),
            "weights": jnp.broadcast_to(ok, groups.shape).astype(jnp.float32),
        }

    def _of_tasks(self, state: TrainState, episodes: Any, batch: Batch) -> Reference:
        """The gradients of the rows of every task but that of the batch; of a task without rows they are 0."""
        assert self.replay is not None and self.store is not None
        take = self.store.take
        number, tasks, current = self.replay.rows, len(self.settings.tasks), batch.extras[TASK][0, 0]
        used = jnp.arange(episodes.capacity) < episodes.count

        def of_task(task: Any) -> Batch:
            mine = used & (episodes.groups == task) & (task != current)
            return take(episodes, jnp.nonzero(mine, size=number, fill_value=-1)[0])

        rows = _over_devices(jax.vmap(of_task)(jnp.arange(tasks)))
        start, key = self.model.init_state(rows.inputs.shape[1]), purpose_key(state.key, "replay", state.step)

        def loss(params: Any, rows: Batch) -> Any:
            variables = {**model_variables(state), "method": state.method, "params": params}
            return self.replayed.loss(variables, start, rows, key)[2].mean()

        def losses(params: Any) -> dict[str, Any]:
            each = jax.vmap(loss, in_axes=(None, 0))(params, rows)
            return {f"task_{index}": each[index] for index in range(tasks)}

        def gradient(rows: Batch) -> Any:  # of a task that is not there yet, for nothing
            none = lambda: jax.tree.map(jnp.zeros_like, state.params)
            return jax.lax.cond(jnp.any(rows.weights > 0), lambda: jax.grad(loss)(state.params, rows), none)

        return make_reference(losses, state.params, lambda: jax.lax.map(gradient, rows))


def _no_losses(*_: Any) -> Any:
    raise ValueError("reference: a link asked for more than one gradient, allowed: with replay of mode 'tasks'")


def _over_devices(rows: Batch) -> Batch:
    """`[some, rows, ...]` with the rows split over devices as those of the stream are; padding fills the last ones."""
    missing = -rows.inputs.shape[1] % row_shards(jax.sharding.get_abstract_mesh())
    fill = lambda leaf: jnp.pad(leaf, ((0, 0), (0, missing), *((0, 0),) * (leaf.ndim - 2))) if missing else leaf
    return jax.tree.map(lambda leaf: constrain(fill(leaf), None, "batch", *(None,) * (leaf.ndim - 2)), rows)


def rows_of(batch: Batch) -> Batch:
    """All rows of a batch, of its segments one after the other."""
    if len(batch.inputs) == 1:
        return jax.tree.map(lambda leaf: leaf[0], batch)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)


def _present(batch: Batch) -> Any:
    """Float `[batch]`, 1 = the row asks for something."""
    return jnp.any(batch.weights > 0, axis=(0, 2)).astype(jnp.float32)


def _scaled(found: Gradients, factor: Any) -> Gradients:
    """The gradients of the objective times a factor."""
    params = jax.tree.map(lambda gradient: gradient * factor, found.params)
    return dataclasses.replace(found, objective=found.objective * factor, params=params)


def _mixed(own: Gradients, other: Gradients) -> Gradients:
    """The gradients of the rows of both at once: of a mean over targets, weighted by their number."""
    ours, theirs = own.sums["nll"].weight, other.sums["nll"].weight
    both = ours + theirs
    share = jnp.where(both > 0, theirs / jnp.where(both > 0, both, 1), 0)
    # Not (1 - share) x + share y: without replayed rows, the gradient stays as it is, bit for bit.
    mix = lambda x, y: x + share * (y - x)
    return dataclasses.replace(
        own, objective=mix(own.objective, other.objective), params=jax.tree.map(mix, own.params, other.params)
    )
