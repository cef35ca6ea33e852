"""The command line of a script that measures a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memjax.training.restoring import load_run


def measure_command(
    measure: Callable[..., dict[str, Any]], doc: str | None, arguments: Sequence[str] | None = None, **options: Any
) -> int:
    """Prints what `RUN` and the options of a command line measure. The exit code.

    Args:
      measure: of a loaded run and the options by name.
      doc: of the script.
      arguments: of the command line; None = those of the process.
      options: name -> default, a `str` or an `int` or a `float`.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("run", help="run directory")
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, help=f"default: {default}")
    given = vars(parser.parse_args(arguments))
    path = given.pop("run")
    try:
        facts = measure(load_run(path), **given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({**facts, "run": Path(path).name}, ensure_ascii=False))
    return 0
