"""What the verbs share: options, the config of a file or of a run, and what is printed."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from memjax.config import Config, Data
from memjax.overrides import UsageError, apply_overrides, config_names, load_config, suggestion
from memjax.settings.relations import validate

DEFAULT_CONFIG = "memorizing_python"


_PLACES = tuple(f"data.{field}" for field in Data.places)


EVALUATION_FIELDS = ("evaluation.", "model.attention.", "task.", *_PLACES)
"""What `memjax eval` may change; of the attention and the task only what changes no parameter."""


GENERATION_FIELDS = ("evaluation.cache.", *_PLACES)
"""What `memjax generate` may change."""


RUN = "a run directory; its config has the fields below"
"""What `--run` is."""


class Parser(argparse.ArgumentParser):
    """The options of a verb, or of one of its actions; a mistake is a `UsageError`.

    Args:
      verb: which, with its action where it has some.
      about: what it does, for its help.
      reads: 'config' for a config file, 'run' for the config of a run.
      json: what its JSON objects are, where it prints such; None = it does not.
    """

    def __init__(self, verb: str, about: str | None, reads: str = "", json: str | None = None):
        super().__init__(prog=f"memjax {verb}", description=about, allow_abbrev=False)
        self.set_defaults(run=None, config=DEFAULT_CONFIG, variant="")
        if reads == "run":
            self.add_argument("--run", required=True, metavar="DIR", help=RUN)
        if reads == "config":
            names = f"a config file or one of {', '.join(config_names())} (default: {DEFAULT_CONFIG})"
            self.add_argument("--config", metavar="NAME", help=names)
            self.add_argument("--variant", metavar="NAME", help="a variant that the config file defines")
        if json is not None:
            self.add_argument("--json", action="store_true", help=f"print one JSON object{json}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(" ".join(message.split()))

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The options, where nothing else may be given."""
        options, rest = self.parse_known_args(arguments)
        if rest:
            hint = suggestion(rest[0].partition("=")[0], self._option_string_actions, "; see --help")
            raise UsageError(f"{rest[0]}: no such option of {self.prog}{hint}")
        return options


def with_config(parser: Parser, arguments: list[str], only: Sequence[str] = ()) -> tuple[argparse.Namespace, Config]:
    """The options, and the config (of `--config` or of the run in `--run`) with its overrides, validated.

    `--help` lists the fields after the options: those of `--config`, or of the default config instead of a run's.
    """
    wants_help = bool({"-h", "--help"} & set(arguments))
    if wants_help:
        parser.print_help()
        print()
        arguments = [argument for argument in arguments if argument not in ("-h", "--help")]
        for action in parser._actions:
            action.required = False
    options, rest = parser.parse_known_args(arguments)
    if options.run:
        from memjax.training.runs import load_config as load_run_config

        config = load_run_config(options.run)
    else:
        config = load_config(options.config, options.variant)
    rest, others = ["--help"] if wants_help else rest, tuple(parser._option_string_actions)
    config = apply_overrides(config, rest, prog=parser.prog, only=only, others=others)
    validate(config)
    return options, config


def tell(facts: Mapping[str, Any], describe: Callable[[Any], str], options: argparse.Namespace) -> int:
    """Prints facts as `--json` or in words, and returns the exit code."""
    print(json.dumps(facts) if options.json else describe(facts))
    return 0
