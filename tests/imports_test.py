"""Imports go one way, and `import memjax` stays light."""

import ast
import functools
import graphlib
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "memjax"

VOCABULARY = {"typing", "settings", "config", "axes", "durable_files"}
"""Modules that every part may import (`functional`: `typing` only)."""

MODELS = {"functional", "memory", "datastore"}
APPLICATIONS = {"functional", "memory", "datastore", "models"}

ALLOWED: dict[str, set[str]] = {
    "typing": set(),
    "config": set(),
    "axes": set(),
    "durable_files": set(),
    "platforms": set(),
    "allocation": {"platforms"},
    "functional": set(),
    "memory": {"functional"},
    "datastore": {"functional"},
    "data": set(),
    "models": MODELS,
    "inference": APPLICATIONS | {"data"},
    "tasks": APPLICATIONS | {"data", "inference"},
    "training": APPLICATIONS | {"data", "tasks"},
    "retrieval": APPLICATIONS | {"data", "inference", "training"},
    "inspection": APPLICATIONS | {"data", "training"},
    "lifelong": APPLICATIONS | {"training", "data", "inference"},
}
"""Part of the core -> parts that it may import, besides itself and the vocabulary."""

SECOND_RING: dict[str, set[str]] = {
    "interop": set(),
    "planning": set(),
    "report": set(),
    "cli": {"interop", "planning", "report"},
}
"""Part around the core -> other parts of this ring that it may import. It imports what it wants of the core. No part of
the core imports it, not even inside a function or by a name in a string."""

ENTRIES = {"memjax", "__main__"}
FUNCTIONAL_MAY_IMPORT = {"jax", "jaxtyping", "numpy", "memjax.typing", "memjax.functional"}
ORBAX_FILES = (PACKAGE / "training" / "checkpoints.py", PACKAGE / "training" / "processes.py")  # for its barriers

HEAVY = (
    *("tensorflow", "tensorflow_text", "seqio", "scann", "tensorflow_datasets", "orbax", "faiss"),
    "apache_beam",
)
LIGHT_PACKAGES = ("memjax", "memjax.functional", "memjax.memory", "memjax.datastore", "memjax.models", "memjax.config")
MAY_LOAD_ORBAX = ("memjax.training", "memjax.lifelong")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """`memjax/memory/slots.py` -> `memory`, `memjax/axes.py` -> `axes`, `memjax/__init__.py` -> `memjax`."""
    first = path.relative_to(PACKAGE).parts[0]
    return "memjax" if first == "__init__.py" else first.removesuffix(".py")


@functools.cache
def parts() -> set[str]:
    return {part_of(path) for path in modules()}


@functools.cache
def imported_names(path: Path) -> list[tuple[int, str]]:
    """Absolute dotted names of everything that a file imports, also inside functions, with line numbers."""
    package = ("memjax", *path.relative_to(PACKAGE).parent.parts)
    names = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            # `from memjax import memory` and `from memjax.memory import slots` both name a module in the alias.
            names += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return names


def violation(path: Path, name: str) -> str | None:
    """Why this file must not import this name, or None."""
    part = part_of(path)
    top, *rest = name.split(".")
    if part == "functional" and not any(f"{name}.".startswith(f"{allowed}.") for allowed in FUNCTIONAL_MAY_IMPORT):
        if top not in sys.stdlib_module_names:
            return f"functional is used by other codebases and imports only {sorted(FUNCTIONAL_MAY_IMPORT)}"
    if top == "orbax" and path not in ORBAX_FILES:
        return "only training/checkpoints.py and training/processes.py import orbax"
    if top != "memjax" or not rest or part in ENTRIES:
        return None
    target = rest[0]
    if target not in parts() or target == part or target in VOCABULARY:
        return None
    if part in ALLOWED:
        return None if target in ALLOWED[part] else f"{part} may import {sorted(ALLOWED[part] | VOCABULARY)}"
    if target in SECOND_RING and target not in SECOND_RING.get(part, set()):
        return f"{part} may import the core and {sorted(SECOND_RING.get(part, set()))}"
    return None


def test_imports_go_one_way():
    problems = []
    for path in modules():
        for line, name in imported_names(path):
            reason = violation(path, name)
            if reason:
                problems.append(f"{path.relative_to(ROOT)}:{line}: imports {name}, but {reason}")
    assert not problems, "imports against the direction of the layers:\n" + "\n".join(problems)


def test_every_part_is_in_one_ring():
    rings = [VOCABULARY | ALLOWED.keys(), SECOND_RING.keys(), ENTRIES]
    assert sorted(part for ring in rings for part in ring) == sorted(parts())


