"""Sets the folder of JAX's persistent compilation cache, so that a second run of a command compiles nothing again.

JAX reads its settings from the environment when it is imported, so they are set before.
"""

import os
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

FOLDER, ENABLED = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"

# JAX keeps by default what took a second to compile, which leaves out nearly all of the programs of a start.
SHORTEST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def keep_programs(environment: MutableMapping[str, str]) -> str:
    """Turns on JAX's compilation cache in the user's cache folder, for programs of every size, by changing
    `environment`, unless that says otherwise. Returns a line about a folder that cannot be written, else ''.

    A folder that cannot be written turns the cache off, since JAX would warn about every program.

    Args:
      environment: Environment of the process before JAX is imported, which is changed in place.

    Example:
      >>> keep_programs({"JAX_ENABLE_COMPILATION_CACHE": "0"})
      ''
    """
    setting = environment.get(FOLDER)
    is_off = environment.get(ENABLED, "1").lower() in ("0", "false", "f", "off", "no", "n")
    if is_off or setting == "" or (setting is not None and "://" in setting):
        return ""
    folder = default_folder(environment) if setting is None else Path(setting)
    try:
        # Cached programs are run without a check, so no other user may write there.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        foreign = describe_foreign_writers(folder)
        if foreign:
            environment[ENABLED] = "0"
            return f"{folder}: {foreign}, so compiled programs are neither kept nor used; {FOLDER} names another folder"
    except OSError as error:
        environment[ENABLED] = "0"
        return f"{folder}: {error.strerror}, so compiled programs are not kept; {FOLDER} names another folder"
    environment[FOLDER] = str(folder)
    environment.setdefault(SHORTEST, "0")
    return ""


def describe_foreign_writers(folder: Path) -> str:
    """Describes that a folder belongs to another user, or can be written by others. '' for a folder of this user alone.

    Compiled programs are run without a check, so that whoever can write there can run programs as this user.
    """
    facts = folder.stat()
    if facts.st_uid != os.getuid():
        return f"belongs to user {facts.st_uid}"
    return "can be written by others" if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def default_folder(environment: MutableMapping[str, str]) -> Path:
    """Returns the path of the default folder of compiled programs, in the cache folder that the environment names
    (`XDG_CACHE_HOME`) or ~/.cache.

    Example:
      >>> str(default_folder({"XDG_CACHE_HOME": "/caches"}))
      '/caches/memjax/jax'
    """
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memjax" / "jax"
