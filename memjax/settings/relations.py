"""What a config may hold: `validate` raises one line, `warnings` names what is allowed but rarely meant.

Ranges stand in annotations (`memjax.settings.ranges`); what ties a field to others, of its class or of another section,
is said by the `check` of the class that has the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memjax.settings.compatibility import describe_renamed_field
from memjax.settings.ranges import hints_of, refusal

if TYPE_CHECKING:
    from memjax.config import Config


@dataclasses.dataclass(slots=True, kw_only=True)
class Settings:
    """Base class of all settings.

    `field` is the path of the part with a dot at its end: `model.attention.`, or '' for the whole.
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
        """Raises `ValueError` where its values do not fit each other or the other sections."""

    def warnings(self, field: str, config: Config) -> list[str]:
        """Lines about settings that are allowed but rarely meant."""
        del field, config
        return []


def check_fields(config: Config) -> None:
    """Raises `ValueError` where a field holds another type or a value out of its range, whatever the others hold."""
    for path, part in parts(config):
        for name, hint in hints_of(type(part)).items():
            value = getattr(part, name)
            allowed = refusal(value, hint)
            given = type(value).__name__ if dataclasses.is_dataclass(value) else value
            given = f"the class {value.__name__}" if isinstance(value, type) else given
            require(not allowed, f"{path}{name}", given, allowed)


def validate(config: Config) -> None:
    """Raises `ValueError` with one line that names the field, what was given and what is allowed."""
    check_fields(config)
    for path, part in parts(config):
        part.check(path, config)


def warnings(config: Config) -> list[str]:
    """Lines about settings that are allowed but rarely meant."""
    return [line for path, part in parts(config) for line in part.warnings(path, config)]


def require(condition: bool, field: str, given: object, allowed: str) -> None:
    """Raises `ValueError` with the one line about a field, unless `condition` holds."""
    if not condition:
        raise ValueError(f"{field}: given {given!r}, allowed: {allowed}")


def require_layers(field: str, layers: tuple[int, ...], num_layers: int) -> None:
    """Raises `ValueError` for a layer that a model does not have; negative ones count from the end."""
    inside = all(-num_layers <= layer < num_layers for layer in layers)
    require(inside, field, layers, f"layers from {-num_layers} to {num_layers - 1}")


def parts(settings: Any, path: str = "") -> Iterator[tuple[str, Settings]]:
    """Every part of a tree of settings with its path, outermost first."""
    yield path, settings
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from parts(value, f"{path}{field.name}.")
        for number, entry in enumerate(value if isinstance(value, tuple | list) else ()):
            if dataclasses.is_dataclass(entry):
                yield from parts(entry, f"{path}{field.name}.{number}.")
