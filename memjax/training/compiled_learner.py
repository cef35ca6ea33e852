"""A learner with compiled updates: places its arrays on devices and converts its state to and from checkpoints."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memjax.axes import parameter_names
from memjax.models.compiled_programs import free_programs
from memjax.training.sharding import Layout, put, put_rows, train_state_names
from memjax.training.stages import STREAM, Learner
from memjax.training.train_state import TrainState
from memjax.training.variables import join_state, split_state
from memjax.typing import Batch, WeightedSum


class CompiledLearner:
    """A learner with its update functions compiled and its arrays placed on one device or on those of a mesh.

    Attributes:
      layout: Shardings of all arrays over the mesh. None on a single device.
      learner: Learner whose updates are compiled.
      groups: Groups of layers of the model whose parameters are stacked, from `Model.layer_groups`.
      shapes: Train state with shapes and dtypes in place of arrays. Its totals hold the sums of all kinds of update.
      state: Shardings of the train state. None on a single device.
      batches: Shardings of a batch for each kind of update. None on a single device.
      variables: Shardings of the variables of the model. None on a single device.
    """

    def __init__(self, layout: Layout | None, learner: Learner):
        self.layout, self.learner, self.groups = layout, learner, learner.model.layer_groups()
        # Inlined, so that an update is traced once: for the names of its sums, and as part of the program.
        inline = lambda update: jax.jit(lambda state, batch: update(state, batch), inline=True)
        self._inlined = {kind: inline(update) for kind, update in learner.updates.items()}
        state: Any = jax.eval_shape(lambda: learner.init(learner.make_variables()))
        state, self._sums = dataclasses.replace(state, totals={}), {}
        for kind, batch in learner.batch_shapes.items():
            self._sums |= _name_sums(jax.eval_shape(self._inlined[kind], state, batch)[1], kind)
        self.shapes: Any = jax.eval_shape(self._with_totals, state)
        self._checkpoint_shapes: Any = jax.eval_shape(lambda state: split_state(state, self.groups), self.shapes)
        self.state: Any = None
        self.variables, self.batches = None, dict.fromkeys(learner.batch_shapes)
        if layout is not None:
            names = parameter_names(learner.make_variables)
            self.state = layout.train_state(self.shapes, names)
            self.batches = {kind: layout.batch(example) for kind, example in learner.batch_shapes.items()}
            self.variables = layout.of(names, jax.eval_shape(learner.make_variables))
            self._checkpoint_shapes = jax.tree.map(
                lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
                self._checkpoint_shapes,
                layout.of(split_state(train_state_names(self.shapes, names), self.groups), self._checkpoint_shapes),
            )
        self._finish: Any = None
        self._compiled = {kind: self.compile(kind) for kind in learner.batch_shapes}

    def _with_totals(self, state: TrainState) -> TrainState:
        """Returns the state with all totals set to zero."""
        return dataclasses.replace(state, totals={name: WeightedSum.zero() for name in self._sums})

    def make_update(self, kind: str) -> Callable[..., Any]:
        """Makes the function `update(state, batch) -> (state, sums)` of one kind of update, not compiled.

        The function adds the sums of the update to the totals of the state.
        """
        # Not through `self`: programs in a cycle wait for the garbage collector, which does not know their size.
        update = self._inlined[kind]

        def train_step(state: TrainState, batch: Any) -> Any:
            new, sums = update(dataclasses.replace(state, totals={}), batch)
            sums = _name_sums(sums, kind)
            totals = {name: total + sums[name] if name in sums else total for name, total in state.totals.items()}
            return dataclasses.replace(new, totals=totals), sums

        return train_step

    def compile(self, kind: str) -> Callable[..., Any]:
        """Returns the jitted function `update(state, batch) -> (state, sums)` of one kind of update. It donates the
        state.
        """
        out = None if self.layout is None else (self.state, self.layout.replicated)
        places = (self.state, self.batches[kind])
        return jax.jit(self.make_update(kind), donate_argnums=0, in_shardings=places, out_shardings=out)

    def update_inlined(self, state: TrainState, update: tuple[str, Any]) -> Any:
        """Runs one update `(kind, batch)` with its compiled function and updates the arrays on the host. Returns
        `(state, sums)`, with a `WeightedSum` of each loss, metric and count by name.
        """
        (kind, batch), host = update, self.learner.host_arrays
        state, sums = self._compiled[kind](host.before(state, kind), batch)
        return host.after(state, kind, batch), sums

    def release(self) -> None:
        """Frees the compiled update functions, even if a stored exception still refers to this object."""
        finish = () if self._finish is None else (self._finish,)
        free_programs((*self._inlined.values(), *self._compiled.values(), *finish))

    def finish(self, state: TrainState) -> TrainState:
        """Finishes a stage: returns the state after `Learner.finish`, which runs after the last update of a stage."""
        if self.learner.finish is None:
            return state
        if self._finish is None:
            self._finish = jax.jit(self.learner.finish, donate_argnums=0, out_shardings=self.state)
        return self._finish(state)

    def new_variables(self) -> Mapping[str, Any]:
        """Makes newly initialized variables of the model."""
        # JAX keeps a program as long as its function. A stored exception keeps the function of the learner alive.
        make_variables = lambda: self.learner.make_variables()
        return jax.jit(make_variables, out_shardings=self.variables, compiler_options=options_to_run_once())()

    def init(self, values: Mapping[str, Any]) -> TrainState:
        """Makes the train state before the first step from `values`, the variables of the model."""
        values = values if self.layout is None else put(values, self.variables)
        return jax.jit(lambda values: self._with_totals(self.learner.init(values)), out_shardings=self.state)(values)

    def checkpoint_shapes(self) -> dict[str, Any]:
        """Returns the tree that `to_checkpoint` makes, with shapes and dtypes in place of the arrays on devices.

        They carry shardings if there is a layout. The arrays of the host are the arrays themselves.
        """
        return {**vars(self._checkpoint_shapes), "host": dict(self.learner.host_arrays.arrays())}

    def to_checkpoint(self, state: TrainState) -> dict[str, Any]:
        """Converts a train state to the tree that a checkpoint saves: a dictionary of its fields, with single layers,
        and of the arrays on the host.

        Stacked layers are split into single layers, and the arrays of the host are added under `host`.
        """
        run: Any = jax.jit
        if self.layout is None:  # Slicing on the device would compile a program per shape.
            names, run = ("params", "tables", "batch_stats", "constants"), lambda function: function
            state = dataclasses.replace(state, **jax.device_get({name: getattr(state, name) for name in names}))
        return {**vars(split_state(state, self.groups, run=run)), "host": dict(self.learner.host_arrays.arrays())}

    def from_checkpoint(self, saved: Mapping[str, Any]) -> TrainState:
        """Converts the tree of a checkpoint to a train state and restores the arrays of the host.

        It is the inverse of `to_checkpoint`. If the checkpoint has no memory, the memory of every row is new.
        """
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
        """Places the train state that a phase of a stage returned on the devices, with a separate buffer for every
        leaf, and returns it. `grown` says that the phase enlarged the model: the totals restart at zero.

        Args:
          state: Train state that the phase returned.
          grown: Whether the phase enlarged the model. The totals then restart at zero.

        Raises:
          ValueError: The shapes or dtypes of the state differ from those of this learner.
        """
        # The next update donates the state, so that no two leaves may share a buffer.
        state = self._with_totals(state) if grown else state
        shapes = lambda tree: jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)} {list(jnp.shape(leaf))}", tree)
        if shapes(state) != shapes(self.shapes):
            leaves, expected = (
                {jax.tree_util.keystr(path): text for path, text in jax.tree_util.tree_leaves_with_path(shapes(tree))}
                for tree in (state, self.shapes)
            )
            path = next((p for p in {**expected, **leaves} if leaves.get(p) != expected.get(p)), "")
            raise ValueError(
                f"state{path}: given {leaves.get(path, 'none')}, allowed: {expected.get(path, 'none')}, as before "
                "the phase of the stage; a phase that enlarges the model says so in PhaseResult.lineage"
            )
        seen: set[int] = set()

        def copy_if_shared(leaf: Any) -> Any:
            twice, _ = id(leaf) in seen, seen.add(id(leaf))
            return jnp.copy(leaf) if twice else jnp.asarray(leaf)

        state = jax.tree.map(copy_if_shared, state)
        return state if self.layout is None else put(state, self.state)

    def put_update(self, update: tuple[str, Batch | None]) -> tuple[str, Any]:
        """Puts the batch of an update `(kind, batch)` on the devices of the layout, and returns the update. Without a
        layout it is returned unchanged.

        `batch` has the rows of this process. The result has the rows of all processes. None stays None.
        """
        kind, batch = update
        return update if self.layout is None or batch is None else (kind, put_rows(batch, self.batches[kind]))


def options_to_run_once() -> dict[str, Any]:
    """Returns options of the compiler for a program that runs once, unless `XLA_FLAGS` chooses them.

    On a CPU this is level 1 of LLVM, with which new variables compile in about half of the time and have the same bits.
    """
    option = "xla_backend_optimization_level"
    if jax.default_backend() != "cpu" or option in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {option: 1}  # level 0 is faster still, but changes the last bits of new variables


def _name_sums(sums: Mapping[str, WeightedSum], kind: str) -> dict[str, WeightedSum]:
    """Prefixes the names of sums with the kind of update, except for training batches and for `skipped`."""
    rename = lambda name: name if kind == STREAM or name == "skipped" else f"{kind}/{name}"
    return {rename(name): value for name, value in sums.items()}
