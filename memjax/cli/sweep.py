"""The command `memjax sweep`, which trains a config for every combination of some values and compares the runs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from memjax.cli.over import print_contenders
from memjax.cli.parser import DATA_OPTIONS, Parser, make_reader, parse_with_config
from memjax.cli.places import check_data_folders, check_folder
from memjax.config import Config
from memjax.report.comparison import RunRecord, split_finished
from memjax.settings.checks import validate
from memjax.settings.overrides import UsageError, apply_overrides
from memjax.settings.ranges import Count

OWN = ("--over", "--parallel", "--json")
"""Options of the command itself. All others are those of `memjax train`."""

NOT_IN_NAMES = (
    *("--text", "--tasks", "--config", "--name", "--workdir", "--module", "--encoding", "--skip", "--strict"),
    *("--text-column", "--label-column", "--data.cache-dir", *DATA_OPTIONS),
)
"""Options whose values do not stand in the names of runs: places of data and of runs."""

MAX_NAME = 180
"""Number of characters from which on the name of a run is cut and ends with a checksum."""

OVER = "training.seed=0,1,2"
"""Example of a value of `--over`."""

TOGETHER = "training.seed,data.seed=0,1,2"
"""Example of a value of `--over` with two fields that have the same value in every run."""

Values = dict[tuple[str, ...], list[tuple[str, ...]]]
"""Fields that have the same value in every run -> their values, each a tuple of words."""

Words = tuple[tuple[str, tuple[str, ...]], ...]
"""Options of a command line, each with its values."""


class PlannedRun(NamedTuple):
    """One run of a sweep.

    Attributes:
      path: Run directory.
      words: Words of its command after `memjax train`.
      is_finished: Whether the run is there and finished, so that it is not trained again.
    """

    path: Path
    words: tuple[str, ...]
    is_finished: bool


class EndedRun(NamedTuple):
    """The end of the process that trained a run: its exit code, and the line about its error.

    Attributes:
      run: The run.
      code: Exit code of its process, negative for the signal that has ended it.
      reason: Line about the error. '' if there is none.
    """

    run: PlannedRun
    code: int
    reason: str


def run(arguments: list[str]) -> int:
    """Trains a config for every combination of values with commas, such as `--method ewc,replay`, and compares them.

    `--over` gives the values over which the comparison averages, such as seeds and orders of tasks. All other options
    are those of `memjax train`. A run that is finished is not trained again, and one that was stopped goes on. A run
    that fails ends the sweep, and the same command goes on from there.
    """
    if not arguments:
        allowed = "--config NAME, --text PATH or --tasks FILES, with values to compare, such as --method ewc,replay"
        raise UsageError(f"nothing to train is given, allowed: {allowed}")
    if not arguments[0].startswith("-"):
        arguments = ["--config", *arguments]
    parser = make_parser()
    if {"-h", "--help"} & set(arguments):
        parse_with_config(parser, arguments)
    options, _ = parser.split(arguments)
    over = read_values(options.over)
    runs = [*plan_runs(parser, [(name, values) for name, values in group_words(arguments) if name not in OWN], over)]
    waiting = [planned for planned in runs if not planned.is_finished]
    done = f", of which {len(runs) - len(waiting):,} are finished" if len(waiting) < len(runs) else ""
    print(f"{len(runs):,} {'run' if len(runs) == 1 else 'runs'}{done}", file=sys.stderr, flush=True)
    if code := train_all(waiting, options.parallel):
        return code
    finished, left_out = split_finished(RunRecord(str(planned.path)) for planned in runs)
    for line in left_out.values():
        print(f"left out: {line}", file=sys.stderr)
    return print_contenders([*finished.values()], [*itertools.chain(*over)], options)


def make_parser() -> Parser:
    """Makes the parser of the command, with its own options and those that choose and change a config."""
    parser = Parser("sweep", run.__doc__, reads="config", json=": the contenders and their differences")
    over = (
        f"values over which the comparison averages, such as {OVER} 'lifelong.task_order=0 1 2,2 1 0'; fields with "
        f"commas have the same value, such as {TOGETHER}"
    )
    parser.add_argument("--over", nargs="+", default=[], metavar="FIELD=VALUES", help=over)
    parallel = "number of runs that are trained at the same time (default: 1)"
    parser.add_argument("--parallel", type=make_reader(Count), default=1, metavar="N", help=parallel)
    return parser


def group_words(arguments: Sequence[str]) -> Words:
    """Groups the words of a command line into options with their values.

    Example:
      >>> group_words(["--tasks", "a.csv", "b.csv", "--method=ewc,replay", "--skip"])
      (('--tasks', ('a.csv', 'b.csv')), ('--method', ('ewc,replay',)), ('--skip', ()))
    """
    groups = list[tuple[str, list[str]]]()
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            groups.append((name, [value] if equals else []))
        elif groups:
            groups[-1][1].append(argument)
        else:
            raise UsageError(f"{argument!r} stands alone, allowed: memjax sweep CONFIG --option value (see --help)")
    return tuple((name, tuple(values)) for name, values in groups)


def read_values(given: Sequence[str]) -> Values:
    """Converts the words of `--over` to fields -> their values. Fields with commas have the same value in every run.

    Raises:
      UsageError: A word is not FIELD=VALUE,VALUE, or names a field again.

    Example:
      >>> read_values(["training.seed,data.seed=0,1", "lifelong.task-order=0 1,1 0"])
      {('training.seed', 'data.seed'): [('0',), ('1',)], ('lifelong.task_order',): [('0', '1'), ('1', '0')]}
    """
    over = Values()
    for word in given:
        names, equals, values = word.partition("=")
        fields = tuple(name.strip().removeprefix("--").replace("-", "_") for name in names.split(","))
        choices = [tuple(value.split()) for value in values.split(",")]
        if not equals or "" in fields or () in choices:
            raise UsageError(f"--over: given {word!r}, allowed: FIELD=VALUE,VALUE, such as {OVER}")
        for field in fields:
            if [*itertools.chain(*over), *fields].count(field) > 1:
                raise UsageError(f"--over: given {field} twice, allowed: once, with all of its values")
        over[fields] = [*dict.fromkeys(choices)]
    return over


def read_choices(name: str, values: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns the values to try of an option: several where its value has commas and is no path, else the one given.

    Example:
      >>> read_choices("--method", ("ewc,replay",)), read_choices("--lifelong.task-order", ("1", "0"))
      ([('ewc',), ('replay',)], [('1', '0')])
    """
    is_path = name in ("--text", "--tasks") or any(Path(value).exists() for value in values)
    if len(values) != 1 or "," not in values[0] or is_path:
        return [values]
    choices = [tuple(value.split()) for value in values[0].split(",")]
    if () in choices:
        raise UsageError(f"{name}: given {values[0]!r}, allowed: values with a comma between any two")
    return [*dict.fromkeys(choices)]


