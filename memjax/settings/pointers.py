"""Imports the functions and classes that settings name as their implementation."""

import importlib
from typing import Any

__all__ = ["import_by_name"]


def import_by_name(name: str) -> Any:
    """Imports and returns the function or class that a text such as 'memjax.data.squad:parse_squad' names.

    Settings name their implementation instead of importing it, so that they stay light, and so that a new kind needs
    no line in a table of all kinds.

    Args:
      name: Name of a module and of a function or class in it, with a colon between them.

    Raises:
      ImportError: There is no such module.
      AttributeError: The module has no such function or class.

    Example:
      >>> import_by_name("memjax.settings.pointers:import_by_name") is import_by_name
      True
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
