"""The modules of a package with their public names and first lines, read from the sources without importing them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAPERS = Path(__file__).parent / "papers.md"


class Name(NamedTuple):
    """A documented public name of a module.

    Attributes:
      name: The name.
      line: First sentence of its text.
    """

    name: str
    line: str


class Module(NamedTuple):
    """A module with public names.

    Attributes:
      module: Dotted name, such as `memjax.memory.transformer_xl`.
      line: First sentence of its docstring.
      names: Its documented public names, in the order of the source.
    """

    module: str
    line: str
    names: tuple[Name, ...]

    @property
    def short(self) -> str:
        """The name of the file, without its ending."""
        return self.module.rpartition(".")[2]


def modules_of(package: str, first: Sequence[str] = ()) -> list[Module]:
    """Returns the modules that a page of the reference shows, without those that have no documented public name.

    A package has all files of its folder. A module has itself and the modules from which it imports all names.

    Args:
      package: Dotted name of a package or module.
      first: File names without ending, in the order in which they begin the list. `papers` stands for all files in the
        tables of `docs/papers.md`, in their order.

    Example:
      >>> [module.short for module in modules_of("memjax.memory", ("papers",))][:2]
      ['transformer_xl', 'compressive']
    """
    modules = {module.short: module for module in map(read_module, _modules(package)) if module.names}
    in_papers = re.findall(r"\(\.\./memjax/\w+/(\w+)\.py\)", PAPERS.read_text(encoding="utf-8"))
    begin = [name for entry in first for name in (in_papers if entry == "papers" else [entry])]
    return [modules[name] for name in dict.fromkeys([*begin, *modules]) if name in modules]


@functools.cache
def read_module(module: str) -> Module:
    """Reads the docstring and the documented public names of a module.

    Example:
      >>> read_module("memjax.functional.fifo").names[0].name
      'shift_append'
    """
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    values = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    exported = ast.literal_eval(values[0].value) if values else None
    names = [Name(name, _first_sentence(text)) for name, text in _documented(tree)]
    public = [name for name in names if (name.name[0] != "_" if exported is None else name.name in exported)]
    return Module(module, _first_sentence(ast.get_docstring(tree) or ""), tuple(public))


def _modules(package: str) -> list[str]:
    path = _path(package)
    if path.name == "__init__.py":
        return [f"{package}.{file.stem}" for file in sorted(path.parent.glob("[!_]*.py"))]
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [package, *(str(node.module) for node in body if isinstance(node, ast.ImportFrom) and _is_star(node))]


def _is_star(node: ast.ImportFrom) -> bool:
    return node.names[0].name == "*"


def _path(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _first_sentence(text: str) -> str:
    """Returns the beginning of a text up to the first line that ends with a full stop, or its first paragraph."""
    paragraph = text.strip().partition("\n\n")[0]
    return " ".join(paragraph.partition(".\n")[0].split()) + ("." if ".\n" in paragraph else "")


def _documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the classes, functions and values of a module that have a text, each with its text."""
    for node, following in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if text := ast.get_docstring(node):
                yield node.name, text
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(following.value, ast.Constant):
                for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                    yield ast.unparse(name), str(following.value.value)
