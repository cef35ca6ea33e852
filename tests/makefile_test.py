"""Which Python `make` takes: the newest that runs here and has a lock; an environment that is there keeps its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUNS = 'case "$2" in *%d%d*) echo {0} ;; esac'  # the question for the version; that for its modules is answered by 0
BROKEN = "echo 'pyenv: command not found' >&2; exit 127"


def plan(folder: Path, pythons: dict[str, str], environment: str = "", **variables: str) -> str:
    """Returns the commands of `make install` with interpreters on the path and an environment of a version."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    tools = folder / "tools"
    scripts = {tools / name: text for name, text in pythons.items()}
    if environment:
        scripts[folder / "env/bin/python"] = RUNS.format(environment)
    for path, text in scripts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    options = [f"{name}={value}" for name, value in variables.items()]
    command = ["make", "--no-print-directory", "-n", "install", f"VENV={folder / 'env'}", *options]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=ROOT, env={**clean, "PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "pythons, environment, variables, python, lock",
    [
        ({"python3.13": RUNS.format(313), "python3.11": RUNS.format(311)}, "", {}, "python3.13", "py313"),
        ({"python3.13": BROKEN, "python3.11": RUNS.format(311)}, "", {}, "python3.11", "py311"),
        ({"python3.13": "exit 1", "python3.11": RUNS.format(311)}, "", {}, "python3.11", "py311"),
        ({"python3.13": BROKEN, "python3.11": BROKEN}, "", {}, "python3.11", "py311"),
        ({"python3.13": RUNS.format(313)}, "311", {}, "env/bin/python", "py311"),
        ({"python3.13": BROKEN}, "313", {}, "env/bin/python", "py313"),
        ({"python3.13": RUNS.format(313)}, "", {"PYTHON": "python3.11"}, "python3.11", "py311"),
        ({"python3.13": RUNS.format(313)}, "313", {"PYTHON": "python3.11"}, "python3.11", "py311"),
        ({"python3.12": RUNS.format(312)}, "", {"PYTHON": "python3.12"}, "python3.12", "py312"),
    ],
)
def test_the_newest_python_that_runs_and_has_a_lock(tmp_path, pythons, environment, variables, python, lock):
    pythons = {"python3.11": RUNS.format(311), **pythons}
    lines = plan(tmp_path, pythons, environment, **variables)
    assert f"-r requirements-{lock}.txt" in lines
    assert f"{python} -c 'import ensurepip, venv'" in lines
    assert f"test -e requirements-{lock}.txt || " in lines  # of 3.12 there is none, and a line says so


def test_every_lock_has_every_extra_that_all_names():
    names = lambda lock: {line.split("==")[0] for line in (ROOT / lock).read_text().splitlines() if "==" in line[:60]}
    wanted = {
        "seqio",
        "tensorflow",
        "scann",
        "faiss-cpu",
        "tokenizers",
        "huggingface-hub",
        "pyarrow",
        "zstandard",
        "libtpu",
    }
    for lock in ("requirements-py311.txt", "requirements-py313.txt"):
        assert wanted <= names(lock), lock
