"""Plans of large models on TPU slices: what `memjax plan` says, one file of JSON lines for each command, and a table.

python -m tools.results.plans run [NAME ...]     # compiles what has no file yet, minutes each; needs the extra `plan`
python -m tools.results.plans table              # writes tools/results/plan/README.md from the files
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from memjax.cli import main as memjax
from memjax.planning.report import comparison, explain

FOLDER = Path(__file__).parent / "plan"
"""of files, commands and the table"""

BASE = ["plan", "--config", "memorizing_scale"]
PLANS: dict[str, list[str]] = {
    "200m": ["--topology", "v5e-16", "--sweep", "memory_length=8192,65536,262144"],
    "200m_256_rows": ["--topology", "v5e-16", "--data.rows", "256", "--sweep", "memory_length=65536"],
    "200m_256_rows_changed": [
        *("--topology", "v5e-16", "--data.rows", "256", "--training.rematerialize", "per_layer"),
        *("--sweep", "memory_length=65536"),
    ],
    "1b": ["--variant", "1b", "--topology", "v5p-128,v6e-256", "--sweep", "memory_length=65536"],
    "8b": ["--variant", "8b", "--topology", "v5p-128,v6e-256", "--sweep", "memory_length=65536"],
}
"""name of a file -> options of `memjax plan`"""

SHOWN = ("topology", "chips", "mesh", "arguments", "temporaries", "peak", "total GiB", "limit GiB", "TFLOPs/step")
ESTIMATED = ("step ms", "bound by", "MFU")


def run(names: list[str]) -> None:
    """Compiles the plans that have no file; a file is written when it is whole."""
    for name in names or PLANS:
        file = _file(name)
        if file.exists() and name not in names:
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = memjax([*BASE, *PLANS[name], "--json"])
        if code not in (0, 3):
            raise SystemExit(code)
        file.write_text(out.getvalue())


def table() -> str:
    """The text of README.md."""
    known = {name: [json.loads(line) for line in _file(name).read_text().splitlines()] for name in PLANS}
    facts = [one for lines in known.values() for one in lines]
    header, rows = comparison(facts)
    shown = [header.index(name) for name in (*SHOWN, *ESTIMATED)]
    lines = [
        "# Plans",
        "",
        "What the TPU compiler says of one training step, without a TPU: `python -m tools.results.plans run` compiles, "
        "`table` writes this page from the JSON lines beside it. Memory in GiB per device, which is a chip; TFLOPs of "
        "all devices together.",
        "",
        _row(["parameters", "memory", "rows", "rematerialize", *SHOWN, *[f"{name}, estimate" for name in ESTIMATED]]),
        _row(["---"] * (4 + len(shown))),
    ]
    for one, row in zip(facts, rows, strict=True):
        memory = int(one["value"].rpartition(" = ")[2])
        given = [f"{one['parameters'] / 1e6:,.0f} M", f"{memory:,}", str(one["rows"]), one["rematerialize"]]
        lines.append(_row([*given, *(row[i] for i in shown)]))
    for one in facts:
        if not one["fits"]:
            first, *rest = explain(one, name=True)
            lines += ["", first, "", *(f"    {line.strip()}" for line in rest)]
    lines += ["", "Estimates are no measurements:", ""]
    lines += [f"- {text}." for text in dict.fromkeys(one["assumptions"] for one in facts)]
    lines += ["", "| file | command | date | compiled by |", "| --- | --- | --- | --- |"]
    for name, (one, *_) in known.items():
        versions = ", ".join(" ".join(pair) for pair in one["versions"].items())
        lines.append(_row([f"[{name}]({name}.jsonl)", f"`{one['command']}`", one["date"], versions]))
    return "\n".join(lines) + "\n"


def _file(name: str) -> Path:
    return FOLDER / f"{name}.jsonl"


def _row(cells: list[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results.plans", description="Plans of large models.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("run", help="compile what has no file yet, or what is named")
    verb.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLANS)}")
    verbs.add_parser("table", help="write tools/results/plan/README.md")
    args = parser.parse_args(arguments)
    if args.verb == "run":
        if unknown := [name for name in args.names if name not in PLANS]:
            parser.error(f"names: given {', '.join(unknown)}, allowed: {', '.join(PLANS)}")
        run(args.names)
    if missing := [name for name in PLANS if not _file(name).exists()]:
        raise SystemExit(f"no table: {', '.join(missing)} not compiled yet")
    (FOLDER / "README.md").write_text(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
