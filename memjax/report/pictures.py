"""Figures as pictures: within a page, and as files."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memjax.report import charts
from memjax.report.panel import Figure

__all__ = ["svg_of", "write_figures"]

NO_METADATA: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
DPI = 150


def svg_of(figure: Figure, colors: Mapping[str, str]) -> str:
    """A figure within a page: its text is text, its colours are those of the page, and its ids are its own.

    Args:
      figure: whose name begins its ids.
      colors: name of a colour of the page -> as it is drawn.
    """
    drawn = _draw(figure, "svg").decode()
    begin = re.search(r"<svg\b[^>]*?viewBox=\"([^\"]*)\"[^>]*>", drawn)
    assert begin is not None
    body = re.sub(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", drawn[begin.end() :], count=1, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]*>", lambda tag: _of_page(tag[0], figure.name, colors), body)
    label = html.escape(f"{figure.title}. {figure.caption}", quote=True)
    return f'<svg viewBox="{begin[1]}" role="img" aria-label="{label}">{body}'


def _of_page(tag: str, name: str, colors: Mapping[str, str]) -> str:
    """A tag with ids that begin with a name, and colours of the page.

    Example:
      >>> _of_page('<path id="a" clip-path="url(#b)" style="fill: #123456"/>', "loss", {"ink": "#123456"})
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
    """Writes each figure as `NAME.svg` and `NAME.png`, on white paper, and returns the files.

    Args:
      figures: of one report, so that their names are unique.
      folder: is made where it is missing.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures:
        for kind in ("svg", "png"):
            path = folder / f"{figure.name}.{kind}"
            path.write_bytes(_draw(figure, kind))
            written.append(path)
    return written


def _draw(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), charts.new_figure(figure.height) as drawn:
        # A page leaves letters to the browser; files show a box for those that the font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.draw(drawn)
        named: dict[str, Any] = (
            {"metadata": NO_METADATA} if kind == "svg" else {"dpi": DPI, "metadata": {"Software": None}}
        )
        drawn.savefig(buffer, format=kind, **named)
    return buffer.getvalue()
