"""Measures whether models learn to use their memories: six seeds of every task, with the memory and without it.

python -m tools.measurements.learns                  # all, about half an hour of CPU time
python -m tools.measurements.learns SPALM Memformer
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

from tests.learns.task import MEASURED_SEEDS
from tests.learns.tasks import TASKS
from tools.results import pages
from tools.results.ledger import measured


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.learns", description="What models learn to use of their memories."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(TASKS)}; none = all")
    names = parser.parse_args(arguments).names or list(TASKS)
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"NAME: given {unknown[0]!r}, allowed: {', '.join(TASKS)}")
    for name in names:
        task, before = TASKS[name], _cpu_seconds()
        records = []
        for seed in MEASURED_SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                records.append({"seed": seed, "found": task.measure(seed, Path(folder))})
        facts = {"about": task.about, "unit": task.unit, "chance": task.chance, "records": records}
        facts["cpu_seconds"] = round(_cpu_seconds() - before)
        command = f"python -m tools.measurements.learns {name!r}"
        pages.record(measured("learns", name, facts, command=command, title=name))
    return 0


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
