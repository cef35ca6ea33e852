"""Imports the functions and classes that settings name as their implementation, and a user's own classes of settings.

memjax's settings name their implementation (`made_by`, `opened_by`), which `import_by_name` imports. A method, a memory
or a source of a user's own is a class of settings in the user's module: a subclass of `memjax.config.Method`,
`Attention` or `Source`. Its name in `config.json` is `my_module:MyClass`, and `import_kind` imports it. Whoever writes
a `config.json` must not choose which code runs, so that a module is only imported from these places:

* a file that the user has named (`memjax ... --module FILE`), or the folder of the config file that the user has named,
* the installed packages: the folders on Python's path, without the current one.

It is never imported from the folder of a run. A module that the program itself has imported already is taken as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import keyword
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["import_by_name", "import_files", "import_kind", "import_kinds", "imported_kind", "is_own", "name_of_kind"]

CONFIG_PREFIX = "memjax_config_"
"""Prefix of the names of modules that are config files, which may be called as any other module."""
OWN_FILES: dict[str, Path] = {}
"""Name of a module -> file of `--module` that it was imported from."""
OWN_FOLDERS: list[Path] = []
"""Folders of the config files that were named, in which their modules are looked up."""
PROTOCOL = "a subclass of memjax.config.Method, Attention or Source, with @dataclass"


def import_by_name(name: str) -> Any:
    """Imports and returns the function or class that a text such as 'memjax.data.squad:parse_squad' names.

    Settings name their implementation instead of importing it, so that they stay light, and so that a new kind needs
    no line in a table of all kinds.

    Args:
      name: Name of a module and of a function or class in it, with a colon between them.

    Raises:
      ImportError: There is no such module.
      AttributeError: The module has no such function or class.

    Example:
      >>> import_by_name("memjax.settings.pointers:import_by_name") is import_by_name
      True
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def is_own(kind: type) -> bool:
    """Returns whether a class of settings is a user's own, and not one of memjax."""
    return kind.__module__.partition(".")[0] != "memjax"


def name_of_kind(kind: type) -> str:
    """Returns the name of a user's class of settings in `config.json`, such as 'my_module:MyClass'.

    Raises:
      ValueError: The class is inside of a function or of another class, where nothing can import it.
    """
    if kind.__qualname__ != kind.__name__:
        raise ValueError(
            f"{kind.__name__}: given a class inside of {kind.__qualname__.rpartition('.')[0]}, allowed: one "
            "at the top level of its module"
        )
    return f"{kind.__module__.removeprefix(CONFIG_PREFIX)}:{kind.__name__}"


def import_files(files: Sequence[str]) -> None:
    """Imports files that the user has named, each as the module of its name. First it prints a line on standard error
    about each.

    Args:
      files: Python files.

    Raises:
      ValueError: There is no such file, it has the name of another module, or it cannot be imported.
    """
    paths = dict.fromkeys(_check_file(file) for file in files)
    new = [path for path in paths if OWN_FILES.get(path.stem) != path]
    for path in new:
        _tell_import(path.stem, path)
    for path in new:
        OWN_FILES[path.stem] = path
        if path.stem not in sys.modules:
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            with modules_beside(path):
                load_spec(spec)


def files_of_kinds(config: Any) -> list[str]:
    """Returns the files of the modules in which a user's own classes of a configuration are defined, without those of
    installed packages, for another process that imports them.
    """
    from memjax.settings.checks import iterate_settings

    modules = dict.fromkeys(type(part).__module__ for _, part in iterate_settings(config) if is_own(type(part)))
    not_installed = [name for name in modules if _find_installed(name.partition(".")[0]) is None]
    return [file for name in not_installed if (file := getattr(sys.modules.get(name), "__file__", None))]


def _tell_import(name: str, origin: Path) -> None:
    print(f"{name} is imported from {origin}", file=sys.stderr, flush=True)


def _check_file(file: str) -> Path:
    """Returns the path of a file that may be imported as the module of its name."""
    path = Path(file).expanduser().resolve()
    name = path.stem
    if path.suffix != ".py" or not path.is_file() or not name.isidentifier():
        missing = "" if path.exists() else ", which does not exist"
        raise ValueError(f"--module: given {str(file)!r}{missing}, allowed: a Python file, as my_module.py")
    present, installed = sys.modules.get(name), _find_installed(name)
    places = [getattr(present, "__file__", None) or "memory"] if present else []
    places += [installed.origin or "a package"] if installed else []
    if name in sys.stdlib_module_names or any(Path(place).resolve() != path for place in places):
        taken = "Python" if name in sys.stdlib_module_names else places[0]
        raise ValueError(f"--module: given {str(file)!r}, the name of a module of {taken}, allowed: another file name")
    return path


@contextlib.contextmanager
def modules_beside(file: Path) -> Iterator[None]:
    """Context manager in which a file can import the modules of its own folder, after those that are installed. It
    prints a line on standard error about each that was imported.
    """
    folder, before = file.resolve().parent, set(sys.modules)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
    for name in sorted(sys.modules.keys() - before - OWN_FILES.keys()):
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and Path(origin).resolve().parent == folder and not name.startswith(CONFIG_PREFIX):
            _tell_import(name, Path(origin).resolve())


