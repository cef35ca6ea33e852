"""Loads config files and changes their values by options of the command line.

`--config NAME` is a path, the name of a file in ./configs, or a config shipped with memjax. The file's
`get_config(variant)` sets the kinds and all values; an option such as `--model.attention.memory-length 64` replaces one
value.
"""

import ast
import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import io
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import memjax.config
from memjax.config import Config
from memjax.settings.checks import check_fields
from memjax.settings.compatibility import describe_renamed_option
from memjax.settings.pointers import CONFIG_PREFIX, OWN_FOLDERS, line_in, modules_beside
from memjax.settings.ranges import PLAIN

T = TypeVar("T")

# A name without a tool is a plain word for the same thing.
HABITUAL_OPTIONS = {
    "--prompt": ("text", "input"),
    "--prompt-file": ("file", "input-file"),
    "--text": (
        "data",  # word_language_model of PyTorch's examples
        "data-path",  # Megatron-LM
        "dataset",  # nanoGPT
        "train-file",  # run_clm.py of transformers
        *("file", "files", "corpus", "input", "train-data"),
    ),
    "--lifelong.epochs": (
        "epochs",  # word_language_model of PyTorch's examples
        "n-epochs",  # Mammoth
        "num-train-epochs",  # TrainingArguments of transformers
        "num-epochs",
    ),
    "--training.steps": (
        *("epochs", "n-epochs", "num-train-epochs", "num-epochs"),  # as above, for a run of one task
        "max-steps",  # TrainingArguments of transformers
        "max-iters",  # nanoGPT
        "train-iters",  # Megatron-LM
        *("num-steps", "iterations", "iters"),
    ),
    "--training.schedule.learning-rate": (
        "lr",  # optimisers of PyTorch, fairseq, Megatron-LM, Mammoth
        "learning-rate",  # TrainingArguments of transformers, nanoGPT
    ),
    "--data.batch-size": (
        "batch-size",  # word_language_model of PyTorch's examples, nanoGPT, Mammoth
        "per-device-train-batch-size",  # TrainingArguments of transformers
        "bs",
    ),
    "--data.segment-length": (
        "block-size",  # run_clm.py of transformers, nanoGPT
        "max-seq-length",  # run_mlm.py of transformers
        "seq-length",  # Megatron-LM
        "context-length",  # SGLang
        "max-length",  # tokenizers of transformers
        *("seq-len", "sequence-length"),
    ),
    "--training.seed": ("seed",),  # TrainingArguments of transformers, fairseq, Megatron-LM, Mammoth
    "--workdir": (
        "output-dir",  # TrainingArguments of transformers
        "out-dir",  # nanoGPT
        "save-dir",  # fairseq
        "logdir",  # TensorBoard
        *("output", "out"),
    ),
    "--max-tokens": (
        "max-new-tokens",  # `generate` of transformers, nanoGPT
        "length",  # run_generation.py of transformers
        "num-tokens",
    ),
    "--evaluation.split": ("split",),  # `load_dataset` of Hugging Face's datasets, `load` of TFDS
    "--data.source.path": ("text", "file", "data"),
}
"""Option of memjax -> names that other tools have for it, which are proposed before similar names"""

OPTION = re.compile(r"--\w|-(?!inf\b|nan\b)[a-zA-Z]|[–—]")
"""Pattern of a word of the command line that is meant as an option: with hyphens, or with the dash of a text program"""


class UsageError(ValueError):
    """A user's mistake on the command line, a `ValueError` that is reported in one line with exit code 2."""


def config_folders() -> list[Path]:
    """Returns the paths of the folders in which `--config NAME` looks for NAME.py: ./configs, then those shipped with
    memjax.
    """
    shipped = _shipped_folders()
    current = Path("configs")
    return [current, *shipped] if current.is_dir() and current.resolve() not in shipped else shipped


