"""Steps that were skipped because something was not finite, and the end of a run that has too many of them."""

from typing import Any

import jax

__all__ = ["NonFiniteError", "SkippedSteps"]

UNREAD = 1000
"""steps after which the device is asked where nothing else asks it"""


class NonFiniteError(Exception):  # noqa: N818 (what is found, not a mistake)
    """A run cannot go on, or not finish, with what is not finite; its line says all."""


class SkippedSteps:
    """How many of the last steps were skipped without one between them that was not.

    A step says so on the device; it is asked where training waits for it anyway, not after each step.

    Example:
      >>> skipped = SkippedSteps()
      >>> for lost in (1.0, 0.0, 1.0, 1.0):
      ...     skipped.add(lost)
      >>> skipped.read()
      2

    Attributes:
      limit: of a row of them; the count stands still once it is reached. 0 = none.
    """

    def __init__(self, limit: int = 0, count: int = 0):
        self.limit, self._count, self._unread = limit, count, list[Any]()

    def add(self, lost: Any) -> None:
        """The next step; `lost` is 1 where it was skipped, as an array that need not be there yet."""
        self._unread.append(lost)
        if len(self._unread) >= UNREAD:
            self.read()

    def read(self) -> int:
        """The count after the steps so far; waits for the device."""
        unread, self._unread = self._unread, []
        for lost in jax.device_get(unread):
            if not self.is_over:
                self._count = self._count + 1 if lost else 0
        return self._count

    @property
    def is_over(self) -> bool:
        """Whether the limit was reached when the device was asked last."""
        return 0 < self.limit <= self._count
