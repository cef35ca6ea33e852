"""The embedded corpus: Python sources of the standard library of the interpreter that runs.

No network, no download: every machine with Python has about nine megabytes of it. One document is one top-level package
or module, its files joined in the order of their paths, each after a line `# path`. The texts depend on the Python
version, so `sha256` and `python_version` stand beside every number that is made with them.

This file is pure Python; the TFDS builder (`builders.py`) and the seqio Task (`tasks.py`) wrap it.
"""

import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from memjax.data.paths import digest
from memjax.data.sources import Texts, select_split

__all__ = ["corpus_sha256", "python_version", "read_python_sources"]

EXCLUDED_FOLDERS = frozenset({"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"})
HELD_OUT = 0.08
"""Share of the documents in validation, and in test."""

_GENERATED = re.compile(rb"(?i)\b(auto-?)?generated (by|from)\b")


def read_python_sources(root: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Document name -> text, sorted by name.

    Left out: names that are not of the standard library (`sys.stdlib_module_names`: no site-packages, no test suite, no
    build configuration), test folders inside packages, files that a tool generated (the first two lines say so:
    character maps, Sphinx topics; they would make up a fifth of the corpus), files that are not UTF-8, and empty files.

    Args:
      root: folder of the library; that of the running interpreter if None.

    Raises:
      ValueError: no Python files there (an interpreter that was frozen or zipped).
    """
    folder = Path(sysconfig.get_paths()["stdlib"] if root is None else root)
    files: dict[str, list[Path]] = {}
    for path in folder.rglob("*.py"):
        relative = path.relative_to(folder)
        top = relative.parts[0].removesuffix(".py")
        if top in sys.stdlib_module_names and not EXCLUDED_FOLDERS & set(relative.parts):
            files.setdefault(top, []).append(relative)
    documents = {}
    for top in sorted(files):
        parts = (_file_text(folder, relative) for relative in sorted(files[top], key=lambda path: path.parts))
        if text := "".join(part for part in parts if part):
            documents[top] = text
    if not documents:
        raise ValueError(f"root: {folder} has no Python sources of the standard library; give text files instead")
    return documents


def _file_text(folder: Path, relative: Path) -> str | None:
    content = (folder / relative).read_bytes()
    if not content.strip() or _GENERATED.search(b"\n".join(content.split(b"\n", 2)[:2])):
        return None
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None
    return f"# {relative.as_posix()}\n{text}" + ("" if text.endswith("\n") else "\n")


def python_sources(split: str | None = None, root: str | os.PathLike[str] | None = None) -> Texts:
    """The corpus, or one split of it, as texts.

    Args:
      split: `train`, `validation` or `test` by a hash of the name (8 % and 8 % of the documents are held out), which
        is the same for every Python version; None = everything.
      root: see `read_python_sources`.

    Example:
      >>> train, test = python_sources("train"), python_sources("test")
      >>> "json" in test.names and "json" not in train.names
      True
    """
    documents = read_python_sources(root)
    texts = Texts.from_mapping(documents, fingerprint=f"python-sources-{corpus_sha256(documents)[:16]}")
    return select_split(texts, split, validation=HELD_OUT, test=HELD_OUT)


def corpus_sha256(documents: Mapping[str, str]) -> str:
    """SHA-256 of names and texts, in order.

    Example:
      >>> corpus_sha256({"a": "x"}) == corpus_sha256({"a": "x"})
      True
    """
    return digest(part for item in documents.items() for part in item)


def python_version() -> str:
    """The version whose library the corpus is, such as `CPython 3.11.9`."""
    return f"{platform.python_implementation()} {platform.python_version()}"