def import_kinds(value: Any, run: Path | None = None) -> None:
    """Imports all classes of a user's own that a `config.json` names.

    Args:
      value: Content of the file.
      run: Run directory, from which nothing is imported. None for none.

    Raises:
      ValueError: See `import_kind`.
    """
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        import_kinds(entry, run)
    if isinstance(value, dict) and isinstance(name := value.get("type"), str) and ":" in name:
        import_kind(name, run)


def import_kind(name: str, run: Path | None = None) -> type:
    """Imports a user's own class of settings, and prints a line on standard error about a file that is imported for it.

    Args:
      name: Name of the class, as 'my_module:MyClass'.
      run: Run directory whose `config.json` has the name, from which nothing is imported. None for none.

    Raises:
      ValueError: No place that may be used has the module, the module cannot be imported, or the name is not that of a
        class of settings.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in (*module.split("."), attribute)):
        raise ValueError(f"type: given {name!r}, allowed: my_module:MyClass, {PROTOCOL}")
    if imported_kind(name) is None:
        _check_kind(name, getattr(_module_with(module, attribute) or _import_module(name, run), attribute, None))
    kind = imported_kind(name)
    assert kind is not None
    return kind


def imported_kind(name: str) -> type | None:
    """Returns a user's own class of settings whose module is imported already. None where it is not, or where the name
    is that of something else.
    """
    module, _, attribute = name.partition(":")
    kind = getattr(_module_with(module, attribute), attribute, None)
    return kind if _is_kind(kind) else None


def _module_with(module: str, attribute: str) -> ModuleType | None:
    """Returns the imported module that has an attribute. A class of a notebook or script may now be in a named file."""
    names = (module, CONFIG_PREFIX + module, *(OWN_FILES if module == "__main__" else ()))
    modules = [sys.modules.get(name) for name in names]
    return next((imported for imported in modules if hasattr(imported, attribute)), None)


def _is_kind(kind: Any) -> bool:
    from memjax.config import Attention, Method, Source

    if not (isinstance(kind, type) and issubclass(kind, Method | Attention | Source)):
        return False
    # Without the decorator, its fields would be those of its base class.
    return is_own(kind) and (dataclasses.is_dataclass(kind) and "__dataclass_fields__" in vars(kind))


def _check_kind(name: str, kind: Any) -> None:
    if not _is_kind(kind):
        description = "nothing of that name" if kind is None else f"a {type(kind).__name__}"
        description = f"the class {kind.__name__}" if isinstance(kind, type) else description
        raise ValueError(f"{name}: given {description}, allowed: {PROTOCOL}")


def _import_module(name: str, run: Path | None) -> ModuleType:
    """Imports the module of a class from the places that may be used, its packages first.

    Every part is loaded from the file that was checked: the import system would look into the current folder too.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    if module == "__main__":
        raise ValueError(
            f"{name}: its class was defined in a notebook or script, allowed: the class in a file, as --module FILE"
        )
    if top in sys.stdlib_module_names or top == "memjax":
        raise ValueError(f"{name}: given a module of {'memjax' if top == 'memjax' else 'Python'}, allowed: {PROTOCOL}")
    importlib.invalidate_caches()  # of files that were written a moment ago
    imported, path, whole = None, None, ""
    for part in module.split("."):
        whole = f"{whole}.{part}".removeprefix(".")
        if (imported := sys.modules.get(whole)) is None:
            spec = _find_module(part) if path is None else PathFinder.find_spec(whole, path)
            if spec is None or spec.origin is None or spec.loader is None:
                missing = f"there is no installed module {whole}, and none beside a config file that was named"
                file = f"--module {module.rpartition('.')[2]}.py"
                raise ValueError(f"{name}: {missing}, allowed: {file} (in a program: `import {module}` first)")
            origin = Path(spec.origin).resolve()
            if run is not None and origin.is_relative_to(run.expanduser().resolve()):
                raise ValueError(
                    f"{name}: given {origin}, a file of the run, allowed: a module outside of it (--module)"
                )
            if whole == module:
                _tell_import(name, origin)
            imported = load_spec(spec)
        path = list(getattr(imported, "__path__", ()))
    assert imported is not None
    return imported


def load_spec(spec: ModuleSpec) -> ModuleType:
    """Imports the module of a spec under its name. Errors of the module are raised as `ValueError` of one line."""
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        line = f", line {line}" if (line := line_in(error, Path(str(spec.origin)))) else ""
        raise ValueError(f"{spec.origin}{line}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    return module


def line_in(error: BaseException, file: Path) -> int | None:
    """Returns the number of the line in a file that caused an error. None where no line of it did."""
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.realpath(frame.filename) == os.path.realpath(file)]
    return lines[-1] if lines else None


def _find_module(name: str) -> ModuleSpec | None:
    """Finds a module beside the named config files, or in the installed packages."""
    return PathFinder.find_spec(name, [str(folder) for folder in OWN_FOLDERS]) or _find_installed(name)


def _find_installed(name: str) -> ModuleSpec | None:
    """Finds a module in the installed packages, and so in the folders of Python's path without the current one."""
    here = Path.cwd().resolve()
    folders = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    if spec := PathFinder.find_spec(name, folders):
        return spec
    return next(filter(None, (finder.find_spec(name, None) for finder in _editable_finders())), None)


def _editable_finders() -> Iterator[Any]:
    """Yields the finders of packages that are installed as editable ones, which are in no folder of Python's path."""
    return (finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("__editable__"))
