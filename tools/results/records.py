"""Records of finished runs and the table made from them."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
RECORDS = ROOT / "records.jsonl"
LOGS = ROOT / "logs"
TABLE = ROOT / "README.md"
LOGGED = ("config.json", "metrics.jsonl", "versions.json", "finished.json", "evaluation_*.json")

_PATH = re.compile(r'"/(?:[^"/]*/)*([^"/]*)"')  # where the data lay is no part of a result

HEADER = """# Results

Every number here was read from the log that stands beside it, by `python -m tools.results table`. A record names the
command, the commit it ran at, the hardware, and the log: configuration, metrics line by line, versions and result of
the run. Speed is never compared between rows of different runs: `python -m tools.bench` measures contenders in
alternation, and [bench](bench) keeps its tables and logs, with the command, commit and hardware in every line.
"""


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run.

    Attributes:
      recipe: the experiment it belongs to.
      row: the contender.
      seed: of parameters and data order.
      command: what was run.
      commit: of the code; `+` where files differed from it.
      hardware: processor and cores, or accelerator.
      log: directory under `logs`.
      numbers: name -> value.
    """

    recipe: str
    row: str
    seed: int
    command: str
    commit: str
    hardware: str
    log: str
    numbers: dict[str, float]


def read(path: Path = RECORDS) -> list[Record]:
    """All records, in the order they were made."""
    if not path.exists():
        return []
    return [Record(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def keep_log(run_directory: Path, log: str) -> None:
    """Copies what a run has written about itself to `logs/LOG`, without the paths that lie on one machine only."""
    target = LOGS / log
    target.mkdir(parents=True, exist_ok=True)
    for file in (file for pattern in LOGGED for file in sorted(run_directory.glob(pattern))):
        text = file.read_text(encoding="utf-8")
        (target / file.name).write_text(_PATH.sub(r'"\1"', text), encoding="utf-8")


def add(record: Record, run_directory: Path) -> None:
    """Keeps the log of a finished run and appends its record; an older record of the same run is replaced."""
    keep_log(run_directory, record.log)
    others = [r for r in read() if (r.recipe, r.row, r.seed) != (record.recipe, record.row, record.seed)]
    lines = [json.dumps(dataclasses.asdict(r), sort_keys=True) + "\n" for r in (*others, record)]
    RECORDS.write_text("".join(lines), encoding="utf-8")


def table(records: list[Record]) -> str:
    """The table as Markdown: one section per recipe, one row per contender with the mean and range over seeds."""
    from tools.results.recipes import RECIPES

    parts = [HEADER]
    by_recipe: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_recipe[record.recipe][record.row].append(record)
    for recipe, rows in by_recipe.items():
        description = RECIPES[recipe].description if recipe in RECIPES else ""
        names = list(dict.fromkeys(name for runs in rows.values() for run in runs for name in run.numbers))
        parts.append(f"\n## {recipe}\n\n{description}\n")
        parts.append(_line(["row", "seeds", *names]) + _line(["---"] * (len(names) + 2)))
        for row, runs in rows.items():
            cells = [_spread([run.numbers[name] for run in runs if name in run.numbers]) for name in names]
            parts.append(_line([row, ", ".join(str(run.seed) for run in runs), *cells]))
        parts.append("\n" + _line(["row", "seed", "command", "commit", "hardware", "log"]) + _line(["---"] * 6))
        for runs in rows.values():
            for run in runs:
                link = f"[{run.log}](logs/{run.log})"
                cells = [run.row, str(run.seed), f"`{run.command}`", run.commit, run.hardware, link]
                parts.append(_line(cells))
    parts.append(
        "\n## Tables of their own\n\nEach names its command, commit and hardware, and has its numbers beside it.\n\n"
    )
    for file in sorted(ROOT.glob("*/*.md")):
        title = file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        parts.append(f"- [{file.parent.name}: {title}]({file.relative_to(ROOT)})\n")
    return "".join(parts)


def write_table() -> None:
    """Writes the table beside the records."""
    TABLE.write_text(table(read()), encoding="utf-8")


def check() -> list[str]:
    """What is out of date: the table, a log that is missing, a number that its log does not hold."""
    found = read()
    problems = []
    if not TABLE.exists() or TABLE.read_text(encoding="utf-8") != table(found):
        problems.append("tools/results/README.md: not made from records.jsonl; run `python -m tools.results table`")
    for record in found:
        finished = LOGS / record.log / "finished.json"
        if not finished.exists():
            problems.append(f"{record.log}: no finished.json; the record has no log")
            continue
        files = [finished, *finished.parent.glob("evaluation_*.json")]
        logged = set().union(*(_numbers(json.loads(file.read_text(encoding="utf-8"))) for file in files))
        lost = [name for name, value in record.numbers.items() if value not in logged]
        if lost:
            problems.append(f"{record.log}: {', '.join(lost)} not in its log")
    return problems


def _numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        return set().union(*(_numbers(item) for item in value.values()), set())
    if isinstance(value, list):
        return set().union(*(_numbers(item) for item in value), set())
    return {value} if isinstance(value, int | float) else set()


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    mean = statistics.fmean(values)
    shown = f"{mean:.4f}" if abs(mean) < 1000 else f"{mean:,.0f}"
    if len(values) == 1 or max(values) == min(values):
        return shown
    return f"{shown} ({min(values):.4f} to {max(values):.4f})"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"
