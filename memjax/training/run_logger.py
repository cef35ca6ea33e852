"""Writes the metrics and checkpoints of one attempt at a run, reports progress, and reacts to signals."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from memjax.data.batch_iterator import merge_positions
from memjax.data.saved_tokenizers import fingerprint_of
from memjax.tasks.interface import Task, make_task
from memjax.training import processes
from memjax.training.checkpoint_writer import CheckpointWriter
from memjax.training.checkpoints import Checkpoints
from memjax.training.metrics import COUNT, MetricsFile, describe_missing_lines, describe_totals
from memjax.training.progress import Event, describe_duration, describe_numbers
from memjax.training.run_versions import describe_generator
from memjax.training.runs import RunDirectory
from memjax.training.scores import EvaluationResult
from memjax.training.signals import StoppedBySignal, StopSignal
from memjax.training.stages import GrowthHistory, Position
from memjax.training.update_functions import make_schedule
from memjax.training.views import MetricsView, open_views

SummarizeLog = Callable[[Task, Sequence[Mapping[str, Any]]], tuple[dict[str, Any], list[str]]]
"""Function `summarize(task, lines) -> (results, texts)` that computes the results of a run over tasks from the lines of
its metrics, and describes them: in the first text all, in each further one a task that was not learned."""

PLAIN = {"stage": 0, "phase": "steps", "name": ""}
"""Identity of the evaluations of plain training. Lines of the metrics leave out these values."""


class Clock:
    """Measures the time of training steps, without compilation, evaluations and checkpoints.

    Attributes:
      begin: Time at which the attempt began, in seconds of `time.perf_counter`.
      first_step: Seconds of the first step of a stage, including compilation. None after they were logged.
      steps: Number of steps since the last restart.
    """

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.first_step: float | None = None
        self.restart()

    def restart(self) -> None:
        """Starts to measure again, with no steps."""
        self._since, self._paused, self.steps = time.perf_counter(), 0.0, 0

    def seconds(self) -> float:
        """Returns the seconds of training since the last restart."""
        return time.perf_counter() - self._since - self._paused

    @contextlib.contextmanager
    def paused(self, metrics: Any) -> Iterator[None]:
        """Context manager that stops the clock once the step with these metrics has finished on the device."""
        jax.block_until_ready(metrics)  # What is still running belongs to training.
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start


class RunLogger:
    """Writes metrics, evaluations and checkpoints of one attempt at a run and reports them to the user.

    Attributes:
      config: Configuration of the run.
      steps: Number of updates of the whole run, for messages and the learning-rate schedule.
      stop: Request of a signal to end the run, on which all processes agree. `stop()` returns the signal, or 0.
      reset_memory: Whether the attempt continues with empty memories.
      layout: Shardings of all arrays over several devices. None on a single device.
      directory: Run directory, which knows the number of the attempt.
      checkpoints: Checkpoints of the run.
    """

    def __init__(
        self,
        directory: RunDirectory,
        report: Callable[[Event], None],
        stop: StopSignal,
        *,
        tokenizer: Any = None,
        layout: Any = None,
        summarize: SummarizeLog | None = None,
    ):
        self.config = config = directory.request.config
        self.reset_memory = directory.request.reset_memory
        self.path, self.layout = directory.path, layout
        self.tokenizer, self.fingerprint = tokenizer, fingerprint_of(tokenizer)
        self.steps, self.clock = config.training.steps, Clock()
        self.stop = processes.SharedRequest(lambda: stop.received or 0)
        self.directory, self._report, self._schedule = directory, report, make_schedule(config.training)
        self._summarize = summarize
        keep = config.training.keep_checkpoints
        warn = lambda line: self.log_event("note", 0, line)
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep=keep, on_warning=warn)
        # Processes meet in barriers while they save, which must not cross those of training.
        in_background = config.training.save_in_background and processes.num_processes() == 1
        self._writer = CheckpointWriter(self.checkpoints, in_background=in_background)
        self._metrics = MetricsFile(self.path / "metrics.jsonl", directory.attempt)
        self._views: list[MetricsView] = []
        self._saved: int | None = None

    def set_total_steps(self, steps: int) -> None:
        """Sets the number of updates of the whole run, for runs whose configuration does not tell it, and the
        learning-rate schedule over them.
        """
        self.steps = steps
        self._schedule = make_schedule(dataclasses.replace(self.config.training, steps=steps))

    def close(self) -> None:
        """Closes the checkpoints and the views."""
        self._writer.close()
        self.checkpoints.close()
        for view in self._views:
            view.close()

    def start_attempt(self, position: Position, extra: Mapping[str, Any] | None) -> None:
        """Records that the attempt starts at a position and removes later lines of the metrics. `extra` is the JSON
        value of the checkpoint that it starts from, or None.

        Args:
          position: Position at which the attempt starts. Later lines of the metrics are removed.
          extra: JSON value that was saved in the checkpoint the attempt starts from. None without a checkpoint.
        """
        self._saved = None if extra is None else position.checkpoint_number
        self.checkpoints.kept = None if extra is None else extra.get("sound", position.checkpoint_number)
        with processes.run_together("the record", self.config.sharding.process_timeout):
            if processes.is_first():
                self._metrics.cut(position.step, position.stage, position.phase)
                expected = 0 if extra is None else extra.get(COUNT, 0)
                if line := describe_missing_lines(self._metrics.path, self._metrics.count(), expected):
                    self.log_event("note", position.step, line)
            self.directory.keep_tokenizer(self.tokenizer)
            if line := describe_generator(self.path):
                self.log_event("note", position.step, line)
            self.directory.record_attempt(position.step)
        if processes.is_first():
            self._views = open_views(self.config, self.path, position.step)

    def save(
        self, position: Position, lineage: GrowthHistory, tree: Callable[[], Any], *, skipped: Mapping[str, int]
    ) -> None:
        """Saves a checkpoint, unless there is already one of this position. `tree` is a function that returns the
        arrays, `lineage` the growth history, and `skipped` the numbers of steps in a row that were skipped up to now.

        While steps are skipped, the checkpoint from before the first skipped step is not deleted.

        Args:
          position: Position of the run in its stages.
          lineage: Growth history of the model.
          tree: Function that returns the arrays to save.
          skipped: Number of steps in a row, up to this position, that were skipped, by kind of update. Empty for none.
        """
        if self._saved == position.checkpoint_number:
            return
        self._writer.wait()  # what is kept is not changed under a save
        if not skipped:
            self.checkpoints.kept = position.checkpoint_number
        streams = processes.gather_json(position.stream)
        merged = position._replace(stream=merge_positions(streams) if len(streams) > 1 else streams[0])
        extra = {"position": merged.to_dict(), **({"lineage": list(lineage)} if lineage else {})}
        extra |= {"tokenizer": self.fingerprint} if self.fingerprint else {}
        extra |= {COUNT: processes.broadcast_from_first(self._metrics.count() if processes.is_first() else 0)}
        extra |= {"skipped": dict(skipped), "sound": self.checkpoints.kept} if skipped else {}
        self._writer.save(position.checkpoint_number, tree(), extra=extra)
        self._saved = position.checkpoint_number
        self.log_event("checkpoint", position.step, f"step {position.step}: saved")

    def remedy(self) -> str:
        """Returns a line on what the user can do about values that are not finite."""
        sound = self.checkpoints.kept
        state = (
            "no checkpoint is from before the first skipped step" if sound is None else f"checkpoint {sound} is sound"
        )
        return f"{state}; a smaller training.schedule.learning_rate, or a look at the data there, may help"

    # Metrics

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes one line to `metrics.jsonl` and to the views."""
        if processes.is_first():
            self._metrics.write(kind, step, values)
        for view in self._views:
            view.write(kind, step, values)

    def write_steps(
        self, position: Position, totals: Mapping[str, Any], applied: int, usage: Mapping[str, float]
    ) -> None:
        """Writes and reports the metrics of the updates since the last such line, from `totals`, their sums by name,
        and `usage`, the use of table slots. `applied` is the number of steps of the optimiser since its state began.

        Args:
          position: Position of the run in its stages.
          totals: `WeightedSum` of each loss, metric and count by name, since the last line.
          applied: Number of steps that the optimiser has applied since its state began, as the schedule counts them.
          usage: Use of the slots of value tables by name.
        """
        step = position.step
        seconds, steps = self.clock.seconds(), self.clock.steps
        counted = max(float(totals["skipped"].weight), 1.0)
        line: dict[str, Any] = {**describe_totals(totals), **usage}
        line["learning_rate"] = float(self._schedule(max(applied - 1, 0)))
        # The first step of an attempt is not timed, and the totals of a resumed run reach back before it.
        timed = steps > 0 and seconds > 0 and line["tokens"]
        line["tokens_per_second"] = line["tokens"] / counted * steps / seconds if timed else None
        line["seconds"] = time.perf_counter() - self.clock.begin
        if self.clock.first_step is not None:
            line["first_step_seconds"], self.clock.first_step = self.clock.first_step, None
        self.write("train", step, line)
        left = f"  ETA {describe_duration((self.steps - step) * seconds / steps)}" if steps > 0 else ""
        self.log_event("log", step, f"step {step}/{self.steps}  {describe_numbers(line)}{left}", line)
        if totals["skipped"].total:
            lost = (
                f"{int(totals['skipped'].total)} of {int(counted)} steps skipped: loss, gradient or update not finite"
            )
            self.log_event("note", step, lost)
        self.clock.restart()

    def write_score(self, position: Position, name: str, result: EvaluationResult) -> None:
        """Writes the result of an evaluation to the metrics, only once for each position and name, and reports it to
        the user.
        """
        step, config = position.step, self.config
        identity = {key: value for key, value in _evaluation_identity(position, name).items() if value != PLAIN[key]}
        split = {evaluation.name: evaluation.split for evaluation in config.evaluations}.get(
            name, config.evaluation.split
        )
        values = {"split": split, **identity, **result.as_dict()}
        if not self.is_evaluated(position, name):
            self.write("evaluation", step, values)
        tasks = config.lifelong.tasks if config.lifelong else ()
        task = next((task.name for task in tasks if task.source == config.data.source), "")  # of which `data` is
        text = f"step {step}/{self.steps}  {' '.join(filter(None, [name or task, split]))}: {describe_score(result)}"
        self.log_event("evaluation", step, text, values)

    def is_evaluated(self, position: Position, name: str) -> bool:
        """Returns whether the metrics have a line of this evaluation at this position."""
        wanted = {"kind": "evaluation", "step": position.step, **_evaluation_identity(position, name)}
        return any(wanted.items() <= {**PLAIN, **line}.items() for line in self._metrics.read())

    def summarize(self) -> tuple[dict[str, Any], list[str]]:
        """Returns the results of a run over tasks so far, as JSON values by name, and texts that describe them. Both
        are empty for a run without tasks.
        """
        if self._summarize is None:
            return {}, []
        first = processes.is_first()  # Only it writes the metrics.
        summary = self._summarize(make_task(self.config), self._metrics.read()) if first else None
        return processes.broadcast_from_first(summary)

    def write_summary(self, position: Position) -> None:
        """Writes the average over the tasks that have been learned at a position to the metrics, only once for each
        position, and reports it to the user.
        """
        results, texts = self.summarize()
        if not results:
            return
        identity = {"stage": position.stage, "phase": position.phase}
        wanted = {"kind": "stream", "step": position.step, **identity}
        if not any(wanted.items() <= line.items() for line in self._metrics.read()):
            numbers = {name: value for name, value in results.items() if isinstance(value, int | float)}
            self.write("stream", position.step, {**identity, **numbers})
        for text in texts:
            self.log_event("note", position.step, f"step {position.step}/{self.steps}  {text}")

    # Events

    def log_event(self, kind: str, step: int, text: str, values: Mapping[str, Any] | None = None) -> None:
        """Reports an `Event` of this kind, step, text and values to the user."""
        self._report(Event(kind, step, self.steps, values or {}, text))

    def stopped(self, step: int) -> StoppedBySignal:
        """Reports that a signal ends the run and returns the exception to raise after everything is saved."""
        self._writer.wait()
        stopped = StoppedBySignal(self.stop.value, step, self.path)
        self.log_event("stopped", step, str(stopped), {"signal": stopped.signal})
        return stopped

    def finish(self, step: int, results: dict[str, Any], text: str) -> None:
        """Marks the run as finished, writes its `results` to `finished.json`, and reports `text` to the user."""
        self._writer.wait()
        self.directory.finish(step, results, log_lines=self._metrics.count() if processes.is_first() else 0)
        self.log_event("finished", step, f"{self.path}: finished, {text}", results)


def _evaluation_identity(position: Position, name: str) -> dict[str, Any]:
    """Returns the values that identify an evaluation among those of one step."""
    return {"stage": position.stage, "phase": position.phase, "name": name}


def describe_score(result: EvaluationResult) -> str:
    """Describes the result of an evaluation in one line, with its subsets."""
    numbers = describe_numbers({**result.as_dict(), "nats_per_token": result.nats_per_token})
    parts = [f"{name} {describe_numbers(score.as_dict())}" for name, score in result.subsets.items() if score.targets]
    return f"{numbers} ({'; '.join([f'protocol {result.protocol}', *parts])})"
