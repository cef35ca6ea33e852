"""The training loop: a generator of steps, and `train`, which builds the parts and hangs everything periodic on it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from memjax.axes import parameter_names
from memjax.config import Config
from memjax.data.rows import merge_positions, position_of_rows
from memjax.settings.relations import validate, warnings
from memjax.training import processes
from memjax.training.assembly import (
    check_frozen,
    make_objective,
    make_parts,
    make_schedule,
)
from memjax.training.checkpoints import Checkpoints, Restored
from memjax.training.evaluation import EvaluationResult, Evaluator, Interrupted
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.metrics import MetricsFile, count_bytes, count_parameters, describe_totals
from memjax.training.objective import Objective
from memjax.training.profiles import Profile, Steps, check_steps
from memjax.training.progress import Event, Progress, TensorBoard, describe_duration, describe_numbers
from memjax.training.restoring import init_from
from memjax.training.runs import RunDirectory, check_directory, config_to_dict, read_json, run_path
from memjax.training.sharding import Layout, check_rows, make_layout, put, put_rows, train_state_names
from memjax.training.signals import Stopped, StopSignal
from memjax.training.slot_counters import pull_usage
from memjax.training.step import TrainState, init_variables, model_variables
from memjax.training.variables import join_state, split_state
from memjax.typing import Batch, Sum


@dataclasses.dataclass
class StepInfo:
    """One finished step.

    Attributes:
      step: steps done, this one included.
      state: after the step. The next step donates it, so a hook must not keep it; it may replace it.
      metrics: name -> `Sum` of this step alone, still on the device.
    """

    step: int
    state: TrainState
    metrics: dict[str, Sum]


Hook = Callable[[StepInfo], None]


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What a run has come to.

    Attributes:
      path: the run directory.
      step: steps done.
      results: as in `finished.json`: `evaluation` (the final one) and `parameters`, `memory_bytes`.
      finished_before: an earlier call had finished the run, this one did nothing.
    """

    path: Path
    step: int
    results: dict[str, Any]
    finished_before: bool


def training_steps(
    train_step: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Sum]]],
    state: TrainState,
    batches: Iterator[Batch],
    *,
    steps: int,
    first: int = 0,
) -> Iterator[StepInfo]:
    """Runs steps `first + 1` to `steps` and yields after each, without waiting for the device.

    Args:
      train_step: from `make_train_step`; donates the state.
      state: after step `first`.
      batches: one for each step; while the consumer has a step, the iterator stands behind that step's batch.
      steps: the last step.
      first: steps already done.
    """
    for step in range(first + 1, steps + 1):
        state, metrics = train_step(state, next(batches))
        info = StepInfo(step, state, metrics)
        yield info
        state = info.state


def every(number: int, hook: Hook) -> Hook:
    """The hook, called at each step that `number` divides; never where it is 0."""

    def call(info: StepInfo) -> None:
        if number and info.step % number == 0:
            hook(info)

    return call


