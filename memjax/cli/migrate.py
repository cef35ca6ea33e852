"""The command `memjax migrate`, which rewrites a file for settings that have been renamed."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax import config as configs
from memjax.cli.parser import Parser, print_result
from memjax.config import Config
from memjax.durable_files import replace_file
from memjax.settings.compatibility import (
    CLASSES,
    changed_values,
    classes_in,
    current_field,
    current_modules,
    current_path,
    renamed_fields,
    settings_class,
)
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import type_hints_of

DOTTED = re.compile(r"(?<![\w.-])(?P<option>--)?(?P<path>[a-z][\w-]*(?:\.[a-z0-9][\w-]*)+)(?![\w.]*[\w(])")
"""Pattern of a path of a field in a text, such as data.segment_length or --data.segment-length"""


def run(arguments: list[str]) -> int:
    """Shows how a config file or script must change because settings have been renamed, or changes it (`--write`)."""
    parser = Parser("migrate", run.__doc__, json=": the file, its changed lines, and whether they were written")
    parser.add_argument(
        "file", metavar="FILE", help="a Python file; in other texts, paths such as data.batch_size are renamed"
    )
    parser.add_argument("--write", action="store_true", help="change the file; without it, the changes are only shown")
    options = parser.read(arguments)
    facts = migrate_file(Path(options.file), write=options.write)
    return print_result(facts, describe_migration, options)


def migrate_file(path: Path, *, write: bool = False) -> dict[str, Any]:
    """Converts the names of settings and modules in one file to those of today, and returns the changed lines as JSON
    values. The file itself changes only with `write`.

    Args:
      path: Python file, or any other text, in which only paths such as data.segment_length are renamed.
      write: Whether to change the file.

    Raises:
      UsageError: The file cannot be read as text, or is no Python that this version can read.
    """
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}, allowed: a text file") from None
    except UnicodeDecodeError:
        raise UsageError(f"file: given {path}, allowed: a text file in UTF-8") from None
    try:
        after = migrate_source(before) if path.suffix == ".py" else migrate_text(before)
    except (SyntaxError, tokenize.TokenError) as error:
        raise UsageError(f"{path}: {error}") from None
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm="", n=0)
    if write and after != before:
        replace_file(path, after.encode())
    return {"file": str(path), "difference": [*lines], "written": write and after != before}


def describe_migration(facts: Mapping[str, Any]) -> str:
    """Formats the result of `migrate_file` as text: the changed lines of a file, and whether they were written.

    Example:
      >>> describe_migration({"file": "a.py", "difference": [], "written": False})
      'a.py: nothing to rename'
    """
    if not facts["difference"]:
        return f"{facts['file']}: nothing to rename"
    end = "written" if facts["written"] else "not written; --write changes the file"
    return "\n".join([*facts["difference"], f"{facts['file']}: {end}"])


def migrate_text(text: str) -> str:
    """Returns a text in which dotted paths of config fields, and the modules of memjax, have the names of today.

    Example:
      >>> migrate_text("memjax train --data.segment-length 64")
      'memjax train --data.segment-length 64'
    """
    return current_modules(DOTTED.sub(_current_match, text))


def migrate_source(source: str, guesses: Mapping[str, type] | None = None) -> str:
    """Returns Python source in which settings and modules of memjax have the names of today. `guesses` maps names of
    variables to settings classes, where the source does not say them.

    Args:
      source: Text of a file.
      guesses: Variable -> class of settings that it holds where the file does not say. None for `config`, and for the
        parts of a `Config` under their own names.
    """
    tree = ast.parse(source)
    migration = _Migration(source, _guesses() if guesses is None else guesses)
    migration.visit(tree)
    return current_modules(migration.result())


def _guesses() -> dict[str, type]:
    hints = {name: classes_in(hint) for name, hint in type_hints_of(Config).items()}
    return {"config": Config, **{name: kinds[0] for name, kinds in hints.items() if len(kinds) == 1}}


def _current_match(match: re.Match[str]) -> str:
    path = match["path"].replace("-", "_") if match["option"] else match["path"]
    *parents, last = path.split(".")
    off = last.startswith("no_") and bool(match["option"])
    new = current_path(Config, ".".join([*parents, last[3:] if off else last]))
    if off:
        head, _, last = new.rpartition(".")
        new = f"{head}.no_{last}"
    if new == path:
        return match[0]
    if match["option"] and "_" not in match["path"]:
        new = new.replace("_", "-")
    return f"{match['option'] or ''}{new}"


class _Migration(ast.NodeVisitor):
    """Walks through a file, knows the classes of expressions where it can, and collects replacements.

    Attributes:
      edits: (first byte, byte after the last, new text) of every replacement.
    """

    def __init__(self, source: str, guesses: Mapping[str, type]):
        self._bytes = source.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._guesses, self._scopes = guesses, [dict[str, list[type]]()]
        self._aliases: dict[str, str] = {}
        self._modules = {"memjax.config"}
        self._classes: list[type] = []
        self.edits: set[tuple[int, int, str]] = set()
        self._mark_texts(source)

    def result(self) -> str:
        """Returns the source with all replacements."""
        data = self._bytes
        last = len(data)
        for start, end, new in sorted(self.edits, reverse=True):
            if end <= last:  # of two that overlap, one is enough
                data, last = data[:start] + new.encode() + data[end:], start
        return data.decode()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name == "memjax.config" and alias.asname:
                self._modules.add(alias.asname)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            if module == "memjax" and alias.name == "config":
                self._modules.add(alias.asname or alias.name)
            if module != "memjax.config" and not module.startswith("memjax.settings"):
                continue
            if alias.name == "*":
                self._aliases |= {name: name for name in [*vars(configs), *CLASSES]}
            self._aliases[alias.asname or alias.name] = alias.name
            if alias.name in CLASSES:
                self._replace_name(alias, alias.name, CLASSES[alias.name])

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in CLASSES and self._aliases.get(node.id) == node.id:
            self._replace_name(node, node.id, CLASSES[node.id])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        scope: dict[str, list[type]] = {}
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if argument.annotation is not None and (kinds := self._annotated(argument.annotation)):
                scope[argument.arg] = kinds
            elif argument.arg == "self" and self._classes:
                scope["self"] = [self._classes[-1]]
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        is_settings = any(_last_name(base) in self._aliases for base in node.bases)
        self._aliases |= {node.name: node.name} if is_settings else {}
        kind = settings_class(node.name) if is_settings else None
        self._classes += [kind] if kind else []
        self.generic_visit(node)
        self._classes = self._classes[:-1] if kind else self._classes

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and (kinds := self._annotated(node.annotation)):
            self._scopes[-1][node.target.id] = kinds

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self._assign(node.target, node.value)

    def visit_For(self, node: ast.For) -> None:
        self._assign(node.target, ast.Subscript(value=node.iter, slice=ast.Constant(0), ctx=ast.Load()))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._assign(node.target, ast.Subscript(value=node.iter, slice=ast.Constant(0), ctx=ast.Load()))
        self.generic_visit(node)

    def visit_ListComp(self, node: Any) -> None:
        for generator in node.generators:
            self.visit(generator)
        self.generic_visit(node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if node.attr in CLASSES and ast.unparse(node.value) in self._modules:
            self._replace_end(node, node.attr, CLASSES[node.attr])
        elif new := self._renamed(self._kinds(node.value), node.attr):
            self._replace_end(node, node.attr, new)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _last_name(node.func)
        kinds = self._called(node)
        if name == "replace" and node.args:
            kinds = self._kinds(node.args[0])
        for keyword in node.keywords:
            new = self._renamed(kinds, keyword.arg) if keyword.arg else ""
            if new and keyword.arg:
                self._replace_name(keyword, keyword.arg, new)
            self._replace_value(kinds, keyword.arg or "", keyword.value)
        if name in ("setattr", "getattr") and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            if new := self._renamed(self._kinds(node.args[0]), str(node.args[1].value)):
                self._replace_text(node.args[1], str(node.args[1].value), new)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Places inside of f-strings are not those of the file before Python 3.12: their text is searched instead.
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and (new := self._renamed(self._kinds(inner.value), inner.attr)):
                owner = ast.unparse(inner.value)
                self._replace_text(node, f"{owner}.{inner.attr}", f"{owner}.{new}")
        if not self._classes:
            return
        for before, after in zip(node.values, node.values[1:], strict=False):
            is_field = isinstance(before, ast.FormattedValue) and ast.unparse(before.value) == "field"
            if is_field and isinstance(after, ast.Constant) and (match := re.match(r"\w+", str(after.value))):
                if new := self._renamed([self._classes[-1]], match[0]):
                    self._replace_text(node, f"{{field}}{match[0]}", f"{{field}}{new}")

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._scopes[-1][target.id] = self._kinds(value)
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            if len(target.elts) == len(value.elts):
                for part, entry in zip(target.elts, value.elts, strict=True):
                    self._assign(part, entry)

    def _annotated(self, annotation: ast.expr) -> list[type]:
        """Returns the classes of settings in an annotation."""
        text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
        kinds = map(self._named, re.findall(r"[\w.]+", str(text)))
        return [kind for kind in kinds if kind]

    def _named(self, name: str) -> type | None:
        """Returns the class of settings with a name of this file, as `Data` or `configs.Data`."""
        module, _, last = name.rpartition(".")
        if module:
            return settings_class(last) if module in self._modules else None
        return settings_class(self._aliases[name]) if name in self._aliases else None

    def _called(self, node: ast.Call) -> list[type]:
        """Returns the class of settings that a call constructs."""
        name = ast.unparse(node.func)
        kind = self._named(name) or self._named(name.rpartition(".")[0])  # a class method, such as `as_published`
        if name == "cls" and self._classes:
            kind = self._classes[-1]
        return [kind] if kind else []

    def _kinds(self, node: ast.expr) -> list[type]:
        """Returns the classes of settings that an expression may have, [] where the file does not say."""
        if isinstance(node, ast.Name):
            for scope in reversed(self._scopes):
                if node.id in scope:
                    return scope[node.id]
            return [self._guesses[node.id]] if node.id in self._guesses else []
        if isinstance(node, ast.Attribute):
            owners = self._kinds(node.value)
            if not owners:
                is_part = node.attr in type_hints_of(Config) or node.attr == "config"
                return self._kinds(ast.Name(node.attr)) or (self._parts(Config, node.attr) if is_part else [])
            return [kind for owner in owners for kind in self._parts(owner, node.attr)]
        if isinstance(node, ast.Call):
            if _last_name(node.func) in ("replace", "copy", "deepcopy") and node.args:
                return self._kinds(node.args[0])
            if _last_name(node.func) in ("load_config", "get_config"):
                return [Config]
            return self._called(node)
        if isinstance(node, ast.Subscript):
            return self._kinds(node.value)
        if isinstance(node, ast.Tuple | ast.List):
            return [kind for entry in node.elts for kind in self._kinds(entry)]
        if isinstance(node, ast.Starred | ast.NamedExpr | ast.Await):
            return self._kinds(node.value)
        if isinstance(node, ast.IfExp):
            return self._kinds(node.body) or self._kinds(node.orelse)
        if isinstance(node, ast.BoolOp):
            return [kind for entry in node.values for kind in self._kinds(entry)]
        return []

    def _parts(self, owner: type, field: str) -> list[type]:
        hints = type_hints_of(owner)
        return classes_in(hints.get(renamed_fields(owner).get(field, field)))

    def _renamed(self, kinds: Sequence[type], field: str | None) -> str:
        """Returns the name of a field today, '' where it has kept its name or where classes differ."""
        names = {renamed_fields(kind)[field] for kind in kinds if field in renamed_fields(kind)} if field else set()
        is_unchanged = any(field in type_hints_of(kind) for kind in kinds)
        return names.pop() if len(names) == 1 and not is_unchanged else ""

    def _replace_value(self, kinds: Sequence[type], field: str, value: ast.expr) -> None:
        """Replaces a value that has another name today."""
        if not isinstance(value, ast.Constant):
            return
        for kind in kinds:
            new = current_field(kind, field, value.value)[1]
            if changed_values(kind) and new != value.value:
                start, end = self._span(value)
                text = f'"{new}"' if isinstance(new, str) else repr(new)
                self.edits.add((start, end, text))
                return

    def _span(self, node: Any) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _replace_name(self, node: Any, old: str, new: str) -> None:
        start = self._span(node)[0]
        if self._bytes[start : start + len(old)].decode(errors="replace") == old:
            self.edits.add((start, start + len(old), new))

    def _replace_end(self, node: Any, old: str, new: str) -> None:
        end = self._span(node)[1]
        if self._bytes[end - len(old) : end].decode(errors="replace") == old:
            self.edits.add((end - len(old), end, new))

    def _replace_text(self, node: Any, old: str, new: str) -> None:
        """Replaces a text wherever it stands inside of a node."""
        start, end = self._span(node)
        pattern = rf"(?<![\w.]){re.escape(old)}(?!\w)".encode()
        shared = len(old) - len(old.lstrip("{")) and old.index("}") + 1 or old.rfind(".") + 1
        for match in re.finditer(pattern, self._bytes[start:end]):
            first = start + match.start() + shared
            self.edits.add((first, start + match.end(), new[shared:]))

    def _mark_texts(self, source: str) -> None:
        """Collects the paths of fields in texts and comments."""
        lines = source.splitlines()
        for token in _texts_of(source):
            line, column = token.start
            start = self._starts[line - 1] + len(lines[line - 1][:column].encode())
            formatted = token.type == tokenize.STRING and "f" in token.string[:2].lower()
            for match in DOTTED.finditer(token.string):
                if formatted and _is_code(token.string, match.start()):
                    continue
                if (new := _current_match(match)) != match[0]:
                    first = start + len(token.string[: match.start()].encode())
                    self.edits.add((first, first + len(match[0].encode()), new))


def _texts_of(source: str) -> Iterator[tokenize.TokenInfo]:
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    yield from (token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type in kinds)


def _is_code(text: str, place: int) -> bool:
    """Whether a place of an f-string is inside of braces."""
    before = text[:place].replace("{{", "").replace("}}", "")
    return before.count("{") > before.count("}")


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
