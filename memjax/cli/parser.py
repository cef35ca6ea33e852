"""Functions that all commands share: reading of options and configs, opening of runs, and printing of results."""

import argparse
import dataclasses
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, get_args

from memjax.cli.lone_words import NAMED, describe_name, describe_word
from memjax.config import Config, Data
from memjax.settings.checks import validate
from memjax.settings.named_kinds import in_name_of_run
from memjax.settings.named_memories import with_memory_kind
from memjax.settings.named_methods import with_method
from memjax.settings.overrides import (
    OPTION,
    UsageError,
    apply_overrides,
    config_names,
    describe_lone_word,
    describe_shadowing,
    load_config,
    shipped_config,
    suggestion,
)
from memjax.settings.pointers import import_files
from memjax.settings.ranges import Encoding, describe_invalid
from memjax.settings.reading_rules import ReadingRules

DEFAULT_CONFIG = "memorizing_python"


DATA_FIELDS = (*(f"data.{field}" for field in Data.places), "lifelong.sources_dir")
"""Fields that every command on a run may change: paths of its data"""


DATA_OPTIONS = ("--data.source", "--data.neighbors-dir", "--data.encoder-states-dir", "--lifelong.sources-dir")
"""Prefixes of the overrides that name the data to read, which may then be other data than that of training"""


EVALUATION_FIELDS = ("evaluation.", "model.attention.", "task.", *DATA_FIELDS)
"""Prefixes of fields that `memjax eval` may change; of attention and task only fields that change no parameter"""


GENERATION_FIELDS = ("evaluation.cache.", *DATA_FIELDS)
"""Prefixes of fields that `memjax generate` may change"""


MODULE = "a file with your own method, memory or source, which an option, config or run names as my_module:MyClass"
"""Help of the option `--module`"""


RUN = "a run directory; its config has the fields below"
"""Help of the option `--run`"""


ARGPARSE_MESSAGES: tuple[tuple[str, Callable[..., str]], ...] = (
    (r"argument (\S+): invalid int value: (.*)", "{}: given {}, allowed: an integer".format),
    (r"argument (\S+): invalid float value: (.*)", "{}: given {}, allowed: a number".format),
    (r"argument (\S+): (given .*, allowed: .*)", "{}: {}".format),
    (r"argument (\S+): expected .*argument.*", "{}: given no value, allowed: one (see --help)".format),
    (r"argument (\S+): ignored explicit argument (.*)", "{}: given {}, allowed: no value".format),
    (
        r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)",
        lambda option, given, names: (
            f"{option}: given {given!r}, allowed: {names}"
            + suggestion(given, [name.strip(" '") for name in names.split(",")])
        ),
    ),
)
"""Pairs of a pattern of argparse's messages and a function that makes memjax's message from its groups"""


MAY_BE_EMPTY = ("--prompt", "--variant")
"""Options whose text may be empty: an empty prompt is continued, and '' is the default variant"""


def make_reader(hint: Any) -> Callable[[str], Any]:
    """Returns a function from text to a number, for the `type` of an option. It refuses numbers outside of the range in
    `hint`, a type with its range such as `Count`.

    Args:
      hint: A type with its range, such as `memjax.settings.ranges.Count`.

    Example:
      >>> from memjax.settings.ranges import Count
      >>> make_reader(Count)("3")
      3
    """
    kind = get_args(hint)[0]

    def read(text: str) -> Any:
        value = kind(text)
        if allowed := describe_invalid(value, hint):
            raise argparse.ArgumentTypeError(f"given {value}, allowed: {allowed}")
        return value

    read.__name__ = kind.__name__  # argparse says it of what is no number
    return read


