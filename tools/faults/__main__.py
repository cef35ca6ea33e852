"""`python -m tools.faults`: damaged files, failed writes, damaged inputs and kills, each with a table.

    python -m tools.faults [damage] [writes] [inputs] [kills] [--part 1/10] [--results FILE] [--only BEGINNING]

Everything runs in this process but what is killed. A row that was tried on the same sources is not tried again, so that
the same command goes on where it was stopped. The exit code is 1 where a row has a fault.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = Path("/dev/shm")
"""Folder in memory, where there is one, since nothing has to survive."""
for name, value in {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax-faults"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}.items():
    os.environ.setdefault(name, value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries what is not yet tried, and prints a table of each kind. Returns 1 where a row has a fault."""
    from tools.faults import damage, kills, readers, writes
    from tools.faults.judge import FAULTS, VERDICTS
    from tools.faults.results import Results, describe_counts
    from tools.slow_suite import hash_sources

    tables = {
        damage.TABLE: damage.try_damages,
        writes.TABLE: writes.try_writes,
        readers.TABLE: readers.try_readers,
        kills.TABLE: kills.try_kills,
    }
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(tables))
    parser.add_argument("--results", type=Path, default=ROOT / ".cache" / "faults" / "results.jsonl", metavar="FILE")
    parser.add_argument("--part", default="1/1", help="part of the rows to try, such as 1/10, drawn by their names")
    parser.add_argument("--only", default="", help="beginning of the names of the rows to try")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is drawn (default: 0)")
    options = parser.parse_args(arguments)
    if unknown := {*options.tables} - {*tables}:
        parser.error(f"tables: given {min(unknown)}, allowed: {', '.join(tables)}")
    number, parts = map(int, options.part.split("/"))
    results = Results(options.results, hash_sources(ROOT), (number, parts), options.seed)
    faults = 0
    for table in options.tables or tables:
        began = time.process_time()
        with tempfile.TemporaryDirectory(prefix="faults-", dir=SHARED if SHARED.is_dir() else None) as folder:
            tables[table](results, Path(folder), only=options.only)
        rows = [row for (kind, _), row in results.rows.items() if kind == table]
        print(describe_counts(rows, (*VERDICTS, *FAULTS), lambda row: row.name.split(": ")[0]))
        print(f"{len(rows)} rows, {(time.process_time() - began) / 60:.1f} CPU minutes in this call\n", flush=True)
        faults += sum(row.verdict in FAULTS for row in rows)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
