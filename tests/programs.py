"""Programs that tests run in a process of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def printed(*arguments: object) -> list[str]:
    """The lines that Python prints with these arguments, in the root of the repository; it must end with code 0."""
    command = [sys.executable, *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()
