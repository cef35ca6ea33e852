"""Writes a report as one self-contained HTML page with pictures, tables and shaded texts, in a light and dark theme."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.resources
import math
from collections.abc import Mapping, Sequence
from typing import Any

from memjax.report import charts
from memjax.report.panel import Figure, Panel, Paragraph, Table
from memjax.report.pictures import figure_to_svg


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report page: a heading and the panels about one run, or about all runs together.

    Attributes:
      name: Name of the section's anchor in the page.
      title: Heading of the section. '' for none, in a report about a single run.
      panels: Panels of the section. Their names and the names of their items are unique in the report.
      left: One line for everything that is left out, with the reason.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    left: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """The contents of a report page about one or several runs: tables of facts and settings, sections of panels, and
    pictures. `make_page` renders it as HTML.

    Attributes:
      title: Title of the page.
      about: One sentence about the report.
      names: Names of the runs.
      header: Table of facts and scores with one column for each run.
      settings: Table of all settings with one column for each run.
      sections: Sections of the page, shown one below the other.
      pictures: Name of a figure -> its SVG picture. Figures that are missing are drawn when the page is made.
    """

    title: str
    about: str
    names: tuple[str, ...]
    header: Table
    settings: Table
    sections: tuple[Section, ...]
    pictures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def figures(self) -> list[Figure]:
        """All figures of the report, a list in the order of the page. Tables and shaded texts are not in it."""
        return [part for s in self.sections for panel in s.panels for part in panel.items if isinstance(part, Figure)]


FOLDER = importlib.resources.files("memjax.report")
"""Folder of the page's HTML templates."""

LIGHT = {
    "ink": charts.INK,
    "faint": charts.FAINT,
    "paper": charts.PAPER,
    "gain": charts.GAIN,
    "loss": charts.LOSS,
    **{f"series-{number}": color for number, color in enumerate(charts.SERIES)},
}
"""Colours of the light theme: name of a colour -> its value, which is also the value in the drawn pictures."""

DARK = {
    "ink": "#e4e7ec",
    "faint": "#7d8694",
    "paper": "#15181e",
    "gain": "#6fa8e6",
    "loss": "#f07d85",
    **dict(
        zip(
            (f"series-{number}" for number in range(len(charts.SERIES))),
            ("#4aa8e8", "#f58b4c", "#35c799", "#dc8fc6", "#8fcbf7", "#e3b341"),
            strict=True,
        )
    ),
}
"""Colours of the dark theme: name of a colour -> its value."""

OF_PAGE = {
    "quiet": ("#565e6b", "#a6aebb"),
    "line": ("#dde1e7", "#313742"),
    "shade": ("#f3f5f8", "#1f242c"),
    "link": ("#0b5cad", "#7db8f5"),
}
"""Colours of text and lines around the pictures: name of a colour -> its value in the light and the dark theme."""

SCRIPT = """
(function () {
  var root = document.documentElement, kept = null;
  try { kept = localStorage.getItem("memjax-theme"); } catch (error) { kept = null; }
  if (kept) { root.dataset.theme = kept; }
  document.getElementById("theme").addEventListener("click", function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("memjax-theme", root.dataset.theme); } catch (error) { kept = null; }
  });
  document.querySelectorAll(".words").forEach(function (words) {
    var note = words.nextElementSibling, chosen = null;
    function show(event) {
      var word = event.target.closest("span[title]");
      if (!word || !words.contains(word)) { return; }
      if (chosen) { chosen.classList.remove("chosen"); }
      chosen = word;
      chosen.classList.add("chosen");
      note.textContent = "\\u201c" + word.textContent.trim() + "\\u201d: " + word.title;
    }
    words.addEventListener("pointerover", show);
    words.addEventListener("click", show);
  });
})();
"""
"""JavaScript of the page: it switches between light and dark theme and shows the note of a word under the pointer."""

MAX_SHADE = 65
"""Percentage of colour behind a word of value 1 or -1."""


