"""Checks that the files and folders of a command can be written, before it starts to work."""

import os
from pathlib import Path

from memjax.config import Config
from memjax.settings.named_memories import MEMORIES
from memjax.settings.overrides import UsageError


def check_folder(name: str, given: str | os.PathLike[str]) -> None:
    """Raises `UsageError` if the folder `given` cannot be made or written to. `name` is the option or field that names
    it, for the message.

    Args:
      name: Option or field that names the folder, such as "--to".
      given: The folder, which need not exist.

    Raises:
      UsageError: The path is a file, lies below one, or may not be written to.
    """
    path = Path(given).expanduser()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{name}: given {str(given)!r}, which is a file, allowed: a folder")
    _check_place(name, given, path.absolute())


def check_file(name: str, given: str | os.PathLike[str]) -> None:
    """Raises `UsageError` if the file `given` cannot be written. Its folder need not exist. `name` is the option that
    names it, for the message.

    Args:
      name: Option that names the file.
      given: The file.

    Raises:
      UsageError: The path is a folder, lies below a file, or may not be written to.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        raise UsageError(f"{name}: given {str(given)!r}, which is a folder, allowed: a file")
    _check_place(name, given, path.absolute())


def check_data_folders(config: Config) -> None:
    """Raises `UsageError` if the folder of prepared data of a config (`data.cache_dir`) cannot be made or written to,
    or if the model needs neighbours and the config names no folder of them.

    Raises:
      UsageError: `data.cache_dir` names such a folder, or `data.neighbors_dir` is empty.
    """
    if config.model.output.needs_neighbors and not config.data.neighbors_dir:
        commands = MEMORIES["spalm"].commands
        raise UsageError(f"data.neighbors_dir: given '', allowed: a folder with neighbours for Spalm; {commands}")
    if config.data.cache_dir not in ("", "default"):
        check_folder("data.cache_dir", config.data.cache_dir)


def _check_place(name: str, given: str | os.PathLike[str], path: Path) -> None:
    """Raises `UsageError` where the nearest existing part of a path is a file, or may not be written to."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise UsageError(f"{name}: given {str(given)!r}, allowed: a path in a folder; {nearest} is a file")
    if not os.access(nearest, os.W_OK | (os.X_OK if nearest.is_dir() else 0)):
        raise UsageError(f"{name}: given {str(given)!r}, allowed: where you may write; {nearest} may not be written to")
