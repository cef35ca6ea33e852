"""Traces of a few steps with `jax.profiler`: what the host and the devices did, and for how long."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

Steps = tuple[int, int]
"""first and last step, counted as in the log: over all attempts of a run"""


def read_steps(text: str) -> Steps:
    """The steps that a command line names.

    Example:
      >>> read_steps("10:15")
      (10, 15)
    """
    found = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if not found:
        raise ValueError(f"profile: given {text!r}, allowed: FIRST:LAST, as 10:15 for steps 10 to 15")
    return int(found[1]), int(found[2])


def check_steps(steps: Steps, last: int) -> None:
    """Raises `ValueError` unless a run of `last` steps has these."""
    if not 2 <= steps[0] <= steps[1] <= last:
        raise ValueError(
            f"profile: given {steps[0]}:{steps[1]}, allowed: FIRST:LAST from 2 (the first step compiles) to "
            f"training.steps = {last}"
        )


class Profile:
    """Traces steps of one attempt at a run, in the first process.

    The first step of an attempt is left out: its compilation would fill the trace.
    """

    def __init__(self, steps: Steps | None, folder: Path, tell: Callable[[int, str], None]):
        """Prepares; nothing runs yet.

        Args:
          steps: first and last; None traces nothing.
          folder: where traces go, a folder of its own for each.
          tell: gets the step and one line, once it is written.
        """
        self.folder, self._tell = folder, tell
        self._steps = steps if jax.process_index() == 0 else None
        self._since: int | None = None
        self._step = 0

    def around(self, train_step: Callable[..., Any], done: int) -> Callable[..., Any]:
        """The train step that traces itself where it should.

        Args:
          train_step: `(state, batch) -> (state, metrics)`.
          done: steps before the first call.
        """
        if self._steps is None:
            return train_step
        self._step = done
        first, last = max(self._steps[0], done + 2), self._steps[1]
        if first > last:
            self._tell(done, f"profile: steps {self._steps[0]} to {last} are over, nothing is traced")
            return train_step

        def traced(state: Any, batch: Any) -> Any:
            if self._step + 1 == first:
                jax.block_until_ready(state)  # what is still running belongs to an earlier step
                jax.profiler.start_trace(self.folder)
                self._since = first
            with jax.profiler.StepTraceAnnotation("train", step_num=self._step + 1):
                result = train_step(state, batch)
            self._step += 1
            if self._since is not None and self._step == last:
                jax.block_until_ready(result)
                self.close()
            return result

        return traced

    def close(self) -> None:
        """Writes what has been traced, also where the run ends before the last of the steps."""
        if self._since is None:
            return
        first, self._since = self._since, None
        jax.profiler.stop_trace()
        steps = f"steps {first} to {self._step}"
        self._tell(self._step, f"{self.folder}: trace of {steps}; see it with tensorboard --logdir (pip install xprof)")
