"""Names that earlier versions gave to settings, and the names of today.

One table, read in both directions. To the names of today: `config.json` of a run (`upgrade_saved_settings`), options of
the command line (`describe_renamed_option`), keywords and attributes of a config file (`describe_renamed_field`), the
files that `memjax migrate` rewrites, and commands that are printed (`current_command`). To the names of earlier
versions: what is hashed or compared on disk, such as the fingerprint of a datastore (`in_saved_names`), so that
everything that an earlier version has written opens unchanged.

The tables are in `memjax.settings.earlier_fields` and `memjax.settings.earlier_names`: a field that is renamed gets a
line in `FIELDS`. Keys inside of checkpoints and of `metrics.jsonl` are in no table: they are never renamed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from memjax.settings.earlier_fields import DROPPED, FIELDS, FORMERLY, SAVED_TYPES, VALUES
from memjax.settings.earlier_names import CLASSES, MEMBERS, MODULES, NAMES
from memjax.settings.pointers import imported_kind, is_own, name_of_kind


@functools.cache
def renamed_fields(kind: type) -> Mapping[str, str]:
    """Returns a mapping from earlier names to today's, for the fields of the settings class `kind` that have been
    renamed.
    """
    return _of_bases(FIELDS, kind)


@functools.cache
def changed_values(kind: type) -> Mapping[str, Mapping[Any, Any]]:
    """Returns a mapping for the fields of the settings class `kind` whose values have been renamed: name of the field
    -> earlier value -> value today.
    """
    return _of_bases(VALUES, kind)


def type_name(kind: type) -> str:
    """Returns the name of a class of settings in `config.json`, which is 'my_module:MyClass' for a user's own class."""
    return name_of_kind(kind) if is_own(kind) else SAVED_TYPES.get(kind.__name__, kind.__name__)


def saved_type(kind: type) -> str:
    """Returns the name that stands for the settings class `kind` in file names and fingerprints on disk, the same in
    all versions.
    """
    if is_own(kind):
        return name_of_kind(kind)
    earlier = {new: old for old, new in CLASSES.items()}
    return SAVED_TYPES.get(kind.__name__, earlier.get(kind.__name__, kind.__name__))


def in_saved_names(value: Any) -> Any:
    """Converts settings, as JSON values with the names of today, to the names of earlier versions, for fingerprints and
    folders on disk.

    Args:
      value: Settings as `config_to_dict` returns them.

    Example:
      >>> in_saved_names({"type": "Bytes"})
      {'type': 'Bytes'}
    """
    if isinstance(value, list | tuple):
        return [in_saved_names(entry) for entry in value]
    if not isinstance(value, dict) or (kind := settings_class(value.get("type"))) is None:
        return value
    earlier = {new: old for old, new in renamed_fields(kind).items()}
    saved: dict[str, Any] = {}
    for name, entry in value.items():
        values = {new: old for old, new in changed_values(kind).get(name, {}).items()}
        known = not isinstance(entry, list | dict) and entry in values
        saved[str(earlier.get(name, name))] = values[entry] if known else in_saved_names(entry)
    return {**saved, "type": saved_type(kind)}


def upgrade_saved_settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the fields of one class of settings in a `config.json` to the names of today. Settings inside of them
    stay as they are.

    Fields that never had an effect are left out. Fields that did not exist have the value with which runs were trained.

    Args:
      value: Fields of one class of settings, with `type`.
    """
    kept = {name: entry for name, entry in value.items() if name not in DROPPED.get(value["type"], ())}
    kind = settings_class(value["type"])
    if kind is not None:
        kept = dict(current_field(kind, name, entry) for name, entry in kept.items())
    return FORMERLY.get(value["type"], {}) | kept


def current_field(kind: type, name: str, value: Any = None) -> tuple[str, Any]:
    """Returns the name and the value that a field of the settings class `kind` has today, given those in a
    `config.json` or a config file, which may be of an earlier version.

    Args:
      kind: Class of settings.
      name: Name of the field today or in an earlier version.
      value: Its value. One that only earlier versions had is replaced by that of today.
    """
    new = str(renamed_fields(kind).get(name, name))
    values = changed_values(kind).get(new, {})
    # A value under the name of today is one of today, unless only values have changed.
    is_earlier = new != name or new not in renamed_fields(kind).values()
    if is_earlier and isinstance(value, str | int | float) and value in values:
        value = values[value]
    return new, value


def describe_renamed_field(kind: type, name: str) -> str:
    """Returns a line that tells today's name of a field of the settings class `kind`, if `name` is one of an earlier
    version. '' for every other name.
    """
    new = renamed_fields(kind).get(name)
    hint = "`memjax migrate FILE` renames it in a config file"
    return f"{kind.__name__}: {name} is now {new}{_describe_values(kind, new)}; {hint}" if new else ""


def describe_renamed_option(settings: Any, path: str) -> str:
    """Returns a line that tells today's name of an option of a config, if the dotted path `path` is one of an earlier
    version. '' for every other path.

    Args:
      settings: Configuration to which the option belongs.
      path: Dotted path of the field, as 'data.segment_length', or the end of such a path. An end that is today the end
        of another path is not renamed.
    """
    from memjax.settings.checks import iterate_settings

    line = ""
    for prefix, part in iterate_settings(settings):
        for new, kind in _current_paths([part], path.split(".")):
            if new == path:
                return ""
            values = _describe_values(kind, new.rpartition(".")[2])
            line = line or f"{prefix}{path} is now {prefix}{new}{values}"
        if line and not prefix:
            return line
    return line


def current_path(settings: Any, path: str) -> str:
    """Returns the dotted path of a field, such as 'data.segment_length', in the names of today. A path that is not
    known stays as it is.

    Args:
      settings: Settings, or a class of them. Of a class, fields that differ between the kinds of a part stay.
      path: Dotted path, as 'data.segment_length'. Numbers stand for the entries of a tuple.
    """
    found = list(dict.fromkeys(new for new, _ in _current_paths([settings], path.split("."))))
    is_class = isinstance(settings, type)
    return path if not found or is_class and len(found) > 1 else found[0]


def current_command(command: str, settings: Any) -> str:
    """Returns the text of a command line with the options that set fields of `settings`, a config, under the names of
    today.

    Args:
      command: Command line as it was run.
      settings: The configuration whose fields it sets, or a class.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # not a command line but a description
        return command
    if not any(word.startswith("--") and "." in word for word in words):
        return command
    changes = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if not option.startswith("--") or "." not in option:
            continue
        path = option[2:].replace("-", "_")
        for new, kind in _current_paths([settings], path.split(".")):
            if new == path:
                break
            changes[option] = f"--{new.replace('_', '-')}"
            changed = changed_values(kind).get(new.rpartition(".")[2], {})
            values, given = {str(old): new for old, new in changed.items()}, value if equals else following
            if given in values:
                changes[f"{option}{equals or ' '}{given}"] = _option(changes[option], equals or " ", values[given])
            break
    for old, new in sorted(changes.items(), key=lambda change: -len(change[0])):
        command = re.sub(rf"(?<!\S){re.escape(old)}(?![\w.-])", new.replace("\\", r"\\"), command)
    return command


