"""The training loop: `run` runs the stages of a run one after the other, from its newest checkpoint to the end."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.batch_iterator import restart_with_rows
from memjax.models.adapters import count_trained
from memjax.settings.checks import warnings
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.divergence import describe_divergence, divergence_limit, final_divergence, has_diverged
from memjax.training.evaluation import EvaluationInterrupted
from memjax.training.extension import describe_extension
from memjax.training.loaded_runs import describe_new_parameters, init_from
from memjax.training.metrics import count_bytes, count_parameters
from memjax.training.optimizers import count_applied_steps
from memjax.training.profiles import Profile, Steps
from memjax.training.run_logger import RunLogger, describe_score
from memjax.training.runs import check_tokenizer
from memjax.training.scores import EvaluationResult
from memjax.training.signals import StoppedBySignal
from memjax.training.skipped import NonFiniteError, SkippedSteps, describe_kind, read_counts
from memjax.training.slot_counters import pull_usage
from memjax.training.stages import (
    GrowthHistory,
    MakeLearner,
    PhaseContext,
    Position,
    Stage,
    count_steps,
    do_nothing,
    phase_key,
)
from memjax.training.train_state import TrainState
from memjax.training.update_functions import check_frozen
from memjax.typing import WeightedSum

__all__ = ["Hook", "StepInfo", "StoppedBySignal", "TrainingResult", "call_every", "run", "training_steps"]


@dataclasses.dataclass
class StepInfo:
    """The result of one training step, as hooks receive it: the number of steps done, the train state and the metrics
    of the step.

    Attributes:
      step: Number of steps done, including this one.
      state: Train state after the step. The next step donates it, so that a hook must not store it. A hook may replace
        it.
      metrics: `WeightedSum` of each loss, metric and count of this step by name, on the device.
    """

    step: int
    state: TrainState
    metrics: dict[str, WeightedSum]


Hook = Callable[[StepInfo], None]
"""Function that is called after each training step."""


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The results of a finished run: its directory, the number of its steps and the `results` of `finished.json`.

    Attributes:
      path: Run directory.
      step: Number of steps done.
      results: Content of `results` in `finished.json`: `evaluation` (the final evaluation), `evaluations` (the final
        evaluations with a name), `parameters` (their number) and `memory_bytes` (per row). Of a run over tasks also
        `stream`, the result of `memjax.lifelong.stream_results.summarize_stream`.
      finished_before: Whether an earlier call had already finished the run, so that this call did nothing.
    """

    path: Path
    step: int
    results: dict[str, Any]
    finished_before: bool

    @property
    def matrix(self) -> np.ndarray | None:
        """Scores of a run over tasks, `[learned tasks, tasks]`: a row after each task, a column for each task. NaN
        where a score is unknown. None for a run without tasks.
        """
        stream = self.results.get("stream")
        return np.array(stream["scores"], np.float64) if stream else None

    @property
    def average(self) -> float | None:
        """Mean score of all tasks at the end of a run over tasks. None for a run without tasks."""
        return self.results.get("stream", {}).get("average")


def training_steps(
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, WeightedSum]]],
    state: TrainState,
    batches: Iterator[Any],
    *,
    steps: int,
    first: int = 0,
) -> Iterator[StepInfo]:
    """Runs steps `first + 1` to `steps` by `train_step(state, batch) -> (state, metrics)` and yields the `StepInfo` of
    each, without waiting for the device.

    Args:
      train_step: Function `train_step(state, batch) -> (state, metrics)`, from `make_train_step`. It donates the state.
      state: Train state after step `first`.
      batches: Iterator over the batches, one per step. When a step is yielded, no batch after that of the step has been
        read.
      steps: Number of the last step.
      first: Number of steps already done.
    """
    for step in range(first + 1, steps + 1):
        state, metrics = train_step(state, next(batches))
        info = StepInfo(step, state, metrics)
        yield info
        state = info.state


def call_every(number: int, hook: Hook) -> Hook:
    """Wraps a hook so that it is called only at steps that `number` divides. 0 never calls it."""

    def call(info: StepInfo) -> None:
        if number and info.step % number == 0:
            hook(info)

    return call


