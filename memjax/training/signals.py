"""Stops a run on a signal: it finishes its step, saves a checkpoint and reports it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


class StoppedBySignal(Exception):  # noqa: N818 (a request, not an error)
    """A signal ended the run after everything was saved.

    Attributes:
      signal: Number of the signal.
      step: Number of steps done.
    """

    def __init__(self, signal_number: int, step: int, path: Path):
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name} after step {step}, saved in {path}; the same command goes on from there")
        self.signal, self.step = signal_number, step

    @property
    def exit_code(self) -> int:
        """Exit code of the command line, 128 plus the number of the signal."""
        return 128 + self.signal


GRACE = 0.5
"""Seconds that the main thread has to end the process after a second signal"""


class StopSignal:
    """Context manager that records the first SIGTERM or SIGINT instead of ending the process, and says so at once. A
    call returns whether one was received.

    A second signal ends the process, also while XLA compiles: Python calls the handlers of signals in the main thread,
    and only when that has left the compiler, so that a thread of its own watches them. Outside the main thread no
    signal is recorded.

    Attributes:
      received: Number of the signal that was received. None for no signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}
        self._wakeup: tuple[int, int] | None = None

    def __call__(self) -> bool:
        """Returns whether a signal was received."""
        return self.received is not None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            self._wakeup = writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            threading.Thread(target=_watch_signals, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._wakeup is not None:
            writer, previous = self._wakeup
            signal.set_wakeup_fd(previous)
            os.close(writer)
            self._wakeup = None

    def _note(self, number: int, frame: Any) -> None:
        """Records a signal and restores the previous handlers."""
        del frame
        self.received = number
        self._restore()

    def _restore(self) -> None:
        """Restores the signal handlers from before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


def _watch_signals(reader: int) -> None:
    """Says that the first signal was received, and ends the process at the second one, until the pipe is closed that
    `reader` reads, which gets the number of every signal.
    """
    count = 0
    while received := os.read(reader, 1):
        if received[0] not in (signal.SIGTERM, signal.SIGINT):
            continue
        count += 1
        if count == 1:
            with contextlib.suppress(OSError, ValueError):  # of a closed terminal
                print("stopping after this step; again: now, unsaved", file=sys.stderr, flush=True)
        else:
            time.sleep(GRACE)
            os._exit(128 + received[0])
    os.close(reader)