def plan_runs(parser: Parser, words: Sequence[tuple[str, tuple[str, ...]]], over: Values) -> Iterator[PlannedRun]:
    """Yields the runs of a sweep, after all settings have been checked and then described: for every combination of
    options one for every combination of the values to average over.

    Args:
      parser: Options of the command.
      words: Options of `memjax train` with their values, of which some have commas.
      over: Fields -> the values over which the comparison averages.

    Raises:
      ValueError: Options that `memjax train` would refuse, or a run directory that holds a run of another config.
    """
    planned, lines = dict[Path, PlannedRun](), list[str]()
    for values in itertools.product(*(read_choices(name, values) for name, values in words)):
        options = tuple(zip((name for name, _ in words), values, strict=True))
        config = parse_with_config(parser, join_words(options), check=_check_places, tell=lines.append)[1]
        for combination in itertools.product(*over.values()):
            fields = tuple(
                (f"--{name.replace('_', '-')}", value)
                for names, value in zip(over, combination, strict=True)
                for name in names
            )
            changed = apply_overrides(config, join_words(fields), prog=parser.prog)
            validate(changed)
            name = name_run(config.name, (*options, *fields))
            planned_run = _plan_run(dataclasses.replace(changed, name=name), join_words((*options, *fields)))
            planned[planned_run.path] = planned_run
    for line in lines:
        print(line, file=sys.stderr, flush=True)
    yield from planned.values()


def join_words(options: Words) -> list[str]:
    """Returns the words of a command line with these options."""
    return [word for name, values in options for word in (name, *values)]


