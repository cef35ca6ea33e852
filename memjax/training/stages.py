"""The structure of a run: stages, their phases, and the learner that makes the updates.

Plain training is one stage with one kind of update. A stage has three phases: `before`, its updates, and `after`.
`before` and `after` run on the host, may be slow and may change the shapes of arrays. The position of a run in its
stages is saved as `{stage, phase, steps, stream}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from memjax.training.evaluation import Evaluator
from memjax.training.row_adaptation import PerRowAdaptation
from memjax.training.train_state import TrainState, model_variables
from memjax.typing import Batch, WeightedSum

GrowthHistory = tuple[Mapping[str, Any], ...]
"""Growth steps of a model in order. Each maps fields of the configuration to their values after the step (JSON values).
The key `GROWTH` says how the arrays from before the step were copied."""
GROWTH = "growth"
"""Key of a growth step that holds how arrays are copied (`memjax.lifelong.growth_sources.Growth`)."""

PHASES = ("before", "steps", "after")
STREAM = "stream"
"""Kind of update that reads and writes the memory of the rows. Other kinds have separate rows."""


class Stream(Protocol):
    """An iterator over the updates of a stage, pairs `(kind, batch)`, that can be reopened at a position."""

    @property
    def position(self) -> Any:
        """Position of the next update, a JSON value that `Stage.open_stream` takes."""
        ...

    def __next__(self) -> tuple[str, Batch | None]:
        """Returns the kind and the batch of the next update."""
        ...


class PlannedUpdate(NamedTuple):
    """The plan of one update of a stream: its kind and the number of batches that it reads.

    Attributes:
      kind: Kind of the update.
      reads: Number of batches that the update reads, joined along their first axis. An update that reads none gets None
        as its batch.
      padding: Number of empty batches in front of them.
    """

    kind: str = STREAM
    reads: int = 1
    padding: int = 0


class UpdateStream:
    """A stream of updates that reads batches by a plan, which is a function of the number of the update.

    Attributes:
      position: Position of the next update, a JSON value.
    """

    def __init__(
        self,
        plan: Callable[[int], PlannedUpdate],
        total: float,
        batches: Any,
        position: Callable[[int], Any],
        *,
        number: int = 0,
    ):
        """Makes a stream that continues with the update of a given number.

        Args:
          plan: `plan(number)` returns the plan of an update.
          total: Number of all updates. `inf` for a stream that ends with its batches.
          batches: Iterator over batches, at the batch that the update reads next.
          position: `position(number)` returns the position before an update. The iterator is then at its batch.
          number: Number of the next update.
        """
        self._plan, self._total, self._batches, self._position = plan, total, batches, position
        self._number = number

    @property
    def position(self) -> Any:
        return self._position(self._number)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self

    def __next__(self) -> tuple[str, Any]:
        if self._number >= self._total:
            raise StopIteration
        kind, reads, padding = self._plan(self._number)
        batches = [next(self._batches) for _ in range(reads)]
        self._number += 1
        if not padding and reads < 2:
            return kind, batches[0] if batches else None
        empty = [self._batches.make_padding_batch() for _ in range(padding)]
        return kind, jax.tree.map(lambda *leaves: np.concatenate(leaves), *empty, *batches)


def make_stream_of_one_kind(batches: Any, kind: str = STREAM) -> UpdateStream:
    """Makes an `UpdateStream` whose updates have one kind and read one batch each, until the batches end.

    Args:
      batches: Iterator over batches. Its `position` is the position of the stream.
      kind: Name of the update function, a key of `Learner.updates`.
    """
    return UpdateStream(lambda number: PlannedUpdate(kind), math.inf, batches, lambda number: batches.position)


class HostArrays(NamedTuple):
    """Functions that manage the arrays of a learner in host memory, such as an episodic memory.

    They are saved in the same checkpoint as the train state.

    Attributes:
      arrays: Function `arrays() -> {name: NumPy array}`, which returns the arrays to save.
      restore: Function `restore(arrays)`, which loads the arrays of a checkpoint.
      before: Function `before(state, kind) -> state`, called before each update. It copies the entries that the update
        reads from the host into the train state.
      after: Function `after(state, kind, batch) -> state`, called after each update. It waits for the update and copies
        its results from the train state to the host.
    """

    arrays: Callable[[], Mapping[str, Any]] = dict
    restore: Callable[[Mapping[str, Any]], Any] = lambda arrays: None
    before: Callable[[TrainState, str], TrainState] = lambda state, kind: state
    after: Callable[[TrainState, str, Any], TrainState] = lambda state, kind, batch: state


class Requirements(NamedTuple):
    """Flags for the information that a learning method needs in addition to the batches, such as the end of a task or
    the task of each batch.

    Attributes:
      boundaries: Whether the method needs to know when a task ends.
      tasks_in_training: Whether the method needs the task of each training batch.
      tasks_in_evaluation: Whether the method needs the task that is evaluated.
      examples: Whether the method needs a finite set of labelled examples, which it counts, stores or reorders.
      all_tasks: Whether the method must know all tasks when a run begins, so that it cannot continue with further ones.
    """

    boundaries: bool = False
    tasks_in_training: bool = False
    tasks_in_evaluation: bool = False
    examples: bool = False
    all_tasks: bool = False


def unadapted_variables(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
    """Returns the variables of the train state without any adaptation. `support` and `key` are ignored."""
    return model_variables(state)


class StoredRows(NamedTuple):
    """The rows that a learner stores on its devices, described for a memory plan: their name, the setting with their
    number, and the function that writes them.

    Attributes:
      name: Name of the rows in `TrainState.method`.
      capacity: Name of the setting with the number of stored rows.
      write: Function `write(state, rows) -> state`, which stores rows of a batch and does nothing else of an update. A
        plan compiles it by itself, with the state donated.
    """

    name: str
    capacity: str
    write: Callable[[TrainState, Batch], TrainState]


Update = Callable[[TrainState, Any], tuple[TrainState, dict[str, WeightedSum]]]
"""A function `update(state, batch) -> (state, sums)` that makes one update. The sums are losses and metrics by name."""


class Learner(NamedTuple):
    """A model, its optimiser and its learning method as functions, like an optax transformation: `init` makes the train
    state, and `updates` has a function for each kind of update.

    A new learner is made when the model grows.

    Attributes:
      model: Linen model.
      make_variables: Function `make_variables()`, which initializes the variables of the model. It is also traced to
        get the names and shapes of arrays.
      init: Function `init(variables) -> TrainState`. It is traced.
      updates: Function `update(state, batch) -> (state, sums)` of each kind of update. Each is traced once. The state
        that it receives has empty totals. The loop adds the sums to the totals, under `kind/name` for kinds other than
        `stream`.
      batch_shapes: Example batch of each kind of update, or its shapes.
      evaluators: Evaluators of the splits by name. '' is that of `Config.evaluation`.
      adapt_variables: Function `adapt_variables(state, support, key) -> variables`, which returns the variables to
        evaluate.
      adapt_rows: Test-time adaptation of these variables to each row. None evaluates all rows with the same variables.
      variables_of_task: Function from the variables to evaluate and the number of a task to those that answer it. None
        if the same variables answer all tasks. See `Experiment.variables_of_task`.
      host_arrays: Functions that manage the arrays of the learner in host memory.
      stored_rows: Rows that the learner stores on its devices. None if there are none.
      finish: Function `finish(state) -> state`, called after the last update of a stage. It applies the gradients of an
        incomplete window of `training.gradient_accumulation_steps` steps. None if every update is applied at once.
    """

    model: Any
    make_variables: Callable[[], Mapping[str, Any]]
    init: Callable[[Mapping[str, Any]], TrainState]
    updates: Mapping[str, Update]
    batch_shapes: Mapping[str, Any]
    evaluators: Mapping[str, Evaluator] = {}
    adapt_variables: Callable[[TrainState, Any, Any], Mapping[str, Any]] = unadapted_variables
    adapt_rows: PerRowAdaptation | None = None
    variables_of_task: Callable[[Mapping[str, Any], int | None], Mapping[str, Any]] | None = None
    host_arrays: HostArrays = HostArrays()
    stored_rows: StoredRows | None = None
    finish: Callable[[TrainState], TrainState] | None = None

    def evaluation_variables(self, state: TrainState, seed: int) -> Mapping[str, Any]:
        """Returns the variables that all evaluations and answers use, during training and after it: those of the state,
        as the method adapts them. `seed` gives the random key.
        """
        return self.adapt_variables(state, None, jax.random.fold_in(jax.random.key(seed), 3))


MakeLearner = Callable[[GrowthHistory], Learner]
"""Function `make_learner(lineage)` that makes the learner of a model with this growth history."""


class PhaseResult(NamedTuple):
    """The result of a phase of a stage: the train state and the growth history after it.

    Attributes:
      state: Train state after the phase, with the shapes of the learner for `lineage`.
      lineage: Growth history of the model after the phase.
    """

    state: TrainState
    lineage: GrowthHistory


class PhaseContext(NamedTuple):
    """The data and functions that a phase of a stage may use.

    Attributes:
      key: Random key of this phase of this stage. A repeated phase gets the same key.
      data: Function `data()`, which returns an iterator over the updates of the stage from the first one, on their
        devices.
      lineage: Growth history of the model before the phase.
      stop: Function `stop()`, to be called from time to time. It ends the phase if a signal has asked the run to end.
      report: Function `report(line)`, which shows a line to the user.
      layout: Shardings of all arrays over several devices. None on a single device.
      measure: Function `measure(kind, values)`, which writes a line to the metrics of the run.
    """

    key: Any
    data: Callable[[], Iterator[tuple[str, Any]]]
    lineage: GrowthHistory
    stop: Callable[[], None]
    report: Callable[[str], None]
    layout: Any
    measure: Callable[[str, Mapping[str, Any]], None] = lambda kind, values: None


def do_nothing(state: TrainState, context: PhaseContext) -> PhaseResult:
    """Returns the train state and the growth history unchanged: a phase that does nothing."""
    return PhaseResult(state, context.lineage)


def phase_key(seed: int, stage: int, phase: str) -> Any:
    """Makes the random key of a phase ('before' or 'after') from the seed of the run and the number of the stage."""
    key = jax.random.key(seed)
    for number in (2, stage, PHASES.index(phase)):
        key = jax.random.fold_in(key, number)
    return key


class Stage(NamedTuple):
    """A part of a run with its own data and number of updates, and with phases before and after its updates.

    Attributes:
      name: Name of the stage, for messages.
      open_stream: Function `open_stream(state, position) -> Stream`, which opens the updates of the stage. None as
        position opens them at the beginning.
      steps: Number of updates, or a function `steps(state)` that computes it. It is called once after `before`, and the
        result is saved in the position of the run.
      before: Phase before the updates, `before(state, context) -> PhaseResult`.
      after: Phase after the updates, `after(state, context) -> PhaseResult`.
      task: Name of the task whose data the stage reads. '' if tasks have no names.
      evaluate_after: Names of the evaluations after the stage.
      evaluate_before: Names of the evaluations before the stage.
      notes: Lines about the data of the stage that point out something allowed but unusual.
    """

    name: str
    open_stream: Callable[[TrainState, Any], Stream]
    steps: int | Callable[[TrainState], int]
    before: Callable[[TrainState, PhaseContext], PhaseResult] = do_nothing
    after: Callable[[TrainState, PhaseContext], PhaseResult] = do_nothing
    task: str = ""
    evaluate_after: Sequence[str] = ()
    evaluate_before: Sequence[str] = ()
    notes: Sequence[str] = ()


def count_steps(stages: Sequence[Stage]) -> int:
    """Returns the number of updates of all stages, or 0 if a stage computes its own only when it begins."""
    known = [stage.steps for stage in stages if isinstance(stage.steps, int)]
    return sum(known) if len(known) == len(stages) else 0


class Position(NamedTuple):
    """The position of a run in its stages: updates done, current stage and phase, updates of each stage so far, and
    position in its stream.

    Attributes:
      step: Number of updates done.
      stage: Number of the current stage, from 0. The number of stages once all are finished.
      phase: Current phase, one of `PHASES`.
      steps: Number of updates of each stage whose phase `before` is finished.
      stream: Position in the stream of the stage, a JSON value. None at its beginning.
    """

    step: int = 0
    stage: int = 0
    phase: str = PHASES[0]
    steps: tuple[int, ...] = ()
    stream: Any = None

    @property
    def checkpoint_number(self) -> int:
        """Number of a checkpoint at this position. It grows with every update and with every change of phase."""
        return self.step + len(PHASES) * self.stage + PHASES.index(self.phase) - 1

    @property
    def end(self) -> int:
        """Number of updates that the run has done when the current stage ends."""
        return sum(self.steps[: self.stage + 1])

    def to_dict(self) -> dict[str, Any]:
        """Returns `stage`, `phase`, `steps` and `stream` by name. The number of the checkpoint gives the step."""
        return {name: getattr(self, name) for name in ("stage", "phase", "steps", "stream")}

    @classmethod
    def read(cls, number: int, value: Mapping[str, Any], steps: int) -> Position:
        """Makes the position from `number`, that of a checkpoint, and `value`, its saved fields: the inverse of
        `to_dict`. `steps` is used for runs of earlier versions only.

        Args:
          number: Number of the checkpoint.
          value: Saved fields. Runs of earlier versions have saved the position of their stream alone.
          steps: Number of updates of the single stage, for runs of earlier versions.
        """
        if "stage" not in value:
            return cls(number, 0, "steps", (steps,), value)
        stage, phase = value["stage"], value["phase"]
        step = number - len(PHASES) * stage - PHASES.index(phase) + 1
        return cls(step, stage, phase, tuple(value["steps"]), value["stream"])
