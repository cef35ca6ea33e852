"""The versions, devices and random number generators that each attempt at a run records."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import jax

from memjax.durable_files import DamagedError
from memjax.training.run_identity import read_run_file

PACKAGES = ("memjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")
"""Packages whose versions are recorded for every attempt."""


def versions() -> dict[str, Any]:
    """Returns the versions of Python and packages and the devices of this process, by name."""
    facts = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    devices = jax.devices()
    facts |= {"backend": jax.default_backend(), "devices": f"{len(devices)} x {devices[0].device_kind}"}
    return facts | {"processes": jax.process_count(), "random_generator": random_generator()}


def read_attempts(path: Path | str) -> list[dict[str, Any]]:
    """Reads what the attempts at the run in a directory have recorded, oldest first. [] for a run without attempts.

    Raises:
      ValueError: `versions.json` is damaged, or that of another run.
    """
    file, advice = Path(path).expanduser() / "versions.json", "allowed: the attempts at the run; remove it"
    value = read_run_file(file, advice=advice)
    attempts = value.get("attempts") if isinstance(value, dict) else value or []  # a list in earlier versions
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise DamagedError(f"{file}: damaged (it has no attempts), {advice}")
    return attempts


def random_generator() -> str:
    """Names the random number generator of JAX in this process, such as 'threefry2x32, partitionable'."""
    config: Any = jax.config  # a type checker does not know its flags
    name = str(config.jax_default_prng_impl)
    if name != "threefry2x32":
        return name
    return f"{name}, {'' if config.jax_threefry_partitionable else 'not '}partitionable"


def generator_of(path: Path | str) -> str:
    """Names the random number generators that the attempts at the run in a directory have recorded, joined by ' then '.
    '' if there are none.

    Returns:
      The generators in their order, joined by " then ". '' if the run has recorded none.
    """
    try:
        attempts = read_attempts(path)
    except (ValueError, OSError):  # a run can be read without it
        return ""
    names = [attempt.get("random_generator", "") for attempt in attempts]
    return " then ".join(dict.fromkeys(filter(None, names)))


def describe_generator(path: Path | str) -> str:
    """Describes in one line that a run has another random number generator than this process. '' if it has not."""
    recorded, present = generator_of(path), random_generator()
    if recorded in ("", present):
        return ""
    return (
        f"{path}: made under another random number generator, {recorded}; here {present}: what is drawn is not the same"
    )
