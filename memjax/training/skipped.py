"""Counts steps that were skipped because a value was not finite, and ends runs with too many of them in a row."""

from collections.abc import Mapping
from typing import Any

import jax

from memjax.training.stages import STREAM

UNREAD = 1000
"""Largest number of steps whose result is not yet read from the device."""


class NonFiniteError(Exception):
    """A run cannot continue or finish because the loss, the gradient or an update is not finite."""


class SkippedSteps:
    """Counts the steps of each kind of update, such as replay, that were skipped in a row up to the last one of it.

    The device reports whether a step was skipped. The reports are read when training waits for the device anyway, and
    not after each step.

    Example:
      >>> skipped = SkippedSteps()
      >>> for kind, lost in (("stream", 1.0), ("replay", 1.0), ("stream", 0.0), ("replay", 1.0)):
      ...     skipped.add(lost, kind)
      >>> skipped.read()
      {'replay': 2}

    Attributes:
      limit: Largest allowed number of skipped steps in a row. Counting stops once it is reached. 0 for no limit.
    """

    def __init__(self, limit: int = 0, counts: Mapping[str, int] | None = None):
        self.limit, self._counts, self._unread = limit, dict(counts or {}), list[tuple[str, Any]]()

    def add(self, lost: Any, kind: str = "") -> None:
        """Adds the report of the next step: `lost` is 1 if it was skipped, else 0.

        Args:
          lost: 1 if the step was skipped, else 0. It may be an array that is still being computed.
          kind: Kind of the update.
        """
        self._unread.append((kind, lost))
        if len(self._unread) >= UNREAD:
            self.read()

    def read(self) -> dict[str, int]:
        """Waits for the device and returns the number of steps skipped in a row up to now by kind of update, of the
        kinds with any.
        """
        unread, self._unread = self._unread, []
        for kind, lost in jax.device_get(unread):
            if not self.is_over:
                self._counts[kind] = self._counts.get(kind, 0) + 1 if lost else 0
        return {kind: count for kind, count in self._counts.items() if count}

    @property
    def is_over(self) -> bool:
        """Whether a kind had reached the limit when the reports were last read."""
        return 0 < self.limit <= max(self._counts.values(), default=0)


def describe_kind(kind: str) -> str:
    """Returns the kind of an update as a piece of a sentence. '' for plain updates, of which most runs have no other.

    Example:
      >>> describe_kind("replay"), describe_kind("stream")
      ("of kind 'replay' ", '')
    """
    return "" if kind in ("", STREAM) else f"of kind {kind!r} "


def read_counts(saved: int | Mapping[str, int]) -> dict[str, int]:
    """Returns the counts of skipped steps in a checkpoint by kind. Earlier versions saved one number for all kinds.

    Example:
      >>> read_counts(3), read_counts({"replay": 2})
      ({'': 3}, {'replay': 2})
    """
    return dict(saved) if isinstance(saved, Mapping) else {"": saved} if saved else {}
