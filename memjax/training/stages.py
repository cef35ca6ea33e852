"""What a run is made of: stages, what stands around the updates of a stage, and the learner that makes the updates.

Plain training is one stage with one kind of update. A stage has three phases: `before` and `after` run on the host, may
be slow and may change shapes; between them stand its updates. Where a run stands is `{stage, phase, steps, stream}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from memjax.training.evaluation import Evaluator, PerRowAdaptation
from memjax.training.step import TrainState, model_variables
from memjax.typing import Batch, Sum

GrowthHistory = tuple[Mapping[str, Any], ...]
"""How the model has grown: for each time, field of the configuration -> its value from then on (JSON values), and under
`GROWTH` what became of what was there."""
GROWTH = "growth"
"""no field of the configuration: what is copied of what (`memjax.lifelong.expansion.Growth`)"""

PHASES = ("before", "steps", "after")
STREAM = "stream"
"""the kind of update that reads and writes the memory of the rows; every other kind has rows of its own"""


class Stream(Protocol):
    """Updates to make: an iterator of `(kind, batch)` with a position, from which its stage opens it again."""

    @property
    def position(self) -> Any:
        """Where the next update begins, a JSON value."""
        ...

    def __next__(self) -> tuple[str, Batch | None]: ...


class SingleKindStream:
    """A stream of batches as a stream of updates of one kind."""

    def __init__(self, stream: Any, kind: str = STREAM):
        self._stream, self._kind = stream, kind

    @property
    def position(self) -> Any:
        return self._stream.position

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        return self

    def __next__(self) -> tuple[str, Batch]:
        return self._kind, next(self._stream)


class HostArrays(NamedTuple):
    """Arrays of a learner that live on the host, saved in the commit of the train state.

    Attributes:
      arrays: `arrays() -> {name: NumPy array}`.
      restore: `restore(arrays)`, of what a checkpoint has.
      before: `before(state, kind) -> state`, with what an update reads of them; outside of the compiled update.
      after: `after(state, kind, batch) -> state`, when they have taken over what the update has left in it; waits for
        the update.
    """

    arrays: Callable[[], Mapping[str, Any]] = dict
    restore: Callable[[Mapping[str, Any]], Any] = lambda arrays: None
    before: Callable[[TrainState, str], TrainState] = lambda state, kind: state
    after: Callable[[TrainState, str, Any], TrainState] = lambda state, kind, batch: state


class Requirements(NamedTuple):
    """What a method must be told, beside the batches.

    Attributes:
      boundaries: where a task ends.
      tasks_in_training: which task a batch is of.
      tasks_in_evaluation: which task is evaluated.
      examples: finite labelled examples, which are counted, kept, or read in another order.
    """

    boundaries: bool = False
    tasks_in_training: bool = False
    tasks_in_evaluation: bool = False
    examples: bool = False


def unadapted_variables(state: TrainState, support: Any, key: Any) -> dict[str, Any]:
    """The variables of the state as they are: no adaptation."""
    return model_variables(state)


class PlannedProgram(NamedTuple):
    """A piece of what a learner does, for a plan, which compiles it by itself.

    Attributes:
      run: `run(state, rows)`, of rows `[rows, ...]`.
      writes: it gives a state, which takes the place of the one given.
    """

    run: Callable[[TrainState, Batch], Any]
    writes: bool = False


class PlanInfo(NamedTuple):
    """What a plan must know of a learner beside its updates.

    Attributes:
      parts: name -> a piece of them.
      kept: the name in `TrainState.method` of the rows that it keeps; '' = it keeps none.
      capacity: the setting that says how many.
      width: the setting that says how many rows are scored side by side on a device, each with parameters of its own;
        '' = none.
      copied: `copied(params)`, what of them each of those rows has a copy of.
    """

    parts: Mapping[str, PlannedProgram] = {}
    kept: str = ""
    capacity: str = ""
    width: str = ""
    copied: Callable[[Any], Any] = lambda params: {}


class Learner(NamedTuple):
    """How a model learns, as an optax transformation is (init, update). It is made anew when the lineage changes.

    Attributes:
      model: the Linen model.
      make_variables: `variables()`, fresh ones; traced, not run, for names and shapes of arrays.
      init: `init(variables) -> TrainState`, traced.
      update: `observe(state, batch, kind) -> (state, sums)`, one update, traced once for each kind. The loop adds the
        sums to the totals of the state, which it sees empty; those of a kind `k` other than `stream` as `k/name`.
      batch_shapes: kind of update -> an example of its batches.
      evaluators: name -> how a split is scored; '' is `Config.evaluation`.
      adapt_variables: `adapt(state, support, key) -> variables` that are evaluated.
      adapt_rows: every row is scored with parameters of its own, made of these variables; None = all with them.
      requirements: what the method must be told.
      host_arrays: arrays on the host.
      plan_info: for a plan.
      finish: `finish(state) -> state` after the last update of a stage, which applies a window of
        `training.apply_every` steps that is not full; None = every update is applied at once.
    """

    model: Any
    make_variables: Callable[[], Mapping[str, Any]]
    init: Callable[[Mapping[str, Any]], TrainState]
    update: Callable[[TrainState, Any, str], tuple[TrainState, dict[str, Sum]]]
    batch_shapes: Mapping[str, Any]
    evaluators: Mapping[str, Evaluator] = {}
    adapt_variables: Callable[[TrainState, Any, Any], Mapping[str, Any]] = unadapted_variables
    adapt_rows: PerRowAdaptation | None = None
    requirements: Requirements = Requirements()
    host_arrays: HostArrays = HostArrays()
    plan_info: PlanInfo = PlanInfo()
    finish: Callable[[TrainState], TrainState] | None = None

    def evaluation_variables(self, state: TrainState, seed: int) -> Mapping[str, Any]:
        """The variables that a split is scored with, and answered: of every evaluation, in the loop and after it."""
        return self.adapt_variables(state, None, jax.random.fold_in(jax.random.key(seed), 3))


class PhaseResult(NamedTuple):
    """What a phase leaves behind.

    Attributes:
      state: the train state, of the learner that `lineage` makes.
      lineage: how the model has grown.
    """

    state: TrainState
    lineage: GrowthHistory


class PhaseContext(NamedTuple):
    """What a phase may use.

    Attributes:
      key: of the run, the stage and the phase; the same where a phase is repeated.
      data: `data()`, the updates of the stage from their beginning, on their devices.
      lineage: how the model has grown so far.
      stop: called now and then; ends the phase where a signal wants the run to end.
      report: tells one line.
      layout: of arrays on several devices, or None.
      measure: `measure(kind, values)`, a line of the metrics of the run.
    """

    key: Any
    data: Callable[[], Iterator[tuple[str, Any]]]
    lineage: GrowthHistory
    stop: Callable[[], None]
    report: Callable[[str], None]
    layout: Any
    measure: Callable[[str, Mapping[str, Any]], None] = lambda kind, values: None


def do_nothing(state: TrainState, context: PhaseContext) -> PhaseResult:
    """A phase that does nothing."""
    return PhaseResult(state, context.lineage)


def phase_key(seed: int, stage: int, phase: str) -> Any:
    """The key of a phase of a stage, by the number of the stage, in a run of this seed."""
    key = jax.random.key(seed)
    for number in (2, stage, PHASES.index(phase)):
        key = jax.random.fold_in(key, number)
    return key


class Stage(NamedTuple):
    """One part of a run.

    Attributes:
      name: for people.
      open_stream: `open(state, position) -> Stream`, from its beginning where the position is None.
      steps: updates, or `steps(state)`, asked once after `before` and kept in the position.
      before: what happens before the updates.
      after: what happens after them.
      task: whose data it is, where tasks have names.
      evaluate_after: names of the evaluations that follow the stage.
      evaluate_before: names of those that stand before it.
      notes: lines about its data that are allowed but rarely meant.
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
    """The updates of all stages; 0 = one of them tells its own only when it begins."""
    known = [stage.steps for stage in stages if isinstance(stage.steps, int)]
    return sum(known) if len(known) == len(stages) else 0


