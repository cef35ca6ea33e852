"""Draws pictures of results as SVG that can be read on light and on dark backgrounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from tools.results.ledger import Book, Measurement

WIDTH, LEFT, RIGHT, ROW, TOP = 720, 215, 60, 34, 62
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px;fill:#59636e}.kept{fill:#0969da}"
    ".cleared{fill:#afb8c1}.line{stroke:#1f2328;stroke-width:1.5}.chance{stroke:#59636e;stroke-dasharray:3 3}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.kept{fill:#4493f8}.cleared{fill:#656c76}"
    ".line{stroke:#e6edf3}.chance{stroke:#9198a1}}"
)


def worth(measurements: Sequence[Measurement]) -> str:
    """Draws the accuracy of models on tasks that only a memory solves, with their memory and with an empty one.

    A bar is the mean over seeds, and a line on it the range of the seeds. A dotted line is chance.

    Args:
      measurements: Measurements of a book. Those of the kind `learns` whose unit is accuracy are drawn.

    Returns:
      The picture as SVG.
    """
    learned = (measurement for measurement in measurements if measurement.kind == "learns")
    tasks = [measurement for measurement in learned if measurement.facts["unit"] == "accuracy"]
    place = lambda share: LEFT + share * (WIDTH - LEFT - RIGHT)
    parts = [
        _text(0, 18, "The same trained models, with their memory and with an empty one"),
        f'<rect class="kept" x="0" y="30" width="12" height="12"/>{_text(18, 41, "as it was left", "small")}',
        f'<rect class="cleared" x="120" y="30" width="12" height="12"/>'
        f"{_text(138, 41, 'cleared before each segment (a dotted line: chance)', 'small')}",
    ]
    for number, task in enumerate(tasks):
        scores_by_seed = [record["found"] for record in task.facts["records"]]
        middle = TOP + number * ROW + ROW / 2
        parts.append(_text(LEFT - 10, middle + 4, task.name, anchor="end"))
        without = "cleared" if "cleared" in scores_by_seed[0] else "off"
        for name, shift, height in (("kept", -11, 12), (without, 2, 7)):
            values = [scores[name] for scores in scores_by_seed]
            mean, kind = statistics.fmean(values), "kept" if name == "kept" else "cleared"
            parts.append(
                f'<rect class="{kind}" x="{LEFT}" y="{middle + shift:g}" width="{place(mean) - LEFT:.1f}" '
                f'height="{height}"/>'
            )
            if name == "kept":
                ends, y = (place(min(values)), place(max(values))), middle + shift + height / 2
                parts.append(f'<line class="line" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:g}" y2="{y:g}"/>')
                parts.append(_text(max(place(mean), ends[1]) + 8, y + 5, f"{100 * mean:.0f} %", "small"))
        chance = place(task.facts["chance"])
        parts.append(
            f'<line class="chance" x1="{chance:.1f}" x2="{chance:.1f}" y1="{middle - 14:g}" y2="{middle + 12:g}"/>'
        )
    height = TOP + len(tasks) * ROW + 30
    parts.append(_text(LEFT, height - 10, "accuracy; mean and range of six seeds", "small"))
    said = "Accuracy with a memory and without, on tasks that only a memory solves"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">\n'
        f"<title>{said}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def pictures(book: Book) -> dict[str, str]:
    """Returns all pictures of a book: path in the repository -> SVG. {} for a book without the measurements to draw."""
    measurements = book.measurements()
    return {"docs/images/worth.svg": worth(measurements)} if any(m.kind == "learns" for m in measurements) else {}


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(said)}</text>'
