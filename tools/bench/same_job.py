"""One job with memjax and with Avalanche 0.6.0: six methods, three seeds and two orders of split MNIST, a matrix each.

    python -m tools.bench.same_job lines                     # of code that a user writes, and commands to give
    python -m tools.bench.same_job memjax --data DIR         # does the job; DIR: the four idx files
    python -m tools.bench.same_job Avalanche --data DIR --python .venv-avalanche/bin/python

`tools.bench.split_mnist` says how the environment is made, and compares the speed of updates.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.split_mnist import PEER, write_stream
from tools.results import pages
from tools.results.ledger import measured

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("avalanche_job.py")
CONFIG = ROOT / "configs/lifelong_mnist.py"
READERS = ("Labelled", "load")
"""classes and functions of `SCRIPT` that read the images: a data set that the library downloads needs none of them"""
LINES, MEMJAX, AVALANCHE = "lines", "memjax", "Avalanche"
METHODS = {"default": "SEQ", "replay": "replay", "gem": "GEM", "ewc": "EWC", "lwf": "LwF", "cumulative": "cumulative"}
"""variant of configs/lifelong_mnist.py -> name of the method"""
OVER = ("training.seed,data.seed=0,1,2", "lifelong.task_order=0 1 2 3 4,4 3 2 1 0")
ABOUT_LINES = (
    "The code that a user writes for six methods, three seeds and two orders with a matrix of accuracies and 95 % "
    "intervals for each method, and the commands that are given. Lines are neither blank nor comments nor docstrings."
)
ABOUT = (
    "The data and the settings of the comparison above, LwF with the square of the temperature on both sides. Fisher "
    "information is that of single examples in memjax and of batches in Avalanche. Average accuracy over the tasks at "
    "the end, in %, with 95 % intervals (Student's t) over the two orders, in which the three seeds are averaged. "
    "CPU time: of all processes and threads, with imports, compilation and an evaluation of all tasks after each; "
    "Avalanche has one thread."
)
_AVERAGE = re.compile(r"^(\S+): average ([\d.]+) ± ([\d.]+) over (\d+) runs$", re.MULTILINE)


def count_lines(source: str, names: Sequence[str] = ()) -> int:
    """Counts the lines of code of a module that are neither blank nor comments nor docstrings.

    Args:
      source: Text of the module.
      names: Classes and functions whose lines are counted; none = all lines.
    """
    tree = ast.parse(source)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node) is not None]
    spans = [(node.body[0].lineno, node.body[0].end_lineno or 0) for node in documented]
    silent = {line for first, last in spans for line in range(first, last + 1)}
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in blank]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - silent
    if names:
        parts = [node for node in tree.body if isinstance(node, kinds) and node.name in names]
        code &= {line for part in parts for line in range(part.lineno, (part.end_lineno or 0) + 1)}
    return len(code)


def memjax_commands(data: str) -> list[list[str]]:
    """Returns the commands that do the job with memjax."""
    variants = ",".join(METHODS)
    words = ["--config", "lifelong_mnist", "--variant", variants, "--lifelong.sources-dir", data, "--over", *OVER]
    return [["memjax", "sweep", *words]]


def avalanche_commands(stream: str) -> list[list[str]]:
    """Returns the commands that do the job with Avalanche."""
    return [["python", str(SCRIPT), stream]]


def count() -> dict[str, Any]:
    """Counts lines of code and commands of both sides."""
    script, config = (file.read_text(encoding="utf-8") for file in (SCRIPT, CONFIG))
    theirs = {"lines": count_lines(script), "reading_lines": count_lines(script, READERS)}
    return {
        MEMJAX: {"lines": 0, "shipped_lines": count_lines(config), "commands": len(memjax_commands("DIR"))},
        AVALANCHE: {**theirs, "commands": len(avalanche_commands("STREAM.npz"))},
    }


def run_all(commands: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str]) -> tuple[str, float]:
    """Runs commands one after the other in a folder, with environment variables added, and returns what they print and
    their CPU seconds.
    """
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before, printed, variables = spent(), "", {**os.environ, **environment}
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True)
        printed += done.stdout
    return printed, spent() - before


def do_with_memjax(data: Path, folder: Path) -> dict[str, Any]:
    """Does the job with memjax, and returns CPU seconds and a row for each method."""
    (_, *words), *others = memjax_commands(str(data))
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    printed, seconds = run_all([[sys.executable, "-m", "memjax", *words, "--json"], *others], folder, variables)
    rows = []
    for contender, method in zip(json.loads(printed)["contenders"], METHODS.values(), strict=True):
        average = contender["scores"]["average"]
        counted = {"runs": len(contender["runs"]), "mean": average["mean"], "half_width": average["half_width"]}
        rows.append({"method": method, **counted})
    return {"cpu_seconds": seconds, "rows": rows}


def do_with_avalanche(data: Path, folder: Path, python: str) -> dict[str, Any]:
    """Does the job with Avalanche, and returns CPU seconds and a row for each method."""
    stream = folder / "stream.npz"
    write_stream(data, stream)
    commands = avalanche_commands(str(stream))
    printed, seconds = run_all([[python, *words] for _, *words in commands], folder, PEER)
    averages = _AVERAGE.findall(printed)
    assert [name for name, *_ in averages] == [*METHODS.values()], printed
    rows = [
        {"method": name, "runs": int(runs), "mean": float(mean), "half_width": float(width)}
        for name, mean, width, runs in averages
    ]
    return {"cpu_seconds": seconds, "rows": rows}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.same_job", description="The same job with Avalanche.")
    parser.add_argument("part", choices=[LINES, MEMJAX, AVALANCHE])
    parser.add_argument("--data", type=Path, help="folder of the four idx files of MNIST, for a job")
    parser.add_argument("--python", default="", help="Python of an environment with avalanche-lib, for its job")
    args = parser.parse_args(arguments)
    words = ["python", "-m", "tools.bench.same_job", args.part]
    if args.part == LINES:
        command, title = shlex.join(words), "Lines and commands of the same job"
        pages.record(measured("job_lines", "split_mnist", count(), command=command, title=title, about=ABOUT_LINES))
        return 0
    if not args.data:
        parser.error("--data: given none, allowed: the folder of the four idx files of MNIST")
    if args.part == AVALANCHE and not args.python:
        parser.error("--python: given none, allowed: the Python of an environment with avalanche-lib")
    with tempfile.TemporaryDirectory() as name:
        places = args.data.resolve(), Path(name)
        facts = do_with_memjax(*places) if args.part == MEMJAX else do_with_avalanche(*places, args.python)
    command = shlex.join([*words, "--data", "DIR", *(["--python", "PYTHON"] if args.part == AVALANCHE else [])])
    title = f"The same job with {args.part}"
    pages.record(measured("same_job", args.part, facts, command=command, title=title, about=ABOUT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