def current_modules(text: str) -> str:
    """Returns a text in which modules of memjax that have been renamed, such as `memjax.data.rows`, have the names of
    today.

    Example:
      >>> current_modules("from memjax.data.rows import BatchIterator")
      'from memjax.data.batch_iterator import BatchIterator'
    """

    def current(module: re.Match[str]) -> str:
        package, name = module.groups()
        return MODULES.get(module[0], MODULES.get(package, package) + name)

    return re.sub(r"(?<![\w.])(memjax\.\w+)((?:\.\w+)?)", current, text)


def _option(name: str, separator: str, value: Any) -> str:
    """Returns an option with its value as the command line takes it: truth values are names, with or without 'no-'."""
    if not isinstance(value, bool):
        return f"{name}{separator}{value}"
    path, dot, field = name.rpartition(".")
    return name if value else f"{path}{dot}no-{field}"


def settings_class(name: Any) -> type | None:
    """Returns the class of settings of this name, which may be its name today or in an earlier version, or that of a
    user's own class whose module is imported. None where there is none.
    """
    if ":" in str(name):
        return imported_kind(str(name))
    from memjax import config as configs

    kind = vars(configs).get(CLASSES.get(str(name), str(name)))
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def classes_in(hint: Any) -> list[type]:
    """Returns a list of the classes of settings in a type hint of a field: those of a union, or of the entries of a
    tuple.
    """
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [kind for argument in get_args(hint) for kind in classes_in(argument)]


def renamed_names(module: str, table: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Makes the function `__getattr__` of a package, for which a name of an earlier version gives the object of today's
    name, with a `DeprecationWarning`. `table` maps earlier names to today's.

    Args:
      module: Name of the package.
      table: Earlier name -> name today. None for those of `NAMES`.

    Example:
      >>> __getattr__ = renamed_names(__name__, {})
    """
    renamed = NAMES.get(module, {}) if table is None else table

    def __getattr__(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import importlib

        warnings.warn(f"{module}.{name} is now {renamed[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), renamed[name])

    return __getattr__


def warn_of_renamed_members(cls: type) -> None:
    """Issues a `DeprecationWarning` for each method or attribute that `cls`, a class of memories, models, tasks or
    heads, defines under its name of an earlier version (`MEMBERS`).
    """
    for old, new in _of_bases(MEMBERS, cls).items():
        if old in vars(cls):
            warnings.warn(f"{cls.__name__}: {old} is now {new}", DeprecationWarning, stacklevel=3)


def _of_bases(table: Mapping[str, Mapping[str, Any]], kind: type) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for base in filter(lambda base: not is_own(base), reversed(kind.__mro__)):
        merged |= table.get(base.__name__, {})
    return merged


def _describe_values(kind: type, field: str) -> str:
    """Returns the part of a line about values that have new names, '' where they have kept theirs."""
    changes = [f"{old!r} is now {new!r}" for old, new in changed_values(kind).get(field, {}).items() if old != new]
    return f" ({', '.join(changes)})" if changes else ""


def _current_paths(places: Iterable[Any], names: list[str]) -> Iterator[tuple[str, type]]:
    """Yields paths that lead to a field, the kinds that a configuration has first, with the class of the field.

    Args:
      places: Settings, or classes of them.
      names: Path from there, in the names of today or of an earlier version.
    """
    from memjax.settings.ranges import type_hints_of

    first, *rest = names
    for place in places:
        kind = place if isinstance(place, type) else type(place)
        if first.startswith("no_"):  # a switch that is off
            known = first[3:] in renamed_fields(kind)
            name = f"no_{renamed_fields(kind)[first[3:]]}" if known else first
            field = name[3:]
        else:
            name = field = renamed_fields(kind).get(first, first)
        hints = type_hints_of(kind)
        if field not in hints:
            continue
        if not rest:
            yield name, kind
            continue
        value = None if isinstance(place, type) else getattr(place, field)
        parts = [*value] if isinstance(value, tuple | list) else [value]
        parts = [part for part in parts if dataclasses.is_dataclass(part)]
        numbered = rest[0].isdigit() and len(rest) > 1
        for path, owner in _current_paths([*parts, *classes_in(hints[field])], rest[1:] if numbered else rest):
            yield f"{name}.{rest[0] + '.' if numbered else ''}{path}", owner
