"""Trainings that begin with each other, and what is measured of one run, for tables of their own and for recipes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.inspection.slot_usage import describe_counts, measure_usage
from memjax.training.restoring import load_run
from memjax.training.runs import read_json
from tools.results import records
from tools.results.recipes import commit, hardware

USAGE = ("usage", "top_usage", "count_divergence", "weight_divergence")
"""of a table of values, see `memjax.inspection.slot_usage.SlotCounts`"""


@dataclasses.dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
      row: of the table.
      arguments: of `memjax train`; `$NAME` stands for the environment variable with that path.
      after: the run whose parameters it begins with; '' = fresh ones.
    """

    row: str
    arguments: tuple[str, ...]
    after: str = ""


def train(folder: str, runs: Mapping[str, Run], name: str, workdir: Path) -> Path:
    """One run if it is not finished, after those it begins with; its log is kept. Its directory.

    Args:
      folder: of the table and of the logs.
      runs: of the table, by name.
      name: of the run, and of its directory.
      workdir: of run directories; one that is there already, such as imported weights, needs no entry in `runs`.
    """
    directory = workdir / name
    if name not in runs:
        return directory
    run = runs[name]
    if not (directory / "finished.json").exists():
        start = ["--training.init-from", str(train(folder, runs, run.after, workdir))] if run.after else []
        command = ["train", *map(_path, run.arguments), *start, "--name", name, "--workdir", str(workdir)]
        print("== memjax", *command, file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "memjax.cli", *command], check=True)
    records.keep_log(directory, f"{folder}/{name}")
    return directory


def measured(directory: Path, compute: Any) -> dict[str, Any]:
    """What `compute()` finds of a finished run; kept in its directory, so that it is computed once."""
    file = directory / "measured.json"
    if not file.exists():
        partial = directory / "measured.tmp"
        partial.write_text(json.dumps(compute()), encoding="utf-8")
        partial.rename(file)
    return read_json(file)


def usage(experiment: Any, variables: Mapping[str, Any], max_segments: int = 0) -> dict[str, Any]:
    """Numbers of every table of values on the split of the evaluation; {} for a model without.

    Args:
      experiment: of a run.
      variables: of its model.
      max_segments: read of every row; 0 = all.
    """
    if not variables.get("tables"):
        return {}
    evaluation = dataclasses.replace(experiment.config.evaluation, max_segments=max_segments)
    return describe_counts(measure_usage(experiment, variables, evaluation))


def cells(values: Sequence[Any]) -> str:
    """A line of a table."""
    shown = (
        f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else value
        for value in values
    )
    return "| " + " | ".join(map(str, shown)) + " |"


def write(folder: str, name: str, command: str, facts: dict[str, Any], page: str, *, logs: str = "") -> None:
    """The numbers and the page, with what made them; `logs` names the folder of the logs where it is not `folder`."""
    out, known = records.ROOT / folder, {"command": command, "commit": commit(), "hardware": hardware()}
    (out / f"{name}.json").write_text(json.dumps({**facts, **known}, indent=1) + "\n", encoding="utf-8")
    title, _, rest = page.partition("\n\n")
    made = f"`{command}`; commit {known['commit']}; {known['hardware']}; logs in [logs](../logs/{logs or folder})."
    (out / f"{name}.md").write_text(f"{title}\n\n{made} {rest}", encoding="utf-8")
    print(page)


def parse(folder: str, module: str, description: str | None, *more: tuple[str, dict[str, Any]]) -> Any:
    """The options of a table; `--only` trains one run and writes no table."""
    parser = argparse.ArgumentParser(prog=f"{folder}.{module}", description=(description or "").splitlines()[0])
    parser.add_argument("--workdir", default="runs/results", type=Path, help="run directories")
    parser.add_argument("--only", default="", help="runs whose name contains this text, and those they begin with")
    for name, arguments in more:
        parser.add_argument(name, **arguments)
    return parser.parse_args()


def measure_command(
    measure: Callable[..., dict[str, Any]], doc: str | None, arguments: Sequence[str] | None = None, **options: Any
) -> int:
    """The command line of a script that measures a run: `RUN [--out FILE]` and its options. The exit code.

    Args:
      measure: of a loaded run and the options by name; `numbers` of its result are what a recipe records.
      doc: of the script.
      arguments: of the command line; None = those of the process.
      options: name -> default, a `str` or an `int` or a `float`.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("--out", type=Path, help="also write what is found to this file")
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, help=f"default: {default}")
    given = vars(parser.parse_args(arguments))
    path, out = given.pop("run"), given.pop("out")
    try:
        facts = measure(load_run(path), **given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    facts |= {"run": Path(path).name, "commit": commit(), "hardware": hardware()}
    text = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
    print(text, end="")
    if out:
        out.write_text(text, encoding="utf-8")
    return 0


def _path(argument: str) -> str:
    if not argument.startswith("$"):
        return argument
    name, _, rest = argument[1:].partition("/")
    if not os.environ.get(name):
        raise SystemExit(f"{name}: not set; give the path of the data")
    return os.environ[name] + ("/" + rest if rest else "")
