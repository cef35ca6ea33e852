"""A fingerprint of the code whose speed is measured, by which a table says whether it is older than the code."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
TIMED = (
    *(f"memjax/{part}" for part in ("functional", "memory", "models", "datastore", "inference", "training")),
    "memjax/allocation.py",
    *(f"tools/bench/{name}" for name in ("peers.py", "peer_models.py", "suites.py", "worker.py")),
    "tools/bench/peers-requirements.txt",
)
"""files, and folders with all of their Python files, that a step of any contender runs or that set its size"""
UNTIMED = ("memjax/training/loaded_runs.py",)
"""files of those folders that run before a first step, or without one"""
CONTENDERS = ("models", "kernels", "searches", "updates")
"""modules of `tools.bench` with contenders: a suite runs some of them"""


def timed_with(modules: Iterable[str] = CONTENDERS) -> tuple[str, ...]:
    """Returns the timed files and folders of a suite with contenders of these modules."""
    return (*TIMED, *(f"tools/bench/{name}.py" for name in modules))


def timed_files(top: Path = TOP, timed: Iterable[str] = timed_with()) -> list[Path]:
    """Returns the timed files of a checkout, sorted."""
    paths = [top / name for name in timed]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return sorted({*files} - {top / name for name in UNTIMED})


def fingerprint(top: Path = TOP, timed: Iterable[str] = timed_with()) -> str:
    """Returns a hash of the names and the code of the timed files. It needs no git history, and stays the same where
    only comments, docstrings or blank lines change.
    """
    whole = hashlib.sha256()
    for file in timed_files(top, timed):
        code = _without_comments(file.read_text()) if file.suffix == ".py" else file.read_text()
        whole.update(f"{file.relative_to(top)} {hashlib.sha256(code.encode()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


@functools.cache
def _without_comments(source: str) -> str:
    """Returns Python source without comments, docstrings and blank lines."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    parts = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            parts.append(((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)))
    lines = source.splitlines()
    # From the last to the first, so that numbers of lines stay right.
    for (first, begin), (last, end) in sorted(parts, reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:begin] + lines[last - 1][end:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())