def make_page(report: Report) -> str:
    """Renders a report as the text of one self-contained HTML page. Equal reports give equal pages. No file is written.

    Raises:
      ModuleNotFoundError: Jinja or Matplotlib is not installed.
    """
    import jinja2
    from markupsafe import Markup

    loader = jinja2.FunctionLoader(lambda name: (FOLDER / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, loader=loader, keep_trailing_newline=True
    )
    macros: Any = environment.get_template("parts.html").module

    def format_text(text: str) -> Any:
        """Escapes a text for HTML and sets the parts between backticks as code."""
        pieces = enumerate(text.split("`"))
        return Markup("").join(Markup("<code>{}</code>").format(piece) if odd % 2 else piece for odd, piece in pieces)

    def table(part: Table, heads: bool = False, code: bool = False) -> Any:
        return macros.table(part, _format_cells(part), [*map(_is_numbers, zip(*part.rows, strict=True))], heads, code)

    def show(part: Figure | Table | Paragraph) -> Any:
        match part:
            case Figure():
                picture = report.pictures.get(part.name) or figure_to_svg(part, LIGHT)
                return macros.figure(part, format_text(part.caption), Markup(picture))
            case Table():
                return macros.part(part, format_text(part.caption), table(part))
            case Paragraph():
                return macros.words(part, format_text(part.caption), _word_shades(part))

    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    variables = {"colors": Markup(_color_rules()), "script": Markup(SCRIPT), "script_hash": f"sha256-{digest}"}
    template = environment.get_template("page.html")
    return template.render(report=report, table=table, show=show, told=format_text, **variables)


def _color_rules() -> str:
    """CSS rules of the page's colours: the theme of the system or of the reader's choice, and light in print."""
    sides = [{**LIGHT, **{name: pair[0] for name, pair in OF_PAGE.items()}}]
    sides.append({**DARK, **{name: pair[1] for name, pair in OF_PAGE.items()}})
    light, dark = ("".join(f" --{name}: {color};" for name, color in side.items()) for side in sides)
    screen = "@media screen and (prefers-color-scheme: dark)"
    return (
        f":root {{ color-scheme: light;{light} }}\n"
        f"{screen} {{ :root:not([data-theme=light]) {{ color-scheme: dark;{dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark;{dark} }} }}"
    )


def _format_cells(table: Table) -> list[list[str]]:
    """The cells of a table as text."""
    return [[_format_cell(cell) for cell in row] for row in table.rows]


def _format_cell(value: Any) -> str:
    """Formats a cell: integers with separators, other numbers with six significant digits, or four below 1.

    Example:
      >>> [_format_cell(value) for value in (1234567, 0.123456, 5.1234567, 123456.7, 1e-7, -0.0, None, True)]
      ['1,234,567', '0.1235', '5.12346', '123,457', '1e-07', '0', '', 'yes']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    try:
        number = float(value) + 0.0 if not isinstance(value, str) else None  # no minus before 0
    except (TypeError, ValueError):
        number = None
    if number is None:
        return str(value)
    if 1e4 <= abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:.6g}" if abs(number) >= 1 else f"{number:.4g}"


def _is_numbers(column: Sequence[Any]) -> bool:
    """Whether a column holds numbers only, at least one, apart from empty cells.

    Example:
      >>> _is_numbers((1, None, 2.5)), _is_numbers((1, "none")), _is_numbers((None,))
      (True, False, False)
    """
    filled_cells = [cell for cell in column if cell is not None]
    return bool(filled_cells) and not any(isinstance(cell, str | bool | tuple | list) for cell in filled_cells)


def _word_shades(words: Paragraph) -> list[tuple[str, str, int, str]]:
    """Lists each word with its direction ('up', 'down' or ''), the percentage of its colour, and its note.

    Example:
      >>> _word_shades(Paragraph("w", "", "", ("so ", "it ", "is"), (0.0, 1.0, -0.5)))
      [('so ', '', 0, ''), ('it ', 'up', 65, ''), ('is', 'down', 32, '')]
    """
    notes = words.notes or ("",) * len(words.words)
    shades = []
    for word, value, note in zip(words.words, words.shades, notes, strict=True):
        share = round(MAX_SHADE * min(abs(value), 1.0)) if math.isfinite(value) else 0
        shades.append((word, ("up" if value > 0 else "down") if share else "", share, note))
    return shades
