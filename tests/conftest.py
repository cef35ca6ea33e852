"""What every test relies on: the CPU, strict ranks, shapes checked at run time, compiled programs kept on disk.

Tests on several devices run in a subprocess of their own, so no XLA_FLAGS are set here.
"""

import os
from pathlib import Path

import pytest

# Read by JAX when it is imported, here and in the processes that tests start. Tests compile hundreds of tiny programs,
# and the second run need not. JAX_ENABLE_COMPILATION_CACHE=0 turns it off.
for name, value in {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parent.parent / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}.items():
    os.environ.setdefault(name, value)

TYPE_CHECKER = (
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"  # an int is a float, as for pyright
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--jaxtyping", action="store_true", help="check the shape annotations of memjax at run time (`make test` does)"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before memjax is imported anywhere: the hook rewrites modules as they are loaded.
    if config.getoption("--jaxtyping"):
        import jaxtyping

        jaxtyping.install_import_hook("memjax", TYPE_CHECKER)

    import jax

    jax.config.update("jax_numpy_rank_promotion", "raise")
