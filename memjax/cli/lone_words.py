"""Lines about words of a command line that stand where they mean nothing. Importing it does not import JAX."""

import shlex
from collections.abc import Container
from pathlib import Path
from typing import Any

from memjax.settings.named_kinds import NamedKinds
from memjax.settings.named_memories import MEMORIES
from memjax.settings.named_methods import METHODS
from memjax.settings.overrides import config_names, describe_lone_word

TABLES = ("csv", "tsv", "json", "jsonl")
"""Endings of the names of files that `--tasks` reads"""

NAMED: tuple[NamedKinds[Any], ...] = (MEMORIES, METHODS)
"""Tables of names of memories and methods, each with the option that takes them"""

GLOB = "'folder/*.txt'"
"""Example of a value of `--text`, in quotes for the shell"""


def describe_word(word: str, options: Container[str], *, has_text: bool = False) -> str:
    """Returns the line about a lone word with the option of the command that fits it: that of a file by its name,
    `--config` for the name of a config, `--prompt` for a text.

    Args:
      word: Word of the command line.
      options: Options of the command.
      has_text: Whether `--text` was given, so that another file is one of those that the shell found for a glob.

    Example:
      >>> describe_word("novel.txt", ["--text", "--config"])
      'novel.txt: given without an option, allowed: --text novel.txt'
    """
    is_file = Path(word).exists() or Path(word).suffix != ""
    if has_text and is_file:
        return describe_lone_word(word, f"one path after --text, or a glob in quotes, such as --text {GLOB}")
    fits = {"--help": word == "help", "--config": word.endswith(".py") or word in config_names()}
    fits["--tasks"] = word.partition(".")[2] in TABLES
    fits["--text"] = is_file or "--config" not in options
    fits["--prompt"] = True
    proposed = [option for option in fits if fits[option] and option in options]
    value = "" if proposed[:1] == ["--help"] else f" {shlex.quote(word)}"
    return describe_lone_word(word, *(f"{option}{value}" for option in proposed[:1]))


def describe_name(text: str) -> str:
    """Describes the option that takes the name of a memory or a method with which a text ends. '' for other texts."""
    words = text.split("_")
    for first in range(len(words)):
        base, name = "_".join(words[:first]), "_".join(words[first:])
        if option := next((names.option for names in NAMED if name in names), ""):
            return f"; {name} is a name for {option} {name}" + (f", beside --variant {base}" if base else "")
    return ""
