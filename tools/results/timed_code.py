"""A fingerprint of the code whose speed is measured, by which a table says whether it is older than the code."""

from __future__ import annotations

import hashlib
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
CONTENDERS = ("models", "kernels", "searches", "updates")
"""modules of `tools.bench` with contenders: a suite runs some of them"""


def timed_with(modules: Iterable[str] = CONTENDERS) -> tuple[str, ...]:
    """Returns the timed files and folders of a suite with contenders of these modules."""
    return (*TIMED, *(f"tools/bench/{name}.py" for name in modules))


def timed_files(top: Path = TOP, timed: Iterable[str] = timed_with()) -> list[Path]:
    """Returns the timed files of a checkout, sorted."""
    paths = [top / name for name in timed]
    return sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))


def fingerprint(top: Path = TOP, timed: Iterable[str] = timed_with()) -> str:
    """Returns a hash of the names and contents of the timed files. It needs no git history."""
    whole = hashlib.sha256()
    for file in timed_files(top, timed):
        whole.update(f"{file.relative_to(top)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]
