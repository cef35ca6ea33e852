"""Where the arrays of a run live, and how they look in a checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memjax.axes import parameter_names
from memjax.training.sharding import Layout, put, put_rows, train_state_names
from memjax.training.stages import Learner
from memjax.training.step import TrainState
from memjax.training.variables import join_state, split_state
from memjax.typing import Batch


class Places:
    """Where the arrays of a learner live: on one device, or as a layout says.

    Attributes:
      shapes: of the train state.
      saved: what a checkpoint holds, the shapes of `split`; with shardings where there is a layout.
    """

    def __init__(self, layout: Layout | None, learner: Learner):
        self.layout, self.learner, self.groups = layout, learner, learner.model.groups()
        self.shapes: Any = jax.eval_shape(lambda: learner.init(learner.variables()))
        self.saved: Any = jax.eval_shape(lambda state: split_state(state, self.groups), self.shapes)
        self._compiled: dict[str, Any] = {}
        if layout is None:
            return
        names = parameter_names(learner.variables)
        self.state = layout.train_state(self.shapes, names)
        self.batches = {kind: layout.batch(example) for kind, example in learner.kinds.items()}
        self.variables = layout.of(names, jax.eval_shape(learner.variables))
        self.saved = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.saved,
            layout.of(split_state(train_state_names(self.shapes, names), self.groups), self.saved),
        )

    def compile(self, kind: str) -> Callable[..., Any]:
        """One update of a kind, which donates the state."""

        def train_step(state: TrainState, batch: Any) -> Any:
            return self.learner.observe(state, batch, kind)

        if self.layout is None:
            return jax.jit(train_step, donate_argnums=0)
        return jax.jit(
            train_step,
            donate_argnums=0,
            in_shardings=(self.state, self.batches[kind]),
            out_shardings=(self.state, self.layout.replicated),
        )

    def observe(self, state: TrainState, update: tuple[str, Any]) -> Any:
        """One update `(kind, batch)`, compiled once for each kind."""
        kind, batch = update
        if kind not in self._compiled:
            self._compiled[kind] = self.compile(kind)
        return self._compiled[kind](state, batch)

    def init(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None) -> TrainState:
        """The state before the first step, of fresh variables or of what `change` makes of them."""
        layout, learner = self.layout, self.learner
        if layout is None:
            values = jax.jit(learner.variables)()
            return jax.jit(learner.init)(change(values) if change else values)
        values = jax.jit(learner.variables, out_shardings=self.variables)()
        return jax.jit(learner.init, out_shardings=self.state)(
            put(change(values) if change else values, self.variables)
        )

    def empty_rows(self, state: TrainState, rows: int) -> TrainState:
        """The state with memories as before the first step."""
        restart = lambda: jnp.zeros(self.shapes.restart.shape, bool)
        make = lambda: {"memory": self.learner.model.init_state(rows), "restart": restart()}
        if self.layout is None:
            return dataclasses.replace(state, **jax.jit(make)())
        places = {"memory": self.state.memory, "restart": self.state.restart}
        return dataclasses.replace(state, **jax.jit(make, out_shardings=places)())

    def split(self, state: TrainState) -> TrainState:
        """What a checkpoint holds: layers apart."""
        if self.layout is None:  # Slicing on the device would compile a program per shape.
            return split_state(_collections_on_host(state), self.groups)
        return split_state(state, self.groups, run=jax.jit)

    def join(self, state: TrainState) -> TrainState:
        """The inverse of `split`."""
        if self.layout is None:
            return jax.tree.map(jnp.array, join_state(state, self.groups))
        join = lambda state: join_state(state, self.groups)
        return jax.jit(join, donate_argnums=0, out_shardings=self.state)(state)

    def take(self, state: TrainState) -> TrainState:
        """A state that a phase has made, where it belongs, with a buffer of its own for every leaf.

        Raises:
          ValueError: it is not of this learner's shapes.
        """
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


def _collections_on_host(state: TrainState) -> TrainState:
    """What `split_state` takes apart, as NumPy: slicing on the device would compile a program per shape."""
    params, tables, batch_stats, constants = jax.device_get(
        (state.params, state.tables, state.batch_stats, state.constants)
    )
    return dataclasses.replace(state, params=params, tables=tables, batch_stats=batch_stats, constants=constants)
