"""Every write of a command that fails once, and the same command again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tools.faults.damage import restore
from tools.faults.interruptions import (
    KINDS,
    Interruption,
    can_mount,
    fail,
    interrupt,
    limit_file_size,
    small_disk,
)
from tools.faults.jobs import JOBS, Job, make_job
from tools.faults.judge import Observation, judge_failure
from tools.faults.results import Results, Row
from tools.faults.subjects import compile_once, inside, observe_command

__all__ = ["TABLE", "WRITERS", "try_writes"]

TABLE = "writes"
WRITERS = ("text", "stream", "growing", "store", "data, byte pairs")
"""Names of the jobs whose writes fail"""
SIZES = (0, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Largest sizes of a file, in bytes"""
PAGES = range(8, 160, 8)
"""Sizes of a small disk, in pages of 4 KiB"""


def try_writes(results: Results, folder: Path, *, only: str = "") -> None:
    """Tries all rows of the table: every event of every kind, and small files and disks.

    Args:
      results: Results to add to. Rows that it has are not tried.
      folder: Empty folder, in memory where possible.
      only: Beginning of the names of the rows to try.
    """
    for name in WRITERS:
        if not name.startswith(only.split(":")[0]):
            continue
        job, template, place = JOBS[name], folder / name / "template", (folder / name / "place").resolve()
        make_job(job, template)
        with compile_once():
            expected, counts = run_undisturbed(job, template, place)
            for row, failing in list_failures(name, counts, place).items():
                if row.startswith(only) and results.is_wanted(TABLE, row):
                    results.add(Row(TABLE, row, *try_failure(job, template, place, expected, failing)))
        shutil.rmtree(folder / name)


def run_undisturbed(job: Job, template: Path, place: Path) -> tuple[Observation, dict[str, int]]:
    """Runs the command of a job twice, and returns its observation and the number of its events of each kind.

    Raises:
      RuntimeError: It has failed, or has another result the second time.
    """
    observations = []
    for _ in range(2):
        restore(template, place)
        interruption = Interruption(place)
        with inside(place), interrupt(interruption):
            observations.append(observe_command(job.command))
    first, second = observations
    if first.code or first.result != second.result:
        raise RuntimeError(f"{job.words}: {first.lines}, {second.lines}")
    return second, interruption.counts


def list_failures(name: str, counts: dict[str, int], place: Path) -> dict[str, Callable[[], AbstractContextManager]]:
    """Returns for each row a function that makes the context manager in which writes fail."""
    rows: dict[str, Callable[[], AbstractContextManager]] = {
        f"{name}: {kind} {number}": lambda kind=kind, number=number: interrupt(Interruption(place, kind, number, fail))
        for kind in KINDS
        for number in range(1, counts[kind] + 1)
    }
    rows |= {f"{name}: size {size}": lambda size=size: limit_file_size(size) for size in SIZES}
    if can_mount():
        rows |= {f"{name}: disk {pages}": lambda pages=pages: full_disk(place, pages * 4096) for pages in PAGES}
    return rows


@contextlib.contextmanager
def full_disk(place: Path, free: int) -> Iterator[None]:
    """Context manager in which a folder lies on a small disk, whose files are in the folder afterwards.

    Args:
      place: Folder with files.
      free: Number of bytes that are free beside them.
    """
    aside = place.with_name("aside")
    place.rename(aside)
    place.mkdir()
    used = sum(4096 * (2 + path.stat().st_size // 4096) for path in aside.rglob("*"))
    with small_disk(place, used + free):
        shutil.copytree(aside, place, dirs_exist_ok=True)
        shutil.rmtree(aside)
        yield
        shutil.copytree(place, aside)
    shutil.rmtree(place)
    aside.rename(place)


def try_failure(
    job: Job, template: Path, place: Path, expected: Observation, failing: Callable[[], AbstractContextManager]
) -> tuple[str, str]:
    """Runs the command of a job in a context manager in which writes fail, and then again.

    Args:
      job: Job whose command is run.
      template: Folder with what it reads.
      place: Folder for a copy.
      expected: Observation of the command without a failure.
      failing: Function that makes the context manager.

    Returns:
      The verdict, with the lines of both calls.
    """
    restore(template, place)
    with inside(place.parent), failing(), inside(place):
        failed = observe_command(job.command)
    with inside(place):
        repeated = observe_command(job.command)
    lines = [f"exit code {failed.code}", *failed.lines, f"again: exit code {repeated.code}", *repeated.lines]
    return judge_failure(expected, failed, repeated), "\n".join(lines)
