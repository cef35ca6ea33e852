"""Turns errors into one line and an exit code."""

import errno
import sys
import traceback
from pathlib import Path

from memjax.settings.overrides import UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk"""


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
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 1 if error.errno in FULL else 2
    if isinstance(error, OSError) and error.errno in FULL:  # of a file that is open already
        return f"standard output or a file: {error.strerror}, allowed: a place with room", 1
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
