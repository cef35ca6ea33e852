"""Mappings between keys of a `config.json` of Hugging Face's `transformers` and settings of memjax."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memjax import config
from memjax.interop.state_dicts import ACTIVATIONS, GATED_ACTIVATIONS

Described = Mapping[str, Any]
"""keys of a `config.json`"""


@dataclasses.dataclass(frozen=True)
class Field:
    """A key of a `config.json`, its default, and the setting of `memjax.config.Model` that it corresponds to, with
    functions that convert its value both ways. A key without a setting may have one allowed value only.

    Attributes:
      key: Name of the key.
      default: Value where the file lacks the key.
      path: Dotted path of the setting in the model's settings. '' for a key without a setting, which `allowed`
        restricts.
      load: Function `load(value, described)` that converts the key's value to the setting's. None for equal values.
      dump: Function `dump(value, model)` that converts the setting's value to the key's. None for equal values.
      allowed: Function `allowed(described)` that returns the only allowed value of a key without a setting.
      trains: Whether a key without a setting has an effect on training only. A value that differs from `allowed` is
        then accepted and reported.
    """

    key: str
    default: Any
    path: str = ""
    load: Callable[[Any, Described], Any] | None = None
    dump: Callable[[Any, config.Model], Any] | None = None
    allowed: Callable[[Described], Any] | None = None
    trains: bool = False


def fixed_key(key: str, value: Any, allowed: Callable[[Described], Any] | None = None) -> Field:
    """Returns the `Field` of a key without a setting. `value` is its default and the only value that memjax supports,
    unless the function `allowed` computes that from the configuration.
    """
    return Field(key, value, allowed=allowed or (lambda described: value))


def training_key(key: str, value: Any, like: str) -> Field:
    """Returns the `Field` of a key that affects training only and has no setting in memjax, which uses the value of the
    key `like` instead. `value` is its default. Another value is accepted and reported.
    """
    return Field(key, value, allowed=operator.itemgetter(like), trains=True)


def activation_key(key: str, default: str) -> Field:
    """Returns the `Field` of the key that names the activation of feed-forward parts, with `default`, a name of
    transformers. It is converted to memjax's name.
    """

    def load(name: str, described: Described) -> str:
        if name not in ACTIVATIONS:
            raise ValueError(f"hf_config[{key!r}]: given {name!r}, allowed: {', '.join(map(repr, ACTIVATIONS))}")
        return ACTIVATIONS[name]

    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return Field(key, default, "feed_forward.activation", load, lambda ours, model: names[ours])


def head_count_key(key: str, default: int, dim: str) -> Field:
    """Returns the `Field` of the key of the number of heads, with its default. On import the number must divide the
    width, which is the value of the key named `dim`.
    """

    def load(heads: int, described: Described) -> int:
        if heads < 1 or described[dim] % heads:
            raise ValueError(f"hf_config[{key!r}]: given {heads}, allowed: a divisor of {dim} = {described[dim]}")
        return heads

    return Field(key, default, "num_heads", load)


def gated_activation_key(key: str, default: str) -> Field:
    """Returns the `Field` of the key that names the activation of gated feed-forward parts, with `default`, a name of
    transformers. It is converted to memjax's name of a gated activation.
    """

    def load(name: str, described: Described) -> str:
        gated = GATED_ACTIVATIONS.get(ACTIVATIONS.get(name, ""))
        if gated is None:
            allowed = ", ".join(repr(theirs) for theirs, ours in ACTIVATIONS.items() if ours in GATED_ACTIVATIONS)
            raise ValueError(f"hf_config[{key!r}]: given {name!r}, allowed: {allowed}")
        return gated

    names = {GATED_ACTIVATIONS[ours]: theirs for theirs, ours in ACTIVATIONS.items() if ours in GATED_ACTIVATIONS}
    names |= {"geglu": "gelu_pytorch_tanh", "swiglu": "silu"}
    return Field(key, default, "feed_forward.activation", load, lambda ours, model: names[ours])


def key_heads_key(key: str, default: int | None, heads: str) -> Field:
    """Returns the `Field` of the key of the number of key heads, with its default. None stands for the number of heads,
    the value of the key named `heads`, which our setting 0 means. On import the number must divide that one.
    """

    def load(number: int | None, described: Described) -> int:
        whole = described[heads]
        if number is not None and (number < 1 or whole % number):
            raise ValueError(f"hf_config[{key!r}]: given {number}, allowed: a divisor of {heads} = {whole}")
        return 0 if number in (None, whole) else number

    return Field(key, default, "attention.key_heads", load, lambda ours, model: ours or model.num_heads)


def head_dim_key(key: str, default: int | None, dim: str, heads: str) -> Field:
    """Returns the `Field` of the key of the width of a head, with its default. None stands for the width of the model,
    the value of the key named `dim`, divided by the number of heads, that of `heads`, which our setting 0 means.
    """

    def load(number: int | None, described: Described) -> int:
        width, rest = divmod(described[dim], described[heads])
        if number is None and rest:
            allowed = f"a divisor of {dim} = {described[dim]}, or with {key}"
            raise ValueError(f"hf_config[{heads!r}]: given {described[heads]}, allowed: {allowed}")
        return 0 if number is None or (number == width and not rest) else number

    return Field(key, default, "head_dim", load, lambda ours, model: ours or model.dim // model.num_heads)


def optional_key(key: str, default: Any, path: str) -> Field:
    """Returns the `Field` of a key whose value None is 0 in the setting at `path`. `default` is its value where the
    file lacks the key.
    """
    return Field(key, default, path, lambda value, _: value or 0, lambda ours, _: ours or None)


def score_scale_key(key: str, default: int) -> Field:
    """Returns the `Field` of the key of a width whose square root divides the scores, with its default. The width of a
    head, the value of `head_dim`, is our setting None.
    """

    def load(width: float, described: Described) -> float | None:
        return None if width == described["head_dim"] else width**-0.5

    def dump(scale: float | None, model: config.Model) -> int:
        return (model.head_dim or model.dim // model.num_heads) if scale is None else round(scale**-2)

    return Field(key, default, "attention.score_scale", load, dump)


def without(fields: Iterable[Field], *names: str) -> tuple[Field, ...]:
    """Returns the fields whose keys are not among `names`."""
    return tuple(field for field in fields if field.key not in names)


def hidden_size_key(key: str, default: int | None, dim: str) -> Field:
    """Returns the `Field` of the key of the width of feed-forward parts, with its default. None or 0 stands for 4 times
    the model's width, which is the value of the key named `dim`.
    """
    load = lambda width, described: width or 4 * described[dim]
    return Field(key, default, "feed_forward.dim", load, lambda ours, model: ours or 4 * model.dim)


def epsilon_key(key: str, default: float, ours: float) -> Field:
    """Returns the `Field` of the key of the small number that norms add to the variance. `default` is its value where
    the file lacks the key. The value `ours`, the one of the architecture, becomes the setting None.

    Args:
      key: Name of the key.
      default: Value where the file lacks the key.
      ours: Number of the architecture, for which the setting is None.
    """
    load = lambda value, described: None if value == ours else float(value)
    return Field(key, default, "norm_epsilon", load, lambda value, model: ours if value is None else value)


def complete_keys(fields: Iterable[Field], described: Described) -> dict[str, Any]:
    """Returns a copy of a configuration (`described`, a dict as `config.json` has it) with the defaults of the keys in
    `fields` that it lacks, after checking the types of their values.

    Raises:
      ValueError: A value has another type than the default.
    """
    complete = {**{field.key: field.default for field in fields}, **described}
    for field in fields:
        _check_type(field, complete[field.key])
    return complete


def check_keys(fields: Iterable[Field], described: Described) -> tuple[str, ...]:
    """Returns a line for each key of `fields` whose value in the configuration `described` differs from memjax's in
    training only. Raises `ValueError` for a value that would change what the model computes.

    Args:
      fields: Keys of the family.
      described: Configuration, from `complete_keys`.

    Raises:
      ValueError: A value changes what the model computes, and memjax cannot express it.
    """
    notes = list[str]()
    for field in fields:
        if field.allowed is None or described[field.key] == (allowed := field.allowed(described)):
            continue
        difference = f"hf_config[{field.key!r}]: given {described[field.key]!r}"
        if not field.trains:
            raise ValueError(f"{difference}, allowed: {allowed!r}")
        notes.append(f"{difference}, trained here with {allowed!r}; what the weights compute is the same")
    return tuple(notes)


def load_settings(fields: Iterable[Field], described: Described, model: config.Model) -> None:
    """Sets the settings of `model`, in place, to the values of the configuration `described`, which `complete_keys` has
    completed.
    """
    for field in fields:
        if field.path:
            value = described[field.key] if field.load is None else field.load(described[field.key], described)
            *parts, last = field.path.split(".")
            setattr(functools.reduce(getattr, parts, model), last, value)


def dump_settings(fields: Iterable[Field], model: config.Model) -> dict[str, Any]:
    """Returns a dict for `config.json` with a value for each key in `fields`, from the settings of `model`. It is the
    inverse of `load_settings`.
    """
    described: dict[str, Any] = {}
    for field in fields:
        value = field.default
        if field.path:
            value = operator.attrgetter(field.path)(model)
            value = value if field.dump is None else field.dump(value, model)
        described[field.key] = value
    for field in fields:
        if field.allowed is not None:
            described[field.key] = field.allowed(described)
    return described


def _check_type(field: Field, value: Any) -> None:
    """Raises `ValueError` for a value of another type than the default has."""
    default = field.default
    types = (int, float) if isinstance(default, float) else type(default)
    if default is not None and not isinstance(value, types):
        raise ValueError(f"hf_config[{field.key!r}]: given {value!r}, allowed: a value such as {default!r}")
