"""The platform of a program: that of the mesh, else of the default device."""

import jax

from memjax.functional.devices import device_kind, platform


class Device:
    platform, device_kind = "tpu", "TPU v5 lite"


def test_the_platform_is_that_of_the_default_device(monkeypatch):
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        assert (platform(), device_kind()) == ("cpu", cpu.device_kind)
    with jax.default_device("cpu"):
        assert platform() == "cpu"
    monkeypatch.setattr(jax, "devices", lambda kind=None: [Device()])
    assert (platform(), device_kind()) == ("tpu", "TPU v5 lite")
    with jax.default_device(cpu):  # a program for the CPU of a machine with a TPU
        assert platform() == "cpu"
