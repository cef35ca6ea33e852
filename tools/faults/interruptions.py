"""Interrupts a command at the N-th thing that it does in a folder: that fails, or the process is killed.

    python -m tools.faults.interruptions KIND NUMBER SECONDS WORDS...     # `memjax WORDS`, killed SECONDS after that

What is counted: 'open' (for writing), 'rename', 'mkdir', 'fsync' and 'write' (those of `os.write`). Python reports the
first three to its audit hooks; the other two are functions of `os` that are replaced. TensorStore writes outside of
Python: its writes fail by the largest size of a file that the system allows ('size'), or on a small disk ('disk').
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["KINDS", "Interruption", "can_mount", "interrupt", "limit_file_size", "small_disk"]

KINDS = ("open", "rename", "mkdir", "fsync", "write")
EVENTS = {"open": "open", "os.rename": "rename", "os.mkdir": "mkdir"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Interruption:
    """Something that happens at the N-th event of a kind in a folder.

    Attributes:
      counts: Number of events of each kind so far.
      happened: Whether the event has come.
    """

    def __init__(self, folder: Path, kind: str = "", number: int = 0, act: Callable[[str], None] = lambda path: None):
        """Describes an interruption.

        Args:
          folder: Folder whose events count, without links.
          kind: Kind of the event. '' for one that never happens.
          number: Number of the event, from 1.
          act: Function of the path that is called at the event. It may raise.
        """
        self._folder, self._kind, self._number, self._act = f"{folder}/", kind, number, act
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.happened = False
        self._lock = threading.Lock()

    def count(self, kind: str, path: str) -> None:
        """Counts an event of a path, and acts if it is the one."""
        if not f"{os.path.abspath(path)}/".startswith(self._folder):
            return
        with self._lock:
            self.counts[kind] += 1
            if kind != self._kind or self.counts[kind] != self._number:
                return
            self.happened = True
        self._act(path)


def fail(path: str) -> None:
    """Raises the error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


_current: Interruption | None = None


@functools.cache
def _add_hook() -> None:
    """Adds the audit hook, which stays as long as the process."""

    def hook(event: str, arguments: Any) -> None:
        if _current is None or event not in EVENTS:
            return
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike) and (event != "open" or arguments[2] & WRITES):
            _current.count(EVENTS[event], os.fsdecode(path))

    sys.addaudithook(hook)


@contextlib.contextmanager
def interrupt(interruption: Interruption) -> Iterator[None]:
    """Context manager in which an interruption counts events."""
    global _current
    _add_hook()

    def counting(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *rest: Any) -> Any:
            with contextlib.suppress(FileNotFoundError):
                interruption.count(kind, os.readlink(f"/proc/self/fd/{descriptor}"))
            return function(descriptor, *rest)

        return call

    with (
        mock.patch.object(os, "fsync", counting("fsync", os.fsync)),
        mock.patch.object(os, "write", counting("write", os.write)),
    ):
        _current = interruption
        try:
            yield
        finally:
            _current = None


@contextlib.contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Context manager in which no file can grow beyond a number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@functools.cache
def can_mount() -> bool:
    """Returns whether this process may mount a small disk in memory."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(OSError, subprocess.SubprocessError), small_disk(Path(folder), 1 << 20):
            return True
    return False


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Context manager that mounts a disk in memory of some bytes at a folder, which is empty before and after.

    Raises:
      subprocess.CalledProcessError: This process must not mount.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, capture_output=True)


def kill_later(seconds: float) -> Callable[[str], None]:
    """Returns a function that kills this process a number of seconds after its call."""
    kill = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
    return lambda path: kill() if not seconds else threading.Timer(seconds, kill).start()


def main(kind: str, number: str, seconds: str, *words: str) -> int:
    """Runs a command that is killed at an event in the working directory."""
    from memjax.cli import main as run_command

    act = kill_later(float(seconds))
    with interrupt(Interruption(Path.cwd().resolve(), kind, int(number), act)):
        return run_command(words)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
