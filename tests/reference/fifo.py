"""A row of a first-in first-out memory, as a `collections.deque`."""

import collections

import numpy as np


class Row:
    """What one row should hold: the last `capacity` entries, oldest first, with the number of each since the start."""

    def __init__(self, capacity: int):
        self.entries = collections.deque(maxlen=capacity)
        self.written = 0

    def append(self, entries) -> None:
        for entry in entries:
            self.entries.append((self.written, np.asarray(entry)))
            self.written += 1

    def ring(self, empty: np.ndarray) -> np.ndarray:
        """As a ring: entry number n in slot n modulo capacity, `empty [capacity, ...]` elsewhere."""
        slots = np.array(empty)
        for number, entry in self.entries:
            slots[number % len(slots)] = entry
        return slots

    def aligned(self, empty: np.ndarray) -> np.ndarray:
        """Right-aligned: the newest entry in the last slot."""
        slots = np.array(empty)
        for slot, (_, entry) in zip(range(len(slots) - len(self.entries), len(slots)), self.entries, strict=True):
            slots[slot] = entry
        return slots
