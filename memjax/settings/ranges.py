"""Types of settings with the range of their values, and the function that checks a value against its type.

`memory_length: Slots = 128` says all of it: a field's range stands where the field stands. What ties fields to each
other is said by the `check` of their class (see `memjax.settings.checks`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """A range of numbers that a field may hold, with its limits and its description for messages. For a tuple every
    entry must lie in it.

    Attributes:
      words: Description of the range in messages, such as "0 to 99 percent".
      least: Smallest value.
      most: Largest value.
      above: Number that every value must exceed.
      below: Number that every value must stay below.
      entries: Minimum number of entries of a tuple.
    """

    words: str
    least: float = -inf
    most: float = inf
    above: float = -inf
    below: float = inf
    entries: int = 0

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, tuple | list):
            return len(value) >= self.entries and all(entry in self for entry in value)
        return _is_number(value) and self.least <= value <= self.most and self.above < value < self.below


class TextEncodings:
    """The names of the text encodings that Python's codecs know, as a set that `in` tests."""

    words = "an encoding such as utf-8, utf-16, latin-1, cp1252"

    def __contains__(self, name: Any) -> bool:
        with contextlib.suppress(LookupError, ValueError):
            return isinstance(name, str) and "".encode(name) is not None  # refuses hex and others that are of no text
        return False


COUNTED = 2**31 - 1
"""largest value of an integer setting: counters and sizes have 32 bits"""
PLAIN = {
    int: ("an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: ("a number", lambda value: _is_number(value) and abs(value) <= sys.float_info.max),
    bool: ("True or False", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
}
"""type of a field -> words for the type in messages, and a function that tells whether a value has it"""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def zero_or_more(meaning: str = "", unit: str = "") -> Range:
    """Returns the `Range` of numbers from 0 on. `meaning` (of the value 0) and `unit` are words for its description in
    messages.

    Example:
      >>> zero_or_more("off", "tokens").words, -1 in zero_or_more()
      ('0 (off) or more tokens', False)
    """
    return Range(words=f"0{f' ({meaning})' if meaning else ''} or more{f' {unit}' if unit else ''}", least=0)


Count = Annotated[int, Range(words="an integer of at least 1", least=1)]
Number = Annotated[int, zero_or_more()]
Seed = Annotated[int, zero_or_more()]
Percent = Annotated[int, Range(words="0 to 99 percent", least=0, most=99)]
HeadDim = Annotated[int, zero_or_more("dim / num_heads")]
Slots = Annotated[int, zero_or_more(unit="slots")]
Positive = Annotated[float, Range(words="more than 0", above=0)]
Rate = Annotated[float, Range(words="a rate in [0, 1)", least=0, below=1)]
Share = Annotated[float, Range(words="a share from 0 to 1", least=0, most=1)]
Probability = Annotated[float, Range(words="a probability in (0, 1]", above=0, most=1)]
Temperature = Annotated[float, zero_or_more("greedy")]
Finite = Annotated[float, Range(words="a number")]
Weight = Annotated[float, zero_or_more("logged only")]
"""type of the coefficient of an auxiliary loss"""
Encoding = Annotated[str, TextEncodings()]
Decay = Annotated[float, Range(words="a number in [0, 1)", least=0, below=1)]


@functools.cache
def type_hints_of(kind: type) -> dict[str, Any]:
    """Returns a dict from the names of the fields of the settings class `kind` to their types, with their ranges."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def describe_invalid(value: Any, hint: Any) -> str:
    """Returns a text that says which values a type hint allows, if `value` is none of them. '' where it is one.

    Example:
      >>> describe_invalid(3, Count), describe_invalid(0, Count)
      ('', 'an integer of at least 1')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, *ranges = arguments
        broken = (entry.words for entry in ranges if value not in entry)
        return next(broken, "") or describe_invalid(value, kind)
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return "a tuple, as (1, 2)" if arguments[0] in PLAIN else "a tuple"
        return next(filter(None, (describe_invalid(entry, arguments[0]) for entry in value)), "")
    if hint in PLAIN:
        words, holds = PLAIN[hint]
        too_large = isinstance(value, int) and abs(value) > COUNTED
        return (f"{words} up to {COUNTED:,}" if too_large else "") if holds(value) else words
    if origin in (Union, UnionType):
        if NoneType in arguments and value is None:
            return ""
        refusals = [describe_invalid(value, kind) for kind in arguments if kind is not NoneType]
        return "" if "" in refusals else " or ".join([*refusals, *(["None"] if NoneType in arguments else [])])
    is_part = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    return hint.__name__ if is_part and not isinstance(value, hint) else ""