def train(
    config: Config,
    *,
    hooks: Sequence[Hook] = (),
    on_event: Callable[[Event], None] | None = None,
    experiment: Experiment | None = None,
    profile: Steps | None = None,
    reset_memory: bool = False,
    objective: Callable[[Config, Any], Objective] = make_objective,
) -> TrainingResult:
    """Trains, or goes on training, or reports a run that is through.

    The start is, in this order: the newest checkpoint of the run directory, `training.init_from`, fresh parameters.
    Where several processes are one run (`memjax.training.processes`), each calls this with the same configuration.

    Args:
      config: the configuration.
      hooks: called after each step, before the checkpoint of that step.
      on_event: gets every `Event`, in the first process; None shows them (a bar on a terminal, lines elsewhere, both
        on standard error).
      experiment: built parts to use instead of those that the configuration describes.
      profile: first and last step of a trace (see `memjax.training.profiles`).
      reset_memory: go on with empty memories, and with another number of rows if wanted: the streams of documents then
        begin their next epoch.
      objective: `objective(config, model)`, another than that of the configuration, such as one `with_penalty`.

    Raises:
      ValueError: the configuration, the run directory, a checkpoint or the data does not fit; nothing is lost.
      Stopped: SIGTERM or SIGINT; the run is saved.
    """
    validate(config)
    if profile is not None:
        check_steps(profile, config.training.steps)
    path, training, timeout = run_path(config), config.training, config.sharding.timeout
    with processes.together("the start", timeout):
        check_directory(path, config, reset_memory=reset_memory)
    processes.check_equal("config", config_to_dict(config))
    report = (on_event or Progress()) if processes.is_first() else _silent
    finished = processes.first(read_json(path / "finished.json"))
    if finished is not None:
        text = f"{path}: finished after {finished['step']} steps; remove the directory to train again"
        report(Event("finished", finished["step"], training.steps, finished["results"], text))
        return TrainingResult(path, finished["step"], finished["results"], True)
    if experiment is not None and experiment.config != config:
        raise ValueError(
            "experiment: built from another config than the one given; build it with make_experiment(config)"
        )
    layout = make_layout(config.sharding)
    if layout is not None:
        check_rows(config.data.rows, layout.mesh)
    with processes.together("the data", timeout):
        experiment = experiment or make_experiment(config, progress=_report_preparation(report, training.steps))
        evaluator = experiment.evaluator(config.evaluation, layout=layout)
    with processes.together("the run directory", timeout):
        run = RunDirectory(config, reset_memory=reset_memory)
    try:
        with processes.together("the run directory", timeout):
            run.check_shared()
        with (
            StopSignal() as stop,
            layout.active() if layout else contextlib.nullcontext(),
            processes.Watch(timeout),
        ):
            return _Run(config, experiment, evaluator, run, report, stop, layout, reset_memory, objective).train(
                hooks, profile
            )
    finally:
        run.close()
        if isinstance(report, Progress):
            report.close()


def _silent(event: Event) -> None:
    """What processes other than the first one tell."""


def _report_preparation(report: Callable[[Event], None], steps: int) -> Callable[[str, int, int | None], None]:
    """Tells about the preparation of data, every few seconds."""
    told: dict[str, float] = {}

    def progress(what: str, done: int, total: int | None) -> None:
        now = time.perf_counter()
        if now - told.get(what, now - 5) >= 5:
            told[what] = now
            values = {"what": what, "done": done, "total": total}
            report(Event("note", 0, steps, values, f"{what}: {done:,}" + (f" of {total:,}" if total else "")))

    return progress