def _shipped_folders() -> list[Path]:
    """Returns the folders of the configs shipped with memjax: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    return [folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()]


def shipped_config(name: str) -> str:
    """Returns the path of the file of a config that is shipped with memjax, whatever the current folder has under its
    name.
    """
    return str(next(file for folder in _shipped_folders() if (file := folder / f"{name}.py").is_file()))


def describe_shadowing(name: str) -> str:
    """Describes in one line that `--config NAME` takes a file of the current folder, and not the config of that name
    which is shipped with memjax. '' if it does not.
    """
    shipped = _shipped_folders()
    files = [folder / f"{name}.py" for folder in config_folders() if (folder / f"{name}.py").is_file()]
    if len(files) < 2 or Path(name).is_file() or files[0].resolve().parent in shipped:
        return ""
    return f"config: {files[0]} of this folder is used, not the {name} that is shipped with memjax ({files[1]})"


def config_names() -> list[str]:
    """Returns a sorted list of the names that `--config` takes, those of the files in `config_folders()`."""
    return sorted({file.stem for folder in config_folders() for file in folder.glob("*.py") if file.stem[0] != "_"})


def find_config(name: str) -> Path:
    """Returns the path of the file of a config, whose `name` is one of `config_names()` or itself a path. Raises
    `UsageError` if there is none.

    Args:
      name: Path of a file, or a name of `config_names()`.

    Raises:
      UsageError: There is no such config.
    """
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
    """Returns the first line of the docstring of the config file with this name or path, and a dictionary from its
    variants to their descriptions. A file that is not shipped with memjax is read and not run.
    """
    path = find_config(name)
    if path.resolve().parent in _shipped_folders():
        module = _load_module(name, path)
        text, variants = module.__doc__ or "", getattr(module, "VARIANTS", {})
    else:
        text, variants = _read_facts(path)
    about = text.strip().partition("\n")[0]
    return about, {str(variant): str(variants[variant]) if isinstance(variants, dict) else "" for variant in variants}


def _read_facts(path: Path) -> tuple[str, Any]:
    """Reads the docstring and the `VARIANTS` of a config file of the user, without running it. Variants that are not
    written out in it are left out.
    """
    with _mistakes_in(path):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["VARIANTS"]:
            with contextlib.suppress(ValueError):
                return ast.get_docstring(tree) or "", ast.literal_eval(node.value)
    return ast.get_docstring(tree) or "", {}


def _load_module(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"{CONFIG_PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"config: given {name!r}, allowed: a Python file (NAME.py) with get_config(variant)")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    OWN_FOLDERS.append(path.resolve().parent)
    with _mistakes_in(path), modules_beside(path):
        spec.loader.exec_module(module)
    return module


def load_config(name: str, variant: str = "") -> Config:
    """Runs the config file with this name or path, and returns the `Config` that its function `get_config` makes for a
    variant. '' is the default variant.

    Args:
      name: Path or name of a config file.
      variant: Argument of its function `get_config`. '' for the default variant.

    Raises:
      UsageError: There is no such file or variant, or the file does not return a config with valid fields.
    """
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
        kind = type(config).__name__
        raise UsageError(f"{where}: get_config gave {kind}, allowed: a memjax.config.Config")
    try:
        check_fields(config)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return config


@contextlib.contextmanager
def _mistakes_in(path: Path) -> Iterator[None]:
    """Turns any error of a config file into a `UsageError` of one line, with the line number in the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"config: {error.filename or path}: {error.strerror or error}") from error
    except (Exception, SystemExit) as error:
        line = line_in(error, path)
        raise UsageError(f"config: {path}{f', line {line}' if line else ''}: {_describe_error(error)}") from error


