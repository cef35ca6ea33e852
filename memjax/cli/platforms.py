"""Which accelerators may be here, asked without starting JAX."""

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path


def skip_absent_tpu() -> None:
    """Keeps JAX from starting a TPU that is not here.

    Where libtpu is installed only to compile (the extra `plan`), that would take seconds and print pages of warnings.
    """
    if find_spec("libtpu") is not None and not tpu_may_be_here() and not _has_plugins():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def only_cpu() -> bool:
    """Whether JAX will use no accelerator: the environment says so, or none that it has a plugin for may be here."""
    named = os.environ.get("JAX_PLATFORMS", "")
    if named:
        return named == "cpu"
    return not _has_plugins() and (find_spec("libtpu") is None or not tpu_may_be_here())


def _has_plugins() -> bool:
    """Whether JAX has a plugin of an accelerator, besides libtpu."""
    return bool(entry_points(group="jax_plugins")) or find_spec("jax_plugins") is not None


def tpu_may_be_here() -> bool:
    """Whether the machine has a device of Google's; containers may see the device file only, or the bus only."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    files = any(Path("/dev").glob("accel*")) or any(Path("/dev").glob("vfio/[0-9]*"))
    return (files or any(v.read_text().strip() == "0x1ae0" for v in vendors)) and (
        os.environ.get("JAX_PLATFORMS", "tpu") in ("", "tpu", "tpu,cpu")
    )
