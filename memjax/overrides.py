"""From a config's name and the command line to a `Config`: values on the command line, kinds in the config file.

`--config NAME` is a path, the name of a file in ./configs, or an experiment shipped with memjax. The file's
`get_config(variant)` gives every default; `--model.attention.memory-length 64` replaces one value.
"""

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import sys
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from memjax.config import Config

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
    hint = suggestion(path.stem, names)
    raise UsageError(f"config: given {name!r}, allowed: a config file or one of {', '.join(names)}{hint}")


def load_config(name: str, variant: str = "") -> Config:
    """Calls `get_config` of the config file `name`; '' is its default variant."""
    path = find_config(name)
    spec = importlib.util.spec_from_file_location(f"memjax_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"config: given {name!r}, allowed: a Python file (NAME.py) with get_config(variant)")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else _line_in(error, path)
        raise UsageError(f"config: {path}, line {line}: {type(error).__name__}: {error}") from error
    if not hasattr(module, "get_config"):
        raise UsageError(f"config: {path} has no function get_config(variant) that returns a memjax.config.Config")
    variants = list(getattr(module, "VARIANTS", []))
    if variant and variants and variant not in variants:
        hint = suggestion(variant, variants)
        raise UsageError(f"variant: given {variant!r}, allowed for {path.name}: {', '.join(variants)}{hint}")
    config = module.get_config(variant) if variant else module.get_config()
    if not isinstance(config, Config):
        raise UsageError(f"config: get_config of {path} gave {type(config).__name__}, allowed: a memjax.config.Config")
    return config


def suggestion(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The end of a line about a name: '; did you mean X?' where something is near."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else otherwise


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
            raise UsageError(_unknown(name, config, [*others, *options]))
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
    return {int: "an integer", float: "a number", bool: "True or False", str: "a text"}.get(hint, str(hint))


def _unknown(name: str, config: Any, names: Sequence[str]) -> str:
    """The line about an option that does not exist."""
    field = name.removeprefix("--").replace("-", "_").partition(":")[0]
    part = _part(config, field.split("."))
    if part is not None:
        kind = type(part).__name__
        return (
            f"{field}: its kind ({kind}) is set in the config file or by --variant, only its values here (see --help)"
        )
    last = name.removeprefix("--").rpartition(".")[2]
    ending = [known for known in names if known.rpartition(".")[2] == last]
    hint = f"; did you mean {ending[0]}?" if ending else suggestion(name, names, "; see --help")
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
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else None