class _Clock:
    """Time of training alone: compilation, evaluations and checkpoints do not count."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        self._since, self._paused, self.steps = time.perf_counter(), 0.0, 0

    def seconds(self) -> float:
        """Since the last restart."""
        return time.perf_counter() - self._since - self._paused

    @contextlib.contextmanager
    def paused(self, info: StepInfo) -> Iterator[None]:
        jax.block_until_ready(info.metrics)  # What is still running belongs to training.
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start


class _Run:
    """One attempt at a run: start, steps with their hooks, end."""

    def __init__(
        self,
        config: Config,
        experiment: Experiment,
        evaluator: Evaluator,
        run: RunDirectory,
        report: Callable[[Event], None],
        stop: StopSignal,
        layout: Layout | None,
        reset_memory: bool,
        objective: Callable[[Config, Any], Objective],
    ):
        self.config, self.experiment, self.evaluator = config, experiment, evaluator
        self.run, self.report, self.layout, self.reset_memory = run, report, layout, reset_memory
        self.stop = processes.Agreed(lambda: stop.received or 0)
        training = config.training
        self.steps, self.clock = training.steps, _Clock()
        self.groups = experiment.model.groups()
        self.schedule = make_schedule(training)
        self.parts = make_parts(config, experiment.model, objective=objective)
        self.checkpoints = Checkpoints(
            run.checkpoints_path, keep=training.keep_checkpoints, on_warning=lambda line: self._tell("note", 0, line)
        )
        self.metrics = MetricsFile(run.metrics_path, run.attempt)
        self.evaluated: tuple[int, EvaluationResult] | None = None
        self.saved = -1
        self.tensorboard: TensorBoard | None = None
        self.stream: Any = None

    def train(self, hooks: Sequence[Hook], steps: Steps | None = None) -> TrainingResult:
        """All of it, from the start to `finished.json`; `steps` are traced."""
        training = self.config.training
        profile = Profile(steps, self.run.path / "profile", lambda step, line: self._tell("note", step, line))
        try:
            state, first = self._start()
            everything = [
                self._log_every(training.log_every),
                every(training.evaluate_every, self._evaluate),
                *hooks,
                every(training.checkpoint_every, self._save),
            ]
            info = StepInfo(first, state, {})
            if (
                training.evaluate_every
                and first
                and first % training.evaluate_every == 0
                and not self._evaluated(first)
            ):
                self._evaluate(info)
            for info in training_steps(
                profile.around(self.train_step, first), state, self._batches(), steps=self.steps, first=first
            ):
                if info.step == first + 1:
                    self._first_step(info)
                for hook in everything:
                    hook(info)
                if self.stop():
                    self._stop(info)
            self._save(info)
            return self._finish(info)
        finally:
            profile.close()
            self.checkpoints.close()
            if self.tensorboard is not None:
                self.tensorboard.close()

    # Start

    def _start(self) -> tuple[TrainState, int]:
        """The state to begin with and the steps already done: resume, else init_from, else fresh."""
        training, model, rows = self.config.training, self.experiment.model, self.config.data.rows
        example = jax.tree.map(jnp.asarray, next(self.experiment.stream()))
        key = jax.random.key(training.seed)

        def variables() -> Any:
            return init_variables(model, jax.random.fold_in(key, 0), self.config.data.segment_length)

        def fresh(values: Any) -> TrainState:
            return self.parts.init(values, model.init_state(rows), example, jax.random.fold_in(key, 1))

        shapes = jax.eval_shape(lambda: fresh(variables()))
        check_frozen(training.frozen, shapes)
        self.places = _Places(self.layout, shapes, variables, example, self.groups)
        self.train_step = self.places.compile(self.parts.step)
        restored = self._restore()
        notes = []
        if restored is not None:
            step, position = restored.step, restored.extra["position"]
            state = restored.tree
            notes.append(f"going on after step {step}")
            if self.reset_memory:
                state = dataclasses.replace(state, **self.places.run_rows(lambda: model.init_state(rows)))
                position = position_of_rows(position, rows)
                notes.append("memories are empty, and rows begin their next epoch")
            state = self.places.join(state)
        else:
            step, position, values = 0, None, self.places.run(variables)
            if training.init_from:
                values, new = init_from(training.init_from, values, model, reinitialized=training.reinitialized)
                notes.append(f"parameters from {training.init_from}")
                notes.append(f"new parameters: {', '.join(new)}" if new else "no new parameters")
            state = self.places.run(fresh, values)
        self.stream = self.experiment.stream(position, self.layout.host_rows(rows) if self.layout else None)
        with processes.together("the record", self.config.sharding.timeout):
            if processes.is_first():
                self.metrics.cut(step)
            self.run.record_attempt(step)
        self.saved = step if restored is not None else -1
        if training.tensorboard and processes.is_first():
            self.tensorboard = TensorBoard(self.run.path, step)
        self.sizes = {
            "parameters": count_parameters((state.params, state.tables.values)) - self.experiment.model.padding(),
            "memory_bytes": count_bytes(state.memory) // self.config.data.rows,
        }
        text = (
            f"{self.run.path}: {self.sizes['parameters']:,} parameters, "
            f"{self.sizes['memory_bytes']:,} bytes of memory a row, "
            f"{self.steps} steps of {self.config.data.rows} x {training.segments_per_update} x "
            f"{self.config.data.segment_length} tokens"
        )
        self._tell("start", step, text, {**self.sizes, "attempt": self.run.attempt})
        for line in [*warnings(self.config), *notes]:
            self._tell("note", step, line)
        return state, step

    def _restore(self) -> Restored | None:
        """The newest checkpoint; with `reset_memory` all of it but what belongs to rows."""
        expected, without = self.places.saved, ()
        if self.reset_memory:
            expected, without = dataclasses.replace(expected, memory=None, restart=None), ("memory/", "restart")
        return self.checkpoints.restore(expected, without=without)

    def _batches(self) -> Iterator[Batch]:
        """The batches, each where it belongs; made one at a time, since checkpoints name the stream's position."""
        return (self.places.put_batch(batch) for batch in self.stream)

    def _first_step(self, info: StepInfo) -> None:
        jax.block_until_ready(info.metrics)
        seconds = time.perf_counter() - self.clock.begin
        self._tell("note", info.step, f"first step after {seconds:.1f} s (compilation included)", {"seconds": seconds})
        self.clock.restart()
        self.clock.steps = -1  # The step that is about to be counted ran before the clock.

    # Hooks

    def _log_every(self, number: int) -> Hook:
        def hook(info: StepInfo) -> None:
            self.clock.steps += 1
            if number and (info.step % number == 0 or info.step == self.steps):
                self._log(info)

        self.clock.steps = 0
        return hook

    def _log(self, info: StepInfo) -> None:
        """Pulls the totals: the only place where training waits for the device."""
        totals, applied = jax.device_get((info.state.totals, info.state.step))
        usage, tables = pull_usage(info.state.tables)
        none = jax.tree.map(jnp.zeros_like, info.state.totals)
        info.state = dataclasses.replace(info.state, totals=none, tables=tables)
        seconds, steps = self.clock.seconds(), self.clock.steps
        counted = max(float(totals["skipped"].weight), 1.0)
        line: dict[str, Any] = {**describe_totals(totals), **usage}
        updates = int(applied) // self.config.training.apply_every
        line["learning_rate"] = float(self.schedule(max(updates - 1, 0)))
        # The first step of an attempt is not timed, and the totals of a resumed run reach back before it.
        line["tokens_per_second"] = line["tokens"] / counted * steps / seconds if steps > 0 and seconds > 0 else None
        line["seconds"] = time.perf_counter() - self.clock.begin
        self._write("train", info.step, line)
        left = f"  ETA {describe_duration((self.steps - info.step) * seconds / steps)}" if steps > 0 else ""
        text = f"step {info.step}/{self.steps}  {describe_numbers(line)}{left}"
        self._tell("log", info.step, text, line)
        if totals["skipped"].total:
            lost = f"{int(totals['skipped'].total)} of {int(counted)} steps skipped: loss or gradient not finite"
            self._tell("note", info.step, lost)
        self.clock.restart()

    def _evaluate(self, info: StepInfo) -> None:
        with self.clock.paused(info), contextlib.suppress(Interrupted):
            self._score(info)

    def _save(self, info: StepInfo) -> None:
        if self.saved == info.step:
            return
        with self.clock.paused(info):
            position = merge_positions(processes.gather(self.stream.position))
            self.checkpoints.save(info.step, self.places.split(info.state), extra={"position": position})
        self.saved = info.step
        self._tell("checkpoint", info.step, f"step {info.step}: saved")

    # End

    def _stop(self, info: StepInfo) -> None:
        self._save(info)
        stopped = Stopped(self.stop.value, info.step, self.run.path)
        self._tell("stopped", info.step, str(stopped), {"signal": stopped.signal})
        raise stopped

    def _finish(self, info: StepInfo) -> TrainingResult:
        try:
            result = self._score(info)
        except Interrupted:
            self._stop(info)
            raise
        results = {"evaluation": result.as_dict(), **self.sizes}
        self.run.finish(info.step, results)
        text = f"{self.run.path}: finished, {describe_score(result)}"
        self._tell("finished", info.step, text, results)
        return TrainingResult(self.run.path, info.step, results, False)

    def _score(self, info: StepInfo) -> EvaluationResult:
        """Evaluates after a step, once."""
        if self.evaluated is not None and self.evaluated[0] == info.step:
            return self.evaluated[1]
        result = self.evaluator(model_variables(info.state), stop=lambda: bool(self.stop()))
        split = self.config.evaluation.split
        values = {"split": split, **result.as_dict()}
        if not self._evaluated(info.step):
            self._write("evaluation", info.step, values)
        text = f"step {info.step}/{self.steps}  {split}: {describe_score(result)}"
        self._tell("evaluation", info.step, text, values)
        self.evaluated = (info.step, result)
        return result

    def _evaluated(self, step: int) -> bool:
        return any(line["kind"] == "evaluation" and line["step"] == step for line in self.metrics.read())

    def _write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if processes.is_first():
            self.metrics.write(kind, step, values)
        if self.tensorboard is not None:
            self.tensorboard.write(kind, step, values)

    def _tell(self, kind: str, step: int, text: str, values: dict[str, Any] | None = None) -> None:
        self.report(Event(kind, step, self.steps, values or {}, text))


