"""Turns figures of a report into pictures: SVG inside a page, and SVG and PNG files."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memjax.durable_files import replace_file
from memjax.report import charts
from memjax.report.panel import Figure

NO_METADATA: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
DPI = 150


def figure_to_svg(figure: Figure, colors: Mapping[str, str]) -> str:
    """Draws a figure and returns the text of an SVG element. The values in `colors`, name -> value, become CSS
    variables of these names, so that the theme of a page sets the colours.

    Letters stay text. Ids are prefixed with the figure's name, so that the figures of a page do not share ids.

    Args:
      figure: Figure to draw. Its name is the prefix of all ids.
      colors: Name of a colour of the page -> the value with which figures draw it.
    """
    svg = _draw(figure, "svg").decode()
    begin = re.search(r"<svg\b[^>]*?viewBox=\"([^\"]*)\"[^>]*>", svg)
    assert begin is not None
    body = re.sub(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg[begin.end() :], count=1, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]*>", lambda tag: _adapt_tag_to_page(tag[0], figure.name, colors), body)
    label = html.escape(f"{figure.title}. {figure.caption}", quote=True)
    return f'<svg viewBox="{begin[1]}" role="img" aria-label="{label}">{body}'


def _adapt_tag_to_page(tag: str, name: str, colors: Mapping[str, str]) -> str:
    """Prefixes the ids in an SVG tag with a name and replaces its colours by the CSS variables of the page.

    Example:
      >>> _adapt_tag_to_page('<path id="a" clip-path="url(#b)" style="fill: #123456"/>', "loss", {"ink": "#123456"})
      '<path id="loss-a" clip-path="url(#loss-b)" style="fill: var(--ink)"/>'
    """
    tag = tag.replace("xlink:href=", "href=")
    tag = re.sub(r"\bid=\"([^\"]+)\"", rf'id="{name}-\1"', tag)
    tag = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", tag)
    tag = re.sub(r"\bhref=\"#([^\"]+)\"", rf'href="#{name}-\1"', tag)
    for color, value in colors.items():
        tag = re.sub(r"style=\"[^\"]*\"", lambda style, c=color, v=value: style[0].replace(v, f"var(--{c})"), tag)
    return tag


def write_figures(figures: Iterable[Figure], folder: Path | str) -> list[Path]:
    """Draws each figure into two files in `folder`, `NAME.svg` and `NAME.png`, on white paper, and returns the paths of
    all files.

    Args:
      figures: Figures with unique names, such as the figures of one report.
      folder: Folder of the files. It is created if it does not exist.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in figures:
        for kind in ("svg", "png"):
            path = folder / f"{figure.name}.{kind}"
            replace_file(path, _draw(figure, kind))
            paths.append(path)
    return paths


def _draw(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), charts.new_figure(figure.height) as canvas:
        # In a page the browser draws the letters. Files show a box for letters that the font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.draw(canvas)
        options: dict[str, Any] = (
            {"metadata": NO_METADATA} if kind == "svg" else {"dpi": DPI, "metadata": {"Software": None}}
        )
        canvas.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
