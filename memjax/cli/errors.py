"""Turns errors into one line and an exit code."""

import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from memjax.durable_files import DiskFull, describe_full_disk
from memjax.settings.overrides import UsageError

REMEDY = "free some and run the same command again"
"""Advice about a full disk"""


class SetField(NamedTuple):
    """The field of a config that an option sets.

    Attributes:
      field: Dotted name of the field.
      words: Value of the field -> the word of the option for it, such as "0" -> "off".
    """

    field: str
    words: Mapping[str, str] = {}

    def spell(self, text: str) -> str:
        """Returns a text that says what is given and allowed, with the words of the option.

        Example:
          >>> SetField("evaluation.memory_length", {"0": "off"}).spell("given 0, allowed: None")
          'given off, allowed: None'
        """
        return re.sub(r"(?<=given )\w+|(?<=allowed: )\w+", lambda match: self.words.get(match[0], match[0]), text)


FIELDS: Mapping[str, SetField] = {
    "--memory": SetField("evaluation.memory_length", {"0": "off", "None": "none"}),
    "--chat": SetField("chat"),
}
"""Option -> the field or argument that it sets, where lines about it do not repeat the value that was typed"""


def explain(error: Exception) -> tuple[str | None, int]:
    """Returns a line of text about an error of a command, and the exit code. The line is None for an error of the
    program, and '' for a run that a signal has stopped.

    A user's mistake has exit code 2: a `UsageError`, a `ValueError` raised by memjax itself (in JAX or NumPy it is an
    error of the program), an `OSError` that names a file, and a missing module that an extra installs. A run that a
    signal stopped has 128 + signal. Everything else has 1: a full disk, too little memory, a lost process of the run,
    numbers that are not finite, and errors of the program.

    Args:
      error: Error that a command raised.

    Returns:
      The line, '' where the run has already said that it was stopped, None for an error of the program; and the code.
    """
    line = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return line, 2
    if isinstance(error, ModuleNotFoundError):
        from memjax.settings.extras import extra_of

        if extra := extra_of(error.name or ""):
            return f"{error.name} is not installed ({extra[1]}), allowed: pip install 'memjax[{extra[0]}]'", 2
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}, allowed: a path that exists", 2
    if full := describe_full_disk(error):
        name = getattr(error, "filename", None) or "standard output or an open file"
        said = str(error.strerror) if isinstance(error, DiskFull) else f"{full}; {REMEDY}"
        return f"{name}: {said}", 1
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in line:
        smaller = (
            "smaller data.batch_size, data.segment_length, evaluation.batch_size or model; `memjax plan` tells "
            "what is needed"
        )
        return f"memory: not enough ({line or 'of the machine'}), allowed: {smaller}", 1
    if isinstance(error, FloatingPointError):
        return line, 1
    if isinstance(error, ValueError):
        package = Path(__file__).parent.parent
        places = (str(package), str(package.parent / "configs"), "configs")
        frames = traceback.extract_tb(error.__traceback__)
        if frames and frames[-1].filename.startswith(places):
            return line, 2
    if "memjax.training.processes" not in sys.modules:
        return None, 1
    from memjax.training import processes
    from memjax.training.signals import StoppedBySignal
    from memjax.training.skipped import NonFiniteError

    if isinstance(error, StoppedBySignal):
        return "", error.exit_code
    if isinstance(error, NonFiniteError):
        return line, 1
    return str(error) if isinstance(error, processes.ProcessTimeout) else processes.explain_failure(error), 1


def name_as_typed(line: str, arguments: Sequence[str]) -> str:
    """Returns a line about a mistake with the name that the command line has for what is wrong: an option instead of a
    field, and a path as it was given instead of an absolute one.

    Args:
      line: Line of the form 'NAME: what is wrong'.
      arguments: Words of the command line.

    Example:
      >>> name_as_typed("model.dim: given 'x', allowed: an integer", ["--model.dim", "x"])
      "--model.dim: given 'x', allowed: an integer"
      >>> name_as_typed("path: a.txt is empty; give a file with text", ["--text", "a.txt"])
      '--text: a.txt is empty; give a file with text'
      >>> name_as_typed("evaluation.memory_length: given 0, allowed: None with MLP", ["--memory", "off"])
      '--memory: given off, allowed: none with MLP'
    """
    name, colon, rest = line.partition(": ")
    plain = lambda option: option.lstrip("-").replace("-", "_")
    for option, value in _typed_values(arguments):
        if option in FIELDS and FIELDS[option].field == name:
            return f"{option}{colon}{FIELDS[option].spell(rest)}"
        blames_value = re.match(f"(given )?'?{re.escape(value)}(?!\\w)", rest) is not None
        if option and plain(option) == plain(name) and ("." in name or blames_value or rest.startswith("no such")):
            return f"{option}{colon}{rest}"
        if option and value and name in ("path", "folder") and value.rstrip("/") in rest:
            return f"{option}{colon}{rest}"
        if value and (name + "/").startswith(f"{Path(value).absolute()}/"):
            return f"{value}{name.removeprefix(str(Path(value).absolute()))}{colon}{rest}"
    return line


def _typed_values(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the options of a command line as they were typed, with each of their values. '' where there is none."""
    option = ""
    for argument in arguments:
        if argument.startswith("--"):
            option, equals, value = argument.partition("=")
            yield option, value
            option = "" if equals else option
        else:
            yield option, argument
