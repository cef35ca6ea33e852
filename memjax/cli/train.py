"""`memjax train`."""

from pathlib import Path

from memjax.cli.parser import Parser, with_config
from memjax.cli.processes import add_processes, connect


def run(arguments: list[str]) -> int:
    """Trains the model of a config, or goes on where its run stopped."""
    parser = Parser("train", run.__doc__, reads="config")
    steps = "trace these steps of the log (from 2, both included) with jax.profiler, into the run's folder `profile`"
    parser.add_argument("--profile", metavar="FIRST:LAST", help=steps)
    memories = "go on with empty memories, also with another data.rows; rows begin their next epoch"
    parser.add_argument("--reset-memory", action="store_true", help=memories)
    add_processes(parser)
    options, config = with_config(parser, arguments)
    from memjax.lifelong import train
    from memjax.training import processes
    from memjax.training.profiles import read_steps
    from memjax.training.runs import run_path

    profile = read_steps(options.profile) if options.profile else None
    connect(options, config)
    path = run_path(config)
    is_new = not path.exists()
    try:
        train(config, profile=profile, reset_memory=options.reset_memory)
    except Exception:
        if is_new and processes.is_first():
            _remove_unstarted(path)
        raise
    return 0


def _remove_unstarted(path: Path) -> None:
    """Removes the directory of a run that has not begun, so that the corrected command may use its name."""
    if path.is_dir() and {entry.name for entry in path.iterdir()} <= {"config.json", "config.tmp", ".lock"}:
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
