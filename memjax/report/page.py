"""One page of HTML that needs nothing besides: pictures, tables and shaded texts of panels, light and dark."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.resources
import math
from collections.abc import Mapping, Sequence
from typing import Any

from memjax.report import charts
from memjax.report.panel import Figure, Panel, Table, Words
from memjax.report.pictures import svg_of

__all__ = ["Report", "Section", "make_page"]


@dataclasses.dataclass(frozen=True)
class Section:
    """What is said of one run, or of several.

    Attributes:
      name: of its anchor.
      title: '' = none: of a page with one section of one run.
      panels: their names, and those of their parts, are unique in a report.
      left: what is left out and why, a line each.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    left: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """What a page shows.

    Attributes:
      title: of the page.
      about: what it is, in a sentence.
      names: of the runs.
      header: a column a run: what it is and what it has come to.
      settings: a column a run.
      sections: shown one below the other.
      drawn: name of a figure -> its picture in a page; those that are not there are drawn when the page is made.
    """

    title: str
    about: str
    names: tuple[str, ...]
    header: Table
    settings: Table
    sections: tuple[Section, ...]
    drawn: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def figures(self) -> list[Figure]:
        """All of them, in their order."""
        return [part for s in self.sections for panel in s.panels for part in panel.parts if isinstance(part, Figure)]


FOLDER = importlib.resources.files("memjax.report")
"""of the templates"""

LIGHT = {
    "ink": charts.INK,
    "faint": charts.FAINT,
    "paper": charts.PAPER,
    "gain": charts.GAIN,
    "loss": charts.LOSS,
    **{f"series-{number}": color for number, color in enumerate(charts.SERIES)},
}
"""name of a colour -> as it is drawn"""

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
"""name of a colour -> on dark paper"""

OF_PAGE = {
    "quiet": ("#565e6b", "#a6aebb"),
    "line": ("#dde1e7", "#313742"),
    "shade": ("#f3f5f8", "#1f242c"),
    "link": ("#0b5cad", "#7db8f5"),
}
"""name -> light, dark; of letters and lines around the pictures"""

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
"""turns light to dark, and says what a word that is pointed at has to say"""

MOST_SHADE = 65
"""per cent of the colour behind the words of the largest numbers"""


def make_page(report: Report) -> str:
    """The page; equal reports give equal pages.

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

    def told(text: str) -> Any:
        """Text, in which `code` stands between backticks."""
        pieces = enumerate(text.split("`"))
        return Markup("").join(Markup("<code>{}</code>").format(piece) if odd % 2 else piece for odd, piece in pieces)

    def table(part: Table, heads: bool = False, code: bool = False) -> Any:
        return macros.table(part, cells_of(part), [*map(is_numbers, zip(*part.rows, strict=True))], heads, code)

    def show(part: Figure | Table | Words) -> Any:
        match part:
            case Figure():
                drawn = report.drawn.get(part.name) or svg_of(part, LIGHT)
                return macros.figure(part, told(part.caption), Markup(drawn))
            case Table():
                return macros.part(part, told(part.caption), table(part))
            case Words():
                return macros.words(part, told(part.caption), shades_of(part))

    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    named = {"colors": Markup(color_rules()), "script": Markup(SCRIPT), "script_hash": f"sha256-{digest}"}
    return environment.get_template("page.html").render(report=report, table=table, show=show, told=told, **named)


def color_rules() -> str:
    """The colours of the page: those of the system, or those that were chosen; light in print."""
    sides = [{**LIGHT, **{name: pair[0] for name, pair in OF_PAGE.items()}}]
    sides.append({**DARK, **{name: pair[1] for name, pair in OF_PAGE.items()}})
    light, dark = ("".join(f" --{name}: {color};" for name, color in side.items()) for side in sides)
    screen = "@media screen and (prefers-color-scheme: dark)"
    return (
        f":root {{ color-scheme: light;{light} }}\n"
        f"{screen} {{ :root:not([data-theme=light]) {{ color-scheme: dark;{dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark;{dark} }} }}"
    )


def cells_of(table: Table) -> list[list[str]]:
    """The cells of a table as text."""
    return [[show_cell(cell) for cell in row] for row in table.rows]


def show_cell(value: Any) -> str:
    """A cell as text: integers with separators, other numbers with six digits that count, below 1 with four.

    Example:
      >>> [show_cell(value) for value in (1234567, 0.123456, 5.1234567, 123456.7, 1e-7, -0.0, None, True)]
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


def is_numbers(column: Sequence[Any]) -> bool:
    """Whether a column is one of numbers.

    Example:
      >>> is_numbers((1, None, 2.5)), is_numbers((1, "none")), is_numbers((None,))
      (True, False, False)
    """
    there = [cell for cell in column if cell is not None]
    return bool(there) and not any(isinstance(cell, str | bool | tuple | list) for cell in there)


def shades_of(words: Words) -> list[tuple[str, str, int, str]]:
    """Each word with its side ('up', 'down' or ''), the share of its colour in per cent, and its note.

    Example:
      >>> shades_of(Words("w", "", "", ("so ", "it ", "is"), (0.0, 1.0, -0.5)))
      [('so ', '', 0, ''), ('it ', 'up', 65, ''), ('is', 'down', 32, '')]
    """
    notes = words.notes or ("",) * len(words.words)
    found = []
    for word, value, note in zip(words.words, words.values, notes, strict=True):
        share = round(MOST_SHADE * min(abs(value), 1.0)) if math.isfinite(value) else 0
        found.append((word, ("up" if value > 0 else "down") if share else "", share, note))
    return found
