"""Finds out which accelerators the machine may have, without starting JAX."""

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path


def skip_absent_tpu() -> None:
    """Sets `JAX_PLATFORMS` to cpu where libtpu is installed on a machine without a TPU or other accelerator, so that
    JAX does not try to start one.
    """
    # Where libtpu is installed only to compile (the extra `plan`), that takes seconds and prints pages of warnings.
    if find_spec("libtpu") is not None and not tpu_may_be_here() and not _has_plugins():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def only_cpu() -> bool:
    """Whether JAX will use the CPU only, by `JAX_PLATFORMS` or because no plugin for an accelerator is installed and
    there is no TPU.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms == "cpu"
    return not _has_plugins() and (find_spec("libtpu") is None or not tpu_may_be_here())


def _has_plugins() -> bool:
    """Whether a plugin for an accelerator is installed, other than libtpu."""
    return bool(entry_points(group="jax_plugins")) or find_spec("jax_plugins") is not None


def tpu_may_be_here() -> bool:
    """Whether the machine may have a TPU that JAX is allowed to use."""
    # Containers may see the device file only, or the bus only.
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    files = any(Path("/dev").glob("accel*")) or any(Path("/dev").glob("vfio/[0-9]*"))
    return (files or any(v.read_text().strip() == "0x1ae0" for v in vendors)) and (
        os.environ.get("JAX_PLATFORMS", "tpu") in ("", "tpu", "tpu,cpu")
    )
