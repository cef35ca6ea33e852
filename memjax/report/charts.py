"""Colours of a report, and charts that are drawn alike: on a Matplotlib figure, readable on a phone and in print.

A figure is 7 inches wide, letters are 14 points: half the size on a phone 360 pixels wide, which can be read still. All
charts take colours of this file only, so that a page shows them light or dark.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = [
    "FAINT",
    "GAIN",
    "INK",
    "LOSS",
    "PAPER",
    "SERIES",
    "WIDTH",
    "bars",
    "heat",
    "histogram",
    "lines",
    "new_figure",
    "scatter",
    "style",
]

INK = "#1d2129"
"""Letters and axes."""

FAINT = "#9097a3"
"""What stands behind: a grid, a reference, what is less than the rest."""

PAPER = "#fffffe"
"""What a figure lies on; not plain white, so that a page finds it among the colours of a picture."""

SERIES = ["#0072b2", "#d55e00", "#009e73", "#b3579a", "#3a9ad9", "#c28800"]
"""Of what is compared, first to last: told apart by people who see fewer colours, and also by their lines."""

GAIN = "#2166ac"
"""Better than without."""

LOSS = "#b2182b"
"""Worse than without."""

WIDTH = 7.0
"""Inches."""

LETTERS = 14
"""points"""

STROKES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
"""of lines: the second to fourth round through `SERIES` takes the next one"""

MOST_CELLS = 900
"""of a matrix that is drawn as shapes; more become one image"""

LABEL = 40
"""letters of a name in a legend, at most"""

DEEPEST = 0.62
"""opacity of the largest cell with a number in it: `INK` is read on it still"""

PLACE = (1, 1, 1)


def style() -> dict[str, Any]:
    """Settings of Matplotlib under which a figure of a report is drawn and written; the same figure, the same bytes."""
    return {
        "font.family": ["DejaVu Sans"],
        "font.size": LETTERS,
        "axes.titlesize": LETTERS,
        "axes.titlelocation": "left",
        "axes.labelsize": LETTERS,
        "xtick.labelsize": LETTERS,
        "ytick.labelsize": LETTERS,
        "legend.fontsize": LETTERS,
        "legend.frameon": False,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.linewidth": 0.8,
        "axes.facecolor": PAPER,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.unicode_minus": False,
        "text.parse_math": False,  # words of a text may hold dollars
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.major.width": 0.8,
        "ytick.major.width": 0.8,
        "xtick.minor.visible": False,
        "ytick.minor.visible": False,
        "grid.color": FAINT,
        "grid.linewidth": 0.5,
        "grid.alpha": 0.35,
        "lines.linewidth": 2.0,
        "lines.solid_capstyle": "round",
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.fonttype": "none",
        "svg.hashsalt": "memjax",
        "path.simplify_threshold": 0.3,
    }


@contextlib.contextmanager
def new_figure(height: float = 3.0) -> Iterator[Any]:
    """An empty figure `WIDTH` inches wide, in the style of a report while the context lasts.

    Example:
      >>> with new_figure(2.0) as figure:
      ...     lines(figure, {"loss": ([1, 2, 3], [3.0, 2.0, 1.5])}, x="steps").get_xlabel()
      'steps'
    """
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {**matplotlib.rcParamsDefault, **style()}
    with matplotlib.rc_context(settings):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def lines(
    figure: Any,
    series: Mapping[str, tuple[Any, Any]],
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    bands: Mapping[str, tuple[Any, Any]] | None = None,
    marks: bool = False,
    borders: Sequence[float] = (),
    levels: Mapping[str, float] | None = None,
    limits: tuple[float | None, float | None] | None = None,
    place: tuple[int, int, int] = PLACE,
) -> Any:
    """Named lines over one axis; returns the axes.

    Args:
      series: name -> its x and its y, of one length. One alone has no legend.
      x: label of the axis, with its unit.
      y: likewise.
      log_x: a logarithmic axis, where all values are above 0.
      log_y: likewise.
      bands: name of a series -> least and most at each of its x, such as the error of its mean.
      marks: a dot at each value: of few values.
      borders: places on the x axis with a faint upright line, such as where a task ends.
      levels: name -> a value with a faint level line, such as the score of guessing.
      limits: of the y axis, None = from the data.
      place: (rows, columns, index from 1) of a figure with several charts.
    """
    axes = _axes(figure, place, title, x, y)
    _log_scales(axes, series.values(), log_x, log_y)
    for border in borders:
        axes.axvline(border, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
    for name, level in (levels or {}).items():
        axes.axhline(level, color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)), label=_short(name, LABEL))
    for index, (name, (xs, ys)) in enumerate(series.items()):
        xs, ys = np.asarray(xs, float), np.asarray(ys, float)
        color, stroke = SERIES[index % len(SERIES)], STROKES[index // len(SERIES) % len(STROKES)]
        marker = "o" if marks or np.isfinite(ys).sum() == 1 else None
        axes.plot(xs, ys, color=color, linestyle=stroke, marker=marker, markersize=5, label=_short(name, LABEL))
        if bands and name in bands:
            low, high = (np.asarray(side, float) for side in bands[name])
            axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    if limits:
        axes.set_ylim(*limits)
    _few_ticks(axes, place)
    axes.grid(True, axis="y")
    if len(series) + len(levels or {}) > 1:
        _legend(axes, [*(levels or {}), *series], place)
    return axes


def bars(
    figure: Any,
    names: Sequence[str],
    series: Mapping[str, Any],
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    errors: Mapping[str, Any] | None = None,
    numbers: str = "",
    upright: bool = False,
    signed: bool = False,
    limits: tuple[float | None, float | None] | None = None,
    place: tuple[int, int, int] = PLACE,
) -> Any:
    """Bars, a group for each name, first on top; returns the axes.

    Args:
      names: of the groups.
      series: name -> a value for each group (NaN = none). One alone has no legend.
      x: label of the horizontal axis, with its unit.
      y: label of the vertical axis.
      errors: name of a series -> half the length of the error bar of each value.
      numbers: format of the number at the end of each bar, such as `{:.2f}`; '' = none.
      upright: bars stand, first at the left: for short names, or a range of sizes.
      signed: a value below 0 has the colour of a loss, above 0 that of a gain: for one series.
      limits: of the axis of the values.
      place: (rows, columns, index from 1) of a figure with several charts.
    """
    axes = _axes(figure, place, title, x, y)
    middle, thick = np.arange(len(names)), 0.8 / max(len(series), 1)
    for index, (name, values) in enumerate(series.items()):
        values = np.asarray(values, float)
        at = middle + (index - (len(series) - 1) / 2) * thick
        color = [GAIN if value >= 0 else LOSS for value in values] if signed else SERIES[index % len(SERIES)]
        draw, error = (axes.bar, "yerr") if upright else (axes.barh, "xerr")
        more = {error: errors[name], "ecolor": INK} if errors and name in errors else {}
        shapes = draw(at, values, thick * 0.92, color=color, label=_short(name, LABEL), **more)
        if numbers:
            shown = [numbers.format(value) if math.isfinite(value) else "" for value in values]
            axes.bar_label(shapes, labels=shown, padding=3, color=INK, fontsize=LETTERS - 1)
    names = [_short(name, 14 if upright else 30) for name in names]
    (axes.set_xticks if upright else axes.set_yticks)(middle, names)
    if upright and sum(map(len, names)) > 46:
        axes.tick_params(axis="x", rotation=45)
    if not upright:
        axes.invert_yaxis()
    axes.tick_params(axis="x" if upright else "y", length=0)
    if limits:
        (axes.set_ylim if upright else axes.set_xlim)(*limits)
    elif numbers:
        axes.margins(**{"y" if upright else "x": 0.16})
    _few_ticks(axes, place, "y" if upright else "x")
    axes.grid(True, axis="y" if upright else "x")
    if any(np.min(np.nan_to_num(np.asarray(values, float)), initial=0.0) < 0 for values in series.values()):
        (axes.axhline if upright else axes.axvline)(0, color=INK, linewidth=0.8)
    if len(series) > 1:
        _legend(axes, [*series], place)
    return axes


def heat(
    figure: Any,
    matrix: Any,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    x: str = "",
    y: str = "",
    title: str = "",
    numbers: str = "",
    low: float | None = None,
    high: float | None = None,
    signed: bool = False,
    place: tuple[int, int, int] = PLACE,
) -> Any:
    """A matrix, its first row on top, darker = more; returns the axes.

    Args:
      matrix: [rows, columns]; NaN = empty.
      rows: their names: all, or none where the axis is a number.
      columns: likewise.
      x: label below.
      y: label at the left.
      numbers: format of the number in each cell, such as `{:.2f}`; '' = none. A scale is beside a matrix without them.
      low: value of an empty colour, None = 0 or the least.
      high: of the full colour, None = the largest.
      signed: below 0 in the colour of a loss, above 0 in that of a gain.
      place: (rows, columns, index from 1) of a figure with several charts.
    """
    matrix = np.asarray(matrix, float)
    axes = _axes(figure, place, title, x, y)
    deepest = DEEPEST if numbers else 1.0
    finite = matrix[np.isfinite(matrix)]
    if signed:
        high = high if high is not None else float(np.max(np.abs(finite), initial=0.0))
        low = 0.0
    else:
        low = low if low is not None else min(float(np.min(finite, initial=math.inf)), 0.0) if finite.size else 0.0
        high = high if high is not None else float(np.max(finite, initial=low))
    share = np.nan_to_num(np.clip((np.abs(matrix) if signed else matrix - low) / ((high - low) or 1.0), 0.0, 1.0))
    colors = np.zeros((*matrix.shape, 4))
    colors[..., :3] = np.where(matrix[..., None] < 0, _rgb(LOSS), _rgb(GAIN)) if signed else _rgb(SERIES[0])
    colors[..., 3] = share * deepest
    if matrix.size > MOST_CELLS and not numbers:
        axes.imshow(colors, aspect="auto", interpolation="nearest")
    else:
        _cells(axes, matrix, colors, numbers)
    for names, count, ticks, limits in (
        (columns, matrix.shape[1], axes.set_xticks, axes.set_xlim),
        (rows, matrix.shape[0], axes.set_yticks, lambda least, most: axes.set_ylim(most, least)),
    ):
        limits(-0.5, count - 0.5)
        if names:
            every = math.ceil(count / (24 if ticks == axes.set_yticks else 16))
            ticks(np.arange(0, count, every), [_short(name, 24) for name in names][::every])
    if columns and sum(len(_short(name, 24)) for name in columns) * place[1] > 40:
        axes.tick_params(axis="x", rotation=60)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not numbers:
        _scale(figure, axes, low, high, signed)
    return axes


def scatter(
    figure: Any,
    points: Any,
    classes: Sequence[str] = (),
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    names: Sequence[str] = (),
    size: float = 18.0,
    bare: bool = False,
    place: tuple[int, int, int] = PLACE,
) -> Any:
    """Points, of classes; returns the axes.

    Args:
      points: [points, 2].
      classes: of each point; () = one class.
      x: label of the horizontal axis.
      y: label of the vertical axis.
      names: written beside each point; () = none.
      size: of a dot, in square points.
      bare: without ticks: of a projection whose axes mean nothing.
      place: (rows, columns, index from 1) of a figure with several charts.
    """
    points = np.asarray(points, float).reshape(-1, 2)
    axes = _axes(figure, place, title, x, y)
    of = np.asarray([*classes] or [""] * len(points))
    found = [*dict.fromkeys(of.tolist())]
    for index, name in enumerate(found):
        color, marker = SERIES[index % len(SERIES)], "os^DvP"[index // len(SERIES) % 6]
        chosen = points[of == name]
        axes.scatter(
            *chosen.T, s=size, color=color, marker=marker, alpha=0.8, linewidths=0, label=_short(str(name), LABEL)
        )
    for name, point in zip(names, points, strict=bool(names)):
        axes.annotate(_short(name, 24), point, xytext=(4, 4), textcoords="offset points", fontsize=LETTERS - 1)
    if bare:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    else:
        _few_ticks(axes, place)
    if len(found) > 1:
        _legend(axes, [*map(str, found)], place)
    return axes


def histogram(
    figure: Any,
    values: Mapping[str, Any],
    *,
    bins: int | Sequence[float] = 30,
    x: str = "",
    y: str = "share",
    title: str = "",
    log_y: bool = False,
    place: tuple[int, int, int] = PLACE,
) -> Any:
    """How numbers are spread: the share of each name's that falls into each bin, bins of all alike; returns the axes.

    Args:
      values: name -> its numbers; those that are not finite are left out. One alone has no legend.
      bins: how many, or their edges.
      x: label below, with its unit.
      y: label at the left.
      log_y: a logarithmic axis of shares.
      place: (rows, columns, index from 1) of a figure with several charts.
    """
    axes = _axes(figure, place, title, x, y)
    finite = {name: (numbers := np.ravel(np.asarray(v, float)))[np.isfinite(numbers)] for name, v in values.items()}
    edges = np.histogram_bin_edges(np.concatenate([*finite.values()] or [np.zeros(0)]), np.asarray(bins))
    for index, (name, numbers) in enumerate(finite.items()):
        share = np.histogram(numbers, edges)[0] / max(numbers.size, 1)
        color = SERIES[index % len(SERIES)]
        axes.stairs(share, edges, fill=True, color=color, alpha=0.6 if len(finite) == 1 else 0.18, linewidth=0)
        axes.stairs(share, edges, color=color, linewidth=1.6, label=_short(name, LABEL))
    if log_y:
        axes.set_yscale("log")
    _few_ticks(axes, place)
    axes.grid(True, axis="y")
    if len(finite) > 1:
        _legend(axes, [*finite], place)
    return axes


def _axes(figure: Any, place: tuple[int, int, int], title: str, x: str, y: str) -> Any:
    axes = figure.add_subplot(*place)
    axes.set_title(_short(title, 64 // place[1]), color=INK)
    axes.set_xlabel(_short(x, 64 // place[1]))
    axes.set_ylabel(_short(y, 32))
    return axes


def _log_scales(axes: Any, series: Any, log_x: bool, log_y: bool) -> None:
    """Logarithmic axes where every value has a logarithm."""
    for wanted, side, scale in ((log_x, 0, axes.set_xscale), (log_y, 1, axes.set_yscale)):
        values = [np.asarray(one[side], float) for one in series] if wanted else []
        if wanted and all(np.all(one[np.isfinite(one)] > 0) for one in values):
            scale("log")


def _few_ticks(axes: Any, place: tuple[int, int, int], which: str = "xy") -> None:
    """At most five numbers on an axis, three where charts stand side by side; thousands as `k`, millions as `M`."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    most = {"x": 5 if place[1] == 1 else 3, "y": 5 if place[0] < 3 else 4}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name not in which:
            continue
        if axis.get_scale() == "linear":
            axis.set_major_locator(MaxNLocator(most[name]))
        else:
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(
            FuncFormatter(lambda value, _, axis=axis: _brief(float(value), *axis.get_view_interval()))
        )