def run(
    make_learner: MakeLearner,
    stages: Sequence[Stage],
    record: RunLogger,
    *,
    hooks: Sequence[Hook] = (),
    profile: Steps | None = None,
) -> TrainingResult:
    """Runs the stages of a run one after the other, from its newest checkpoint to the end, and returns a
    `TrainingResult`. `make_learner` is a function of the growth history, `record` a `RunLogger`, `profile` the first
    and last step to trace.

    Args:
      make_learner: Function `make_learner(lineage)` that makes the learner for a growth history. It is called at the
        start, when a checkpoint is restored, and after the model has grown.
      stages: Stages in their order.
      record: Run logger, which writes metrics and checkpoints and reports to the user.
      hooks: Functions that are called after each step, before its checkpoint is saved.
      profile: First and last step to trace. None for no trace.

    Raises:
      NonFiniteError: Too many steps in a row were skipped, or the final loss is not finite.
      StoppedBySignal: A signal ended the run. It is saved.
    """
    if steps := count_steps(stages):
        record.set_total_steps(steps)
    trace = Profile(profile, record.path / "profile", lambda step, line: record.log_event("note", step, line))
    attempt = None
    try:
        attempt = _RunLoop(make_learner, stages, record, hooks, trace)
        return attempt.finish()
    finally:
        if attempt is not None:
            attempt.release()
        trace.close()
        record.close()


