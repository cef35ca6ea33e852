"""Counts steps that were skipped because a value was not finite, and ends runs with too many of them in a row."""

from typing import Any

import jax

UNREAD = 1000
"""Largest number of steps whose result is not yet read from the device."""


class NonFiniteError(Exception):
    """A run cannot continue or finish because the loss, the gradient or an update is not finite."""


class SkippedSteps:
    """Counts the steps that were skipped in a row up to the last step.

    The device reports whether a step was skipped. The reports are read when training waits for the device anyway, and
    not after each step.

    Example:
      >>> skipped = SkippedSteps()
      >>> for lost in (1.0, 0.0, 1.0, 1.0):
      ...     skipped.add(lost)
      >>> skipped.read()
      2

    Attributes:
      limit: Largest allowed number of skipped steps in a row. The count stops once it is reached. 0 for no limit.
    """

    def __init__(self, limit: int = 0, count: int = 0):
        self.limit, self._count, self._unread = limit, count, list[Any]()

    def add(self, lost: Any) -> None:
        """Adds the report of the next step: `lost` is 1 if it was skipped, else 0.

        Args:
          lost: 1 if the step was skipped, else 0. It may be an array that is still being computed.
        """
        self._unread.append(lost)
        if len(self._unread) >= UNREAD:
            self.read()

    def read(self) -> int:
        """Waits for the device and returns the number of steps skipped in a row up to now."""
        unread, self._unread = self._unread, []
        for lost in jax.device_get(unread):
            if not self.is_over:
                self._count = self._count + 1 if lost else 0
        return self._count

    @property
    def is_over(self) -> bool:
        """Whether the limit was reached when the reports were last read."""
        return 0 < self.limit <= self._count
