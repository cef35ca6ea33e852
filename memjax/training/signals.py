"""Stops a run on a signal: it finishes its step, saves a checkpoint and reports it."""

from __future__ import annotations

import signal
import threading
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


class StopSignal:
    """Context manager that records the first SIGTERM or SIGINT instead of ending the process. A call returns whether
    one was received.

    A second signal acts as usual. Outside the main thread no signal is recorded.

    Attributes:
      received: Number of the signal that was received. None for no signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Returns whether a signal was received."""
        return self.received is not None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

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
