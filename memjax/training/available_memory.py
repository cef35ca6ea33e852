"""Finds out how much memory the devices of a run have."""

import os
from pathlib import Path

import jax


def available_bytes() -> int:
    """Returns the memory of all devices of the run together in bytes. For CPUs it is the memory of the machines, or of
    their containers if these have less.
    """
    stats = jax.local_devices()[0].memory_stats()
    if stats and stats.get("bytes_limit"):
        return stats["bytes_limit"] * jax.device_count()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    container_limit = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(container_limit) if container_limit.isdigit() else machine) * jax.process_count()
