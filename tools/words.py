"""Counts docstrings and names that a reader cannot understand on their own.

    python -m tools.words            # the counts of memjax and configs
    python -m tools.words PATH...    # every finding in these files and folders

A finding is a place to look at, no verdict. Six kinds are counted:

- fragment: A description of an argument that only continues its name, such as `layout: of arrays on several devices`.
- field: The same in the text under a field, which `--help` prints.
- riddle: A docstring that begins with "What", "How", "Those", "As", "Of" or "Likewise".
- participle: A function that is named after its result instead of what it does, such as `grown`.
- local: A local name that does not say what it holds, such as `found`.
- vague: A name that fits everything, such as `value`, for a local or an argument of a function above 20 lines.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TREES = ("memjax", "configs")
FRAGMENT = re.compile(
    r"^(?:of|as(?! in `)|likewise|that|those|which|what|how|where|whose|with|from|for|"
    r"in(?! (?:float|bfloat|int|\[))|to|it|its own|the same|whether it|at(?! (?:most|least))|on|by)\b",
    re.IGNORECASE,
)
RIDDLE = re.compile(r"^(?:what|how|those|that|as|of|likewise|all of)\b", re.IGNORECASE)
# Names of one word: `masked_softmax` is an adjective and a noun.
PARTICIPLE = re.compile(
    r"^(?!(?:embed|feed|need|shed|seed)$)"
    r"(?:[a-z]+ed|grown|kept|made|found|shown|taught|drawn|written|seen|held|left|over|apart|anew)$"
)
EMPTY_LOCALS = {"found", "one", "own", "given", "kept", "made", "named", "there", "both", "drawn", "told"}
VAGUE = {"res", "result", "value", "item", "data", "thing", "obj", "x", "what"}
LONG_FUNCTION = 20
ENTRY = re.compile(r"^\s{2,}(\*{0,2}[a-z_0-9]+(?:, [a-z_0-9]+)*): (\S.*)$", re.MULTILINE)


class Finding(NamedTuple):
    """A place in a file, or one of the descriptions and field texts that the shares are taken of.

    Attributes:
      kind: 'fragment', 'field', 'riddle', 'participle', 'local', 'vague', or 'entry' and 'text' for every description
        and text.
      line: Line number, from 1.
      text: The name and the words that were found. Empty for 'entry' and 'text'.
    """

    kind: str
    line: int
    text: str = ""


def find_words(source: str, name: str = "module") -> Iterator[Finding]:
    """Yields the findings of one file.

    Args:
      source: Python code.
      name: Name of the module, for its own docstring.

    Example:
      >>> [finding.text for finding in find_words("def grown(): pass")]
      ['def grown']
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_LOCALS:
            yield Finding("local", node.lineno, node.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield from _field_texts(node)
            yield from _docstring(node, getattr(node, "name", name), getattr(node, "lineno", 1))
        if isinstance(node, ast.FunctionDef) and PARTICIPLE.match(node.name) and not _is_property(node):
            yield Finding("participle", node.lineno, f"def {node.name}")
        if isinstance(node, ast.FunctionDef) and _num_lines_of_code(node) > LONG_FUNCTION:
            yield from _vague_names(node)


def count_words(paths: Sequence[Path] | None = None) -> Counter[str]:
    """Counts the findings of files by kind.

    Args:
      paths: Files. None for all of `TREES`.
    """
    files = paths if paths is not None else [path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))]
    return Counter(
        finding.kind for path in files for finding in find_words(path.read_text(encoding="utf-8"), path.stem)
    )


def describe_counts(counts: Counter[str]) -> str:
    """Returns the line about the counts."""
    fragments, fields = (100 * counts[a] / max(counts[b], 1) for a, b in (("fragment", "entry"), ("field", "text")))
    return (
        f"fragments {counts['fragment']} of {counts['entry']} descriptions ({fragments:.1f} %), "
        f"field texts {counts['field']} of {counts['text']} ({fields:.1f} %), riddles {counts['riddle']}, "
        f"participles {counts['participle']}, empty local names {counts['local']}, "
        f"vague names in functions above {LONG_FUNCTION} lines {counts['vague']}"
    )


def main(arguments: Sequence[str]) -> None:
    """Prints every finding of the files and folders that are named, and the counts."""
    files = [f for a in map(Path, arguments) for f in (sorted(a.rglob("*.py")) if a.is_dir() else [a])]
    for path in files:
        for finding in find_words(path.read_text(encoding="utf-8"), path.stem):
            if finding.text:
                print(f"{path}:{finding.line}: {finding.kind}: {finding.text}")
    print(describe_counts(count_words(files or None)))


def _field_texts(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> Iterator[Finding]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign | ast.Assign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            yield Finding("text", text.lineno)
            target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
            words = text.value.value.strip()
            if FRAGMENT.match(words):
                yield Finding("field", text.lineno, f"{ast.unparse(target)}: {words.splitlines()[0]}")


def _docstring(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module, name: str, line: int
) -> Iterator[Finding]:
    text = ast.get_docstring(node) or ""
    if RIDDLE.match(text):
        yield Finding("riddle", line, f"{name}: {text.splitlines()[0]}")
    for entry in ENTRY.finditer(text):
        yield Finding("entry", line)
        if FRAGMENT.match(entry[2]):
            yield Finding("fragment", line, f"{name}.{entry[1]}: {entry[2]}")


def _num_lines_of_code(node: ast.FunctionDef) -> int:
    """Returns the number of lines of a function without its docstring."""
    first = node.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
    return node.end_lineno - node.lineno + 1 - docstring


def _vague_names(node: ast.FunctionDef) -> Iterator[Finding]:
    """Yields each vague name of a function once."""
    stored = (
        n for n in ast.walk(node) if isinstance(n, ast.arg) or isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    lines = {getattr(n, "arg", getattr(n, "id", "")): n.lineno for n in stored}
    for name in sorted(lines.keys() & VAGUE):
        yield Finding("vague", lines[name], f"{node.name}: {name}")


def _is_property(node: ast.FunctionDef) -> bool:
    names = {getattr(decorator, "id", getattr(decorator, "attr", "")) for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property"})


if __name__ == "__main__":
    main(sys.argv[1:])
