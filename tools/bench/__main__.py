"""`python -m tools.bench [SUITE ...]`: measures, adds to the measurements of the results, prints a table per suite."""

import argparse
import shlex
import sys
from pathlib import Path

from tools.bench import harness, peers
from tools.bench.suites import SUITES
from tools.results import pages
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    """Runs the named suites, or all; exit code 2 for a bad argument, 1 where a contender failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Speed as ratios, measured alternately.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}; none = all")
    parser.add_argument("--rounds", type=int, default=20, help="measured steps per contender and mode")
    parser.add_argument("--warm", type=int, default=4, help="steps before them; the first compiles")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    arguments = parser.parse_args(argv)
    for name in arguments.suites:
        if name not in SUITES:
            parser.error(f"SUITE: given {name!r}, allowed: {', '.join(SUITES)}")
    for name, value in [("--rounds", arguments.rounds), ("--warm", arguments.warm)]:
        if value < 1:
            parser.error(f"{name}: given {value}, allowed: at least 1")
    suites = [SUITES[name]() for name in arguments.suites or SUITES]
    programs = {entry.command[0] for suite in suites for entry in suite.entries}
    if str(peers.interpreter()) in programs and not peers.is_installed():
        peers.install()
    command = shlex.join(["python", "-m", "tools.bench", *(sys.argv[1:] if argv is None else argv)])
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(arguments.out)
    for suite in suites:
        print(f"== {suite.name}: {', '.join(entry.name for entry in suite.entries)}", file=sys.stderr, flush=True)
        try:
            records = harness.run_suite(suite, rounds=arguments.rounds, warm=arguments.warm, command=command, root=ROOT)
        except harness.BenchError as error:
            print(f"bench: {suite.name}: {error}", file=sys.stderr)
            return 1
        pages.record(harness.measurement(suite, records), book)
    return 0


if __name__ == "__main__":
    sys.exit(main())
