"""Memory for Transformers: memory-augmented language models and memory-replay lifelong learning in JAX.

`import memjax` is light. Its packages, such as `memjax.memory`, are imported when they are first used.
"""

import importlib
import pkgutil
from types import ModuleType

__version__ = "0.1.0"
_PARTS = tuple(part.name for part in pkgutil.iter_modules(__path__) if not part.name.startswith("_"))


def __getattr__(name: str) -> ModuleType:
    if name not in _PARTS:
        raise AttributeError(f"module 'memjax' has no attribute {name!r}, allowed: {', '.join(_PARTS)}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