def _describe_error(error: BaseException) -> str:
    """Describes an error of a config file in one line, and suggests the name that may have been meant."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    if re.match(r"\w+: \w+ is now ", text):  # a name of an earlier version
        return text
    description = f"{type(error).__name__}: {text}" if text else type(error).__name__
    patterns = (
        r"^(?P<kind>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'",
        r"^'(?P<kind>\w+)' object has no attribute '(?P<name>\w+)'",
        r"^(?P<kind>)name '(?P<name>\w+)' is not defined",
        r"^(?P<kind>)cannot import name '(?P<name>\w+)' from 'memjax.config'",
    )
    match = next(filter(None, (re.search(pattern, text) for pattern in patterns)), None)
    if match is None:
        return description
    kind = getattr(memjax.config, match["kind"], None) if match["kind"] else None
    if not dataclasses.is_dataclass(kind):
        return f"{type(error).__name__}: {match[0]}" + suggestion(match["name"], dir(memjax.config))
    names = [field.name for field in dataclasses.fields(kind)]
    return f"{match['kind']} has no field {match['name']!r}" + suggestion(
        match["name"], names, f", allowed: {', '.join(names)}"
    )


def _check_signature(make: Callable[..., Any], path: Path, variant: str) -> None:
    """Raises `UsageError` for a `get_config` that cannot be called with the variant, or without one."""
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
    """Returns the end of an error line about an unknown name: '; did you mean X?' for up to three similar names of
    `names`. The text `otherwise` where none is similar.

    Args:
      name: Unknown name.
      names: Known names.
      otherwise: Text to return where no name is similar.

    Example:
      >>> suggestion("--temp", ["--help", "--temperature"]), suggestion("trian", ["train", "eval"])
      ('; did you mean --temperature?', '; did you mean train?')
      >>> suggestion("--lr", ["--name", "--training.schedule.learning-rate"])
      '; did you mean --training.schedule.learning-rate?'
      >>> suggestion("--per_device_train_batch_size", ["--data.batch-size", "--evaluation.batch-size"])
      '; did you mean --data.batch-size?'
    """
    names = list(names)
    habit = name.lstrip("-").replace("_", "-")
    usual = [option for option, habits in HABITUAL_OPTIONS.items() if habit in habits and option in names]
    near = usual[:1] or _near(name, names)
    return f"; did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?" if near else otherwise


def _near(name: str, names: list[str]) -> list[str]:
    """Returns at most three of the names that are similar to `name`, in full or in their last parts."""
    bare = lambda name: name.lstrip("-–—").lower()
    last = lambda name: bare(name).rpartition(".")[2]
    for matches in (
        [known for known in names if last(known) == last(name)],
        [known for known in names if len(bare(name)) > 1 and bare(known).startswith(bare(name))],
        [known for known in names if len(last(name)) > 2 and last(known).startswith(last(name))],
    ):
        if matches:
            return matches[:3]
    for part, least in ((bare, 0.6), (last, 0.75))[: 1 if "." in name else 2]:
        known = {part(known): known for known in reversed(names)}
        if near := difflib.get_close_matches(part(name), known, n=1, cutoff=least):
            return [known[near[0]]]
    return []


def apply_overrides(
    config: T, arguments: Sequence[str], *, prog: str = "memjax", only: Sequence[str] = (), others: Sequence[str] = ()
) -> T:
    """Returns a new config with the values of options such as `--data.batch_size 4`. Only fields with a prefix in
    `only` may change. `others` are names of further options, for suggestions in errors.

    Args:
      config: Config with the values of all fields that the command line does not change.
      arguments: Options `--field.name value` or `--field.name=value`, with `_` or `-` between words.
      prog: Name of the program in `--help`.
      only: Prefixes of the fields that may be changed. () for all fields.
      others: Options besides the fields, for suggestions.

    Raises:
      UsageError: An unknown field, a missing value or one of the wrong type.
    """
    options = dict(_options(config))
    overrides = _split(arguments)
    for name, _ in overrides:
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
        for name, values in overrides:
            try:
                _parse(config, [name, *values], prog)
            except UsageError:
                field, allowed = options[name]
                value = repr(" ".join(values)) if values else "no value"
                raise UsageError(f"{field}: given {value}, allowed: {allowed}") from None
        raise


def find_field(config: Any, name: str, prefer: str = "") -> str:
    """Returns the dotted name of a field of a config, which is given in full or by its last part. Of several, the first
    whose name has the prefix `prefer` wins.

    Args:
      config: A config.
      name: A name such as `model.attention.memory_length`, or `memory_length` for the first field of that name, with
        `_` or `-` between words.
      prefer: Prefix of the dotted names that come before others.

    Raises:
      UsageError: There is no such field.

    Example:
      >>> find_field(Config(), "segment-length"), find_field(Config(), "batch-size", prefer="evaluation.")
      ('data.segment_length', 'evaluation.batch_size')
    """
    fields = [field for _, (field, _) in _options(config)]
    wanted = name.strip().removeprefix("--").replace("-", "_")
    matches = [field for field in fields if field == wanted or field.endswith(f".{wanted}")]
    if not matches:
        if line := describe_renamed_option(config, wanted):
            raise UsageError(line)
        raise UsageError(_unknown(_option(wanted), config, [_option(field) for field in fields]))
    return min(matches, key=lambda field: (field != wanted, not (prefer and field.startswith(prefer))))


def _parse(config: T, arguments: Sequence[str], prog: str) -> T:
    """Parses arguments by tyro, and raises `UsageError` with its message instead of printing it."""
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
    """Returns the options in their order, each with its values. Names are spelled as tyro does."""
    groups: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if OPTION.match(argument):
            name, equals, value = argument.partition("=")
            groups.append((name.replace("_", "-"), [value] if equals else []))
        elif not groups:
            raise UsageError(describe_lone_word(argument))
        else:
            groups[-1][1].append(argument)
    return groups


def describe_lone_word(word: str, allowed: str = "--option value (see --help)") -> str:
    """Returns the line about a word of the command line that is no option and no value of one.

    Example:
      >>> describe_lone_word("novel.txt", "--text novel.txt")
      'novel.txt: given without an option, allowed: --text novel.txt'
    """
    return f"{shlex.quote(word)}: given without an option, allowed: {allowed}"


def _option(field: str) -> str:
    """Returns the option of a field."""
    return f"--{field}".replace("_", "-")


def _options(config: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields every option of a config, with the dotted name of its field and the description of its type."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, dotted = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _options(value, f"{dotted}.")
            continue
        entry = dotted, _describe(hints[field.name])
        yield _option(dotted), entry
        if hints[field.name] is bool:
            yield _option(f"{prefix}no-{field.name}"), entry


def _describe(hint: Any) -> str:
    """Describes a type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin is tuple:
        return _describe(arguments[0]).removeprefix("an ").removeprefix("a ") + "s, separated by spaces"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("None" if a is type(None) else _describe(a) for a in arguments)
    return PLAIN[hint][0] if hint in PLAIN else str(hint)


def _unknown(name: str, config: Any, names: Sequence[str]) -> str:
    """Returns the line about an option that does not exist."""
    field = name.removeprefix("--").replace("-", "_").partition(":")[0]
    part, hint = _part(config, field.split(".")), suggestion(name, names, "; see --help")
    if part is not None and "." in field:
        kind, value = type(part).__name__, next((option for option in names if option.startswith(f"{name}.")), "")
        of_values = f"its values{f', such as {value}' if value else ''} (see --help)"
        return f"{field}: its kind ({kind}) is set in the config file or by --variant, allowed: {of_values}"
    return f"{name}: no such field here{hint}{_other_kind(field, config)}"


def _part(config: Any, steps: Iterable[str]) -> Any:
    """Returns the settings or the value at a path. None where there is none."""
    for step in steps:
        config = getattr(config, step, None)
    return config


def _other_kind(field: str, config: Any) -> str:
    """Describes which other kinds of the same part have a field. '' where none has."""
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
