"""Starts a run: `train` builds it from its configuration, or continues it where it stopped."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memjax.config import Config
from memjax.data.saved_tokenizers import has_tokenizer
from memjax.tasks.interface import make_task
from memjax.training import processes
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.loaded_runs import check_start, tokenizer_of_start
from memjax.training.loop import Hook, TrainingResult, run
from memjax.training.metrics import read_metrics
from memjax.training.plain_learner import make_single_stage
from memjax.training.profiles import Steps, check_steps
from memjax.training.progress import Event, Progress, report_preparation
from memjax.training.run_data import RunData, read_record
from memjax.training.run_logger import RunLogger, SummarizeLog
from memjax.training.runs import (
    TOKENIZER,
    RunDirectory,
    RunRequest,
    open_tokenizer,
    read_finished,
    request_run,
)
from memjax.training.sharding import Layout, check_rows, make_layout
from memjax.training.signals import StopSignal
from memjax.training.stages import MakeLearner, Stage
from memjax.training.update_functions import MakeObjective, make_objective

__all__ = ["train"]

Course = Callable[[Experiment, Layout | None, MakeObjective], tuple[MakeLearner, Sequence[Stage]]]
"""Function `course(experiment, layout, objective) -> (make_learner, stages)` that makes the arguments of `run`."""
Report = Callable[[Event], None]
"""Function `report(event)` that shows an event to the user."""


def train(
    config: Config,
    *,
    hooks: Sequence[Hook] = (),
    on_event: Callable[[Event], None] | None = None,
    experiment: Experiment | None = None,
    profile: Steps | None = None,
    reset_memory: bool = False,
    objective: MakeObjective = make_objective,
    course: Course = make_single_stage,
    check_added_tasks: Callable[[Config], None] = lambda config: None,
    summarize: SummarizeLog | None = None,
) -> TrainingResult:
    """Trains a model in its run directory: starts a run, continues it, or reports a finished one. Returns the
    `TrainingResult`. `objective` is a function that makes the objective, `course` one that makes learner and stages.

    A run starts from the newest checkpoint of its run directory. Without one it starts from the run in
    `training.init_from`, otherwise from newly initialized parameters. A finished run continues if its stream has more
    tasks than before, or its plain training more steps.

    If several processes form one run (`memjax.training.processes`), each calls this function with the same
    configuration.

    Args:
      config: Configuration of the run.
      hooks: Functions that are called after each step, before its checkpoint is saved.
      on_event: Function that receives every `Event`, in the first process only. None shows events on standard error: as
        a progress bar on a terminal, otherwise as lines.
      experiment: Experiment that was built from `config`. None builds it.
      profile: First and last step to trace (see `memjax.training.profiles`). None for no trace.
      reset_memory: Whether to continue with empty memories. The number of rows may then change, and the document
        streams begin their next epoch.
      objective: Function `objective(config, model)` that makes the training objective, for example one `with_penalty`.
        The default is that of the configuration.
      course: Function `course(experiment, layout, objective)` that makes the learner and the stages. The default is
        plain training.
      check_added_tasks: Function `check_added_tasks(config)` that raises an error if a run cannot continue with further
        tasks. It is called for a configuration with more tasks than its run.
      summarize: Function that computes the results of a run over tasks from its log. None for a run without tasks.

    Raises:
      ValueError: The configuration, the run directory, a checkpoint or the data does not fit. Nothing is changed.
      NonFiniteError: Too many steps in a row were skipped (`training.max_skipped_steps`), or the final loss is not
        finite.
      StoppedBySignal: SIGTERM or SIGINT ended the run. It is saved.
    """
    if config.lifelong is not None and course is make_single_stage:
        raise ValueError("lifelong: given tasks, allowed: None; train them with memjax.lifelong.train")
    if profile is not None:
        check_steps(profile, config.training.steps)
    timeout = config.sharding.process_timeout
    with processes.run_together("the start", timeout):
        request = request_run(config, reset_memory=reset_memory, check_added_tasks=check_added_tasks)
    processes.check_equal("config", request.settings)
    report = (on_event or Progress()) if processes.is_first() else lambda event: None
    finished = processes.broadcast_from_first(None if request.extends_run else read_finished(request.path))
    if finished is not None:
        return _report_finished(request, finished, report, summarize)
    layout = make_layout(config.sharding)
    if layout is not None:
        check_rows(config.data.batch_size, layout.mesh)
    with processes.run_together("the data", timeout):
        experiment = _open_experiment(request, report, experiment)
        _report_notes(experiment.notes(), config, report)
        if config.training.init_from:
            check_start(config.training, experiment.tokenizer)
        make_learner, stages = course(experiment, layout, objective)
        _report_notes(itertools.chain.from_iterable(stage.notes for stage in stages), config, report)
        first_learner = make_learner(())  # errors are raised before a directory is made
    with processes.run_together("the run directory", timeout):
        directory = RunDirectory(request)
    try:
        with processes.run_together("the run directory", timeout):
            directory.check_shared()
            if processes.is_first():
                experiment.run_data.keep(directory.path)
        with (
            StopSignal() as stop,
            layout.active() if layout else contextlib.nullcontext(),
            processes.ProcessMonitor(timeout),
        ):
            record = RunLogger(
                directory, report, stop, tokenizer=experiment.tokenizer, layout=layout, summarize=summarize
            )
            learners = lambda lineage: make_learner(lineage) if lineage else first_learner
            return run(learners, stages, record, hooks=hooks, profile=profile)
    finally:
        directory.close()
        if isinstance(report, Progress):
            report.close()


def _report_finished(
    request: RunRequest, finished: Mapping[str, Any], report: Report, summarize: SummarizeLog | None
) -> TrainingResult:
    """Reports the results of a finished run, the content of `finished.json`, and returns them."""
    path, step, results = request.path, finished["step"], finished["results"]
    task, lines = make_task(request.config), read_metrics(path / "metrics.jsonl")
    stream, texts = summarize(task, lines) if summarize else ({}, [])
    results = {**results, "stream": stream} if stream else results  # Runs of earlier versions lack it.
    more = "another task" if request.config.lifelong else "a larger training.steps"
    text = f"{path}: finished after {step} steps{''.join(f', {text}' for text in texts[:1])}; it goes on with {more}"
    report(Event("finished", step, request.config.training.steps, results, text))
    return TrainingResult(path, step, results, True)


def _open_experiment(request: RunRequest, report: Report, experiment: Experiment | None) -> Experiment:
    """Opens the data of a run, with the tokenizer and the record of data of its directory, and makes its experiment.

    Args:
      request: Configuration of the run and its directory.
      report: Function that shows the progress of the preparation of the data.
      experiment: Experiment that was built from the configuration, which is returned. None builds it.

    Raises:
      ValueError: The experiment was built from another configuration, or the data cannot be read.
    """
    if experiment is not None and experiment.config != request.config:
        raise ValueError(
            "experiment: built from another config than the one given; build it with make_experiment(config)"
        )
    if experiment is not None:
        return experiment
    path = request.path
    return make_experiment(
        request.config,
        tokenizer=_saved_tokenizer(request),
        progress=report_preparation(report, request.config.training.steps),
        run_data=RunData(path, recorded=read_record(path), is_training=True),
    )


def _saved_tokenizer(request: RunRequest) -> Any:
    """Returns the tokenizer in the directory of a run, or before it begins that of the run in `training.init_from`, if
    the run takes it. None makes the tokenizer that the configuration describes.
    """
    # A kill may have left a tokenizer without its last file, which is then as if it were not there.
    is_kept = request.path.exists() and has_tokenizer(request.path / TOKENIZER)
    return open_tokenizer(request.path) if is_kept else tokenizer_of_start(request.config)


def _report_notes(lines: Iterable[str], config: Config, report: Report) -> None:
    """Reports lines about the data of a run before its first step."""
    for line in lines:
        report(Event("note", 0, config.training.steps, {}, line))
