"""Runs a recipe and records it, or writes the tables.

python -m tools.results search memory_gain_python   # searches settings; says the hours first, may be interrupted
python -m tools.results run memory_gain_python      # trains what the ledger does not have; may be interrupted
python -m tools.results table                       # writes the tables and what stands between markers elsewhere
python -m tools.results check                       # fails where a table is out of date
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from memjax.settings.overrides import UsageError
from tools.recipes import RECIPES
from tools.results import pages, runner, search_runner
from tools.results.ledger import ROOT, Book


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` for mistakes."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: list[str] | None = None) -> int:
    """Runs a verb. Returns its exit code, 2 after one line for a mistake of the user."""
    try:
        return _main(arguments)
    except UsageError as error:
        print(f"python -m tools.results: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:  # The command has said why.
        return error.returncode


def _main(arguments: list[str] | None) -> int:
    parser = Parser(prog="python -m tools.results", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default=ROOT, type=Path, help="folder of the ledger (default: tools/results)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train and record a recipe")
    search = verbs.add_parser(
        "search", help="search the settings of the rows of a recipe, with as many trials for each"
    )
    for verb in (run, search):
        verb.add_argument("recipe", choices=sorted(RECIPES))
        verb.add_argument(
            "--workdir", default="runs/results", type=Path, help="run directories (default: runs/results)"
        )
        verb.add_argument("--only", default="", help="rows whose name contains this text")
    search.add_argument("--trials", default=0, type=int, help="trials of every row (default: as the recipe says)")
    search.add_argument("--estimate", action="store_true", help="print the hours that are left, and stop")
    verbs.add_parser("table", help="write the tables")
    verbs.add_parser("check", help="exit 1 where a table is out of date")
    args = parser.parse_args(arguments)
    book = Book(args.out)
    if args.verb == "run":
        runner.run(args.recipe, args.workdir, args.only, book)
    if args.verb == "search":
        edges = search_runner.search(args.recipe, args.workdir, book, args.only, args.trials, is_estimate=args.estimate)
        print(f"still at the edge: {', '.join(edges)}" if edges else "no best value is at an edge")
    if args.verb != "check":
        pages.write(book)
        return 0
    problems = pages.check(book)
    print("\n".join(problems) or "the tables are up to date", file=sys.stderr if problems else sys.stdout)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
