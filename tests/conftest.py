"""What every test relies on: the CPU, strict ranks, checked shapes, programs that are compiled fast and kept on disk.

Tests on several devices run in a subprocess of their own, with XLA_FLAGS of their own.
"""

import gc
import os
from pathlib import Path

import pytest

from tests.compiling import FAST_FLAGS
from tests.cpu_seconds import CpuSeconds

# Read by JAX when it is imported, here and in the processes that tests start. Tests compile hundreds of tiny programs,
# and the second run need not. JAX_ENABLE_COMPILATION_CACHE=0 turns it off.
for name, value in {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parent.parent / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}.items():
    os.environ.setdefault(name, value)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--jaxtyping", action="store_true", help="check the shape annotations of memjax at run time (`make test` does)"
    )
    parser.addoption("--optimized", action="store_true", help="compile programs as users do (`make test-slow` does)")
    parser.addoption("--cpu-seconds", action="store_true", help="end with the CPU seconds of each file")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--optimized"):
        os.environ["XLA_FLAGS"] = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), FAST_FLAGS]))
    if config.getoption("--cpu-seconds"):
        config.pluginmanager.register(CpuSeconds())

    # Before memjax is imported anywhere: modules are rewritten as they are loaded.
    if config.getoption("--jaxtyping"):
        from tests import type_checks

        type_checks.install()

    import jax

    # Tracing makes many objects that stay; looking for garbage among them was a fifth of the suite's time.
    gc.set_threshold(100_000, 50, 50)

    jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Frees programs after every slow test and every file, where there are many."""
    from tests.freeing import free_programs

    is_last_of_file = nextitem is None or nextitem.path != item.path
    if is_last_of_file or item.get_closest_marker("slow") is not None:
        free_programs()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """`--dist loadfile`, but for the laws."""
    from tests.scheduling import ByFile

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None
