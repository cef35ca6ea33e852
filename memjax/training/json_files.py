"""Reads and writes the JSON files of a run directory."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Reads a JSON file. Returns None if it does not exist.

    Raises:
      ValueError: The file is damaged.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}), allowed: the JSON file that was written there") from None


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON value to a file atomically."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