class Parser(argparse.ArgumentParser):
    """An `argparse` parser of the options of a command, which raises `UsageError` for mistakes.

    Args:
      verb: Name of the verb, with its action where it has some.
      about: Description of the verb for its help.
      reads: 'config' for a config file, 'run' for the config of a run, 'runs' for runs that are no option. '' for
        neither.
      json: Content of its JSON objects, for the help of `--json`. None for a verb without `--json`.
    """

    def __init__(self, verb: str, about: str | None, reads: str = "", json: str | None = None):
        super().__init__(prog=f"memjax {verb}", description=about, allow_abbrev=False)
        self.set_defaults(run=None, config=None, variant="", own_text=None, own_tasks=None, is_data_named=False)
        self.set_defaults(from_run=None, memory_kind="", method="", module=[])
        if reads:
            self.add_argument("--module", action="append", metavar="FILE", help=MODULE)
        if reads == "run":
            self.add_argument("--run", required=True, metavar="DIR", help=RUN)
        if reads == "config":
            names = f"a config file, or one of {', '.join(config_names())} (default: {DEFAULT_CONFIG})"
            self.add_argument("--config", metavar="NAME", help=names)
            texts = (
                "your own text as the data: a file, a folder, a glob or JSON lines; without --config its size chooses "
                "the config"
            )
            self.add_argument("--text", dest="own_text", metavar="PATH", help=texts)
            tasks = (
                "your own tasks, learned one after the other: files with class, title and text (.csv, .tsv, .json); "
                "the config gives the model and the method"
            )
            self.add_argument("--tasks", dest="own_tasks", nargs="+", metavar="FILE", help=tasks)
            start = "start from the model, the sizes, the tokenizer and the parameters of this run, on other data"
            self.add_argument("--from", dest="from_run", metavar="RUN", help=start)
            variant = "name of a variant that the config file defines; `memjax configs` lists them"
            self.add_argument("--variant", metavar="NAME", help=variant)
            for names in NAMED:
                self.add_argument(names.option, metavar="NAME", help=names.help)
            encoding = "encoding of your files that are not UTF-8, such as utf-16, latin-1 or cp1252"
            self.add_argument("--encoding", metavar="NAME", help=encoding)
            skip = "leave out all of your files and rows that cannot be read, not just up to 5 %% of the bytes"
            self.add_argument("--skip", action="store_true", help=skip)
            column = "name of the column or key that holds the {} in files of --tasks and --add-task"
            self.add_argument("--text-column", metavar="NAME", help=column.format("text"))
            self.add_argument("--label-column", metavar="NAME", help=column.format("class"))
            strict = "stop with an error at a file or row that cannot be read, instead of leaving out a few"
            self.add_argument("--strict", action="store_true", help=strict)
        if json is not None:
            self.add_argument("--json", action="store_true", help=f"print one JSON object{json}")

    def error(self, message: str) -> NoReturn:
        for pattern, describe in ARGPARSE_MESSAGES:
            if match := re.fullmatch(pattern, message):
                message = describe(*match.groups())
        raise UsageError(" ".join(message.split()))

    def split(self, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parses the options that the parser knows, and returns them and the remaining arguments, such as overrides of
        the config.

        Raises:
          UsageError: A required option is missing. An unknown option before it is named first.
        """
        arguments = [self._spell(argument) for argument in arguments]
        if word := next((argument for argument in arguments if re.match(r"-h\w", argument)), ""):
            self.fail_unknown_option(word)
        self._refuse_empty(arguments)
        wants_help = bool({"-h", "--help"} & set(arguments))
        needed = [] if wants_help else [action for action in self._actions if action.required]
        for action in needed:
            action.required = False
        options, rest = self.parse_known_args(arguments)
        import_files(options.module or [])
        absent = next((action for action in needed if getattr(options, action.dest) in (None, [], "")), None)
        if absent is None:
            return options, rest
        name, option = str(absent.metavar or absent.dest), next(iter(absent.option_strings), "")
        about = str(absent.help).partition(";")[0]
        allowed = f"{option} {name}, {about}" if option else about
        alone = next((argument for argument in rest if not argument.startswith("-")), "")
        if rest and OPTION.match(rest[0]):
            self.fail_unknown_option(rest[0])
        if alone and option:
            raise UsageError(describe_lone_word(alone, f"{option} {shlex.quote(alone)} (see --help)"))
        raise UsageError(f"{option or name}: not given, allowed: {allowed}")

    def _spell(self, argument: str) -> str:
        """Returns an argument with the name of an option of the parser spelled with hyphens, such as `--top_p`."""
        name, equals, value = argument.partition("=")
        spelled = name.replace("_", "-")
        return f"{spelled}{equals}{value}" if spelled in self._option_string_actions else argument

    def _refuse_empty(self, arguments: list[str]) -> None:
        """Raises `UsageError` for an option with an empty text, such as that of an unset variable of the shell."""
        for before, argument in zip(["", *arguments], arguments, strict=False):
            name, _, value = argument.partition("=") if argument.startswith("--") else (before, "", argument)
            empty = not value and (argument.endswith("=") or not argument)
            if empty and name in self._option_string_actions and name not in MAY_BE_EMPTY:
                raise UsageError(f"{name}: given '', allowed: a text of at least one character; leave {name} out")

    def split_positional(self, arguments: list[str]) -> tuple[list[str], list[str]]:
        """Separates positional arguments from options with their values, and returns both as lists of unparsed words.

        An option that the parser does not know is taken to have one value.
        """
        alone, rest, values = list[str](), list[str](), 0
        for argument in arguments:
            if not argument.startswith("-") and not values:
                alone.append(argument)
                continue
            rest.append(argument)
            action = self._option_string_actions.get(argument)
            has_value = argument.startswith("-") and "=" not in argument and (action is None or action.nargs != 0)
            values = int(has_value)
        return alone, rest

    def fail_unknown_option(self, name: str) -> NoReturn:
        """Always raises `UsageError`, for an unknown option of this name, with a suggestion."""
        hint = suggestion(name.partition("=")[0], self._option_string_actions, "; see --help")
        alone = name.strip("-").removesuffix("s").upper()
        if any(action.metavar == alone and not action.option_strings for action in self._actions):
            hint = f", allowed: {self.prog} {alone}, without an option"
        raise UsageError(f"{name}: no such option of {self.prog}{hint}")

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """Parses arguments, which must all be options of the parser, and returns their values. Raises `UsageError` for
        any other argument.
        """
        options, rest = self.split(arguments)
        if rest and not OPTION.match(rest[0]):
            raise UsageError(describe_lone_word(rest[0]))
        if rest:
            self.fail_unknown_option(rest[0])
        return options


def parse_with_config(
    parser: Parser,
    arguments: list[str],
    only: Sequence[str] = (),
    check: Callable[[argparse.Namespace, Config], None] = lambda options, config: None,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> tuple[argparse.Namespace, Config]:
    """Reads the options of a verb, and the config (of `--config` or of the run in `--run`) with its overrides, and
    returns both. Only fields with a prefix in `only` may change, and `check(options, config)` may raise errors.

    In this order: the options, the config that they choose, its overrides, all checks, and last the line about a config
    that `--text` or `--tasks` has chosen. With `--help` the options are printed, then the fields of that config, or
    those of the default config instead of a run's.

    Args:
      parser: Options of the verb.
      arguments: Arguments of the command line after the verb.
      only: Prefixes of the fields that may be changed. Empty for all fields.
      check: Function `check(options, config)` that raises an error for options that do not fit, before any line.
      tell: Function that is called with the line about a config that `--text` or `--tasks` has chosen.

    Returns:
      The options, of which `is_data_named` says whether the overrides name the data, and the validated config.

    Raises:
      UsageError: Options that are not known or do not go together.
      ValueError: A config that is not valid.
    """
    wants_help = bool({"-h", "--help"} & set(arguments))
    if wants_help:
        arguments = _print_options(parser, arguments)
    options, overrides = parser.split(arguments)
    if overrides and not OPTION.match(overrides[0]):
        raise UsageError(describe_word(overrides[0], parser._option_string_actions, has_text=bool(options.own_text)))
    _refuse_memory(parser, options, overrides)
    try:
        chosen, line = _choose_config(options)
    except UsageError as error:
        names = [text for text in (options.config, options.variant) if text and repr(text) in str(error)]
        hint = "".join(map(describe_name, names))
        raise UsageError(re.sub(r"; did you mean .*\?$", "", str(error)) + hint if hint else str(error)) from error
    fields, others = ["--help"] if wants_help else overrides, tuple(parser._option_string_actions)
    config = apply_overrides(chosen, fields, prog=parser.prog, only=only, others=others)
    options.is_data_named = any(argument.startswith(DATA_OPTIONS) for argument in fields)
    validate(config)
    check(options, config)
    if options.own_text is not None:
        from memjax.cli.own_text import check_size

        check_size(config)
    if line:
        tell(line + describe_overrides(chosen, config))
    return options, config


def _refuse_memory(parser: Parser, options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raises `UsageError` for the options about memories that a verb does not have, and names those that it has."""
    names = {argument.partition("=")[0].replace("_", "-") for argument in overrides}
    if "--memory" in names and not options.run:
        allowed = "--memory-kind NAME, which memory; its size is a field, such as --model.attention.memory-length"
        raise UsageError(f"--memory: no such option of {parser.prog}, allowed: {allowed}")
    wrong = [table.option for table in NAMED if table.option in names]
    if wrong:
        allowed = "with memjax train alone, which has chosen it for the run"
        raise UsageError(f"{wrong[0]}: no such option of {parser.prog}, allowed: {allowed}")


def _print_options(parser: Parser, arguments: list[str]) -> list[str]:
    """Prints the help of a parser, and returns the arguments without `--help`, none of which is needed any more."""
    parser.print_help()
    print()
    for action in parser._actions:
        action.required = False
    return [argument for argument in arguments if argument not in ("-h", "--help")]


def _choose_config(options: argparse.Namespace) -> tuple[Config, str]:
    """Returns the config that options choose, before overrides, and the line about a choice by --text or --tasks."""
    chosen_by = [f"--{name}" for name, text in _exclusive_options(options).items() if text]
    if len(chosen_by) > 1:
        raise UsageError(f"{chosen_by[0]}: given with {chosen_by[1]}, allowed: one of the two")
    rules = reading_rules(options)
    if options.run is not None:
        from memjax.training.runs import load_config as load_run_config

        return load_run_config(options.run), ""
    if options.own_text is not None:
        from memjax.cli.own_text import text_config

        if options.method:
            raise UsageError(f"--method: given {options.method} with --text, allowed: with --tasks FILES")
        names = (options.config or "", options.variant)
        return text_config(options.own_text, *names, rules, memory_kind=options.memory_kind, from_run=options.from_run)
    if options.own_tasks is not None:
        from memjax.cli.own_tasks import tasks_config

        config, line = tasks_config(
            options.own_tasks,
            options.config or "",
            options.variant,
            rules,
            method=options.method,
            from_run=options.from_run,
        )
        return (_replace_by_name(config, memory_kind=options.memory_kind), line)
    if options.from_run is not None:
        from memjax.cli.from_run import config_from_run

        config, line = config_from_run(options.from_run, options.config, options.variant)
    else:
        name = shipped_config(DEFAULT_CONFIG) if options.config is None else options.config
        config, line = load_config(name, options.variant), describe_shadowing(name)
    return _replace_by_name(config, memory_kind=options.memory_kind, method=options.method), line


def _replace_by_name(config: Config, *, memory_kind: str = "", method: str = "") -> Config:
    """Returns a config with another memory and method, and a name that says which. '' for those of the config."""
    config = with_memory_kind(config, memory_kind) if memory_kind else config
    config = with_method(config, method) if method else config
    names = map(in_name_of_run, (config.name, memory_kind, method))
    return dataclasses.replace(config, name="_".join(filter(None, names)))


def describe_overrides(chosen: Config, config: Config) -> str:
    """Describes in a piece of text the fields in which a config differs from the `chosen` one before the overrides, for
    the end of a line. '' for no difference.

    Example:
      >>> import dataclasses
      >>> chosen = Config(name="a")
      >>> describe_overrides(chosen, dataclasses.replace(chosen, name="b"))
      "; changed by options: name 'b' instead of 'a'"
    """
    from memjax.training.runs import config_to_dict, flat_settings

    before, after = (flat_settings(config_to_dict(settings)) for settings in (chosen, config))
    changed = [
        f"{name} {after.get(name)!r} instead of {before.get(name)!r}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return f"; changed by options: {', '.join(changed)}" if changed else ""


def reading_rules(options: argparse.Namespace) -> ReadingRules:
    """Returns the rules for reading the files of --text, --tasks and --add-task, from the parsed options such as
    --encoding and --skip.

    Raises:
      UsageError: An option of these without such files, columns of files without classes, both --skip and --strict, or
        an unknown encoding.
    """
    columns = ("text_column", "label_column")
    names = ("encoding", "skip", "strict", *columns)
    used = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name, None)]
    if not used:
        return ReadingRules()
    if not (options.own_text or options.own_tasks or getattr(options, "add_task", None)):
        raise UsageError(f"{used[0]}: given without your own files, allowed: with --text, --tasks or --add-task")
    if options.own_text and any(getattr(options, name) for name in columns):
        raise UsageError(f"{used[-1]}: given with --text, allowed: with --tasks or --add-task (--data.source.field)")
    if options.skip and options.strict:
        raise UsageError("--strict: given with --skip, allowed: one of the two")
    if allowed := describe_invalid(options.encoding, Encoding) if options.encoding is not None else "":
        raise UsageError(f"--encoding: given {options.encoding!r}, allowed: {allowed}")
    skip = "all" if options.skip else "none" if options.strict else "few"
    text_column, label_column = (getattr(options, name) or "" for name in columns)
    return ReadingRules(options.encoding or "utf-8", skip, text_column, label_column)


def _exclusive_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options that choose a config and exclude each other."""
    of_config = {"config": options.config, "variant": options.variant} if options.run else {}
    of_config |= {"memory-kind": options.memory_kind, "method": options.method} if options.run else {}
    of_config |= {"from": options.from_run} if options.run else {}
    return {"run": options.run, **of_config, "text": options.own_text, "tasks": options.own_tasks}


def open_run(run: str, config: Config | None, *, is_data_named: bool = False, step: int | None = None) -> Any:
    """Opens the run in the directory `run`, prints its checkpoint and the data that it reads on standard error, and
    returns it. `config` replaces that of the run, `step` chooses another checkpoint than the newest.

    Args:
      run: The run directory.
      config: The configuration that is used instead of that of the run.
      is_data_named: Whether the command line names the data (`parse_with_config`), which may then be other data.
      step: The step of another checkpoint than the newest.

    Returns:
      The run (`memjax.lifelong.load_run`).

    Raises:
      ValueError: A run that is damaged, was trained on other data, or has parameters that are not finite.
    """
    import jax.numpy as jnp
    import numpy as np

    from memjax.lifelong import load_run
    from memjax.training.named_arrays import flatten
    from memjax.training.run_versions import describe_generator

    tell = lambda line: print(line, file=sys.stderr, flush=True)
    loaded = load_run(run, config, step=step, tell=tell, is_data_named=is_data_named)
    tell(f"{run}: {loaded.checkpoint}")
    if line := describe_generator(run):
        tell(line)
    for name, array in flatten(loaded.variables).items():
        if jnp.issubdtype(array.dtype, jnp.floating) and not np.isfinite(np.asarray(array)).all():
            raise ValueError(f"{run}: {name} is not finite, allowed: a run whose parameters are; train it again")
    return loaded


def data_facts(loaded: Any) -> dict[str, Any]:
    """Returns {'other_data': names} for the results of an opened run whose data is not that of its training, {}
    otherwise.
    """
    other = loaded.experiment.run_data.other
    return {"other_data": ", ".join(other)} if other else {}


def print_result(facts: Mapping[str, Any], describe: Callable[[Any], str], options: argparse.Namespace) -> int:
    """Prints the JSON values of a result as JSON (`--json`) or as the text of `describe(facts)`. Returns the exit code:
    1 where a number is not finite, else 0.

    Args:
      facts: JSON values of the result.
      describe: Function that formats the result as text.
      options: Options of the command.
    """
    print(json.dumps(facts) if options.json else describe(facts))
    return exit_code(facts)


def exit_code(facts: Mapping[str, Any]) -> int:
    """Returns 1, and prints a line on standard error, where a number in the JSON values of a result is not finite.
    Returns 0 otherwise.

    Example:
      >>> exit_code({"nats_per_token": 1.5, "targets": 12})
      0
    """
    wrong = [name for name, value in facts.items() if isinstance(value, float) and not math.isfinite(value)]
    if wrong:
        print(f"memjax: not finite: {', '.join(f'{name} is {facts[name]}' for name in wrong)}", file=sys.stderr)
    return int(bool(wrong))
