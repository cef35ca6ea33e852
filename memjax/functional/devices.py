"""The devices that the program at hand is traced for: those of the mesh that is set, or the default one."""

from typing import Any

import jax

__all__: list[str] = []


def platform() -> str:
    """Returns the name of the platform that the program at hand is traced for, such as 'cpu' or 'tpu': that of the mesh
    (`jax.set_mesh`), which may be a topology without devices, otherwise of the default device (`jax.default_device`).
    """
    return _device().platform


def device_kind() -> str:
    """Returns the kind of the devices that the program at hand is traced for, such as 'TPU v5 lite'."""
    return _device().device_kind


def _device() -> Any:
    of_mesh = jax.sharding.get_abstract_mesh().abstract_device
    if of_mesh is not None:
        return of_mesh
    config: Any = jax.config  # sets its attributes when it is imported
    default = config.jax_default_device
    if default is None or isinstance(default, str):
        return jax.devices(default)[0]
    return default
