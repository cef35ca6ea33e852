"""One job with memjax and with Avalanche 0.6.0: six methods, three seeds and two orders of split MNIST, a matrix each.

    python -m tools.bench.same_job memjax --data DIR                                       # DIR: the four idx files
    python -m tools.bench.same_job Avalanche --data DIR --python .venv-avalanche/bin/python

Counts the lines of code that a user writes and the commands that are given, and measures the CPU time of all of them.
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
"""what reads the images in `SCRIPT`: another data set, or one that the library downloads, needs other lines"""
SIDES = ("memjax", "Avalanche")
METHODS = {"default": "SEQ", "replay": "replay", "gem": "GEM", "ewc": "EWC", "lwf": "LwF", "cumulative": "cumulative"}
"""variant of configs/lifelong_mnist.py -> name of the method"""
OVER = ("training.seed,data.seed=0,1,2", "lifelong.task_order=0 1 2 3 4,4 3 2 1 0")
ABOUT = (
    "The data and the settings of the comparison above, LwF with the square of the temperature on both sides. Fisher "
    "information is that of single examples in memjax and of batches in Avalanche. Average accuracy over the tasks at "
    "the end, with 95 % intervals (Student's t) over the two orders, in which the three seeds are averaged. Lines: "
    "neither blank nor comments nor docstrings. CPU time: of all processes and threads, with imports, compilation and "
    "an evaluation of all tasks after each; Avalanche has one thread."
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


def memjax_commands(data: Path) -> list[list[str]]:
    """Returns the commands that do the job with memjax."""
    variants = ",".join(METHODS)
    words = ["--config", "lifelong_mnist", "--variant", variants, "--lifelong.sources-dir", str(data), "--over", *OVER]
    return [["memjax", "sweep", *words]]


def avalanche_commands(stream: Path) -> list[list[str]]:
    """Returns the commands that do the job with Avalanche."""
    return [["python", str(SCRIPT), str(stream)]]


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
    """Does the job with memjax, and returns lines, commands, CPU seconds and a row for each method."""
    commands = memjax_commands(data)
    (_, *words), *others = commands
    own = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    printed, seconds = run_all([[sys.executable, "-m", "memjax", *words, "--json"], *others], folder, own)
    rows = []
    for contender, method in zip(json.loads(printed)["contenders"], METHODS.values(), strict=True):
        average = contender["scores"]["average"]
        counted = {"runs": len(contender["runs"]), "mean": average["mean"], "half_width": average["half_width"]}
        rows.append({"method": method, **counted})
    shipped = count_lines(CONFIG.read_text(encoding="utf-8"))
    return {"lines": 0, "shipped_lines": shipped, "commands": len(commands), "cpu_seconds": seconds, "rows": rows}


def do_with_avalanche(data: Path, folder: Path, python: str) -> dict[str, Any]:
    """Does the job with Avalanche, and returns lines, commands, CPU seconds and a row for each method."""
    stream, script = folder / "stream.npz", SCRIPT.read_text(encoding="utf-8")
    write_stream(data, stream)
    commands = avalanche_commands(stream)
    printed, seconds = run_all([[python, *words] for _, *words in commands], folder, PEER)
    found = _AVERAGE.findall(printed)
    assert [name for name, *_ in found] == [*METHODS.values()], printed
    rows = [
        {"method": name, "runs": int(runs), "mean": float(mean), "half_width": float(width)}
        for name, mean, width, runs in found
    ]
    lines = {"lines": count_lines(script), "reading_lines": count_lines(script, READERS)}
    return {**lines, "commands": len(commands), "cpu_seconds": seconds, "rows": rows}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.same_job", description="The same job with Avalanche.")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four idx files of MNIST")
    parser.add_argument("--python", default="", help="Python of an environment with avalanche-lib")
    args = parser.parse_args(arguments)
    if args.side == "Avalanche" and not args.python:
        parser.error("--python: given none, allowed: the Python of an environment with avalanche-lib")
    data = args.data.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        is_own = args.side == "memjax"
        facts = do_with_memjax(data, folder) if is_own else do_with_avalanche(data, folder, args.python)
    further = [] if is_own else ["--python", "PYTHON"]
    command = shlex.join(["python", "-m", "tools.bench.same_job", args.side, "--data", "DIR", *further])
    title = f"The same job with {args.side}"
    pages.record(measured("same_job", args.side, facts, command=command, title=title, about=ABOUT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