def test_the_core_names_no_module_of_the_second_ring():
    pattern = re.compile(rf"memjax\.({'|'.join(sorted(SECOND_RING))})\b[\w.]*:\w")  # as `import_by_name` takes it
    core = [path for path in modules() if part_of(path) in VOCABULARY | ALLOWED.keys()]
    named = {str(path.relative_to(ROOT)): match[0] for path in core if (match := pattern.search(path.read_text()))}
    assert not named


@pytest.mark.parametrize("part", ["data", "tasks", "lifelong", "memory", "models"])
def test_no_file_of_a_part_imports_itself_through_others(part):
    files = {path for path in modules() if part_of(path) == part and path.name != "__init__.py"}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    imports = {
        name: {other for other in names for _, used in imported_names(path) if f"{used}.".startswith(f"{other}.")}
        for name, path in names.items()
    }
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"files that import each other: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize(
    "file, name, is_allowed",
    [
        ("functional/fifo.py", "jax.numpy", True),
        ("functional/fifo.py", "math", True),
        ("functional/fifo.py", "memjax.typing.Leaf", True),
        ("functional/fifo.py", "memjax.config", False),
        ("functional/fifo.py", "flax.linen", False),
        ("memory/slots.py", "memjax.functional.fifo", True),
        ("memory/slots.py", "memjax.__version__", True),
        ("memory/slots.py", "orbax.checkpoint", False),
        ("training/checkpoints.py", "orbax.checkpoint", True),
        ("training/loop.py", "orbax.checkpoint", False),
        ("training/loop.py", "memjax.report.build", False),
        ("lifelong/factory.py", "memjax.interop.runs", False),
        ("settings/data.py", "memjax.planning", False),
        ("report/build.py", "memjax.lifelong.metrics", True),
        ("report/build.py", "memjax.planning.plan_cases", False),
        ("planning/report.py", "memjax.cli.parser", False),
        ("cli/report.py", "memjax.report.build", True),
        ("__main__.py", "memjax.cli.dispatch", True),
    ],
)
def test_the_rule_itself(file, name, is_allowed):
    assert (violation(PACKAGE / file, name) is None) == is_allowed


@pytest.mark.filterwarnings("error::DeprecationWarning:memjax")
@pytest.mark.parametrize("package", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_dir_of_a_package_shows_its_names_and_each_is_there(package):
    module = importlib.import_module(f"memjax.{package}")
    names = set(getattr(module, "__all__", ()))
    for node in ast.parse((PACKAGE / package / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names |= set(getattr(importlib.import_module(str(node.module)), "__all__", ()))
    assert names <= set(dir(module))
    assert [name for name in sorted(names) if not hasattr(module, name)] == []


def test_a_module_has_all_where_a_package_imports_all_of_its_names():
    """Elsewhere a leading underscore says what is private. The modules of `hf_*` show the methods of their families."""
    whole = {name.removesuffix(".*") for path in modules() for _, name in imported_names(path) if name.endswith(".*")}
    rooms = {"data", "datastore", "functional", "memory", "settings"}
    for path in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if part_of(path) not in rooms and path.stem != "__init__" and not path.stem.startswith("hf_"):
            assert ("\n__all__ = " in path.read_text()) <= (name in whole), name


def test_import_is_light():
    # One process for everything, in the order from light to heavy, so that the first culprit is named.
    packages = [name for name in LIGHT_PACKAGES + MAY_LOAD_ORBAX if exists(name)]
    program = (
        "import importlib, json, sys\n"
        "loaded = {}\n"
        f"for name in {packages!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded[name] = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "print(json.dumps(loaded))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = json.loads(run.stdout.splitlines()[-1])
    for name in MAY_LOAD_ORBAX:
        loaded[name] = [heavy for heavy in loaded.get(name, []) if heavy != "orbax"]
    assert not {name: heavy for name, heavy in loaded.items() if heavy}, "these imports must stay inside functions"


def test_packages_are_imported_when_they_are_first_used():
    program = (
        "import sys, memjax\n"
        "assert 'jax' not in sys.modules and {'memory', 'lifelong', 'config'} <= set(dir(memjax))\n"
        "memjax.memory.TransformerXLAttention, memjax.lifelong.init_memory, memjax.config.Model\n"
        "try:\n"
        "    memjax.memories\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.startswith(
        "module 'memjax' has no attribute 'memories', allowed: allocation, axes, cli, config, "
    ), run.stderr


def exists(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_help_and_a_mistake_load_no_jax():
    lines = [["--help"], ["trian"], ["train", "--config", "nope"], ["train", "--model.dim", "x"], ["train", "--help"]]
    program = (
        "import sys\n"
        "from memjax import cli\n"
        f"for arguments in {lines!r}:\n"
        "    cli.main(arguments)\n"
        "    loaded = {'jax', 'flax', 'optax', 'orbax', 'numpy', 'rich'} & set(sys.modules)\n"
        "    if loaded:\n"
        "        sys.exit(f'{arguments} loads {loaded}')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
