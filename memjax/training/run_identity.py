"""Binds the files of a run to each other: all of them carry the identity that `config.json` has.

A checksum shows that a file is whole, and not that it belongs to the run. The log or the results of another run, put
back by a mistake or by a file system, would be read as those of this one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memjax.durable_files import AS_WRITTEN, DamagedError, checksum, read_json, write_json

NAME = "run"
"""Name of the entry with the identity in the JSON files of a run"""


def make_identity(settings: Mapping[str, Any]) -> str:
    """Returns the identity of a new run, 16 hexadecimal digits, from its configuration as JSON values. The run keeps it
    when its configuration changes.
    """
    return checksum(settings)[:16]


def read_identity(run: Path) -> str:
    """Returns the identity of the run in a directory. '' for a run of an earlier version, or without a readable
    `config.json`.
    """
    try:
        config = read_json(run / "config.json", compare=False)
    except DamagedError:
        return ""
    return str(config.get(NAME, "")) if isinstance(config, dict) else ""


def write_run_file(file: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object to a file in a run directory, with the identity of the run. See
    `memjax.durable_files.write_json`.
    """
    identity = read_identity(file.parent)
    write_json(file, {NAME: identity, **value} if identity else dict(value))


def read_run_file(file: Path, *, advice: str = AS_WRITTEN) -> Any:
    """Reads a JSON value that `write_run_file` wrote, without the identity. Returns None if there is no file.

    Args:
      file: File in a run directory.
      advice: End of the message about a damaged file.

    Raises:
      DamagedError: The file is not as it was written, or belongs to another run.
    """
    value = read_json(file, advice=advice)
    identity = value.pop(NAME, "") if isinstance(value, dict) else ""
    if value is not None and identity != read_identity(file.parent):
        raise DamagedError(f"{file}: damaged (it is of another run than config.json beside it), {advice}")
    return value
