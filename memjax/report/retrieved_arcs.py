"""Draws arcs over a text, from a token to the positions that it retrieved, with the words at both ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from memjax.report.charts import FAINT, INK, SERIES


@dataclasses.dataclass(frozen=True)
class RetrievalArcs:
    """One token of a document, with the positions and texts of the earlier tokens that it retrieved from the memory,
    and their weights.

    Attributes:
      position: Position of the token in its document.
      word: Text of the token with some letters around it.
      ends: Position and weight of each retrieved token.
      words: Text of each retrieved token with some letters around it.
    """

    position: int
    word: str
    ends: tuple[tuple[int, float], ...]
    words: tuple[str, ...]


def draw_arcs(figure: Any, arcs: Sequence[RetrievalArcs]) -> Any:
    """Draws one chart for each entry of `arcs`: a document as a horizontal line, with arcs from a token to the
    positions that it retrieved, and their words below. Returns the list of axes.

    Args:
      figure: Matplotlib figure to draw on.
      arcs: Tokens with their retrieved positions, one for each chart.

    Returns:
      The axes of the charts, a list.
    """
    heaviest = max((weight for query in arcs for _, weight in query.ends), default=1.0)
    return [
        _draw_document(figure.add_subplot(len(arcs), 1, index + 1), query, heaviest) for index, query in enumerate(arcs)
    ]


def _draw_document(axes: Any, query: RetrievalArcs, heaviest: float) -> Any:
    """Draws a document from its first token (at 0) to the token that retrieves (at 1), with its arcs."""
    length = max(query.position, 1)
    axes.plot([0, 1], [0, 0], color=FAINT, linewidth=1.0, solid_capstyle="butt")
    angle = np.linspace(0, np.pi, 60)
    labels = sorted(
        [(position / length, word, weight) for (position, weight), word in zip(query.ends, query.words, strict=True)]
    )
    for at, _, weight in labels:
        middle, radius = (1 + at) / 2, (1 - at) / 2
        share = weight / heaviest
        height = 0.25 + 0.75 * (1 - at)
        stroke = {"color": SERIES[0], "alpha": 0.35 + 0.65 * share, "linewidth": 0.8 + 3.2 * share}
        axes.plot(middle + radius * np.cos(angle), height * np.sin(angle), **stroke)
    places = space_out([at for at, _, _ in labels] + [1.0], 1 / 4.4)
    for (at, word, weight), place in zip(labels, places, strict=False):
        axes.plot([at, place], [0, -0.22], color=FAINT, linewidth=0.8)
        axes.text(place, -0.26, f"{word}\n{weight:.2f}", ha="center", va="top", fontsize=10.5, color=INK)
    axes.plot([1, places[-1]], [0, -0.22], color=FAINT, linewidth=0.8)
    shown = {"ha": "center", "va": "top", "fontsize": 10.5, "color": SERIES[1], "fontweight": "bold"}
    axes.text(places[-1], -0.26, f"{query.word}\nat {query.position}", **shown)
    axes.set_xlim(-0.12, 1.12)
    axes.set_ylim(-1.0, 1.05)
    axes.axis("off")
    return axes


def space_out(places: Sequence[float], gap: float) -> list[float]:
    """Moves ascending positions from 0 to 1 to the left until neighbours are at least `gap` apart, or evenly spread
    where there is no room. Returns the moved positions.

    Example:
      >>> space_out([0.0, 0.9, 0.95, 1.0], 0.2)
      [0.0, 0.6, 0.8, 1.0]
    """
    moved = list(places)
    for index in range(len(moved) - 2, -1, -1):
        moved[index] = round(min(moved[index], moved[index + 1] - gap), 6)
    if moved and moved[0] < 0:  # Without room at the left the positions are spread evenly.
        for index in range(len(moved)):
            moved[index] = round(max(moved[index], index * (1.0 / max(len(moved) - 1, 1))), 6)
    return moved
