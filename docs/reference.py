"""The reference: the directive `package`, a page for each module of a package, and docstrings as Sphinx wants them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from modules import Module, modules_of
from sphinx.application import Sphinx
from sphinx.domains.python._object import PyObject
from sphinx.util.docutils import SphinxDirective

MEMBERS = """```{{eval-rst}}
.. automodule:: {module}
   :members:
```
"""
BAR = "&#124;"
"""a vertical bar inside of a cell of a table"""
OF_FLAX = re.compile(r",?\s*(parent: [^=]*= <flax[^>]*>|name: str \| None = None)")
"""fields that every Linen module has"""
TYPES = re.compile(r"<class '(?:jax\.numpy|numpy)\.(\w+)'>")
ARRAYS = re.compile(r"(?<=\[)(?:jaxlib\._jax|jax|numpy)\.(?=Array|ndarray)")
"""where the classes of arrays are from: jaxtyping shows it"""
NOT_SHOWN = ("setup", "dtype", "name", "parent", "scope")
"""members that say nothing that the class does not"""


class Package(SphinxDirective):
    """`package` with the name of a package: its docstring, a table of its names, and a page for each of its modules.

    The option `first` names modules that come first (see `modules_of`). A module without others is shown on the page.
    """

    required_arguments = 1
    option_spec = {"first": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        modules = modules_of(package, self.options.get("first", "").split())
        text = importlib.import_module(package).__doc__ or ""
        parts = [f"```{{eval-rst}}\n{text.strip()}\n```", table(modules)]
        if len(modules) == 1:
            return self.parse_text_to_nodes("\n\n".join([*parts[1:], MEMBERS.format(module=package)]))
        folder = package.removeprefix("memjax.")
        pages = [f"{module.short} <{folder}/{module.short}>" for module in modules]
        toctree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
        return self.parse_text_to_nodes("\n\n".join([*parts, toctree]))


def table(modules: Sequence[Module]) -> str:
    """Makes a table of modules and their names, each with its first sentence and a link, in Markdown."""
    rows = [("name", "first sentence"), ("---", "---")]
    for module in modules:
        if len(modules) > 1:
            rows.append((f"**{{py:mod}}`{module.short} <{module.module}>`**", f"**{module.line}**"))
        rows += [(f"{{py:obj}}`{name} <{module.module}.{name}>`", line) for name, line in module.names]
    return "\n".join(f"| {name} | {line.replace('|', BAR)} |" for name, line in rows)


def write_pages(app: Sphinx) -> None:
    """Writes the page of every module that a page of `docs/api` shows, and removes those of modules that are gone."""
    folder = Path(app.srcdir) / "docs/api"
    written: set[Path] = set()
    for page in folder.glob("*.md"):
        for package in re.findall(r"^```\{package\} (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            modules = modules_of(package)
            for module in modules if len(modules) > 1 else ():
                path = folder / page.stem / f"{module.short}.md"
                text = f"# {module.module}\n\n{MEMBERS.format(module=module.module)}"
                path.parent.mkdir(exist_ok=True)
                if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not read again
                    path.write_text(text, encoding="utf-8")
                written.add(path)
    for path in set(folder.glob("*/*.md")) - written:
        path.unlink()


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
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", code_is_indented, priority=400)  # before the sections of Google's style
    app.connect("autodoc-process-docstring", no_type, priority=600)  # behind them
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", unlisted)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
