"""From a config's name and the command line to a `Config`: values on the command line, kinds in the config file.

`--config NAME` is a path, the name of a file in ./configs, or an experiment shipped with memjax. The file's
`get_config(variant)` gives every default; `--model.attention.memory-length 64` replaces one value.
"""

import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import io
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import memjax.config
from memjax.config import Config
from memjax.settings.compatibility import describe_renamed_option
from memjax.settings.ranges import PLAIN
from memjax.settings.relations import check_fields

T = TypeVar("T")


class UsageError(ValueError):
    """A user's mistake on the command line: shown as one line, exit code 2."""


def config_folders() -> list[Path]:
    """Where `--config NAME` looks for NAME.py: the working directory's `configs`, then what is shipped with memjax."""
    package = Path(__file__).parent
    return [folder for folder in (Path("configs"), package / "configs", package.parent / "configs") if folder.is_dir()]


def config_names() -> list[str]:
    """Names that `--config` knows, without the folders."""
    return sorted({file.stem for folder in config_folders() for file in folder.glob("*.py") if file.stem[0] != "_"})


def find_config(name: str) -> Path:
    """The file that `name` means."""
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == "" and len(path.parts) == 1:
        for folder in config_folders():
            if (folder / f"{name}.py").is_file():
                return folder / f"{name}.py"
    names = config_names()
    hint = suggestion(path.stem, [*names, *(file.name for file in sorted(Path().glob("*.py")))])
    raise UsageError(f"config: given {name!r}, allowed: a config file or one of {', '.join(names)}{hint}")


def describe_config(name: str) -> tuple[str, dict[str, str]]:
    """The first line of a config file's docstring, and its variants with a line each."""
    module = _load_module(name, find_config(name))
    about = (module.__doc__ or "").strip().partition("\n")[0]
    variants = getattr(module, "VARIANTS", {})
    return about, {str(variant): str(variants[variant]) if isinstance(variants, dict) else "" for variant in variants}


