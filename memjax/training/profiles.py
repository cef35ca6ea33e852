"""Traces a few training steps with `jax.profiler`, to see what the host and the devices did, and for how long."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

Steps = tuple[int, int]
"""First and last step of a trace. Steps are counted over all attempts at a run, as in the log."""


def read_steps(text: str) -> Steps:
    """Reads the first and the last step of a trace from the text of an option, `FIRST:LAST`.

    Raises:
      ValueError: The text has another form.

    Example:
      >>> read_steps("10:15")
      (10, 15)
    """
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if not match:
        raise ValueError(f"profile: given {text!r}, allowed: FIRST:LAST, as 10:15 for steps 10 to 15")
    return int(match[1]), int(match[2])


def check_steps(steps: Steps, last: int) -> None:
    """Raises `ValueError` unless the first and the last of the `steps` to trace lie between step 2 and step `last`, the
    end of the run.
    """
    if not 2 <= steps[0] <= steps[1] <= last:
        raise ValueError(
            f"profile: given {steps[0]}:{steps[1]}, allowed: FIRST:LAST from 2 (the first step compiles) to "
            f"training.steps = {last}"
        )


class Profile:
    """Traces some steps of one attempt at a run with `jax.profiler`, in the first process.

    The first step of an attempt is not traced.
    """

    # The compilation in the first step would fill the trace.

    def __init__(self, steps: Steps | None, folder: Path, tell: Callable[[int, str], None]):
        """Prepares the trace without starting it.

        Args:
          steps: First and last step to trace. None for no trace.
          folder: Folder of traces. Each trace is written to a new folder in it.
          tell: Function `tell(step, line)` that is called when a trace was written.
        """
        self.folder, self._tell = folder, tell
        self._steps = steps if jax.process_index() == 0 else None
        self._since: int | None = None
        self._step = 0

    def around(self, train_step: Callable[..., Any], done: int) -> Callable[..., Any]:
        """Wraps a train step so that the chosen steps are traced. `done` is the number of steps done before its first
        call.

        Args:
          train_step: Function `train_step(state, batch) -> (state, metrics)`.
          done: Number of steps done before the first call.
        """
        if self._steps is None:
            return train_step
        self._step = done
        first, last = max(self._steps[0], done + 2), self._steps[1]
        if first > last:
            self._tell(done, f"profile: steps {self._steps[0]} to {last} are over, nothing is traced")
            return train_step

        def step_with_trace(state: Any, batch: Any) -> Any:
            if self._step + 1 == first:
                jax.block_until_ready(state)  # earlier steps may still be running
                jax.profiler.start_trace(self.folder)
                self._since = first
            with jax.profiler.StepTraceAnnotation("train", step_num=self._step + 1):
                result = train_step(state, batch)
            self._step += 1
            if self._since is not None and self._step == last:
                jax.block_until_ready(result)
                self.close()
            return result

        return step_with_trace

    def close(self) -> None:
        """Ends and writes the trace, even if the run ends before the last step to trace."""
        if self._since is None:
            return
        first, self._since = self._since, None
        jax.profiler.stop_trace()
        steps = f"steps {first} to {self._step}"
        self._tell(self._step, f"{self.folder}: trace of {steps}; see it with tensorboard --logdir (pip install xprof)")
