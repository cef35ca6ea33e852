"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import memjax

ROOT = Path(memjax.__file__).parent
NEEDS_TENSORFLOW = {"memjax.data.seqio", "memjax.data.tfds"}
"""Modules that import TensorFlow when they are imported: their examples run with the tests marked `tensorflow`."""


MARKS = {
    f"memjax.{name}": [pytest.mark.laws] for name in ("functional", "memory", "lifelong", "inspection", "inference")
}
"""Packages whose examples compute: every operation of an example is compiled. `make test-laws` runs them."""


def module_names() -> list[str]:
    paths = (path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py"))
    names = {".".join(p.parts[:-1] if p.name == "__init__" else p.parts) for p in paths if p.name != "__main__"}
    return sorted(names - NEEDS_TENSORFLOW)


def with_examples() -> list[str]:
    """Modules whose text holds an example: the others need not be imported."""
    return [name for name in module_names() if re.search(r"^\s*>>> ", source(name), re.MULTILINE)]


def source(name: str) -> str:
    path = ROOT.parent.joinpath(*name.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name.rpartition(".")[0], [])) for name in with_examples()]
)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [n for n in module_names() if n.startswith("memjax.functional.")])
def test_public_functions_have_examples(name):
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__)
    assert [public for public in module.__all__ if ">>>" not in getattr(module, public).__doc__] == []


def test_subpackage_exports_what_its_files_export():
    """`memjax.functional` re-exports every public name and nothing else."""
    import memjax.functional as functional

    names = [n for n in module_names() if n.startswith("memjax.functional.")]
    public = [name for module in names for name in importlib.import_module(module).__all__]
    exported = [name for name, value in vars(functional).items() if name[0] != "_" and not inspect.ismodule(value)]
    assert sorted(exported) == sorted(public)
