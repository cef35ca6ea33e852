"""Options and connection of commands that may be one of several processes of a run."""

import argparse
from collections.abc import Sequence

from memjax.cli.parser import make_reader
from memjax.config import Config
from memjax.platforms import tpu_may_be_here
from memjax.settings.ranges import Count, Number


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a run on several processes to a parser: `--coordinator`, `--num-processes` and
    `--process-id`.
    """
    where = "host:port of process 0, for a run of several processes; 'auto' asks Slurm, Open MPI or Kubernetes"
    parser.add_argument("--coordinator", default="", metavar="ADDRESS", help=f"{where}; TPU pods need none")
    number = "number of processes of the run, with --coordinator"
    parser.add_argument("--num-processes", type=make_reader(Count), metavar="N", help=number)
    process = "number of this process, from 0, with --coordinator"
    parser.add_argument("--process-id", type=make_reader(Number), metavar="I", help=process)


def connect(options: argparse.Namespace, config: Config) -> None:
    """Connects this process to the other processes of the run that the options name. Does nothing for a run of one
    process.
    """
    from memjax.training import processes

    coordinator = options.coordinator or ("auto" if tpu_may_be_here() else "")
    processes.connect(coordinator, options.num_processes, options.process_id, timeout=config.sharding.process_timeout)


def names_later_process(arguments: Sequence[str]) -> bool:
    """Whether the words of a command line give `--process-id` a number other than 0. Process 0 alone prints for a run.

    Args:
      arguments: Words after the verb, not checked yet.

    Example:
      >>> names_later_process(["--process-id", "1"]), names_later_process(["--process-id=0"]), names_later_process([])
      (True, False, False)
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--process-id", nargs="?", default="0")
    return parser.parse_known_args(arguments)[0].process_id not in ("0", None)