def _load_module(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"memjax_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"config: given {name!r}, allowed: a Python file (NAME.py) with get_config(variant)")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _mistakes_in(path):
        spec.loader.exec_module(module)
    return module


def load_config(name: str, variant: str = "") -> Config:
    """Calls `get_config` of the config file `name`; '' is its default variant."""
    path = find_config(name)
    module = _load_module(name, path)
    make = getattr(module, "get_config", None)
    if not callable(make):
        raise UsageError(f"config: {path} has no function get_config(variant) that returns a memjax.config.Config")
    variants = list(getattr(module, "VARIANTS", []))
    if variant and variants and variant not in variants:
        hint = suggestion(variant, variants)
        raise UsageError(f"variant: given {variant!r}, allowed for {path.name}: {', '.join(variants)}{hint}")
    _check_signature(make, path, variant)
    with _mistakes_in(path):
        config = make(variant) if variant else make()
    where = f"config: {path}, line {make.__code__.co_firstlineno}" if hasattr(make, "__code__") else f"config: {path}"
    if not isinstance(config, Config):
        given = type(config).__name__
        raise UsageError(f"{where}: get_config gave {given}, allowed: a memjax.config.Config")
    try:
        check_fields(config)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return config


@contextlib.contextmanager
def _mistakes_in(path: Path) -> Iterator[None]:
    """Makes one line, with the line of the file, of whatever a config file raises."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"config: {error.filename or path}: {error.strerror or error}") from error
    except (Exception, SystemExit) as error:
        line = error.lineno if isinstance(error, SyntaxError) else _line_in(error, path)
        raise UsageError(f"config: {path}{f', line {line}' if line else ''}: {_describe_error(error)}") from error


def _describe_error(error: BaseException) -> str:
    """An error of a config file in words, with the name that may have been meant."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    if re.match(r"\w+: \w+ is now ", text):  # a name of an earlier version
        return text
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    patterns = (
        r"^(?P<kind>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'",
        r"^'(?P<kind>\w+)' object has no attribute '(?P<name>\w+)'",
        r"^(?P<kind>)name '(?P<name>\w+)' is not defined",
        r"^(?P<kind>)cannot import name '(?P<name>\w+)' from 'memjax.config'",
    )
    found = next(filter(None, (re.search(pattern, text) for pattern in patterns)), None)
    if found is None:
        return told
    kind = getattr(memjax.config, found["kind"], None) if found["kind"] else None
    if not dataclasses.is_dataclass(kind):
        return f"{type(error).__name__}: {found[0]}" + suggestion(found["name"], dir(memjax.config))
    names = [field.name for field in dataclasses.fields(kind)]
    return f"{found['kind']} has no field {found['name']!r}" + suggestion(
        found["name"], names, f", allowed: {', '.join(names)}"
    )


def _check_signature(make: Callable[..., Any], path: Path, variant: str) -> None:
    """Refuses a `get_config` that cannot be called with a variant, or without one."""
    needed, shown = ([variant] if variant else []), inspect.signature(make)
    try:
        shown.bind(*needed)
    except TypeError:
        if variant and not shown.parameters:
            raise UsageError(
                f"variant: given {variant!r}, allowed for {path.name}: none (it has one variant)"
            ) from None
        line = f", line {make.__code__.co_firstlineno}" if hasattr(make, "__code__") else ""
        raise UsageError(
            f"config: {path}{line}: given get_config{shown}, allowed: get_config(variant=DEFAULT)"
        ) from None


def suggestion(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The end of a line about a name: '; did you mean X?' where names end with it, begin with it or are near.

    Example:
      >>> suggestion("--temp", ["--help", "--temperature"]), suggestion("trian", ["train", "eval"])
      ('; did you mean --temperature?', '; did you mean train?')
    """
    near = _near(name, list(names))
    return f"; did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?" if near else otherwise


def _near(name: str, names: list[str]) -> list[str]:
    """At most three of the names that may be meant, by their last parts as well."""
    bare = lambda name: name.lstrip("-").lower()
    last = lambda name: bare(name).rpartition(".")[2]
    for found in (
        [known for known in names if last(known) == last(name)],
        [known for known in names if len(bare(name)) > 1 and bare(known).startswith(bare(name))],
        [known for known in names if len(last(name)) > 2 and last(known).startswith(last(name))],
    ):
        if found:
            return found[:3]
    for part, least in ((bare, 0.6), (last, 0.75))[: 1 if "." in name else 2]:
        known = {part(known): known for known in reversed(names)}
        if near := difflib.get_close_matches(part(name), known, n=1, cutoff=least):
            return [known[near[0]]]
    return []


def apply_overrides(
    config: T, arguments: Sequence[str], *, prog: str = "memjax", only: Sequence[str] = (), others: Sequence[str] = ()
) -> T:
    """A new config with values from the command line.

    Args:
      config: a config instance whose values are the defaults and whose types are the kinds.
      arguments: `--field.name value` or `--field.name=value`; `_` and `-` are the same.
      prog: shown in `--help`.
      only: allowed beginnings of field names; () = all fields.
      others: options besides the fields, for suggestions.

    Raises:
      UsageError: an unknown field (with a suggestion), a missing value or one of the wrong type; one line.
    """
    options = dict(_options(config))
    given = _split(arguments)
    for name, _ in given:
        if name in ("--help", "-h"):
            continue
        if name not in options:
            if line := describe_renamed_option(config, name.removeprefix("--").replace("-", "_")):
                raise UsageError(line)
            fields = [name for name, (field, _) in options.items() if not only or field.startswith(tuple(only))]
            raise UsageError(_unknown(name, config, [*others, *fields]))
        field, _ = options[name]
        if only and not field.startswith(tuple(only)):
            raise UsageError(f"{field}: cannot be changed here, allowed: {', '.join(f'{start}*' for start in only)}")
    try:
        return _parse(config, arguments, prog)
    except UsageError:
        for name, values in given:
            try:
                _parse(config, [name, *values], prog)
            except UsageError:
                field, allowed = options[name]
                value = repr(" ".join(values)) if values else "no value"
                raise UsageError(f"{field}: given {value}, allowed: {allowed}") from None
        raise


def find_field(config: Any, name: str, prefer: str = "") -> str:
    """The dotted name of the field that `name` means, in full or by its last part; `-` and `_` are the same.

    Args:
      config: a config instance.
      name: `model.attention.memory_length`, or `memory_length` for the first field of that name.
      prefer: a beginning of dotted names that comes before the others.

    Raises:
      UsageError: no such field, with a suggestion.

    Example:
      >>> find_field(Config(), "segment-length"), find_field(Config(), "rows", prefer="evaluation.")
      ('data.segment_length', 'evaluation.rows')
    """
    fields = [field for _, (field, _) in _options(config)]
    wanted = name.strip().removeprefix("--").replace("-", "_")
    found = [field for field in fields if field == wanted or field.endswith(f".{wanted}")]
    if not found:
        if line := describe_renamed_option(config, wanted):
            raise UsageError(line)
        raise UsageError(_unknown(_option(wanted), config, [_option(field) for field in fields]))
    return min(found, key=lambda field: (field != wanted, not (prefer and field.startswith(prefer))))


def _parse(config: T, arguments: Sequence[str], prog: str) -> T:
    """One call of tyro, whose boxes go nowhere."""
    import tyro

    boxes, kinds = io.StringIO(), (tyro.conf.AvoidSubcommands,)
    try:
        with contextlib.redirect_stderr(boxes):
            return tyro.cli(type(config), default=config, args=list(arguments), prog=prog, config=kinds)
    except SystemExit as exit:
        if exit.code in (0, None):  # --help
            raise
        raise UsageError(" ".join(boxes.getvalue().translate({ord(c): " " for c in "│╭╮╰╯─\n"}).split())) from None


def _split(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The options in order, each with its values; names as tyro spells them."""
    groups: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("--") or argument == "-h":
            name, equals, value = argument.partition("=")
            groups.append((name.replace("_", "-"), [value] if equals else []))
        elif not groups:
            raise UsageError(f"{argument!r} stands alone, allowed: --field value (see --help)")
        else:
            groups[-1][1].append(argument)
    return groups


def _option(field: str) -> str:
    """The name of a field as an option."""
    return f"--{field}".replace("_", "-")


def _options(config: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """Every option tyro makes of a config, with the dotted name of its field and the type in words."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, dotted = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _options(value, f"{dotted}.")
            continue
        told = dotted, _describe(hints[field.name])
        yield _option(dotted), told
        if hints[field.name] is bool:
            yield _option(f"{prefix}no-{field.name}"), told


def _describe(hint: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin is tuple:
        return _describe(arguments[0]).removeprefix("an ").removeprefix("a ") + "s, separated by spaces"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("None" if a is type(None) else _describe(a) for a in arguments)
    return PLAIN[hint][0] if hint in PLAIN else str(hint)


def _unknown(name: str, config: Any, names: Sequence[str]) -> str:
    """The line about an option that does not exist."""
    field = name.removeprefix("--").replace("-", "_").partition(":")[0]
    part = _part(config, field.split("."))
    if part is not None:
        kind = type(part).__name__
        return (
            f"{field}: its kind ({kind}) is set in the config file or by --variant, only its values here (see --help)"
        )
    hint = suggestion(name, names, "; see --help")
    return f"{name}: no such field here{hint}{_other_kind(field, config)}"


def _part(config: Any, steps: Iterable[str]) -> Any:
    """What stands at a path, None where nothing does."""
    for step in steps:
        config = getattr(config, step, None)
    return config


def _other_kind(field: str, config: Any) -> str:
    """Says which other kind of the same part has the field, if one has."""
    *steps, last = field.split(".")
    part = _part(config, steps)
    if not steps or not dataclasses.is_dataclass(part):
        return ""
    kinds = typing.get_args(typing.get_type_hints(type(_part(config, steps[:-1])))[steps[-1]])
    having = [kind.__name__ for kind in kinds if last in getattr(kind, "__dataclass_fields__", ())]
    if not having:
        return ""
    have = "has" if len(having) == 1 else "have"
    return f" ({', '.join(having)} {have} it; {'.'.join(steps)} of this config is {type(part).__name__})"


def _line_in(error: BaseException, path: Path) -> int | None:
    """The line of `path` where the error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.realpath(frame.filename) == os.path.realpath(path)]
    return lines[-1] if lines else None
