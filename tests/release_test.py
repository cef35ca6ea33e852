"""What is released: versions agree, wheel and sdist hold what they should, and both work in a clean Python 3.13."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest

import memjax

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHON313 = os.environ.get("PYTHON313", "python3.13")
VERBS = (
    "--version",
    "doctor",
    "configs",
    "train --config memorizing_python --variant smoke --name text",
    "eval --run runs/text --memory off,8",
    "generate --run runs/text --prompt import --max-tokens 5",
    "train --config lifelong_mnist --variant smoke --name stream",
    "report runs/text runs/stream --out page.html",
)


def files(folder: str) -> set[str]:
    paths = (ROOT / folder).rglob("*")
    return {str(path.relative_to(ROOT)) for path in paths if path.is_file() and "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist, built as `pip` and `make dist` do."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_versions_agree():
    newest = re.search(r"^## \[(\d\S*)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = (ROOT / "CITATION.cff").read_text()
    assert newest and newest.group(1) == memjax.__version__
    assert re.search(r"^version: (\S+)$", citation, re.M).group(1) == memjax.__version__
    assert re.search(r"^date-released: (\S+)$", citation, re.M).group(1) == newest.group(2)


def test_a_wheel_holds_the_package_with_its_configs_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        told = email.message_from_bytes(wheel.read(metadata))
        (entry,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
        assert wheel.read(entry).decode() == "[console_scripts]\nmemjax = memjax.cli:main\n"
    assert names == files("memjax") | {f"memjax/{name}" for name in files("configs")}
    assert (told["Name"], told["Version"]) == ("memjax", memjax.__version__)
    assert set(told.get_all("Provides-Extra")) == PROJECT["optional-dependencies"].keys()
    assert set(told["Requires-Python"].split(",")) == {">=3.11", "<3.14"}


def test_an_sdist_holds_what_its_tests_and_its_commands_need(built):
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "pyproject.toml"}
    assert names >= wanted | {path.name for path in ROOT.glob("requirements-*.txt")}
    for folder in ("memjax", "configs", "colabs", "docs", "tests", "tools"):
        assert {name for name in files(folder) if name.endswith((".py", ".md", ".ipynb"))} <= names, folder


@pytest.mark.slow
def test_both_work_in_a_clean_python(built, tmp_path):
    if subprocess.run(f"{PYTHON313} --version", shell=True, check=False, capture_output=True).returncode:
        pytest.skip(f"{PYTHON313} was not found; name one: PYTHON313=/path/to/python3.13")
    python = tmp_path / "venv" / "bin" / "python"
    lock = (ROOT / "requirements-py313.txt").read_text()
    pins = tmp_path / "pins.txt"
    pins.write_text("\n".join(f"{name}=={version}" for name, version in re.findall(r"^(\S+)==(\S+)", lock, re.M)))
    ours = ("PYTHON", "VIRTUAL_ENV", "XLA_", "JAX_")  # of these tests; flags of another jaxlib are errors
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    clean |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def call(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    subprocess.run([PYTHON313, "-m", "venv", str(python.parent.parent)], check=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for kind, extras in (("wheel", ["-c", str(pins)]), ("sdist", ["--no-deps", "--force-reinstall"])):
        call(*pip, f"{built[kind]}[plots]", *extras)
        where = Path(call(str(python), "-c", "import memjax; print(memjax.__file__)").strip())
        assert where.is_relative_to(tmp_path / "venv")
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        for line in VERBS:
            call(str(python.parent / "memjax"), *line.split())
        assert "</html>" in (tmp_path / "page.html").read_text()
        assert (tmp_path / "runs" / "stream" / "finished.json").exists()
        if kind == "wheel":
            run_cells(str(python), tmp_path / "work", clean, tmp_path / "venv")


@pytest.mark.slow
def test_parts_of_a_users_own_work_with_the_wheel_in_an_empty_folder(built, tmp_path):
    """The cells of the notebook, in a folder that is not the checkout; then commands in another process and folder."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(built["wheel"])]
    subprocess.run(pip, check=True)
    run_cells(sys.executable, tmp_path / "work", os.environ | {"PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}, site)


def run_cells(python: str, folder: Path, environment: Mapping[str, str], site: Path) -> None:
    """Runs the notebook about parts of a user's own as a script, and a command on its runs in a folder beside it."""
    folder.mkdir()
    notebook = nbformat.read(ROOT / "colabs" / "your_own.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"][1:]  # without the one that installs
    script = ["import memjax", f"assert memjax.__file__.startswith({str(site)!r}), memjax.__file__"]
    for cell in sources:
        if match := re.match(r"%%writefile (\w+\.py)\n", cell):
            (folder / match[1]).write_text(cell[match.end() :])
        else:
            script.append(cell)
    (folder / "cells.py").write_text("\n".join(script))
    other = folder.parent / "other"
    other.mkdir()

    def call(where: Path, *command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [python, *command], cwd=where, env=environment, check=False, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    code, out, err = call(folder, "cells.py")
    assert code == 0, f"{out}\n{err}"
    run = "../work/runs/averaged"
    code, _, err = call(other, "-m", "memjax", "eval", "--run", run)
    assert code == 2 and "there is no installed module averaging" in err.splitlines()[-1]
    code, out, err = call(other, "-m", "memjax", "eval", "--run", run, "--module", "../work/averaging.py")
    assert code == 0 and "forgetting" in out, err
    assert err.splitlines()[0] == f"averaging is imported from {folder / 'averaging.py'}"
