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
    """Base class of all settings: dataclasses whose fields are options of the command line, with checks of their
    values.

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
        """Raises `ValueError` where values do not fit each other or other sections of `config`. `field` is the path of
        these settings in it with a dot at the end, such as 'model.attention.', for the message.
        """

    def warnings(self, field: str, config: Config) -> list[str]:
        """Returns lines of text about settings that are allowed but rarely meant. `field` is the path of these settings
        in `config` with a dot at the end, such as 'model.attention.'.
        """
        del field, config
        return []


def check_fields(config: Config) -> None:
    """Raises `ValueError` where a field of a config has a wrong type or a value out of its range. Fields are not
    compared with each other.
    """
    for path, part in iterate_settings(config):
        for name, hint in type_hints_of(type(part)).items():
            value = getattr(part, name)
            allowed = describe_invalid(value, hint)
            shown = type(value).__name__ if dataclasses.is_dataclass(value) else value
            shown = f"the class {value.__name__}" if isinstance(value, type) else shown
            require(not allowed, f"{path}{name}", shown, allowed)


def validate(config: Config) -> None:
    """Checks all fields of a config and how they fit together. Raises `ValueError` with one line that names the field,
    its value and what is allowed. Returns nothing.
    """
    check_fields(config)
    for path, part in iterate_settings(config):
        part.check(path, config)


def warnings(config: Config) -> list[str]:
    """Returns lines of text about settings of a config that are allowed but rarely meant, from all its sections."""
    return [line for path, part in iterate_settings(config) for line in part.warnings(path, config)]


def has_field(settings: Any, name: str) -> bool:
    """Returns whether settings have a field `name`, whose value can be chosen. A fact of their class is no field."""
    return any(field.name == name for field in dataclasses.fields(settings))


def require(condition: bool, field: str, given: object, allowed: str) -> None:
    """Raises `ValueError` unless `condition` holds. The line of the error has the path of the field, the value that is
    given, and a text that says what is allowed.
    """
    if not condition:
        raise ValueError(f"{field}: given {given!r}, allowed: {allowed}")


def require_layers(field: str, layers: tuple[int, ...], num_layers: int) -> None:
    """Raises `ValueError` if a model with `num_layers` layers lacks one of these layer numbers. Negative ones count
    from the end. `field` is the path of the field for the message.
    """
    inside = all(-num_layers <= layer < num_layers for layer in layers)
    require(inside, field, layers, f"layers from {-num_layers} to {num_layers - 1}")


def iterate_settings(settings: Any, path: str = "") -> Iterator[tuple[str, Settings]]:
    """Yields pairs of a path with a dot at its end, such as 'model.attention.', and the settings there: all settings
    inside of `settings`, itself first with `path`.
    """
    yield path, settings
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from iterate_settings(value, f"{path}{field.name}.")
        for number, entry in enumerate(value if isinstance(value, tuple | list) else ()):
            if dataclasses.is_dataclass(entry):
                yield from iterate_settings(entry, f"{path}{field.name}.{number}.")
