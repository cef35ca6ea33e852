"""Checks of configurations: `validate` raises an error of one line, `warnings` names settings that are rarely meant.

Ranges stand in annotations (`memjax.settings.ranges`); what ties a field to others, of its class or of another section,
is said by the `check` of the class that has the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memjax.settings.compatibility import describe_renamed_field
from memjax.settings.ranges import describe_invalid, type_hints_of

if TYPE_CHECKING:
    from memjax.config import Config


@dataclasses.dataclass(slots=True, kw_only=True)
class Settings:
    """Base class of all settings.

    Methods take the path of the settings in the config as `field`, with a dot at its end, such as `model.attention.`.
    It is '' for the whole config.
    """

    if not TYPE_CHECKING:  # A type checker would take every name for a field.

        def __new__(cls, *arguments, **fields):
            """Refuses keywords that are names of earlier versions in a line that says the name of today."""
            # `super()` does not work in classes with slots, which `dataclass` makes a second time.
            for line in filter(None, (describe_renamed_field(cls, name) for name in fields)):
                raise TypeError(line)
            return object.__new__(cls)

        def __getattr__(self, name):
            kind = type(self)
            raise AttributeError(
                describe_renamed_field(kind, name) or f"{kind.__name__!r} object has no attribute {name!r}"
            )

        def __setattr__(self, name, value):
            if line := describe_renamed_field(type(self), name):
                raise AttributeError(line)
            object.__setattr__(self, name, value)

    def check(self, field: str, config: Config) -> None:
        """Raises `ValueError` where values do not fit each other or other sections of the config."""

    def warnings(self, field: str, config: Config) -> list[str]:
        """Returns lines about settings that are allowed but rarely meant."""
        del field, config
        return []


def check_fields(config: Config) -> None:
    """Raises `ValueError` where a field has a wrong type or a value out of its range, without comparing fields."""
    for path, part in iterate_settings(config):
        for name, hint in type_hints_of(type(part)).items():
            value = getattr(part, name)
            allowed = describe_invalid(value, hint)
            shown = type(value).__name__ if dataclasses.is_dataclass(value) else value
            shown = f"the class {value.__name__}" if isinstance(value, type) else shown
            require(not allowed, f"{path}{name}", shown, allowed)


def validate(config: Config) -> None:
    """Raises `ValueError` with one line that names the field, its value and what is allowed."""
    check_fields(config)
    for path, part in iterate_settings(config):
        part.check(path, config)


def warnings(config: Config) -> list[str]:
    """Returns lines about settings that are allowed but rarely meant."""
    return [line for path, part in iterate_settings(config) for line in part.warnings(path, config)]


def require(condition: bool, field: str, given: object, allowed: str) -> None:
    """Raises `ValueError` with one line about a field, unless `condition` holds."""
    if not condition:
        raise ValueError(f"{field}: given {given!r}, allowed: {allowed}")


def require_layers(field: str, layers: tuple[int, ...], num_layers: int) -> None:
    """Raises `ValueError` for layer numbers that a model does not have. Negative ones count from the end."""
    inside = all(-num_layers <= layer < num_layers for layer in layers)
    require(inside, field, layers, f"layers from {-num_layers} to {num_layers - 1}")


def iterate_settings(settings: Any, path: str = "") -> Iterator[tuple[str, Settings]]:
    """Yields the settings of every section of a config with their paths, outermost first."""
    yield path, settings
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from iterate_settings(value, f"{path}{field.name}.")
        for number, entry in enumerate(value if isinstance(value, tuple | list) else ()):
            if dataclasses.is_dataclass(entry):
                yield from iterate_settings(entry, f"{path}{field.name}.{number}.")
