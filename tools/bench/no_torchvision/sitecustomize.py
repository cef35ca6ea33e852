"""Empty names in place of torchvision, for a Python that has this folder on its path (`tools.bench.split_mnist`).

Avalanche imports torchvision, whose wheel needs CUDA, and uses nothing of it for digits. Standard library only.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class _Nothing(types.ModuleType):
    """A module that has every name."""

    __path__: list[str] = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


class _Nowhere(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision and its modules, which are empty."""

    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec):
        return _Nothing(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Nowhere())
