"""The command `memjax doctor`, which shows versions, devices and missing packages, and finds damaged files."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from memjax import allocation
from memjax.cli.parser import Parser, print_result
from memjax.settings.extras import EXTRAS
from memjax.settings.overrides import UsageError

BASE = (
    *("jax", "jaxlib", "flax", "optax", "chex", "orbax-checkpoint", "numpy", "jaxtyping"),
    *("safetensors", "tyro", "rich", "sentencepiece"),
)


def run(arguments: list[str]) -> int:
    """Prints versions, devices and missing packages, with the pip commands that install them. With --files compares
    files with their checksums.
    """
    parser = Parser("doctor", run.__doc__, json="")
    files = "compare all files of this run, data cache, datastore or other folder with their checksums instead"
    parser.add_argument("--files", metavar="PATH", help=files)
    accept = "accept the config.json of the run --files as it was edited by hand, and note that in versions.json"
    parser.add_argument("--accept-config", action="store_true", help=accept)
    options = parser.read(arguments)
    if options.accept_config and not options.files:
        raise UsageError("--accept-config: given without --files, allowed: with --files RUN")
    if options.files:
        return report_damage(Path(options.files), accept=options.accept_config, options=options)
    from memjax.platforms import only_cpu

    return print_result(diagnose(only_cpu=only_cpu()), describe, options)


def report_damage(path: Path, *, accept: bool, options: Any) -> int:
    """Prints a line for every damaged file below a folder, and for every file that cannot be compared. Returns the exit
    code, 1 where a file is damaged.

    Args:
      path: Run directory, data cache, datastore, or a folder that holds some.
      accept: Whether to accept the `config.json` of the run `path` as it is, before files are compared.
      options: Options of the command, with `json`.
    """
    from memjax.cli.damage import accept_config, compare_files

    if not path.is_dir():
        raise UsageError(f"--files: given {str(path)!r}, allowed: a folder that memjax has written")
    if accept:
        accept_config(path)
    findings = [*compare_files(path)]
    lines = [finding.remark for finding in findings if finding.remark]
    damaged = sum(finding.is_damaged for finding in findings)
    facts = {"compared": len(findings), "damaged": damaged, "remarks": lines}
    show = lambda facts: "\n".join([*facts["remarks"], f"{facts['compared']} compared, {facts['damaged']} damaged"])
    return print_result(facts, show, options) or int(damaged > 0)


def diagnose(*, only_cpu: bool = True) -> dict[str, Any]:
    """Returns the facts that `memjax doctor` prints as a dictionary of JSON values. `only_cpu` says whether JAX uses no
    accelerator, so that memjax configures malloc.

    Args:
      only_cpu: Whether JAX uses no accelerator, so that memjax configures malloc (`memjax.allocation`).
    """
    import memjax

    missing = {
        name: {"for": purpose, "packages": absent, "pip": f"pip install 'memjax[{name}]'"}
        for name, (purpose, packages) in EXTRAS.items()
        if (absent := [package for package in packages if _version(package) is None])
    }
    installed = {name: _version(name) for _, packages in EXTRAS.values() for name in packages if _version(name)}
    return {
        "memjax": memjax.__version__,
        "folder": os.path.dirname(memjax.__file__),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {_cores()} cores",
        "free_disk_gib": round(shutil.disk_usage(os.getcwd()).free / 2**30, 1),
        "base": {name: _version(name) for name in BASE},
        "extras": installed,
        "missing": missing,
        **_devices(),
        "allocation": allocation.diagnose(os.environ, only_cpu=only_cpu),
    }


def describe(facts: dict[str, Any]) -> str:
    """Formats the facts that `diagnose` returns as lines of text."""
    lines = [
        f"memjax    {facts['memjax']} in {facts['folder']}",
        f"python    {facts['python']}",
        f"system    {facts['system']}, {facts['free_disk_gib']} GiB free on the disk of this folder",
        "base      " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in facts["base"].items()),
        "extras    " + (", ".join(f"{name} {version}" for name, version in facts["extras"].items()) or "none"),
        f"backend   {facts['backend']}",
        *(f"device    {device}" for device in facts["devices"]),
        f"malloc    {allocation.describe(facts['allocation'])}",
    ]
    if facts["hint"]:
        lines.append(f"hint      {facts['hint']}")
    absent = [name for name, version in facts["base"].items() if version is None]
    if absent:
        lines.append(f"missing   {', '.join(absent)}: memjax does not work without; pip install memjax")
    for name, part in facts["missing"].items():
        lines.append(f"missing   {name}: {part['for']} ({', '.join(part['packages'])}); {part['pip']}")
    return "\n".join(lines if facts["missing"] or absent else [*lines, "missing   nothing"])


def _devices() -> dict[str, Any]:
    """Returns the backend and the devices of JAX, with a hint about an accelerator that JAX does not use.

    An accelerator that cannot be started is described in the hint instead of raising an error.
    """
    hint = ""
    try:
        import jax

        devices = [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()]
        backend = jax.default_backend()
    except Exception as error:
        reason = " ".join(str(error).split())
        return {"backend": "none", "devices": [], "hint": f"JAX could not start a backend: {reason}"}
    if backend == "cpu":
        if os.path.exists("/dev/nvidia0"):
            hint = "an NVIDIA GPU is here but JAX does not use it; pip install 'memjax[cuda]'"
        elif os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0"):
            hint = "a TPU may be here but JAX does not use it; pip install 'memjax[tpu]'"
    return {"backend": backend, "devices": devices, "hint": hint}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