class _RunLoop:
    """The loop of one attempt at a run: the start, the phases of all stages, and the final evaluation."""

    def __init__(
        self,
        make_learner: MakeLearner,
        stages: Sequence[Stage],
        record: RunLogger,
        hooks: Sequence[Hook],
        trace: Profile,
    ):
        self.make_learner, self.stages, self.record = make_learner, stages, record
        self.hooks, self.trace, self.config = hooks, trace, record.config
        self.position, self.stream = Position(), None
        self.skipped, self.update_kind = SkippedSteps(self.config.training.max_skipped_steps), ""
        self.scores: dict[tuple[Position, str], EvaluationResult] = {}
        self._switch_learner(())

    def finish(self) -> TrainingResult:
        """Starts or continues the run, runs the remaining stages, evaluates and writes `finished.json`."""
        record, info = self.record, StepInfo(0, self._start(), {})
        info.step = self.position.step
        self._catch_up_evaluation(info)
        while self.position.stage < len(self.stages):
            phases = {"before": self._run_before, "steps": self._run_updates, "after": self._run_after}
            info = phases[self.position.phase](self.stages[self.position.stage], info)
        results = self._run_evaluations(info, self.learner.evaluators)
        for name, result in results.items():
            if not math.isfinite(result.nats):
                what = f"the evaluation {name!r}" if name else "the evaluation"
                raise NonFiniteError(
                    f"{record.path}: not finished, the loss of {what} is {result.nats}; {record.remedy()}"
                )
        evaluations = {name: result.as_dict() for name, result in results.items() if name}
        values = {"evaluation": results[""].as_dict(), **({"evaluations": evaluations} if evaluations else {})}
        values |= self.sizes
        divergence = final_divergence(results, {name: self._divergence_limit(name) for name in results})
        values |= {"diverged": divergence} if divergence else {}
        skipped = self.skipped.read()
        values |= {"skipped_at_end": skipped} if skipped else {}
        stream, texts = record.summarize()
        values |= {"stream": stream} if stream else {}
        text = texts[0] if texts else describe_score(results[""])
        text = "; ".join([text, *(f"the last {n} steps {describe_kind(kind)}skipped" for kind, n in skipped.items())])
        record.finish(info.step, values, f"DIVERGED, {text}" if divergence else text)
        return TrainingResult(record.path, info.step, values, False)

    # Start

    def _switch_learner(self, lineage: GrowthHistory) -> None:
        """Makes and compiles the learner for a growth history and uses it from now on."""
        self.lineage, self.learner = lineage, self.make_learner(lineage)
        self.compiled = CompiledLearner(self.record.layout, self.learner)

    def release(self) -> None:
        """Frees the compiled programs of the learner and the evaluators."""
        # An exception that the caller or a notebook stores keeps this object alive.
        self.compiled.release()
        for evaluator in self.learner.evaluators.values():
            evaluator.release()

    def _expected_shapes(self, number: int, extra: Any) -> Any:
        """Returns the shapes of the arrays that a checkpoint with the growth history in `extra` must have.

        Raises:
          ValueError: The model of this run does not grow so.
        """
        lineage = tuple(extra.get("lineage", ()))
        if lineage != self.lineage:
            try:
                self._switch_learner(lineage)
            except ValueError as error:
                raise ValueError(f"{self.record.checkpoints.directory}: checkpoint {number}: {error}") from error
        saved = self.compiled.checkpoint_shapes()
        return {**saved, "memory": None, "restart": None} if self.record.reset_memory else saved

    def _start(self) -> TrainState:
        """Makes the first train state and reports the start of the attempt.

        The state comes from the newest checkpoint, otherwise from `training.init_from`, otherwise it is new.
        """
        record, training, rows = self.record, self.config.training, self.config.data.batch_size
        check_frozen(training, self.compiled.shapes)
        without = ("memory/", "restart") if record.reset_memory else ()
        # Earlier versions had other metrics in the totals.
        restored, notes = record.checkpoints.restore(self._expected_shapes, without, anew=("totals/",)), list[str]()
        if restored is not None:
            check_tokenizer(record.fingerprint, restored.extra.get("tokenizer"), record.path)
            state, num_steps = self.compiled.from_checkpoint(restored.tree), self.stages[0].steps
            self.skipped = SkippedSteps(training.max_skipped_steps, read_counts(restored.extra.get("skipped", {})))
            steps = num_steps if isinstance(num_steps, int) else restored.step
            self.position = Position.read(restored.step, restored.extra["position"], steps)
            notes.append(f"going on after step {self.position.step}")
            if len(self.stages) == 1 and isinstance(num_steps, int) and self.position.steps not in ((), (num_steps,)):
                notes.append(describe_extension(training, self.position.steps[0], self.position.step))
                self.position = self.position._replace(steps=(num_steps,))
            if record.reset_memory:
                if self.position.stream is not None:
                    self.position = self.position._replace(stream=restart_with_rows(self.position.stream, rows))
                notes.append("memories are empty, and rows begin their next epoch")
        else:
            values, anew = self.compiled.new_variables(), training.reinitialized_parameters
            if training.init_from:
                start = {"reinitialized": anew, "report": notes.append, "config": self.config}
                values, new = init_from(training.init_from, values, self.learner.model, **start)
                notes.append(describe_new_parameters(new))
            state = self.compiled.init(values)
        if self.position.phase == "steps":  # errors are raised before anything is written
            self.stream = self.stages[self.position.stage].open_stream(state, self.position.stream)
        record.start_attempt(self.position, None if restored is None else restored.extra)
        self.sizes = self._sizes(state)
        trained = f" ({self.sizes['trained']:,} trained)" if "trained" in self.sizes else ""
        text = (
            f"{record.path}: {self.sizes['parameters']:,} parameters{trained}, "
            f"{self.sizes['memory_bytes']:,} bytes of memory a row, "
            f"{record.steps} steps of {rows} x {training.segments_per_update} x "
            f"{self.config.data.segment_length} tokens; compiling the training step"
        )
        record.log_event("start", self.position.step, text, {**self.sizes, "attempt": record.directory.attempt})
        schedule, every = training.schedule, training.gradient_accumulation_steps
        if self.config.lifelong is not None and self.config.lifelong.epochs:  # the number of updates is known only now
            notes += schedule.length_warnings("training.schedule.", record.steps, every)
        for line in [*warnings(self.config), *notes]:
            record.log_event("note", self.position.step, line)
        return state

    def _sizes(self, state: TrainState) -> dict[str, int]:
        """Returns the number of parameters and the bytes of memory per row of the current model, by name. With adapters
        also the number of `trained` parameters.
        """
        lora = self.config.training.lora
        trained = {"trained": count_trained(state.params, lora)} if lora.rank else {}
        return {
            **trained,
            "parameters": count_parameters((state.params, state.tables.values)) - self.learner.model.padding(),
            "memory_bytes": count_bytes(state.memory) // self.config.data.batch_size,
        }

    def _catch_up_evaluation(self, info: StepInfo) -> None:
        """Runs the evaluation after the step of the checkpoint if a signal interrupted it before."""
        interval = self.config.training.evaluate_every
        due = interval and info.step and info.step % interval == 0 and self.position.phase == "steps"
        if due and not all(self.record.is_evaluated(self.position, name) for name in self.learner.evaluators):
            self._evaluate_all(info)

    # Phases

    def _run_before(self, stage: Stage, info: StepInfo) -> StepInfo:
        """Runs the evaluations and the phase before the updates of a stage."""
        self._run_evaluations(info, stage.evaluate_before)
        info.state = self._run_phase(stage.before, info)
        steps = stage.steps if isinstance(stage.steps, int) else int(stage.steps(info.state))
        self._begin_phase(info, stage.before, phase="steps", steps=(*self.position.steps, steps), stream=None)
        return info

    def _run_updates(self, stage: Stage, info: StepInfo) -> StepInfo:
        """Runs the updates of a stage, with logging, evaluations and checkpoints."""
        training, record, first, last = self.config.training, self.record, info.step, self.position.end
        begin = time.perf_counter()
        if self.stream is None:
            self.stream = stage.open_stream(info.state, self.position.stream)
        evaluate, save = (
            call_every(training.evaluate_every, self._evaluate_all),
            call_every(training.checkpoint_every, self._save),
        )
        update_state, state = self.trace.around(self.compiled.update_inlined, first), info.state

        def step(state: TrainState, update: Any) -> tuple[TrainState, dict[str, WeightedSum]]:
            self.update_kind = update[0]
            state, sums = update_state(state, update)
            # An accumulation window ends with its stage: gradients of one task never update the next task.
            return (self.compiled.finish(state) if self.position.step + 1 == last else state), sums

        for info in training_steps(step, state, self._open_updates(self.stream), steps=last, first=first):
            self.position = self.position._replace(step=info.step)
            if info.step == first + 1:
                self._first_step(info, begin)
            for hook in (self._log, evaluate, *self.hooks, save):
                hook(info)
            if record.stop():
                self._save(info)
                raise record.stopped(info.step)
        # A phase that does nothing needs no checkpoint: a restart simply passes through it again.
        if stage.after is do_nothing:
            self._save(info)
        self._begin_phase(info, stage.after, phase="after", stream=self.stream.position)
        return info

    def _run_after(self, stage: Stage, info: StepInfo) -> StepInfo:
        """Runs the phase and the evaluations after the updates of a stage."""
        info.state = self._run_phase(stage.after, info)
        if self._run_evaluations(info, stage.evaluate_after):
            self.record.write_summary(self.position)
        self._begin_phase(info, stage.after, stage=self.position.stage + 1, phase="before", stream=None)
        return info

    def _begin_phase(self, info: StepInfo, neighbor: Callable[..., Any], **position: Any) -> None:
        """Moves to the next phase, at the given fields of the position.

        Saves a checkpoint at the border of the two phases if `neighbor` does something. It is the function of the phase
        `before` or `after` that begins or ends at the border.
        """
        self.position, self.stream = self.position._replace(**position), None
        if neighbor is not do_nothing:
            self._save(info)

    def _open_updates(self, stream: Any) -> Iterator[tuple[str, Any]]:
        """Iterates over the updates of a stream and places each on its devices, without reading ahead."""
        return map(self.compiled.put_update, iter(stream.__next__, None))

    def _run_phase(self, phase: Callable[..., Any], info: StepInfo) -> TrainState:
        """Runs a phase and returns the state after it, placed on the devices.

        If the phase has changed the growth history, the learner is made again.
        """
        if phase is do_nothing:
            return info.state
        stage = self.stages[self.position.stage]
        key = phase_key(self.config.training.seed, self.position.stage, self.position.phase)

        def stop() -> None:
            if self.record.stop():
                raise EvaluationInterrupted

        data = lambda: self._open_updates(stage.open_stream(info.state, None))
        tell = lambda line: self.record.log_event("note", info.step, line)
        # The position of a measurement is after its phase, so that a repeated phase writes it again.
        place = {"stage": self.position.stage, "phase": {"before": "steps"}.get(self.position.phase, "after")}
        measure = lambda kind, values: self.record.write(kind, info.step, {**place, **values})
        try:
            state, lineage = phase(
                info.state, PhaseContext(key, data, self.lineage, stop, tell, self.record.layout, measure)
            )
        except EvaluationInterrupted:
            raise self.record.stopped(info.step) from None
        grown = tuple(lineage) != self.lineage
        if grown:
            self._switch_learner(tuple(lineage))
            self.sizes = self._sizes(state)
        return self.compiled.adopt_state(state, grown=grown)

    # Hooks

    def _first_step(self, info: StepInfo, begin: float) -> None:
        """Reports the seconds of the first step of a stage since `begin`, its time in `time.perf_counter`."""
        clock = self.record.clock
        jax.block_until_ready(info.metrics)
        seconds = clock.first_step = time.perf_counter() - begin
        line = f"first step in {seconds:.1f} s (compilation included)"
        self.record.log_event("note", info.step, line, {"seconds": seconds})
        clock.restart()
        clock.steps = -1  # The step that is about to be counted ran before the clock.

    def _log(self, info: StepInfo) -> None:
        """Reads the totals from the device and writes them to the metrics, every `training.log_every` steps.

        It is the only place where training waits for the device.
        """
        self.record.clock.steps += 1
        if "skipped" in info.metrics:  # not all kinds of update report it
            self.skipped.add(info.metrics["skipped"].total, self.update_kind)
        interval = self.config.training.log_every
        if not interval or (info.step % interval and info.step != self.position.end):
            return
        totals, applied = jax.device_get((info.state.totals, count_applied_steps(info.state.opt_state)))
        usage, tables = pull_usage(info.state.tables)
        none = jax.tree.map(jnp.zeros_like, info.state.totals)
        info.state = dataclasses.replace(info.state, totals=none, tables=tables)
        self.record.write_steps(self.position, totals, int(applied), usage)
        self._check_skipped(info)

    def _check_skipped(self, info: StepInfo) -> dict[str, int]:
        """Returns the number of steps skipped in a row up to now by kind of update, of the kinds with any.

        Raises:
          NonFiniteError: The number has reached `training.max_skipped_steps`.
        """
        counts = self.skipped.read()
        if self.skipped.is_over:
            kind = max(counts, key=lambda name: counts[name])
            reason = f"steps {describe_kind(kind)}in a row were skipped: loss, gradient or update not finite"
            end = f"ended after step {info.step}, training.max_skipped_steps = {counts[kind]} {reason}"
            raise NonFiniteError(f"{self.record.path}: {end}; {self.record.remedy()}")
        return counts

    def _evaluate_all(self, info: StepInfo) -> None:
        """Runs all evaluations after a step. A signal interrupts them without ending the run here."""
        with self.record.clock.paused(info.metrics), contextlib.suppress(EvaluationInterrupted):
            for name in self.learner.evaluators:
                self._run_evaluation(info, name)

    def _save(self, info: StepInfo) -> None:
        """Saves a checkpoint at the current position, unless there is already one."""
        if self.stream is not None:
            self.position = self.position._replace(stream=self.stream.position)
        with self.record.clock.paused(info.metrics):
            skipped = self._check_skipped(info)
            self.record.save(
                self.position, self.lineage, lambda: self.compiled.to_checkpoint(info.state), skipped=skipped
            )

    def _run_evaluations(self, info: StepInfo, names: Iterable[str]) -> dict[str, EvaluationResult]:
        """Runs evaluations and returns their results by name. A signal raises `StoppedBySignal`."""
        try:
            return {name: self._run_evaluation(info, name) for name in names}
        except EvaluationInterrupted:
            raise self.record.stopped(info.step) from None

    def _divergence_limit(self, name: str) -> float:
        """Returns the nats per target of an evaluation above which the model counts as diverged."""
        length = self.learner.evaluators[name].reading.segment_length
        return divergence_limit(self.learner.model.num_choices(length))

    def _run_evaluation(self, info: StepInfo, name: str) -> EvaluationResult:
        """Runs one evaluation after a step, or returns its result if it has already run at this position."""
        place = self.position._replace(stream=None)
        # At the end, the evaluation belongs to the last stage. For plain training it belongs to its updates.
        if place.stage == len(self.stages):
            last = self.stages[-1]
            plain = last.after is do_nothing and not last.evaluate_after
            place = place._replace(stage=place.stage - 1, phase="steps" if plain else "after")
        if (place, name) not in self.scores:
            variables = self.learner.evaluation_variables(info.state, self.config.training.seed)
            result = self.learner.evaluators[name](variables, stop=lambda: bool(self.record.stop()))
            self.record.write_score(place, name, result)
            self.scores[place, name] = result
            # A task of a stream that is forgotten or not learned yet may score as badly without harm.
            if self.config.lifelong is None and has_diverged(result, limit := self._divergence_limit(name)):
                rate = self.config.training.schedule.learning_rate
                self.record.log_event("note", info.step, describe_divergence(result, limit, rate))
        return self.scores[place, name]
