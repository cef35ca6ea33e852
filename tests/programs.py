"""Programs that tests run in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def printed(*arguments: object, **environment: str) -> list[str]:
    """The lines that Python prints with these arguments, in the root of the repository; it must end with code 0."""
    command = [sys.executable, *map(str, arguments)]
    around = {**os.environ, **environment}
    run = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def found_on_eight_devices(module: str, *arguments: object) -> Any:
    """What a module prints last, as JSON, in float64 on eight virtual devices."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    return json.loads(printed("-m", module, *arguments, **devices)[-1])
