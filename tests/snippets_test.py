"""Code, commands and names on pages and in notebooks name what is there: nothing is run."""

import ast
import importlib
import inspect
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest

from memjax.cli import main
from memjax.cli.dispatch import VERBS
from memjax.config import Config
from memjax.settings.compatibility import classes_in
from memjax.settings.ranges import type_hints_of

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tools/verbs.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/guides/*.md")),
    *sorted(ROOT.glob("colabs/*.py")),
]
SECTIONS = set(type_hints_of(Config))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_of(page: Path) -> str:
    text = page.read_text()
    return text if page.suffix == ".py" else "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))


def prose_of(page: Path) -> str:
    text = page.read_text()
    lines = (
        re.findall(r"^# (.*)$", text, re.M) if page.suffix == ".py" else [re.sub(r"```.*?```", "", text, flags=re.S)]
    )
    return "\n".join(lines)


def is_field(path: str, kinds: tuple[type, ...] = (Config,)) -> bool:
    """Whether a dotted path leads to a field of settings, of any kind of each part. Switches may begin with `no-`."""
    first, *rest = path.replace("-", "_").split(".")
    hints = [
        hints[part]
        for kind in kinds
        for part in (first, first.removeprefix("no_"))
        if part in (hints := type_hints_of(kind))
    ]
    numbered = rest[1:] if rest and rest[0].isdigit() else rest
    return bool(hints) and (
        not numbered or is_field(".".join(numbered), tuple(k for hint in hints for k in classes_in(hint)))
    )


def lookup(dotted: str) -> Any:
    """Returns a name of a module, or a module, by its dotted name. A name of an earlier version is an error."""
    module, _, attribute = dotted.rpartition(".")
    if not module:
        return importlib.import_module(dotted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        holder = lookup(module)
        return getattr(holder, attribute) if hasattr(holder, attribute) else importlib.import_module(dotted)


def wrong_names(source: str) -> list[str]:
    """Returns the names that code imports from memjax and that are not there, and keywords that their calls lack."""
    tree, known, wrong = ast.parse(source), dict[str, Any](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "memjax":
            for alias in node.names:
                try:
                    known[alias.asname or alias.name] = lookup(f"{node.module}.{alias.name}")
                except (AttributeError, ImportError, DeprecationWarning) as error:
                    wrong.append(str(error))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (called := called_object(node.func, known)) is None:
            continue
        parameters = inspect.signature(called).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            wrong += [
                f"{ast.unparse(node.func)}: {key.arg}" for key in node.keywords if key.arg and key.arg not in parameters
            ]
    return wrong


def called_object(function: ast.expr, known: dict[str, Any]) -> Any:
    """Returns the object of memjax that a call names, or None."""
    if isinstance(function, ast.Name):
        return known.get(function.id)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        module = known.get(function.value.id)
        return getattr(module, function.attr) if inspect.ismodule(module) else None
    return None


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=name)
def test_python_imports_and_calls_what_is_there(page):
    assert wrong_names(python_of(page)) == []


def test_a_name_that_is_not_there_is_found():
    source = (
        "from memjax.config import Data, Nothing\nfrom memjax import config as c\nData(rows=8)\nc.Training(steps=1)"
    )
    imported, called = wrong_names(source)
    assert "memjax.config.Nothing" in imported and called == "Data: rows"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_and_fields_are_those_of_settings(page):
    options = re.findall(r"--([a-z]+(?:\.[a-z0-9-]+)+)", page.read_text())
    fields = re.findall(r"`([a-z]+(?:\.[a-z0-9_]+)+)`", prose_of(page))
    files = (".json", ".safetensors")
    paths = {path for path in (*options, *fields) if path.split(".")[0] in SECTIONS and not path.endswith(files)}
    assert [path for path in sorted(paths) if not is_field(path) and not is_field(f"{path}.kind")] == []


def test_a_field_of_an_earlier_version_is_found():
    assert is_field("data.batch_size") and is_field("lifelong.tasks.0.source") and not is_field("data.rows")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_and_names_of_memjax_are_there(page):
    missing = []
    for dotted in sorted(set(re.findall(r"`(memjax(?:\.\w+)+)`", prose_of(page)))):
        try:
            lookup(dotted)
        except (AttributeError, ImportError, DeprecationWarning) as error:
            missing.append(f"{dotted}: {error}")
    assert missing == []


def inline_commands(page: Path) -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"`memjax ([a-z]+(?: [^`\n]*)?)`", prose_of(page))]


def test_inline_commands_have_a_verb_and_its_options(capsys):
    wrong, helps = [], dict[str, set[str]]()
    for page in PAGES:
        for verb, *words in inline_commands(page):
            options = {word.partition("=")[0] for word in words if word.startswith("--") and "." not in word}
            if options and verb not in helps:
                parts = (verb, words[0]) if verb == "datastore" else (verb,)
                assert main([*parts, "--help"]) == 0
                helps[verb] = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
            if verb not in VERBS or not options <= helps.get(verb, set()):
                wrong.append((name(page), verb, *words))
    assert wrong == []
