"""Kinds of settings by name: what the tables of `--memory-kind` and of `--method` share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from memjax.settings.overrides import UsageError, suggestion
from memjax.settings.pointers import import_kind

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["NamedKind", "NamedKinds", "in_name_of_run"]

Values = dict[str, Any]


def _no_values(config: Config) -> Values:
    del config
    return {}


def _unchanged(config: Config) -> Config:
    return config


@dataclass(frozen=True)
class NamedKind:
    """A kind of settings that has a name.

    Attributes:
      about: Description of the memory or method in a line.
      kind: Class of its settings.
      values: Values of its settings that differ from their defaults, for any model.
      sizes: `sizes(config) -> values`, values of its settings that fit the sizes of a config.
      prepare: `prepare(config) -> config`, which changes what the kind needs besides its settings, such as the head.
      put: `put(config, settings) -> config`, which adds the settings to a config.
    """

    about: str
    kind: type
    values: Values
    sizes: Callable[[Config], Values] = _no_values
    prepare: Callable[[Config], Config] = _unchanged
    put: Callable[[Config, Any], Config] = field(kw_only=True)

    def for_config(self, config: Config | None) -> NamedKind:
        """Returns the kind that the name stands for with a config, by default this one. None for any config."""
        del config
        return self


Entry = TypeVar("Entry", bound=NamedKind)


class NamedKinds(dict[str, Entry]):
    """The names that an option takes, each with its kind of settings. A class of a user's own has the name
    `my_module:MyClass`.

    Args:
      entries: Name -> its kind.
      option: Option that takes a name, such as `--method`.
      about: Description of all names in a sentence.
      usage: Description of the option for its help, without the names.
      without: `without(config, name) -> config`, which removes what the settings replace. It raises `UsageError` for a
        config that takes none.
      make_entry: `make_entry(about, kind, values) -> entry`, which makes the entry of a class of a user's own.
      base: Class in `memjax.config` that a class of a user's own is a subclass of.
      aliases: Further name -> name in `entries`.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        *,
        option: str,
        about: str,
        usage: str,
        without: Callable[[Config, str], Config],
        make_entry: Callable[[str, type, Values], Entry],
        base: type,
        aliases: Mapping[str, str] = {},
    ):
        super().__init__(entries)
        self.option, self.about, self.without, self.aliases = option, about, without, aliases
        self.make_entry, self.base = make_entry, base
        described = "; ".join(f"{name} = {entry.about}" for name, entry in entries.items())
        self.help = f"{usage}: {described}; my_module:MyClass = your own class".replace("%", "%%")

    def find(self, name: str) -> Entry:
        """Returns the kind with a name, which may be an alias. `-` may stand for `_`. A class of a user's own is
        imported.

        Raises:
          UsageError: There is no such name. The line proposes similar ones, and lists all. Or a class cannot be
            imported, or is none that can be used.
        """
        if ":" in name:
            return self._import_entry(name)
        names, spelled = [*self, *self.aliases], name.lower().replace("-", "_")
        if spelled in names:
            return self[self.aliases.get(spelled, spelled)]
        raise UsageError(
            f"{self.option}: given {name!r}, allowed: {', '.join(names)}, or "
            f"my_module:MyClass{suggestion(spelled, names)}"
        )

    def _import_entry(self, name: str) -> Entry:
        """Returns an entry for a user's own class, from the places that `memjax.settings.pointers` allows."""
        try:
            kind = import_kind(name)
        except ValueError as error:
            raise UsageError(f"{self.option}: {error}") from error
        if not issubclass(kind, self.base):
            allowed = f"a subclass of memjax.config.{self.base.__name__}"
            raise UsageError(f"{self.option}: given {name}, settings of another kind, allowed: {allowed}")
        required = [part.name for part in fields(kind) if part.default is part.default_factory is MISSING]
        if required:
            raise UsageError(
                f"{self.option}: given {name}, whose field {required[0]} has no default, allowed: a class whose fields "
                "all have one; options change them"
            )
        return self.make_entry((kind.__doc__ or kind.__name__).strip().partition("\n")[0], kind, {})

    def make_settings(self, name: str, config: Config | None = None, /, **values: Any) -> Any:
        """Makes the settings of the kind with a name, of the class that belongs into a config.

        Args:
          name: A name of the table.
          config: Config whose model and data the settings fit. None for values that do not depend on them.
          **values: Values of fields, which take precedence.

        Raises:
          UsageError: There is no such name.

        Example:
          >>> from memjax.settings.named_methods import METHODS
          >>> METHODS.make_settings("ewc", penalty_weight=100.0).penalty_weight
          100.0
        """
        entry = self.find(name).for_config(config)
        sizes = entry.sizes(config) if config is not None else {}
        return entry.kind(**copy.deepcopy({**entry.values, **sizes, **values}))

    def replace_in(self, config: Config, name: str, /, **values: Any) -> Config:
        """Returns a copy of a config with the memory or method of a name in place of its own. Its settings fit the
        model and the data, and the config gets what it needs besides.

        Args:
          config: A config that takes such settings.
          name: A name of the table.
          **values: Values of fields of the settings, which take precedence.

        Raises:
          UsageError: There is no such name, or the config takes no such settings.
        """
        config = self.without(config, name)
        entry = self.find(name).for_config(config)
        config = entry.prepare(config)
        return entry.put(config, self.make_settings(name, config, **values))


def in_name_of_run(name: str) -> str:
    """Returns the name of a memory or method as it stands in the names of runs.

    Example:
      >>> in_name_of_run("my_module:MyMethod")
      'my_module_MyMethod'
    """
    return name.replace(":", "_")