class _Places:
    """Where the arrays of a run live: on one device, or as a layout says.

    Attributes:
      saved: what a checkpoint holds, the shapes of `split`; with shardings where there is a layout.
    """

    def __init__(
        self,
        layout: Layout | None,
        shapes: TrainState,
        variables: Callable[[], Any],
        example: Batch,
        groups: Sequence[tuple[int, int]],
    ):
        self.layout, self.shapes, self.groups = layout, shapes, groups
        self.saved = jax.eval_shape(lambda state: split_state(state, groups), shapes)
        if layout is None:
            return
        names = parameter_names(variables)
        self.state, self.batch = layout.train_state(shapes, names), layout.batch(example)
        self.variables = layout.of(names, jax.eval_shape(variables))
        self.saved = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.saved,
            layout.of(split_state(train_state_names(shapes, names), groups), self.saved),
        )

    def compile(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The train step, which donates the state."""
        if self.layout is None:
            return jax.jit(step, donate_argnums=0)
        return jax.jit(
            step,
            donate_argnums=0,
            in_shardings=(self.state, self.batch),
            out_shardings=(self.state, self.layout.replicated),
        )

    def run(self, make: Callable[..., Any], *values: Any) -> Any:
        """Makes variables (without values) or a train state (of variables), each part where it belongs."""
        if self.layout is None:
            return jax.jit(make)(*values)
        if not values:
            return jax.jit(make, out_shardings=self.variables)()
        return jax.jit(make, out_shardings=self.state)(*put(values, (self.variables,)))

    def run_rows(self, make_memory: Callable[[], Any]) -> dict[str, Any]:
        """The fields of a train state that belong to rows, as before the first step."""
        make = lambda: {"memory": make_memory(), "restart": jnp.zeros(self.shapes.restart.shape, bool)}
        if self.layout is None:
            return jax.jit(make)()
        return jax.jit(make, out_shardings={"memory": self.state.memory, "restart": self.state.restart})()

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

    def put_batch(self, batch: Batch) -> Batch:
        """The rows of this process as part of the batch of all."""
        return batch if self.layout is None else put_rows(batch, self.batch)


def describe_score(result: EvaluationResult) -> str:
    """An evaluation as words."""
    numbers = describe_numbers({**result.as_dict(), "nats_per_token": result.nats_per_token})
    parts = [f"{name} {describe_numbers(score.as_dict())}" for name, score in result.subsets.items() if score.targets]
    return f"{numbers} ({'; '.join([result.protocol, *parts])})"


def _collections_on_host(state: TrainState) -> TrainState:
    """What `split_state` takes apart, as NumPy: slicing on the device would compile a program per shape."""
    params, tables, batch_stats, constants = jax.device_get(
        (state.params, state.tables, state.batch_stats, state.constants)
    )
    return dataclasses.replace(state, params=params, tables=tables, batch_stats=batch_stats, constants=constants)
