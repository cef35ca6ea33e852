"""Colours and charts of a report: lines, bars, heat maps, scatter plots and histograms in one style for Matplotlib.

A figure is 7 inches wide and its letters are 14 points high. On a phone 360 pixels wide they appear at half that size
and are still readable. Charts use the colours of this file only, so that a page can show them light or dark.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memjax.report.chart_labels import format_tick, shorten_middle

INK = "#1d2129"
"""Colour of letters and axes."""

FAINT = "#9097a3"
"""Colour of things in the background: grids, reference lines, data of less interest."""

PAPER = "#fffffe"
"""Background colour of a figure."""
# Not plain white, so that a page can tell it from white inside a picture and replace it in the dark theme.

SERIES = ["#0072b2", "#d55e00", "#009e73", "#b3579a", "#3a9ad9", "#c28800"]
"""Colours of the series of a chart, in order. People with colour blindness can tell them apart."""

GAIN = "#2166ac"
"""Colour of values above 0: scores that rise with a memory or method."""

LOSS = "#b2182b"
"""Colour of values below 0, where a memory or method harms."""

WIDTH = 7.0
"""Width of every figure in inches."""

LETTERS = 14
"""Size of the letters in points."""

STROKES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
"""Matplotlib line styles. Each further pass through the colours of `SERIES` uses the next style."""

MAX_VECTOR_CELLS = 900
"""Largest number of cells of a matrix that is drawn as shapes. Larger matrices are drawn as one image."""

LABEL = 40
"""Largest number of letters of a name in a legend."""

MAX_CELL_OPACITY = 0.62
"""Opacity of the darkest cell if numbers are written into the cells: text in `INK` stays readable on it."""

PLACE = (1, 1, 1)
"""Position of a chart that fills its figure: (rows, columns, index from 1)."""


def style() -> dict[str, Any]:
    """Returns Matplotlib settings (a dict for `rc_context`) for the figures of a report. With them equal figures give
    equal SVG bytes.
    """
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
    """Context manager that yields an empty Matplotlib figure, `WIDTH` inches wide and `height` inches high. Inside it
    Matplotlib draws in the style of a report.

    Args:
      height: Height of the figure in inches.

    Example:
      >>> with new_figure(2.0) as figure:
      ...     line_chart(figure, {"loss": ([1, 2, 3], [3.0, 2.0, 1.5])}, x="steps").get_xlabel()
      'steps'
    """
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {**matplotlib.rcParamsDefault, **style()}
    with matplotlib.rc_context(settings):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def line_chart(
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
    """Draws curves, name -> (x values, y values), and returns the Matplotlib axes. `x` and `y` are labels, `borders` x
    positions of vertical lines, `levels` y values of named horizontal lines, `limits` those of the y axis.

    Args:
      figure: Matplotlib figure to draw on.
      series: Name of a series -> its x values and y values, two sequences of one length. A single series gets no
        legend.
      x: Label of the horizontal axis, with its unit.
      y: Label of the vertical axis, with its unit.
      title: Title of the chart. '' for none.
      log_x: Whether the x axis is logarithmic. It stays linear if a value is 0 or below.
      log_y: Whether the y axis is logarithmic. It stays linear if a value is 0 or below.
      bands: Name of a series -> lower and upper end of a shaded band at each x, such as the error of a mean.
      marks: Whether a dot marks each value. Meant for series of few values.
      borders: Positions on the x axis of faint vertical lines, such as the ends of tasks.
      levels: Name of a reference -> the y value of its faint horizontal line, such as the score of guessing.
      limits: Lowest and highest value of the y axis. None takes them from the data.
      place: Position of the chart in a figure of several: (rows, columns, index from 1).
    """
    axes = _add_axes(figure, place, title, x, y)
    _set_log_scales(axes, series.values(), log_x, log_y)
    for border in borders:
        axes.axvline(border, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
    for name, level in (levels or {}).items():
        axes.axhline(level, color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)), label=shorten_middle(name, LABEL))
    for index, (name, (xs, ys)) in enumerate(series.items()):
        xs, ys = np.asarray(xs, float), np.asarray(ys, float)
        color, stroke = SERIES[index % len(SERIES)], STROKES[index // len(SERIES) % len(STROKES)]
        marker = "o" if marks or np.isfinite(ys).sum() == 1 else None
        axes.plot(xs, ys, color=color, linestyle=stroke, marker=marker, markersize=5, label=shorten_middle(name, LABEL))
        if bands and name in bands:
            low, high = (np.asarray(side, float) for side in bands[name])
            axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    if limits:
        axes.set_ylim(*limits)
    _limit_ticks(axes, place)
    axes.grid(True, axis="y")
    if len(series) + len(levels or {}) > 1:
        _draw_legend(axes, [*(levels or {}), *series], place)
    return axes


def bar_chart(
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
    """Draws bars, name of a series -> a value for each group in `names`, and returns the Matplotlib axes. `x` and `y`
    are labels, `numbers` a format such as `{:.2f}`. Bars are horizontal unless `upright`.

    Args:
      figure: Matplotlib figure to draw on.
      names: Names of the groups.
      series: Name of a series -> its value in each group, NaN for no bar. A single series gets no legend.
      x: Label of the horizontal axis, with its unit.
      y: Label of the vertical axis, with its unit.
      title: Title of the chart. '' for none.
      errors: Name of a series -> half the length of the error bar of each value.
      numbers: Format of the number at the end of each bar, such as `{:.2f}`. '' for no numbers.
      upright: Whether the bars are vertical, the first group at the left. Suits short names or ordered sizes.
      signed: Whether bars below 0 have the colour of a loss and others the colour of a gain. For a single series.
      limits: Lowest and highest value of the axis of values. None takes them from the data.
      place: Position of the chart in a figure of several: (rows, columns, index from 1).
    """
    axes = _add_axes(figure, place, title, x, y)
    middle, thick = np.arange(len(names)), 0.8 / max(len(series), 1)
    for index, (name, values) in enumerate(series.items()):
        values = np.asarray(values, float)
        at = middle + (index - (len(series) - 1) / 2) * thick
        color = [GAIN if value >= 0 else LOSS for value in values] if signed else SERIES[index % len(SERIES)]
        draw, error = (axes.bar, "yerr") if upright else (axes.barh, "xerr")
        more = {error: errors[name], "ecolor": INK} if errors and name in errors else {}
        shapes = draw(at, values, thick * 0.92, color=color, label=shorten_middle(name, LABEL), **more)
        if numbers:
            shown = [numbers.format(value) if math.isfinite(value) else "" for value in values]
            axes.bar_label(shapes, labels=shown, padding=3, color=INK, fontsize=LETTERS - 1)
    names = [shorten_middle(name, 14 if upright else 30) for name in names]
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
    _limit_ticks(axes, place, "y" if upright else "x")
    axes.grid(True, axis="y" if upright else "x")
    if any(np.min(np.nan_to_num(np.asarray(values, float)), initial=0.0) < 0 for values in series.values()):
        (axes.axhline if upright else axes.axvline)(0, color=INK, linewidth=0.8)
    if len(series) > 1:
        _draw_legend(axes, [*series], place)
    return axes


def heatmap(
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
    """Draws a matrix as a heat map, the first row on top, and returns its Matplotlib axes. `rows` and `columns` are
    names, `x` and `y` labels, `numbers` a format such as `{:.2f}`. Larger values are darker.

    Args:
      figure: Matplotlib figure to draw on.
      matrix: Values `[rows, columns]`. NaN leaves a cell empty.
      rows: Names of all rows. Empty if the vertical axis shows row numbers.
      columns: Names of all columns. Empty if the horizontal axis shows column numbers.
      x: Label below the matrix.
      y: Label at the left of the matrix.
      title: Title of the chart. '' for none.
      numbers: Format of the number in each cell, such as `{:.2f}`. '' writes no numbers and draws a colour scale.
      low: Value that is drawn without colour. None for 0, or the smallest value if that is negative.
      high: Value that is drawn in full colour. None for the largest value.
      signed: Whether values below 0 have the colour of a loss and others the colour of a gain. Then 0 has no colour.
      place: Position of the chart in a figure of several: (rows, columns, index from 1).
    """
    matrix = np.asarray(matrix, float)
    axes = _add_axes(figure, place, title, x, y)
    max_opacity = MAX_CELL_OPACITY if numbers else 1.0
    finite = matrix[np.isfinite(matrix)]
    if signed:
        high = high if high is not None else float(np.max(np.abs(finite), initial=0.0))
        low = 0.0
    else:
        low = low if low is not None else min(float(np.min(finite, initial=math.inf)), 0.0) if finite.size else 0.0
        high = high if high is not None else float(np.max(finite, initial=low))
    share = np.nan_to_num(np.clip((np.abs(matrix) if signed else matrix - low) / ((high - low) or 1.0), 0.0, 1.0))
    colors = np.zeros((*matrix.shape, 4))
    colors[..., :3] = np.where(matrix[..., None] < 0, _to_rgb(LOSS), _to_rgb(GAIN)) if signed else _to_rgb(SERIES[0])
    colors[..., 3] = share * max_opacity
    if matrix.size > MAX_VECTOR_CELLS and not numbers:
        axes.imshow(colors, aspect="auto", interpolation="nearest")
    else:
        _draw_cells(axes, matrix, colors, numbers)
    for names, count, ticks, limits in (
        (columns, matrix.shape[1], axes.set_xticks, axes.set_xlim),
        (rows, matrix.shape[0], axes.set_yticks, lambda least, most: axes.set_ylim(most, least)),
    ):
        limits(-0.5, count - 0.5)
        if names:
            every = math.ceil(count / (24 if ticks == axes.set_yticks else 16))
            ticks(np.arange(0, count, every), [shorten_middle(name, 24) for name in names][::every])
    if columns and sum(len(shorten_middle(name, 24)) for name in columns) * place[1] > 40:
        axes.tick_params(axis="x", rotation=60)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not numbers:
        _draw_color_scale(figure, axes, low, high, signed)
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
    """Draws points `[points, 2]`, one colour and marker for each of the `classes`, and returns the Matplotlib axes.
    `names` are texts beside the points, `x` and `y` labels, `bare` hides the axes.

    Args:
      figure: Matplotlib figure to draw on.
      points: Coordinates `[points, 2]`.
      classes: Class of each point. () if all points are of one class.
      x: Label of the horizontal axis.
      y: Label of the vertical axis.
      title: Title of the chart. '' for none.
      names: Text beside each point. () for none.
      size: Area of a dot in square points.
      bare: Whether axes and ticks are hidden, as suits a projection whose axes have no meaning.
      place: Position of the chart in a figure of several: (rows, columns, index from 1).
    """
    points = np.asarray(points, float).reshape(-1, 2)
    axes = _add_axes(figure, place, title, x, y)
    class_of_point = np.asarray([*classes] or [""] * len(points))
    class_names = [*dict.fromkeys(class_of_point.tolist())]
    for index, name in enumerate(class_names):
        color, marker = SERIES[index % len(SERIES)], "os^DvP"[index // len(SERIES) % 6]
        chosen = points[class_of_point == name]
        axes.scatter(
            *chosen.T,
            s=size,
            color=color,
            marker=marker,
            alpha=0.8,
            linewidths=0,
            label=shorten_middle(str(name), LABEL),
        )
    for name, point in zip(names, points, strict=bool(names)):
        axes.annotate(shorten_middle(name, 24), point, xytext=(4, 4), textcoords="offset points", fontsize=LETTERS - 1)
    if bare:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    else:
        _limit_ticks(axes, place)
    if len(class_names) > 1:
        _draw_legend(axes, [*map(str, class_names)], place)
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
    """Draws histograms over common bins, name of a set -> its numbers, and returns the Matplotlib axes. The height of a
    bin is the share of the set's numbers in it. `bins` is their number, or edges. `x` and `y` are labels.

    Args:
      figure: Matplotlib figure to draw on.
      values: Name of a set -> its numbers. Numbers that are not finite are ignored. A single set gets no legend.
      bins: Number of bins, or their edges.
      x: Label below the chart, with its unit.
      y: Label at the left of the chart.
      title: Title of the chart. '' for none.
      log_y: Whether the axis of shares is logarithmic.
      place: Position of the chart in a figure of several: (rows, columns, index from 1).
    """
    axes = _add_axes(figure, place, title, x, y)
    finite = {
        name: (numbers := np.ravel(np.asarray(unbinned, float)))[np.isfinite(numbers)]
        for name, unbinned in values.items()
    }
    edges = np.histogram_bin_edges(np.concatenate([*finite.values()] or [np.zeros(0)]), np.asarray(bins))
    for index, (name, numbers) in enumerate(finite.items()):
        share = np.histogram(numbers, edges)[0] / max(numbers.size, 1)
        color = SERIES[index % len(SERIES)]
        axes.stairs(share, edges, fill=True, color=color, alpha=0.6 if len(finite) == 1 else 0.18, linewidth=0)
        axes.stairs(share, edges, color=color, linewidth=1.6, label=shorten_middle(name, LABEL))
    if log_y:
        axes.set_yscale("log")
    _limit_ticks(axes, place)
    axes.grid(True, axis="y")
    if len(finite) > 1:
        _draw_legend(axes, [*finite], place)
    return axes


def _add_axes(figure: Any, place: tuple[int, int, int], title: str, x: str, y: str) -> Any:
    axes = figure.add_subplot(*place)
    axes.set_title(shorten_middle(title, 64 // place[1]), color=INK)
    axes.set_xlabel(shorten_middle(x, 64 // place[1]))
    axes.set_ylabel(shorten_middle(y, 32))
    return axes


def _set_log_scales(axes: Any, series: Any, log_x: bool, log_y: bool) -> None:
    """Makes the wanted axes logarithmic if all finite values along them are above 0."""
    for wanted, side, scale in ((log_x, 0, axes.set_xscale), (log_y, 1, axes.set_yscale)):
        values = [np.asarray(points[side], float) for points in series] if wanted else []
        if wanted and all(np.all(numbers[np.isfinite(numbers)] > 0) for numbers in values):
            scale("log")


def _limit_ticks(axes: Any, place: tuple[int, int, int], which: str = "xy") -> None:
    """Limits the numbers on an axis to five, or three if charts stand side by side, and writes them with k and M."""
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
            FuncFormatter(lambda value, _, axis=axis: format_tick(float(value), *axis.get_view_interval()))
        )


def _draw_legend(axes: Any, names: Sequence[str], place: tuple[int, int, int]) -> None:
    """Draws a legend above the axes, in as many columns as fit."""
    longest = max(len(shorten_middle(name, LABEL)) for name in names)
    columns = max(1, min(len(names), 56 // place[1] // (longest + 6), 4))
    rows = -(-len(names) // columns)
    if place[:2] == (1, 1) and rows > 2:  # more of it makes the figure higher and not the chart flatter
        axes.figure.set_size_inches(WIDTH, axes.figure.get_figheight() + 0.27 * (rows - 2))
    # A legend of an axes with a title stands below it, inside the picture.
    above = {} if axes.get_title(loc="left") else {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0)}
    axes.legend(ncols=columns, borderaxespad=0.2, handlelength=1.6, columnspacing=1.2, **above)


def _draw_cells(axes: Any, matrix: Any, colors: Any, numbers: str) -> None:
    """Draws the cells of a matrix as rectangles, whose colours a page can replace in its dark theme."""
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


def _draw_color_scale(figure: Any, axes: Any, low: float, high: float, signed: bool) -> None:
    """Draws the colour scale of a matrix as a legend of two or three values."""
    from matplotlib.patches import Patch

    shown = [(LOSS if value < 0 else GAIN, value) for value in (-high, high)] if signed else [(SERIES[0], high)]
    none = Patch(facecolor=PAPER, edgecolor=FAINT, linewidth=0.8, label=f"{low:.3g}")
    patches = [Patch(facecolor=color, label=f"{value:.3g}", linewidth=0) for color, value in shown]
    patches.insert(1 if signed else 0, none)
    axes.legend(
        handles=patches, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=1.0, borderaxespad=0.2
    )


def _to_rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
