"""The devices that the program at hand is traced for: those of the mesh that is set, or the default one."""

import jax

__all__: list[str] = []


def platform() -> str:
    """Returns the name of the platform that the program at hand is traced for, such as 'cpu' or 'tpu': that of the mesh
    (`jax.set_mesh`), which may be a topology without devices, otherwise of the default device.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
    """Returns the kind of the devices that the program at hand is traced for, such as 'TPU v5 lite'."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind
