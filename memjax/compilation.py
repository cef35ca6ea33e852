"""Where compiled programs are kept, so that a second run of a command need not compile them again.

JAX reads its settings from the environment when it is imported, which is after the command line has started.
"""

import tempfile
from collections.abc import MutableMapping
from pathlib import Path

FOLDER, ENABLED = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"


def keep_programs(environment: MutableMapping[str, str]) -> str:
    """Lets JAX keep compiled programs in the user's cache folder, unless the environment says where, or not to.

    A folder that cannot be written turns keeping off: JAX would warn about every program.

    Args:
      environment: of the process, before JAX is imported; changed in place.

    Returns:
      One line about a folder that cannot be written, else ''.

    Example:
      >>> keep_programs({"JAX_ENABLE_COMPILATION_CACHE": "0"})
      ''
    """
    given = environment.get(FOLDER)
    is_off = environment.get(ENABLED, "1").lower() in ("0", "false", "f", "off", "no", "n")
    if is_off or given == "" or (given is not None and "://" in given):
        return ""
    folder = default_folder(environment) if given is None else Path(given)
    try:
        # Programs are run as they are: nobody else's may lie there.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        environment[ENABLED] = "0"
        return f"{folder}: {error.strerror}, so compiled programs are not kept; {FOLDER} names another folder"
    environment[FOLDER] = str(folder)
    return ""


def default_folder(environment: MutableMapping[str, str]) -> Path:
    """The folder where the user's caches are.

    Example:
      >>> str(default_folder({"XDG_CACHE_HOME": "/caches"}))
      '/caches/memjax/jax'
    """
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memjax" / "jax"
