import importlib.metadata
import json
import re
import tomllib
from pathlib import Path

from memjax.cli import doctor, main
from memjax.settings.extras import EXTRAS

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> tuple[str, ...]:
    return tuple(re.match(r"[\w.-]+", requirement).group() for requirement in requirements)


def module(package: str) -> str:
    """How it is imported."""
    return {"scikit-learn": "sklearn", "faiss-cpu": "faiss"}.get(package, package.replace("-", "_"))


def test_the_table_of_extras_is_that_of_the_project():
    extras = PROJECT["optional-dependencies"]
    described = {name: names(extras[name]) for name in extras if name not in ("tpu", "cuda", "all", "dev")}
    assert EXTRAS.keys() == described.keys()
    for name, (_, packages) in EXTRAS.items():  # an extra may pin helpers that nobody asks for
        assert set(packages) <= set(described[name])
    assert set(names(PROJECT["dependencies"])) <= set(doctor.BASE)


def test_every_extra_has_code_behind_it():
    files = [path for part in ("memjax", "tools", "tests", "colabs", "docs") for path in (ROOT / part).rglob("*.py")]
    code = "\n".join(
        path.read_text() for path in files if path.name not in ("doctor.py", "extras.py", "doctor_test.py")
    )
    used = {name for name, (_, packages) in EXTRAS.items() for package in packages if module(package) in code}
    assert EXTRAS.keys() - used <= {"notebooks"}  # of those, every line is in a notebook


def test_what_is_missing_comes_with_its_pip_line(monkeypatch):
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("seqio", "tensorboardX"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name) if name in doctor.BASE else "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    facts = doctor.diagnose()
    assert set(facts["missing"]) == {"data", "tb"}
    assert facts["missing"]["data"]["packages"] == ["seqio"]
    text = doctor.describe(facts)
    assert "(seqio); pip install 'memjax[data]'" in text
    assert "(tensorboardX); pip install 'memjax[tb]'" in text


def test_a_backend_that_does_not_start_is_said(monkeypatch):
    import jax

    def devices():
        raise RuntimeError("the TPU is already in use\nby another process")

    monkeypatch.setattr(jax, "devices", devices)
    facts = doctor.diagnose()
    assert facts["backend"] == "none"
    assert "JAX could not start a backend: the TPU is already in use by another process" in doctor.describe(facts)


def test_the_command(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["backend"] == "cpu" and facts["devices"] and facts["base"]["jax"]
    assert facts["allocation"]["kept"] in (True, False)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "backend   cpu" in text and "malloc    a large block is " in text
