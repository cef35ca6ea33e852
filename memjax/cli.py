"""The command `memjax <verb>`.

Exit codes: 0 done, 1 failed, 2 bad arguments, 128 + signal when a signal stopped a run after it was saved. A user's
mistake is one line on stderr that names the field, what was given and what is allowed; MEMJAX_DEBUG=1 adds the traceback.
Each verb imports what it needs when it runs, so that `memjax --help` is quick.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from memjax.config import Config, validate, warnings
from memjax.overrides import UsageError, apply_overrides, config_names, load_config

DEFAULT_CONFIG = "memorizing_python"
EVALUATION_FIELDS = ("evaluation.", "model.attention.", "data.source.", "data.cache_dir")
"""What `memjax eval` may change: nothing that changes the shapes of parameters or the tokens."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        import memjax

        print(f"memjax {memjax.__version__}")
        return 0
    verb, *rest = arguments
    try:
        if verb not in VERBS:
            near = difflib.get_close_matches(verb, VERBS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"verb: given {verb!r}, allowed: {', '.join(VERBS)}{hint}")
        return VERBS[verb][0](rest)
    except SystemExit as exit:  # --help has printed what it had to
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return 128 + 2
    except BrokenPipeError:  # `memjax ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        line = _mistake(error)
        if line is None or os.environ.get("MEMJAX_DEBUG"):
            traceback.print_exc()
        if line is None:
            return 1
        print(f"memjax {verb}: {line}", file=sys.stderr)
        return 2


def _train(arguments: list[str]) -> int:
    parser = _config_parser("train", "Trains the model of a config, or goes on where its run stopped.")
    config = _config(parser, arguments)
    from memjax.training.loop import train

    train(config)
    return 0


def _doctor(arguments: list[str]) -> int:
    parser = _Parser("doctor", VERBS["doctor"][1])
    parser.add_argument("--json", action="store_true", help="print the facts as one JSON object")
    options = parser.read(arguments)
    from memjax.doctor import describe, diagnose

    facts = diagnose()
    print(json.dumps(facts) if options.json else describe(facts))
    return 0


VERBS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (_train, "train a model, or resume its run"),
    "doctor": (_doctor, "versions, devices, and what is missing with the pip line that brings it"),
}


class _Parser(argparse.ArgumentParser):
    """The options of a verb; a mistake is a `UsageError`."""

    def __init__(self, verb: str, description: str):
        super().__init__(prog=f"memjax {verb}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(" ".join(message.split()))

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The options, where nothing else may be given."""
        options, rest = self.parse_known_args(arguments)
        if rest:
            near = difflib.get_close_matches(rest[0].partition("=")[0], self._option_string_actions, n=1)
            hint = f"did you mean {near[0]}?" if near else "see --help"
            raise UsageError(f"{rest[0]}: no such option of {self.prog}; {hint}")
        return options


def _config_parser(verb: str, description: str) -> _Parser:
    parser = _Parser(verb, description)
    names = f"a config file or one of {', '.join(config_names())} (default: {DEFAULT_CONFIG})"
    parser.add_argument("--config", default=DEFAULT_CONFIG, metavar="NAME", help=names)
    parser.add_argument("--variant", default="", metavar="NAME", help="a variant that the config file defines")
    return parser


def _config(parser: _Parser, arguments: list[str]) -> Config:
    """The config that the options and overrides describe, validated; its warnings go to stderr."""
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    options, rest = parser.parse_known_args([a for a in arguments if a not in ("-h", "--help")])
    config = load_config(options.config, options.variant)
    if wants_help:
        parser.print_help()
        print(f"\nFields of {options.config}{f' ({options.variant})' if options.variant else ''}:")
        return apply_overrides(config, ["--help"], prog=parser.prog)
    config = apply_overrides(config, rest, prog=parser.prog, others=tuple(parser._option_string_actions))
    validate(config)
    for line in warnings(config):
        print(f"warning: {line}", file=sys.stderr)
    return config


def _mistake(error: Exception) -> str | None:
    """The line about a user's mistake; None for an error of the program.

    A `ValueError` counts where memjax itself raised it (in JAX or NumPy it is a fault of the program), an `OSError` where
    it names a file, a missing module where an extra brings it.
    """
    line = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return line
    if isinstance(error, ModuleNotFoundError):
        from memjax.doctor import extra_of

        extra = extra_of(error.name or "")
        return extra and f"{error.name} is not installed ({extra[1]}), allowed: pip install 'memjax[{extra[0]}]'"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename is not None else None
    if isinstance(error, ValueError):
        frames = traceback.extract_tb(error.__traceback__)
        own = (
            str(Path(__file__).parent),
            *(str(folder) for folder in (Path("configs"), Path(__file__).parent.parent / "configs")),
        )
        return line if frames and frames[-1].filename.startswith(own) else None
    return None


def _help() -> str:
    verbs = "\n".join(f"  {name:9} {summary}" for name, (_, summary) in VERBS.items())
    return (
        "usage: memjax <verb> [--option value] [--field.of.the.config value]\n\n"
        "Memory for Transformers in JAX.\n\n"
        f"{verbs}\n\n"
        "`memjax <verb> --help` lists the options of a verb and every field of the config."
    )


if __name__ == "__main__":
    sys.exit(main())
