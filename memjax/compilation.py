"""Where compiled programs are kept on disk for the next run of a command, and how they are freed in a process.

JAX reads its settings from the environment when it is imported, which is after the command line has started.
"""

import functools
import tempfile
from collections.abc import Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
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


def free_programs(functions: Iterable[Any]) -> None:
    """Frees the compiled programs of functions made by `jax.jit`, which compile anew when they are called again.

    Args:
      functions: Results of `jax.jit`. Others are refused by an `AttributeError`.
    """
    for function in functions:
        function.clear_cache()


def jit_by_model(*, num_models: int = 8, **options: Any) -> Callable[[Function], Function]:
    """Makes a decorator like `jax.jit` for functions whose first argument is a model, which is static.

    Keeps the programs of the models that were used last. `jax.jit` with a static argument keeps those of every model
    until the process ends.

    Args:
      num_models: Number of models whose programs are kept.
      **options: Arguments of `jax.jit` for the function without its first argument.
    """

    def decorate(function: Function) -> Function:
        @functools.lru_cache(maxsize=num_models)
        def compile_for(model: Any) -> Any:
            import jax  # Starts only here: this module is read before the environment of JAX is set.

            return jax.jit(functools.partial(function, model), **options)

        @functools.wraps(function)
        def call(model: Any, *arguments: Any, **named: Any) -> Any:
            return compile_for(model)(*arguments, **named)

        return call  # type: ignore[return-value]

    return decorate
