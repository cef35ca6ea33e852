"""Arcs over a text, from a token to what it retrieved, with the words at both ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from memjax.report.charts import FAINT, INK, SERIES

__all__ = ["Arcs", "draw_arcs"]


@dataclasses.dataclass(frozen=True)
class Arcs:
    """What one token retrieved, in words.

    Attributes:
      position: of the token in its document.
      word: the token in its context.
      ends: position and weight of what it retrieved.
      words: each in its context.
    """

    position: int
    word: str
    ends: tuple[tuple[int, float], ...]
    words: tuple[str, ...]


def draw_arcs(figure: Any, arcs: Sequence[Arcs]) -> Any:
    """A strip for each token: its document as a line, arcs above it, words below it."""
    heaviest = max((weight for one in arcs for _, weight in one.ends), default=1.0)
    return [_strip(figure.add_subplot(len(arcs), 1, index + 1), one, heaviest) for index, one in enumerate(arcs)]


def _strip(axes: Any, one: Arcs, heaviest: float) -> Any:
    """One document from its first token to the one that asks, scaled to 0..1."""
    length = max(one.position, 1)
    axes.plot([0, 1], [0, 0], color=FAINT, linewidth=1.0, solid_capstyle="butt")
    angle = np.linspace(0, np.pi, 60)
    labels = sorted(
        [(position / length, word, weight) for (position, weight), word in zip(one.ends, one.words, strict=True)]
    )
    for at, _, weight in labels:
        middle, radius = (1 + at) / 2, (1 - at) / 2
        share = weight / heaviest
        height = 0.25 + 0.75 * (1 - at)
        stroke = {"color": SERIES[0], "alpha": 0.35 + 0.65 * share, "linewidth": 0.8 + 3.2 * share}
        axes.plot(middle + radius * np.cos(angle), height * np.sin(angle), **stroke)
    places = apart([at for at, _, _ in labels] + [1.0], 1 / 4.4)
    for (at, word, weight), place in zip(labels, places, strict=False):
        axes.plot([at, place], [0, -0.22], color=FAINT, linewidth=0.8)
        axes.text(place, -0.26, f"{word}\n{weight:.2f}", ha="center", va="top", fontsize=10.5, color=INK)
    axes.plot([1, places[-1]], [0, -0.22], color=FAINT, linewidth=0.8)
    shown = {"ha": "center", "va": "top", "fontsize": 10.5, "color": SERIES[1], "fontweight": "bold"}
    axes.text(places[-1], -0.26, f"{one.word}\nat {one.position}", **shown)
    axes.set_xlim(-0.12, 1.12)
    axes.set_ylim(-1.0, 1.05)
    axes.axis("off")
    return axes


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places moved so that neighbours are a gap apart, the last one staying and the others near theirs.

    Example:
      >>> apart([0.0, 0.9, 0.95, 1.0], 0.2)
      [0.0, 0.6, 0.8, 1.0]
    """
    moved = list(places)
    for index in range(len(moved) - 2, -1, -1):
        moved[index] = round(min(moved[index], moved[index + 1] - gap), 6)
    if moved and moved[0] < 0:  # no room at the left: evenly from there on
        for index in range(len(moved)):
            moved[index] = round(max(moved[index], index * (1.0 / max(len(moved) - 1, 1))), 6)
    return moved
