"""Texts on charts: numbers beside an axis, and names cut to a width."""

from __future__ import annotations

import math


def format_tick(value: float, low: float = 0.0, high: float = 0.0) -> str:
    """Formats the number `value` on an axis from `low` to `high`, with as few digits as tell it from the numbers beside
    it, and with k, M or G for large ones.

    Example:
      >>> [format_tick(value) for value in (0.0, 0.25, 12.0, 1500.0, 20000.0, 3e6, -0.001)]
      ['0', '0.25', '12', '1.5k', '20k', '3M', '-0.001']
      >>> format_tick(5.51412, 5.514, 5.5142)
      '5.51412'
    """
    span, largest = abs(high - low), max(abs(low), abs(high))
    digits = min(max(4, math.ceil(math.log10(largest / span)) + 2), 9) if span else 4
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}" if abs(value) > 1e-12 else "0"


def shorten_middle(text: str, most: int) -> str:
    """Returns a text of at most `most` letters, from whose middle letters are cut out if it is longer.

    Example:
      >>> shorten_middle("layer_00/transformer_xl/memory_share", 20)
      'layer_00/…mory_share'
    """
    text = " ".join(str(text).split())
    if len(text) <= most:
        return text
    return f"{text[: (most - 1) // 2]}…{text[len(text) - most // 2 :]}"