def name_run(base: str, options: Words) -> str:
    """Returns the name of the run with these options: the name of its config, then the values of all options that the
    name does not have yet, but for those of places.

    Example:
      >>> name_run("tasks_a_b_ewc", (("--method", ("ewc",)), ("--tasks", ("a", "b")), ("--training.seed", ("0",))))
      'tasks_a_b_ewc-seed0'
      >>> name_run("mine", (("--method", ("ewc",)), ("--lifelong.task-order", ("1", "0"))))
      'mine-ewc-order1_0'
    """
    parts = [base]
    for option, values in options:
        value = re.sub(r"[^\w.]+", "_", "_".join(values))
        if option.replace("_", "-").startswith(NOT_IN_NAMES):
            continue
        if "." in option:
            parts.append(re.split(r"[.\-_]", option)[-1] + value)
        elif value and not re.search(rf"(^|_){re.escape(value)}(_|$)", base):
            parts.append(value)
    name = "-".join(parts)
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check_places(options: Any, config: Config) -> None:
    """Raises an error for folders that cannot be written, before anything is read or made."""
    from memjax.training.runs import run_path

    check_folder("workdir", run_path(config))
    check_data_folders(config)


def _plan_run(config: Config, words: Sequence[str]) -> PlannedRun:
    """Looks for a run with this configuration in its directory.

    Raises:
      ValueError: The directory holds something else.
    """
    from memjax.lifelong.factory import with_task_evaluations
    from memjax.training.runs import read_finished, request_run

    request = request_run(with_task_evaluations(config))
    is_finished = not request.extends_run and request.path.exists() and read_finished(request.path) is not None
    return PlannedRun(request.path, (*words, "--name", config.name), is_finished)


def train_all(runs: Sequence[PlannedRun], parallel: int) -> int:
    """Trains runs, `parallel` at the same time, each by a process of its own. Returns 0, or the exit code of the first
    that failed, after the others were stopped, and a line that names it was printed.

    Args:
      runs: Runs to train or to continue.
      parallel: Number of processes at the same time.
    """
    from memjax.training.signals import StopSignal

    processes: dict[Path, subprocess.Popen[str]] = {}
    ended = list[EndedRun]()
    with StopSignal() as stop, ThreadPoolExecutor(parallel) as pool:
        waiting, running = [*enumerate(runs, start=1)], set[Future[EndedRun]]()
        while running or (waiting and not ended and not stop()):
            while waiting and len(running) < parallel:
                number, planned = waiting.pop(0)
                print(f"run {number:,} of {len(runs):,}: {planned.path.name}", file=sys.stderr, flush=True)
                prefix = f"{planned.path.name}: " if parallel > 1 else ""
                running.add(pool.submit(_train, planned, processes, prefix))
            done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            ended += [end for future in done if (end := future.result()).code]
            if ended or stop():
                for process in [*processes.values()]:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(signal.SIGTERM)
                processes.clear()  # A second signal would end them before they are saved.
                waiting = []
        received = stop.received
    if received:
        name = signal.Signals(received).name
        print(f"memjax sweep: stopped by {name}; the same command goes on from there", file=sys.stderr)
        return 128 + received
    if not ended:
        return 0
    first = ended[0]
    reason = first.reason or f"its process ended with exit code {first.code}"
    print(f"memjax sweep: {first.run.path.name}: {reason}", file=sys.stderr)
    return first.code if first.code > 0 else 1


def _train(planned: PlannedRun, processes: dict[Path, subprocess.Popen[str]], prefix: str) -> EndedRun:
    """Trains a run by `memjax train` in a process of its own. Prints what the process prints on standard error, but for
    the line about its error.

    Args:
      planned: The run.
      processes: Running processes by their run directories, to which this one is added.
      prefix: Beginning of every line that is printed.
    """
    command = [sys.executable, "-m", "memjax", "train", *planned.words]
    # In a session of its own a key of the terminal does not reach it beside the signal that it gets from here.
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    reason, said = "", "memjax train: "
    with subprocess.Popen(command, text=True, errors="replace", **options) as process:
        processes[planned.path] = process
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(said):
                reason = line.removeprefix(said).strip()
            else:
                print(f"{prefix}{line}", end="", file=sys.stderr, flush=True)
    processes.pop(planned.path, None)
    return EndedRun(planned, process.returncode, reason)