class Position(NamedTuple):
    """Where a run stands.

    Attributes:
      step: updates done.
      stage: which stage; their number once all are through.
      phase: one of `PHASES`.
      steps: updates of every stage that has been through `before`.
      stream: where the stream of the stage stands; None at its beginning.
    """

    step: int = 0
    stage: int = 0
    phase: str = PHASES[0]
    steps: tuple[int, ...] = ()
    stream: Any = None

    @property
    def checkpoint_number(self) -> int:
        """Of a checkpoint: the updates before it, and one for each change of phase, so that numbers only grow."""
        return self.step + len(PHASES) * self.stage + PHASES.index(self.phase) - 1

    @property
    def end(self) -> int:
        """The last update of the stage."""
        return sum(self.steps[: self.stage + 1])

    def to_dict(self) -> dict[str, Any]:
        """As a checkpoint holds it, beside its number."""
        return {name: getattr(self, name) for name in ("stage", "phase", "steps", "stream")}

    @classmethod
    def read(cls, number: int, value: Mapping[str, Any], steps: int) -> Position:
        """The inverse of `to_dict`; runs of earlier versions have the position of their stream alone.

        Args:
          number: of the checkpoint.
          value: what it holds.
          steps: of the one stage of an earlier version.
        """
        if "stage" not in value:
            return cls(number, 0, "steps", (steps,), value)
        stage, phase = value["stage"], value["phase"]
        step = number - len(PHASES) * stage - PHASES.index(phase) + 1
        return cls(step, stage, phase, tuple(value["steps"]), value["stream"])
