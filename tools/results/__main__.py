"""Runs a recipe and records it, or writes the table.

    python -m tools.results run memory_gain_python      # trains what is not recorded yet; may be interrupted
    python -m tools.results table                       # writes tools/results/README.md
    python -m tools.results check                       # fails where the table or a log is out of date

A record is made from a finished run directory only; its metrics, configuration and versions are kept beside it in
`tools/results/logs`, and the table is made from the records.
"""

from __future__ import annotations

import argparse
import sys

from tools.results import recipes, records


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train and record a recipe")
    run.add_argument("recipe", choices=sorted(recipes.RECIPES))
    run.add_argument("--workdir", default="runs/results", help="run directories (default: runs/results)")
    run.add_argument("--only", default="", help="rows whose name contains this text")
    verbs.add_parser("table", help="write tools/results/README.md")
    verbs.add_parser("check", help="exit 1 where the table or a log is out of date")
    args = parser.parse_args(arguments)
    if args.verb == "run":
        recipes.run(args.recipe, args.workdir, args.only)
        records.write_table()
        return 0
    if args.verb == "table":
        records.write_table()
        return 0
    problems = records.check()
    print("\n".join(problems) or "the results table is up to date", file=sys.stderr if problems else sys.stdout)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
