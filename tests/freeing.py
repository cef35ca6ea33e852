"""Frees compiled programs of a test process, and measures what they take.

Every program takes a few memory maps. Linux allows a process 65,530 of them, and loading one program more ends the
process with a segmentation fault.
"""

import gc
from pathlib import Path

import jax

MAPS = Path("/proc/self/maps")
MANY_MAPS = 16_000  # A quarter of what Linux allows.


def count_maps() -> int:
    """Number of memory maps of this process. 0 where the system does not list them."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def free_programs(limit: int = MANY_MAPS) -> None:
    """Frees compiled programs until the process has at most `limit` memory maps.

    Unreachable programs go first, then all: a program that is used again is read from the cache on disk.

    Args:
      limit: Number of memory maps up to which nothing is freed.
    """
    for clear in (lambda: None, jax.clear_caches):
        if count_maps() <= limit:
            return
        clear()
        gc.collect()
