"""`python -m tools.bench [SUITE ...]`: measures, adds to the measurements of the results, prints a table per suite.

Without names it measures all suites, then a training run (`tools.bench.end_to_end`), then where the time goes
(`tools.bench.profile`).
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.bench import harness, peers
from tools.bench.harness import Suite
from tools.bench.suites import SUITES
from tools.results import pages
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book

ROOT = Path(__file__).resolve().parents[2]


AFTER_ALL = ("tools.bench.end_to_end", "tools.bench.profile")
"""modules that run after all suites"""


def peers_of(suite: Suite) -> list[str]:
    """Returns the peers that a suite needs, keys of `tools.bench.peer_models.PEERS`."""
    commands = [entry.command for entry in suite.entries if entry.command[0] == str(peers.interpreter())]
    return [command[-2] for command in commands]


def without_missing(suites: Sequence[Suite]) -> list[Suite]:
    """Installs the peers where that was not tried yet, and leaves out suites of which one is missing, with a line."""
    if any(map(peers_of, suites)) and peers.missing_peers() is None:
        peers.install()
    missing = peers.missing_peers() or {}
    complete = []
    for suite in suites:
        if absent := [peer for peer in peers_of(suite) if peer in missing]:
            print(f"bench: {suite.name} is left out: {absent[0]} is missing: {missing[absent[0]]}", file=sys.stderr)
        else:
            complete.append(suite)
    return complete


def main(argv: list[str] | None = None) -> int:
    """Runs the named suites, or all.

    Returns the exit code: 2 for a bad argument, 1 where a contender failed or a suite was left out. The other suites
    are measured all the same.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Speed as ratios, measured alternately.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}; none = all")
    parser.add_argument("--rounds", type=int, help="measured steps per contender and mode; default: as the suite says")
    parser.add_argument("--warm", type=int, default=3, help="steps before them; the first compiles")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    arguments = parser.parse_args(argv)
    for name in arguments.suites:
        if name not in SUITES:
            parser.error(f"SUITE: given {name!r}, allowed: {', '.join(SUITES)}")
    for name, value in [("--rounds", arguments.rounds), ("--warm", arguments.warm)]:
        if value is not None and value < 1:
            parser.error(f"{name}: given {value}, allowed: at least 1")
    command = shlex.join(["python", "-m", "tools.bench", *(sys.argv[1:] if argv is None else argv)])
    suites = [SUITES[name]() for name in arguments.suites or SUITES]
    measured = without_missing(suites)
    failed = len(measured) < len(suites)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for suite in measured:
        print(f"== {suite.name}: {', '.join(entry.name for entry in suite.entries)}", file=sys.stderr, flush=True)
        rounds = arguments.rounds or suite.rounds
        try:
            records = harness.run_suite(suite, rounds=rounds, warm=arguments.warm, command=command, root=ROOT)
        except harness.BenchError as error:
            print(f"bench: {suite.name}: {error}", file=sys.stderr)
            failed = True
            continue
        pages.record(harness.measurement(suite, records), Book(arguments.out))
    for module in () if arguments.suites else AFTER_ALL:
        print(f"== {module}", file=sys.stderr, flush=True)
        run = subprocess.run([sys.executable, "-m", module, "--out", str(arguments.out)], cwd=ROOT, check=False)
        failed = failed or run.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