def _brief(value: float, low: float = 0.0, high: float = 0.0) -> str:
    """A number of an axis from `low` to `high`, short, but so that its neighbours are others.

    Example:
      >>> [_brief(value) for value in (0.0, 0.25, 12.0, 1500.0, 20000.0, 3e6, -0.001)]
      ['0', '0.25', '12', '1.5k', '20k', '3M', '-0.001']
      >>> _brief(5.51412, 5.514, 5.5142)
      '5.51412'
    """
    span, largest = abs(high - low), max(abs(low), abs(high))
    digits = min(max(4, math.ceil(math.log10(largest / span)) + 2), 9) if span else 4
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}" if abs(value) > 1e-12 else "0"


def _short(text: str, most: int) -> str:
    """The text, its middle left out where it is longer than `most` letters.

    Example:
      >>> _short("layer_00/transformer_xl/memory_share", 20)
      'layer_00/…mory_share'
    """
    text = " ".join(str(text).split())
    if len(text) <= most:
        return text
    return f"{text[: (most - 1) // 2]}…{text[len(text) - most // 2 :]}"


def _legend(axes: Any, names: Sequence[str], place: tuple[int, int, int]) -> None:
    """Above the axes, in as many columns as fit."""
    longest = max(len(_short(name, LABEL)) for name in names)
    columns = max(1, min(len(names), 56 // place[1] // (longest + 6), 4))
    rows = -(-len(names) // columns)
    if place[:2] == (1, 1) and rows > 2:  # more of it makes the figure higher and not the chart flatter
        axes.figure.set_size_inches(WIDTH, axes.figure.get_figheight() + 0.27 * (rows - 2))
    # A legend of an axes with a title stands below it, inside the picture.
    above = {} if axes.get_title(loc="left") else {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0)}
    axes.legend(ncols=columns, borderaxespad=0.2, handlelength=1.6, columnspacing=1.2, **above)


def _cells(axes: Any, matrix: Any, colors: Any, numbers: str) -> None:
    """Cells as shapes, so that their colours are those of the page."""
    from matplotlib.patches import Rectangle

    size = min(LETTERS, max(7, 100 // max(matrix.shape[1], 1)))
    for row, column in np.ndindex(*matrix.shape):
        if np.isfinite(value := matrix[row, column]):
            *rgb, alpha = colors[row, column]
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=tuple(rgb), alpha=float(alpha), linewidth=0)
            )
            if numbers:
                shown = numbers.format(value)
                axes.text(column, row, shown, ha="center", va="center", fontsize=size, color=INK)
    axes.set_xlim(-0.5, matrix.shape[1] - 0.5)
    axes.set_ylim(matrix.shape[0] - 0.5, -0.5)


def _scale(figure: Any, axes: Any, low: float, high: float, signed: bool) -> None:
    """What the colours of a matrix mean."""
    from matplotlib.patches import Patch

    shown = [(LOSS if value < 0 else GAIN, value) for value in (-high, high)] if signed else [(SERIES[0], high)]
    none = Patch(facecolor=PAPER, edgecolor=FAINT, linewidth=0.8, label=f"{low:.3g}")
    patches = [Patch(facecolor=color, label=f"{value:.3g}", linewidth=0) for color, value in shown]
    patches.insert(1 if signed else 0, none)
    axes.legend(
        handles=patches, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=1.0, borderaxespad=0.2
    )


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
