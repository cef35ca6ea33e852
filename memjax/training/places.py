"""Where the arrays of a run live, and how they look in a checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memjax.axes import parameter_names
from memjax.programs import free_programs
from memjax.training.sharding import Layout, put, put_rows, train_state_names
from memjax.training.stages import STREAM, Learner
from memjax.training.step import TrainState
from memjax.training.variables import join_state, split_state
from memjax.typing import Batch, Sum


class CompiledLearner:
    """Where the arrays of a learner live: on one device, or as a layout says; and its updates, compiled.

    Attributes:
      shapes: of the train state; its totals are the sums of all kinds of update.
    """

    def __init__(self, layout: Layout | None, learner: Learner):
        self.layout, self.learner, self.groups = layout, learner, learner.model.groups()
        # Inlined, so that an update is traced once: for the names of its sums, and as part of the program.
        observe = lambda kind: jax.jit(lambda state, batch: learner.update(state, batch, kind), inline=True)
        self._observe = {kind: observe(kind) for kind in learner.batch_shapes}
        state: Any = jax.eval_shape(lambda: learner.init(learner.make_variables()))
        state, self._sums = dataclasses.replace(state, totals={}), {}
        for kind, batch in learner.batch_shapes.items():
            self._sums |= _name_sums(jax.eval_shape(self._observe[kind], state, batch)[1], kind)
        self.shapes: Any = jax.eval_shape(self._with_totals, state)
        self._split: Any = jax.eval_shape(lambda state: split_state(state, self.groups), self.shapes)
        self.state: Any = None
        self.variables, self.batches = None, dict.fromkeys(learner.batch_shapes)
        if layout is not None:
            names = parameter_names(learner.make_variables)
            self.state = layout.train_state(self.shapes, names)
            self.batches = {kind: layout.batch(example) for kind, example in learner.batch_shapes.items()}
            self.variables = layout.of(names, jax.eval_shape(learner.make_variables))
            self._split = jax.tree.map(
                lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
                self._split,
                layout.of(split_state(train_state_names(self.shapes, names), self.groups), self._split),
            )
        self._finish: Any = None
        self._compiled = {kind: self.compile(kind) for kind in learner.batch_shapes}

    def _with_totals(self, state: TrainState) -> TrainState:
        """The state with all totals at zero."""
        return dataclasses.replace(state, totals={name: Sum.zero() for name in self._sums})

    def make_update(self, kind: str) -> Callable[..., Any]:
        """One update of a kind: `update(state, batch) -> (state, sums)`, not compiled."""
        # Not through `self`: programs in a cycle wait for the garbage collector, which does not know their size.
        observe = self._observe[kind]

        def train_step(state: TrainState, batch: Any) -> Any:
            new, sums = observe(dataclasses.replace(state, totals={}), batch)
            sums = _name_sums(sums, kind)
            totals = {name: total + sums[name] if name in sums else total for name, total in state.totals.items()}
            return dataclasses.replace(new, totals=totals), sums

        return train_step

    def compile(self, kind: str) -> Callable[..., Any]:
        """One update of a kind, which donates the state."""
        out = None if self.layout is None else (self.state, self.layout.replicated)
        places = (self.state, self.batches[kind])
        return jax.jit(self.make_update(kind), donate_argnums=0, in_shardings=places, out_shardings=out)

    def update_inlined(self, state: TrainState, update: tuple[str, Any]) -> Any:
        """One update `(kind, batch)`, compiled once for each kind, with what the host does around it."""
        (kind, batch), host = update, self.learner.host_arrays
        state, sums = self._compiled[kind](host.before(state, kind), batch)
        return host.after(state, kind, batch), sums

    def release(self) -> None:
        """Frees the programs of the updates, also where an exception that is kept still holds this object."""
        finish = () if self._finish is None else (self._finish,)
        free_programs((*self._observe.values(), *self._compiled.values(), *finish))

    def finish(self, state: TrainState) -> TrainState:
        """The state after the last update of a stage (see `Learner.finish`)."""
        if self.learner.finish is None:
            return state
        if self._finish is None:
            self._finish = jax.jit(self.learner.finish, donate_argnums=0, out_shardings=self.state)
        return self._finish(state)

    def new_variables(self) -> Mapping[str, Any]:
        """Fresh variables."""
        # JAX keeps a program as long as its function, and the learner's lives as long as an exception that is kept.
        return jax.jit(lambda: self.learner.make_variables(), out_shardings=self.variables)()

    def init(self, values: Mapping[str, Any]) -> TrainState:
        """The state before the first step, of these variables."""
        values = values if self.layout is None else put(values, self.variables)
        return jax.jit(lambda values: self._with_totals(self.learner.init(values)), out_shardings=self.state)(values)

    def checkpoint_shapes(self) -> dict[str, Any]:
        """What a checkpoint holds, the shapes of `split`; with shardings where there is a layout."""
        return {**vars(self._split), "host": dict(self.learner.host_arrays.arrays())}

    def to_checkpoint(self, state: TrainState) -> dict[str, Any]:
        """What a checkpoint holds: layers apart, and the arrays of the host beside them."""
        run: Any = jax.jit
        if self.layout is None:  # Slicing on the device would compile a program per shape.
            names, run = ("params", "tables", "batch_stats", "constants"), lambda function: function
            state = dataclasses.replace(state, **jax.device_get({name: getattr(state, name) for name in names}))
        return {**vars(split_state(state, self.groups, run=run)), "host": dict(self.learner.host_arrays.arrays())}

    def from_checkpoint(self, saved: Mapping[str, Any]) -> TrainState:
        """The inverse of `split`, also for the arrays of the host; where it has no memories they are empty."""
        self.learner.host_arrays.restore(saved["host"])
        state = TrainState(**{name: part for name, part in saved.items() if name != "host"})
        if state.memory is None:
            rows = self.shapes.restart.shape[0]
            make = lambda: (self.learner.model.init_state(rows), jnp.zeros(rows, bool))
            places = None if self.layout is None else (self.state.memory, self.state.restart)
            memory, restart = jax.jit(make, out_shardings=places)()
            state = dataclasses.replace(state, memory=memory, restart=restart)
        if self.layout is None:
            return jax.tree.map(jnp.array, join_state(state, self.groups))
        join = lambda state: join_state(state, self.groups)
        return jax.jit(join, donate_argnums=0, out_shardings=self.state)(state)

    def adopt_state(self, state: TrainState, *, grown: bool) -> TrainState:
        """A state that a phase has made, where it belongs, with a buffer of its own for every leaf.

        Args:
          state: the state.
          grown: it is of a new lineage: its totals begin anew.

        Raises:
          ValueError: it is not of this learner's shapes.
        """
        state = self._with_totals(state) if grown else state
        shapes = lambda tree: jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)
        if shapes(state) != shapes(self.shapes):
            raise ValueError(
                "stage: a phase gave a train state of other arrays than those of its lineage's learner; "
                "name the fields that changed in Change.lineage"
            )
        seen: set[int] = set()

        def own(leaf: Any) -> Any:
            twice, _ = id(leaf) in seen, seen.add(id(leaf))
            return jnp.copy(leaf) if twice else jnp.asarray(leaf)

        state = jax.tree.map(own, state)
        return state if self.layout is None else put(state, self.state)

    def put_update(self, update: tuple[str, Batch | None]) -> tuple[str, Any]:
        """The rows of this process as part of the batch of all."""
        kind, batch = update
        return update if self.layout is None or batch is None else (kind, put_rows(batch, self.batches[kind]))


def _name_sums(sums: Mapping[str, Sum], kind: str) -> dict[str, Sum]:
    """The sums of an update under names that tell its kind; all kinds count `skipped` together."""
    named = lambda name: name if kind == STREAM or name == "skipped" else f"{kind}/{name}"
    return {named(name): value for name, value in sums.items()}
