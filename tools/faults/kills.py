"""Commands that are killed at a moment that is drawn, and given again."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tools.faults.damage import restore
from tools.faults.interruptions import KINDS
from tools.faults.jobs import JOBS, Job, make_job
from tools.faults.judge import Observation, judge_failure
from tools.faults.results import Results, Row
from tools.faults.subjects import compile_once, inside, observe_command
from tools.faults.writes import run_undisturbed

__all__ = ["TABLE", "try_kills"]

TABLE = "kills"
ROOT = Path(__file__).parents[2]


def try_kills(results: Results, folder: Path, *, only: str = "") -> None:
    """Tries all rows of the table: every job is killed once, in a process of its own.

    Args:
      results: Results to add to. Rows that it has are not tried.
      folder: Empty folder, in memory where possible.
      only: Beginning of the names of the rows to try.
    """
    for name in JOBS:
        row = f"{name}: kill"
        if not (row.startswith(only) and results.is_wanted(TABLE, row)):
            continue
        job, template, place = JOBS[name], folder / name / "template", (folder / name / "place").resolve()
        make_job(job, template)
        with compile_once():
            expected, counts = run_undisturbed(job, template, place)
            results.add(Row(TABLE, row, *try_kill(job, template, place, expected, counts, results.draw(row))))
        shutil.rmtree(folder / name)


def try_kill(
    job: Job, template: Path, place: Path, expected: Observation, counts: dict[str, int], draw: random.Random
) -> tuple[str, str]:
    """Kills the command of a job after an event that is drawn, and runs it again.

    Args:
      job: Job whose command is run.
      template: Folder with what it reads.
      place: Folder for a copy.
      expected: Observation of the command without a kill.
      counts: Number of its events of each kind.
      draw: Random generator.

    Returns:
      The verdict, with the moment and the lines of the second call.
    """
    kind = draw.choice([kind for kind in KINDS if counts[kind]])
    number, seconds = draw.randint(1, counts[kind]), draw.choice([0, draw.uniform(0, 0.3)])
    restore(template, place)
    module = [sys.executable, "-W", "ignore", "-m", "tools.faults.interruptions"]
    command = [*module, kind, str(number), str(seconds), *shlex.split(job.words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    with inside(place):
        repeated = observe_command(job.command)
    moment = f"{seconds:.2f} s after {kind} {number} of {counts[kind]}: exit code {killed.returncode}"
    lines = [moment, killed.stderr, f"again: exit code {repeated.code}", *repeated.lines]
    if killed.returncode not in (0, -signal.SIGKILL):
        return "traceback", "\n".join(lines)
    return judge_failure(expected, Observation(0, ()), repeated), "\n".join(lines)
