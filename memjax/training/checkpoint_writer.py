"""Saves the checkpoints of a run, at once or in a thread beside training."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.training.checkpoints import Checkpoints


class CheckpointWriter:
    """Saves checkpoints one after the other. In the background, a save only takes as long as a copy of the arrays, and
    a thread writes them while training goes on. The files, and the order in which they are written, are the same.

    Example:
      >>> import tempfile
      >>> checkpoints = Checkpoints(tempfile.mkdtemp())
      >>> writer = CheckpointWriter(checkpoints, in_background=True)
      >>> writer.save(3, {"params": {"kernel": jnp.ones((2, 2))}}, extra={})
      >>> writer.wait()
      >>> checkpoints.steps()
      [3]
      >>> writer.close(), checkpoints.close()
      (None, None)
    """

    def __init__(self, checkpoints: Checkpoints, *, in_background: bool):
        """Makes a writer for the checkpoints of a run. Nothing is written.

        Args:
          checkpoints: Checkpoints of the run.
          in_background: Whether a thread writes them while training goes on. The run must have a single process.
        """
        self._checkpoints, self._pending = checkpoints, None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints") if in_background else None

    def save(self, step: int, tree: Any, *, extra: Any) -> None:
        """Saves a checkpoint after the one before is complete. See `Checkpoints.save` for the arguments.

        Raises:
          Exception: This save, or the one before in the background, has failed.
        """
        self.wait()
        if self._thread is None:
            self._checkpoints.save(step, tree, extra=extra)
        else:
            # The next step donates the arrays of the state, and writes into those of the host.
            copied = jax.tree.map(_copy_to_host, tree)
            self._pending = self._thread.submit(self._checkpoints.save, step, copied, extra=extra)

    def wait(self) -> None:
        """Waits until the last checkpoint is complete.

        Raises:
          Exception: It could not be saved.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits for the last checkpoint, and ends the thread. Its error is left out: a run that has not waited for it
        ends with an error of its own.
        """
        with contextlib.suppress(Exception):
            self.wait()
        if self._thread is not None:
            self._thread.shutdown()


def _copy_to_host(leaf: Any) -> Any:
    """Copies an array to the host. A `jax.random` key stays on its device."""
    if jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
        return jnp.copy(leaf)
    return np.array(leaf)
