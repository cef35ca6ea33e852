"""The reference: the directive `package`, a section for each file of a package, and docstrings as Sphinx wants them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.domains.python._object import PyObject
from sphinx.util.docutils import SphinxDirective

SECTION = """## {title}

```{{eval-rst}}
.. automodule:: {module}
   :members:{members}
```
"""
OF_FLAX = re.compile(r",?\s*(parent: [^=]*= <flax[^>]*>|name: str \| None = None)")
"""fields that every Linen module has"""
TYPES = re.compile(r"<class '(?:jax\.numpy|numpy)\.(\w+)'>")
ARRAYS = re.compile(r"(?<=\[)(?:jaxlib\._jax|jax|numpy)\.(?=Array|ndarray)")
"""where the classes of arrays are from: jaxtyping shows it"""
NOT_SHOWN = ("setup", "dtype", "name", "parent", "scope")
"""members that say nothing that the class does not"""


def files(package: str) -> dict[str, tuple[str, ...]]:
    """Modules whose names a package shows, in the order of its text, and which: () = all that they export.

    Example:
      >>> next(iter(files("memjax.functional")))
      'memjax.functional.attention'
    """
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    stars = {
        node.module: ()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and [name.name for name in node.names] == ["*"]
    }
    rooms = getattr(importlib.import_module(package), "ROOMS", {})  # names that are loaded when they are asked for
    return stars or {f"{package}.{file}": tuple(names) for file, names in rooms.items()} or {package: ()}


class Package(SphinxDirective):
    """`package` with the name of one, whose files become sections; `also` names more of its files, or `.`, itself."""

    required_arguments = 1
    option_spec = {"also": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        others = self.options.get("also", "").split()
        shown = files(package) | {package if file == "." else f"{package}.{file}": () for file in others}
        parts = [
            SECTION.format(
                title=module.removeprefix("memjax."), module=module, members=f" {', '.join(names)}" if names else ""
            )
            for module, names in shown.items()
        ]
        return self.parse_text_to_nodes("\n".join(parts), allow_section_headings=True)


class About(SphinxDirective):
    """`about` with the name of a package: its docstring; apart, for sections stand before what a directive gives."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = importlib.import_module(self.arguments[0]).__doc__ or ""
        return self.parse_text_to_nodes(f"```{{eval-rst}}\n{text.strip()}\n```\n")


def code_is_indented(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Indented lines of a module's or a value's docstring are code, as in Markdown."""
    del app, name, obj, options
    if what not in ("module", "data"):
        return
    shown: list[str] = []
    inside = in_section = False
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("  ")
        if line and not indented:
            in_section = bool(re.fullmatch(r"[A-Z]\w+:", line))
        begins = indented and not inside and not before and not in_section  # after a blank line: no cell of a table
        ends = inside and line and not indented
        inside = begins or (inside and not ends)
        shown += [*(["::", ""] if begins else []), *([""] if ends else []), line]
    lines[:] = shown


def no_type(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What stands before the colon in an attribute's docstring is no type: its annotation is."""
    del app, name, obj, options
    types = [line for line in lines if line.startswith(":type: ")]
    if what in ("attribute", "data", "property") and types:
        lines[:] = [line for line in lines if line not in types]
        lines[0] = f"{types[0].removeprefix(':type: ')}: {lines[0]}"


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, given: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Without the fields of every Linen module, and with types as they are written."""
    del app, what, name, obj, options
    if given is not None:
        given = ARRAYS.sub("", TYPES.sub(r"\1", OF_FLAX.sub("", given))).replace("(, ", "(")
    return given, returned and ARRAYS.sub("", returned)


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Members of Linen modules that say nothing."""
    del app, obj, skipped, options
    return True if what == "class" and name in NOT_SHOWN else None


def unlisted(app: Sphinx, env: Any, node: Any, shown: nodes.TextElement) -> nodes.TextElement | None:
    """A name that exists and has no entry is a word; one that does not exist stays a warning."""
    del app, env
    module, _, name = node.get("reftarget", "").rpartition(".")
    if not module.startswith("memjax"):
        return None
    try:
        found = hasattr(importlib.import_module(module), name)
    except ImportError:
        return None
    return shown if found else None


def show_words() -> None:
    """Ranges of settings are shown by their words, and what a class has is called its fields."""
    from memjax.settings.ranges import Range

    del Range.__dataclass_fields__  # of a dataclass Sphinx shows every field
    Range.__repr__ = lambda self: repr(self.words)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Fields"


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    show_words()
    app.add_directive("package", Package)
    app.add_directive("about", About)
    app.connect("autodoc-process-docstring", code_is_indented, priority=400)  # before the sections of Google's style
    app.connect("autodoc-process-docstring", no_type, priority=600)  # behind them
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", unlisted)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
