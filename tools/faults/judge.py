"""Says whether a command did the right thing with a damaged file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from tools.verbs import Finished

__all__ = ["FAULTS", "VERDICTS", "Observation", "judge_damage", "judge_failure", "observe"]

VERDICTS = ("right", "said", "refused")
"""'right': the result is that of intact files. 'said': a line names the file, and the result is what can be had without
it. 'refused': the command ends with one line that names the file."""
FAULTS = ("silent", "unnamed", "traceback", "wrong type", "hang")
"""'silent': another result without a line that names the file. 'unnamed': a refusal in a line that does not name it, or
without a line. 'traceback': an error that nobody explained. 'wrong type': a reader returns another type than it
declares. 'hang': it never ends."""


class Observation(NamedTuple):
    """A command that has ended, with its result.

    Attributes:
      code: Exit code of the command.
      lines: Lines that the command wrote to standard error.
      result: Result of the command as JSON values. None where it has none.
    """

    code: int
    lines: tuple[str, ...]
    result: Any = None


def observe(finished: Finished, result: Any) -> Observation:
    """Returns the observation of a finished command with its result."""
    return Observation(finished.code, tuple(finished.err.splitlines()), result)


def judge_damage(file: str, expected: Observation, observed: Observation) -> str:
    """Judges a command that has read a damaged file.

    Args:
      file: Path of the file in the folder of the runs, such as 'runs/half/config.json'.
      expected: Observation of the same command with intact files.
      observed: Observation with the damaged file.

    Returns:
      One of `VERDICTS` or `FAULTS`.

    Example:
      >>> judge_damage("a/b.json", Observation(0, (), 1), Observation(0, ("b.json is damaged",), 2))
      'said'
    """
    if has_traceback(observed.lines):
        return "traceback"
    if observed.code:
        is_named = names_file(error_lines(observed.lines), file)
        return "refused" if observed.code in (1, 2) and is_named else "unnamed"
    known = {_without_numbers(line) for line in expected.lines}
    new = [line for line in observed.lines if _without_numbers(line) not in known]
    if names_file(new, file):
        return "said"
    return "right" if observed.result == expected.result else "silent"


def judge_failure(expected: Observation, failed: Observation, repeated: Observation) -> str:
    """Judges a command that was interrupted, and then given again.

    Args:
      expected: Observation of the command without an interruption.
      failed: Observation of the interrupted one.
      repeated: Observation of the same command afterwards.

    Returns:
      'right': The interruption had no effect. 'refused': The interrupted command ended with one line, and the repeated
      one has the right result. Or one of `FAULTS`.
    """
    if has_traceback((*failed.lines, *repeated.lines)):
        return "traceback"
    if failed.code and not error_lines(failed.lines):
        return "unnamed"
    if repeated.code or repeated.result != expected.result:
        return "silent"
    return "refused" if failed.code else "right"


def has_traceback(lines: Iterable[str]) -> bool:
    """Returns whether there is a traceback among lines, also one that Python could only print."""
    return any("Traceback (most recent call last)" in line for line in lines)


def error_lines(lines: Iterable[str]) -> list[str]:
    """Returns the lines in which a command says what is wrong, 'memjax VERB: ...'."""
    return [line for line in lines if re.match(r"memjax( [a-z]+)?: ", line)]


def names_file(lines: Iterable[str], file: str) -> bool:
    """Returns whether a line names a file, or a folder that it is in, but for that of its run. A checkpoint may be
    named by its step.

    Example:
      >>> names_file(["runs/a: checkpoint 4 is damaged"], "runs/a/checkpoints/00000004/manifest/metadata")
      True
      >>> names_file(["runs/a: damaged"], "runs/a/config.json")
      False
    """
    path = PurePosixPath(file)
    root = 3 if path.parts[0] == "runs" else 2
    folders = ["/".join(path.parts[:end]) for end in range(root + 1, len(path.parts))]
    outermost = "/".join(path.parts[:root])  # which a line about another file in it names, too
    numbers = [int(part) for part in path.parts if re.fullmatch(r"\d{8}", part)]
    steps = [name for number in numbers for name in (f"checkpoint {number}", f"step {number} is damaged")]
    names = [*(re.escape(name) for name in (path.name, *folders, *steps)), f"{re.escape(outermost)}(?!/)"]
    return any(re.search(rf"(?<![\w.-])({'|'.join(names)})(?!\w)", line) for line in lines)


def _without_numbers(line: str) -> str:
    """Returns a line without its numbers, which are times and sizes."""
    return re.sub(r"[\d.,]+", "0", line)
