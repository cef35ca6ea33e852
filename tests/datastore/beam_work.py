"""What the pipelines of `beam_test` do: a module, since workers in other processes import it."""

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

from memjax.datastore import DiskFull


def load(folder: str, fail: str) -> Callable[[int], None]:
    if fail == "load":
        raise ValueError("run: given one that is not there")
    if not fail:
        with open(Path(folder) / "loads", "a") as file:
            file.write(f"{os.getpid()}\n")
    return functools.partial(make, folder, fail)


def make(folder: str, fail: str, part: int) -> None:
    if not fail:
        (Path(folder) / f"part_{part}").touch()
    elif part == 3:
        if fail == "value":
            raise ValueError("keys: given none for part 3,\nallowed: some")
        if fail == "full":
            raise DiskFull(errno.ENOSPC, "no space is left on the disk; free some", "/some/where")
        raise KeyError("a fault of the program")
