"""The command `memjax train`, which trains the model of a config or continues a run."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from memjax.cli.parser import Parser, parse_with_config, reading_rules
from memjax.cli.places import check_data_folders, check_folder
from memjax.cli.processes import add_processes, connect
from memjax.config import Config
from memjax.durable_files import is_unfinished
from memjax.settings.overrides import UsageError
from memjax.settings.reading_rules import ReadingRules

WAYS_TO_START = """memjax train: nothing to train is given, allowed:
  memjax train --text novel.txt               your own text: a file, a folder or a glob; its size chooses the model
  memjax train --tasks news.csv reviews.csv   your own files with classes, learned one after the other
  memjax train --config memorizing_python     a config of `memjax configs`, or a file of your own
  memjax train --run runs/text_novel          a run that was stopped goes on
Other options change single settings, such as --training.steps 500: `memjax train --help` lists them."""
"""Lines that are printed for `memjax train` without any word"""


def run(arguments: list[str]) -> int:
    """Trains the model of a config, or continues its run where it stopped. A run over tasks can get another task."""
    if not arguments:
        print(WAYS_TO_START, file=sys.stderr)
        return 2
    parser = Parser("train", run.__doc__, reads="config")
    parser.add_argument("--run", metavar="DIR", help="continue this run with its own config")
    another = (
        "file with another task for the run of --run, learned after all others (as those of --tasks); the head needs "
        "room for its classes"
    )
    parser.add_argument("--add-task", metavar="FILE", help=another)
    steps = "trace the steps from FIRST (at least 2) to LAST with jax.profiler, into the folder `profile` of the run"
    parser.add_argument("--profile", metavar="FIRST:LAST", help=steps)
    memories = "continue with empty memories, which also allows another data.batch_size; rows begin their next epoch"
    parser.add_argument("--reset-memory", action="store_true", help=memories)
    add_processes(parser)
    options, config = parse_with_config(parser, arguments, check=_check)
    what = ""
    if options.run:
        config, what = _of_run(config, options.run, options.add_task, reading_rules(options))
    elif options.add_task is not None:
        raise UsageError(f"--add-task: given without a run, allowed: --run DIR --add-task {options.add_task}")
    from memjax.lifelong import train
    from memjax.training import processes
    from memjax.training.profiles import read_steps
    from memjax.training.runs import run_path

    profile = read_steps(options.profile) if options.profile else None
    connect(options, config)
    if what and processes.is_first():
        print(what, file=sys.stderr, flush=True)
    path = run_path(config)
    is_new = not path.exists()
    try:
        train(config, profile=profile, reset_memory=options.reset_memory)
    except Exception:
        if is_new and processes.is_first():
            _remove_unstarted(path)
        raise
    return 0


def _check(options: argparse.Namespace, config: Config) -> None:
    """Raises an error for steps to trace and folders that do not fit, before anything is printed, read or made."""
    from memjax.cli.own_text import check_size
    from memjax.training.loaded_runs import check_start_fits
    from memjax.training.profiles import check_steps, read_steps
    from memjax.training.runs import run_path

    if options.profile:
        check_steps(read_steps(options.profile), config.training.steps)
    check_folder("--run" if options.run else "workdir", options.run or run_path(config))
    check_data_folders(config)
    if options.from_run:
        check_start_fits(config)
    if not options.run and not options.own_text and not run_path(config).exists():  # else it was checked, or will be
        check_size(config, "--data.source.path")


def _of_run(config: Config, run: str, file: str | None, rules: ReadingRules) -> tuple[Config, str]:
    """Returns the configuration of a run at its present path, with the task of `--add-task`, and a line about the task.

    Args:
      config: Configuration of the run.
      run: Directory of the run.
      file: File of the task to add. None for no new task.
      rules: Rules for reading the file.
    """
    from memjax.cli.own_tasks import add_task_from_file, is_task
    from memjax.training.runs import read_finished

    path = Path(run).expanduser()
    path = path if path.name.strip(".") else path.resolve()
    config = replace(config, workdir=str(path.parent), name=path.name)
    # The same command goes on with the task where it was stopped.
    if file is None or (is_task(config, file) and read_finished(path) is None):
        return config, ""
    return add_task_from_file(config, file, rules)


def _remove_unstarted(path: Path) -> None:
    """Removes the directory of a run that has not begun, so that the corrected command may use its name."""
    names = ("config.json", "data.json")
    if path.is_dir() and all(
        entry.name in (*names, ".lock") or any(is_unfinished(entry, name) for name in names) for entry in path.iterdir()
    ):
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
